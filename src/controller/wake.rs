//! Triggers the reconciles that may be necessary after an event.
//!
//! It must not decide anything about an object: it only names those that an event may affect.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};

use super::conditions::find;
#[cfg(test)]
use super::due;
use super::due::Due;
use super::stores::{AgentObject, BudgetObject, PoolObject};
use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, Budget};
use crate::cluster::ObjectKey;

/// The queues of the controllers. Sending never blocks.
#[derive(Clone)]
pub struct Wake {
    /// Pools to reconcile.
    pub pools: Due<ObjectRef<PoolObject>>,
    /// Agents to reconcile.
    pub agents: Due<ObjectRef<AgentObject>>,
    /// Budgets to reconcile.
    pub budgets: Due<ObjectRef<BudgetObject>>,
}

impl Wake {
    /// Queues this Budget.
    pub fn budget(&self, namespace: &str, name: &str) {
        self.budgets.send(ObjectRef::new(name).within(namespace));
    }

    /// Queues the Budgets that `wanted` selects.
    pub fn budgets_where(&self, budgets: &Store<BudgetObject>, wanted: impl Fn(&BudgetObject) -> bool) {
        for budget in budgets.state_filter(wanted) {
            self.budget(&budget.namespace().unwrap_or_default(), &budget.name_any());
        }
    }

    /// Queues the Budget that owns an object.
    pub fn owner(&self, object: &impl ResourceExt) {
        let owners = object.owner_references().iter().filter(|owner| owner.kind == Budget::kind(&()));
        owners.for_each(|owner| self.budget(&object.namespace().unwrap_or_default(), &owner.name));
    }

    /// Queues every Agent that waits for capacity of a budget, because some may be free now.
    pub fn agents_short_of_budget(&self, agents: &Store<AgentObject>) {
        self.agents_where(agents, |agent| waits_for(agent, &[reasons::BUDGET_EXHAUSTED, reasons::PROJECT_LIMIT]));
    }

    /// Queues this pool.
    pub fn pool(&self, namespace: &str, name: &str) {
        self.pools.send(ObjectRef::new(name).within(namespace));
    }

    /// Queues this Agent.
    pub fn agent(&self, key: &ObjectKey) {
        self.agents.send(ObjectRef::new(&key.name).within(&key.namespace));
    }

    /// Queues every pool.
    pub fn all_pools(&self, pools: &Store<PoolObject>) {
        pools.state().iter().map(|pool| ObjectKey::of(pool.as_ref())).for_each(|key| self.pool(&key.namespace, &key.name));
    }

    /// Queues every Agent that waits for its pod.
    pub fn waiting_agents(&self, agents: &Store<AgentObject>) {
        self.agents_where(agents, without_pod);
    }

    /// Queues the parent of `agent`, and its children when it ends.
    pub fn relatives(&self, agents: &Store<AgentObject>, agent: &Agent, gone: bool) {
        let namespace = agent.metadata.namespace.clone().unwrap_or_default();
        if let Some(parent) = &agent.spec.parent_ref {
            self.agent(&ObjectKey { namespace: namespace.clone(), name: parent.name.clone() });
        }
        // A hibernated agent has no pod any more, and children belong to the pod that requested them.
        let over = |phase: AgentPhase| phase.ended() || phase == AgentPhase::Hibernated;
        if !(gone || agent.status.as_ref().and_then(|status| status.phase).is_some_and(over)) {
            return;
        }
        let name = agent.name_any();
        let asked_by = |child: &Agent| child.spec.parent_ref.as_ref().is_some_and(|parent| parent.name == name);
        self.agents_where(agents, |child| in_namespace(child, &namespace) && asked_by(child));
    }

    /// Queues the Agents that `wanted` selects.
    pub fn agents_where(&self, agents: &Store<AgentObject>, wanted: impl Fn(&Agent) -> bool) {
        for agent in agents.state_filter(|agent| agent.0.as_ref().is_ok_and(&wanted)) {
            self.agent(&ObjectKey::of(agent.as_ref()));
        }
    }

    /// Queues the Agents whose pods are on this node.
    pub fn agents_on(&self, pods: &Store<Pod>, node: &str) {
        for pod in pods.state_filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)) {
            self.agent(&ObjectKey::of(pod.as_ref()));
        }
    }

    /// Queues the pools of a namespace.
    pub fn pools_in(&self, pools: &Store<PoolObject>, namespace: &str) {
        for pool in pools.state_filter(|pool| pool.meta().namespace.as_deref() == Some(namespace)) {
            self.pool(namespace, &pool.name_any());
        }
    }
}

#[cfg(test)]
impl Wake {
    /// Queues that nothing reads.
    pub fn detached() -> Self {
        Self { pools: due::queue().0, agents: due::queue().0, budgets: due::queue().0 }
    }
}

/// Whether the Agent is in this namespace.
pub fn in_namespace(agent: &Agent, namespace: &str) -> bool {
    agent.metadata.namespace.as_deref() == Some(namespace)
}

/// Whether the Agent has no pod, for one of these reasons.
pub fn waits_for(agent: &Agent, reasons: &[&str]) -> bool {
    let ready = agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY));
    without_pod(agent) && ready.is_some_and(|ready| reasons.contains(&ready.reason.as_str()))
}

/// Whether the Agent has no pod, and is to have one.
pub fn without_pod(agent: &Agent) -> bool {
    agent.spec.external.is_none() && agent.status.as_ref().is_none_or(|status| status.pod_ref.is_none())
}
