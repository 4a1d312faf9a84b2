//! The state of a namespace is bounded, and is forgotten with the namespace.

use serde_json::json;

use super::*;
use crate::policy::work::requires::PoolOffer;

fn queue(name: &str, version: u64) -> WorkQueue {
    let queue = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
        "spec": {},
    });
    serde_json::from_value(queue).expect("a WorkQueue")
}

fn observe(namespace_work: &mut NamespaceWork, name: &str, version: u64, phase: &str) {
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueRef": {"name": "bugs"}, "plan": {"id": "plan-1", "size": 1}, "bulkhead": {"tokens": 5}},
        "status": {"phase": phase, "queue": "bugs"},
    });
    let item: WorkItem = serde_json::from_value(item).expect("a WorkItem");
    drop(namespace_work.observe(name, &item, convert::entry(&item)));
}

#[test]
fn queues_that_come_and_go_leave_few_traces_and_none_comes_back_by_a_late_answer() {
    let mut namespace_work = NamespaceWork::default();
    namespace_work.observe_queue("stays", Some(&queue("stays", 1)));
    for at in 0..1_000 {
        let name = format!("q{at}");
        namespace_work.observe_queue(&name, Some(&queue(&name, 10 + at)));
        namespace_work.observe_queue(&name, None);
        namespace_work.observe_queue(&name, Some(&queue(&name, 9 + at)));
        assert!(namespace_work.index.queue(&name).is_none(), "an answer to a write before its end");
    }
    assert!(namespace_work.queue_versions.len() <= MAX_DELETED_QUEUES + 2, "{}", namespace_work.queue_versions.len());
    assert!(namespace_work.queue_versions.contains_key("stays"));
}

#[test]
fn what_is_remembered_of_an_item_goes_with_it() {
    let mut namespace_work = NamespaceWork::default();
    observe(&mut namespace_work, "i", 1, "Leased");
    namespace_work.advanced("uid-i", ProgressUpdate { percent: Some(5), message: Some("m".into()), ..ProgressUpdate::default() });
    assert_eq!(
        (
            namespace_work.progress.len(),
            namespace_work.progressed_attempts.len(),
            namespace_work.shares.len(),
            namespace_work.names.len(),
            namespace_work.tally.len()
        ),
        (1, 1, 1, 1, 1)
    );
    observe(&mut namespace_work, "i", 2, "Succeeded");
    assert_eq!((namespace_work.ended_plans.len(), namespace_work.progress.len()), (1, 0));
    namespace_work.forget("i", "uid-i");
    let NamespaceWork { names, progress, progressed_attempts: worth, shares, used, ended_plans, tally, .. } = &namespace_work;
    assert_eq!((names.len(), progress.len(), worth.len(), shares.len(), used.len(), ended_plans.len(), tally.len()), (0, 0, 0, 0, 0, 0, 0));
    assert!(namespace_work.is_empty());
}

#[test]
fn pods_that_waited_listened_or_were_to_go_are_forgotten_when_they_are_not_heard_again() {
    let mut namespace_work = NamespaceWork::default();
    for at in 0..100 {
        let pod = format!("pod-{at}");
        namespace_work.add_waiter(&pod, BTreeMap::new(), takes(&[]));
        namespace_work.add_listener(&pod, "pool");
        namespace_work.retire(&format!("retired-{at}"));
    }
    namespace_work.waiting.values_mut().for_each(|waiting| waiting.since = BootTime::default());
    namespace_work.listening.values_mut().for_each(|(_, since)| *since = BootTime::default());
    namespace_work.retired.values_mut().for_each(|since| *since = BootTime::default());
    assert!(!namespace_work.is_empty());
    namespace_work.take_pods_to_signal();
    namespace_work.counts_changed();
    assert!(namespace_work.is_empty(), "which also gives the room back");
}

#[test]
fn what_ended_is_remembered_until_the_watch_has_told_of_it() {
    let mut namespace_work = NamespaceWork::default();
    namespace_work.news.extend((0..1_000).map(|version| (version, "pool".to_owned())));
    namespace_work.watch(2_000);
    namespace_work.take_pods_to_signal();
    assert!(namespace_work.news.is_empty());
}

/// A ready item that needs a model.
fn needing(namespace_work: &mut NamespaceWork, name: &str, version: u64, model: &str, submitter: Option<&str>) {
    requiring(namespace_work, name, version, json!({"models": [model]}), submitter);
}

fn requiring(namespace_work: &mut NamespaceWork, name: &str, version: u64, requires: serde_json::Value, submitter: Option<&str>) {
    let labels = submitter.map(|pool| json!({"spillway.dev/submitted-by": pool}));
    let item = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels},
        "spec": {"queueRef": {"name": "bugs"}, "requires": requires},
        "status": {"phase": "Ready", "queue": "bugs"},
    });
    let item: WorkItem = serde_json::from_value(item).expect("a WorkItem");
    drop(namespace_work.observe(name, &item, convert::entry(&item)));
}

fn takes(models: &[&str]) -> PoolIntake {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    PoolIntake { queues: vec![("bugs".into(), Vec::new())], offer: PoolOffer { models, ..Default::default() }, outside_cluster: false }
}

#[test]
fn that_no_pool_has_what_items_need_is_told_once_for_all_that_are_alike() {
    let mut namespace_work = NamespaceWork::default();
    namespace_work.observe_queue("bugs", Some(&queue("bugs", 1)));
    assert_eq!(namespace_work.set_offers(|| panic!("nobody needs anything")), [""; 0]);
    for (at, (name, model, submitter)) in
        [("a", "big", None), ("b", "big", None), ("c", "big", Some("planner")), ("d", "other", None)].into_iter().enumerate()
    {
        needing(&mut namespace_work, name, 10 + u64::try_from(at).expect("small"), model, submitter);
    }
    assert_eq!(namespace_work.tell_unmet("a"), None, "no pool is known that works from the queue");
    assert_eq!(namespace_work.set_offers(|| vec![takes(&["small"])]).len(), 4);
    let words = "no AgentPool that takes items from WorkQueue/bugs offers what the item requires: big (requires.models). Add it to a \
                 pool, or submit the item without it";
    assert_eq!((namespace_work.unmet("a").as_deref(), namespace_work.tell_unmet("a").as_deref()), (Some(words), Some(words)));
    assert_eq!((namespace_work.tell_unmet("a"), namespace_work.tell_unmet("b")), (None, None), "one like it was told of");
    assert!(namespace_work.tell_unmet("c").is_some() && namespace_work.tell_unmet("d").is_some(), "another submitter, and another need");
    // A requirement that a pool meets is forgotten, and is reported again when no pool meets it any more.
    assert_eq!(namespace_work.set_offers(|| vec![takes(&["small"]), takes(&["b*"])]).len(), 4);
    assert_eq!((namespace_work.unmet("a"), namespace_work.unmet.len()), (None, 1));
    namespace_work.set_offers(|| vec![takes(&["small"])]);
    assert!(namespace_work.tell_unmet("b").is_some());
    for at in 0..100 {
        let name = format!("e{at}");
        needing(&mut namespace_work, &name, 100 + at, &name, None);
        assert!(namespace_work.tell_unmet(&name).is_some());
        namespace_work.forget(&name, &format!("uid-{name}"));
        namespace_work.set_offers(|| vec![takes(&["small"])]);
    }
    assert!(namespace_work.unmet.len() <= 3, "only what is there is remembered: {:?}", namespace_work.unmet);
    ["a", "b", "c", "d"].iter().for_each(|name| drop(namespace_work.forget(name, &format!("uid-{name}"))));
    namespace_work.set_offers(Vec::new);
    assert!(namespace_work.unmet.is_empty(), "nothing is kept of what is gone");
}

#[test]
fn who_waits_is_called_for_what_its_pool_has() {
    let mut namespace_work = NamespaceWork::default();
    namespace_work.observe_queue("bugs", Some(&queue("bugs", 1)));
    needing(&mut namespace_work, "a", 10, "big", None);
    namespace_work.add_waiter("without", BTreeMap::new(), takes(&["small"]));
    assert_eq!(namespace_work.take_pods_to_signal(), [""; 0]);
    namespace_work.add_waiter("with", BTreeMap::new(), takes(&["b*"]));
    assert_eq!(namespace_work.take_pods_to_signal(), ["with"]);
}

#[test]
fn an_agent_outside_the_cluster_is_not_called_for_what_only_pods_of_its_pool_have() {
    let mut namespace_work = NamespaceWork::default();
    namespace_work.observe_queue("bugs", Some(&queue("bugs", 1)));
    requiring(&mut namespace_work, "a", 10, json!({"volumes": ["repo"]}), None);
    let labels = BTreeMap::from([(names::POOL_LABEL.to_owned(), "p".to_owned())]);
    let offer = PoolOffer { volumes: ["repo".to_owned()].into(), ..Default::default() };
    let pool = PoolIntake { offer, ..takes(&[]) };
    namespace_work.add_waiter("laptop", labels.clone(), pool.clone().for_outside());
    namespace_work.take_from(|_| Some(pool.clone()));
    assert_eq!(namespace_work.take_pods_to_signal(), [""; 0], "also when its pool is looked at again");
    namespace_work.add_waiter("pod", labels, pool);
    assert_eq!(namespace_work.take_pods_to_signal(), ["pod"]);
}
