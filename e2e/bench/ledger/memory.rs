//! Hold and settle in process: the pure ledger alone, and with the governor's code around it, including its lock. HTTP,
//! JSON and the agent's identity, which come before that, are not included.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use spillway::governor::budget::Meter;
use spillway::governor::budget::facts;
use spillway::governor::budget::meter::HoldResult;
use spillway::policy::budget::tree::build;
use spillway::policy::budget::{CallSize, HoldAnswer, HoldRequest, Key, Ledger, Quality, Route, SessionLog, Settle, SettleOutcome, Usage};

use super::world::{BenchCluster, Caller, NAMESPACE, take_writes};
use crate::report::{Report, Row};
use crate::size::Size;

const DEPTHS: [usize; 3] = [1, 4, 8];
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Length of one measurement.
const TIME: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
/// The most settles that a gateway reports together.
const TOGETHER: u64 = 64;
const MODEL: &str = "bench";
/// Bytes of each call, and calls of one agent in a second.
const BYTES: i64 = 800;
const PER_SECOND: u32 = 1_000_000;
const USAGE: Usage = Usage { input: 200, cache_read: 0, cache_write: 0, output: 16 };
const GOAL: &str = ">= 1,000,000/s";

/// The work for a call in addition to hold and settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOverhead {
    /// All steps of the governor under its lock: look up the limits above the agent, place the agent, check its rate,
    /// make the route. Each settle is reported by itself.
    Governor,
    /// The route is kept, and 64 settles are reported together: the least that the lock allows.
    Least,
}

/// Runs the benchmark.
pub fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let (time, rounds) = (size.time(TIME), size.runs(ROUNDS));
    let mut alone = Vec::new();
    for depth in DEPTHS {
        let rates = (0..rounds).map(|_| pure_ledger_rate(&BenchCluster::new(depth)?, time)).collect::<anyhow::Result<_>>()?;
        alone.push(Row::spread(format!("depth {depth}"), rates, "/s").goal(GOAL));
    }
    let places = "Depth 1 is a Budget. Depth 4 is an agent's life, its Budget, the namespace and the ClusterBudget. Depth 8 is five \
                  Budgets above one another";
    let method = format!(
        "one thread with policy's ledger and nothing around it: hold, then settle, {:.2} s each, {rounds} times. Hold and settle together \
         count once. The route is kept, and each limit is hourly and never reached. {places}",
        time.as_secs_f64()
    );
    let mut reports = vec![Report::new("hold + settle a second, the pure ledger", method, alone)];
    for (around, title) in
        [(CallOverhead::Governor, "as the governor does it"), (CallOverhead::Least, "the least that the governor's lock allows")]
    {
        let mut rows = Vec::new();
        for depth in DEPTHS {
            let world = BenchCluster::new(depth)?;
            for threads in THREADS {
                let rates = (0..rounds).map(|_| governor_rate(&world, threads, around, time)).collect::<anyhow::Result<_>>()?;
                rows.push(Row::spread(format!("depth {depth}, {threads} threads"), rates, "/s").goal(GOAL));
            }
        }
        let how = match around {
            CallOverhead::Governor => {
                "for each call the governor's steps without HTTP, JSON and identity: look up the limits above the agent, place the agent, \
                 check its rate, make the route, hold, report one settle"
            }
            CallOverhead::Least => "the route is kept, and 64 settles are reported together",
        };
        let method = format!(
            "governor::budget::Meter, one for all threads (one lock), each thread a session of a gateway and an agent of its own: {how}. \
             An API server in memory takes records at once, at most twenty a second, as the governor writes them. {:.2} s each, \
             {rounds} times, after each thread's first call. {places}",
            time.as_secs_f64()
        );
        reports.push(Report::new(format!("hold + settle a second, {title}"), method, rows));
    }
    Ok(reports)
}

fn body() -> CallSize {
    CallSize { bytes: BYTES, other_tokens: 0, output: Some(64), model_output: None, thinking: 0, choices: 1 }
}

fn settle(id: u64) -> Settle {
    Settle { seq: id, hold: id, usage: USAGE, quality: Quality::Exact, input: BYTES, output: 64 }
}

/// Holds and settles a second of the pure ledger.
fn pure_ledger_rate(world: &BenchCluster, time: Duration) -> anyhow::Result<f64> {
    let callers = world.callers(1)?;
    let caller = callers.first().context("a caller")?;
    let clusters: Vec<_> = world.clusters.iter().map(AsRef::as_ref).collect();
    let budgets: Vec<_> = world.budgets.iter().map(AsRef::as_ref).collect();
    let facts = facts::facts(&clusters, &budgets, &world.projects);
    let mut now = jiff::Timestamp::now().as_millisecond();
    let mut ledger = Ledger::new(now);
    ledger.set_tree(&build(&facts.clusters, &facts.budgets).nodes);
    let mut leafs = Vec::new();
    if caller.agent.is_some() {
        let life = spillway::policy::budget::share::Lifetime { tokens: 1_000_000_000_000, top_up: 0, max: 0, taken: 0 };
        ledger.put(spillway::policy::budget::share::agent(caller.uid(), &life));
        leafs.push(Key::Agent(caller.uid().to_owned()));
    }
    let mut route = Route::new(leafs, Some(Key::budget(NAMESPACE, "b0")), "worker");
    let (session, _) = ledger.begin(now, &caller.session, &SessionLog { next_hold: 1, ..SessionLog::default() });
    let (mut id, mut began, mut counted) = (0_u64, None::<Instant>, 0_u64);
    loop {
        id += 1;
        // The clock is read once in a thousand calls, because the clock is a cost of the governor, not of the ledger.
        if id.is_multiple_of(1024) {
            now = jiff::Timestamp::now().as_millisecond();
            if let Some(began) = began
                && began.elapsed() >= time
            {
                return Ok(counted_float(counted) / began.elapsed().as_secs_f64());
            }
            began.get_or_insert_with(Instant::now);
        }
        ledger.refresh(&mut route);
        let ask = HoldRequest::of(&body(), route.terms(), spillway::policy::budget::LearnedRatio::default().ratio());
        loop {
            match ledger.hold(now, session, id, &mut route, &ask) {
                HoldAnswer::Given(_) => break,
                HoldAnswer::Write(keys) => {
                    for key in keys {
                        let draft = ledger.draft(now, &key).context("something to write")?;
                        drop(ledger.written(&draft));
                    }
                }
                other @ (HoldAnswer::Refused(_) | HoldAnswer::Closed | HoldAnswer::Unattached) => anyhow::bail!("{other:?}"),
            }
        }
        let settled = ledger.settle(now, session, &settle(id));
        anyhow::ensure!(settled == SettleOutcome::Counted, "{settled:?}");
        counted += u64::from(began.is_some());
    }
}

/// Holds and settles a second of several threads at one meter.
fn governor_rate(world: &BenchCluster, threads: usize, around: CallOverhead, time: Duration) -> anyhow::Result<f64> {
    let (meter, callers) = (world.meter(), world.callers(threads)?);
    let (over, wrote, all, ready) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| take_writes(&meter, &wrote));
        let calling: Vec<_> = callers
            .iter()
            .map(|caller| {
                let (meter, over, all, ready) = (&meter, &over, &all, &ready);
                scope.spawn(move || {
                    let first = Driver::begin(meter, caller, around);
                    // Also after an error, because the other threads wait here.
                    ready.wait();
                    let mut driver = first?;
                    while !over.load(Ordering::Relaxed) {
                        driver.make_call()?;
                        all.fetch_add(1, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        ready.wait();
        let (began, before) = (Instant::now(), all.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (after, took) = (all.load(Ordering::Relaxed), began.elapsed());
        over.store(true, Ordering::Relaxed);
        let ended: Vec<_> = calling.into_iter().map(|thread| thread.join()).collect();
        wrote.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow::anyhow!("a thread panicked");
        writing.join().map_err(panicked)??;
        ended.into_iter().try_for_each(|thread| thread.map_err(panicked)?)?;
        Ok(counted_float(after - before) / took.as_secs_f64())
    })
}

/// One thread's calls.
struct Driver<'a> {
    meter: &'a Meter,
    caller: &'a Caller,
    around: CallOverhead,
    kept: Route,
    id: u64,
    owed: Vec<(Settle, String, i64)>,
    acked: u64,
}

impl<'a> Driver<'a> {
    /// Its session begins, and its first call is done.
    fn begin(meter: &'a Meter, caller: &'a Caller, around: CallOverhead) -> anyhow::Result<Self> {
        meter.begin(&caller.session, &SessionLog { next_hold: 1, ..SessionLog::default() });
        let kept = caller.route(meter)?;
        let mut driver = Self { meter, caller, around, kept, id: 0, owed: Vec::new(), acked: 0 };
        driver.make_call()?;
        Ok(driver)
    }

    /// One call.
    fn make_call(&mut self) -> anyhow::Result<()> {
        self.id += 1;
        let mut fresh = match self.around {
            CallOverhead::Governor => {
                let route = self.caller.route(self.meter)?;
                // The rate is the highest possible. Only the cost of the check matters.
                let _ = self.meter.call(self.caller.uid(), PER_SECOND);
                Some(route)
            }
            CallOverhead::Least => None,
        };
        let route = fresh.as_mut().unwrap_or(&mut self.kept);
        loop {
            match self.meter.hold(&self.caller.session, self.id, route, &body(), (NAMESPACE, MODEL)) {
                HoldResult::Given { .. } => break,
                // A record is being written.
                HoldResult::WritePending => std::thread::sleep(Duration::from_millis(1)),
                other @ (HoldResult::Refused(_) | HoldResult::Closed | HoldResult::Unknown) => anyhow::bail!("{other:?}"),
            }
        }
        self.owed.push((settle(self.id), MODEL.to_owned(), BYTES));
        let together = match self.around {
            CallOverhead::Governor => true,
            CallOverhead::Least => self.id.is_multiple_of(TOGETHER),
        };
        if together {
            let told = self.meter.settle(&self.caller.session, &self.owed, self.acked + 1, self.acked);
            self.acked = told.context("the session is known")?;
            self.owed.clear();
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of some seconds")]
fn counted_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_depth_passes_as_many_places_as_it_says_and_counts() {
        for depth in DEPTHS {
            let world = BenchCluster::new(depth).expect("a world");
            let (meter, callers) = (world.meter(), world.callers(1).expect("a caller"));
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| take_writes(&meter, &over));
                for around in [CallOverhead::Governor, CallOverhead::Least] {
                    let mut kept = callers[0].route(&meter).expect("a route");
                    drop(Driver::begin(&meter, &callers[0], around));
                    let held = meter.hold(&callers[0].session, 1_000, &mut kept, &body(), (NAMESPACE, MODEL));
                    assert!(matches!(&held, HoldResult::Given { path, .. } if path.len() == depth), "{depth}: {held:?}");
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    }
}
