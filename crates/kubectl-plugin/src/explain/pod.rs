//! The problems that the status of a pod shows, as text. Pure.

use k8s_openapi::api::core::v1::{ContainerState, Pod};

/// The problems of a pod, the most important first; empty if it runs well.
pub fn pod_problems(pod: &Pod) -> Vec<String> {
    let mut words = Vec::new();
    if pod.metadata.deletion_timestamp.is_some() {
        words.push("it is being deleted".to_owned());
    }
    let Some(status) = pod.status.as_ref() else { return words };
    let whole: Vec<&str> =
        [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().filter(|text| !text.is_empty()).collect();
    if !whole.is_empty() {
        words.push(whole.join(": "));
    }
    let unscheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(unscheduled) = unscheduled {
        words.push(format!("not scheduled: {}", unscheduled.message.as_deref().or(unscheduled.reason.as_deref()).unwrap_or_default()));
    }
    let containers = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    for container in containers {
        if let Some(state) = container.state.as_ref().and_then(container_problem) {
            words.push(format!("container {} {state}", container.name));
        }
        if container.restart_count > 0 {
            words.push(format!("container {} was restarted {} times", container.name, container.restart_count));
        }
    }
    words
}

/// The state of a container that does not run, as text.
fn container_problem(state: &ContainerState) -> Option<String> {
    let with = |head: String, message: &Option<String>| match message.as_deref().map(str::trim) {
        Some(message) if !message.is_empty() => format!("{head}: {message}"),
        _ => head,
    };
    if let Some(waiting) = &state.waiting {
        return Some(with(format!("waits ({})", waiting.reason.as_deref().unwrap_or("no reason given")), &waiting.message));
    }
    let ended = state.terminated.as_ref()?;
    let reason = ended.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(with(format!("ended with exit code {}{reason}", ended.exit_code), &ended.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn told(status: Value) -> Vec<String> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": status});
        pod_problems(&serde_json::from_value(pod).expect("a pod"))
    }
    fn container(name: &str, restarts: i32, state: &Value) -> Value {
        json!({"name": name, "image": "x", "imageID": "", "ready": false, "restartCount": restarts, "state": state})
    }

    #[test]
    fn only_what_is_not_well_is_told() {
        let running = container("agent", 0, &json!({"running": {}}));
        assert!(told(json!({"phase": "Running", "containerStatuses": [running]})).is_empty());
        assert_eq!(
            told(json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]})),
            ["not scheduled: 0/1 nodes"]
        );
        let link = container("link", 2, &json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}));
        let agent = container("agent", 0, &json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        assert_eq!(
            told(
                json!({"reason": "Evicted", "message": "The node was low on memory", "initContainerStatuses": [link], "containerStatuses": [agent]})
            ),
            [
                "Evicted: The node was low on memory",
                "container link waits (ImagePullBackOff): Back-off",
                "container link was restarted 2 times",
                "container agent ended with exit code 137 (OOMKilled)",
            ]
        );
    }
}
