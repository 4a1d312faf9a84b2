//! Calls of models: the time and processor time that the gateway adds to a call, compared with a plain proxy; and the
//! effect of a flood of one namespace on another one ([`flood`]).
//!
//! These parts are real: the gateway and the controller (processes of their own), the API server, the pods' identity
//! (tokens that it bound to pods of registered agents), and a budget of four levels. The pods' sidecars, which would
//! make a connection for each call, and a real provider are missing.

mod added;
mod child;
pub mod flood;
pub mod hostile;
mod load;
pub mod loud;
mod provider;
mod steady;
mod streams;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spillway::api::names::CA_CONFIG_MAP;
use spillway::api::{Agent, AgentPool, Budget, ClusterBudget, WorkItem};
use spillway_wire::{CA_FILE, GATEWAY_TLS_NAME};

use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::cgroup::MemoryGroup;
use crate::nginx::{Forwarding, Nginx, Upstream};
use crate::operator::Operator;
use crate::processes;
use crate::report::{Report, Row, float};
use crate::simulated::Fleet;
use crate::size::Size;
use load::Target;
use provider::{Provider, Served, Streams};

/// Number of agents that call, unless the fleet is smaller. One may make 20 calls a second, and 16 at once.
const AGENTS: usize = 50;
const POOL: &str = "callers";
/// Time limit for steps that take seconds.
const LIMIT: Duration = Duration::from_secs(180);
/// The most tokens that a limit can have. With it, and with this life of an agent, no call is refused.
const TOKENS: i64 = 1_000_000_000_000_000;
const LIFE: i64 = 1_000_000_000_000;
/// Paths of calls at a provider, and at the gateway.
const PATH: &str = "/v1/chat/completions";
const GATEWAY_PATH: &str = "/models/first/v1/chat/completions";
const GATEWAY_PATH_2: &str = "/models/second/v1/chat/completions";
/// Priority of the operators, as `nice(1)` counts. On a cluster the control plane has machines of its own, and takes no
/// processor time from the operators.
const BEFORE_THE_CLUSTER: i32 = -5;
/// Priority of the measuring process. On a cluster the steady namespace's callers, workers and provider are other
/// machines too. They must not wait for the processor while they measure times.
const FIRST: i32 = -10;
/// The token that the gateway shows to the provider, which does not look at it.
const CREDENTIAL: &str = "nobody-checks-it";

/// The ways of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    /// To the provider itself.
    Straight,
    /// Through nginx.
    Nginx,
    /// Through the gateway, which speaks HTTP/1.1 to the provider, as nginx does.
    Gateway,
    /// Through the gateway, which speaks HTTP/2 to the provider, as real providers allow.
    GatewayH2,
}

impl Arm {
    const ALL: [Self; 4] = [Self::Straight, Self::Nginx, Self::Gateway, Self::GatewayH2];

    fn label(self) -> &'static str {
        match self {
            Self::Straight => "provider straight",
            Self::Nginx => "nginx",
            Self::Gateway => "gateway",
            Self::GatewayH2 => "gateway, HTTP/2 to the provider",
        }
    }
}

/// Processor time so far, in seconds, of the proxy of an arm and of the gateway's helpers. Where calls go straight to
/// the provider, it is that of the gateway, which answers its agents' heartbeats meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    proxy: f64,
    controller: f64,
    api_server: f64,
}

impl Used {
    fn since(self, before: Self) -> Self {
        Self {
            proxy: self.proxy - before.proxy,
            controller: self.controller - before.controller,
            api_server: self.api_server - before.api_server,
        }
    }

    /// Adds the processor time of another gateway and another controller at the same API server.
    fn with(self, other: Self) -> Self {
        Self { proxy: self.proxy + other.proxy, controller: self.controller + other.controller, ..self }
    }
}

/// A namespace's agents that call.
struct Callers {
    fleet: Fleet,
    tokens: Vec<Option<String>>,
    bundle: String,
}

/// A gateway, a controller, and a provider.
struct Stage {
    room: BenchNamespace,
    controller: Operator,
    gateway: Operator,
    provider: Provider,
    api_server: u32,
    /// Journal of the gateway. As in its pod it is in memory, if there is a folder in memory.
    journal: PathBuf,
    serves: Serves,
    /// Arguments of the gateway.
    arguments: Vec<String>,
    limits: Option<Limits>,
    /// How often operators were restarted.
    revived: usize,
}

/// Memory that gateway and controller may have.
struct Limits {
    gateway: MemoryGroup,
    controller: MemoryGroup,
}

impl Limits {
    /// In MiB.
    fn new(gateway: u32, controller: u32) -> anyhow::Result<Self> {
        Ok(Self { gateway: MemoryGroup::new("gateway", gateway)?, controller: MemoryGroup::new("controller", controller)? })
    }
}

/// Which namespaces a controller serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    All,
    Own,
}

impl Stage {
    /// `others` are providers besides its own that the gateway may call.
    async fn open(room: BenchNamespace, serves: Serves, streams: Streams, others: &[&Served]) -> anyhow::Result<Self> {
        Self::limited(room, serves, streams, others, None).await
    }

    /// The same, with limits for their memory.
    async fn limited(
        room: BenchNamespace,
        serves: Serves,
        streams: Streams,
        others: &[&Served],
        limits: Option<Limits>,
    ) -> anyhow::Result<Self> {
        let provider = Provider::serve(room.node, streams).await?;
        let entry = |served: &Served, origin: &str| json!({"origin": origin, "allowPrivate": true, "caBundle": served.certificate});
        let all = std::iter::once(&provider.served).chain(others.iter().copied());
        let origins: Vec<Value> = all.flat_map(|served| served.origins().map(|origin| entry(served, &origin))).collect();
        let file = room.folder().join("origins.json");
        std::fs::write(&file, json!(origins).to_string())?;
        let memory = PathBuf::from("/dev/shm");
        let journal = if memory.is_dir() { memory.join(&room.namespace) } else { room.folder().join("journal") };
        std::fs::create_dir_all(&journal)?;
        let arguments = ["--model-origins-file".to_owned(), path(&file), "--journal".to_owned(), path(&journal)].to_vec();
        let controller = Self::controller(&room, serves, "one", limits.as_ref())?;
        let gateway = Self::gateway(&room, "gateway", &arguments, limits.as_ref())?;
        controller.leads(&room).await?;
        gateway.ready().await?;
        let api_server = processes::api_server(&std::env::var("SPILLWAY_AUDIT_LOG")?)?;
        Ok(Self { room, controller, gateway, provider, api_server, journal, serves, arguments, limits, revived: 0 })
    }

    fn controller(room: &BenchNamespace, serves: Serves, name: &str, limits: Option<&Limits>) -> anyhow::Result<Operator> {
        let controller = match serves {
            Serves::All => Operator::everywhere(room, name)?,
            Serves::Own => Operator::start(room, name)?,
        };
        limits.map_or(Ok(()), |limits| limits.controller.add(controller.process()))?;
        Ok(controller)
    }

    fn gateway(room: &BenchNamespace, name: &str, arguments: &[String], limits: Option<&Limits>) -> anyhow::Result<Operator> {
        let gateway = Operator::gateway_with(room, name, arguments)?;
        limits.map_or(Ok(()), |limits| limits.gateway.add(gateway.process()))?;
        Ok(gateway)
    }

    /// Restarts operators that have ended, as a kubelet would, and waits for them; their names.
    async fn restart_ended(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut ended = Vec::new();
        let (room, limits) = (&self.room, self.limits.as_ref());
        if !self.controller.runs() {
            self.revived += 1;
            self.controller = Self::controller(room, self.serves, &format!("one-{}", self.revived), limits)?;
            ended.push("controller");
        }
        if !self.gateway.runs() {
            self.revived += 1;
            self.gateway = Self::gateway(room, &format!("gateway-{}", self.revived), &self.arguments, limits)?;
            ended.push("gateway");
        }
        if !ended.is_empty() {
            self.controller.leads(room).await?;
            self.gateway.ready().await?;
        }
        Ok(ended)
    }

    /// Resets the peak memory of gateway and controller.
    fn forget_peaks(&self) -> anyhow::Result<()> {
        let limits = self.limits.as_ref().context("memory groups")?;
        limits.gateway.forget_peak()?;
        limits.controller.forget_peak()
    }

    /// The peak memory of gateway and controller since the last reset, in MiB.
    fn peaks(&self) -> anyhow::Result<[f64; 2]> {
        let limits = self.limits.as_ref().context("memory groups")?;
        Ok([limits.gateway.peak()?, limits.controller.peak()?])
    }

    /// The budget of four levels: the cluster's and the namespaces' share of it here, [`budget`] and the agent's life below.
    async fn cluster_budget(&self, namespaces: &[&str]) -> anyhow::Result<()> {
        let limits = json!({"limits": [{"name": "hourly", "tokens": TOKENS, "window": "Hour"}]});
        let name = &self.room.namespace;
        let selector = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}]});
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "ClusterBudget", "metadata": {"name": name},
            "spec": {"namespaceSelector": selector, "tokens": limits, "perNamespace": {"tokens": limits}}});
        let api = Api::<ClusterBudget>::all(self.room.client.clone());
        api.patch(name, &PatchParams::apply("bench").force(), &Patch::Apply(object)).await?;
        Ok(())
    }

    /// The port of a plain target, and the name in its certificate.
    fn target(&self, arm: Arm, nginx: Option<&Nginx>, callers: &Callers) -> anyhow::Result<Arc<Target>> {
        let nobody: Vec<Option<String>> = callers.tokens.iter().map(|_| None).collect();
        let plain = |port: u16| Target::new(port, provider::NAME, &self.provider.served.certificate, PATH, &nobody);
        let ours = |path| Target::new(self.room.gateway.port(), GATEWAY_TLS_NAME, &callers.bundle, path, &callers.tokens);
        match arm {
            Arm::Straight => plain(self.provider.served.first.port()),
            Arm::Nginx => plain(nginx.context("nginx runs")?.port),
            Arm::Gateway => ours(GATEWAY_PATH),
            Arm::GatewayH2 => ours(GATEWAY_PATH_2),
        }
    }

    fn used(&self, arm: Arm, nginx: Option<&Nginx>) -> anyhow::Result<Used> {
        let proxy = match arm {
            Arm::Nginx => nginx.context("nginx runs")?.processor_seconds()?,
            Arm::Straight | Arm::Gateway | Arm::GatewayH2 => self.gateway.processor_seconds()?,
        };
        Ok(Used { proxy, controller: self.controller.processor_seconds()?, api_server: processes::processor_seconds(self.api_server)? })
    }

    /// Whether both still run: on a machine that is too busy a controller loses its lease, and ends.
    fn runs(&self) -> anyhow::Result<()> {
        for (who, operator) in [("controller", &self.controller), ("gateway", &self.gateway)] {
            anyhow::ensure!(operator.runs(), "the {who} has ended; see target/bench/logs");
        }
        Ok(())
    }

    /// Removes objects that the next controller for all namespaces would find and reconcile.
    async fn close(self, rooms: &[&BenchNamespace]) -> anyhow::Result<()> {
        let Self { room, controller, gateway, provider, api_server: _, journal, serves: _, arguments: _, limits, revived: _ } = self;
        drop((controller, gateway, provider, limits));
        let _ = std::fs::remove_dir_all(journal);
        match Api::<ClusterBudget>::all(room.client.clone()).delete(&room.namespace, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted?),
        }
        within(LIMIT, "nothing is left", async || {
            let mut left = 0;
            for room in rooms {
                left += remove(room.api::<AgentPool>()).await? + remove(room.api::<Agent>()).await?;
                left += remove(room.api::<WorkItem>()).await? + remove(room.api::<Pod>()).await?;
            }
            anyhow::ensure!(left == 0, "{left} objects are left");
            Ok(())
        })
        .await
    }
}

/// Deletes all objects and their finalizers, because no operator runs that would remove them; their number.
async fn remove<K>(api: Api<K>) -> anyhow::Result<usize>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let all = ListParams::default();
    let names: Vec<String> = api.list_metadata(&all).await?.iter().map(ResourceExt::name_any).collect();
    if names.is_empty() {
        return Ok(0);
    }
    api.delete_collection(&DeleteParams::default().grace_period(0), &all).await?;
    for name in &names {
        let change = json!({"metadata": {"finalizers": null}});
        match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(names.len())
}

impl Callers {
    /// A pool with these fields in addition to its models. It is Ready and registered, and each of its agents has
    /// called once, so their tokens are reviewed and their records know the gateway.
    async fn gather(stage: &Stage, room: &BenchNamespace, provider: &Served, agents: usize, mut spec: Value) -> anyhow::Result<Self> {
        budget(room).await?;
        let mut models = Vec::new();
        for (name, origin) in ["first", "second"].into_iter().zip(provider.origins()) {
            let object: Secret = serde_json::from_value(json!({"metadata": {"name": name}, "type": "spillway.dev/model-credential",
                "stringData": {"origin": origin, "token": CREDENTIAL}}))?;
            room.api::<Secret>().create(&PostParams::default(), &object).await?;
            models.push(
                json!({"name": name, "dialect": "OpenAIChat", "origin": origin, "credentialsRef": {"name": name}, "allow": ["bench-*"]}),
            );
        }
        spec["models"] = json!(models);
        spec["bulkhead"] = json!({"lifetimeTokens": LIFE});
        let fleet = Fleet::start(room);
        room.apply(POOL, Nodes::Fake, &["/bin/demo-agent"], spec).await?;
        room.settled(POOL, agents, LIMIT).await?;
        fleet.registered(agents, LIMIT).await?;
        let read = |pod: String| Ok(Some(std::fs::read_to_string(room.folder().join(format!("{pod}.token")))?));
        let tokens: Vec<Option<String>> = fleet.names().into_iter().map(read).collect::<anyhow::Result<_>>()?;
        anyhow::ensure!(tokens.len() == agents, "{} of {agents} agents are registered", tokens.len());
        let map = room.api::<ConfigMap>().get(CA_CONFIG_MAP).await?;
        let bundle = map.data.and_then(|mut data| data.remove(CA_FILE)).context("certificates in the ConfigMap")?;
        let callers = Self { fleet, tokens, bundle };
        let body = provider::body(provider::WHOLE, 1024);
        for arm in [Arm::Gateway, Arm::GatewayH2] {
            let target = stage.target(arm, None, &callers)?;
            for number in 0..agents {
                // The first calls wait for records, which are written twenty a second.
                within(LIMIT, "an agent's call is answered", async || target.call(number, &body, false).await).await?;
            }
        }
        Ok(callers)
    }
}

/// A namespace's Budget, with limits that the benchmark never reaches.
async fn budget(room: &BenchNamespace) -> anyhow::Result<()> {
    let limits = json!([{"name": "hourly", "tokens": TOKENS, "window": "Hour"}]);
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        "spec": {"tokens": {"limits": limits}, "requests": {"maxInFlight": 100_000, "perAgentPerSecond": 10_000}}});
    room.api::<Budget>().patch("default", &PatchParams::apply("bench").force(), &Patch::Apply(object)).await?;
    Ok(())
}

fn path(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The size of the gateway's measurements.
#[derive(Clone, Copy, Debug)]
struct Scale {
    agents: usize,
    streams: usize,
    events: usize,
    pace: Duration,
}

impl Scale {
    fn of(size: Size) -> Self {
        let agents = size.agents.min(AGENTS);
        // Each agent may have 16 calls at once.
        let (streams, events) = if size.small() { ((agents * 4).min(40), 200) } else { (200, 2000) };
        Self { agents, streams, events, pace: Duration::from_millis(20) }
    }
}

/// Measures what the gateway adds.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let scale = Scale::of(size);
    let room = BenchNamespace::open("gateway").await?;
    let stage = Stage::open(room.clone(), Serves::All, Streams { events: scale.events, pace: scale.pace }, &[]).await?;
    let taken = compare(&stage, size, scale).await;
    let closed = stage.close(&[&room]).await;
    let reports = taken?;
    closed.map(|()| reports)
}

async fn compare(stage: &Stage, size: Size, scale: Scale) -> anyhow::Result<Vec<Report>> {
    stage.cluster_budget(&[&stage.room.namespace]).await?;
    let Provider { served, key, .. } = &stage.provider;
    let upstream = Upstream { address: served.first, name: provider::NAME, certificate: &served.certificate, key };
    let nginx = Nginx::start(stage.room.folder(), &upstream, Forwarding::Calls).await?;
    let spec = json!({"type": "free", "scaling": {"min": scale.agents, "max": 10000}});
    let callers = Callers::gather(stage, &stage.room, &stage.provider.served, scale.agents, spec).await?;
    let mut targets = BTreeMap::new();
    for arm in Arm::ALL {
        targets.insert(arm, stage.target(arm, Some(&nginx), &callers)?);
    }
    // Each caller calls once, as it did at the gateway.
    let body = provider::body(provider::WHOLE, 1024);
    for arm in [Arm::Straight, Arm::Nginx] {
        let target = targets.get(&arm).context("a target")?;
        for number in 0..scale.agents {
            target.call(number, &body, false).await?;
        }
    }
    let bench = Bench { stage, nginx, targets, size, scale };
    // First, while no proxy has grown.
    let mut reports = vec![bench.streams().await?];
    for kind in added::KINDS {
        stage.runs()?;
        reports.push(bench.measure_added_time(kind).await?);
    }
    stage.runs()?;
    Ok(reports)
}

/// The targets that are compared.
struct Bench<'a> {
    stage: &'a Stage,
    nginx: Nginx,
    targets: BTreeMap<Arm, Arc<Target>>,
    size: Size,
    scale: Scale,
}

impl Bench<'_> {
    fn target(&self, arm: Arm) -> anyhow::Result<&Arc<Target>> {
        self.targets.get(&arm).context("a target")
    }

    fn used(&self, arm: Arm) -> anyhow::Result<Used> {
        self.stage.used(arm, Some(&self.nginx))
    }

    /// The method that all parts share.
    fn method(&self) -> String {
        format!(
            "the provider (a canned answer: it parses nothing and counts nothing) and the callers are the measuring program; {} agents \
             with tokens of pods on KWOK nodes, four levels of budget (agent, Budget, namespace, ClusterBudget), the gateway's journal in \
             memory; nginx is {}, a plain proxy with as many workers as cores; TLS 1.3 on both legs of both, ECDSA P-256, HTTP/1.1 from the \
             callers and, except where stated, to the provider; there are no breakers",
            self.scale.agents, self.nginx.version,
        )
    }
}

/// `BENCH_RATE`: calls a second, instead of these.
fn rate_or(rate: f64) -> anyhow::Result<f64> {
    let Ok(text) = std::env::var("BENCH_RATE") else { return Ok(rate) };
    let rate: f64 = text.parse().map_err(|_| anyhow::anyhow!("BENCH_RATE must be a number"))?;
    anyhow::ensure!(rate.is_finite() && rate >= 1.0, "BENCH_RATE must be 1 or more");
    Ok(rate)
}

/// Failed calls, by their error.
pub fn failures(whose: &str, failed: &[String]) -> Vec<Row> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for why in failed {
        *counts.entry(why).or_default() += 1;
    }
    counts.into_iter().map(|(why, count)| Row::one(format!("{whose}: failed: {why}"), float(count), "")).collect()
}

/// Seconds since then.
pub fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}
