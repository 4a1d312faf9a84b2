//! A hostile namespace beside an honest one: the effect of each attack on the honest one's claims and calls, and on the
//! memory of gateway and controller, which have the limits of the chart.
//!
//! Unlike other benchmarks this one also judges: no operator may end, no honest agent may be given up, no honest call
//! may fail or item stay unclaimed, no token may be free, and no header may steer a provider. It measures everything
//! before it fails.

pub mod attacker;
mod authenticated;
mod objects;
mod unauthenticated;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use spillway::api::{Agent, AgentPool, Breaker, Budget, WorkItem, WorkQueue};

use self::attacker::{Hostile, Order, Outcome, attacks};
use super::provider::Streams;
use super::steady::{self, Measured, Steady};
use super::{BEFORE_THE_CLUSTER, Callers, FIRST, LIMIT, Limits, Serves, Stage, failures, remove};
use crate::bench_namespace::{BenchNamespace, within};
use crate::processes::{self, Priority};
use crate::report::{Report, Row, float, percentile};
use crate::size::Size;
use crate::work::items;

/// Memory limits of the chart, in MiB (`resources.limits.memory` in its values).
const GATEWAY_LIMIT: u32 = 512;
const CONTROLLER_LIMIT: u32 = 256;
/// Agents of the honest namespace, and of the hostile one. Three hostile agents once exhausted a gateway's memory.
const HONEST: usize = 10;
const HOSTILE: usize = 6;
/// Length of each attack. The honest namespace is measured after its beginning.
const TIME: Duration = Duration::from_secs(20);
const BEGINNING: Duration = Duration::from_secs(4);
/// Pause between two attacks, in which held resources are released.
const REST: Duration = Duration::from_secs(3);
/// Streams of the honest namespace's provider, which are not used.
const STREAMS: Streams = Streams { events: 100, pace: Duration::from_millis(20) };

/// The effect of one attack.
struct AttackResult {
    name: &'static str,
    measured: Measured,
    /// Peak memory, in MiB.
    gateway: f64,
    controller: f64,
    /// Operators that ended.
    ended: Vec<&'static str>,
    outcome: Outcome,
}

/// Runs the benchmark. `BENCH_ATTACK`: only attacks whose name contains this.
pub async fn run(size: Size, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let _priority = Priority::take(BEFORE_THE_CLUSTER)?;
    let (honest, room, objects) =
        (BenchNamespace::open("honest").await?, BenchNamespace::open("hostile").await?, BenchNamespace::open("hostile-objects").await?);
    let hostile = Hostile::start(honest.node).await?;
    let limits = Limits::new(GATEWAY_LIMIT, CONTROLLER_LIMIT)?;
    let stage = Stage::limited(honest.clone(), Serves::All, STREAMS, &[&hostile.served], Some(limits)).await?;
    let mut room = room;
    room.gateway = stage.room.gateway;
    let mut bench = Bench::open(stage, hostile, honest.clone(), room.clone(), objects.clone()).await?;
    let mut taken = Vec::new();
    let all = bench.attacks(size, &mut taken).await;
    let faults = bench.faults().await;
    bench.clear().await?;
    bench.stage.close(&[&honest, &room, &objects]).await?;
    reports.push(Report::new("an honest namespace beside a hostile one", method(size), rows(&taken)));
    all?;
    let mut faults = faults?;
    faults.extend(taken.iter().flat_map(AttackResult::faults));
    anyhow::ensure!(faults.is_empty(), "hostile found faults:\n  {}", faults.join("\n  "));
    Ok(())
}

fn method(size: Size) -> String {
    format!(
        "two namespaces, one gateway, one controller, one ClusterBudget above both; gateway and controller in memory groups with the \
         chart's limits ({GATEWAY_LIMIT} and {CONTROLLER_LIMIT} MiB), restarted when they end. The honest namespace: {HONEST} workers, \
         {} items and {} calls of models a second at times of Poisson processes, measured for {} s of each attack, which begins {} s \
         before. The attacker is a process of the lowest priority with {HOSTILE} agents of the hostile namespace, addresses of pods \
         without a token, and the rights of a user who may edit a namespace; its provider is hostile, too. Peak: the most that was \
         charged to the memory group during the attack",
        steady::ITEMS,
        steady::CALLS,
        measured_time(size).as_secs_f64(),
        BEGINNING.as_secs_f64(),
    )
}

fn measured_time(size: Size) -> Duration {
    size.time(TIME)
}

struct Bench {
    stage: Stage,
    hostile: Hostile,
    steady: Steady,
    callers: Callers,
    room: BenchNamespace,
    objects: BenchNamespace,
    /// The honest agents, as they were before all attacks.
    agents: BTreeMap<String, String>,
    /// The provider's last counts.
    books: Outcome,
}

impl Bench {
    async fn open(
        stage: Stage,
        hostile: Hostile,
        honest: BenchNamespace,
        room: BenchNamespace,
        objects: BenchNamespace,
    ) -> anyhow::Result<Self> {
        stage.cluster_budget(&[&honest.namespace, &room.namespace, &objects.namespace]).await?;
        let steady = Steady::open(&stage, honest, HONEST).await?;
        items::apply_queue(&room, 0).await?;
        let mut pool = steady::pool(HOSTILE);
        pool["may"] = json!({"submitTo": [items::QUEUE]});
        let callers = Callers::gather(&stage, &room, &hostile.served, HOSTILE, pool).await?;
        let agents = agents(&steady.room).await?;
        Ok(Self { stage, hostile, steady, callers, room, objects, agents, books: Outcome::default() })
    }

    /// Runs the attacks one after the other. Each prints its line of the document's table when it is over.
    async fn attacks(&mut self, size: Size, taken: &mut Vec<AttackResult>) -> anyhow::Result<()> {
        let only = std::env::var("BENCH_ATTACK").unwrap_or_default();
        println!("| attack | claims p50 / p99 (not claimed) | calls p50 / p99 (failed) | gateway, controller at most | ended |");
        println!("|---|---|---|---|---|");
        let named = attacks().into_iter().enumerate().map(|(number, (name, _))| (name, Some(number)));
        for (name, number) in std::iter::once(("none", None)).chain(named.filter(|(name, _)| name.contains(&only))) {
            let seen = self.attack(name, number, size).await?;
            seen.print();
            taken.push(seen);
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    async fn attack(&mut self, name: &'static str, number: Option<usize>, size: Size) -> anyhow::Result<AttackResult> {
        let time = measured_time(size);
        self.stage.restart_ended().await?;
        self.steady.ready().await?;
        self.stage.forget_peaks()?;
        let order = Order {
            attack: name.to_owned(),
            time: BEGINNING + time,
            port: self.room.gateway.port(),
            bundle: self.callers.bundle.clone(),
            tokens: self.callers.tokens.iter().flatten().cloned().collect(),
            namespace: self.objects.namespace.clone(),
        };
        let attacking = async {
            match number {
                Some(_) => self.hostile.attack(&order).await,
                None => Ok(Outcome::default()),
            }
        };
        let part = number.map_or_else(|| "none".to_owned(), |number| format!("attack-{number}"));
        let measuring = async {
            tokio::time::sleep(BEGINNING).await;
            processes::renice(FIRST)?;
            let submitted = self.steady.submit(&part, time).await;
            processes::renice(BEFORE_THE_CLUSTER)?;
            submitted
        };
        let (outcome, submitted) = tokio::join!(attacking, measuring);
        let (outcome, submitted) = (outcome?, submitted?);
        let [gateway, controller] = self.stage.peaks()?;
        // The created objects are removed first, because a restarted operator would read them.
        if number.is_some() {
            self.clear().await?;
        }
        let ended = self.stage.restart_ended().await?;
        let measured = self.steady.measured(submitted, time).await;
        if number.is_some() {
            self.books = Outcome { tokens: outcome.tokens, steering: outcome.steering, ..Outcome::default() };
        }
        Ok(AttackResult { name, measured, gateway, controller, ended, outcome })
    }

    /// Deletes the objects that the attacks made.
    async fn clear(&self) -> anyhow::Result<()> {
        let room = &self.objects;
        within(LIMIT, "the objects of the attack are deleted", async || {
            let mut left = remove(room.api::<AgentPool>()).await? + remove(room.api::<WorkItem>()).await?;
            left += remove(room.api::<WorkQueue>()).await? + remove(room.api::<Breaker>()).await?;
            left += remove(room.api::<Budget>()).await? + remove(room.api::<Pod>()).await?;
            left += remove(self.room.api::<WorkItem>()).await?;
            anyhow::ensure!(left == 0, "{left} objects are left");
            Ok(())
        })
        .await
    }

    /// Faults of the honest namespace, or of the token counts, after all attacks.
    async fn faults(&self) -> anyhow::Result<Vec<String>> {
        let mut faults = Vec::new();
        if agents(&self.steady.room).await? != self.agents {
            faults.push("honest agents were given up".to_owned());
        }
        if self.books.steering > 0 {
            faults.push(format!("{} headers that steer a provider reached it", self.books.steering));
        }
        let charged = within(LIMIT, "the hostile namespace is charged for all tokens that its provider reported", async || {
            let charged = charged(&self.room).await?;
            anyhow::ensure!(charged >= self.books.tokens, "{charged} of {} tokens are charged", self.books.tokens);
            Ok(charged)
        });
        match charged.await {
            Ok(charged) => println!("  the hostile provider reported {} tokens, and {charged} were charged", self.books.tokens),
            Err(error) => faults.push(format!("{error:#}")),
        }
        Ok(faults)
    }
}

/// The agents of a namespace, with their pods. An agent that is given up or replaced has another pod.
async fn agents(room: &BenchNamespace) -> anyhow::Result<BTreeMap<String, String>> {
    let list = room.api::<Agent>().list(&ListParams::default()).await?;
    let of = |agent: Agent| {
        let pod = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()).map(|pod| pod.uid.clone());
        (agent.metadata.name.unwrap_or_default(), pod.unwrap_or_default())
    };
    Ok(list.into_iter().map(of).collect())
}

/// Tokens that were charged to a namespace's Budget.
async fn charged(room: &BenchNamespace) -> anyhow::Result<u64> {
    let status = Api::<Budget>::get(&room.api(), "default").await?.status.unwrap_or_default();
    let used: i64 = status.windows.unwrap_or_default().iter().map(|window| window.used).sum();
    Ok(u64::try_from(used)?)
}

impl AttackResult {
    fn faults(&self) -> Vec<String> {
        let Self { name, measured, ended, outcome, .. } = self;
        let mut faults: Vec<String> = ended.iter().map(|who| format!("{name}: the {who} ended")).collect();
        if !measured.calls.failed.is_empty() {
            faults.push(format!("{name}: {} honest calls failed", measured.calls.failed.len()));
        }
        if measured.unclaimed > 0 {
            faults.push(format!("{name}: {} honest items were not claimed", measured.unclaimed));
        }
        faults.extend(outcome.error.iter().map(|error| format!("{name}: the attack itself failed: {error}")));
        faults
    }
}

fn rows(taken: &[AttackResult]) -> Vec<Row> {
    taken.iter().flat_map(AttackResult::rows).collect()
}

impl AttackResult {
    fn rows(&self) -> Vec<Row> {
        let Self { name, measured, gateway, controller, ended, outcome } = self;
        let row = |what: &str, value: f64, unit| Row::one(format!("{name}: {what}"), value, unit);
        let mut rows = vec![
            row("due -> claimed, p50", percentile(&measured.claims, 50.0), "ms"),
            row("due -> claimed, p99", percentile(&measured.claims, 99.0), "ms"),
            row("items that were not claimed", float(measured.unclaimed), "").goal("0"),
            row("call of a model, p50", percentile(&measured.calls.took, 50.0), "ms"),
            row("call of a model, p99", percentile(&measured.calls.took, 99.0), "ms"),
            row("calls that failed", float(measured.calls.failed.len()), "").goal("0"),
            row("gateway, peak", *gateway, "MiB").goal("< 512 MiB"),
            row("controller, peak", *controller, "MiB").goal("< 256 MiB"),
            row("operators that ended", float(ended.len()), "").goal("0"),
        ];
        rows.extend(failures(name, &measured.calls.failed));
        rows.extend(outcome.counts.iter().map(|(what, count)| {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            row(&format!("the attacker: {what}"), float(count), "")
        }));
        rows
    }
}

impl AttackResult {
    /// A line of the table.
    fn print(&self) {
        let Self { name, measured, gateway, controller, ended, outcome: _ } = self;
        let of = |times: &[f64]| format!("{:.1} / {:.1} ms", percentile(times, 50.0), percentile(times, 99.0));
        let (unclaimed, failed) = (measured.unclaimed, measured.calls.failed.len());
        let (claims, calls, ended) = (of(&measured.claims), of(&measured.calls.took), ended.join(", "));
        println!("| {name} | {claims} ({unclaimed}) | {calls} ({failed}) | {gateway:.0}, {controller:.0} MiB | {ended} |");
    }
}
