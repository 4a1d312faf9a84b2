//! Calls of `/bin/true` by agents, through their sidecars, the gateway and the bridge of a Toolset, beside the same calls of a bridge on
//! this machine.
//!
//! These parts are real: the code of the sidecar's port for tools, the gateway, the controller (which each call asks whether the agent
//! may act), the bridge in its pod, and the pods' identity. The pods of the agents are missing: the ports run on the node.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::Toolset;

use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::bridge::{self, Bridge, CALLS, CLIENTS, call, connect, measure};
use crate::report::Report;
use crate::sidecar_port::SidecarPort;
use crate::simulated::Fleet;
use crate::size::Size;

/// Time limit for steps that take seconds.
const SETUP_TIMEOUT: Duration = Duration::from_secs(180);
const POOL: &str = "callers";
/// The gateway takes 20 calls a second of an agent, after 60 at once. With so many agents in turn it refuses none.
const AGENTS: usize = 16;
const TOOLSET: &str = "bench";
/// Where agents call the Toolset.
const PATH: &str = "/mcp/bench";
/// `/bin/true` of the image is busybox, which is an interpreter too.
const DEFINITION: &str = "---\nname: nothing\ndescription: d\ncommand: /bin/true\ninterpreter: true\n\
    limits: {concurrency: 64, perAgentPerMinute: 6000}\n---\n";

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let calls = size.runs(CALLS);
    let room = BenchNamespace::open("tools").await?;
    let _operators = room.start_operators().await?;
    apply_toolset(&room).await?;
    let spec = json!({"type": "free", "scaling": {"min": AGENTS, "max": AGENTS}, "toolsets": [{"name": TOOLSET}]});
    room.apply(POOL, Nodes::Fake, &["/bin/demo-agent"], spec).await?;
    let fleet = Fleet::start(&room);
    room.settled(POOL, AGENTS, SETUP_TIMEOUT).await?;
    fleet.registered(AGENTS, SETUP_TIMEOUT).await?;
    wait_until_served(&room).await?;
    let mut ports = Vec::new();
    for pod in fleet.names() {
        ports.push(SidecarPort::tools(&room, &pod).await?);
    }
    anyhow::ensure!(ports.len() == AGENTS, "{} of {AGENTS} agents are registered", ports.len());
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let callers: Vec<Vec<_>> =
            (0..clients).map(|first| ports.iter().skip(first).step_by(clients).map(|port| port.address).collect()).collect();
        let (times, took) = measure(callers, calls, async |addresses| {
            addresses.rotate_left(1);
            // A sidecar takes one request from a connection.
            call(&mut connect(addresses[0]).await?, PATH).await
        })
        .await?;
        rows.extend(bridge::measured(&format!("{clients} at once, through the gateway"), &times, took));
        let local = Bridge::start().await?;
        let (times, took) = measure(vec![(); clients], calls, async |()| call(&mut local.connect().await?, "/mcp").await).await?;
        rows.extend(bridge::measured(&format!("{clients} at once, of a bridge on this machine"), &times, took));
    }
    let method = format!(
        "{calls} calls of a definition of /bin/true by {AGENTS} agents in turn, so many at once, each over a connection of its own to the \
         sidecar's port (HTTP/1.1, JSON). The agents' pods are on KWOK nodes, and their ports in the measuring program; the bridge is a pod \
         on the real node. For each call the gateway asks the controller. The other bridge is a process on this machine, which is called \
         without a gateway over a connection for each call too"
    );
    Ok(vec![Report::new("a call of /bin/true by an agent, through the gateway", method, rows)])
}

async fn apply_toolset(room: &BenchNamespace) -> anyhow::Result<()> {
    let params = PatchParams::apply("bench").force();
    let map: Value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TOOLSET}, "immutable": true,
        "data": {"nothing.md": DEFINITION}});
    room.api::<ConfigMap>().patch(TOOLSET, &params, &Patch::Apply(map)).await?;
    let toolset: Value = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "metadata": {"name": TOOLSET}, "spec": {
        "image": "localhost/spillway/demo-agent:dev", "definitions": [{"configMapRef": {"name": TOOLSET}}],
        "allowedCommands": ["/bin/*"]}});
    room.api::<Toolset>().patch(TOOLSET, &params, &Patch::Apply(toolset)).await?;
    Ok(())
}

async fn wait_until_served(room: &BenchNamespace) -> anyhow::Result<()> {
    within(SETUP_TIMEOUT, "the Toolset is Ready", async || {
        let toolset = room.api::<Toolset>().get(TOOLSET).await?;
        let conditions = toolset.status.map(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|one| one.type_ == "Ready").context("no condition Ready")?;
        anyhow::ensure!(ready.status == "True", "{}: {}", ready.reason, ready.message);
        Ok(())
    })
    .await
}
