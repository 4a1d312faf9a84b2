//! What is watched, how it is pruned, and which event makes whom look again.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Key;
use super::agent::Disappearances;
use crate::api::{Agent, AgentPool, Budget, Toolset, WorkQueue, names};
use crate::cluster::watch::{Change, Tolerant, start};

/// An AgentPool as stored, which may not fit its type.
pub type PoolObject = Tolerant<AgentPool>;
/// An Agent as stored, which may not fit its type.
pub type AgentObject = Tolerant<Agent>;

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
    /// Budgets, by name only.
    pub budgets: Store<PartialObjectMeta<Budget>>,
    /// Queues, by name only.
    pub queues: Store<PartialObjectMeta<WorkQueue>>,
    /// Toolsets, by name only.
    pub toolsets: Store<PartialObjectMeta<Toolset>>,
}

/// Objects to look at again.
pub struct Triggers {
    /// Pools.
    pub pools: BoxStream<'static, ObjectRef<PoolObject>>,
    /// Agents.
    pub agents: BoxStream<'static, ObjectRef<AgentObject>>,
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
    pub fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The node `name`.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Waits until every store is filled once, telling which are not.
    pub async fn filled(&self, tell: impl Fn(Vec<String>)) {
        let mut missing = vec!["agentpools", "agents", "pods", "nodes", "budgets", "workqueues", "toolsets"];
        macro_rules! wait {
            ($($name:literal $store:ident),*) => {$(
                tell(missing.iter().map(|name| (*name).to_owned()).collect());
                // An error means that the watch's task ended, which ends the process elsewhere.
                if self.$store.wait_until_ready().await.is_err() { std::future::pending::<()>().await }
                missing.retain(|name| *name != $name);
            )*};
        }
        wait!("agentpools" pools, "agents" agents, "pods" pods, "nodes" nodes, "budgets" budgets, "workqueues" queues, "toolsets" toolsets);
        tell(Vec::new());
    }
}

/// Starts every watch on `tasks`. With `namespace`, only that one is served.
pub fn watch_all(tasks: &mut JoinSet<()>, client: &Client, namespace: Option<&str>, disappearances: &Disappearances) -> (Stores, Triggers) {
    let (pool_trigger, pools_again) = mpsc::unbounded_channel();
    let (agent_trigger, agents_again) = mpsc::unbounded_channel();
    let wake = Wake { pools: pool_trigger, agents: agent_trigger };
    let agents = watch_agents(tasks, scoped(client, namespace), wake.clone());
    let pools = watch_pools(tasks, scoped(client, namespace), wake.clone(), agents.clone());
    let pods = watch_pods(tasks, scoped(client, namespace), wake.clone(), agents.clone(), disappearances.clone());
    let nodes = watch_nodes(tasks, Api::all(client.clone()), wake.clone(), pods.clone());
    let budgets = references::<Budget>(tasks, client, namespace, &wake, &pools);
    let queues = references::<WorkQueue>(tasks, client, namespace, &wake, &pools);
    let toolsets = references::<Toolset>(tasks, client, namespace, &wake, &pools);
    let again = Triggers { pools: stream(pools_again), agents: stream(agents_again) };
    (Stores { pools, agents, pods, nodes, budgets, queues, toolsets }, again)
}

fn watch_agents(tasks: &mut JoinSet<()>, api: Api<AgentObject>, wake: Wake) -> Store<AgentObject> {
    start(
        tasks,
        watcher(api, watcher::Config::default()),
        |_| (),
        move |change| match change {
            Change::Present(agent) | Change::Deleted(agent) => {
                wake.agent(&Key::of(agent));
                if let Ok(agent) = &agent.0 {
                    wake.pool(agent.metadata.namespace.as_deref().unwrap_or_default(), &agent.spec.pool_ref.name);
                }
            }
            Change::Listed(agents) => agents.state().iter().for_each(|agent| wake.agent(&Key::of(agent.as_ref()))),
        },
    )
}

fn watch_pools(tasks: &mut JoinSet<()>, api: Api<PoolObject>, wake: Wake, agents: Store<AgentObject>) -> Store<PoolObject> {
    start(
        tasks,
        watcher(api, watcher::Config::default()),
        |_| (),
        move |change| match change {
            Change::Present(pool) => {
                let key = Key::of(pool);
                wake.pool(&key.namespace, &key.name);
                // What keeps an Agent from getting its pod, or its owner, may be mended by this change.
                let waits = |agent: &Agent| without_pod(agent) || agent.metadata.owner_references.is_none();
                wake.agents_where(&agents, |agent| {
                    agent.spec.pool_ref.name == key.name && in_namespace(agent, &key.namespace) && waits(agent)
                });
            }
            Change::Deleted(pool) => {
                let key = Key::of(pool);
                wake.pool(&key.namespace, &key.name);
                wake.agents_where(&agents, |agent| agent.spec.pool_ref.name == key.name && in_namespace(agent, &key.namespace));
            }
            Change::Listed(pools) => {
                pools.state().iter().map(|pool| Key::of(pool.as_ref())).for_each(|key| wake.pool(&key.namespace, &key.name));
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
    let ours = watcher::Config::default().labels(names::AGENT_LABEL);
    start(tasks, watcher(api, ours), prune_pod, move |change| match change {
        Change::Present(pod) => wake.agent(&Key::of(pod)),
        Change::Deleted(pod) => {
            disappearances.saw_deletion(pod);
            wake.agent(&Key::of(pod));
            // Room in the namespace's quota: whoever waits for a pod may get one.
            let namespace = pod.namespace().unwrap_or_default();
            wake.agents_where(&agents, |agent| in_namespace(agent, &namespace) && without_pod(agent));
        }
        Change::Listed(_) => wake.agents_where(&agents, |_| true),
    })
}

fn watch_nodes(tasks: &mut JoinSet<()>, api: Api<Node>, wake: Wake, pods: Store<Pod>) -> Store<Node> {
    // Nodes are written for every heartbeat; only what changes an answer wakes anybody.
    let mut last = HashMap::new();
    let mut changed = move |node: &Node, now: Option<bool>| {
        let before = match now {
            Some(now) => last.insert(node.name_any(), now),
            None => last.remove(&node.name_any()),
        };
        before != now
    };
    start(tasks, watcher(api, watcher::Config::default()), prune_node, move |change| match change {
        Change::Present(node) if changed(node, Some(super::agent::reachable(node))) => wake.agents_on(&pods, &node.name_any()),
        Change::Deleted(node) if changed(node, None) => wake.agents_on(&pods, &node.name_any()),
        Change::Listed(nodes) => {
            let news = nodes.state().into_iter().filter(|node| changed(node, Some(super::agent::reachable(node))));
            news.for_each(|node| wake.agents_on(&pods, &node.name_any()));
        }
        Change::Present(_) | Change::Deleted(_) => {}
    })
}

/// Watches a kind that pools name, by metadata only: all that matters is whether an object exists.
fn references<K>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: Option<&str>,
    wake: &Wake,
    pools: &Store<PoolObject>,
) -> Store<PartialObjectMeta<K>>
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
    let drop_annotations = |object: &mut PartialObjectMeta<K>| object.metadata.annotations = None;
    start(tasks, watcher(scoped::<PartialObjectMeta<K>>(client, namespace), watcher::Config::default()), drop_annotations, move |change| {
        match change {
            Change::Present(object) | Change::Deleted(object) => {
                wake.pools_in(&pools, object.metadata.namespace.as_deref().unwrap_or_default())
            }
            Change::Listed(_) => {}
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

fn stream<T: Send + 'static>(receiver: mpsc::UnboundedReceiver<T>) -> BoxStream<'static, T> {
    let stream: std::pin::Pin<Box<dyn Stream<Item = T> + Send>> =
        Box::pin(futures::stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|item| (item, receiver))));
    stream.boxed()
}

fn in_namespace(agent: &Agent, namespace: &str) -> bool {
    agent.metadata.namespace.as_deref() == Some(namespace)
}

fn without_pod(agent: &Agent) -> bool {
    agent.status.as_ref().is_none_or(|status| status.pod_ref.is_none())
}

/// Who is to be woken. Sending never blocks; a closed channel means that the controllers are stopping.
#[derive(Clone)]
struct Wake {
    pools: mpsc::UnboundedSender<ObjectRef<PoolObject>>,
    agents: mpsc::UnboundedSender<ObjectRef<AgentObject>>,
}

impl Wake {
    fn pool(&self, namespace: &str, name: &str) {
        let _ = self.pools.send(ObjectRef::new(name).within(namespace));
    }

    fn agent(&self, key: &Key) {
        let _ = self.agents.send(ObjectRef::new(&key.name).within(&key.namespace));
    }

    fn agents_where(&self, agents: &Store<AgentObject>, wanted: impl Fn(&Agent) -> bool) {
        for agent in agents.state_filter(|agent| agent.0.as_ref().is_ok_and(&wanted)) {
            self.agent(&Key::of(agent.as_ref()));
        }
    }

    fn agents_on(&self, pods: &Store<Pod>, node: &str) {
        for pod in pods.state_filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)) {
            self.agent(&Key::of(pod.as_ref()));
        }
    }

    fn pools_in(&self, pools: &Store<PoolObject>, namespace: &str) {
        for pool in pools.state_filter(|pool| pool.meta().namespace.as_deref() == Some(namespace)) {
            self.pool(namespace, &pool.name_any());
        }
    }
}

/// Of a pod only its identity, place and state are read.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.annotations = None;
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
    if let Some(status) = pod.status.as_mut() {
        status.pod_ips = None;
        status.host_ips = None;
        status.resource_claim_statuses = None;
    }
}

/// Of a node only its labels, taints, readiness and runtime features are read.
fn prune_node(node: &mut Node) {
    node.metadata.annotations = None;
    if let Some(status) = node.status.as_mut() {
        status.images = None;
        status.allocatable = None;
        status.capacity = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.conditions.iter_mut().flatten().for_each(|condition| condition.last_heartbeat_time = None);
    }
}
