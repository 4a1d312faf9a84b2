//! The state of the agent that holds an item, from the status of its Agent. Pure.

use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, names};
use crate::controller::agent::supervisor_pause_reason;
use crate::controller::conditions::find;
use crate::policy::work::item::Verb;
use crate::policy::work::transitions::HolderState;

/// The state of the holder of an item. It is gone when its Agent has ended, which happens when no process of its pod is
/// left.
pub(super) fn holder_state(agent: &Agent, pod: &str) -> HolderState {
    let status = agent.status.clone().unwrap_or_default();
    let other = agent.caller_uid().is_some_and(|known| known != pod);
    let ended = status.phase.is_some_and(AgentPhase::ended);
    // An Agent is hibernated only when nothing of its pod is left.
    let asleep = status.phase == Some(AgentPhase::Hibernated);
    if !ended && !asleep && !other {
        return supervisor_pause_reason(&status).map_or(HolderState::There, |reason| HolderState::Paused(reason.to_owned()));
    }
    let given_up = find(&status.conditions, types::GIVEN_UP).filter(|given_up| given_up.status == "True");
    let ready = find(&status.conditions, types::READY);
    let why = given_up.or(ready);
    let (reason, message) = why.map_or(("AgentEnded".to_owned(), String::new()), |why| (why.reason.clone(), why.message.clone()));
    if reason == reasons::TOKENS_EXHAUSTED {
        let labels = agent.metadata.labels.as_ref();
        let is_final = labels.and_then(|labels| labels.get(names::TYPE_LABEL)).is_some_and(|type_| type_ == names::DRONE_TYPE);
        return HolderState::Failed { reason, message, is_final };
    }
    let verb = match (given_up.map(|given_up| given_up.reason.as_str()), status.goodbye.is_some() || asleep) {
        (Some(reasons::ITEM_STALLED | reasons::ITEM_PAST_TIME), _) => Verb::Stalled,
        // Neither the item nor a node is at fault: the attempt does not count.
        (Some(reasons::TOKENS_SPENT | reasons::GANG_DIVERGENCE), _) => Verb::Release,
        (Some(_), _) | (None, false) => Verb::LeaseExpired,
        (None, true) => Verb::Release,
    };
    HolderState::Gone(verb, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn who_sleeps_or_has_another_pod_holds_nothing_any_more() {
        let agent = |status: Value| -> Agent {
            serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
        };
        let pod = |uid: &str| json!({"name": "a", "uid": uid});
        let end = |status: Value| holder_state(&agent(status), "u");
        assert_eq!(end(json!({"phase": "Idle", "podRef": pod("u")})), HolderState::There);
        assert_eq!(end(json!({"phase": "Goodbye", "podRef": pod("u")})), HolderState::There, "its pod may run");
        assert_eq!(end(json!({"phase": "Spawning"})), HolderState::There, "nothing is recorded: nothing follows");
        let conditions = |type_: &str, reason: &str| json!([{"type": type_, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let paused = |reason: &str| end(json!({"phase": "Paused", "podRef": pod("u"), "conditions": conditions("Paused", reason)}));
        assert_eq!(paused("TokenBudgetExceeded"), HolderState::Paused("TokenBudgetExceeded".into()));
        assert_eq!(paused("PausedBySupervisor"), HolderState::Paused("PausedBySupervisor".into()));
        assert_eq!(paused("PausedBySpec"), HolderState::There, "a person's pause takes nothing new, and goes on with what it holds");
        let ended = |reason: &str| end(json!({"phase": "ForceStopped", "podRef": pod("u"), "conditions": conditions("GivenUp", reason)}));
        assert!(matches!(ended("TokensSpent"), HolderState::Gone(Verb::Release, ..)));
        assert!(matches!(ended("TokensExhausted"), HolderState::Failed { is_final: false, .. }));
        assert!(matches!(ended("Reaped"), HolderState::Gone(Verb::LeaseExpired, ..)));
        assert!(matches!(end(json!({"phase": "Hibernated"})), HolderState::Gone(Verb::Release, ..)), "nothing of its pod is left");
        assert!(matches!(end(json!({"phase": "Spawning", "podRef": pod("another")})), HolderState::Gone(Verb::LeaseExpired, ..)));
    }

    #[test]
    fn who_works_outside_the_cluster_holds_its_item_until_its_agent_ended() {
        let agent = |status: Value| -> Agent {
            let spec = json!({"poolRef": {"name": "p"}, "external": {"user": "alice"}});
            serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "uid": "u"}, "spec": spec, "status": status})).expect("an Agent")
        };
        assert_eq!(holder_state(&agent(json!({"phase": "Active"})), "u"), HolderState::There);
        assert_eq!(holder_state(&agent(json!({"phase": "Stale"})), "u"), HolderState::There, "its end is not stored");
        assert!(matches!(holder_state(&agent(json!({"phase": "ForceStopped"})), "u"), HolderState::Gone(Verb::LeaseExpired, ..)));
        let said = json!({"phase": "Stopped", "goodbye": {"time": "2026-01-01T00:00:00Z"}});
        assert!(matches!(holder_state(&agent(said), "u"), HolderState::Gone(Verb::Release, ..)));
        assert!(
            matches!(holder_state(&agent(json!({"phase": "Idle"})), "before"), HolderState::Gone(Verb::LeaseExpired, ..)),
            "another of its name"
        );
    }
}
