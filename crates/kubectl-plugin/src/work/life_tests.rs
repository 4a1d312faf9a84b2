//! Tests of the state, the order and the allowed changes of items.

use super::*;
use serde_json::Value;

/// An item of queue q, created at 00:02.
fn item(name: &str, spec: &Value, status: &Value) -> WorkItem {
    let mut all = json!({"queueRef": {"name": "q"}});
    spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:02:00Z"}, "spec": all, "status": status}))
    .expect("a WorkItem")
}

fn queue(spec: &Value) -> WorkQueue {
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q"}, "spec": spec}))
        .expect("a WorkQueue")
}

#[test]
fn items_line_up_by_priority_then_submission_then_name() {
    let at = |time: &str| json!({"submitTime": time});
    let mut items = vec![
        item("made-now", &json!({}), &json!({})),
        item("z-ancient", &at("2020-01-01T00:00:00.000000Z"), &json!({})),
        item("a-minute-before", &at("2026-01-01T00:01:00.000000Z"), &json!({})),
        item("a-second-before", &at("2026-01-01T00:01:59.000000Z"), &json!({})),
        item("from-the-future", &at("2030-01-01T00:00:00.000000Z"), &json!({})),
        item("urgent", &json!({"priority": 5}), &json!({})),
        item("idle", &json!({"priority": -1}), &json!({})),
    ];
    sort_by_claim_order(&mut items);
    let names: Vec<String> = items.iter().map(|item| item.name_any()).collect();
    assert_eq!(names, ["urgent", "a-minute-before", "z-ancient", "a-second-before", "made-now", "from-the-future", "idle"]);
}

#[test]
fn phases_are_written_as_the_api_writes_them() {
    for one in Phase::ALL {
        assert_eq!(json!(one.name()), json!(convert::phase(one)));
        assert_eq!(phase(&item("i", &json!({}), &json!({"phase": one.name()}))), one);
    }
}

#[test]
fn a_state_has_phase_reason_and_words() {
    assert_eq!(state(&item("i", &json!({}), &json!({}))), "Pending: the operator has not observed it yet");
    let full = json!({"phase": "Rejected", "reason": "QueueFull", "conditions": [
        {"type": "Failed", "status": "True", "reason": "QueueFull", "message": "it holds 5", "lastTransitionTime": "2026-01-01T00:02:00Z"}]});
    assert_eq!(state(&item("i", &json!({}), &full)), "Rejected, QueueFull: it holds 5");
    let held =
        |phase: &str| item("i", &json!({}), &json!({"phase": phase, "lease": {"agent": "a-1", "holder": "p", "leaseTransitions": 1}}));
    assert_eq!((agent_of(&held("Leased")), agent_of(&held("Succeeded"))), (Some("a-1"), None));
    let routed = item("i", &json!({}), &json!({"queue": "other"}));
    assert_eq!((convert::queue_of(&routed), convert::queue_of(&item("i", &json!({}), &json!({})))), (Some("other"), Some("q")));
}

#[test]
fn a_failure_has_the_operators_words_or_those_of_its_last_attempt() {
    let attempt = |message: &str| json!({"epoch": 1, "agent": "a-1", "startTime": "2026-01-01T00:02:00Z", "endTime": "2026-01-01T00:02:00Z", "verb": "Fail", "message": message});
    let failed = json!({"phase": "Failed", "reason": "FailureRule", "attemptHistory": [attempt("first"), attempt("the queue\nis full")]});
    assert_eq!(failure_text(&item("i", &json!({}), &failed)).as_deref(), Some("the queue is full"));
    let mut told = failed;
    told["conditions"] = json!([{"type": "Failed", "status": "True", "reason": "R", "message": "it was too late", "lastTransitionTime": "2026-01-01T00:02:00Z"}]);
    assert_eq!(failure_text(&item("i", &json!({}), &told)).as_deref(), Some("it was too late"));
    assert_eq!(failure_text(&item("i", &json!({}), &json!({"phase": "Failed", "attemptHistory": [attempt(" ")]}))), None);
}

#[test]
fn only_what_can_be_started_again_is() {
    let redriven = |spec: Value, status: Value| redrive(&item("i", &spec, &status), &[]);
    let dead = |redrives: i64| json!({"phase": "DeadLettered", "redrives": redrives});
    let cases = [
        (json!({}), dead(0), Some(1)),
        (json!({"redrives": 2}), dead(2), Some(3)),
        (json!({}), dead(4), Some(5)),
        (json!({}), json!({"phase": "Failed"}), Some(1)),
        (json!({}), json!({"phase": "Expired"}), Some(1)),
        (json!({}), json!({"phase": "Rejected", "reason": "QueueFull"}), Some(1)),
        (json!({}), json!({"phase": "Suspended", "reason": "Restored"}), Some(1)),
        (json!({}), json!({"phase": "Suspended", "reason": "Suspended"}), None),
        (json!({}), json!({"phase": "Ready"}), None),
        (json!({}), json!({"phase": "Leased"}), None),
        (json!({}), json!({"phase": "Succeeded"}), None),
        (json!({}), json!({"phase": "Cancelled"}), None),
        (json!({"cancelRequested": true}), dead(0), None),
    ];
    for (spec, status, expected) in cases {
        match (redriven(spec.clone(), status.clone()), expected) {
            (Decision::Write(body), Some(number)) => assert_eq!(body, json!({"redrives": number}), "{spec} {status}"),
            (Decision::Refuse(_), None) => {}
            (other, _) => panic!("{spec} {status}: {other:?}"),
        }
    }
    assert!(matches!(redriven(json!({"redrives": 1}), dead(0)), Decision::Leave(words) if words.contains("already")));
    assert!(matches!(redriven(json!({}), json!({"phase": "Succeeded"})), Decision::Refuse(words) if words.contains("submit another item")));
}

#[test]
fn what_its_group_would_end_again_is_not_redriven() {
    let member = item("i", &json!({"group": "g"}), &json!({"phase": "DeadLettered"}));
    let cancelled = |time: &str| vec![queue(&json!({"cancelGroups": [{"group": "g", "time": time}]}))];
    assert!(matches!(redrive(&member, &cancelled("2026-01-01T00:02:00Z")), Decision::Refuse(words) if words.contains("group g")));
    assert!(matches!(redrive(&member, &cancelled("2026-01-01T00:01:59Z")), Decision::Write(_)), "it was made later");
}

#[test]
fn an_item_is_cancelled_once_and_before_its_end() {
    let cancelled = |spec: Value, phase: &str| cancel(&item("i", &spec, &json!({"phase": phase})));
    assert_eq!(cancelled(json!({}), "Leased"), Decision::Write(json!({"cancelRequested": true})));
    assert_eq!(cancelled(json!({"cancelRequested": true}), "Leased"), Decision::Leave("spec.cancelRequested is true already".into()));
    assert_eq!(cancelled(json!({}), "DeadLettered"), Decision::Leave("it has ended already (DeadLettered)".into()));
}

#[test]
fn a_priority_is_changed_for_as_long_as_the_item_may_be_given_out() {
    let with = |phase: &str, priority: i32| prioritize(&item("i", &json!({"priority": 2}), &json!({"phase": phase})), priority);
    for phase in ["Pending", "Ready", "Leased", "Paused", "DeadLettered", "Rejected", "Expired", "Failed"] {
        assert_eq!(with(phase, -7), Decision::Write(json!({"priority": -7})), "{phase}");
    }
    assert_eq!(with("Ready", 2), Decision::Leave("it has priority 2 already".into()));
    assert_eq!(with("Succeeded", 3), Decision::Leave("it is Succeeded, which is final: no agent gets it again".into()));
    let mut going = item("i", &json!({}), &json!({"phase": "Ready"}));
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    assert_eq!(prioritize(&going, 3), Decision::Refuse("is being deleted".into()));
}
