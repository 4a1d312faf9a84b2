//! Work: the time until an item is claimed, lives of items a second, API writes of a life, and the effect of 10,000
//! waiting items on these numbers.
//!
//! There are one namespace, one fleet of simulated workers that wait for work by long poll, and one queue. Every part
//! has a time limit. Items that are not done by then are counted and reported, and the next part begins.

mod cost;
mod fate;
mod floor;
pub mod items;
mod open;
mod startup;
mod sustained;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use spillway::api::WorkItem;

use crate::bench_namespace::{BenchNamespace, within};
use crate::operator::Operator;
use crate::processes::{self, Memory};
use crate::report::Report;
use crate::simulated::Fleet;
use crate::size::Size;
use floor::Floor;

/// Number of workers, unless the fleet is smaller.
const AGENTS: usize = 200;
/// Items that wait.
const WAITING: usize = 10_000;
const POOL: &str = "workers";
/// Time limit for steps that take seconds.
const LIMIT: Duration = Duration::from_secs(180);
/// Interval between two checks of the workers' progress.
const LOOK: Duration = Duration::from_millis(100);

/// How much work there is.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Workers: `BENCH_AGENTS`, at most 200.
    agents: usize,
    /// Items that wait: `BENCH_ITEMS`, else 10,000; ten for each worker where the fleet is small.
    waiting: usize,
}

impl Scale {
    fn of_environment(size: Size) -> anyhow::Result<Self> {
        let agents = size.agents.min(AGENTS);
        let waiting = match std::env::var("BENCH_ITEMS") {
            Ok(text) => text.parse().context("BENCH_ITEMS must be a number")?,
            Err(_) if size.small() => agents * 10,
            Err(_) => WAITING,
        };
        anyhow::ensure!((1..=items::MAX_PENDING / 2).contains(&waiting), "BENCH_ITEMS must be 1 to {}", items::MAX_PENDING / 2);
        Ok(Self { agents, waiting })
    }

    /// Items that are kept after their end, in addition to those that wait.
    fn finished(self) -> usize {
        (self.waiting / 10).max(1)
    }
}

/// The subject of the measurements.
struct Stage {
    size: Size,
    scale: Scale,
    room: BenchNamespace,
    controller: Operator,
    gateway: Operator,
    fleet: Fleet,
    /// The API server's process.
    api_server: u32,
    /// Number of controllers so far.
    replicas: u32,
    /// Items that wait, of which no worker takes any.
    waiting: usize,
    /// Items that are kept after their end.
    finished: usize,
    /// Memory of a controller that was just started, without any item.
    bare: Option<Memory>,
}

/// Runs the benchmark. Numbers go to `reports` also if a part fails.
pub async fn run(size: Size, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let mut stage = Stage::open(size, Scale::of_environment(size)?).await?;
    let floor = Floor::open(&stage).await?;
    let mut troubles = Vec::new();
    let mut keep = |part: &str, result: anyhow::Result<Report>| match result {
        Ok(report) => {
            println!("  {part}: taken");
            reports.push(report);
        }
        Err(error) => {
            println!("  {part}: {error:#}");
            troubles.push(format!("{part}: {error:#}"));
        }
    };
    keep("a new controller, no items", startup::run(&mut stage).await);
    if std::env::var_os("BENCH_BESIDE").is_none() {
        for rate in open::RATES {
            keep(&format!("open loop, {rate}/s"), open::run(&mut stage, rate).await);
        }
        keep("sustained", sustained::run(&mut stage, &floor).await);
    }
    let filled = items::fill(&mut stage).await;
    let full = filled.is_ok();
    keep("items that wait", filled);
    if full {
        for rate in open::RATES {
            keep(&format!("open loop beside items that wait, {rate}/s"), open::run(&mut stage, rate).await);
        }
        keep("sustained beside items that wait", sustained::run(&mut stage, &floor).await);
        keep("items that are kept", items::finish(&mut stage).await);
        keep("a new controller with all items", startup::run(&mut stage).await);
    }
    if let Err(error) = stage.close().await {
        troubles.push(format!("removal of pods and items: {error:#}"));
    }
    anyhow::ensure!(troubles.is_empty(), "{}", troubles.join("; "));
    Ok(())
}

impl Stage {
    /// Sets up a queue, and workers that all wait for work.
    async fn open(size: Size, scale: Scale) -> anyhow::Result<Self> {
        let room = BenchNamespace::open("work").await?;
        let (controller, gateway) = room.start_operators().await?;
        let api_server = processes::api_server(&std::env::var("SPILLWAY_AUDIT_LOG")?)?;
        items::apply_queue(&room, items::KEPT).await?;
        let fleet = Fleet::start(&room);
        room.apply_workers(POOL, scale.agents, items::QUEUE).await?;
        room.settled(POOL, scale.agents, LIMIT).await?;
        let (bare, replicas) = (None, 1);
        let mut stage = Self { size, scale, room, controller, gateway, fleet, api_server, replicas, waiting: 0, finished: 0, bare };
        stage.all_wait().await?;
        Ok(stage)
    }

    /// Waits until every worker waits for work. It first replaces a controller that has ended; the part in which it
    /// ended reports that.
    async fn all_wait(&mut self) -> anyhow::Result<()> {
        if !self.controller.runs() {
            println!("  the controller has ended; another one is started");
            self.another_controller().await?;
        }
        let (hands, wanted) = (self.fleet.hands(), self.scale.agents);
        within(LIMIT, "all workers wait for work", async || {
            let waiting = hands.waiting();
            anyhow::ensure!(waiting == wanted, "{waiting} of {wanted} do");
            Ok(())
        })
        .await
    }

    /// Starts a controller in the place of one that has ended.
    async fn another_controller(&mut self) -> anyhow::Result<()> {
        self.replicas += 1;
        self.controller = Operator::start(&self.room, &format!("replica-{}", self.replicas))?;
        self.controller.leads(&self.room).await
    }

    /// Waits until `wanted` items were finished since the fleet's log was last taken; prints a line if that takes too
    /// long.
    async fn all_end(&self, wanted: usize) -> anyhow::Result<()> {
        let (hands, began) = (self.fleet.hands(), Instant::now());
        loop {
            let ends = hands.end_count();
            if ends >= wanted {
                return Ok(());
            }
            anyhow::ensure!(self.controller.runs(), "the controller has ended, and {ends} of {wanted} items were finished");
            if began.elapsed() >= LIMIT {
                println!("  after {} s {ends} of {wanted} items were finished", LIMIT.as_secs());
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends all processes and removes pods and items: later benchmarks need the nodes' capacity and an unloaded control
    /// plane.
    async fn close(self) -> anyhow::Result<()> {
        let Self { room, controller, gateway, fleet, .. } = self;
        drop((controller, gateway, fleet));
        let (now, all) = (DeleteParams::default().grace_period(0), ListParams::default());
        room.api::<Pod>().delete_collection(&now, &all).await?;
        room.api::<WorkItem>().delete_collection(&now, &all).await?;
        within(LIMIT, "pods and items are gone", async || {
            let pods = room.api::<Pod>().list_metadata(&all).await?.items.len();
            let items = room.api::<WorkItem>().list_metadata(&all).await?.items.len();
            anyhow::ensure!(pods + items == 0, "{pods} pods and {items} items are left");
            Ok(())
        })
        .await
    }

    /// The other items in the queue, as text.
    fn describe_other_items(&self) -> String {
        match (self.waiting, self.finished) {
            (0, 0) => "nothing else in the queue".to_owned(),
            (waiting, 0) => format!("beside {waiting} items that wait"),
            (waiting, finished) => format!("beside {waiting} items that wait and {finished} that are finished"),
        }
    }
}
