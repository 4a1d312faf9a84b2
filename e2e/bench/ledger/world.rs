//! The surroundings of the ledger in memory: the objects that users wrote, and an API server in memory that takes every
//! write at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use spillway::api::{Agent, Budget, ClusterBudget};
use spillway::governor::budget::Meter;
use spillway::governor::budget::facts::Project;
use spillway::governor::budget::object::Object;
use spillway::policy::budget::share::Lifetime;
use spillway::policy::budget::{Key, Route};

/// The most tokens that a limit can have. With it, and with this life of an agent, no call is refused.
pub const TOKENS: i64 = 1_000_000_000_000_000;
const LIFE: Lifetime = Lifetime { tokens: 1_000_000_000_000, top_up: 0, max: 0, taken: 0 };
pub const NAMESPACE: &str = "team";
const TYPE: &str = "worker";
/// Pause between two writes, as in the governor's writer.
const BETWEEN: Duration = Duration::from_millis(50);
/// Pause between two checks for something to write.
const LOOK: Duration = Duration::from_millis(1);

/// The limits that a call passes.
pub struct BenchCluster {
    /// Number of limits.
    pub depth: usize,
    /// The ClusterBudget above all; none if there is only one limit.
    pub clusters: Vec<Arc<ClusterBudget>>,
    /// Budgets, each the parent of the one before it.
    pub budgets: Vec<Arc<Budget>>,
    /// The namespace.
    pub projects: BTreeMap<String, Project>,
}

/// A caller with a session of its own, as if it were the only agent of one gateway.
pub struct Caller {
    /// The session.
    pub session: String,
    /// None if there is only one limit.
    pub agent: Option<Agent>,
}

/// A Budget with an hourly limit that the benchmark never reaches.
pub fn budget(namespace: &str, name: &str, parent: Option<&str>) -> Value {
    let limits = json!([{"name": "hourly", "tokens": TOKENS, "window": "Hour"}]);
    let parent = parent.map(|name| json!({"name": name}));
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": name, "namespace": namespace},
        "spec": {"parentRef": parent, "tokens": {"limits": limits}, "requests": {"maxInFlight": 100_000, "perAgentPerSecond": 10_000}}})
}

fn stored(mut object: Value, uid: &str) -> Value {
    let known = json!({"uid": uid, "resourceVersion": "1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"});
    merge(&mut object["metadata"], &known);
    object
}

impl BenchCluster {
    /// Depth 1 is a Budget. From depth 4 on: the agent's life, Budgets above one another, the namespace, the cluster.
    pub fn new(depth: usize) -> anyhow::Result<Self> {
        let above = depth.saturating_sub(3).max(1);
        let name = |number: usize| format!("b{number}");
        let budgets = (0..above).map(|number| {
            let parent = (number + 1 < above).then(|| name(number + 1));
            let object = budget(NAMESPACE, &name(number), parent.as_deref());
            Ok(Arc::new(serde_json::from_value(stored(object, &format!("budget-{number}")))?))
        });
        let budgets = budgets.collect::<anyhow::Result<_>>().context("a Budget")?;
        let limits = json!({"limits": [{"name": "hourly", "tokens": TOKENS, "window": "Hour"}]});
        let cluster = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "ClusterBudget", "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "tokens": limits, "perNamespace": {"tokens": limits}}});
        let cluster = || anyhow::Ok(Arc::new(serde_json::from_value(stored(cluster, "cluster"))?));
        let clusters = if depth == 1 { Vec::new() } else { vec![cluster().context("a ClusterBudget")?] };
        let projects = BTreeMap::from([(NAMESPACE.to_owned(), Project::default())]);
        Ok(Self { depth, clusters, budgets, projects })
    }

    /// Makes `count` callers.
    pub fn callers(&self, count: usize) -> anyhow::Result<Vec<Caller>> {
        let caller = |number: usize| {
            let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
                "metadata": {"name": format!("agent-{number}"), "namespace": NAMESPACE}, "spec": {"poolRef": {"name": "pool"}}});
            let agent = serde_json::from_value(stored(object, &format!("agent-{number}"))).context("an Agent")?;
            Ok(Caller { session: format!("gateway-{number}"), agent: (self.depth > 1).then_some(agent) })
        };
        (0..count).map(caller).collect()
    }

    /// A meter that has read all objects, and is open.
    pub fn meter(&self) -> Meter {
        let meter = Meter::new(1);
        let clusters = self.clusters.iter().map(|cluster| (Key::Cluster("all".to_owned()), Object::Cluster(cluster.clone())));
        let budgets = self.budgets.iter().map(|budget| {
            let name = budget.metadata.name.clone().unwrap_or_default();
            (Key::budget(NAMESPACE, &name), Object::Budget(budget.clone()))
        });
        meter.read_all(clusters.chain(budgets).collect());
        meter.set_tree(&self.clusters, &self.budgets, &self.projects);
        meter.open();
        meter
    }
}

impl Caller {
    /// The route of its calls, as the governor makes it for each call.
    pub fn route(&self, meter: &Meter) -> anyhow::Result<Route> {
        let above = meter.above(NAMESPACE, Some("b0"), true).context("the namespace is known")?;
        let leafs = match &self.agent {
            Some(agent) => {
                drop(meter.defaults(NAMESPACE));
                meter.place_agent(&Object::from(agent), LIFE);
                vec![Key::Agent(self.uid().to_owned())]
            }
            None => Vec::new(),
        };
        Ok(Route::new(leafs, above.top, TYPE))
    }

    /// The uid of its Agent.
    pub fn uid(&self) -> &str {
        self.agent.as_ref().and_then(|agent| agent.metadata.uid.as_deref()).unwrap_or_default()
    }
}

/// Takes the writes of `meter`, at most twenty a second, until `over`; their number.
pub fn take_writes(meter: &Meter, over: &AtomicBool) -> anyhow::Result<u64> {
    let mut writes = 0;
    while !over.load(Ordering::Relaxed) {
        let Some(job) = meter.next() else {
            std::thread::sleep(LOOK);
            continue;
        };
        match meter.prepare(&job) {
            Some((object, patch)) => drop(meter.stored(&job, written(&object, &patch)?)),
            None => meter.skipped(&job),
        }
        writes += 1;
        std::thread::sleep(BETWEEN);
    }
    Ok(writes)
}

/// An object after a write.
fn written(object: &Object, patch: &Value) -> anyhow::Result<Object> {
    let version = object.version().parse::<u64>().unwrap_or_default() + 1;
    let after = |before: Value| {
        let mut after = before;
        merge(&mut after, patch);
        after["metadata"]["resourceVersion"] = version.to_string().into();
        after
    };
    Ok(match object {
        Object::Budget(budget) => Object::Budget(Arc::new(serde_json::from_value(after(serde_json::to_value(budget.as_ref())?))?)),
        Object::Cluster(cluster) => Object::Cluster(Arc::new(serde_json::from_value(after(serde_json::to_value(cluster.as_ref())?))?)),
        Object::Agent(agent) => {
            let mut next = agent.clone();
            let status = after(json!({"metadata": {}, "status": {"tokens": agent.tokens}}));
            (next.version, next.tokens) = (version.to_string(), serde_json::from_value(status["status"]["tokens"].clone())?);
            Object::Agent(next)
        }
        Object::Item(_) => anyhow::bail!("there are no items here"),
    })
}

/// Applies a JSON merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in fields {
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
