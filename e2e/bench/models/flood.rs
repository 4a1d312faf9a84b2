//! A flood: what one namespace that does all it can changes for another one that goes on as before, through the same gateway
//! and the same controller. Measured alone, beside the flood, and alone again: what differs between the two alone is the
//! machine's, not the flood's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use spillway::api::WorkItem;

use super::load::{self, Answers, Load, Target};
use super::{Arm, Callers, LIMIT, Stage, Streams, failures, provider, rate_or};
use crate::arrivals::arrivals;
use crate::report::{Report, Row, float, percentile};
use crate::room::{Room, within};
use crate::size::Size;
use crate::work::items;

/// Items that the flood has wait: `BENCH_ITEMS`.
const ITEMS: usize = 10_000;
/// Its agents, and theirs who are quiet, where the fleet is not smaller.
const LOUD: usize = 50;
const QUIET: usize = 10;
/// Calls of models a second: of the flood (of so many agents; of fewer in proportion), and of the others.
const LOUD_CALLS: f64 = 500.0;
const QUIET_CALLS: f64 = 20.0;
/// Streams of the flood that break, a second: every other one is left by its caller, the others are cut by the provider.
const BROKEN: f64 = 20.0;
/// Events of a stream after which its caller leaves.
const LEFT_AFTER: usize = 3;
/// Items a second of those who are quiet.
const QUIET_ITEMS: f64 = 5.0;
/// Of the times at which those come.
const SEED: u64 = 20;
/// What an item takes an agent: of those who are quiet, and of the flood, whose items are to wait.
const QUIET_THINK: Duration = Duration::from_millis(50);
const LOUD_THINK: Duration = Duration::from_secs(10);
/// For so long each time; before that, the flood alone.
const TIME: Duration = Duration::from_secs(60);
const BEGINNING: Duration = Duration::from_secs(5);
/// Bytes of a body.
const BYTES: usize = 1024;

/// How much of it.
#[derive(Clone, Copy, Debug)]
struct Scale {
    quiet: usize,
    loud: usize,
    items: usize,
    loud_calls: f64,
    broken: f64,
    time: Duration,
}

impl Scale {
    fn of_environment(size: Size) -> anyhow::Result<Self> {
        let loud = size.agents.min(LOUD);
        let items = match std::env::var("BENCH_ITEMS") {
            Ok(text) => text.parse().map_err(|_| anyhow::anyhow!("BENCH_ITEMS is no number"))?,
            Err(_) if size.small() => loud * 10,
            Err(_) => ITEMS,
        };
        let part = float(loud) / float(LOUD);
        let (loud_calls, broken) = (rate_or(LOUD_CALLS * part)?, BROKEN * part);
        Ok(Self { quiet: QUIET.min(size.agents), loud, items, loud_calls, broken, time: size.time(TIME) })
    }
}

/// What the quiet namespace saw.
struct Seen {
    /// Milliseconds from when an item was due until a worker had it.
    claims: Vec<f64>,
    unclaimed: usize,
    calls: Answers,
}

/// What came of the flood's calls.
struct Flooded {
    calls: Answers,
    streams: usize,
}

/// Both namespaces.
struct Both<'a> {
    stage: &'a Stage,
    quiet: Room,
    loud: Room,
    quiet_callers: Callers,
    loud_callers: Callers,
    quiet_target: Arc<Target>,
    loud_target: Arc<Target>,
    scale: Scale,
}

/// Takes it.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let scale = Scale::of_environment(size)?;
    let stage = Stage::open("flood-quiet", Streams { events: 200, pace: Duration::from_millis(20) }).await?;
    let mut loud = Room::open("flood-loud").await?;
    loud.gateway = stage.room.gateway;
    let quiet = stage.room.clone();
    let taken = compare(&stage, quiet.clone(), loud.clone(), scale).await;
    let closed = stage.close(&[&quiet, &loud]).await;
    let report = taken?;
    closed.map(|()| vec![report])
}

async fn compare(stage: &Stage, quiet: Room, loud: Room, scale: Scale) -> anyhow::Result<Report> {
    let both = Both::open(stage, quiet, loud, scale).await?;
    let alone = both.quietly("alone").await?;
    let began = Instant::now();
    items::make(&both.loud, scale.items, |number| items::item("flood", &format!("flood-{number:05}"))).await?;
    let filled = super::seconds(began);
    let (beside, flooded) = both.beside().await?;
    both.clear().await?;
    let again = both.quietly("again").await?;
    let mut rows = rows(&alone, &beside, &again);
    let Flooded { calls, streams } = flooded;
    rows.extend([
        Row::one("the flood: its items were made in", filled, "s"),
        Row::one("the flood: calls that were answered", float(calls.took.len()), ""),
        Row::one("the flood: calls, p99", percentile(&calls.took, 99.0), "ms"),
        Row::one("the flood: calls began late, p99", percentile(&calls.late, 99.0), "ms"),
        Row::one("the flood: streams that broke", float(streams), ""),
    ]);
    rows.extend(failures("the flood", &calls.failed));
    Ok(Report::new("a flood beside a quiet namespace", method(scale), rows))
}

fn method(scale: Scale) -> String {
    let Scale { quiet, loud, items, loud_calls, broken, time } = scale;
    format!(
        "two namespaces, one gateway, one controller, one ClusterBudget above both. The quiet one: {quiet} simulated workers, \
         {QUIET_ITEMS} items a second made by a bare client (from when an item was due until a worker has it; each takes {} ms) and \
         {QUIET_CALLS} calls of models a second of {BYTES} bytes over kept connections (each from its own beginning to the last byte), at \
         times of Poisson processes that are the same each time, {:.1} s: alone, beside the flood, and alone again when the flood's items \
         were deleted. The flood: {items} items that wait, made beforehand, and {loud} workers that each take one for {} s; \
         {loud_calls} calls of models a second; {broken} streams a second that break, every other one left by its caller after \
         {LEFT_AFTER} events, the others cut by the provider; it begins {} s before the quiet one is measured. What \
         failed is counted and not timed. Change: of the time beside the flood to the mean of both alone",
        QUIET_THINK.as_millis(),
        time.as_secs_f64(),
        LOUD_THINK.as_secs(),
        BEGINNING.as_secs(),
    )
}

impl<'a> Both<'a> {
    /// With workers that all wait.
    async fn open(stage: &'a Stage, quiet: Room, loud: Room, scale: Scale) -> anyhow::Result<Self> {
        stage.cluster_budget(&[&quiet.namespace, &loud.namespace]).await?;
        items::apply_queue(&quiet, 0).await?;
        items::apply_queue(&loud, 0).await?;
        let workers = |agents: usize| {
            let scaling = json!({"min": agents, "max": 10000, "workAware": false});
            json!({"type": "worker", "scaling": scaling, "queues": [{"name": items::QUEUE}]})
        };
        let quiet_callers = Callers::gather(stage, &quiet, scale.quiet, workers(scale.quiet)).await?;
        let loud_callers = Callers::gather(stage, &loud, scale.loud, workers(scale.loud)).await?;
        quiet_callers.fleet.hands().set_think(QUIET_THINK);
        loud_callers.fleet.hands().set_think(LOUD_THINK);
        let quiet_target = stage.target(Arm::Gateway, None, &quiet_callers)?;
        let loud_target = stage.target(Arm::Gateway, None, &loud_callers)?;
        Ok(Self { stage, quiet, loud, quiet_callers, loud_callers, quiet_target, loud_target, scale })
    }

    /// The quiet namespace does what it always does.
    async fn quietly(&self, part: &str) -> anyhow::Result<Seen> {
        let hands = self.quiet_callers.fleet.hands();
        within(LIMIT, "the quiet workers wait", async || {
            let waiting = hands.waiting();
            anyhow::ensure!(waiting == self.scale.quiet, "{waiting} of {} do", self.scale.quiet);
            Ok(())
        })
        .await?;
        drop(hands.take());
        let calls = Load { rate: QUIET_CALLS, time: self.scale.time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let (calls, due) = tokio::join!(load::open(&self.quiet_target, &calls), self.submit(part));
        let due = due?;
        // What is not claimed by then is told.
        let late = within(self.scale.time, "all are claimed", async || {
            let ends = hands.ends();
            anyhow::ensure!(ends >= due.len(), "{ends} of {} were finished", due.len());
            Ok(())
        })
        .await;
        late.unwrap_or_else(|error| println!("  {error:#}"));
        self.stage.runs()?;
        let log = hands.take();
        let at: HashMap<&str, Instant> = log.claims.iter().rev().map(|claim| (claim.item.as_str(), claim.at)).collect();
        let claims: Vec<f64> = due
            .iter()
            .filter_map(|(name, due)| Some(at.get(name.as_str())?.saturating_duration_since(*due).as_secs_f64() * 1000.0))
            .collect();
        drop(self.quiet_callers.fleet.samples());
        Ok(Seen { unclaimed: due.len() - claims.len(), claims, calls })
    }

    /// Makes its items; when each was due.
    async fn submit(&self, part: &str) -> anyhow::Result<Vec<(String, Instant)>> {
        let begin = Instant::now();
        let making = arrivals(SEED, QUIET_ITEMS, self.scale.time).into_iter().enumerate().map(|(number, due)| {
            let (api, name) = (self.quiet.api::<WorkItem>(), format!("{part}-{number:05}"));
            let due = begin + due;
            async move {
                tokio::time::sleep_until(due.into()).await;
                api.create(&PostParams::default(), &items::item("quiet", &name)).await?;
                anyhow::Ok((name, due))
            }
        });
        join_all(making.collect::<Vec<_>>()).await.into_iter().collect()
    }

    /// The quiet namespace beside the flood.
    async fn beside(&self) -> anyhow::Result<(Seen, Flooded)> {
        let time = BEGINNING + self.scale.time;
        let calls = Load { rate: self.scale.loud_calls, time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let quiet = async {
            tokio::time::sleep(BEGINNING).await;
            self.quietly("beside").await
        };
        let (seen, calls, streams) = tokio::join!(quiet, load::open(&self.loud_target, &calls), self.broken(time));
        drop((self.loud_callers.fleet.hands().take(), self.loud_callers.fleet.samples()));
        Ok((seen?, Flooded { calls, streams }))
    }

    /// Streams that break; how many.
    async fn broken(&self, time: Duration) -> usize {
        let begin = Instant::now();
        let (left, cut) = (provider::body(provider::STREAM, BYTES), provider::body(provider::CUT, BYTES));
        let streams = arrivals(SEED + 1, self.scale.broken, time).into_iter().enumerate().map(|(number, due)| {
            let (target, due) = (self.loud_target.clone(), begin + due);
            let (body, most) = if number % 2 == 0 { (left.clone(), LEFT_AFTER) } else { (cut.clone(), usize::MAX) };
            tokio::spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                // That it breaks is what it is for; what counts is that it was there.
                let _ = target.stream(number, &body, most, &AtomicUsize::new(0)).await;
            })
        });
        join_all(streams.collect::<Vec<_>>()).await.len()
    }

    /// The flood's items are deleted.
    async fn clear(&self) -> anyhow::Result<()> {
        let api: Api<WorkItem> = self.loud.api();
        let all = ListParams::default();
        within(LIMIT, "the flood's items are gone", async || {
            api.delete_collection(&DeleteParams::default(), &all).await?;
            let left = api.list_metadata(&all).await?.items.len();
            anyhow::ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
    }
}

fn rows(alone: &Seen, beside: &Seen, again: &Seen) -> Vec<Row> {
    let mut rows = Vec::new();
    type Times = fn(&Seen) -> &[f64];
    let both: [(&str, Times); 2] = [("due -> claimed", |seen| &seen.claims), ("call of a model", |seen| &seen.calls.took)];
    for (what, of) in both {
        for (name, percent) in [("p50", 50.0), ("p99", 99.0)] {
            let at = |seen: &Seen| percentile(of(seen), percent);
            let (before, during, after) = (at(alone), at(beside), at(again));
            rows.push(Row::one(format!("{what}, {name}: alone"), before, "ms"));
            rows.push(Row::one(format!("{what}, {name}: beside the flood"), during, "ms"));
            rows.push(Row::one(format!("{what}, {name}: alone again"), after, "ms"));
            let change = Row::one(format!("{what}, {name}: change"), change(before, during, after), "%");
            // The goal names the p99 of claims, and no percentile of calls.
            rows.push(if (what, name) == ("due -> claimed", "p50") { change } else { change.goal("<= 20 %") });
        }
    }
    for (when, seen) in [("alone", alone), ("beside the flood", beside), ("alone again", again)] {
        rows.push(Row::one(format!("items that were not claimed, {when}"), float(seen.unclaimed), "").goal("0"));
        rows.push(Row::one(format!("calls that failed, {when}"), float(seen.calls.failed.len()), "").goal("0"));
        rows.push(Row::one(format!("calls began late, p99, {when}"), percentile(&seen.calls.late, 99.0), "ms"));
        rows.extend(failures(&format!("the quiet namespace, {when}"), &seen.calls.failed));
    }
    rows
}

/// In percent of the mean of what was before and after.
fn change(before: f64, during: f64, after: f64) -> f64 {
    (during / f64::midpoint(before, after) - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_of_the_mean_of_both_alone() {
        assert!((change(8.0, 12.0, 12.0) - 20.0).abs() < 1e-9);
        assert!((change(10.0, 5.0, 10.0) + 50.0).abs() < 1e-9);
    }
}
