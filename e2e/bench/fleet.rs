//! A fleet of a thousand agents: what the operator weighs before and after, how fast it comes, beside a client that makes
//! the same pods and nothing else, and what it does when nothing happens. One fleet serves all three: it takes minutes to
//! make.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::audit::{self, Write};
use crate::operator::{Memory, Operator};
use crate::report::{Report, Row, float, percentile};
use crate::room::{Nodes, Room, within};
use crate::watch::ReadyPods;

const POOLS: usize = 10;
const AGENTS_EACH: usize = 100;
const AGENTS: usize = POOLS * AGENTS_EACH;
/// What the bare client keeps in flight.
const AT_ONCE: usize = 64;
const LIMIT: Duration = Duration::from_secs(180);
/// How long the operator is left alone before it is weighed.
const IDLE: Duration = Duration::from_secs(30);
/// Counts in a pool's status may be written once more within five seconds.
const SETTLE: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(60);

/// Takes all three.
pub async fn run() -> anyhow::Result<Vec<Report>> {
    let room = Room::open("fleet").await?;
    let leader = room.leader().await?;
    let standby = Operator::start(&room, "two")?;
    standby.stands_by().await?;
    tokio::time::sleep(IDLE).await;
    let (idle, standing) = (leader.memory()?, standby.memory()?);

    let bare = bare(template().await?).await?;
    // The scheduler and KWOK come to rest.
    tokio::time::sleep(SETTLE).await;
    let spawn = spawn(&room, bare).await?;
    tokio::time::sleep(SETTLE).await;
    let quiet = quiet(&room, &leader).await?;
    let full = leader.memory()?;
    let mut rows = Vec::new();
    rows.extend(weight("leader, no pool, after 30 s", idle, Some("<= 25 MiB")));
    rows.extend(weight("standby", standing, None));
    rows.extend(weight("leader, 1,000 agents, a minute after Ready", full, Some("<= 64 MiB (of 2,000 pods)")));
    let method = "VmRSS, VmHWM and Pss of the controller's process, which serves one namespace; 1,000 agents in 10 pools on 20 KWOK nodes";
    Ok(vec![Report { title: "memory", method, rows }, spawn, quiet])
}

fn weight(what: &str, memory: Memory, goal: Option<&'static str>) -> Vec<Row> {
    let Memory { resident, proportional, peak } = memory;
    let row = Row::one(format!("{what}: resident"), resident, "MiB");
    let mut rows = vec![goal.into_iter().fold(row, Row::goal)];
    rows.extend(proportional.map(|size| Row::one(format!("{what}: proportional"), size, "MiB")));
    rows.push(Row::one(format!("{what}: peak so far"), peak, "MiB"));
    rows
}

/// A pod as Spillway makes it, without what belongs to that one: from a pool of one in a room of its own.
async fn template() -> anyhow::Result<Pod> {
    let room = Room::open("template").await?;
    let _operator = room.leader().await?;
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

/// The floor: the same pods, made by a client that does nothing else, on the same nodes. Pods a second.
async fn bare(template: Pod) -> anyhow::Result<Vec<Row>> {
    let room = Room::open("bare").await?;
    let mut ready = ReadyPods::start(&room);
    let api: Api<Pod> = room.api();
    let (applied, began) = (jiff::Timestamp::now(), Instant::now());
    futures::stream::iter(0..AGENTS)
        .map(|number| {
            let (api, mut pod) = (&api, template.clone());
            pod.metadata.name = Some(format!("bare-{number}"));
            async move { api.create(&PostParams::default(), &pod).await.map(drop) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let all_ready = ready.reach(AGENTS, LIMIT).await?.duration_since(began).as_secs_f64();
    let writes = audit::writes(&room.namespace, applied);
    let rate = rate(&created(&writes, "pods", false), applied);
    let by_all = float(writes.len()) / all_ready;
    api.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    within(LIMIT, "the bare client's pods are gone", async || {
        let left = api.list_metadata(&ListParams::default()).await?.items.len();
        anyhow::ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    Ok(vec![
        Row::one("bare client: pods created a second", rate, "/s"),
        Row::one("bare client: first create -> all Ready", all_ready, "s"),
        Row::one("bare client: everybody's API writes a second until then", by_all, "/s"),
    ])
}

/// A thousand agents from nothing.
async fn spawn(room: &Room, bare: Vec<Row>) -> anyhow::Result<Report> {
    let mut ready = ReadyPods::start(room);
    let (applied, began) = (jiff::Timestamp::now(), Instant::now());
    let names: Vec<String> = (0..POOLS).map(|number| format!("pool{number}")).collect();
    futures::future::try_join_all(names.iter().map(|name| room.apply_pool(name, AGENTS_EACH, Nodes::Fake))).await?;
    let all_ready = ready.reach(AGENTS, LIMIT).await?.duration_since(began).as_secs_f64();
    for name in &names {
        room.settled(name, AGENTS_EACH, LIMIT).await?;
    }
    let settled = began.elapsed().as_secs_f64();
    let writes = audit::writes(&room.namespace, applied);
    let (agents, pods) = (created(&writes, "agents", true), created(&writes, "pods", true));
    anyhow::ensure!(pods.len() == AGENTS, "{} pods were made for {AGENTS} agents", pods.len());
    let waits: Vec<f64> =
        pods.iter().filter_map(|(name, at)| Some((at.duration_since(*agents.get(name)?)).as_secs_f64() * 1000.0)).collect();
    let mut times: Vec<f64> = pods.values().map(|at| at.duration_since(applied).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let at = |rank: usize| times.get(rank - 1).copied().unwrap_or(f64::NAN);
    let own = writes.iter().filter(|write| write.holder().is_some() && write.object_ref.resource != "leases").count();
    let mut rows = vec![
        Row::one("applied -> first pod created", at(1), "s").goal("<= 1 s"),
        Row::one("applied -> 30 pods created", at(30), "s").goal("<= 3 s"),
        Row::one("applied -> 1,000 pods created", at(AGENTS), "s"),
        Row::one("applied -> 1,000 pods Ready", all_ready, "s"),
        Row::one("applied -> all pools Ready", settled, "s"),
        Row::one("pods created a second", rate(&pods, applied), "/s"),
        Row::one("Spillway's API writes a second until all pools Ready", float(own) / settled, "/s"),
        Row::one("everybody's API writes a second until then", float(writes.len()) / settled, "/s"),
        Row::one("Agent created -> pod created, p50", percentile(&waits, 50.0), "ms"),
        Row::one("Agent created -> pod created, p99", percentile(&waits, 99.0), "ms"),
    ];
    rows.extend(bare);
    let method = "10 pools of 100 agents are applied at once on 20 KWOK nodes; times from before the apply to the audit log's time of the \
                  creations, Ready as seen by a watch; everybody is Spillway, the scheduler and KWOK. Beside it, before, a bare client \
                  that creates 1,000 pods of the same spec, 64 at once";
    Ok(Report { title: "spawn", method, rows })
}

/// Successful creations by name; Spillway's only, or everybody's.
fn created(writes: &[Write], resource: &str, ours: bool) -> HashMap<String, jiff::Timestamp> {
    let made = writes.iter().filter(|write| write.is("create", resource) && (!ours || write.holder().is_some()));
    made.map(|write| (write.object_ref.name.clone(), write.stage_timestamp)).collect()
}

/// Creations a second, from `since` to the last.
fn rate(created: &HashMap<String, jiff::Timestamp>, since: jiff::Timestamp) -> f64 {
    let last = created.values().max().map_or(f64::NAN, |last| last.duration_since(since).as_secs_f64());
    float(created.len()) / last
}

/// A minute in which nothing happens.
async fn quiet(room: &Room, leader: &Operator) -> anyhow::Result<Report> {
    let since = jiff::Timestamp::now();
    let (processor, requests) = (leader.processor_seconds()?, leader.requests().await?);
    tokio::time::sleep(QUIET).await;
    let used = leader.processor_seconds()? - processor;
    let now = leader.requests().await?;
    let own: Vec<Write> = audit::writes(&room.namespace, since).into_iter().filter(|write| write.holder().is_some()).collect();
    let (leases, others): (Vec<_>, Vec<_>) = own.into_iter().partition(|write| write.object_ref.resource == "leases");
    others.iter().for_each(|write| println!("  a write in the quiet minute: {} {}", write.verb, write.object_ref.resource));
    anyhow::ensure!(!leases.is_empty(), "the audit log does not show the renewals of the lease, so it would not show other writes");
    let mut rows = vec![
        Row::one("writes in 60 s, lease renewals apart", float(others.len()), "").goal("0"),
        Row::one("lease renewals in 60 s", float(leases.len()), ""),
        Row::one("processor time of the controller in 60 s", used * 1000.0, "ms"),
    ];
    for (request, count) in now {
        let made = count - requests.get(&request).copied().unwrap_or(0.0);
        if made > 0.0 && request != "update leases" {
            rows.push(Row::one(format!("requests in 60 s: {request}"), made, ""));
        }
    }
    let method = "1,000 agents, Ready and left alone for 10 s; then 60 s of the API server's audit log (writes), /proc/PID/stat (processor \
                  time, in steps of 10 ms) and the controller's own count of its requests";
    Ok(Report { title: "quiet", method, rows })
}
