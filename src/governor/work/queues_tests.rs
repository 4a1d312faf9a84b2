//! The status of a queue.

use std::collections::HashSet;

use serde_json::Value;

use super::*;
use crate::api::WorkItem;
use crate::policy::work::admission::ProjectLimit;
use crate::telemetry::Metrics;

fn key() -> ObjectKey {
    ObjectKey { namespace: "team".into(), name: "bugs".into() }
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

/// The status of this queue with these items.
fn said(queue: &WorkQueue, items: &[WorkItem]) -> WorkQueueStatus {
    let (work_index, _) = WorkIndex::new(Metrics::default());
    work_index.items_listed(&HashSet::new());
    work_index.queues_listed();
    work_index.observe_queue("team", "bugs", Some(queue));
    items.iter().for_each(|item| work_index.observe(item));
    status(&key(), queue, &work_index, &[], Timestamp::UNIX_EPOCH)
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
    assert!(message.starts_with("the queue has 4 dead letters and keeps 5 (spec.deadLetters.max)"), "{message}");
    let (status, reason, message, _) = told(5);
    assert_eq!((status.as_str(), reason.as_str()), ("False", reasons::DEAD_LETTERS_FULL));
    assert!(message.contains("each new one deletes the oldest"), "{message}");
}

#[test]
fn a_queue_of_a_full_project_accepts_nothing_and_says_whose_limit_that_is() {
    let queue = queue(json!({}));
    let accepting = |most: Option<u64>| {
        let (work_index, _) = WorkIndex::new(Metrics::default());
        work_index.items_listed(&HashSet::new());
        work_index.queues_listed();
        work_index.observe_queue("team", "bugs", Some(&queue));
        [item(1, "Ready"), item(2, "Leased"), item(3, "Succeeded")].iter().for_each(|item| work_index.observe(item));
        let limit = most.map(|most| ProjectLimit { most, source: "Budget/b (spec.work.maxPending)".into() });
        work_index.with("team", |namespace_work| namespace_work.index.set_project_limit(limit));
        let status = status(&key(), &queue, &work_index, &[], Timestamp::UNIX_EPOCH);
        let accepting = find(&status.conditions, types::ACCEPTING).expect("it is always said").clone();
        (accepting.status, accepting.reason, accepting.message)
    };
    assert_eq!((accepting(None).1, accepting(Some(3)).1), (reasons::ACCEPTED.to_owned(), reasons::ACCEPTED.to_owned()));
    let (status, reason, message) = accepting(Some(2));
    assert_eq!((status.as_str(), reason.as_str()), ("False", reasons::PROJECT_FULL));
    assert!(
        message.starts_with("Budget/b (spec.work.maxPending) allows 2 unfinished items") && message.ends_with("there are 2"),
        "{message}"
    );
}

#[test]
fn one_dead_letter_more_is_a_count_and_no_news() {
    let queue = queue(json!({}));
    let mut known = queue.clone();
    known.status = Some(said(&queue, &[item(1, "DeadLettered")]));
    let (work_index, _) = WorkIndex::new(Metrics::default());
    work_index.items_listed(&HashSet::new());
    work_index.queues_listed();
    work_index.observe_queue("team", "bugs", Some(&known));
    [item(2, "DeadLettered"), item(3, "DeadLettered")].iter().for_each(|item| work_index.observe(item));
    let queues = Queues::default();
    let of = |written| KnownQueue { queue: known.clone(), written, put_off: None };
    let due = |written| {
        queues.0.lock().expect("not poisoned").insert(key(), of(written));
        queues.due(&work_index, &objectives::MissedItems::new()).len()
    };
    assert_eq!((due(None), due(Some(BootTime::now()))), (1, 0), "written at most each five seconds");
}

#[test]
fn only_what_fails_now_cancels_its_group_and_not_a_dead_letter_that_is_not_admitted_again() {
    use crate::governor::work::item_write::final_failure;
    use crate::policy::work::{Phase, Record};
    let fails =
        |before, after| final_failure(&Record { phase: before, ..Record::default() }, &Record { phase: after, ..Record::default() });
    assert!(fails(Phase::Leased, Phase::DeadLettered) && fails(Phase::Leased, Phase::Failed));
    assert!(!fails(Phase::DeadLettered, Phase::DeadLettered) && !fails(Phase::Leased, Phase::Succeeded));
}
