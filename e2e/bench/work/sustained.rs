//! Closed loop: whole lives of items a second, if there is always another item and no worker rests; compared with a
//! bare client that does the same lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use kube::api::PostParams;
use spillway::api::WorkItem;
use tokio::task::JoinSet;

use super::floor::Floor;
use super::{Stage, cost, fate, items};
use crate::audit::Write;
use crate::hands::{Hands, Log};
use crate::report::{Report, Row, float};

/// How long lives are counted.
const TIME: Duration = Duration::from_secs(60);
/// How long the start takes, which is not counted.
const START: Duration = Duration::from_secs(5);
/// How long the bare client runs, each time.
const FLOOR: Duration = Duration::from_secs(20);
/// Number of workers for one more item in the queue than the workers do. On a quiet machine these items wait less than
/// two seconds: an item that waits longer costs one more write.
const QUEUED_OF: usize = 2;
/// Lives at once in another run of the bare client: as many requests as suppliers, workers and collectors have under
/// way at most.
const MANY: usize = 256;
/// Time limit for items that were unfinished when the time was over.
const LATE: Duration = Duration::from_secs(60);
/// Pause for the last status writes, of which there is at most one in five seconds.
const SETTLE: Duration = Duration::from_secs(8);

/// The work of the suppliers.
struct Supplied {
    /// When each item was made.
    made: Vec<Instant>,
    /// Why some items could not be made.
    failed: Vec<String>,
}

/// The numbers of one run.
struct SustainedResults {
    supplied: Supplied,
    log: Log,
    /// The beginning and the end of the time that is counted.
    from: Moment,
    to: Moment,
    /// Spillway's writes, from the first item to the last that was collected.
    writes: Vec<Write>,
    /// Items that were not collected.
    left: usize,
    troubles: Vec<Row>,
    /// Lives a second of the bare client: before, after, and with many at once.
    floor: [f64; 2],
    many: f64,
}

/// Runs the benchmark.
pub async fn run(stage: &mut Stage, floor: &Floor) -> anyhow::Result<Report> {
    let part = format!("sustained-{}", stage.waiting);
    let (time, rest) = (stage.size.time(TIME), stage.size.time(FLOOR));
    let many = floor.lives(MANY, rest).await?;
    let before = floor.lives(items::AT_ONCE, rest).await?;
    stage.all_wait().await?;
    items::apply_queue(&stage.room, 0).await?;
    let (hands, unfinished) = (stage.fleet.hands(), stage.scale.agents + queued(stage));
    hands.set_work_time(Duration::ZERO);
    drop((hands.take(), stage.fleet.samples()));
    hands.supply_permits.forget_permits(usize::MAX);
    hands.supply_permits.add_permits(unfinished);
    let since = Timestamp::now();
    let (supplied, window) = tokio::join!(supply(stage, &part, START + time), window(stage, time));
    let (supplied, (from, to)) = (supplied?, window?);
    stage.all_end(supplied.made.len()).await?;
    let (log, troubles) = (hands.take(), fate::troubles(stage));
    let left = items::collect(&stage.room, &part).await?;
    tokio::time::sleep(SETTLE).await;
    let writes = cost::spillway_writes(&stage.room, since);
    let after = floor.lives(items::AT_ONCE, rest).await?;
    let rows = rows(SustainedResults { supplied, log, from, to, writes, left, troubles, floor: [before, after], many }, stage)?;
    let method = format!(
        "a supplier with at most {at_once} creations at once keeps {unfinished} items unfinished, {} more than there are simulated workers. \
         The workers do one after the other at once, and the queue keeps no finished items. {} s are counted after a start of {} s. \
         Created, claimed and finished are counted by the answers to supplier and workers, and collected by the audit log. For {} s \
         before and after it a bare client makes items of the same size, replaces their status with what Spillway wrote at a claim, \
         then at a finish, and deletes them (four such writes are a life). It has {at_once} lives at once, and before that {MANY}, while \
         the workers only wait. The percentage is of the mean of the two at {at_once}. API writes are counted from the first item to the \
         last that is collected, as in the open loop",
        queued(stage),
        time.as_secs(),
        START.as_secs(),
        rest.as_secs(),
        at_once = items::AT_ONCE,
    );
    Ok(Report::new(format!("lives a second, {}", stage.describe_other_items()), method, rows))
}

/// Items beyond one for each worker.
fn queued(stage: &Stage) -> usize {
    (stage.scale.agents / QUEUED_OF).max(1)
}

fn rows(seen: SustainedResults, stage: &Stage) -> anyhow::Result<Vec<Row>> {
    let SustainedResults { supplied, log, from, to, writes, left, troubles, floor, many } = seen;
    let seconds = to.at.duration_since(from.at).as_secs_f64();
    let counted = from.at..to.at;
    let made = supplied.made.iter().filter(|at| counted.contains(*at)).count();
    let claimed = log.claims.iter().filter(|claim| counted.contains(&claim.at)).count();
    let finished = log.ends.iter().filter(|end| counted.contains(&end.at)).count();
    let deleted = writes.iter().filter(|write| write.is("delete", "workitems"));
    let collected = deleted.filter(|write| (from.time..to.time).contains(&write.stage_timestamp)).count();
    let a_second = |count: usize| float(count) / seconds;
    let lives = a_second(made.min(claimed).min(finished).min(collected));
    let bare = f64::midpoint(floor[0], floor[1]);
    let count = supplied.made.len();
    let mut rows = vec![
        Row::one("lives a second: the least of the next four", lives, "/s"),
        Row::one("created a second", a_second(made), "/s"),
        Row::one("claimed a second", a_second(claimed), "/s"),
        Row::one("finished a second", a_second(finished), "/s"),
        Row::one("collected a second", a_second(collected), "/s"),
        Row::one(format!("bare client, {} at once, before: lives a second", items::AT_ONCE), floor[0], "/s"),
        Row::one(format!("bare client, {} at once, after: lives a second", items::AT_ONCE), floor[1], "/s"),
        Row::one(format!("bare client, {MANY} at once: lives a second"), many, "/s"),
        Row::one(format!("of the bare client's, {} at once", items::AT_ONCE), lives * 100.0 / bare, "%").goal(">= 70 %"),
        Row::one("items that could not be made", float(supplied.failed.len()), ""),
    ];
    rows.extend(fate::exactly_once_rows(count, &log, left));
    rows.extend(troubles);
    rows.extend(from.look.spent_until(&to.look).rows(finished));
    rows.extend(stage.memory()?);
    rows.extend(cost::writes_per_item(&writes, count, Some("<= 4")));
    Ok(rows)
}

/// Makes items for `time`, as many as there are permits.
async fn supply(stage: &Stage, part: &str, time: Duration) -> anyhow::Result<Supplied> {
    let (until, mut suppliers) = (tokio::time::Instant::now() + time, JoinSet::new());
    for supplier in 0..items::AT_ONCE {
        let (room, hands, part): (_, Arc<Hands>, _) = (stage.room.clone(), stage.fleet.hands(), part.to_owned());
        suppliers.spawn(async move {
            let api = room.api::<WorkItem>();
            let mut all = Supplied { made: Vec::new(), failed: Vec::new() };
            while tokio::time::Instant::now() < until {
                // No permit in the rest of the time, or (which never happens) the semaphore is closed.
                let Ok(Ok(place)) = tokio::time::timeout_at(until, hands.supply_permits.acquire()).await else { break };
                place.forget();
                let name = format!("{part}-{supplier}-{}", all.made.len() + all.failed.len());
                match api.create(&PostParams::default(), &items::item(&part, &name)).await {
                    Ok(_) => all.made.push(Instant::now()),
                    Err(error) => {
                        all.failed.push(error.to_string());
                        hands.supply_permits.add_permits(1);
                    }
                }
            }
            all
        });
    }
    let all = tokio::time::timeout(time + LATE, suppliers.join_all()).await.context("creations are not answered")?;
    let failed: Vec<String> = all.iter().flat_map(|one| one.failed.clone()).collect();
    fate::print_create_errors(failed.iter());
    Ok(Supplied { made: all.into_iter().flat_map(|one| one.made).collect(), failed })
}

/// A moment.
struct Moment {
    at: Instant,
    time: Timestamp,
    look: cost::CostSample,
}

/// The beginning and the end of the time that is counted.
async fn window(stage: &Stage, time: Duration) -> anyhow::Result<(Moment, Moment)> {
    let moment = || anyhow::Ok(Moment { at: Instant::now(), time: Timestamp::now(), look: stage.used()? });
    tokio::time::sleep(START).await;
    let from = moment()?;
    tokio::time::sleep(time).await;
    Ok((from, moment()?))
}
