//! Logs, metrics, and the small server that shows health. It must not know a kind: labels come in as words.

mod health;
mod logs;
mod metrics;

pub use health::{Health, serve};
pub use logs::{LogFormat, start_logs};
pub use metrics::{Amounts, Depths, FleetCounts, Limit, Metrics, PoolStanding, Series};
