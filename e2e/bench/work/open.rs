//! Open loop: items come at independent times, whether or not earlier items are done. Measured is the time until each
//! is claimed, and until it is finished.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use kube::api::PostParams;
use spillway::api::WorkItem;

use super::{AGENTS, Stage, cost, fate, items};
use crate::arrivals::arrivals;
use crate::hands::{Claim, Log};
use crate::report::{Report, Row, float, percentile};

/// Items a second for 200 workers, and in proportion for fewer: a rate that this machine carries easily, and the
/// goal's.
pub const RATES: [f64; 2] = [15.0, 75.0];
/// Length of the measurement.
const TIME: Duration = Duration::from_secs(60);
/// Seed of the arrival times, which are the same in each run.
const SEED: u64 = 75;
/// How long an agent works on an item.
const THINK: Duration = Duration::from_millis(50);
/// Lead time in which all tasks are started before the first item is due.
const LEAD: Duration = Duration::from_secs(1);
/// Time limit for one creation.
const CREATE: Duration = Duration::from_secs(30);
/// Pause for the last status writes, of which there is at most one in five seconds.
const SETTLE: Duration = Duration::from_secs(8);

/// An item that was due.
struct Submitted {
    name: String,
    /// When it was due.
    due: Instant,
    /// When the API server had stored it, or why it did not.
    made: Result<Instant, String>,
}

/// Runs the benchmark, at `rate` items a second for 200 workers.
pub async fn run(stage: &mut Stage, rate: f64) -> anyhow::Result<Report> {
    let part = format!("open-{}-{rate}", stage.waiting);
    let hands = stage.fleet.hands();
    hands.set_work_time(THINK);
    stage.all_wait().await?;
    drop((hands.take(), stage.fleet.samples()));
    let (since, before, begin) = (Timestamp::now(), stage.used()?, Instant::now() + LEAD);
    let time = stage.size.time(TIME);
    let rate = rate * float(stage.scale.agents) / float(AGENTS);
    let due = arrivals(SEED, rate, time);
    let submitting = due.iter().enumerate().map(|(number, due)| submit(stage, &part, number, begin + *due));
    let submitted = join_all(submitting.collect::<Vec<_>>()).await;
    let made = submitted.iter().filter(|item| item.made.is_ok()).count();
    fate::print_create_errors(submitted.iter().filter_map(|item| item.made.as_ref().err()));
    stage.all_end(made).await?;
    let (used, memory) = (before.spent_until(&stage.used()?), stage.memory()?);
    let log = hands.take();
    let troubles = fate::troubles(stage);
    let left = items::collect(&stage.room, &part).await?;
    tokio::time::sleep(SETTLE).await;
    let mut rows = times(&submitted, &log);
    rows.push(Row::one("items that could not be made", float(submitted.len() - made), ""));
    rows.extend(fate::exactly_once_rows(made, &log, left));
    rows.extend(troubles);
    rows.extend(used.rows(made));
    rows.extend(memory);
    rows.extend(cost::writes_per_item(&cost::spillway_writes(&stage.room, since), made, Some("<= 4")));
    let method = format!(
        "{agents} simulated workers on KWOK nodes wait for work by long poll through one gateway. The pool does not scale with its work. A \
         bare client makes {} items with payloads of {} bytes at times of a Poisson process of {rate}/s (seed {SEED}), {} s long, fixed \
         beforehand. An item that is late is counted from when it was due. Claimed: the worker has the answer to its claim. It then \
         works for {} ms. Finished: it has the answer to that. All times are by one clock. The queue keeps {kept} finished items. When \
         all are done, it keeps none, and the writes are counted when all are collected. All writes with a User-Agent of Spillway's in \
         the audit log of the namespace are counted, including refused writes, except those of leases. Processor time is from before the \
         first item to after the last",
        due.len(),
        items::PAYLOAD,
        time.as_secs(),
        THINK.as_millis(),
        agents = stage.scale.agents,
        kept = items::KEPT,
    );
    Ok(Report::new(format!("open loop, {rate} items a second, {}", stage.describe_other_items()), method, rows))
}

async fn submit(stage: &Stage, part: &str, number: usize, due: Instant) -> Submitted {
    let name = format!("{part}-{number:05}");
    tokio::time::sleep_until(due.into()).await;
    let (api, item) = (stage.room.api::<WorkItem>(), items::item(part, &name));
    // A task of its own, so that a slow request delays no other item.
    let create = async move { api.create(&PostParams::default(), &item).await.map(|_| Instant::now()) };
    let made = match tokio::time::timeout(CREATE, tokio::spawn(create)).await {
        Ok(Ok(Ok(at))) => Ok(at),
        Ok(Ok(Err(error))) => Err(error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {} s", CREATE.as_secs())),
    };
    Submitted { name, due, made }
}

/// Milliseconds from one moment to another, negative if it was earlier.
fn millis(from: Instant, to: Instant) -> f64 {
    let forth = to.saturating_duration_since(from).as_secs_f64();
    (forth - from.saturating_duration_since(to).as_secs_f64()) * 1000.0
}

fn times(submitted: &[Submitted], log: &Log) -> Vec<Row> {
    // The first claim of an item is timed. Further ones are only counted.
    let claims: HashMap<&str, &Claim> = log.claims.iter().rev().map(|claim| (claim.item.as_str(), claim)).collect();
    let ends: HashMap<&str, Instant> = log.ends.iter().rev().map(|end| (end.held.uid.as_str(), end.at)).collect();
    let (mut made, mut claimed, mut from_answer, mut finished, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for item in submitted {
        let Ok(answered) = item.made else { continue };
        made.push(millis(item.due, answered));
        let Some(claim) = claims.get(item.name.as_str()) else { continue };
        claimed.push(millis(item.due, claim.at));
        from_answer.push(millis(answered, claim.at));
        let Some(end) = ends.get(claim.held.uid.as_str()) else { continue };
        finished.push(millis(item.due, *end));
        held.push(millis(claim.at, *end));
    }
    let goals = [Some("<= 20 ms"), Some("<= 40 ms"), Some("<= 100 ms"), None];
    let mut rows = spread("due -> claimed", &claimed, goals);
    rows.extend(spread("due -> the create is answered", &made, [None; 4]));
    rows.extend(spread("the create is answered -> claimed", &from_answer, [None; 4]));
    rows.extend(spread("due -> finished", &finished, [None; 4]));
    rows.extend(spread("claimed -> finished", &held, [None; 4]));
    rows
}

fn spread(what: &str, values: &[f64], goals: [Option<&'static str>; 4]) -> Vec<Row> {
    let points = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)];
    let rows = points.into_iter().zip(goals).map(|((name, percent), goal)| {
        let row = Row::one(format!("{what}, {name}"), percentile(values, percent), "ms");
        goal.into_iter().fold(row, Row::goal)
    });
    rows.collect()
}
