//! Describes the process of an agent outside the cluster as if it were a pod, from its own reports alone. Pure.

use std::time::Duration;

use crate::api::Agent;
use crate::api::agent_pool::AgentPoolSpec;
use crate::governor::live::View;
use crate::policy::agent::Pod;
use crate::policy::external::{Process, to_pod};
use crate::wire::agent::Program;

/// Grace period of an agent whose pool is missing.
const DEFAULT_GRACE_SECONDS: u32 = 15;

/// The state of the agent's process, as that of a pod.
pub fn process_as_pod(agent: &Agent, view: Option<&View>, spec: Option<&AgentPoolSpec>, now: jiff::Timestamp) -> Pod {
    let status = agent.status.as_ref();
    let said = status.and_then(|status| status.goodbye.as_ref()).map(|goodbye| goodbye.time.0);
    let deleted = agent.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let leaves = said.into_iter().chain(deleted).min();
    let report = view.and_then(|view| view.report.as_ref()).map(|(report, _)| report);
    let grace = spec.map_or(DEFAULT_GRACE_SECONDS, AgentPoolSpec::goodbye_timeout_seconds);
    to_pod(&Process {
        over: agent.has_ended() || status.is_some_and(super::is_given_up),
        leaving: leaves.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default()),
        grace: Duration::from_secs(grace.into()),
        ended: report.is_some_and(|report| report.program == Program::Ended),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::agent::{PodObservation, Stage};
    use crate::policy::node_liveness::NodeReach;
    use crate::policy::pod_termination::Verdict;
    use crate::wire::agent::Report;
    use serde_json::{Value, json};

    fn agent(metadata: Value, status: Value) -> Agent {
        let mut object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "uid": "u"},
            "spec": {"poolRef": {"name": "p"}, "external": {"user": "alice"}}, "status": status});
        object["metadata"].as_object_mut().expect("an object").extend(metadata.as_object().expect("an object").clone());
        serde_json::from_value(object).expect("an Agent")
    }
    fn at(agent: &Agent, view: Option<&View>, time: &str) -> Pod {
        process_as_pod(agent, view, None, time.parse().expect("a time"))
    }
    fn there(deleting: bool) -> Pod {
        Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting, node: NodeReach::Heard, overdue: false })
    }

    #[test]
    fn a_process_exists_until_it_left_or_its_end_is_stored() {
        let gone = Pod::Absent(Verdict::Gone);
        let now = "2026-01-01T00:00:10Z";
        assert_eq!(at(&agent(json!({}), json!({})), None, now), there(false), "nothing is known yet");
        let goodbye = json!({"phase": "Goodbye", "goodbye": {"time": "2026-01-01T00:00:00Z", "reason": "done"}});
        let leaves = agent(json!({}), goodbye);
        assert_eq!(at(&leaves, None, now), there(true));
        assert_eq!(at(&leaves, None, "2026-01-01T00:00:25Z"), gone, "15 s, and 10 s for its last words");
        let ended = View { report: Some((Report::of(Program::Ended), jiff::Timestamp::UNIX_EPOCH)), ..View::well() };
        assert_eq!(at(&leaves, Some(&ended), now), gone);
        let deleted = agent(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({"phase": "Idle"}));
        assert_eq!((at(&deleted, None, now), at(&deleted, Some(&ended), now)), (there(true), gone.clone()));
        assert_eq!(at(&agent(json!({}), json!({"phase": "Stopped"})), None, now), gone);
        let given_up = json!([{"type": "GivenUp", "status": "True", "reason": "HeartbeatLost", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(at(&agent(json!({}), json!({"phase": "Stale", "conditions": given_up})), None, now), gone, "all its calls are refused");
    }
}
