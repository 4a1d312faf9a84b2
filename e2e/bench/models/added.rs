//! The time that a proxy adds to a call with an answer in one piece: the same calls straight to the provider, through
//! nginx and through the gateway, in turns.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::load::{self, Load};
use super::{Arm, Bench, Used, failures, provider, rate_or};
use crate::audit;
use crate::report::{Report, Row, float, percentile};

/// Length of one measurement, and number of turns.
const TIME: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;
/// Calls a second of one agent. The gateway accepts twenty.
const OF_AN_AGENT: f64 = 8.0;

/// One kind of calls.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Bytes of a body.
    bytes: usize,
    /// Calls a second.
    rate: f64,
    /// Whether connections are kept.
    keep: bool,
}

/// In this order.
pub const KINDS: [Kind; 3] = [
    Kind { bytes: 1024, rate: 200.0, keep: true },
    Kind { bytes: 100 * 1024, rate: 50.0, keep: true },
    Kind { bytes: 1024, rate: 50.0, keep: false },
];

/// One turn of one arm.
#[derive(Default)]
struct MeasuredTurn {
    p50: f64,
    p99: f64,
    late: f64,
    calls: usize,
    used: Used,
}

impl Bench<'_> {
    /// Runs the benchmark.
    pub async fn measure_added_time(&self, kind: Kind) -> anyhow::Result<Report> {
        let Kind { bytes, rate, keep } = kind;
        let rate = rate_or(rate)?.min(float(self.scale.agents) * OF_AN_AGENT);
        let load = Load { rate, time: self.size.time(TIME), keep, body: provider::body(provider::WHOLE, bytes) };
        let mut turns = BTreeMap::<Arm, Vec<MeasuredTurn>>::new();
        let (mut failed, since) = (Vec::new(), Timestamp::now());
        for round in 0..self.size.runs(ROUNDS) {
            // Each turn begins with another way, so that none always follows the same other way.
            for arm in Arm::ALL.into_iter().cycle().skip(round).take(Arm::ALL.len()) {
                let before = self.used(arm)?;
                let answers = load::open(self.target(arm)?, &load).await;
                let used = self.used(arm)?.since(before);
                let (p50, p99) = (percentile(&answers.took, 50.0), percentile(&answers.took, 99.0));
                let turn = MeasuredTurn { p50, p99, late: percentile(&answers.late, 99.0), calls: answers.late.len(), used };
                turns.entry(arm).or_default().push(turn);
                failed.extend(failures(arm.label(), &answers.failed));
            }
        }
        let mut rows = rows(&turns);
        rows.push(Row::one("records of Agents and of the Budget written, in all of the time", self.records_a_second(since), "/s"));
        rows.extend(failed);
        let connections = if keep { "connections that are kept" } else { "a connection for each call, as agents' sidecars make them" };
        let method = format!(
            "open loop: calls at times of a Poisson process of {rate}/s, fixed beforehand, {:.1} s for each way in turn, {} times, each \
             turn beginning with another way; bodies \
             of {bytes} bytes, an answer of {}; {connections}. A call is timed from its own beginning to the last byte of its answer; the \
             delay of its beginning is reported; failed calls are counted and not timed. Added: the difference of the percentiles in one turn. \
             Processor time by /proc/PID/stat (steps of 10 ms), of all of nginx's processes; {}",
            load.time.as_secs_f64(),
            self.size.runs(ROUNDS),
            provider::ANSWER.len(),
            self.method(),
        );
        Ok(Report::new(format!("calls of models, {bytes} bytes, {connections}"), method, rows))
    }
}

impl Bench<'_> {
    /// Statuses of Agents and Budgets that the controller wrote since then. The ClusterBudget has no namespace to be found by.
    fn records_a_second(&self, since: Timestamp) -> f64 {
        let writes = audit::writes(&self.stage.room.namespace, since);
        let ours = writes.iter().filter(|write| write.is("patch", "agents/status") || write.is("patch", "budgets/status"));
        let records = ours.filter(|write| write.holder().is_some()).count();
        float(records) / Timestamp::now().duration_since(since).as_secs_f64()
    }
}

fn rows(turns: &BTreeMap<Arm, Vec<MeasuredTurn>>) -> Vec<Row> {
    let of = |arm: Arm, what: fn(&MeasuredTurn) -> f64| -> Vec<f64> { turns.get(&arm).into_iter().flatten().map(what).collect() };
    let both = |one: Vec<f64>, other: Vec<f64>, of: fn(f64, f64) -> f64| -> Vec<f64> {
        one.into_iter().zip(other).map(|(one, other)| of(one, other)).collect()
    };
    let each = |seconds: f64, turn: &MeasuredTurn| seconds * 1000.0 / float(turn.calls);
    let proxy: fn(&MeasuredTurn) -> f64 = |turn| turn.used.proxy * 1000.0 / float(turn.calls);
    let mut rows = Vec::new();
    for arm in Arm::ALL {
        rows.push(Row::spread(format!("{}: p50", arm.label()), of(arm, |turn| turn.p50), "ms"));
        rows.push(Row::spread(format!("{}: p99", arm.label()), of(arm, |turn| turn.p99), "ms"));
    }
    for arm in [Arm::Nginx, Arm::Gateway, Arm::GatewayH2] {
        let added = |what: fn(&MeasuredTurn) -> f64| both(of(arm, what), of(Arm::Straight, what), |one, other| one - other);
        rows.push(Row::spread(format!("{}: added to p50", arm.label()), added(|turn| turn.p50), "ms"));
        let row = Row::spread(format!("{}: added to p99", arm.label()), added(|turn| turn.p99), "ms");
        rows.push(if arm == Arm::Nginx { row } else { row.goal("< 1 ms") });
        rows.push(Row::spread(format!("{}: processor time of the proxy", arm.label()), of(arm, proxy), "ms/call"));
    }
    for arm in [Arm::Gateway, Arm::GatewayH2] {
        let times = both(of(arm, proxy), of(Arm::Nginx, proxy), |ours, theirs| ours / theirs);
        rows.push(Row::spread(format!("{}: times nginx's processor time", arm.label()), times, "").goal("<= 1.3 x Envoy's"));
    }
    let idle = of(Arm::Straight, proxy);
    rows.push(Row::spread("gateway: processor time while calls go straight to the provider (its agents' heartbeats)", idle, "ms/call"));
    for (who, what) in [("controller", (|used: &Used| used.controller) as fn(&Used) -> f64), ("API server", |used| used.api_server)] {
        for arm in [Arm::Straight, Arm::Gateway] {
            let values = turns.get(&arm).into_iter().flatten().map(|turn| each(what(&turn.used), turn)).collect();
            rows.push(Row::spread(format!("{who}: processor time while calls go through {}", arm.label()), values, "ms/call"));
        }
    }
    rows.extend(Arm::ALL.map(|arm| Row::spread(format!("{}: calls began late, p99", arm.label()), of(arm, |turn| turn.late), "ms")));
    rows
}
