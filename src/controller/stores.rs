//! What is watched, how it is pruned, and which event makes whom look again.

mod limits;
mod nodes;

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, Namespace, Node, Pod, PodSpec, ResourceQuota};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::nodes::watch_nodes;
use super::agent::Disappearances;
use super::conditions::find;
use super::due::{self, Due};
use super::fleet::Fleet;
use super::places;
use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPool, Breaker, Budget, ClusterBudget, Grant, Toolset, WorkQueue, names};
use crate::cluster::ObjectKey;
use crate::cluster::watch::{Change, Named, Tolerant, config, start};
use crate::telemetry::Metrics;

pub use self::nodes::NodeJudgements;

/// Where the kubelets keep their leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// An AgentPool as stored, which may not fit its type.
pub type PoolObject = Tolerant<AgentPool>;
/// An Agent as stored, which may not fit its type.
pub type AgentObject = Tolerant<Agent>;
/// A Budget as stored, which may not fit its type.
pub type BudgetObject = Tolerant<Budget>;
/// A ClusterBudget as stored, which may not fit its type.
pub type ClusterBudgetObject = Tolerant<ClusterBudget>;
/// A Grant as stored, which may not fit its type.
pub type GrantObject = Tolerant<Grant>;
/// A Breaker as stored, which may not fit its type.
pub type BreakerObject = Tolerant<Breaker>;

/// The caches. Each is filled before anything is decided, and is never taken for complete after that: what is
/// irreversible is looked at live.
#[derive(Clone)]
pub struct Stores {
    /// Pools.
    pub pools: Store<PoolObject>,
    /// Agents.
    pub agents: Store<AgentObject>,
    /// Pods of agents.
    pub pods: Store<Pod>,
    /// Nodes.
    pub nodes: Store<Node>,
    /// The leases of their kubelets.
    pub node_leases: Store<Lease>,
    /// What those tell of nodes.
    pub node_judgements: NodeJudgements,
    /// Budgets.
    pub budgets: Store<BudgetObject>,
    /// ClusterBudgets.
    pub cluster_budgets: Store<ClusterBudgetObject>,
    /// Grants.
    pub grants: Store<GrantObject>,
    /// Namespaces, with their labels only: which ClusterBudgets bind them.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Told when any of those four changed.
    pub limits_changed: Arc<Notify>,
    /// Breakers.
    pub breakers: Store<BreakerObject>,
    /// Told when a Breaker or a pool changed.
    pub breakers_changed: Arc<Notify>,
    /// ResourceQuotas of ours.
    pub quotas: Store<ResourceQuota>,
    /// LimitRanges of ours.
    pub ranges: Store<LimitRange>,
    /// Queues, by name only.
    pub queues: Store<Named<WorkQueue>>,
    /// Toolsets, by name only.
    pub toolsets: Store<Named<Toolset>>,
    /// NetworkPolicies of ours.
    pub policies: Store<NetworkPolicy>,
    /// ConfigMaps with the certificates that pods trust.
    pub bundles: Store<ConfigMap>,
}

/// Objects to look at again.
pub struct Triggers {
    /// Pools.
    pub pools: BoxStream<'static, ObjectRef<PoolObject>>,
    /// Agents.
    pub agents: BoxStream<'static, ObjectRef<AgentObject>>,
    /// Budgets.
    pub budgets: BoxStream<'static, ObjectRef<BudgetObject>>,
    /// Adds to them.
    pub wake: Wake,
}

impl Stores {
    /// The pool `name`, if its stored object fits its type.
    pub fn pool(&self, namespace: &str, name: &str) -> Option<Arc<PoolObject>> {
        self.pools.get(&ObjectRef::new(name).within(namespace))
    }

    /// The Agents that name this pool, whatever they carry as owner.
    pub fn agents_of(&self, namespace: &str, pool: &str) -> Vec<Arc<AgentObject>> {
        self.agents.state_filter(|agent| {
            agent.meta().namespace.as_deref() == Some(namespace) && agent.0.as_ref().is_ok_and(|agent| agent.spec.pool_ref.name == pool)
        })
    }

    /// The pod of the Agent `key`: it has the same name.
    pub fn pod(&self, key: &ObjectKey) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The Agent `key`.
    pub fn agent(&self, key: &ObjectKey) -> Option<Arc<AgentObject>> {
        self.agents.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The Budget `name`, whether or not it fits its type.
    pub fn budget(&self, namespace: &str, name: &str) -> Option<Arc<BudgetObject>> {
        self.budgets.get(&ObjectRef::new(name).within(namespace))
    }

    /// The Budgets of a namespace.
    pub fn budgets_of(&self, namespace: &str) -> Vec<Arc<BudgetObject>> {
        self.budgets.state_filter(|budget| budget.meta().namespace.as_deref() == Some(namespace))
    }

    /// The Breakers of a namespace.
    pub fn breakers_of(&self, namespace: &str) -> Vec<Arc<BreakerObject>> {
        self.breakers.state_filter(|breaker| breaker.meta().namespace.as_deref() == Some(namespace))
    }

    /// The NetworkPolicy `key`, if it is of ours.
    pub fn policy(&self, key: &ObjectKey) -> Option<Arc<NetworkPolicy>> {
        self.policies.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The ConfigMap `key`, if it holds certificates of ours.
    pub fn bundle(&self, key: &ObjectKey) -> Option<Arc<ConfigMap>> {
        self.bundles.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The node `name`.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Waits until every store is filled once, telling which are not.
    pub async fn filled(&self, tell: impl Fn(Vec<String>)) {
        let mut missing = vec![
            "agentpools",
            "agents",
            "pods",
            "nodes",
            "leases",
            "budgets",
            "clusterbudgets",
            "grants",
            "breakers",
            "namespaces",
            "resourcequotas",
            "limitranges",
            "workqueues",
            "toolsets",
            "networkpolicies",
            "configmaps",
        ];
        macro_rules! wait {
            ($($name:literal $store:ident),*) => {$(
                tell(missing.iter().map(|name| (*name).to_owned()).collect());
                // An error means that the watch's task ended, which ends the process elsewhere.
                if self.$store.wait_until_ready().await.is_err() { std::future::pending::<()>().await }
                missing.retain(|name| *name != $name);
            )*};
        }
        wait!("agentpools" pools, "agents" agents, "pods" pods, "nodes" nodes, "leases" node_leases, "budgets" budgets,
            "clusterbudgets" cluster_budgets, "grants" grants, "breakers" breakers, "namespaces" namespaces, "resourcequotas" quotas,
            "limitranges" ranges, "workqueues" queues, "toolsets" toolsets, "networkpolicies" policies, "configmaps" bundles);
        tell(Vec::new());
    }
}

/// Starts every watch on `tasks`. With `namespace`, only that one is served.
pub fn watch_all(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: Option<&str>,
    disappearances: &Disappearances,
    fleet: &Fleet,
    metrics: &Metrics,
) -> (Stores, Triggers) {
    let (pool_trigger, pools_again) = due::queue();
    let (agent_trigger, agents_again) = due::queue();
    let (budget_trigger, budgets_again) = due::queue();
    let wake = Wake { pools: pool_trigger, agents: agent_trigger, budgets: budget_trigger };
    let agents = watch_agents(tasks, scoped(client, namespace), wake.clone(), fleet.clone());
    let breakers_changed = Arc::new(Notify::new());
    let pools = watch_pools(tasks, scoped(client, namespace), wake.clone(), agents.clone(), (breakers_changed.clone(), fleet.clone()));
    let breakers = limits::watch_breakers(tasks, scoped(client, namespace), breakers_changed.clone());
    let pods = watch_pods(tasks, scoped(client, namespace), wake.clone(), agents.clone(), disappearances.clone());
    let node_judgements = NodeJudgements::default();
    let of_nodes = (Api::all(client.clone()), Api::namespaced(client.clone(), NODE_LEASES));
    let (nodes, node_leases) = watch_nodes(tasks, of_nodes, &node_judgements, wake.clone(), pods.clone(), metrics.clone());
    let limits_changed = Arc::new(Notify::new());
    let budgets = limits::watch_budgets(tasks, scoped(client, namespace), &wake, &pools, &agents, limits_changed.clone());
    let cluster_budgets = limits::watch_cluster_budgets(
        tasks,
        namespace.is_none().then(|| Api::all(client.clone())),
        &wake,
        &pools,
        &agents,
        limits_changed.clone(),
    );
    let grants = limits::watch_grants(tasks, scoped(client, namespace), limits_changed.clone());
    let namespaces = limits::watch_namespaces(tasks, Api::all(client.clone()), &wake, &pools, &agents, limits_changed.clone());
    let queues = references::<WorkQueue>(tasks, client, namespace, &wake, &pools);
    let toolsets = references::<Toolset>(tasks, client, namespace, &wake, &pools);
    let ours = format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY);
    let named = |name: &str| config().fields(&format!("metadata.name={name}"));
    let policies = watch_walls::<NetworkPolicy>(tasks, scoped(client, namespace), named(names::WALL), &wake, &pools, &agents);
    let labelled = || config().labels(&ours);
    let quotas = limits::watch_compute::<ResourceQuota>(tasks, scoped(client, namespace), labelled(), &wake, &agents);
    let ranges = limits::watch_compute::<LimitRange>(tasks, scoped(client, namespace), labelled(), &wake, &agents);
    let bundles = watch_walls::<ConfigMap>(tasks, scoped(client, namespace), named(names::CA_CONFIG_MAP), &wake, &pools, &agents);
    let again = Triggers { pools: stream(pools_again), agents: stream(agents_again), budgets: stream(budgets_again), wake };
    let stores = Stores {
        pools,
        agents,
        pods,
        nodes,
        node_leases,
        node_judgements,
        budgets,
        cluster_budgets,
        grants,
        namespaces,
        limits_changed,
        breakers,
        breakers_changed,
        quotas,
        ranges,
        queues,
        toolsets,
        policies,
        bundles,
    };
    (stores, again)
}

fn watch_agents(tasks: &mut JoinSet<()>, api: Api<AgentObject>, wake: Wake, fleet: Fleet) -> Store<AgentObject> {
    // Its own store, which its tap looks into, is there only after it has started.
    let known = Arc::new(std::sync::OnceLock::<Store<AgentObject>>::new());
    let look = known.clone();
    let changed = move |agent: &AgentObject, gone: bool| {
        wake.agent(&ObjectKey::of(agent));
        if let Ok(agent) = &agent.0 {
            wake.pool(agent.metadata.namespace.as_deref().unwrap_or_default(), &agent.spec.pool_ref.name);
            if let Some(agents) = look.get() {
                wake.relatives(agents, agent, gone);
                if gone || agent.status.as_ref().and_then(|status| status.phase).is_some_and(AgentPhase::ended) {
                    wake.short_agents(agents);
                }
            }
        }
    };
    let store = start(
        tasks,
        watcher(api, config()),
        |_| (),
        move |change| match change {
            Change::Present(agent) => {
                fleet.agent(agent);
                changed(agent, false);
            }
            Change::Deleted(agent) => {
                fleet.agent_gone(agent);
                changed(agent, true);
            }
            Change::Listed(agents) => {
                let agents = agents.state();
                fleet.agents(&agents);
                agents.iter().for_each(|agent| changed(agent, false));
            }
        },
    );
    let _ = known.set(store.clone()); // once
    store
}

fn watch_pools(
    tasks: &mut JoinSet<()>,
    api: Api<PoolObject>,
    wake: Wake,
    agents: Store<AgentObject>,
    (told, fleet): (Arc<Notify>, Fleet),
) -> Store<PoolObject> {
    // Which pools there are says which Breaker guards what; their status says nothing of it.
    let mut generations = limits::Generations::default();
    start(
        tasks,
        watcher(api, config()),
        |_| (),
        move |change| match change {
            Change::Present(pool) => {
                fleet.pool(pool);
                let key = ObjectKey::of(pool);
                wake.pool(&key.namespace, &key.name);
                let changed = generations.changed(pool);
                if changed {
                    told.notify_one();
                }
                // What keeps an Agent from getting its pod, or its owner, may be mended by this change; one outside the cluster may
                // have to leave when the spec is another one.
                let waits = |agent: &Agent| {
                    let outside = agent.spec.external.is_some();
                    (outside && changed) || (!outside && without_pod(agent)) || agent.metadata.owner_references.is_none()
                };
                wake.agents_where(&agents, |agent| {
                    agent.spec.pool_ref.name == key.name && in_namespace(agent, &key.namespace) && waits(agent)
                });
            }
            Change::Deleted(pool) => {
                fleet.pool_gone(pool);
                let key = ObjectKey::of(pool);
                wake.pool(&key.namespace, &key.name);
                wake.agents_where(&agents, |agent| agent.spec.pool_ref.name == key.name && in_namespace(agent, &key.namespace));
                generations.forget(pool);
                told.notify_one();
                // It may have been the last of its namespace.
                wake.budget(&key.namespace, names::DEFAULT);
                wake.short_agents(&agents);
            }
            Change::Listed(pools) => {
                let pools = pools.state();
                fleet.pools(&pools);
                pools.iter().map(|pool| ObjectKey::of(pool.as_ref())).for_each(|key| wake.pool(&key.namespace, &key.name));
            }
        },
    )
}

fn watch_pods(
    tasks: &mut JoinSet<()>,
    api: Api<Pod>,
    wake: Wake,
    agents: Store<AgentObject>,
    disappearances: Disappearances,
) -> Store<Pod> {
    let ours = config().labels(names::AGENT_LABEL);
    start(tasks, watcher(api, ours), prune_pod, move |change| match change {
        Change::Present(pod) => {
            wake.agent(&ObjectKey::of(pod));
            if places::over(pod) {
                wake.short_agents(&agents);
            }
        }
        Change::Deleted(pod) => {
            disappearances.saw_deletion(pod);
            wake.agent(&ObjectKey::of(pod));
            wake.short_agents(&agents);
            // Room in the namespace's quota: whoever waits for a pod may get one.
            let namespace = pod.namespace().unwrap_or_default();
            wake.agents_where(&agents, |agent| in_namespace(agent, &namespace) && without_pod(agent));
        }
        Change::Listed(_) => wake.agents_where(&agents, |_| true),
    })
}

/// Watches a kind that pools name, by metadata only: all that matters is whether an object exists.
fn references<K>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: Option<&str>,
    wake: &Wake,
    pools: &Store<PoolObject>,
) -> Store<Named<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (wake, pools) = (wake.clone(), pools.clone());
    let api = scoped::<Named<K>>(client, namespace);
    start(tasks, watcher(api, config()), keep_name, move |change| match change {
        Change::Present(object) | Change::Deleted(object) => wake.pools_in(&pools, &object.namespace().unwrap_or_default()),
        Change::Listed(_) => {}
    })
}

/// Of an object that only has to exist, its name is read.
fn keep_name(object: &mut impl ResourceExt) {
    let meta = object.meta_mut();
    (meta.annotations, meta.labels, meta.owner_references, meta.finalizers) = (None, None, None, None);
}

/// Annotations that are read of what must stand before a pod is made.
const OURS: [&str; 2] = [names::DEFAULT_MADE_ANNOTATION, names::DEFAULT_BREAKER_MADE_ANNOTATION];

/// Watches what must stand before a pod is made: its pools repair it, and its agents wait for it.
fn watch_walls<K>(
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    wake: &Wake,
    pools: &Store<PoolObject>,
    agents: &Store<AgentObject>,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let (wake, pools, agents) = (wake.clone(), pools.clone(), agents.clone());
    // Of annotations only our own are read.
    let drop_annotations = |object: &mut K| object.annotations_mut().retain(|name, _| OURS.contains(&name.as_str()));
    start(tasks, watcher(api, config), drop_annotations, move |change| match change {
        Change::Present(object) | Change::Deleted(object) => {
            let namespace = object.namespace().unwrap_or_default();
            wake.pools_in(&pools, &namespace);
            wake.agents_where(&agents, |agent| in_namespace(agent, &namespace) && without_pod(agent));
        }
        Change::Listed(_) => {
            wake.all_pools(&pools);
            wake.waiting_agents(&agents);
        }
    })
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

fn stream<T: 'static>(queue: impl Stream<Item = T> + Send + 'static) -> BoxStream<'static, T> {
    queue.boxed()
}

fn in_namespace(agent: &Agent, namespace: &str) -> bool {
    agent.metadata.namespace.as_deref() == Some(namespace)
}

/// It is without a pod, for one of these reasons.
fn waits_for(agent: &Agent, reasons: &[&str]) -> bool {
    let ready = agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY));
    without_pod(agent) && ready.is_some_and(|ready| reasons.contains(&ready.reason.as_str()))
}

/// It has no pod, and is to have one.
fn without_pod(agent: &Agent) -> bool {
    agent.spec.external.is_none() && agent.status.as_ref().is_none_or(|status| status.pod_ref.is_none())
}

/// Who is to be woken. Sending never blocks.
#[derive(Clone)]
pub struct Wake {
    pools: Due<ObjectRef<PoolObject>>,
    agents: Due<ObjectRef<AgentObject>>,
    budgets: Due<ObjectRef<BudgetObject>>,
}

impl Wake {
    fn budget(&self, namespace: &str, name: &str) {
        self.budgets.send(ObjectRef::new(name).within(namespace));
    }

    fn budgets_where(&self, budgets: &Store<BudgetObject>, wanted: impl Fn(&BudgetObject) -> bool) {
        for budget in budgets.state_filter(wanted) {
            self.budget(&budget.namespace().unwrap_or_default(), &budget.name_any());
        }
    }

    /// Look at the Budget again that an object is of.
    fn owner(&self, object: &impl ResourceExt) {
        let owners = object.owner_references().iter().filter(|owner| owner.kind == Budget::kind(&()));
        owners.for_each(|owner| self.budget(&object.namespace().unwrap_or_default(), &owner.name));
    }

    /// Look at every Agent again that budgets had no room for: somewhere there may be some.
    fn short_agents(&self, agents: &Store<AgentObject>) {
        self.agents_where(agents, |agent| waits_for(agent, &[reasons::BUDGET_EXHAUSTED, reasons::PROJECT_LIMIT]));
    }

    /// Look at this pool again.
    pub fn pool(&self, namespace: &str, name: &str) {
        self.pools.send(ObjectRef::new(name).within(namespace));
    }

    /// Look at this Agent again.
    pub fn agent(&self, key: &ObjectKey) {
        self.agents.send(ObjectRef::new(&key.name).within(&key.namespace));
    }

    /// Look at every pool again.
    pub fn all_pools(&self, pools: &Store<PoolObject>) {
        pools.state().iter().map(|pool| ObjectKey::of(pool.as_ref())).for_each(|key| self.pool(&key.namespace, &key.name));
    }

    /// Look at every Agent that waits for its pod again.
    pub fn waiting_agents(&self, agents: &Store<AgentObject>) {
        self.agents_where(agents, without_pod);
    }

    /// Look at those again that are bound to the life of `agent`: its children when it ends, and who asked for it.
    fn relatives(&self, agents: &Store<AgentObject>, agent: &Agent, gone: bool) {
        let namespace = agent.metadata.namespace.clone().unwrap_or_default();
        if let Some(parent) = &agent.spec.parent_ref {
            self.agent(&ObjectKey { namespace: namespace.clone(), name: parent.name.clone() });
        }
        // One that hibernates has no pod any more, and its children are those of the pod that it had.
        let over = |phase: AgentPhase| phase.ended() || phase == AgentPhase::Hibernated;
        if !(gone || agent.status.as_ref().and_then(|status| status.phase).is_some_and(over)) {
            return;
        }
        let name = agent.name_any();
        let asked_by = |child: &Agent| child.spec.parent_ref.as_ref().is_some_and(|parent| parent.name == name);
        self.agents_where(agents, |child| in_namespace(child, &namespace) && asked_by(child));
    }

    fn agents_where(&self, agents: &Store<AgentObject>, wanted: impl Fn(&Agent) -> bool) {
        for agent in agents.state_filter(|agent| agent.0.as_ref().is_ok_and(&wanted)) {
            self.agent(&ObjectKey::of(agent.as_ref()));
        }
    }

    fn agents_on(&self, pods: &Store<Pod>, node: &str) {
        for pod in pods.state_filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)) {
            self.agent(&ObjectKey::of(pod.as_ref()));
        }
    }

    /// Look at the pools of a namespace again.
    pub fn pools_in(&self, pools: &Store<PoolObject>, namespace: &str) {
        for pool in pools.state_filter(|pool| pool.meta().namespace.as_deref() == Some(namespace)) {
            self.pool(namespace, &pool.name_any());
        }
    }
}

/// Of a pod only its identity, place, memory and state are read.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.annotations = None;
    // What its containers may use is kept as their sum, where a pod may say it of itself.
    let resources = Some(places::as_resources(places::memory(pod)));
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = Some(PodSpec { node_name, resources, ..PodSpec::default() });
    if let Some(status) = pod.status.as_mut() {
        status.pod_ips = None;
        status.host_ips = None;
        status.resource_claim_statuses = None;
    }
}

#[cfg(test)]
impl Wake {
    /// Wakes nobody.
    pub fn nobody() -> Self {
        Self { pools: due::queue().0, agents: due::queue().0, budgets: due::queue().0 }
    }
}

#[cfg(test)]
impl Stores {
    /// Stores that hold these objects, each by its kind.
    pub fn of(objects: &[serde_json::Value]) -> Self {
        Self {
            pools: holding(objects),
            agents: holding(objects),
            pods: holding(objects),
            nodes: holding(objects),
            node_leases: holding(objects),
            node_judgements: NodeJudgements::default(),
            budgets: holding(objects),
            cluster_budgets: holding(objects),
            grants: holding(objects),
            namespaces: holding(objects),
            limits_changed: Arc::default(),
            breakers: holding(objects),
            breakers_changed: Arc::default(),
            quotas: holding(objects),
            ranges: holding(objects),
            queues: holding(objects),
            toolsets: holding(objects),
            policies: holding(objects),
            bundles: holding(objects),
        }
    }
}

#[cfg(test)]
fn holding<K>(objects: &[serde_json::Value]) -> Store<K>
where
    K: Resource + Clone + serde::de::DeserializeOwned + 'static,
    K::DynamicType: Default + Eq + std::hash::Hash + Clone,
{
    let (store, mut writer) = kube::runtime::reflector::store();
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    for object in objects.iter().filter(|object| object["kind"] == kind.as_str()) {
        let object = serde_json::from_value(object.clone()).expect("an object of its kind");
        writer.apply_watcher_event(&watcher::Event::Apply(object));
    }
    store
}
