//! An existing fleet: the cost of a thousand agents that register, report and wait, and the time until a message of one
//! of them is in its status.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::api::PostParams;
use serde_json::json;
use spillway::api::Breaker;

use crate::audit::{self, Write};
use crate::bench_namespace::{BenchNamespace, Nodes};
use crate::operator::Operator;
use crate::processes::{self, Memory};
use crate::report::{Report, Row, float, percentile};
use crate::simulated::{Fleet, Sample};
use crate::size::{POOLS, Size};
use crate::watch::{ReadyPods, goodbyes};

const LIMIT: Duration = Duration::from_secs(180);
/// How long the operator is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(30);
/// Counts in a pool's status may be written once more within five seconds.
const SETTLE: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(60);
/// Agents that say goodbye, and the time between two of them.
const GOODBYES: usize = 200;
const GOODBYE_EACH: Duration = Duration::from_millis(100);

/// The subject of the measurements.
struct Stage {
    size: Size,
    room: BenchNamespace,
    controller: Operator,
    gateway: Operator,
    fleet: Fleet,
    /// The API server's process.
    api_server: u32,
    /// Numbers taken before there were agents.
    idle: Idle,
}

/// Memory and processor time without agents.
struct Idle {
    controller: Memory,
    gateway: Memory,
    /// Processor time of the API server, in seconds a minute.
    api_server: f64,
}

/// Commands that hang, each of another agent. This many open the Breaker of all agents.
const HANGS: usize = 50;

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let room = BenchNamespace::open("agents").await?;
    let (controller, gateway) = room.start_operators().await?;
    let api_server = processes::api_server(&std::env::var("SPILLWAY_AUDIT_LOG")?)?;
    let (used, time) = (processes::processor_seconds(api_server)?, size.time(IDLE));
    tokio::time::sleep(time).await;
    let used = (processes::processor_seconds(api_server)? - used) * 60.0 / time.as_secs_f64();
    let idle = Idle { controller: controller.memory()?, gateway: gateway.memory()?, api_server: used };
    let fleet = Fleet::held(&room);
    let mut stage = Stage { size, room, controller, gateway, fleet, api_server, idle };
    let registered = stage.register().await?;
    tokio::time::sleep(SETTLE).await;
    let rest = stage.rest().await?;
    let again = stage.another_gateway().await?;
    tokio::time::sleep(SETTLE).await;
    let open = stage.open().await?;
    let goodbye = stage.goodbye().await?;
    Ok(vec![registered, rest, again, open, goodbye])
}

impl Stage {
    /// Processor time so far, of controller and gateway.
    fn processor(&self) -> anyhow::Result<(f64, f64)> {
        Ok((self.controller.processor_seconds()?, self.gateway.processor_seconds()?))
    }

    /// Spillway's writes, split into those of other objects and those of leases.
    fn writes(&self, since: jiff::Timestamp) -> (Vec<Write>, Vec<Write>) {
        let ours = audit::writes(&self.room.namespace, since).into_iter().filter(|write| write.user_agent.starts_with("spillway-"));
        ours.partition(|write| write.object_ref.resource != "leases")
    }

    /// All agents register at once: their pods run already, and their sidecars begin together.
    async fn register(&mut self) -> anyhow::Result<Report> {
        let Size { agents } = self.size;
        let mut ready = ReadyPods::start(&self.room);
        let names: Vec<String> = (0..POOLS).map(|number| format!("pool{number}")).collect();
        let each = self.size.in_a_pool();
        futures::future::try_join_all(names.iter().map(|name| self.room.apply_pool(name, each, Nodes::Fake))).await?;
        ready.reach(agents, self.size.limit(LIMIT)).await?;
        self.fleet.prepared(agents, self.size.limit(LIMIT)).await?;
        tokio::time::sleep(SETTLE).await;
        let (since, (controller, gateway), reviews) = (jiff::Timestamp::now(), self.processor()?, self.reviews().await?);
        let began = self.fleet.release();
        let all = self.fleet.registered(agents, self.size.limit(LIMIT)).await?.duration_since(began);
        for name in &names {
            self.room.settled(name, each, self.size.limit(LIMIT)).await?;
        }
        let settled = began.elapsed();
        let (now_controller, now_gateway) = self.processor()?;
        let (writes, _) = self.writes(since);
        let each = |sum: f64| sum / float(agents);
        let samples = self.fleet.samples();
        let took = times(&samples, "register");
        let mut rows = vec![
            Row::one("all begin -> all are registered", all.as_secs_f64(), "s"),
            Row::one("all begin -> all pools are Ready", settled.as_secs_f64(), "s"),
            Row::one("register, p50", percentile(&took, 50.0), "ms"),
            Row::one("register, p99", percentile(&took, 99.0), "ms"),
            Row::one("until the pools are Ready: processor time of the gateway", each(now_gateway - gateway) * 1000.0, "ms/agent"),
            Row::one("until then: processor time of the controller", each(now_controller - controller) * 1000.0, "ms/agent"),
            Row::one("until then: API writes", each(float(writes.len())), "/agent"),
            Row::one("until then: token reviews of the gateway", each(self.reviews().await? - reviews), "/agent"),
        ];
        rows.extend(troubles(&samples));
        let method = format!(
            "{agents} pods in {POOLS} pools run on KWOK nodes. Then all their simulated sidecars begin at once, through one gateway. Each makes \
             two TLS connections, registers, sends its first reports, and begins a long poll. Calls are timed where the sidecar makes them"
        );
        Ok(Report::new(format!("{agents} agents register at once"), method, rows))
    }

    /// Token reviews that the gateway has asked for.
    async fn reviews(&self) -> anyhow::Result<f64> {
        Ok(self.gateway.requests().await?.get("create tokenreviews").copied().unwrap_or(0.0))
    }

    /// A minute in which nothing happens.
    async fn rest(&mut self) -> anyhow::Result<Report> {
        let Size { agents } = self.size;
        let quiet = self.size.time(QUIET);
        drop(self.fleet.samples());
        let (since, (controller, gateway), served) =
            (jiff::Timestamp::now(), self.processor()?, processes::processor_seconds(self.api_server)?);
        let (asked, looked, called) = (self.controller.requests().await?, self.gateway.requests().await?, self.gateway.calls().await?);
        tokio::time::sleep(quiet).await;
        let (now_controller, now_gateway) = self.processor()?;
        let served = processes::processor_seconds(self.api_server)? - served;
        let minutes = quiet.as_secs_f64() / 60.0;
        let (writes, leases) = self.writes(since);
        writes.iter().for_each(|write| println!("  a write in the quiet minute: {} {}", write.verb, write.object_ref.resource));
        anyhow::ensure!(!leases.is_empty(), "the audit log does not show the renewals of the lease, so it would not show other writes");
        let calls = counter_growth(&called, &self.gateway.calls().await?);
        let (samples, memory) = (self.fleet.samples(), (self.controller.memory()?, self.gateway.memory()?));
        let took = times(&samples, "report");
        let mut rows = vec![
            Row::one("API writes a minute, lease renewals apart", float(writes.len()) / minutes, "").goal("0"),
            Row::one("lease renewals a minute", float(leases.len()) / minutes, ""),
            Row::one("agents' calls a second", calls.values().sum::<f64>() / quiet.as_secs_f64(), "/s"),
        ];
        rows.extend(calls.iter().map(|(path, count)| Row::one(format!("calls a second: {path}"), count / quiet.as_secs_f64(), "/s")));
        for (who, before, now) in
            [("controller", asked, self.controller.requests().await?), ("gateway", looked, self.gateway.requests().await?)]
        {
            let made = counter_growth(&before, &now);
            rows.extend(made.iter().map(|(what, count)| Row::one(format!("{who}: requests a minute: {what}"), count / minutes, "")));
        }
        rows.extend([
            Row::one("report, p50", percentile(&took, 50.0), "ms"),
            Row::one("report, p99", percentile(&took, 99.0), "ms"),
            Row::one("controller: processor time a minute", (now_controller - controller) / minutes, "s"),
            Row::one("gateway: processor time a minute", (now_gateway - gateway) / minutes, "s"),
            Row::one("API server: processor time a minute", served / minutes, "s"),
            Row::one("API server: processor time a minute, before there were agents", self.idle.api_server, "s"),
        ]);
        rows.extend(memory_rows("controller", self.idle.controller, memory.0, agents));
        rows.extend(memory_rows("gateway", self.idle.gateway, memory.1, agents));
        rows.extend(troubles(&samples));
        let method = format!(
            "the {agents} agents are left alone for {} s. Then {} s are measured: the API server's audit log (writes), /proc/PID/stat (processor \
             time, in steps of 10 ms), and the counters of controller and gateway. Each agent reports every 20 s and holds a long poll that \
             the gateway answers after 25 s. VmRSS of both processes before the first pool and at the end",
            SETTLE.as_secs(),
            quiet.as_secs()
        );
        Ok(Report::new(format!("{agents} agents at rest, one gateway"), method, rows))
    }

    /// The gateway is killed, and another one is started in its place.
    async fn another_gateway(&mut self) -> anyhow::Result<Report> {
        let Size { agents } = self.size;
        drop(self.fleet.samples());
        let began = Instant::now();
        self.gateway.kill()?;
        self.gateway = Operator::gateway(&self.room, "gateway-2")?;
        self.fleet.forget_answers();
        self.gateway.ready().await?;
        let ready = began.elapsed();
        let all = self.fleet.answered(agents, self.size.limit(LIMIT)).await?.duration_since(began);
        let used = self.gateway.processor_seconds()? * 1000.0 / float(agents);
        let samples = self.fleet.samples();
        let unanswered = samples.iter().filter(|sample| sample.failure.is_some()).count();
        let mut rows = vec![
            Row::one("killed -> another one is Ready", ready.as_secs_f64(), "s"),
            Row::one("killed -> every agent has had an answer from it", all.as_secs_f64(), "s"),
            Row::one("calls that were refused, or not answered", float(unanswered) / float(agents), "/agent"),
            Row::one("processor time of the new one until then", used, "ms/agent"),
        ];
        rows.extend(troubles(&samples));
        let method = "the gateway gets SIGKILL, and another one is started at the same address at once. The time ends when each agent has had an \
                      answer from it. Agents ask again within a second or two, but a long poll without news is answered after 25 s. So the measured answer is that to \
                      the next report, one each 20 s";
        Ok(Report::new(format!("a gateway of {agents} agents is replaced"), method, rows))
    }

    /// Commands of many agents hang, and no agent may run a command any more.
    async fn open(&mut self) -> anyhow::Result<Report> {
        let Size { agents } = self.size;
        let hangs = HANGS.min(agents);
        let guard = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "bench"},
            "spec": {"commands": {"failureThreshold": hangs}}});
        let breaker: Breaker = serde_json::from_value(guard).context("a Breaker")?;
        self.room.api().create(&PostParams::default(), &breaker).await?;
        tokio::time::sleep(SETTLE).await;
        drop(self.fleet.samples());
        let began = self.fleet.hang(hangs);
        let all = self.fleet.wait_until_breaker_known_open(agents, self.size.limit(LIMIT)).await?.duration_since(began);
        let half = self.fleet.wait_until_breaker_known_open(agents.div_ceil(2), LIMIT).await?.duration_since(began);
        let first = self.fleet.wait_until_breaker_known_open(1, LIMIT).await?.duration_since(began);
        let mut rows = vec![
            Row::one("counted in the pods -> the first agent knows that it is open", first.as_secs_f64(), "s"),
            Row::one("counted in the pods -> half of the agents know", half.as_secs_f64(), "s"),
            Row::one("counted in the pods -> every agent knows", all.as_secs_f64(), "s").goal("<= 2 s"),
        ];
        rows.extend(troubles(&self.fleet.samples()));
        let method = format!(
            "one command each of {hangs} of {agents} agents, under one Breaker, is counted as hanging at the same time. The sidecars report \
             it within a second, the opening is stored in the Breaker, and all agents get it in the answer to the long poll. There are no \
             real commands and programs"
        );
        Ok(Report::new("the breaker of all agents' commands opens", method, rows))
    }

    /// Some agents say goodbye, one after the other.
    async fn goodbye(&mut self) -> anyhow::Result<Report> {
        let count = self.size.scaled_count(GOODBYES);
        drop(self.fleet.samples());
        let mut seen = goodbyes(&self.room).await?;
        let mut said = BTreeMap::new();
        for name in self.fleet.names().into_iter().take(count) {
            said.insert(name.clone(), self.fleet.say_goodbye(&name, "the benchmark is over")?);
            tokio::time::sleep(GOODBYE_EACH).await;
        }
        let mut times_seen = Vec::new();
        while times_seen.len() < said.len() {
            let next = tokio::time::timeout(LIMIT, seen.recv()).await;
            let (name, at) =
                next.with_context(|| format!("{} of {count} goodbyes were seen", times_seen.len()))?.context("the watch ended")?;
            times_seen.extend(said.get(&name).map(|said| at.duration_since(*said).as_secs_f64() * 1000.0));
        }
        // Wait for the last answers.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let samples = self.fleet.samples();
        let answered = times(&samples, "goodbye");
        let mut rows = vec![
            Row::one("said -> condition GoodbyeRequested seen, p50", percentile(&times_seen, 50.0), "ms"),
            Row::one("said -> condition GoodbyeRequested seen, p99", percentile(&times_seen, 99.0), "ms"),
            Row::one("said -> answered (it is stored), p50", percentile(&answered, 50.0), "ms"),
            Row::one("said -> answered (it is stored), p99", percentile(&answered, 99.0), "ms"),
        ];
        rows.extend(troubles(&samples));
        let method = format!(
            "{count} of {} agents say goodbye, one each {} ms, while the others go on. Times run from the call until a watch shows the \
             condition, and until the answer",
            self.size.agents,
            GOODBYE_EACH.as_millis()
        );
        Ok(Report::new("goodbye", method, rows))
    }
}

/// Times of the calls that were answered.
fn times(samples: &[Sample], call: &str) -> Vec<f64> {
    samples.iter().filter(|sample| sample.call == call && sample.failure.is_none()).filter_map(|sample| sample.milliseconds).collect()
}

/// Calls that were refused, or not answered.
fn troubles(samples: &[Sample]) -> Vec<Row> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for Sample { call, milliseconds: _, failure: trouble } in samples {
        if let Some(trouble) = trouble {
            *counts.entry(format!("{call}: {trouble}")).or_default() += 1;
        }
    }
    counts.into_iter().map(|(what, count)| Row::one(what, float(count), "")).collect()
}

/// The counters that grew, and by how much.
fn counter_growth(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let grown = now.iter().map(|(what, count)| (what.clone(), count - before.get(what).copied().unwrap_or(0.0)));
    grown.filter(|(_, count)| *count > 0.0).collect()
}

fn memory_rows(who: &str, idle: Memory, full: Memory, agents: usize) -> Vec<Row> {
    vec![
        Row::one(format!("{who}: resident without agents"), idle.resident, "MiB"),
        Row::one(format!("{who}: resident with {agents} agents"), full.resident, "MiB"),
        Row::one(format!("{who}: peak so far"), full.peak, "MiB"),
        Row::one(format!("{who}: the difference"), (full.resident - idle.resident) * 1024.0 / float(agents), "KiB/agent"),
    ]
}
