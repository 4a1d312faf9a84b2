//! What one namespace makes the governor remember is forgotten with it.

use serde_json::json;

use super::*;
use crate::policy::work::requires::Offer;

fn queue(name: &str, version: u64) -> WorkQueue {
    let queue = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
        "spec": {},
    });
    serde_json::from_value(queue).expect("a WorkQueue")
}

fn observe(room: &mut Room, name: &str, version: u64, phase: &str) {
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueRef": {"name": "bugs"}, "plan": {"id": "plan-1", "size": 1}, "bulkhead": {"tokens": 5}},
        "status": {"phase": phase, "queue": "bugs"},
    });
    let item: WorkItem = serde_json::from_value(item).expect("a WorkItem");
    drop(room.observe(name, &item, convert::entry(&item)));
}

#[test]
fn queues_that_come_and_go_leave_few_traces_and_none_comes_back_by_a_late_answer() {
    let mut room = Room::default();
    room.observe_queue("stays", Some(&queue("stays", 1)));
    for at in 0..1_000 {
        let name = format!("q{at}");
        room.observe_queue(&name, Some(&queue(&name, 10 + at)));
        room.observe_queue(&name, None);
        room.observe_queue(&name, Some(&queue(&name, 9 + at)));
        assert!(room.book.queue(&name).is_none(), "an answer to a write before its end");
    }
    assert!(room.queue_versions.len() <= GONE_QUEUES + 2, "{}", room.queue_versions.len());
    assert!(room.queue_versions.contains_key("stays"));
}

#[test]
fn what_is_remembered_of_an_item_goes_with_it() {
    let mut room = Room::default();
    observe(&mut room, "i", 1, "Leased");
    room.advanced("uid-i", Advance { percent: Some(5), message: Some("m".into()), ..Advance::default() });
    assert_eq!((room.progress.len(), room.worth.len(), room.shares.len(), room.names.len(), room.tally.len()), (1, 1, 1, 1, 1));
    observe(&mut room, "i", 2, "Succeeded");
    assert_eq!((room.ended_plans.len(), room.progress.len()), (1, 0));
    room.forget("i", "uid-i");
    let Room { names, progress, worth, shares, used, ended_plans, tally, .. } = &room;
    assert_eq!((names.len(), progress.len(), worth.len(), shares.len(), used.len(), ended_plans.len(), tally.len()), (0, 0, 0, 0, 0, 0, 0));
    assert!(room.is_empty());
}

#[test]
fn pods_that_waited_listened_or_were_to_go_are_forgotten_when_they_are_not_heard_again() {
    let mut room = Room::default();
    for at in 0..100 {
        let pod = format!("pod-{at}");
        room.waits(&pod, BTreeMap::new(), takes(&[]));
        room.listens(&pod, "pool");
        room.retire(&format!("retired-{at}"));
    }
    room.waiting.values_mut().for_each(|waiting| waiting.since = BootTime::default());
    room.listening.values_mut().for_each(|(_, since)| *since = BootTime::default());
    room.retired.values_mut().for_each(|since| *since = BootTime::default());
    assert!(!room.is_empty());
    room.called();
    room.moved();
    assert!(room.is_empty(), "which also gives the room back");
}

#[test]
fn what_ended_is_remembered_until_the_watch_has_told_of_it() {
    let mut room = Room::default();
    room.news.extend((0..1_000).map(|version| (version, "pool".to_owned())));
    room.watch(2_000);
    room.called();
    assert!(room.news.is_empty());
}

/// A ready item that needs a model.
fn needing(room: &mut Room, name: &str, version: u64, model: &str, submitter: Option<&str>) {
    requiring(room, name, version, json!({"models": [model]}), submitter);
}

fn requiring(room: &mut Room, name: &str, version: u64, requires: serde_json::Value, submitter: Option<&str>) {
    let labels = submitter.map(|pool| json!({"spillway.dev/submitted-by": pool}));
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels},
        "spec": {"queueRef": {"name": "bugs"}, "requires": requires},
        "status": {"phase": "Ready", "queue": "bugs"},
    });
    let item: WorkItem = serde_json::from_value(item).expect("a WorkItem");
    drop(room.observe(name, &item, convert::entry(&item)));
}

fn takes(models: &[&str]) -> Taking {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    Taking { queues: vec![("bugs".into(), Vec::new())], offer: Offer { models, ..Default::default() }, outside: false }
}

#[test]
fn that_no_pool_has_what_items_need_is_told_once_for_all_that_are_alike() {
    let mut room = Room::default();
    room.observe_queue("bugs", Some(&queue("bugs", 1)));
    assert_eq!(room.offered(|| panic!("nobody needs anything")), [""; 0]);
    for (at, (name, model, submitter)) in
        [("a", "big", None), ("b", "big", None), ("c", "big", Some("planner")), ("d", "other", None)].into_iter().enumerate()
    {
        needing(&mut room, name, 10 + u64::try_from(at).expect("small"), model, submitter);
    }
    assert_eq!(room.tell_unmet("a"), None, "no pool is known that works from the queue");
    assert_eq!(room.offered(|| vec![takes(&["small"])]).len(), 4);
    let words = "no AgentPool that works from WorkQueue/bugs has what it needs: big (requires.models)";
    assert_eq!((room.unmet("a").as_deref(), room.tell_unmet("a").as_deref()), (Some(words), Some(words)));
    assert_eq!((room.tell_unmet("a"), room.tell_unmet("b")), (None, None), "one like it was told of");
    assert!(room.tell_unmet("c").is_some() && room.tell_unmet("d").is_some(), "another submitter, and another need");
    // What some pool has is forgotten, and told again when nobody has it any more.
    assert_eq!(room.offered(|| vec![takes(&["small"]), takes(&["b*"])]).len(), 4);
    assert_eq!((room.unmet("a"), room.unmet.len()), (None, 1));
    room.offered(|| vec![takes(&["small"])]);
    assert!(room.tell_unmet("b").is_some());
    for at in 0..100 {
        let name = format!("e{at}");
        needing(&mut room, &name, 100 + at, &name, None);
        assert!(room.tell_unmet(&name).is_some());
        room.forget(&name, &format!("uid-{name}"));
        room.offered(|| vec![takes(&["small"])]);
    }
    assert!(room.unmet.len() <= 3, "only what is there is remembered: {:?}", room.unmet);
    ["a", "b", "c", "d"].iter().for_each(|name| drop(room.forget(name, &format!("uid-{name}"))));
    room.offered(Vec::new);
    assert!(room.unmet.is_empty(), "nothing is kept of what is gone");
}

#[test]
fn who_waits_is_called_for_what_its_pool_has() {
    let mut room = Room::default();
    room.observe_queue("bugs", Some(&queue("bugs", 1)));
    needing(&mut room, "a", 10, "big", None);
    room.waits("without", BTreeMap::new(), takes(&["small"]));
    assert_eq!(room.called(), [""; 0]);
    room.waits("with", BTreeMap::new(), takes(&["b*"]));
    assert_eq!(room.called(), ["with"]);
}

#[test]
fn an_agent_outside_the_cluster_is_not_called_for_what_only_pods_of_its_pool_have() {
    let mut room = Room::default();
    room.observe_queue("bugs", Some(&queue("bugs", 1)));
    requiring(&mut room, "a", 10, json!({"volumes": ["repo"]}), None);
    let labels = BTreeMap::from([(names::POOL_LABEL.to_owned(), "p".to_owned())]);
    let offer = Offer { volumes: ["repo".to_owned()].into(), ..Default::default() };
    let pool = Taking { offer, ..takes(&[]) };
    room.waits("laptop", labels.clone(), pool.clone().outside());
    room.take_from(|_| Some(pool.clone()));
    assert_eq!(room.called(), [""; 0], "also when its pool is looked at again");
    room.waits("pod", labels, pool);
    assert_eq!(room.called(), ["pod"]);
}
