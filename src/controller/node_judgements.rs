//! The nodes as this leader has observed them, and the judgement of `policy::node_liveness` about each.
//!
//! The watches of nodes and leases fill it. It triggers no reconcile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

use crate::cluster::clock::BootTime;
use crate::policy::node_liveness::{Judgement, NodeLiveness, NodeReach, reach};

/// Type of the condition that says whether a node responds to Kubernetes.
pub const NODE_READY_CONDITION: &str = "Ready";

/// The observations of nodes since we lead. Cheap to clone.
#[derive(Clone, Default)]
pub struct NodeJudgements(Arc<Mutex<NodeLiveness>>);

impl NodeJudgements {
    /// Whether `node` responds. `stored`: an earlier leader judged it unreachable, and stored that in the status of its
    /// agents.
    pub fn reach(&self, node: &Node, stored: bool) -> NodeReach {
        reach(!is_responding(node), self.lock().judgement(&node.name_any()), stored)
    }

    /// The observations.
    pub fn lock(&self) -> MutexGuard<'_, NodeLiveness> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `change`, and returns the nodes whose judgement changed.
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
                // At the start of a leadership this happens once for each node.
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

/// Whether a node responds to Kubernetes: its Ready condition is not Unknown.
pub fn is_responding(node: &Node) -> bool {
    ready(node).is_none_or(|ready| ready.status != "Unknown")
}
