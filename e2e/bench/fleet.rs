//! A fleet of a thousand agents from nothing: the operator's memory before and after, and how fast the fleet starts,
//! compared with a client that makes the same pods and does nothing else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::audit::{self, Write};
use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::operator::Operator;
use crate::processes::Memory;
use crate::report::{Report, Row, float, percentile};
use crate::simulated::Fleet;
use crate::size::{POOLS, Size};
use crate::watch::ReadyPods;

/// Requests that the bare client has under way at once.
const AT_ONCE: usize = 64;
const LIMIT: Duration = Duration::from_secs(180);
/// How long the operator is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(30);
/// How long the scheduler, KWOK and the counts in pools' status need to settle.
const SETTLE: Duration = Duration::from_secs(10);
/// How long the fleet is left alone before the operator's memory is read again.
const REST: Duration = Duration::from_secs(60);

/// Runs both parts.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let room = BenchNamespace::open("fleet").await?;
    let (leader, gateway) = room.start_operators().await?;
    let standby = Operator::start(&room, "two")?;
    standby.stands_by().await?;
    tokio::time::sleep(size.time(IDLE)).await;
    let (idle, standing, waiting) = (leader.memory()?, standby.memory()?, gateway.memory()?);

    let bare = bare(template().await?, size).await?;
    tokio::time::sleep(SETTLE).await;
    let fleet = Fleet::start(&room);
    let spawn = spawn(&room, bare, size).await?;
    tokio::time::sleep(SETTLE + size.time(REST)).await;
    let (full, busy) = (leader.memory()?, gateway.memory()?);
    drop(fleet);
    let Size { agents } = size;
    let mut rows = Vec::new();
    rows.extend(weight("controller that leads, no pool", idle, Some("<= 25 MiB")));
    rows.extend(weight("controller that stands by", standing, None));
    rows.extend(weight(&format!("controller that leads {agents} agents"), full, Some("<= 64 MiB (of 2,000 pods)")));
    rows.extend(weight("gateway, no agent", waiting, None));
    rows.extend(weight(&format!("gateway, {agents} agents"), busy, None));
    let method = format!(
        "VmRSS, VmHWM and Pss of the processes, which serve one namespace: after {} s without a pool, and {} s after {agents} agents in \
         {POOLS} pools on 20 KWOK nodes were Ready, with simulated sidecars",
        size.time(IDLE).as_secs(),
        (SETTLE + size.time(REST)).as_secs()
    );
    Ok(vec![Report::new("memory", method, rows), spawn])
}

fn weight(what: &str, memory: Memory, goal: Option<&'static str>) -> Vec<Row> {
    let Memory { resident, anonymous: _, proportional, peak } = memory;
    let row = Row::one(format!("{what}: resident"), resident, "MiB");
    let mut rows = vec![goal.into_iter().fold(row, Row::goal)];
    rows.extend(proportional.map(|size| Row::one(format!("{what}: proportional"), size, "MiB")));
    rows.push(Row::one(format!("{what}: peak so far"), peak, "MiB"));
    rows
}

/// A pod as Spillway makes it, without the fields that belong to one pod: from a pool of one agent in a namespace of
/// its own.
async fn template() -> anyhow::Result<Pod> {
    let room = BenchNamespace::open("template").await?;
    let _operator = room.start_operators().await?;
    let _fleet = Fleet::start(&room);
    room.apply_pool("one", 1, Nodes::Fake).await?;
    room.settled("one", 1, LIMIT).await?;
    let mut pod = room.api::<Pod>().list(&ListParams::default()).await?.items.pop().context("the pool's pod")?;
    pod.metadata = kube::api::ObjectMeta { labels: pod.metadata.labels.take(), ..Default::default() };
    pod.status = None;
    if let Some(spec) = pod.spec.as_mut() {
        spec.node_name = None;
    }
    Ok(pod)
}

/// The floor: pods a second of a client that makes the same pods on the same nodes and does nothing else.
async fn bare(template: Pod, size: Size) -> anyhow::Result<Vec<Row>> {
    let room = BenchNamespace::open("bare").await?;
    let mut ready = ReadyPods::start(&room);
    let api: Api<Pod> = room.api();
    let (applied, began) = (jiff::Timestamp::now(), Instant::now());
    futures::stream::iter(0..size.agents)
        .map(|number| {
            let (api, mut pod) = (&api, template.clone());
            pod.metadata.name = Some(format!("bare-{number}"));
            async move { api.create(&PostParams::default(), &pod).await.map(drop) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let all_ready = ready.reach(size.agents, size.limit(LIMIT)).await?.duration_since(began).as_secs_f64();
    let writes = audit::writes(&room.namespace, applied);
    let rate = rate(&created(&writes, "pods", false), applied);
    let by_all = float(writes.len()) / all_ready;
    api.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    within(size.limit(LIMIT), "the bare client's pods are gone", async || {
        let left = api.list_metadata(&ListParams::default()).await?.items.len();
        anyhow::ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    Ok(vec![
        Row::one("bare client: pods created a second", rate, "/s"),
        Row::one("bare client: first create -> all Ready", all_ready, "s"),
        Row::one("bare client: all API writes a second until then", by_all, "/s"),
    ])
}

/// A fleet from nothing.
async fn spawn(room: &BenchNamespace, bare: Vec<Row>, size: Size) -> anyhow::Result<Report> {
    let (Size { agents: wanted }, limit) = (size, size.limit(LIMIT));
    let mut ready = ReadyPods::start(room);
    let (applied, began) = (jiff::Timestamp::now(), Instant::now());
    let names: Vec<String> = (0..POOLS).map(|number| format!("pool{number}")).collect();
    futures::future::try_join_all(names.iter().map(|name| room.apply_pool(name, size.in_a_pool(), Nodes::Fake))).await?;
    let all_ready = ready.reach(wanted, limit).await?.duration_since(began).as_secs_f64();
    for name in &names {
        room.settled(name, size.in_a_pool(), limit).await?;
    }
    let settled = began.elapsed().as_secs_f64();
    // Requests for tokens, which on real nodes the kubelet makes, write nothing.
    let writes: Vec<Write> =
        audit::writes(&room.namespace, applied).into_iter().filter(|write| write.object_ref.subresource != "token").collect();
    let (agents, pods) = (created(&writes, "agents", true), created(&writes, "pods", true));
    anyhow::ensure!(pods.len() == wanted, "{} pods were made for {wanted} agents", pods.len());
    let waits: Vec<f64> =
        pods.iter().filter_map(|(name, at)| Some((at.duration_since(*agents.get(name)?)).as_secs_f64() * 1000.0)).collect();
    let mut times: Vec<f64> = pods.values().map(|at| at.duration_since(applied).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let at = |rank: usize| times.get(rank - 1).copied().unwrap_or(f64::NAN);
    let own = writes.iter().filter(|write| write.holder().is_some() && write.object_ref.resource != "leases").count();
    let mut rows = vec![
        Row::one("applied -> first pod created", at(1), "s").goal("<= 1 s"),
        Row::one("applied -> 30 pods created", at(30), "s").goal("<= 3 s"),
        Row::one(format!("applied -> {wanted} pods created"), at(wanted), "s"),
        Row::one(format!("applied -> {wanted} pods Ready"), all_ready, "s"),
        Row::one("applied -> all agents registered, all pools Ready", settled, "s"),
        Row::one("pods created a second", rate(&pods, applied), "/s"),
        Row::one("Spillway's API writes an agent until all pools Ready", float(own) / float(wanted), "/agent"),
        Row::one("Spillway's API writes a second until then", float(own) / settled, "/s"),
        Row::one("all API writes a second until then", float(writes.len()) / settled, "/s"),
        Row::one("Agent created -> pod created, p50", percentile(&waits, 50.0), "ms"),
        Row::one("Agent created -> pod created, p99", percentile(&waits, 99.0), "ms"),
    ];
    rows.extend(bare);
    let method = format!(
        "{POOLS} pools of {} agents are applied at once on 20 KWOK nodes. Each pod's simulated sidecar begins when the pod runs. Times run \
         from before the apply to the audit log's time of the creations. Ready is as seen by a watch. All API writes are those of Spillway, \
         the scheduler and KWOK. Before it a bare client makes {wanted} pods of the same spec, {AT_ONCE} at once",
        size.in_a_pool()
    );
    Ok(Report::new("spawn", method, rows))
}

/// Successful creations by name: Spillway's only, or those of all clients.
fn created(writes: &[Write], resource: &str, ours: bool) -> HashMap<String, jiff::Timestamp> {
    let made = writes.iter().filter(|write| write.is("create", resource) && (!ours || write.holder().is_some()));
    made.map(|write| (write.object_ref.name.clone(), write.stage_timestamp)).collect()
}

/// Creations a second, from `since` to the last.
fn rate(created: &HashMap<String, jiff::Timestamp>, since: jiff::Timestamp) -> f64 {
    let last = created.values().max().map_or(f64::NAN, |last| last.duration_since(since).as_secs_f64());
    float(created.len()) / last
}
