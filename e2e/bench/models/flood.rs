//! A flood: the effect of a namespace with a full load on another namespace with a steady load, through the same
//! gateway and the same controller. The steady namespace is measured alone, beside the flood, and alone again. A
//! difference between the two measurements alone comes from the machine, not from the flood.

use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{DeleteParams, ListParams};
use spillway::api::WorkItem;

use super::loud::{BYTES, Flooded, LEFT_AFTER, Loud, Much, STREAMS};
use super::steady::{self, Measured, Steady};
use super::{Arm, BEFORE_THE_CLUSTER, Callers, FIRST, LIMIT, Serves, Stage, Used, failures, rate_or};
use crate::bench_namespace::{BenchNamespace, within};
use crate::processes::{self, Priority};
use crate::report::{Report, Row, float, percentile};
use crate::size::Size;
use crate::work::items;

/// Waiting items of the flood: `BENCH_ITEMS`.
const ITEMS: usize = 10_000;
/// Agents of the flood, and of the quiet namespace, unless the fleet is smaller.
const LOUD: usize = 50;
const QUIET: usize = 10;
/// Calls of models a second of the flood with this number of agents, and in proportion with fewer.
const LOUD_CALLS: f64 = 500.0;
/// Broken streams of the flood a second.
const BROKEN: f64 = 20.0;
/// How long an agent of the flood works on an item, so that its items wait and do not end all at once.
const LOUD_THINK: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(15)];
/// Number of turns of both ways of serving. It is even, because they take turns in going first.
const TURNS: usize = 4;
/// Time beside the flood, the part of it that is measured alone each time, and the time of the flood alone before.
const TIME: Duration = Duration::from_secs(120);
const PART_ALONE: u32 = 4;
const BEGINNING: Duration = Duration::from_secs(5);
/// The size of the flood.
#[derive(Clone, Copy, Debug)]
struct Scale {
    quiet: usize,
    loud: usize,
    items: usize,
    loud_calls: f64,
    broken: f64,
    /// Beside the flood.
    time: Duration,
}

impl Scale {
    fn of_environment(size: Size) -> anyhow::Result<Self> {
        let loud = size.agents.min(LOUD);
        let items = match std::env::var("BENCH_ITEMS") {
            Ok(text) => text.parse().map_err(|_| anyhow::anyhow!("BENCH_ITEMS must be a number"))?,
            Err(_) if size.small() => loud * 10,
            Err(_) => ITEMS,
        };
        let part = float(loud) / float(LOUD);
        let (loud_calls, broken) = (rate_or(LOUD_CALLS * part)?, BROKEN * part);
        Ok(Self { quiet: QUIET.min(size.agents), loud, items, loud_calls, broken, time: size.time(TIME) })
    }

    /// Length of each measurement without the flood.
    fn alone(self) -> Duration {
        self.time / PART_ALONE
    }
}

/// Measurements of the quiet namespace.
struct QuietResults {
    measured: Measured,
    cost: Cost,
}

/// Processor time: in seconds so far, or in percent of a core meanwhile.
#[derive(Clone, Copy, Debug)]
struct Cost {
    used: Used,
    measuring: f64,
    loud: f64,
}

impl Cost {
    fn since(self, before: Self, time: Duration) -> Self {
        let percent = |seconds: f64| seconds / time.as_secs_f64() * 100.0;
        let Used { proxy, controller, api_server } = self.used.since(before.used);
        let used = Used { proxy: percent(proxy), controller: percent(controller), api_server: percent(api_server) };
        Self { used, measuring: percent(self.measuring - before.measuring), loud: percent(self.loud - before.loud) }
    }
}

type CostPart = (&'static str, fn(&Cost) -> f64);

const PROCESSORS: [CostPart; 5] = [
    ("gateway", |cost| cost.used.proxy),
    ("controller", |cost| cost.used.controller),
    ("API server", |cost| cost.used.api_server),
    ("measuring process", |cost| cost.measuring),
    ("the flood's callers", |cost| cost.loud),
];

/// Both namespaces.
struct Both<'a> {
    /// The operators of the quiet namespace and of the flood: the same ones, or separate ones.
    stage: &'a Stage,
    loud_stage: Option<&'a Stage>,
    quiet: Steady,
    loud: BenchNamespace,
    loud_callers: Callers,
    flooding: &'a Loud,
    scale: Scale,
}

/// The times at which the quiet namespace is measured.
const WHEN: [&str; 3] = ["alone", "beside the flood", "alone again"];
const BESIDE: usize = 1;
const ALONE: [usize; 2] = [0, 2];

/// Measurements of both namespaces.
struct FloodResults {
    /// In the order of [`WHEN`].
    quiet_results: [QuietResults; 3],
    /// Seconds until the flood's items were made.
    filled: f64,
    flooded: Flooded,
}

/// Runs the benchmark, in turns: with the same operators for both namespaces, and with operators of their own.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let scale = Scale::of_environment(size)?;
    let _priority = Priority::take(BEFORE_THE_CLUSTER)?;
    let (mut shared, mut apart) = (Vec::new(), Vec::new());
    // A cluster that never had as many items first has to allocate memory for them.
    println!("  a flood that is not counted");
    with_shared_operators(Scale { time: scale.alone(), ..scale }).await?;
    for turn in 1..=size.runs(TURNS) {
        println!("  turn {turn}");
        if turn % 2 == 1 {
            shared.push(with_shared_operators(scale).await?);
        }
        apart.push(with_separate_operators(scale).await?);
        if turn % 2 == 0 {
            shared.push(with_shared_operators(scale).await?);
        }
    }
    let against = compare_operators(&shared, &apart);
    Ok(vec![
        Report::new("a flood beside a quiet namespace", method(scale), rows(&shared)),
        Report::new("a flood beside a quiet namespace, each with operators of its own", APART.to_owned(), rows(&apart)),
        Report::new("what sharing the operators with a flood changes for a quiet namespace", AGAINST.to_owned(), against),
    ])
}

async fn with_shared_operators(scale: Scale) -> anyhow::Result<FloodResults> {
    let quiet = BenchNamespace::open("flood-quiet").await?;
    let flooding = Loud::start(quiet.node).await?;
    let stage = Stage::open(quiet.clone(), Serves::All, STREAMS, &[&flooding.served]).await?;
    let mut loud = BenchNamespace::open("flood-loud").await?;
    loud.gateway = stage.room.gateway;
    let taken = take((&stage, None), &flooding, &quiet, &loud, scale).await;
    stage.close(&[&quiet, &loud]).await?;
    taken
}

async fn with_separate_operators(scale: Scale) -> anyhow::Result<FloodResults> {
    let (quiet, loud) = (BenchNamespace::open("flood-apart-quiet").await?, BenchNamespace::open("flood-apart-loud").await?);
    let flooding = Loud::start(quiet.node).await?;
    let stage = Stage::open(quiet.clone(), Serves::Own, STREAMS, &[]).await?;
    let own = Stage::open(loud.clone(), Serves::Own, STREAMS, &[&flooding.served]).await?;
    let taken = take((&stage, Some(&own)), &flooding, &quiet, &loud, scale).await;
    own.close(&[&loud]).await?;
    stage.close(&[&quiet]).await?;
    taken
}

async fn take(
    (stage, own): (&Stage, Option<&Stage>),
    flooding: &Loud,
    quiet: &BenchNamespace,
    loud: &BenchNamespace,
    scale: Scale,
) -> anyhow::Result<FloodResults> {
    let both = Both::open(stage, own, flooding, quiet.clone(), loud.clone(), scale).await?;
    let alone = both.measure_alone("alone", scale.alone()).await?;
    let began = Instant::now();
    items::make(&both.loud, scale.items, |number| items::item("flood", &format!("flood-{number:05}"))).await?;
    let filled = super::seconds(began);
    let (beside, flooded) = both.measure_with_flood().await?;
    both.clear().await?;
    let again = both.measure_alone("again", scale.alone()).await?;
    Ok(FloodResults { quiet_results: [alone, beside, again], filled, flooded })
}

const APART: &str = "as before, but each namespace has a controller and a gateway of its own, and no ClusterBudget is above both: the \
                     two still share the machine, the API server and its disk";
const AGAINST: &str = "beside the same flood, in turns, so that changes of the machine, the API server and its disk affect both alike. \
                       Change: from all turns' times with operators of its own to all turns' times with the same operators";

fn method(scale: Scale) -> String {
    let Scale { quiet, loud, items, loud_calls, broken, time } = scale;
    format!(
        "two namespaces, one gateway, one controller, one ClusterBudget above both. The quiet one: {quiet} simulated workers, {} items a \
         second made by a bare client (from when an item was due until the API server has stored it, and until a worker has it; each \
         takes {} ms) and {} calls of models a second of {BYTES} bytes over kept connections (each from its \
         own beginning to the last byte), at times of Poisson processes that are the same each time: {:.1} s alone, {:.1} s beside the \
         flood, and alone again when the flood's items were deleted. The flood: {items} items that wait, made beforehand, and {loud} \
         workers that each take one for {} to {} s; {loud_calls} calls of models a second; {broken} streams a second that break, every \
         other one left by its caller after {LEFT_AFTER} events, the others cut by the provider; its callers and its provider are a \
         process of the lowest priority. The measuring process (callers, workers and provider of the quiet one) has the highest. Operators \
         come before the cluster's own processes, because on a cluster all these are different machines; it begins {} s before the quiet \
         one is measured. Failed calls are counted and not timed. Change: from all turns' times alone to all turns' times beside the flood. \
         Other percentiles are of one turn. All of it is measured in turns with the second way of serving, and each goes first in turn, \
         after one flood that is not counted",
        steady::ITEMS,
        steady::ITEM_TIME.as_millis(),
        steady::CALLS,
        scale.alone().as_secs_f64(),
        time.as_secs_f64(),
        LOUD_THINK[0].as_secs(),
        LOUD_THINK[1].as_secs(),
        BEGINNING.as_secs(),
    )
}

impl<'a> Both<'a> {
    /// Sets it up, with workers that all wait for work.
    async fn open(
        stage: &'a Stage,
        loud_stage: Option<&'a Stage>,
        flooding: &'a Loud,
        quiet: BenchNamespace,
        loud: BenchNamespace,
        scale: Scale,
    ) -> anyhow::Result<Self> {
        if loud_stage.is_none() {
            stage.cluster_budget(&[&quiet.namespace, &loud.namespace]).await?;
        }
        let quiet = Steady::open(stage, quiet, scale.quiet).await?;
        items::apply_queue(&loud, 0).await?;
        let pool = steady::pool(scale.loud);
        let loud_callers = Callers::gather(loud_stage.unwrap_or(stage), &loud, &flooding.served, scale.loud, pool).await?;
        let [least, most] = LOUD_THINK;
        loud_callers.fleet.hands().set_work_time_range(least, most);
        Ok(Self { stage, loud_stage, quiet, loud, loud_callers, flooding, scale })
    }

    /// Measures the quiet namespace without the flood.
    async fn measure_alone(&self, part: &str, time: Duration) -> anyhow::Result<QuietResults> {
        self.quiet.ready().await?;
        processes::renice(FIRST)?;
        let (began, before) = (Instant::now(), self.cost()?);
        let submitted = self.quiet.submit(part, time).await;
        processes::renice(BEFORE_THE_CLUSTER)?;
        let (submitted, cost) = (submitted?, self.cost()?.since(before, began.elapsed()));
        let measured = self.quiet.measured(submitted, time).await;
        self.stage.runs()?;
        self.loud_stage.map_or(Ok(()), Stage::runs)?;
        Ok(QuietResults { measured, cost })
    }

    /// Processor time so far, in seconds.
    fn cost(&self) -> anyhow::Result<Cost> {
        let mut used = self.stage.used(Arm::Gateway, None)?;
        if let Some(own) = self.loud_stage {
            used = used.with(own.used(Arm::Gateway, None)?);
        }
        Ok(Cost { used, measuring: processes::processor_seconds(std::process::id())?, loud: self.flooding.processor_seconds()? })
    }

    /// Measures the quiet namespace beside the flood.
    async fn measure_with_flood(&self) -> anyhow::Result<(QuietResults, Flooded)> {
        let Scale { loud_calls: calls, broken, time, .. } = self.scale;
        let much = Much { calls, broken, time: BEGINNING + time };
        let flooding = self.flooding.flood(self.loud_stage.unwrap_or(self.stage), &self.loud_callers, much);
        let quiet = async {
            tokio::time::sleep(BEGINNING).await;
            self.measure_alone("beside", time).await
        };
        let (seen, flooded) = tokio::join!(quiet, flooding);
        drop((self.loud_callers.fleet.hands().take(), self.loud_callers.fleet.samples()));
        Ok((seen?, flooded?))
    }

    /// Deletes the flood's items.
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

type Times = fn(&Measured) -> &[f64];

/// The numbers that are compared. The goal names the p99 of claims, and no percentile of calls, so both percentiles are
/// here.
const COMPARED: [(&str, Times, f64, Option<&str>); 6] = [
    ("due -> stored, p50", |seen| &seen.stored, 50.0, None),
    ("due -> stored, p99", |seen| &seen.stored, 99.0, None),
    ("due -> claimed, p50", |seen| &seen.claims, 50.0, None),
    ("due -> claimed, p99", |seen| &seen.claims, 99.0, GOAL),
    ("call of a model, p50", |seen| &seen.calls.took, 50.0, GOAL),
    ("call of a model, p99", |seen| &seen.calls.took, 99.0, GOAL),
];
const GOAL: Option<&str> = Some("<= 20 %");

/// A percentile of all turns' times. The p99 of one turn depends on a few items, and so on chance.
fn of_all(turns: &[FloodResults], when: &[usize], of: Times, percent: f64) -> f64 {
    let times = turns.iter().flat_map(|taken| when.iter().flat_map(move |&at| of(&taken.quiet_results[at].measured)));
    percentile(&times.copied().collect::<Vec<_>>(), percent)
}

fn change_row(what: &str, from: f64, to: f64, goal: Option<&'static str>) -> Row {
    let row = Row::spread(format!("{what}: change"), vec![change(from, to)], "%");
    match goal {
        Some(goal) => row.goal(goal),
        None => row,
    }
}

/// The quiet namespace beside a flood with the same operators, compared with a flood with other operators.
fn compare_operators(shared: &[FloodResults], apart: &[FloodResults]) -> Vec<Row> {
    let rows = COMPARED.into_iter().flat_map(|(what, of, percent, goal)| {
        let beside = |turns| each(turns, |taken| percentile(of(&taken.quiet_results[BESIDE].measured), percent));
        [
            change_row(what, of_all(apart, &[BESIDE], of, percent), of_all(shared, &[BESIDE], of, percent), goal),
            Row::spread(format!("{what}: the same operators"), beside(shared), "ms"),
            Row::spread(format!("{what}: operators of its own"), beside(apart), "ms"),
        ]
    });
    rows.collect()
}

/// One number for each turn.
fn each(turns: &[FloodResults], of: impl Fn(&FloodResults) -> f64) -> Vec<f64> {
    turns.iter().map(of).collect()
}

fn rows(turns: &[FloodResults]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, of, percent, goal) in COMPARED {
        for (at, when) in WHEN.into_iter().enumerate() {
            rows.push(Row::spread(
                format!("{what}: {when}"),
                each(turns, |taken| percentile(of(&taken.quiet_results[at].measured), percent)),
                "ms",
            ));
        }
        rows.push(change_row(what, of_all(turns, &ALONE, of, percent), of_all(turns, &[BESIDE], of, percent), goal));
    }
    for (at, when) in WHEN.into_iter().enumerate() {
        let spread = |what: &str, unit, number: fn(&Measured) -> f64| {
            Row::spread(format!("{what}, {when}"), each(turns, |taken| number(&taken.quiet_results[at].measured)), unit)
        };
        rows.push(spread("items that were not claimed", "", |seen| float(seen.unclaimed)).goal("0"));
        rows.push(spread("calls that failed", "", |seen| float(seen.calls.failed.len())).goal("0"));
        rows.push(spread("calls began late, p99", "ms", |seen| percentile(&seen.calls.late, 99.0)));
        rows.extend(
            turns
                .iter()
                .flat_map(|taken| failures(&format!("the quiet namespace, {when}"), &taken.quiet_results[at].measured.calls.failed)),
        );
        rows.extend(PROCESSORS.map(|(who, of)| {
            let percent = each(turns, |taken| of(&taken.quiet_results[at].cost));
            Row::spread(format!("processor, {when}: {who}"), percent, "% of a core")
        }));
    }
    let flood = |what: &str, unit, number: fn(&FloodResults) -> f64| Row::spread(format!("the flood: {what}"), each(turns, number), unit);
    rows.extend([
        flood("its items were made in", "s", |taken| taken.filled),
        flood("calls that were answered", "", |taken| float(taken.flooded.calls.took.len())),
        flood("calls, p99", "ms", |taken| percentile(&taken.flooded.calls.took, 99.0)),
        flood("calls began late, p99", "ms", |taken| percentile(&taken.flooded.calls.late, 99.0)),
        flood("streams that broke", "", |taken| float(taken.flooded.streams)),
    ]);
    rows.extend(turns.iter().flat_map(|taken| failures("the flood", &taken.flooded.calls.failed)));
    rows
}

/// In percent.
fn change(from: f64, to: f64) -> f64 {
    (to / from - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_in_percent_of_what_was() {
        assert!((change(10.0, 12.0) - 20.0).abs() < 1e-9);
        assert!((change(10.0, 5.0) + 50.0).abs() < 1e-9);
    }
}
