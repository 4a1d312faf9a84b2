//! What an Agent's status says of how it is.

use super::*;
use serde_json::{Value, json};

#[test]
fn who_sleeps_or_has_another_pod_holds_nothing_any_more() {
    let agent = |status: Value| -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    };
    let pod = |uid: &str| json!({"name": "a", "uid": uid});
    let end = |status: Value| end_of(&agent(status), "u");
    assert_eq!(end(json!({"phase": "Idle", "podRef": pod("u")})), HolderIs::There);
    assert_eq!(end(json!({"phase": "Goodbye", "podRef": pod("u")})), HolderIs::There, "its pod may run");
    assert_eq!(end(json!({"phase": "Spawning"})), HolderIs::There, "nothing is recorded: nothing follows");
    let conditions = |type_: &str, reason: &str| json!([{"type": type_, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let paused = |reason: &str| end(json!({"phase": "Paused", "podRef": pod("u"), "conditions": conditions("Paused", reason)}));
    assert_eq!(paused("TokenBudgetExceeded"), HolderIs::Paused("TokenBudgetExceeded".into()));
    assert_eq!(paused("PausedBySupervisor"), HolderIs::Paused("PausedBySupervisor".into()));
    assert_eq!(paused("PausedBySpec"), HolderIs::There, "a person's pause takes nothing new, and goes on with what it holds");
    let ended = |reason: &str| end(json!({"phase": "ForceStopped", "podRef": pod("u"), "conditions": conditions("GivenUp", reason)}));
    assert!(matches!(ended("TokensSpent"), HolderIs::Gone(Verb::Release, ..)));
    assert!(matches!(ended("TokensExhausted"), HolderIs::Failed { is_final: false, .. }));
    assert!(matches!(ended("Reaped"), HolderIs::Gone(Verb::LeaseExpired, ..)));
    assert!(matches!(end(json!({"phase": "Hibernated"})), HolderIs::Gone(Verb::Release, ..)), "nothing of its pod is left");
    assert!(matches!(end(json!({"phase": "Spawning", "podRef": pod("another")})), HolderIs::Gone(Verb::LeaseExpired, ..)));
}
