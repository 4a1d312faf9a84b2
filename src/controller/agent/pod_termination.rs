//! The last state of pods that disappeared, and since when pods terminate. Kept in memory only: a new leader asks the
//! node instead, or starts to count anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::pod_view::all_containers_ended;
use crate::cluster::clock::BootTime;
use crate::policy::pod_termination::{LastSeen, NODE_HEALTHY_PROOF_DELAY};

/// Maximum number of pods whose last state, or whose termination, is kept: more than a fleet loses between two
/// reconciles. A full map is cleared, which only delays the proof that pods ended.
const MAX_TRACKED_PODS: usize = 10_000;
/// How far below the proof delay the counted time stays while a node's Lease is not renewed.
const STALE_LEASE_MARGIN: Duration = Duration::from_secs(5);

/// What is known of pods that terminate or are gone, by pod uid.
#[derive(Clone, Default)]
pub struct PodTerminations(Arc<Mutex<MissingPod>>);

#[derive(Default)]
struct MissingPod {
    last: HashMap<String, (LastSeen, Option<String>)>,
    missing: HashMap<String, Missing>,
    terminating: HashMap<String, Leaving>,
}

/// Since when we see a pod terminating.
#[derive(Clone, Debug)]
struct Leaving {
    since: BootTime,
    /// Its deletion time, which a repeated deletion with a shorter grace period changes. Only compared with itself.
    deletion_time: Time,
}

/// Since when a pod is missing while its node is healthy or unknown.
#[derive(Clone, Debug)]
struct Missing {
    since: BootTime,
    /// The renew time in its node's Lease when the pod was first missing. Never compared with our clock.
    renewed: Option<String>,
}

impl PodTerminations {
    /// Records the last state of `pod`, whose deletion the watch reported.
    pub fn record_deletion(&self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let mut known = self.lock();
        if known.last.len() >= MAX_TRACKED_PODS {
            known.last.clear();
        }
        known.terminating.remove(&uid);
        known.last.insert(uid, (if all_containers_ended(pod) { LastSeen::Ended } else { LastSeen::Running }, node));
    }

    /// The last known state of a pod, and its node.
    pub fn last_seen(&self, uid: &str) -> (LastSeen, Option<String>) {
        self.lock().last.get(uid).cloned().unwrap_or((LastSeen::Unknown, None))
    }

    /// How long we have seen a pod terminating, since its latest deletion.
    pub fn terminating_for(&self, pod: &Pod) -> Duration {
        let (Some(uid), Some(asked)) = (pod.metadata.uid.as_ref(), pod.metadata.deletion_timestamp.as_ref()) else { return Duration::ZERO };
        let begun = || Leaving { since: BootTime::now(), deletion_time: asked.clone() };
        let mut known = self.lock();
        if known.terminating.len() >= MAX_TRACKED_PODS && !known.terminating.contains_key(uid) {
            known.terminating.clear();
        }
        let leaving = known.terminating.entry(uid.clone()).or_insert_with(begun);
        if leaving.deletion_time != *asked {
            *leaving = begun();
        }
        leaving.since.elapsed()
    }

    /// How long a pod has been missing while its node is healthy, or unknown. `renewed` is the current renew time in
    /// the node's Lease: while it does not change, the time stays below the proof delay.
    pub fn missing_for(&self, uid: &str, renewed: Option<String>, node_known: bool) -> Duration {
        let mut known = self.lock();
        let missing = known.missing.entry(uid.to_owned()).or_insert_with(|| Missing { since: BootTime::now(), renewed: renewed.clone() });
        let time = missing.since.elapsed();
        if node_known && renewed == missing.renewed { time.min(NODE_HEALTHY_PROOF_DELAY - STALE_LEASE_MARGIN) } else { time }
    }

    /// The node of a missing pod is not healthy: the time for which it is missing starts anew.
    pub fn node_unhealthy(&self, uid: &str) {
        self.lock().missing.remove(uid);
    }

    /// Forgets a pod that no Agent records any more.
    pub fn forget(&self, uid: &str) {
        let mut known = self.lock();
        known.last.remove(uid);
        known.missing.remove(uid);
        known.terminating.remove(uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MissingPod> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_state_and_the_node_are_kept_until_they_are_forgotten() {
        let known = PodTerminations::default();
        let pod = |status: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [], "nodeName": "n"}, "status": status}))
                .expect("a pod")
        };
        assert_eq!(known.last_seen("u"), (LastSeen::Unknown, None));
        known.record_deletion(&pod(json!({"phase": "Running"})));
        assert_eq!(known.last_seen("u"), (LastSeen::Running, Some("n".into())));
        known.record_deletion(&pod(json!({"phase": "Failed"})));
        assert_eq!(known.last_seen("u").0, LastSeen::Ended);
        known.forget("u");
        assert_eq!(known.last_seen("u").0, LastSeen::Unknown);
    }

    #[test]
    fn a_termination_counts_from_our_observation_and_anew_after_another_deletion() {
        let known = PodTerminations::default();
        let pod = |meta: serde_json::Value| -> Pod { serde_json::from_value(json!({"metadata": meta})).expect("a pod") };
        let leaving = |asked: &str| pod(json!({"uid": "u", "deletionTimestamp": asked}));
        let long = Duration::from_secs(3600);
        let long_ago = |asked: &str| {
            let asked = leaving(asked).metadata.deletion_timestamp.expect("a time");
            known.lock().terminating.insert("u".into(), Leaving { since: BootTime::default(), deletion_time: asked });
        };
        assert_eq!(known.terminating_for(&pod(json!({"uid": "u"}))), Duration::ZERO, "it stays");
        assert!(known.terminating_for(&leaving("2000-01-01T00:00:00Z")) < long, "a clock that is behind ours");
        long_ago("2000-01-01T00:00:00Z");
        let since_boot = known.terminating_for(&leaving("2000-01-01T00:00:00Z"));
        assert!(since_boot > Duration::ZERO && known.terminating_for(&leaving("2000-01-01T00:00:00Z")) >= since_boot);
        assert!(known.terminating_for(&leaving("1999-12-31T23:59:50Z")) < since_boot, "it was asked again");
        long_ago("2000-01-01T00:00:00Z");
        known.record_deletion(&leaving("2000-01-01T00:00:00Z"));
        assert!(known.lock().terminating.is_empty(), "it is gone");
    }

    #[test]
    fn a_node_whose_lease_stands_still_proves_nothing() {
        let known = PodTerminations::default();
        let long_ago = Missing { since: BootTime::default(), renewed: Some("t1".into()) };
        known.lock().missing.insert("u".into(), long_ago);
        assert!(known.missing_for("u", Some("t1".into()), true) < NODE_HEALTHY_PROOF_DELAY);
        assert!(known.missing_for("u", Some("t2".into()), true) >= NODE_HEALTHY_PROOF_DELAY);
        assert!(known.missing_for("u", None, false) >= NODE_HEALTHY_PROOF_DELAY, "no node is known: only time is left");
    }

    #[test]
    fn the_number_of_tracked_pods_is_bounded() {
        let known = PodTerminations::default();
        for at in 0..2 * MAX_TRACKED_PODS {
            let uid = format!("u{at}");
            let pod = serde_json::from_value(json!({"metadata": {"uid": uid}})).expect("a pod");
            known.record_deletion(&pod);
            assert_ne!(known.last_seen(&uid).0, LastSeen::Unknown);
            let leaves = json!({"uid": format!("l{at}"), "deletionTimestamp": "2000-01-01T00:00:00Z"});
            known.terminating_for(&serde_json::from_value(json!({"metadata": leaves})).expect("a pod"));
        }
        assert!(known.lock().last.len() <= MAX_TRACKED_PODS && known.lock().terminating.len() <= MAX_TRACKED_PODS);
    }
}
