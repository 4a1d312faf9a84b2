//! The steady load of a namespace: items at a rate for workers that wait, and calls of models at a rate, at times of
//! Poisson processes that are the same each time. It is measured alone, and beside the load of another namespace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::api::PostParams;
use serde_json::json;
use spillway::api::WorkItem;

use super::load::{self, Answers, Load, Target};
use super::loud::BYTES;
use super::{Arm, Callers, LIMIT, Stage, provider};
use crate::arrivals::arrivals;
use crate::bench_namespace::{BenchNamespace, within};
use crate::report::milliseconds;
use crate::work::items;

/// Calls of models a second.
pub const CALLS: f64 = 20.0;
/// Items a second.
pub const ITEMS: f64 = 5.0;
/// How long a worker works on an item.
pub const ITEM_TIME: Duration = Duration::from_millis(50);
/// Seed of the times at which items are due.
const SEED: u64 = 20;

/// The namespace, its workers and callers.
pub struct Steady {
    /// Its namespace.
    pub room: BenchNamespace,
    /// Its agents.
    pub callers: Callers,
    workers: usize,
    target: Arc<Target>,
}

/// Its submitted items, and the outcomes of its calls.
pub struct Submitted {
    /// Name, time at which it was due, and milliseconds until it was stored, of each item.
    items: Vec<(String, Instant, f64)>,
    calls: Answers,
}

/// Its measurements.
pub struct Measured {
    /// Milliseconds from when an item was due until its creation was answered. Spillway has no part in that.
    pub stored: Vec<f64>,
    /// Milliseconds from when an item was due until a worker had it.
    pub claims: Vec<f64>,
    /// Number of items that no worker had in time.
    pub unclaimed: usize,
    /// Its calls of models.
    pub calls: Answers,
}

impl Steady {
    /// Sets it up, with `workers` registered workers.
    pub async fn open(stage: &Stage, room: BenchNamespace, workers: usize) -> anyhow::Result<Self> {
        items::apply_queue(&room, 0).await?;
        let callers = Callers::gather(stage, &room, &stage.provider.served, workers, pool(workers)).await?;
        callers.fleet.hands().set_work_time(ITEM_TIME);
        let target = stage.target(Arm::Gateway, None, &callers)?;
        Ok(Self { room, callers, workers, target })
    }

    /// Waits until all workers wait for work, and clears their log.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let hands = self.callers.fleet.hands();
        within(LIMIT, "the workers wait for work", async || {
            let waiting = hands.waiting();
            anyhow::ensure!(waiting == self.workers, "{waiting} of {} do", self.workers);
            Ok(())
        })
        .await?;
        drop(hands.take());
        Ok(())
    }

    /// Submits items and calls models for `time`. The items' names begin with `part`.
    pub async fn submit(&self, part: &str, time: Duration) -> anyhow::Result<Submitted> {
        let calls = Load { rate: CALLS, time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let (calls, items) = tokio::join!(load::open(&self.target, &calls), self.items(part, time));
        Ok(Submitted { calls, items: items? })
    }

    /// Waits until the submitted items are finished, at most for `patience`.
    pub async fn measured(&self, submitted: Submitted, patience: Duration) -> Measured {
        let (Submitted { items, calls }, hands) = (submitted, self.callers.fleet.hands());
        // Items that are not claimed by then are reported.
        let late = within(patience, "all items are finished", async || {
            let ends = hands.end_count();
            anyhow::ensure!(ends >= items.len(), "{ends} of {} were", items.len());
            Ok(())
        })
        .await;
        late.unwrap_or_else(|error| println!("  {error:#}"));
        let log = hands.take();
        let at: HashMap<&str, Instant> = log.claims.iter().rev().map(|claim| (claim.item.as_str(), claim.at)).collect();
        let claims: Vec<f64> =
            items.iter().filter_map(|(name, due, _)| Some(milliseconds(at.get(name.as_str())?.saturating_duration_since(*due)))).collect();
        let stored = items.iter().map(|&(_, _, stored)| stored).collect();
        drop(self.callers.fleet.samples());
        Measured { unclaimed: items.len() - claims.len(), stored, claims, calls }
    }

    async fn items(&self, part: &str, time: Duration) -> anyhow::Result<Vec<(String, Instant, f64)>> {
        let begin = Instant::now();
        let making = arrivals(SEED, ITEMS, time).into_iter().enumerate().map(|(number, due)| {
            let (api, name) = (self.room.api::<WorkItem>(), format!("{part}-{number:05}"));
            let due = begin + due;
            async move {
                tokio::time::sleep_until(due.into()).await;
                api.create(&PostParams::default(), &items::item("quiet", &name)).await?;
                anyhow::Ok((name, due, milliseconds(due.elapsed())))
            }
        });
        join_all(making.collect::<Vec<_>>()).await.into_iter().collect()
    }
}

/// Spec of a pool of `workers` workers that stay when there is no work.
pub fn pool(workers: usize) -> serde_json::Value {
    let scaling = json!({"min": workers, "max": 10000, "workAware": false});
    json!({"type": "worker", "scaling": scaling, "queues": [{"name": items::QUEUE}]})
}
