//! Work: items are given out once and in order, to agents that start and end with the work.

use serde_json::json;
use spillway::api::WorkItem;
use spillway::api::work_item::WorkItemPhase::{Cancelled, DeadLettered, Leased, Rejected, Succeeded};

use crate::support::work::attempts;
use crate::support::{Operator, TestNamespace, check_state, eventually};

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    (room, operator)
}

/// Spec of a pool that scales as fast as possible.
fn fast_scaling_spec(max: u32) -> serde_json::Value {
    json!({"scaling": {"min": 0, "max": max, "cooldownSeconds": 5}, "whenEmpty": {"action": "Terminate", "afterSeconds": 5}})
}

#[tokio::test]
async fn agents_come_for_work_do_it_and_leave() {
    let (room, _operator) = set_up("work").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], "echo \"fixed $task\"; echo \"result of $task\" > $SPILLWAY_RESULT_FILE", fast_scaling_spec(2))
        .await;
    room.pods_ready(0).await;
    for at in 0..6 {
        room.submit("bugs", &format!("bug-{at}"), json!({"payload": format!("bug {at}")})).await;
    }
    assert_eq!(room.wait_until_items_ended(6).await, [("Succeeded".to_owned(), 6)].into());
    for at in 0..6 {
        let item = room.item(&format!("bug-{at}")).await;
        let status = item.status.clone().expect("a status");
        assert_eq!(status.result.as_deref().map(str::trim), Some(format!("result of bug {at}").as_str()));
        assert_eq!((status.attempts, status.failures, status.stalls), (Some(1), Some(0), Some(0)));
        assert_eq!(attempts(&item).len(), 1, "{item:?}");
    }
    room.pods_ready(0).await;
    let (reason, _) = room.pool_says("fixers", "ScaledToZero", "True").await;
    assert_eq!(reason, "NoWork");
    room.close().await;
}

#[tokio::test]
async fn a_failure_is_tried_again_and_set_aside_and_a_person_may_start_it_again() {
    let (room, _operator) = set_up("failures").await;
    let policy = json!({"maxAttempts": 2, "backoff": {"initialSeconds": 1, "maxSeconds": 1}});
    room.apply_queue("bugs", json!({"itemDefaults": policy})).await;
    room.apply_workers(
        "fixers",
        &["bugs"],
        "[ $SPILLWAY_WORK_EPOCH -gt 2 ] && exit 0; echo \"cannot do $task\"; exit 7",
        fast_scaling_spec(1),
    )
    .await;
    room.submit("bugs", "hard", json!({"payload": "the hard one"})).await;
    let item = room.wait_for_item_phase("hard", DeadLettered).await;
    let status = item.status.clone().expect("a status");
    assert_eq!((status.attempts, status.failures, status.stalls), (Some(2), Some(2), Some(0)));
    assert_eq!(status.reason.as_deref(), Some("TooManyFailures"));
    let history = status.attempt_history.expect("a history");
    assert!(history.iter().all(|attempt| attempt.verb == "Fail" && attempt.reason.as_deref() == Some("Exited")), "{history:?}");
    assert!(history[0].message.as_deref().is_some_and(|message| message.contains("cannot do the hard one")), "{history:?}");
    let failed = status.conditions.iter().find(|one| one.type_ == "Failed").map(|failed| failed.message.clone()).unwrap_or_default();
    assert!(failed.starts_with("the item failed 2 times (maxAttempts: 2). The last attempt: "), "{failed}");
    assert!(failed.contains("cannot do the hard one") && failed.contains("kubectl spillway redrive"), "{failed}");
    room.wait_for_event("hard", "TooManyFailures", "the item failed 2 times").await;
    room.change_item("hard", json!({"redrives": 1})).await;
    let item = room.wait_for_item_phase("hard", Succeeded).await;
    let status = item.status.expect("a status");
    assert_eq!((status.attempts, status.failures), (Some(1), Some(0)), "counted anew");
    assert_eq!(status.lease.and_then(|lease| lease.lease_transitions), Some(3), "the epoch is not");
    room.close().await;
}

#[tokio::test]
async fn order_dependencies_and_what_is_refused() {
    let (room, _operator) = set_up("order").await;
    room.apply_queue("first", json!({"limits": {"maxPending": 4}})).await;
    room.apply_queue("second", json!({"accepts": {"types": ["idea"]}})).await;
    // There are no workers yet, so all items wait together.
    room.submit("first", "low", json!({"priority": -1})).await;
    room.submit("first", "high", json!({"priority": 5})).await;
    room.submit("second", "idea", json!({"type": "idea", "priority": 100})).await;
    room.submit("first", "after-idea", json!({"priority": 9, "dependsOn": [{"name": "idea", "queue": "second"}]})).await;
    room.submit("first", "never", json!({"dependsOn": [{"name": "cancelled"}]})).await;
    let refused = [
        ("first", "full", json!({}), "QueueFull"),
        ("gone", "lost", json!({}), "QueueMissing"),
        ("second", "odd", json!({"type": "bug"}), "TypeNotAccepted"),
    ];
    for (queue, name, spec, reason) in refused {
        eventually("the others are admitted", async || {
            let items: Vec<WorkItem> = room.list().await;
            let admitted = items.iter().filter(|item| item.status.as_ref().is_some_and(|status| status.phase.is_some())).count();
            check_state(admitted >= 4, || format!("{admitted} of {}", items.len()))
        })
        .await;
        room.submit(queue, name, spec).await;
        let item = room.wait_for_item_phase(name, Rejected).await;
        assert_eq!(item.status.expect("a status").reason.as_deref(), Some(reason), "{name}");
    }
    room.apply_workers("workers", &["first", "second"], "exit 0", fast_scaling_spec(1)).await;
    room.wait_for_item_phase("after-idea", Succeeded).await;
    let items: Vec<WorkItem> = room.list().await;
    let started = |name: &str| {
        let item = items.iter().find(|item| item.metadata.name.as_deref() == Some(name)).expect("an item");
        item.status.as_ref().and_then(|status| status.attempt_history.as_ref()?.first().map(|attempt| attempt.start_time.0))
    };
    assert!(
        started("high") <= started("low") && started("low") <= started("idea") && started("idea") <= started("after-idea"),
        "{items:?}"
    );
    // Its dependency was never created.
    let never = room.wait_for_item_phase("never", Cancelled).await;
    assert_eq!(never.status.expect("a status").reason.as_deref(), Some("DependencyMissing"));
    room.close().await;
}

#[tokio::test]
async fn a_cancelled_item_stops_and_is_never_given_out_again() {
    let (room, _operator) = set_up("cancel").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done", fast_scaling_spec(1)).await;
    room.submit("bugs", "endless", json!({})).await;
    room.wait_for_item_phase("endless", Leased).await;
    room.submit("bugs", "waiting", json!({})).await;
    // The one that waits first: the agent takes the next as soon as it is free.
    for name in ["waiting", "endless"] {
        room.change_item(name, json!({"cancelRequested": true})).await;
        room.wait_for_item_phase(name, Cancelled).await;
    }
    assert_eq!(attempts(&room.item("endless").await).first().map(|(verb, _)| verb.as_str()), Some("CancelDone"));
    assert!(attempts(&room.item("waiting").await).is_empty());
    room.close().await;
}
