//! The state of a bridge's pod, from its Deployment and its pods. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Characters of a container's last words that are kept.
const MAX_MESSAGE_CHARS: usize = 1024;
/// Waiting reasons of a container that are a part of every start.
const USUAL_WAITING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Waiting reason of a container that ended and is about to be started again.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The state of the pod of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// The pod of the newest template is ready.
    Ready,
    /// No pod is ready yet: what it waits for.
    Starting(String),
    /// The bridge ended: its last words.
    Failing(String),
}

/// Whether the newest template of the Deployment runs and is ready.
pub fn is_rolled_out(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    let count = |number: Option<i32>| number.unwrap_or(0);
    status.observed_generation == deployment.metadata.generation
        && count(status.updated_replicas) >= 1
        && count(status.ready_replicas) >= 1
        && status.replicas == status.updated_replicas
}

/// The state of pods that are not rolled out.
pub fn pod_state(deployment: Option<&Deployment>, pods: &[Pod]) -> PodState {
    let newest = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .max_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
    let Some(pod) = newest else {
        let refused = deployment.and_then(replica_failure);
        return PodState::Starting(refused.unwrap_or_else(|| "the pod is not created yet".to_owned()));
    };
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let init = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    if let Some(words) = init.iter().chain(containers).find_map(last_words) {
        return PodState::Failing(words);
    }
    if let Some(waiting) = init.iter().chain(containers).find_map(unusual_waiting) {
        return PodState::Starting(waiting);
    }
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unscheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    PodState::Starting(match unscheduled {
        Some(condition) => {
            let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
            bounded(&format!("{reason}: {}", condition.message.as_deref().unwrap_or_default()))
        }
        None => "the pod is starting".to_owned(),
    })
}

/// Why the API server refuses the pod, as the Deployment says it: a quota, or Pod Security.
fn replica_failure(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions.iter().find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")?;
    let reason = failure.reason.as_deref().unwrap_or("ReplicaFailure");
    Some(bounded(&format!("{reason}: {}", failure.message.as_deref().unwrap_or_default())))
}

/// What a container that ended said last. The newest end counts.
fn last_words(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref();
    let running = state.is_some_and(|state| state.running.is_some());
    let ended = state.and_then(|state| state.terminated.as_ref());
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let waits_to_restart =
        state.and_then(|state| state.waiting.as_ref()).is_some_and(|waiting| waiting.reason.as_deref() == Some(CRASH_LOOP));
    // A container that runs again may become ready, until it has ended twice.
    let again = before.filter(|_| waits_to_restart || (running && container.restart_count >= 2));
    let end = ended.filter(|end| end.exit_code != 0).or(again)?;
    let said = end.message.as_deref().unwrap_or_default().lines().rev().find(|line| !line.trim().is_empty());
    let said = said.map_or_else(|| end.reason.clone().unwrap_or_default(), str::to_owned);
    Some(bounded(&format!("container {} ended with exit code {}: {}", container.name, end.exit_code, said.trim())))
}

fn unusual_waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !USUAL_WAITING.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(bounded(&format!("container {}: {reason}: {message}", container.name)))
}

fn bounded(text: &str) -> String {
    text.trim_end_matches([' ', ':']).chars().take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deployment(status: Value) -> Deployment {
        serde_json::from_value(json!({"metadata": {"generation": 3}, "status": status})).expect("a Deployment")
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status})).expect("a pod")
    }

    fn container(state: Value, last: Value, restarts: i32) -> Value {
        let base = json!({"name": "bridge", "image": "i", "imageID": "", "ready": false, "restartCount": restarts, "state": state});
        let mut container = base;
        container["lastState"] = last;
        json!({"containerStatuses": [container]})
    }

    #[test]
    fn a_rollout_is_done_when_the_newest_pod_alone_is_ready() {
        let done = json!({"observedGeneration": 3, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1});
        assert!(is_rolled_out(&deployment(done.clone())));
        for (field, value) in [("observedGeneration", 2), ("replicas", 2), ("updatedReplicas", 0), ("readyReplicas", 0)] {
            let mut status = done.clone();
            status[field] = json!(value);
            assert!(!is_rolled_out(&deployment(status)), "{field}");
        }
        assert!(!is_rolled_out(&deployment(json!(null))));
    }

    #[test]
    fn a_starting_pod_says_what_it_waits_for() {
        let starting = |pods: &[Pod]| match pod_state(None, pods) {
            PodState::Starting(message) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(starting(&[]), "the pod is not created yet");
        assert_eq!(starting(&[pod(json!({}))]), "the pod is starting");
        let waiting = |reason: &str, message: &str| container(json!({"waiting": {"reason": reason, "message": message}}), json!({}), 0);
        assert_eq!(starting(&[pod(waiting("ContainerCreating", ""))]), "the pod is starting");
        let pull = starting(&[pod(waiting("ImagePullBackOff", "no such image"))]);
        assert_eq!(pull, "container bridge: ImagePullBackOff: no such image");
        let scheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"});
        assert_eq!(starting(&[pod(json!({"conditions": [scheduled]}))]), "Unschedulable: no node");
        let failure = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"});
        let refused = deployment(json!({"conditions": [failure]}));
        assert_eq!(pod_state(Some(&refused), &[]), PodState::Starting("FailedCreate: exceeded quota".into()));
    }

    #[test]
    fn a_bridge_that_ends_is_quoted() {
        let end = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "{\"level\":\"INFO\"}\nerror: disk.md line 3: command\n\n"}});
        let said = PodState::Failing("container bridge ended with exit code 1: error: disk.md line 3: command".into());
        let back_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        assert_eq!(pod_state(None, &[pod(container(end.clone(), json!({}), 0))]), said);
        assert_eq!(pod_state(None, &[pod(container(back_off, end.clone(), 1))]), said);
        let runs = json!({"running": {}});
        assert_eq!(pod_state(None, &[pod(container(runs.clone(), end.clone(), 2))]), said);
        assert_eq!(
            pod_state(None, &[pod(container(runs, end, 1))]),
            PodState::Starting("the pod is starting".into()),
            "it may become ready"
        );
        let silent = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert_eq!(
            pod_state(None, &[pod(container(silent, json!({}), 0))]),
            PodState::Failing("container bridge ended with exit code 137: OOMKilled".into())
        );
    }

    #[test]
    fn only_the_newest_pod_that_stays_counts() {
        let mut old = pod(json!({}));
        old.metadata.deletion_timestamp = old.metadata.creation_timestamp.clone();
        assert_eq!(pod_state(None, &[old]), PodState::Starting("the pod is not created yet".into()));
    }
}
