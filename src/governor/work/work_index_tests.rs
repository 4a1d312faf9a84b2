//! The index of work, filled with stored objects.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api::names;
use crate::policy::work::item_index::ClaimRequester;
use crate::policy::work::requires::PoolOffer;
use crate::wire::work::ProgressUpdate;

const NAMESPACE: &str = "team";

/// An index of work with these items, each `(name, version, phase, holder)`, with their first lease.
fn work_index(items: &[(&str, u64, &str, &str)]) -> WorkIndex {
    let (work_index, _) = WorkIndex::new(Metrics::default());
    work_index.items_listed(&HashSet::new());
    work_index.queues_listed();
    items.iter().for_each(|item| work_index.observe(&stored(item)));
    work_index
}

fn stored(&(name, version, phase, holder): &(&str, u64, &str, &str)) -> WorkItem {
    let lease = json!({"holder": holder, "agent": "a", "leaseTransitions": 1, "leaseDurationSeconds": 60, "acquireTime": "2026-01-01T00:00:00.000000Z"});
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueRef": {"name": "bugs"}},
        "status": {"phase": phase, "queue": "bugs", "lease": lease},
    });
    serde_json::from_value(item).expect("a WorkItem")
}

/// The intake of a pool that offers nothing that items can require.
fn taking(queues: &[(String, Vec<String>)]) -> PoolIntake {
    PoolIntake { queues: queues.to_vec(), ..PoolIntake::default() }
}

fn held(name: &str, epoch: i64) -> LeaseRef {
    LeaseRef { uid: format!("uid-{name}"), epoch }
}

#[test]
fn a_pod_is_told_of_the_item_that_it_has_whatever_else_it_holds() {
    let work_index = work_index(&[
        ("b", 5, "Leased", "p"),
        ("c", 6, "Leased", "p"),
        ("d", 7, "Cancelling", "p"),
        ("e", 8, "Leased", "q"),
        ("f", 9, "Paused", "p"),
    ]);
    let order = |held| work_index.order(NAMESPACE, "p", "a", &held).map(|wanted| wanted.order);
    assert_eq!((order(held("b", 1)), order(held("c", 1))), (None, None), "its first claim's answer was lost: both are its own");
    assert_eq!(order(held("d", 1)), Some(ItemOrder::Cancel));
    assert_eq!(order(held("f", 1)), Some(ItemOrder::Pause(0)));
    let holds = |held| work_index.with(NAMESPACE, |namespace_work| namespace_work.holds("p", &held));
    assert!(holds(held("b", 1)) && holds(held("c", 1)) && !holds(held("e", 1)) && !holds(held("b", 2)));
    let lost = Some(ItemOrder::Lost);
    assert_eq!((order(held("e", 1)), order(held("b", 2)), order(held("gone", 1))), (lost, lost, lost));
}

#[test]
fn only_what_this_attempt_got_done_is_worth_something() {
    let work_index = work_index(&[("b", 5, "Leased", "p")]);
    let worth = || work_index.holding(NAMESPACE, "p").expect("it holds it").made_progress;
    let says = |epoch, percent: Option<u8>, checkpoint: Option<&str>| {
        let said = ProgressUpdate { epoch, percent, checkpoint_ref: checkpoint.map(str::to_owned), ..ProgressUpdate::default() };
        work_index.with(NAMESPACE, |namespace_work| namespace_work.advanced("uid-b", said));
        worth()
    };
    assert!(!worth() && !says(1, Some(0), None) && !says(1, None, None), "words alone are no progress");
    assert!(says(1, Some(1), None));
    // Another leader reads it from the status. Progress that an earlier attempt left there has no time any more.
    for (progress, expected) in [
        (json!({"percent": 1, "updateTime": "2026-01-01T00:00:01Z"}), true),
        (json!({"checkpointRef": "x", "updateTime": "2026-01-01T00:00:01Z"}), true),
        (json!({"checkpointRef": "x"}), false),
        (json!({"percent": 0, "message": "reading", "updateTime": "2026-01-01T00:00:01Z"}), false),
    ] {
        let other = self::work_index(&[]);
        let mut item = stored(&("b", 5, "Leased", "p"));
        item.status.as_mut().expect("a status").progress = serde_json::from_value(progress.clone()).expect("progress");
        other.observe(&item);
        assert_eq!(other.holding(NAMESPACE, "p").expect("it holds it").made_progress, expected, "{progress}");
    }
}

#[test]
fn what_was_decided_on_something_else_is_not_remembered() {
    let work_index = work_index(&[("b", 5, "Ready", "")]);
    let entry = work_index.with(NAMESPACE, |namespace_work| namespace_work.index.get("b").cloned()).expect("it is known");
    work_index.observe(&stored(&("b", 6, "Leased", "p")));
    work_index.remember(NAMESPACE, "b", &entry, entry.record.clone());
    assert_eq!(work_index.holding(NAMESPACE, "p").map(|holding| holding.name).as_deref(), Some("b"), "it was claimed meanwhile");
}

#[test]
fn agents_of_a_pool_without_tokens_wait_and_are_called_when_it_has_some() {
    let work_index = work_index(&[("b", 5, "Ready", "")]);
    let queue = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "bugs", "resourceVersion": "1"}, "spec": {}});
    work_index.observe_queue(NAMESPACE, "bugs", Some(&serde_json::from_value(queue).expect("a WorkQueue")));
    let labels = BTreeMap::from([(names::POOL_LABEL.to_owned(), "p".to_owned())]);
    work_index.with(NAMESPACE, |namespace_work| namespace_work.add_waiter("pod", labels, taking(&[("bugs".to_owned(), Vec::new())])));
    let pools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>();
    assert!(!work_index.with(NAMESPACE, |namespace_work| namespace_work.hold_back(pools(&["p"]))), "nobody is let go");
    assert_eq!(work_index.called(NAMESPACE), [""; 0]);
    assert!(work_index.with(NAMESPACE, |namespace_work| namespace_work.hold_back(pools(&["other"]))), "it is let go");
    assert_eq!(work_index.called(NAMESPACE), ["pod"]);
}

#[test]
fn agents_of_a_pool_whose_circuit_refuses_are_not_called_until_it_is_let_go() {
    let work_index = work_index(&[("b", 5, "Ready", "")]);
    let queue = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "bugs", "resourceVersion": "1"}, "spec": {}});
    work_index.observe_queue(NAMESPACE, "bugs", Some(&serde_json::from_value(queue).expect("a WorkQueue")));
    let labels = BTreeMap::from([(names::POOL_LABEL.to_owned(), "p".to_owned())]);
    work_index.with(NAMESPACE, |namespace_work| {
        // As a refused claim does: otherwise the pod would be signalled again at once.
        namespace_work.stopped("p");
        namespace_work.add_waiter("pod", labels, taking(&[("bugs".to_owned(), Vec::new())]));
    });
    assert_eq!(work_index.called(NAMESPACE), [""; 0]);
    assert!(!work_index.with(NAMESPACE, |namespace_work| namespace_work.hold_back(HashSet::new())), "that there are tokens lets nobody go");
    assert_eq!(work_index.called(NAMESPACE), [""; 0]);
    assert!(work_index.with(NAMESPACE, |namespace_work| namespace_work.stop(HashSet::new())), "it is let go");
    assert_eq!(work_index.called(NAMESPACE), ["pod"]);
}

#[test]
fn an_item_is_due_once_however_often_it_changes_and_again_when_it_was_looked_at() {
    let (work_index, mut looks) = WorkIndex::new(Metrics::default());
    for _ in 0..1_000 {
        work_index.mark_due("team", "a");
        work_index.mark_due("team", "b");
        work_index.mark_due("other", "a");
    }
    assert_eq!(looks.len(), 3);
    let first = looks.try_recv().expect("it is due");
    work_index.mark_due("team", "a");
    assert_eq!(looks.len(), 2, "nobody has looked yet");
    work_index.clear_due(&first);
    work_index.mark_due("team", "a");
    assert_eq!(looks.len(), 3);
}

/// A queue without settings, as it is stored.
fn plain_queue(name: &str) -> WorkQueue {
    let meta = json!({"name": name, "namespace": NAMESPACE, "resourceVersion": "1"});
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": meta, "spec": {}}))
        .expect("a WorkQueue")
}

#[test]
fn another_priority_of_an_item_changes_whose_turn_it_is() {
    let work_index = work_index(&[("a", 5, "Ready", ""), ("b", 6, "Ready", ""), ("c", 7, "Ready", "")]);
    work_index.observe_queue(NAMESPACE, "bugs", Some(&plain_queue("bugs")));
    let queues = vec![("bugs".to_owned(), Vec::new())];
    let order = || {
        work_index.with(NAMESPACE, |namespace_work| {
            let mut places: Vec<(Option<usize>, String)> =
                namespace_work.index.iter().map(|(name, _)| (namespace_work.index.position(name), name.clone())).collect();
            places.sort();
            let taker = ClaimRequester {
                agent: "x",
                labels: &BTreeMap::new(),
                queues: &queues,
                offer: &PoolOffer::default(),
                now: UnixMillis(i64::MAX / 2),
            };
            let order: Vec<String> = places.into_iter().map(|(_, name)| name).collect();
            assert_eq!(namespace_work.next_for(&taker, false), order.first().cloned());
            order
        })
    };
    let prioritised = |name: &str, version: u64, priority: i32| {
        let mut item = stored(&(name, version, "Ready", ""));
        item.spec.priority = priority;
        work_index.observe(&item);
    };
    assert_eq!(order(), ["a", "b", "c"]);
    prioritised("c", 8, 10);
    assert_eq!(order(), ["c", "a", "b"]);
    prioritised("a", 9, -1);
    assert_eq!(order(), ["c", "b", "a"]);
    prioritised("c", 10, -2);
    assert_eq!(order(), ["b", "a", "c"]);
    prioritised("a", 8, 99);
    assert_eq!(order(), ["b", "a", "c"], "an older version says nothing");
}

#[test]
fn agents_that_wait_are_called_for_the_queues_that_their_pool_names_now() {
    let work_index = work_index(&[("b", 5, "Ready", "")]);
    ["bugs", "other"].iter().for_each(|queue| work_index.observe_queue(NAMESPACE, queue, Some(&plain_queue(queue))));
    let of = |queue: &str, types: &[&str]| vec![(queue.to_owned(), types.iter().map(|type_| (*type_).to_owned()).collect::<Vec<_>>())];
    let waits = |pod: &str, pool: &str, queues: Vec<_>| {
        let labels = BTreeMap::from([(names::POOL_LABEL.to_owned(), pool.to_owned())]);
        work_index.with(NAMESPACE, |namespace_work| namespace_work.add_waiter(pod, labels, taking(&queues)));
    };
    let edit = |queues: &[(String, Vec<String>)]| {
        work_index.with(NAMESPACE, |namespace_work| namespace_work.take_from(|pool| (pool == "p").then(|| taking(queues))));
        work_index.called(NAMESPACE)
    };
    waits("pod", "p", of("other", &[]));
    waits("pod-of-another", "q", of("other", &[]));
    assert_eq!(edit(&of("other", &[])), [""; 0]);
    assert_eq!(edit(&of("bugs", &["idea"])), [""; 0], "not of a type that is there");
    assert_eq!(edit(&of("bugs", &[])), ["pod"], "and not the agent of the pool that was not edited");
    waits("pod", "p", of("bugs", &[]));
    assert_eq!(edit(&of("other", &[])), [""; 0], "the queue was taken away from it");
    assert_eq!(edit(&[]), [""; 0]);
    waits("pod", "p", of("bugs", &[]));
    work_index.with(NAMESPACE, |namespace_work| namespace_work.take_from(|_| None));
    assert_eq!(work_index.called(NAMESPACE), ["pod"], "what is not known changes nothing");
}

#[test]
fn the_time_of_an_item_is_that_which_its_holder_is_measured_by() {
    let work_index = work_index(&[]);
    let mut item = stored(&("b", 5, "Leased", "p"));
    item.spec.bulkhead = serde_json::from_value(json!({"timeoutSeconds": 5})).expect("a bulkhead");
    work_index.observe(&item);
    let queue = json!({"metadata": {"name": "bugs", "resourceVersion": "1"}, "spec": {"itemDefaults": {"attemptTimeoutSeconds": 600}}});
    work_index.observe_queue(NAMESPACE, "bugs", Some(&serde_json::from_value(queue).expect("a WorkQueue")));
    let holding = work_index.holding(NAMESPACE, "p").expect("it holds it");
    assert_eq!(holding.policy.attempt_timeout, Duration::from_secs(5));
}

#[test]
fn a_namespace_says_how_full_it_is_where_that_is_limited() {
    let work_index = work_index(&[("a", 5, "Ready", ""), ("b", 6, "Succeeded", ""), ("c", 7, "Leased", "p")]);
    assert_eq!(work_index.project(NAMESPACE), None);
    let limit = ProjectLimit { most: 2, source: "Budget/b (spec.work.maxPending)".into() };
    work_index.with(NAMESPACE, |namespace_work| namespace_work.index.set_project_limit(Some(limit.clone())));
    assert_eq!((work_index.project(NAMESPACE), work_index.project("other")), (Some((2, limit)), None));
}

/// The lines of this metric, without those of zero.
fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
    let text = metrics.text().expect("encodes");
    let counts = |line: &&str| line.starts_with(metric) && !line.ends_with(" 0");
    let mut lines: Vec<String> = text.lines().filter(counts).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn queue(version: u64) -> WorkQueue {
    let queue = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue",
        "metadata": {"name": "bugs", "namespace": NAMESPACE, "uid": "uid-q", "resourceVersion": version.to_string()}, "spec": {},
    });
    serde_json::from_value(queue).expect("a WorkQueue")
}

fn item(version: u64, status: &serde_json::Value) -> WorkItem {
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": "i", "namespace": NAMESPACE, "uid": "uid-i", "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueRef": {"name": "bugs"}},
        "status": status,
    });
    serde_json::from_value(item).expect("a WorkItem")
}

#[test]
fn what_happens_to_an_item_counts_once_however_often_it_is_listed() {
    let metrics = Metrics::default();
    let (work_index, _) = WorkIndex::new(metrics.clone());
    work_index.observe_queue(NAMESPACE, "bugs", Some(&queue(1)));
    let new = item(2, &json!({}));
    let lease = json!({"holder": "p", "agent": "a", "leaseTransitions": 1, "acquireTime": "2026-01-01T00:00:09.000000Z"});
    let leased = item(4, &json!({"phase": "Leased", "queue": "bugs", "lease": lease}));
    let history =
        json!([{"epoch": 1, "agent": "a", "verb": "Complete", "startTime": "2026-01-01T00:00:09Z", "endTime": "2026-01-01T00:00:12Z"}]);
    let done = json!({"phase": "Succeeded", "queue": "bugs", "lease": {"leaseTransitions": 1}, "attemptHistory": history});
    let done = item(5, &done);
    let decide = || {
        let entry = work_index.with(NAMESPACE, |namespace_work| namespace_work.index.get("i").cloned()).expect("an item");
        work_index.remember(NAMESPACE, "i", &entry, Record { phase: Phase::Ready, queue: Some("bugs".into()), ..entry.record.clone() });
    };
    work_index.observe(&new);
    work_index.queues_listed();
    work_index.items_listed(&HashSet::new());
    assert_eq!(lines(&metrics, "spillway_queue_arrivals"), Vec::<String>::new(), "nobody has decided on it");
    decide();
    // A person changes the item, and it is decided again. Then the watch breaks, and everything is listed again.
    work_index.observe(&item(3, &json!({})));
    decide();
    for _ in 0..3 {
        work_index.observe(&leased);
        work_index.observe(&new);
        work_index.items_listed(&HashSet::new());
    }
    for _ in 0..3 {
        work_index.observe(&done);
        work_index.observe(&leased);
    }
    let of = r#"namespace="team",queue="bugs""#;
    assert_eq!(lines(&metrics, "spillway_queue_arrivals_total"), [format!("spillway_queue_arrivals_total{{{of}}} 1")]);
    assert_eq!(lines(&metrics, "spillway_queue_claims_total"), [format!("spillway_queue_claims_total{{{of}}} 1")]);
    assert_eq!(lines(&metrics, "spillway_queue_attempts_total"), [format!("spillway_queue_attempts_total{{{of},outcome=\"Complete\"}} 1")]);
    assert_eq!(lines(&metrics, "spillway_queue_ends_total"), [format!("spillway_queue_ends_total{{{of},outcome=\"Succeeded\"}} 1")]);
    assert_eq!(lines(&metrics, "spillway_queue_wait_seconds_count"), [format!("spillway_queue_wait_seconds_count{{{of}}} 1")]);
    assert_eq!(lines(&metrics, "spillway_queue_run_seconds_count"), [format!("spillway_queue_run_seconds_count{{{of}}} 1")]);
    work_index.measure();
    assert_eq!(lines(&metrics, "spillway_queue_items"), [format!("spillway_queue_items{{{of},phase=\"Succeeded\"}} 1")]);
    // A new leader counts nothing that it finds, and continues from there.
    let metrics = Metrics::default();
    let (work_index, _) = WorkIndex::new(metrics.clone());
    work_index.observe_queue(NAMESPACE, "bugs", Some(&queue(1)));
    work_index.observe(&leased);
    assert_eq!(lines(&metrics, "spillway_queue_claims"), Vec::<String>::new());
    work_index.observe(&done);
    assert_eq!(lines(&metrics, "spillway_queue_ends_total"), [format!("spillway_queue_ends_total{{{of},outcome=\"Succeeded\"}} 1")]);
}

#[test]
fn a_new_leader_knows_for_how_long_the_oldest_item_has_been_ready() {
    let metrics = Metrics::default();
    let (work_index, _) = WorkIndex::new(metrics.clone());
    work_index.observe_queue(NAMESPACE, "bugs", Some(&queue(1)));
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(4000);
    work_index
        .observe(&item(2, &json!({"phase": "Ready", "queue": "bugs", "readyTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})));
    work_index.measure();
    let line = lines(&metrics, "spillway_queue_oldest_ready_seconds");
    let age: u64 = line[0].rsplit(' ').next().and_then(|age| age.parse().ok()).expect("a number");
    assert!((4000..4010).contains(&age), "{line:?}");
    // An item that an agent has held counts as ready since the index first saw it, because the real time is not known.
    let before = json!({"phase": "Ready", "queue": "bugs", "attempts": 1, "readyTime": "2026-01-01T00:00:00Z"});
    let other = WorkIndex::new(metrics.clone()).0;
    other.observe_queue(NAMESPACE, "bugs", Some(&queue(1)));
    other.observe(&item(2, &before));
    other.measure();
    assert_eq!(lines(&metrics, "spillway_queue_oldest_ready_seconds"), Vec::<String>::new());
}

#[test]
fn series_go_with_their_queue_and_their_namespace() {
    let metrics = Metrics::default();
    let (work_index, _) = WorkIndex::new(metrics.clone());
    work_index.observe_queue(NAMESPACE, "bugs", Some(&queue(1)));
    work_index.observe(&item(2, &json!({})));
    work_index.measure();
    work_index.forget(NAMESPACE, "i", "uid-i");
    let of = r#"namespace="team",queue="bugs""#;
    assert_eq!(lines(&metrics, "spillway_queue_ends_total"), [format!("spillway_queue_ends_total{{{of},outcome=\"Deleted\"}} 1")]);
    work_index.observe(&item(3, &json!({})));
    work_index.observe_queue(NAMESPACE, "bugs", None);
    work_index.measure();
    let left = lines(&metrics, "spillway_queue_");
    assert_eq!(left, [r#"spillway_queue_items{namespace="team",queue="_none",phase="Pending"} 1"#], "its items are there");
    work_index.forget(NAMESPACE, "i", "uid-i");
    work_index.tidy();
    work_index.measure();
    assert_eq!(lines(&metrics, "spillway_queue_"), Vec::<String>::new());
}

#[test]
fn a_message_has_a_number_above_those_before_it_and_keeps_its_namespace() {
    let (work_index, _) = WorkIndex::new(Metrics::default());
    let pools = ["planner".to_owned(), "other".to_owned()];
    let message = Message::Escalated { agent: "a".into(), signal: "S".into(), text: "t".into(), item: None };
    let numbers = |namespace: &str| {
        work_index
            .with(namespace, |namespace_work| namespace_work.messages.after("planner", 0).map(|(number, _)| number).collect::<Vec<_>>())
    };
    work_index.tell("first", &pools, &message);
    work_index.tidy();
    assert_eq!(numbers("first"), [1], "an agent may be about to ask");
    // As in a namespace that was forgotten and is known again: a cursor of its first messages must not hide new ones.
    work_index.tell("second", &pools, &message);
    assert_eq!(numbers("second"), [3]);
}
