//! What the status of a queue says.

use std::collections::HashSet;

use serde_json::Value;

use super::*;
use crate::api::WorkItem;

fn key() -> Key {
    Key { namespace: "team".into(), name: "bugs".into() }
}

fn queue(spec: Value) -> WorkQueue {
    let meta = json!({"name": "bugs", "namespace": "team", "resourceVersion": "1", "generation": 3});
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": meta, "spec": spec}))
        .expect("a WorkQueue")
}

fn item(at: u32, phase: &str) -> WorkItem {
    let meta = json!({"name": format!("i{at}"), "namespace": "team", "uid": format!("u{at}"), "resourceVersion": (10 + at).to_string(),
        "creationTimestamp": "2026-01-01T00:00:00Z"});
    let status = json!({"phase": phase, "queue": "bugs", "completionTime": format!("2026-01-01T00:00:{at:02}Z")});
    let spec = json!({"queueRef": {"name": "bugs"}});
    serde_json::from_value(
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": meta, "spec": spec, "status": status}),
    )
    .expect("a WorkItem")
}

/// What is said of this queue with these items.
fn said(queue: &WorkQueue, items: &[WorkItem]) -> WorkQueueStatus {
    let (desk, _) = Desk::new();
    desk.items_listed(&HashSet::new());
    desk.queues_listed();
    desk.observe_queue("team", "bugs", Some(queue));
    items.iter().for_each(|item| desk.observe(item));
    status(&key(), queue, &desk, &[], Timestamp::UNIX_EPOCH)
}

#[test]
fn dead_letters_are_counted_timed_and_told_of_before_they_are_too_many() {
    let queue = queue(json!({"deadLetters": {"max": 5}}));
    let told = |dead: u32| {
        let items: Vec<WorkItem> = (0..9).map(|at| item(at, if at >= 1 && at <= dead { "DeadLettered" } else { "Succeeded" })).collect();
        let status = said(&queue, &items);
        let kept = find(&status.conditions, types::DEAD_LETTERS_KEPT).expect("it is always said").clone();
        let counts = status.counts.expect("counts");
        assert_eq!((counts.dead_lettered, counts.finished), (count(dead.into()), count((9 - dead).into())));
        (kept.status, kept.reason, kept.message, status.oldest_dead_letter_time.map(|time| time.0.to_string()))
    };
    let (status, reason, _, oldest) = told(0);
    assert_eq!((status.as_str(), reason.as_str(), oldest), ("True", reasons::DEAD_LETTERS_FIT, None));
    let (status, reason, _, oldest) = told(3);
    assert_eq!((status.as_str(), reason.as_str(), oldest.as_deref()), ("True", reasons::DEAD_LETTERS_FIT, Some("2026-01-01T00:00:01Z")));
    let (status, reason, message, _) = told(4);
    assert_eq!((status.as_str(), reason.as_str()), ("True", reasons::NEARLY_FULL));
    assert!(message.starts_with("it has 4 dead letters and keeps 5 (spec.deadLetters.max)"), "{message}");
    let (status, reason, message, _) = told(5);
    assert_eq!((status.as_str(), reason.as_str()), ("False", reasons::DEAD_LETTERS_FULL));
    assert!(message.contains("for each one more the oldest is deleted"), "{message}");
}

#[test]
fn one_dead_letter_more_is_a_count_and_no_news() {
    let queue = queue(json!({}));
    let mut known = queue.clone();
    known.status = Some(said(&queue, &[item(1, "DeadLettered")]));
    let (desk, _) = Desk::new();
    desk.items_listed(&HashSet::new());
    desk.queues_listed();
    desk.observe_queue("team", "bugs", Some(&known));
    [item(2, "DeadLettered"), item(3, "DeadLettered")].iter().for_each(|item| desk.observe(item));
    let queues = Queues::default();
    let of = |written| Known { queue: known.clone(), written, put_off: None };
    let due = |written| {
        queues.0.lock().expect("not poisoned").insert(key(), of(written));
        queues.due(&desk, &objectives::All::new()).len()
    };
    assert_eq!((due(None), due(Some(BootTime::now()))), (1, 0), "written at most each five seconds");
}
