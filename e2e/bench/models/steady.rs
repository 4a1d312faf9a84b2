//! The steady load of a namespace that does what it always does: items at a rate for workers that wait, and calls of models at a
//! rate, at times of Poisson processes that are the same each time. Measured alone, and beside whatever another namespace does.

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
/// What an item takes a worker.
pub const ITEM_TIME: Duration = Duration::from_millis(50);
/// Of the times at which items are due.
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

/// What it submitted, and what came of its calls.
pub struct Submitted {
    /// Name, time at which it was due, and milliseconds until it was stored, of each item.
    items: Vec<(String, Instant, f64)>,
    calls: Answers,
}

/// What it saw.
pub struct Measured {
    /// Milliseconds from when an item was due until its maker was told that it is stored: nothing of Spillway is in that.
    pub stored: Vec<f64>,
    /// Until a worker had it.
    pub claims: Vec<f64>,
    /// Items that no worker had in time.
    pub unclaimed: usize,
    /// Its calls of models.
    pub calls: Answers,
}

impl Steady {
    /// With so many workers that are registered.
    pub async fn open(stage: &Stage, room: BenchNamespace, workers: usize) -> anyhow::Result<Self> {
        items::apply_queue(&room, 0).await?;
        let callers = Callers::gather(stage, &room, &stage.provider.served, workers, pool(workers)).await?;
        callers.fleet.hands().set_think(ITEM_TIME);
        let target = stage.target(Arm::Gateway, None, &callers)?;
        Ok(Self { room, callers, workers, target })
    }

    /// Waits until all workers wait for work, and forgets what they did before.
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

    /// Submits items and calls models for so long. `part` begins the items' names.
    pub async fn submit(&self, part: &str, time: Duration) -> anyhow::Result<Submitted> {
        let calls = Load { rate: CALLS, time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let (calls, items) = tokio::join!(load::open(&self.target, &calls), self.items(part, time));
        Ok(Submitted { calls, items: items? })
    }

    /// Waits until what was submitted is finished, but no longer than `patience`.
    pub async fn measured(&self, submitted: Submitted, patience: Duration) -> Measured {
        let (Submitted { items, calls }, hands) = (submitted, self.callers.fleet.hands());
        // What is not claimed by then is told.
        let late = within(patience, "all items are finished", async || {
            let ends = hands.ends();
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

/// A pool of so many workers that stay when there is no work.
pub fn pool(workers: usize) -> serde_json::Value {
    let scaling = json!({"min": workers, "max": 10000, "workAware": false});
    json!({"type": "worker", "scaling": scaling, "queues": [{"name": items::QUEUE}]})
}
