//! The watches of nodes and of their kubelets' leases: the input of `policy::node_liveness`, and the Agents that its
//! judgements trigger.
//!
//! Nodes and leases are written for every heartbeat. Agents are triggered only where a judgement changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::task::JoinSet;

use crate::cluster::watch::{Change, config, start};
use crate::controller::node_judgements::{NODE_READY_CONDITION, NodeJudgements, is_responding, ready};
use crate::controller::wake::Wake;
use crate::policy::node_liveness::{self, NodeReach};
use crate::telemetry::Metrics;

/// What both watches do with a change.
#[derive(Clone)]
struct NodeTap {
    judgements: NodeJudgements,
    wake: Wake,
    pods: Store<Pod>,
    metrics: Metrics,
}

impl NodeTap {
    /// The judgement about these nodes changed; `nodes` are all nodes.
    fn changed(&self, changed: &[String], nodes: &Store<Node>) {
        if changed.is_empty() {
            return;
        }
        changed.iter().for_each(|node| self.wake.agents_on(&self.pods, node));
        let (mut heard, mut silent, mut unreachable) = (0, 0, 0);
        for node in nodes.state() {
            match self.judgements.reach(&node, false) {
                NodeReach::Heard => heard += 1,
                NodeReach::Silent => silent += 1,
                NodeReach::Unreachable => unreachable += 1,
            }
        }
        self.metrics.nodes(&[("heard", heard), ("silent", silent), ("unreachable", unreachable)]);
    }
}

/// Starts both watches.
pub(super) fn watch_nodes(
    tasks: &mut JoinSet<()>,
    (nodes, leases): (Api<Node>, Api<Lease>),
    judgements: &NodeJudgements,
    wake: Wake,
    pods: Store<Pod>,
    metrics: Metrics,
) -> (Store<Node>, Store<Lease>) {
    let told = NodeTap { judgements: judgements.clone(), wake, pods, metrics };
    let nodes = watch_nodes_alone(tasks, nodes, told.clone());
    let known = nodes.clone();
    let leases = start(tasks, watcher(leases, config()), prune_lease, move |change| {
        let mut changed = match change {
            Change::Present(lease) => {
                let name = lease.name_any();
                told.judgements.change(|liveness, now| liveness.leases([(name.as_str(), lease_facts(lease))], false, now))
            }
            Change::Deleted(lease) => {
                told.judgements.lock().lease_gone(&lease.name_any());
                Vec::new()
            }
            Change::Listed(leases) => {
                let leases: Vec<_> = leases.state().iter().map(|lease| (lease.name_any(), lease_facts(lease))).collect();
                let leases = leases.iter().map(|(name, lease)| (name.as_str(), *lease));
                told.judgements.change(|liveness, now| liveness.leases(leases, true, now))
            }
        };
        // A judgement has no effect on a node that responds to Kubernetes.
        changed.retain(|name| known.get(&ObjectRef::new(name)).is_some_and(|node| !is_responding(&node)));
        told.changed(&changed, &known);
    });
    (nodes, leases)
}

fn watch_nodes_alone(tasks: &mut JoinSet<()>, api: Api<Node>, told: NodeTap) -> Store<Node> {
    // The tap reads the store of its own watch, which exists only after the start.
    let known = Arc::new(std::sync::OnceLock::<Store<Node>>::new());
    let look = known.clone();
    // Whether each node responded, by name.
    let mut last = HashMap::<String, bool>::new();
    let store = start(tasks, watcher(api, config()), prune_node, move |change| {
        let changed = match change {
            Change::Present(node) => {
                let name = node.name_any();
                let mut changed =
                    told.judgements.change(|liveness, now| liveness.nodes([(name.as_str(), last_status_time(node))], false, now));
                if last.insert(name.clone(), is_responding(node)) != Some(is_responding(node)) {
                    changed.push(name);
                }
                changed
            }
            Change::Deleted(node) => {
                let name = node.name_any();
                told.judgements.lock().node_gone(&name);
                last.remove(&name);
                vec![name]
            }
            Change::Listed(nodes) => {
                let nodes = nodes.state();
                let there: Vec<_> = nodes.iter().map(|node| (node.name_any(), last_status_time(node))).collect();
                let there = there.iter().map(|(name, posted)| (name.as_str(), *posted));
                let mut changed = told.judgements.change(|liveness, now| liveness.nodes(there, true, now));
                let before = std::mem::take(&mut last);
                last = nodes.iter().map(|node| (node.name_any(), is_responding(node))).collect();
                changed.extend(last.iter().filter(|(name, now)| before.get(*name) != Some(*now)).map(|(name, _)| name.clone()));
                changed.extend(before.into_keys().filter(|name| !last.contains_key(name)));
                changed
            }
        };
        if let Some(nodes) = look.get() {
            told.changed(&changed, nodes);
        }
    });
    let _ = known.set(store.clone()); // once
    store
}

/// When the kubelet posted its status last, by the node's own clock. The controller that sets the condition to Unknown
/// does not change this time.
fn last_status_time(node: &Node) -> Option<i64> {
    ready(node)?.last_heartbeat_time.as_ref().map(|time| time.0.as_microsecond())
}

fn lease_facts(lease: &Lease) -> node_liveness::Lease {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    node_liveness::Lease {
        renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map_or(0, |time| time.0.as_microsecond()),
        duration: Duration::from_secs(seconds.unwrap_or(0)),
    }
}

/// Only labels, taints, readiness and runtime features of a node are read.
fn prune_node(node: &mut Node) {
    node.metadata.annotations = None;
    if let Some(status) = node.status.as_mut() {
        status.images = None;
        status.allocatable = None;
        status.capacity = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        let others = status.conditions.iter_mut().flatten().filter(|condition| condition.type_ != NODE_READY_CONDITION);
        others.for_each(|condition| condition.last_heartbeat_time = None);
    }
}

/// Drops the fields of a lease that the tap does not read.
fn prune_lease(lease: &mut Lease) {
    lease.metadata.annotations = None;
    lease.metadata.labels = None;
    lease.metadata.owner_references = None;
    if let Some(spec) = lease.spec.as_mut() {
        spec.holder_identity = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: serde_json::Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [ready]}})).expect("a node")
    }

    fn lease(renewed: &str, seconds: i32) -> Lease {
        let spec = json!({"holderIdentity": "n", "renewTime": renewed, "leaseDurationSeconds": seconds});
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec})).expect("a lease")
    }

    #[test]
    fn a_node_is_reported_unless_its_readiness_is_unknown() {
        let with = |status: &str| node(json!({"type": "Ready", "status": status}));
        assert!(is_responding(&with("True")) && is_responding(&with("False")) && !is_responding(&with("Unknown")));
        assert!(is_responding(&node(json!({"type": "DiskPressure", "status": "Unknown"}))), "that is no readiness");
        let judgements = NodeJudgements::default();
        assert_eq!(judgements.reach(&with("Unknown"), false), NodeReach::Silent, "nothing was observed");
        assert_eq!(judgements.reach(&with("Unknown"), true), NodeReach::Unreachable, "a leader before us had");
    }

    #[test]
    fn pruning_keeps_what_is_read() {
        let mut kept = node(json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:10Z"}));
        let before = last_status_time(&kept);
        prune_node(&mut kept);
        assert_eq!((before, last_status_time(&kept)), (Some(1_767_225_610_000_000), before));
        let mut kept = lease("2026-01-01T00:00:10.000001Z", 40);
        prune_lease(&mut kept);
        let expected = node_liveness::Lease { renewed: 1_767_225_610_000_001, duration: Duration::from_secs(40) };
        assert_eq!(lease_facts(&kept), expected);
        assert_eq!(lease_facts(&lease("2026-01-01T00:00:10.000001Z", -1)).duration, Duration::ZERO);
    }
}
