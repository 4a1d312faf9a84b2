//! The watches: what is watched, which fields are kept, and which reconciles an event triggers.

mod limits;
mod nodes;

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, Pod, PodSpec, ResourceQuota};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::agent::PodTerminations;
use super::capacity;
use super::due;
use super::fleet::Fleet;
use super::node_judgements::NodeJudgements;
use super::stores::{AgentObject, BudgetObject, NODE_LEASE_NAMESPACE, PoolObject, Stores};
use super::wake::{Wake, in_namespace, without_pod};
use crate::api::{Agent, Toolset, WorkQueue, names};
use crate::cluster::ObjectKey;
use crate::cluster::watch::{Change, MetadataOnly, config, start};
use crate::telemetry::Metrics;
use nodes::watch_nodes;

/// Objects to reconcile.
pub struct Triggers {
    /// Pools.
    pub pools: BoxStream<'static, ObjectRef<PoolObject>>,
    /// Agents.
    pub agents: BoxStream<'static, ObjectRef<AgentObject>>,
    /// Budgets.
    pub budgets: BoxStream<'static, ObjectRef<BudgetObject>>,
    /// Adds objects to them.
    pub wake: Wake,
}

/// Starts every watch on `tasks`. With `namespace`, only that one is served.
pub fn watch_all(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: Option<&str>,
    disappearances: &PodTerminations,
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
    let of_nodes = (Api::all(client.clone()), Api::namespaced(client.clone(), NODE_LEASE_NAMESPACE));
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
    let policies = watch_namespace_setup::<NetworkPolicy>(
        tasks,
        scoped(client, namespace),
        named(names::AGENTS_NETWORK_POLICY),
        &wake,
        &pools,
        &agents,
    );
    let labelled = || config().labels(&ours);
    let quotas = limits::watch_compute::<ResourceQuota>(tasks, scoped(client, namespace), labelled(), &wake, &agents);
    let ranges = limits::watch_compute::<LimitRange>(tasks, scoped(client, namespace), labelled(), &wake, &agents);
    let bundles = watch_namespace_setup::<ConfigMap>(tasks, scoped(client, namespace), named(names::CA_CONFIG_MAP), &wake, &pools, &agents);
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
        trust_config_maps: bundles,
    };
    (stores, again)
}

fn watch_agents(tasks: &mut JoinSet<()>, api: Api<AgentObject>, wake: Wake, fleet: Fleet) -> Store<AgentObject> {
    // The tap reads the store of its own watch, which exists only after the start.
    let known = Arc::new(std::sync::OnceLock::<Store<AgentObject>>::new());
    let look = known.clone();
    let changed = move |agent: &AgentObject, gone: bool| {
        wake.agent(&ObjectKey::of(agent));
        if let Ok(agent) = &agent.0 {
            wake.pool(agent.metadata.namespace.as_deref().unwrap_or_default(), &agent.spec.pool_ref.name);
            if let Some(agents) = look.get() {
                wake.relatives(agents, agent, gone);
                if gone || agent.has_ended() {
                    wake.agents_short_of_budget(agents);
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
    // The set of pools decides which Breaker guards what. The status of pools does not.
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
                // This change may remove what keeps an Agent from its pod or its owner. An agent outside the cluster
                // may have to leave when the spec changed.
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
                // It may have been the last pool of its namespace.
                wake.budget(&key.namespace, names::DEFAULT_OBJECT_NAME);
                wake.agents_short_of_budget(&agents);
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
    disappearances: PodTerminations,
) -> Store<Pod> {
    let ours = config().labels(names::AGENT_LABEL);
    start(tasks, watcher(api, ours), prune_pod, move |change| match change {
        Change::Present(pod) => {
            wake.agent(&ObjectKey::of(pod));
            if capacity::has_pod_ended(pod) {
                wake.agents_short_of_budget(&agents);
            }
        }
        Change::Deleted(pod) => {
            disappearances.record_deletion(pod);
            wake.agent(&ObjectKey::of(pod));
            wake.agents_short_of_budget(&agents);
            // The namespace's quota has room again: Agents that wait for a pod may get one.
            let namespace = pod.namespace().unwrap_or_default();
            wake.agents_where(&agents, |agent| in_namespace(agent, &namespace) && without_pod(agent));
        }
        Change::Listed(_) => wake.agents_where(&agents, |_| true),
    })
}

/// Watches a kind that pools name, by metadata only: it only matters whether an object exists.
fn references<K>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: Option<&str>,
    wake: &Wake,
    pools: &Store<PoolObject>,
) -> Store<MetadataOnly<K>>
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
    let api = scoped::<MetadataOnly<K>>(client, namespace);
    start(tasks, watcher(api, config()), prune_to_name, move |change| match change {
        Change::Present(object) | Change::Deleted(object) => wake.pools_in(&pools, &object.namespace().unwrap_or_default()),
        Change::Listed(_) => {}
    })
}

/// Keeps only the name of an object that only has to exist.
fn prune_to_name(object: &mut impl ResourceExt) {
    let meta = object.meta_mut();
    (meta.annotations, meta.labels, meta.owner_references, meta.finalizers) = (None, None, None, None);
}

/// Annotations that are kept on the objects of the namespace setup.
const READ_ANNOTATIONS: [&str; 2] = [names::DEFAULT_MADE_ANNOTATION, names::DEFAULT_BREAKER_MADE_ANNOTATION];

/// Watches the objects of the namespace setup: pools repair them, and Agents wait for them.
fn watch_namespace_setup<K>(
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
    // Only our own annotations are read.
    let drop_annotations = |object: &mut K| object.annotations_mut().retain(|name, _| READ_ANNOTATIONS.contains(&name.as_str()));
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

/// Keeps only the identity, node, memory and state of a pod.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.annotations = None;
    // The memory limits of the containers are kept as their sum, in the resources of the pod itself.
    let resources = Some(capacity::pod_memory_resources(capacity::total_memory_limit(pod)));
    let spec = pod.spec.take().unwrap_or_default();
    // A pod that waits for a node with a profile says so. No other selector is read.
    let waits =
        spec.node_name.is_none() && spec.node_selector.iter().flatten().any(|(key, _)| key.starts_with(names::NODE_PROFILE_LABEL_PREFIX));
    let node_selector = spec.node_selector.filter(|_| waits);
    pod.spec = Some(PodSpec { node_name: spec.node_name, node_selector, resources, ..PodSpec::default() });
    if let Some(status) = pod.status.as_mut() {
        status.pod_ips = None;
        status.host_ips = None;
        status.resource_claim_statuses = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_pod_that_waits_for_a_profile_keeps_its_selector() {
        let label = names::node_profile_label("0123abcd");
        let kept = |selector: serde_json::Value, node: serde_json::Value| {
            let spec = json!({"containers": [], "nodeSelector": selector, "nodeName": node});
            let mut pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a pod");
            prune_pod(&mut pod);
            json!(pod.spec.expect("a spec").node_selector)
        };
        let selector = json!({"disk": "ssd", label: "installed"});
        assert_eq!(kept(selector.clone(), json!(null)), selector);
        assert_eq!(kept(selector, json!("n")), json!(null), "it has a node");
        assert_eq!(kept(json!({"disk": "ssd"}), json!(null)), json!(null));
    }
}
