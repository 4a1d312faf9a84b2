//! What this leader has observed of nodes, and what it judges of each by `policy::node_liveness`.
//!
//! The watches of nodes and leases fill it. It wakes nobody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

use crate::cluster::clock::BootTime;
use crate::policy::node_liveness::{Judgement, NodeLiveness, NodeReach, reach};

/// The type of the condition that says whether Kubernetes hears of a node.
pub const NODE_READY_CONDITION: &str = "Ready";

/// What we have observed of nodes since we lead. Cheap to clone.
#[derive(Clone, Default)]
pub struct NodeJudgements(Arc<Mutex<NodeLiveness>>);

impl NodeJudgements {
    /// Whether `node` is heard of. `stored`: a leader before us judged it unreachable, and stored that with what is on it.
    pub fn reach(&self, node: &Node, stored: bool) -> NodeReach {
        reach(!reported(node), self.lock().judgement(&node.name_any()), stored)
    }

    /// What is observed.
    pub fn lock(&self) -> MutexGuard<'_, NodeLiveness> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `change` happen, and gives the nodes of which the judgement changed.
    pub fn change(&self, change: impl FnOnce(&mut NodeLiveness, Duration) -> Vec<String>) -> Vec<String> {
        let now = BootTime::now().since(BootTime::default());
        let mut liveness = self.lock();
        let before = liveness.disrupted();
        let changed = change(&mut liveness, now);
        match (before, liveness.disrupted()) {
            (false, true) => {
                tracing::warn!("more than half of the nodes do not renew their leases; no agent on them is replaced or given up");
            }
            (true, false) => tracing::info!("most nodes renew their leases again"),
            (false, false) | (true, true) => {}
        }
        for node in &changed {
            match liveness.judgement(node) {
                Judgement::Unreachable => {
                    tracing::warn!(%node, "a node does not renew its lease while other nodes do; it counts as unreachable, and its agents are replaced");
                }
                // So it is for every node, once, when we begin.
                Judgement::Alive => tracing::debug!(%node, "a node renews its lease"),
                Judgement::NotObserved => {}
            }
        }
        changed
    }
}

/// The Ready condition of a node.
pub fn ready(node: &Node) -> Option<&NodeCondition> {
    node.status.iter().flat_map(|status| status.conditions.iter().flatten()).find(|condition| condition.type_ == NODE_READY_CONDITION)
}

/// Whether Kubernetes hears of a node: its Ready condition is not Unknown.
pub fn reported(node: &Node) -> bool {
    ready(node).is_none_or(|ready| ready.status != "Unknown")
}
