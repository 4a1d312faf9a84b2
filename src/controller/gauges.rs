//! Updates the gauges of metrics periodically. No update iterates over all items or agents.

use std::sync::Arc;
use std::time::Duration;

use super::Context;

/// Interval of the updates.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the gauges of work and of agents up to date. Never returns.
pub async fn run(context: Arc<Context>) {
    let mut ticks = tokio::time::interval(GAUGE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        context.work_index.measure();
        context.fleet.measure(context.live.tripped_agents());
    }
}
