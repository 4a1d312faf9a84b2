//! Converts pods and nodes, as the kubelet and the scheduler report them, into the types of `policy`. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodStatus};

use crate::api::names::NODE_PROFILE_LABEL_PREFIX;
use crate::policy::agent::{Hindrance, HindranceKind, PodObservation, Stage};
use crate::policy::node_liveness::NodeReach;

/// Taint with which a person confirms that a node is shut down.
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Time after its grace period at which a pod that still exists is deleted again, with the shortest grace period.
const DELETION_OVERDUE_GRACE: std::time::Duration = std::time::Duration::from_secs(10);

/// The observation of a pod. `node`: whether its node responds. `leaving_for`: how long we have seen it terminating.
pub fn observe_pod(pod: &Pod, node: NodeReach, leaving_for: std::time::Duration) -> PodObservation {
    let deleting = pod.metadata.deletion_timestamp.is_some();
    // Its deletion time is from another machine's clock and cannot be compared with ours.
    let grace = pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    let overdue = deleting && leaving_for >= std::time::Duration::from_secs(grace).saturating_add(DELETION_OVERDUE_GRACE);
    PodObservation { overdue, stage: stage(pod), deleting, node }
}

fn stage(pod: &Pod) -> Stage {
    let Some(status) = pod.status.as_ref() else { return Stage::Pending(None) };
    match status.phase.as_deref() {
        Some("Succeeded") => Stage::Succeeded,
        Some("Failed") => Stage::Failed(failure(status)),
        Some("Running") => Stage::Running { ready: condition(status, "Ready").is_some_and(|(state, ..)| state == "True") },
        // Pending, Unknown (an unreachable node is handled separately), and phases that later versions may add.
        _ => Stage::Pending(hindrance(status)),
    }
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == type_)?;
    Some((&found.status, found.reason.as_deref().unwrap_or_default(), found.message.as_deref().unwrap_or_default()))
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

/// Why a pod does not start, in the words of the scheduler or the kubelet.
fn hindrance(status: &PodStatus) -> Option<Hindrance> {
    if let Some(("False", "Unschedulable", message)) = condition(status, "PodScheduled") {
        return Some(Hindrance { kind: HindranceKind::Unschedulable, message: message.to_owned() });
    }
    containers(status).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let kind = match reason {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable" => HindranceKind::ImagePull,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "CrashLoopBackOff" | "StartError" => {
                HindranceKind::ContainerStart
            }
            _ => return None,
        };
        let message = waiting.message.as_deref().filter(|message| !message.is_empty()).unwrap_or(reason);
        Some(Hindrance { kind, message: format!("{reason}: {message}") })
    })
}

/// Why a pod failed, in the words of the kubelet.
fn failure(status: &PodStatus) -> String {
    let whole =
        [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().filter(|words| !words.is_empty()).collect::<Vec<_>>();
    if !whole.is_empty() {
        return whole.join(": ");
    }
    let ended = containers(status).find_map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        (terminated.exit_code != 0).then(|| {
            let reason = terminated.reason.as_deref().unwrap_or("Error");
            let message = terminated.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("container {} ended with exit code {} ({reason}){message}", container.name, terminated.exit_code)
        })
    });
    ended.unwrap_or_else(|| "the pod failed, and Kubernetes reports no reason".to_owned())
}

/// Whether the kubelet reported the end of all containers, or the pod never had a node.
pub fn all_containers_ended(pod: &Pod) -> bool {
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return true;
    }
    let Some(status) = pod.status.as_ref() else { return false };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return true;
    }
    let mut reported = false;
    let all = containers(status).all(|container| {
        reported = true;
        container.state.as_ref().is_some_and(|state| state.terminated.is_some())
    });
    reported && all
}

/// Whether the Ready condition of a node is True.
pub fn healthy(node: &Node) -> bool {
    let ready = node.status.iter().flat_map(|status| status.conditions.iter().flatten()).find(|condition| condition.type_ == "Ready");
    ready.is_some_and(|condition| condition.status == "True")
}

/// Whether a person confirmed that a node is shut down.
pub fn out_of_service(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == OUT_OF_SERVICE_TAINT)
}

/// Whether every node that can take a pod with this selector runs pods in user namespaces of their own.
pub fn all_have_user_namespaces<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    selector: &std::collections::BTreeMap<String, String>,
) -> bool {
    let mut any = false;
    let all = nodes.into_iter().filter(|node| selects(selector, node)).all(|node| {
        any = true;
        let handlers = node.status.iter().flat_map(|status| status.runtime_handlers.iter().flatten());
        let default = handlers.into_iter().find(|handler| handler.name.as_deref().unwrap_or_default().is_empty());
        default.and_then(|handler| handler.features.as_ref()?.user_namespaces).unwrap_or(false)
    });
    any && all
}

/// Says that no node has the profile that a pod requires, if that is why no node takes it: nodes match the rest of its selector. The
/// scheduler does not name labels.
pub fn explain_unschedulable<'a>(seen: &mut PodObservation, pod: &Pod, nodes: impl IntoIterator<Item = &'a Node>) {
    let Stage::Pending(Some(hindrance)) = &mut seen.stage else { return };
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    let label = selector.keys().find(|key| key.starts_with(NODE_PROFILE_LABEL_PREFIX)).cloned();
    let (HindranceKind::Unschedulable, Some(label)) = (hindrance.kind, label) else { return };
    let mut rest = selector.clone();
    rest.remove(&label);
    let candidates: Vec<&Node> = nodes.into_iter().filter(|node| selects(&rest, node)).collect();
    if candidates.is_empty() || candidates.iter().any(|node| selects(&selector, node)) {
        return;
    }
    *hindrance = Hindrance {
        kind: HindranceKind::NodeProfileMissing,
        message: format!(
            "spec.sandbox.isolation.seccomp of the pool is Localhost, and no node that the pool selects has the label {label}. Install the \
             profile on these nodes with sandbox.nodeProfile.enabled in the values of the chart (the pod of its DaemonSet on a node says why it \
             cannot), or set seccomp to AgentStrict and delete this Agent"
        ),
    };
}

fn selects(selector: &std::collections::BTreeMap<String, String>, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    #[test]
    fn a_hindrance_quotes_the_scheduler_or_the_kubelet() {
        let unschedulable = pod(json!({"metadata": {}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}]}}));
        let expected = Hindrance { kind: HindranceKind::Unschedulable, message: "0/1 nodes are available: 1 Insufficient cpu.".into() };
        assert_eq!(stage(&unschedulable), Stage::Pending(Some(expected)));

        let pull = pod(
            json!({"metadata": {}, "status": {"phase": "Pending", "containerStatuses": [{"name": "agent", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}}}]}}),
        );
        let Stage::Pending(Some(hindrance)) = stage(&pull) else { panic!("{:?}", stage(&pull)) };
        assert_eq!(
            (hindrance.kind, hindrance.message.as_str()),
            (HindranceKind::ImagePull, "ImagePullBackOff: Back-off pulling image \"x\"")
        );
    }

    #[test]
    fn a_pod_is_overdue_by_our_own_clock() {
        let after = |deleted: &str, seconds| {
            let meta = json!({"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 15});
            observe_pod(&pod(json!({"metadata": meta})), NodeReach::Heard, std::time::Duration::from_secs(seconds)).overdue
        };
        for deleted in ["1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
            assert!(!after(deleted, 24) && after(deleted, 25), "{deleted}");
        }
        assert!(
            !observe_pod(&pod(json!({"metadata": {}})), NodeReach::Heard, std::time::Duration::MAX).overdue,
            "nobody asked it to leave"
        );
    }

    #[test]
    fn a_gated_or_starting_pod_is_only_pending() {
        let gated = pod(json!({"metadata": {}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}]}}));
        assert_eq!(stage(&gated), Stage::Pending(None));
        assert_eq!(stage(&pod(json!({"metadata": {}}))), Stage::Pending(None));
    }

    #[test]
    fn a_failure_names_the_container_and_the_reason() {
        let oom = pod(
            json!({"metadata": {}, "status": {"phase": "Failed", "containerStatuses": [{"name": "agent", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}),
        );
        assert_eq!(stage(&oom), Stage::Failed("container agent ended with exit code 137 (OOMKilled)".into()));
        let evicted = pod(json!({"metadata": {}, "status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}));
        assert_eq!(stage(&evicted), Stage::Failed("Evicted: low on memory".into()));
    }

    #[test]
    fn ended_means_reported_by_the_kubelet_or_never_on_a_node() {
        assert!(all_containers_ended(&pod(json!({"metadata": {}}))));
        let on_node =
            |status: serde_json::Value| pod(json!({"metadata": {}, "spec": {"containers": [], "nodeName": "n"}, "status": status}));
        let container = |state: serde_json::Value| json!({"name": "agent", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        assert!(!all_containers_ended(&on_node(json!({"phase": "Running", "containerStatuses": [container(json!({"running": {}}))]}))));
        assert!(!all_containers_ended(&on_node(json!({"phase": "Pending"}))), "assigned: the kubelet may be starting it");
        assert!(all_containers_ended(&on_node(
            json!({"phase": "Running", "containerStatuses": [container(json!({"terminated": {"exitCode": 0}}))]})
        )));
        assert!(all_containers_ended(&on_node(json!({"phase": "Failed"}))));
    }

    #[test]
    fn user_namespaces_only_where_every_fitting_node_has_them() {
        let node = |zone: &str, has: bool| -> Node {
            serde_json::from_value(json!({"metadata": {"labels": {"zone": zone}}, "status": {"runtimeHandlers": [{"name": "", "features": {"userNamespaces": has}}]}})).expect("a node")
        };
        let (with, without) = (node("a", true), node("b", false));
        let zone_a = [("zone".to_owned(), "a".to_owned())].into();
        assert!(all_have_user_namespaces([&with], &Default::default()));
        assert!(!all_have_user_namespaces([&with, &without], &Default::default()));
        assert!(all_have_user_namespaces([&with, &without], &zone_a));
        assert!(!all_have_user_namespaces([], &Default::default()), "no node: nothing is promised");
    }

    #[test]
    fn a_missing_profile_is_told_where_it_alone_keeps_a_pod_from_its_nodes() {
        let label = "seccomp.spillway.dev/agent-strict-0123abcd";
        let node = |labels: serde_json::Value| -> Node { serde_json::from_value(json!({"metadata": {"labels": labels}})).expect("a node") };
        let said = |selector: serde_json::Value, reason: &str, nodes: &[Node]| {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/1 nodes"});
            let pod = pod(
                json!({"metadata": {}, "spec": {"containers": [], "nodeSelector": selector}, "status": {"phase": "Pending", "conditions": [condition]}}),
            );
            let mut seen = observe_pod(&pod, NodeReach::Heard, std::time::Duration::ZERO);
            explain_unschedulable(&mut seen, &pod, nodes);
            if let Stage::Pending(Some(hindrance)) = seen.stage { Some((hindrance.kind, hindrance.message)) } else { None }
        };
        let plain = [node(json!({"disk": "ssd"})), node(json!({}))];
        let (kind, message) = said(json!({label: "installed", "disk": "ssd"}), "Unschedulable", &plain).expect("a hindrance");
        assert_eq!(kind, HindranceKind::NodeProfileMissing);
        assert!(message.contains(label) && message.contains("sandbox.nodeProfile.enabled"), "{message}");
        // A node has the profile, and something else keeps the pod away.
        let installed = [node(json!({"disk": "ssd", label: "installed"}))];
        let other = Some((HindranceKind::Unschedulable, "0/1 nodes".to_owned()));
        assert_eq!(said(json!({label: "installed", "disk": "ssd"}), "Unschedulable", &installed), other);
        // It is on no node that the pool selects.
        assert_eq!(said(json!({label: "installed", "disk": "hdd"}), "Unschedulable", &plain), other);
        assert_eq!(said(json!({label: "installed"}), "Unschedulable", &[]), other);
        assert_eq!(said(json!({"disk": "hdd"}), "Unschedulable", &plain), other);
        assert_eq!(said(json!({label: "installed"}), "SchedulingGated", &plain), None);
    }
}
