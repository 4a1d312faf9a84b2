//! The caches of objects, and how one is found in them.
//!
//! It must not start a watch or trigger a reconcile: the [watches](super::watches) fill the caches.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
#[cfg(test)]
use kube::runtime::watcher;
use tokio::sync::Notify;

use super::node_judgements::NodeJudgements;
use crate::api::{Agent, AgentPool, Breaker, Budget, ClusterBudget, Grant, Toolset, WorkQueue};
use crate::cluster::ObjectKey;
use crate::cluster::watch::{MetadataOnly, Tolerant};

/// Where the kubelets keep their leases.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

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

/// The caches. Each is filled before the first decision. After that a cache may lag, so irreversible steps read live
/// first.
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
    /// The judgements about nodes that follow from both.
    pub node_judgements: NodeJudgements,
    /// Budgets.
    pub budgets: Store<BudgetObject>,
    /// ClusterBudgets.
    pub cluster_budgets: Store<ClusterBudgetObject>,
    /// Grants.
    pub grants: Store<GrantObject>,
    /// Namespaces, with their labels only: which ClusterBudgets bind them.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Notified when any of the four kinds above changes.
    pub limits_changed: Arc<Notify>,
    /// Breakers.
    pub breakers: Store<BreakerObject>,
    /// Notified when a Breaker or a pool changes.
    pub breakers_changed: Arc<Notify>,
    /// Our ResourceQuotas.
    pub quotas: Store<ResourceQuota>,
    /// Our LimitRanges.
    pub ranges: Store<LimitRange>,
    /// Queues, by name only.
    pub queues: Store<MetadataOnly<WorkQueue>>,
    /// Toolsets, by name only.
    pub toolsets: Store<MetadataOnly<Toolset>>,
    /// Our NetworkPolicies.
    pub policies: Store<NetworkPolicy>,
    /// ConfigMaps with the certificates that pods trust.
    pub trust_config_maps: Store<ConfigMap>,
}

impl Stores {
    /// The pool `name`, whether or not it fits its type.
    pub fn pool(&self, namespace: &str, name: &str) -> Option<Arc<PoolObject>> {
        self.pools.get(&ObjectRef::new(name).within(namespace))
    }

    /// The Agents that name this pool, whatever their owner references say.
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

    /// The NetworkPolicy `key`, if it is ours.
    pub fn policy(&self, key: &ObjectKey) -> Option<Arc<NetworkPolicy>> {
        self.policies.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The ConfigMap `key`, if it holds our certificates.
    pub fn bundle(&self, key: &ObjectKey) -> Option<Arc<ConfigMap>> {
        self.trust_config_maps.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The node `name`.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Waits until every store is filled once. `tell` gets those that are not filled yet.
    pub async fn wait_until_filled(&self, tell: impl Fn(Vec<String>)) {
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
            "limitranges" ranges, "workqueues" queues, "toolsets" toolsets, "networkpolicies" policies, "configmaps" trust_config_maps);
        tell(Vec::new());
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
            trust_config_maps: holding(objects),
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
