//! Groups of items that are cancelled together, by a person or by a member's failure.

use super::*;

/// The cancelled groups in a queue's status.
async fn cancelled_groups(room: &TestNamespace, queue: &str) -> Vec<String> {
    let queue = room.api::<WorkQueue>().get(queue).await.expect("the queue is there");
    queue.status.iter().flat_map(|status| status.cancelled_groups.iter().flatten()).map(|one| one.group.clone()).collect()
}

/// Waits until the queue's status has these cancelled groups, with unfinished members.
async fn groups_are(room: &TestNamespace, queue: &str, wanted: &[&str]) {
    eventually(&format!("queue {queue} has the cancelled groups {wanted:?}"), async || {
        let groups = cancelled_groups(room, queue).await;
        check_state(groups == wanted, || format!("{groups:?}"))
    })
    .await;
}

/// A program that ends only by force for some tasks, and otherwise as its task says.
const STUBBORN: &str = "case $task in hold) trap '' TERM; while :; do sleep 1; done;; *) exit $task;; esac";

#[tokio::test]
async fn a_person_cancels_a_group() {
    let (room, _operator, _) = set_up("group").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], STUBBORN, fast_scaling_spec(1)).await;
    room.submit("bugs", "held", json!({"group": "book", "payload": "hold"})).await;
    room.wait_for_item_phase("held", Leased).await;
    room.submit("bugs", "waiting", json!({"group": "book", "payload": "0"})).await;
    room.submit("bugs", "blocked", json!({"group": "book", "payload": "0", "dependsOn": [{"name": "other"}]})).await;
    room.submit("bugs", "other", json!({"group": "film", "payload": "0"})).await;
    let now = Timestamp::now();
    room.apply_queue("bugs", json!({"cancelGroups": [{"group": "book", "time": now.to_string()}]})).await;
    room.wait_for_item_phase("held", Cancelling).await;
    for name in ["waiting", "blocked", "held"] {
        let item = room.wait_for_item_phase(name, Cancelled).await;
        let tried = i32::from(name == "held");
        assert_eq!((reason(&item), counts(&item)), (Some("GroupCancelled"), (tried, 0, 0)), "{item:?}");
    }
    // Members are distinguished by whole seconds.
    eventually("the second of the cancellation is over", async || {
        check_state(Timestamp::now().as_second() > now.as_second() + 1, || "it is not".into())
    })
    .await;
    room.submit("bugs", "later", json!({"group": "book", "payload": "0"})).await;
    for name in ["later", "other"] {
        room.wait_for_item_phase(name, Succeeded).await;
    }
    room.close().await;
}

#[tokio::test]
async fn a_queue_says_which_of_its_cancelled_groups_still_have_members() {
    let (room, _operator, _) = set_up("tombstone").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], STUBBORN, fast_scaling_spec(1)).await;
    room.submit("bugs", "held", json!({"group": "book", "payload": "hold"})).await;
    room.wait_for_item_phase("held", Leased).await;
    room.apply_queue("bugs", json!({"cancelGroups": [{"group": "book", "time": Timestamp::now().to_string()}]})).await;
    groups_are(&room, "bugs", &["book"]).await;
    room.wait_for_item_phase("held", Cancelled).await;
    groups_are(&room, "bugs", &[]).await;
    room.close().await;
}

#[tokio::test]
async fn a_members_failure_cancels_its_group() {
    let (room, _operator, _) = set_up("gang").await;
    room.apply_queue("bugs", json!({"failurePolicy": {"cancelGroup": true}, "itemDefaults": {"maxAttempts": 1}})).await;
    room.apply_workers("fixers", &["bugs"], STUBBORN, fast_scaling_spec(2)).await;
    room.submit("bugs", "held", json!({"group": "book", "payload": "hold"})).await;
    room.wait_for_item_phase("held", Leased).await;
    room.submit("bugs", "after", json!({"group": "book", "payload": "0", "dependsOn": [{"name": "held"}]})).await;
    room.submit("bugs", "other", json!({"group": "film", "payload": "0", "dependsOn": [{"name": "fails", "condition": "Finished"}]})).await;
    room.submit("bugs", "fails", json!({"group": "book", "payload": "7"})).await;
    let failed = room.wait_for_item_phase("fails", DeadLettered).await;
    assert_eq!((reason(&failed), counts(&failed)), (Some("TooManyFailures"), (1, 1, 0)), "{failed:?}");
    // This was written before the failure could be read.
    assert_eq!(cancelled_groups(&room, "bugs").await, ["book"]);
    for name in ["after", "held"] {
        let item = room.wait_for_item_phase(name, Cancelled).await;
        assert_eq!(reason(&item), Some("GroupCancelled"), "{item:?}");
    }
    groups_are(&room, "bugs", &[]).await;
    room.wait_for_item_phase("other", Succeeded).await;
    room.close().await;
}
