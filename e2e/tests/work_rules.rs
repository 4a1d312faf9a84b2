//! Rules of work that users edit in queues, items and Budgets: dead letters, priorities, which agents may take an item,
//! how long it may take, and how many items may wait.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kubectl_spillway::{Cluster, Terminal, work::priority};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{DeadLettered, Leased, Ready, Rejected, Succeeded};
use spillway::api::{Agent, Budget, WorkItem, WorkQueue};

use crate::support::work::{UNTIL_TOLD, attempts, phase};
use crate::support::{Operator, TestNamespace, check_state, eventually, within};

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    (room, operator)
}

/// Spec of a pool that scales as fast as possible.
fn fast_scaling_spec(max: u32) -> Value {
    json!({"scaling": {"min": 0, "max": max, "cooldownSeconds": 5}, "whenEmpty": {"action": "Terminate", "afterSeconds": 5}})
}

/// Waits until exactly these items are left.
async fn wait_for_items(room: &TestNamespace, wanted: &[&str]) {
    eventually(&format!("{wanted:?} are left"), async || {
        let items: Vec<WorkItem> = room.list().await;
        let mut names: Vec<String> = items.into_iter().filter_map(|item| item.metadata.name).collect();
        names.sort();
        check_state(names == wanted, || format!("{names:?}"))
    })
    .await;
}

/// Waits until a queue has this number of dead letters, and this condition DeadLettersKept; the time of the oldest.
async fn wait_for_dead_letters(room: &TestNamespace, queue: &str, count: i32, kept: (&str, &str)) -> Option<Timestamp> {
    eventually(&format!("queue {queue} has {count} dead letters and says {kept:?}"), async || {
        let queue: WorkQueue = room.api().get(queue).await.map_err(|error| error.to_string())?;
        let status = queue.status.unwrap_or_default();
        let said =
            status.conditions.iter().find(|one| one.type_ == "DeadLettersKept").map(|one| (one.status.as_str(), one.reason.as_str()));
        let there = status.counts.as_ref().and_then(|counts| counts.dead_lettered);
        check_state((there, said) == (Some(count), Some(kept)), || format!("{status:?}"))
            .map(|()| status.oldest_dead_letter_time.as_ref().map(|time| time.0))
    })
    .await
}

#[tokio::test]
async fn dead_letters_are_kept_apart_and_the_oldest_goes_when_there_are_too_many() {
    let (room, _operator) = set_up("letters").await;
    let queue = |ttl: u32| {
        let defaults = json!({"maxAttempts": 1, "ttlSecondsAfterFinished": 0});
        json!({"itemDefaults": defaults, "limits": {"maxFinished": 0}, "deadLetters": {"ttlSeconds": ttl, "max": 2}})
    };
    room.apply_queue("bugs", queue(3600)).await;
    room.apply_workers("fixers", &["bugs"], "exit $task", fast_scaling_spec(1)).await;
    room.submit("bugs", "dead-1", json!({"payload": "7"})).await;
    let first = room.wait_for_item_phase("dead-1", DeadLettered).await;
    room.submit("bugs", "done", json!({"payload": "0"})).await;
    wait_for_items(&room, &["dead-1"]).await;
    wait_for_dead_letters(&room, "bugs", 1, ("True", "DeadLettersFit")).await;
    room.submit("bugs", "dead-2", json!({"payload": "7"})).await;
    room.wait_for_item_phase("dead-2", DeadLettered).await;
    let oldest = wait_for_dead_letters(&room, "bugs", 2, ("False", "DeadLettersFull")).await;
    assert_eq!(oldest, first.status.and_then(|status| status.completion_time).map(|time| time.0));
    room.submit("bugs", "dead-3", json!({"payload": "7"})).await;
    wait_for_items(&room, &["dead-2", "dead-3"]).await;

    // A restarted item makes room, and ends like all others.
    room.change_item("dead-2", json!({"redrives": 1, "priority": 1})).await;
    eventually("the item was tried again", async || {
        let item = room.item("dead-2").await;
        let status = item.status.unwrap_or_default();
        let again = (status.redrives, status.phase) == (Some(1), Some(DeadLettered));
        check_state(again, || format!("{status:?}"))
    })
    .await;
    wait_for_items(&room, &["dead-2", "dead-3"]).await;

    // A shorter retention time applies to existing ones.
    room.apply_queue("bugs", queue(1)).await;
    wait_for_items(&room, &[]).await;
    assert_eq!(wait_for_dead_letters(&room, "bugs", 0, ("True", "DeadLettersFit")).await, None);
    room.close().await;
}

/// Runs `kubectl spillway priority`.
async fn prioritise(room: &TestNamespace, arguments: priority::Arguments) {
    let cluster = Cluster { client: room.client.clone(), namespace: room.namespace.clone() };
    let mut console = Terminal::default();
    priority::execute(&cluster, &priority::Arguments { yes: true, ..arguments }, &mut console).await.expect("it is written");
    assert!(!console.failed());
}

/// These items in the order of their first claims.
async fn claimed(room: &TestNamespace, names: &[&str]) -> Vec<String> {
    let mut order = Vec::new();
    for name in names {
        let status = room.wait_for_item_phase(name, Succeeded).await.status.unwrap_or_default();
        let began = status.attempt_history.and_then(|history| history.first().map(|first| first.start_time.0)).expect("an attempt");
        order.push((began, (*name).to_owned()));
    }
    order.sort();
    order.into_iter().map(|(_, name)| name).collect()
}

#[tokio::test]
async fn a_person_changes_the_order_of_a_queue() {
    let (room, _operator) = set_up("priority").await;
    room.apply_queue("bugs", json!({})).await;
    // Attempts have times in whole seconds, so each takes longer than one.
    let script = format!("case $SPILLWAY_ITEM in long) {UNTIL_TOLD};; *) sleep 2;; esac");
    room.apply_workers("fixers", &["bugs"], &script, fast_scaling_spec(1)).await;
    room.submit("bugs", "long", json!({})).await;
    room.wait_for_item_phase("long", Leased).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        room.submit("bugs", name, json!({"group": if name < "c" { "first" } else { "second" }})).await;
        room.wait_for_item_phase(name, Ready).await;
    }
    prioritise(&room, priority::Arguments { items: vec!["d".into(), "long".into()], priority: 9, ..priority::Arguments::default() }).await;
    let first =
        priority::Arguments { queue: Some("bugs".into()), group: Some("first".into()), priority: -1, ..priority::Arguments::default() };
    prioritise(&room, first).await;
    prioritise(&room, priority::Arguments { items: vec!["a".into()], priority: -2, ..priority::Arguments::default() }).await;
    room.release_item("long").await;
    assert_eq!(claimed(&room, &names).await, ["d", "c", "b", "a"]);
    room.close().await;
}

#[tokio::test]
async fn an_agent_that_waits_takes_from_the_queues_that_its_pool_names_now() {
    let (room, _operator) = set_up("edited").await;
    for queue in ["first", "second"] {
        room.apply_queue(queue, json!({})).await;
    }
    let pool = async |queues: Value| {
        room.apply_workers("fixers", &[], "exit 0", json!({"replicas": 1, "queues": queues})).await;
    };
    pool(json!([{"name": "first"}])).await;
    room.pods_ready(1).await;
    let mut agents = BTreeSet::new();
    for at in 0..4 {
        let (queue, other) = if at % 2 == 0 { ("second", "first") } else { ("first", "second") };
        let (name, left) = (format!("item-{at}"), format!("left-{at}"));
        // The agent has asked, and waits at a queue without work for it.
        room.submit(queue, &name, json!({})).await;
        room.wait_for_item_phase(&name, Ready).await;
        pool(json!([{"name": queue}])).await;
        // Much shorter than the pause before an agent asks again.
        let done = within(Duration::from_secs(10), &format!("{name} is done"), async || {
            let item = room.item(&name).await;
            check_state(phase(&item) == Some(Succeeded), || format!("{:?}", item.status)).map(|()| item)
        })
        .await;
        agents.extend(attempts(&done).into_iter().map(|(_, agent)| agent));
        // It gets no more items from the other queue.
        room.submit(other, &left, json!({})).await;
        room.wait_for_item_phase(&left, Ready).await;
        room.change_item(&left, json!({"cancelRequested": true})).await;
    }
    assert_eq!(agents.len(), 1, "the agent ran all the time: {agents:?}");
    // The types that it takes can be edited too.
    room.submit("first", "idea", json!({"type": "idea"})).await;
    pool(json!([{"name": "first", "types": ["bug"]}])).await;
    room.submit("first", "bug", json!({"type": "bug"})).await;
    room.wait_for_item_phase("bug", Succeeded).await;
    room.close().await;
}

#[tokio::test]
async fn an_item_is_taken_by_an_agent_whose_labels_it_asks_for_and_by_no_other() {
    let (room, _operator) = set_up("labels").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], "exit 0", json!({"replicas": 2})).await;
    room.pods_ready(2).await;
    let names: Vec<String> = room.list::<Agent>().await.into_iter().filter_map(|agent| agent.metadata.name).collect();
    let [large, plain] = names.try_into().expect("two agents");
    let label = Patch::Merge(json!({"metadata": {"labels": {"size": "large"}}}));
    room.api::<Agent>().patch(&large, &PatchParams::default(), &label).await.expect("it is labelled");
    let asks = |expressions: Value| json!({"agentSelector": {"matchExpressions": expressions}});
    let zones = json!([{"key": "size", "operator": "In", "values": ["small"]}]);
    room.submit("bugs", "nobody", json!({"priority": 9, "agentSelector": {"matchExpressions": zones}})).await;
    for round in 0..3 {
        for (at, (expressions, taker)) in [
            (json!([{"key": "size", "operator": "In", "values": ["small", "large"]}]), &large),
            (json!([{"key": "size", "operator": "NotIn", "values": ["large"]}]), &plain),
            (json!([{"key": "size", "operator": "Exists"}, {"key": "spillway.dev/pool", "operator": "In", "values": ["fixers"]}]), &large),
            (json!([{"key": "size", "operator": "DoesNotExist"}]), &plain),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("item-{round}-{at}");
            room.submit("bugs", &name, asks(expressions.clone())).await;
            let done = room.wait_for_item_phase(&name, Succeeded).await;
            assert_eq!(attempts(&done), [("Complete".to_owned(), taker.clone())], "{expressions}");
        }
    }
    // It waits, and those behind it do not. Phases of waiting items are stored later than those of others.
    room.wait_for_item_phase("nobody", Ready).await;
    room.close().await;
}

#[tokio::test]
async fn an_item_may_say_how_long_an_attempt_at_it_may_take() {
    let (room, _operator) = set_up("task-time").await;
    room.apply_queue("bugs", json!({"itemDefaults": {"attemptTimeoutSeconds": 3600, "maxStalls": 1}})).await;
    room.apply_workers("fixers", &["bugs"], "while [ \"$task\" = hang ]; do echo working; sleep 1; done; sleep 10", fast_scaling_spec(2))
        .await;
    room.submit("bugs", "short", json!({"payload": "hang", "bulkhead": {"timeoutSeconds": 5}})).await;
    room.submit("bugs", "long", json!({"payload": "go"})).await;
    let item = room.wait_for_item_phase("short", DeadLettered).await;
    let status = item.status.clone().expect("a status");
    assert_eq!((status.reason.as_deref(), status.failures, status.stalls), (Some("TooManyStalls"), Some(0), Some(1)));
    let attempt = status.attempt_history.expect("a history").remove(0);
    assert_eq!((attempt.verb.as_str(), attempt.reason.as_deref()), ("Stalled", Some("ItemPastTime")), "{attempt:?}");
    let done = room.wait_for_item_phase("long", Succeeded).await;
    assert_eq!(attempts(&done).len(), 1, "an item without a time of its own has that of its queue");
    room.close().await;
}

#[tokio::test]
async fn what_people_make_beyond_their_project_is_rejected_with_the_numbers_before_an_agent_sees_it() {
    let (room, _operator) = set_up("full").await;
    let budget = async |most: u32| {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "team"}, "spec": {"work": {"maxPending": most}}});
        room.api::<Budget>().patch("team", &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("it is accepted");
    };
    budget(3).await;
    for queue in ["bugs", "ideas"] {
        room.apply_queue(queue, json!({})).await;
    }
    room.apply_workers("fixers", &["bugs", "ideas"], UNTIL_TOLD, json!({"replicas": 1, "budgetRef": {"name": "team"}})).await;
    for (queue, name) in [("bugs", "one"), ("ideas", "two"), ("bugs", "three")] {
        room.submit(queue, name, json!({})).await;
        eventually("the item is admitted", async || {
            let item = room.item(name).await;
            check_state(matches!(phase(&item), Some(Ready | Leased)), || format!("{:?}", item.status))
        })
        .await;
    }
    room.submit("ideas", "four", json!({"priority": 100})).await;
    let rejected = room.wait_for_item_phase("four", Rejected).await;
    let status = rejected.status.clone().expect("a status");
    assert_eq!((status.reason.as_deref(), status.attempts.unwrap_or(0), status.lease), (Some("ProjectFull"), 0, None));
    let failed = status.conditions.iter().find(|one| one.type_ == "Failed").expect("a condition");
    let words = "Budget/team (spec.work.maxPending) allows 3 unfinished items over all queues of the namespace, and there are 3";
    assert_eq!(failed.message, words);
    for queue in ["bugs", "ideas"] {
        eventually(&format!("queue {queue} accepts nothing"), async || {
            let queue: WorkQueue = room.api().get(queue).await.map_err(|error| error.to_string())?;
            let conditions = queue.status.unwrap_or_default().conditions;
            let full = conditions.iter().any(|one| one.type_ == "Accepting" && one.status == "False" && one.reason == "ProjectFull");
            check_state(full, || format!("{conditions:?}"))
        })
        .await;
    }
    // There is room, but a person must restart the item.
    budget(4).await;
    eventually("the item is admitted", async || {
        let item = room.item("four").await;
        let asked = item.spec.redrives.unwrap_or(0);
        let known = item.status.as_ref().and_then(|status| status.redrives).unwrap_or(0);
        if phase(&item) == Some(Rejected) && asked == known {
            room.change_item("four", json!({"redrives": asked + 1})).await;
        }
        check_state(matches!(phase(&item), Some(Ready | Leased)), || format!("{:?}", item.status))
    })
    .await;
    room.close().await;
}
