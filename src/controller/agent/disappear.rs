//! What was last seen of pods that disappeared. Only memory: a new leader knows nothing of it and asks the node instead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;

use super::pod_view::all_ended;
use crate::cluster::clock::BootTime;
use crate::policy::presence::LastSeen;

/// More than any fleet loses between two looks; beyond it the oldest knowledge is given up, which only makes us slower.
const KEPT: usize = 10_000;

/// What is known of pods whose object is gone, by pod uid.
#[derive(Clone, Default)]
pub struct Disappearances(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    last: HashMap<String, LastSeen>,
    missing: HashMap<String, Missing>,
}

/// Since when a pod is missing while its node was healthy, and what the node's lease said at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The first healthy look.
    pub since: BootTime,
    /// The node's renew time then, as it stands in its Lease: compared with itself only, never with our clock.
    pub renewed: Option<String>,
}

impl Disappearances {
    /// The watch saw `pod` deleted; this was its last state.
    pub fn saw_deletion(&self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.last.len() >= KEPT {
            known.last.clear();
        }
        known.last.insert(uid, if all_ended(pod) { LastSeen::Ended } else { LastSeen::Running });
    }

    /// What was last seen of it.
    pub fn last_seen(&self, uid: &str) -> LastSeen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.get(uid).copied().unwrap_or(LastSeen::Unknown)
    }

    /// It is missing and its node is healthy, with this renew time: since when, and what the renew time was at first.
    pub fn missing_on_healthy_node(&self, uid: &str, renewed: Option<String>) -> Missing {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.missing.entry(uid.to_owned()).or_insert_with(|| Missing { since: BootTime::now(), renewed }).clone()
    }

    /// Its node is not healthy: what was observed before does not count.
    pub fn node_unhealthy(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).missing.remove(uid);
    }

    /// Nobody asks for it any more.
    pub fn forget(&self, uid: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.last.remove(uid);
        known.missing.remove(uid);
    }
}
