//! The floor: lives of the same items by a bare client that does nothing else. A life is one create, two replacements
//! of the status with the text that Spillway wrote at a claim and at a finish, and one delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use spillway::api::work_item::WorkItemPhase::{self, Leased, Succeeded};
use spillway::api::{WorkItem, WorkItemStatus};
use tokio::task::JoinSet;

use super::{LIMIT, Stage, items};
use crate::bench_namespace::{BenchNamespace, within};
use crate::report::float;

/// Time limit for lives that had begun when the time was over.
const LATE: Duration = Duration::from_secs(60);
/// Writes of one life.
const WRITES: f64 = 4.0;
/// How long the sample item is held, so that its status is seen meanwhile.
const HELD: Duration = Duration::from_secs(2);

/// A namespace that no operator serves, and the status that Spillway writes for an item.
#[derive(Clone)]
pub struct Floor(Arc<Inner>);

struct Inner {
    room: BenchNamespace,
    claimed: WorkItemStatus,
    finished: WorkItemStatus,
    runs: AtomicU32,
}

impl Floor {
    /// Lets a worker do one item, and looks at its status.
    pub async fn open(stage: &Stage) -> anyhow::Result<Self> {
        let hands = stage.fleet.hands();
        hands.set_work_time(HELD);
        stage.room.api::<WorkItem>().create(&PostParams::default(), &items::item("pattern", "pattern")).await?;
        let claimed = status(stage, Leased).await?;
        let finished = status(stage, Succeeded).await?;
        drop(hands.take());
        anyhow::ensure!(items::collect(&stage.room, "pattern").await? == 0, "the pattern was not collected");
        let room = BenchNamespace::open("floor").await?;
        Ok(Self(Arc::new(Inner { room, claimed, finished, runs: AtomicU32::new(0) })))
    }

    /// Lives a second, `at_once` at once, for `time`. It is a quarter of the writes in that time, so that unfinished
    /// lives count in part.
    pub async fn lives(&self, at_once: usize, time: Duration) -> anyhow::Result<f64> {
        let run = self.0.runs.fetch_add(1, Ordering::Relaxed);
        let (until, mut workers) = (Instant::now() + time, JoinSet::new());
        for worker in 0..at_once {
            let inner = self.0.clone();
            workers.spawn(async move {
                let mut writes = 0;
                for number in 0_usize.. {
                    if Instant::now() >= until {
                        break;
                    }
                    writes += inner.life(&format!("floor-{run}-{worker}-{number}"), until).await?;
                }
                anyhow::Ok(writes)
            });
        }
        let all = tokio::time::timeout(time + LATE, workers.join_all()).await.context("the bare client's lives do not end")?;
        let writes: usize = all.into_iter().sum::<anyhow::Result<usize>>()?;
        Ok(float(writes) / WRITES / time.as_secs_f64())
    }
}

impl Inner {
    /// One life, to its end; the number of its writes that were answered in time.
    async fn life(&self, name: &str, until: Instant) -> anyhow::Result<usize> {
        let (api, params) = (self.room.api::<WorkItem>(), PostParams::default());
        let in_time = || usize::from(Instant::now() < until);
        let mut item = api.create(&params, &items::item("floor", name)).await?;
        let mut writes = in_time();
        for status in [&self.claimed, &self.finished] {
            item.status = Some(status.clone());
            item = api.replace_status(name, &params, &item).await?;
            writes += in_time();
        }
        let preconditions = Preconditions { uid: item.uid(), resource_version: item.resource_version() };
        api.delete(name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }).await?;
        Ok(writes + in_time())
    }
}

/// Waits until the sample item is in this phase; its status.
async fn status(stage: &Stage, wanted: WorkItemPhase) -> anyhow::Result<WorkItemStatus> {
    within(LIMIT, &format!("the pattern is {wanted:?}"), async || {
        let status = stage.room.api::<WorkItem>().get("pattern").await?.status.context("no status yet")?;
        anyhow::ensure!(status.phase == Some(wanted), "it is {:?}", status.phase);
        Ok(status)
    })
    .await
}
