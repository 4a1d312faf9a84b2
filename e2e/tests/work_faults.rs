//! Work during faults: an agent that lost an item cannot change it, and no agent loses an item for a fault of Spillway.
//! Random kills and roll-outs are in `work_faults/`.

mod kills;
mod rollouts;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use spillway::api::agent::AgentPhase::{Active, Idle, Running, Spawning};
use spillway::api::agent_pool::AgentPool;
use spillway::api::work_item::WorkItemPhase::{Blocked, DeadLettered, Leased, Ready, Scheduled, Succeeded};
use spillway::api::{Agent, WorkItem, WorkQueue};
use spillway::wire::Code;

use crate::support::caller::Answer;
use crate::support::exec::{sh, spillway};
use crate::support::history::{History, has_condition};
use crate::support::witness::{Witness, counts, epoch, leased, result, version, version_of_pod_end};
use crate::support::work::{attempts, phase};
use crate::support::{Operator, TestNamespace, check_state, eventually, node, stopped};

/// Number of items in the tests with many.
const ITEMS: usize = 500;

async fn set_up(name: &str) -> (TestNamespace, Operator, Witness, History) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let (witness, history) = (Witness::start(&room), History::start(&room));
    (room, operator, witness, history)
}

/// A queue that retries at once and keeps all finished items, with more `itemDefaults`.
async fn queue(room: &TestNamespace, more: Value) {
    let mut defaults = json!({"backoff": {"initialSeconds": 1, "maxSeconds": 1}});
    crate::support::test_namespace::merge(&mut defaults, more);
    room.apply_queue("bugs", json!({"itemDefaults": defaults, "limits": {"maxFinished": 2 * ITEMS}})).await;
    eventually("the queue is served", async || {
        let status = room.api::<WorkQueue>().get("bugs").await.map_err(|error| error.to_string())?.status;
        check_state(status.as_ref().is_some_and(|status| !status.conditions.is_empty()), || format!("{status:?}"))
    })
    .await;
}

/// Spec of a pool of `count` agents with a heartbeat each second, and the default time-out.
fn agents(count: u32) -> Value {
    json!({"replicas": count, "supervision": {"heartbeatPeriodSeconds": 1}})
}

/// The first attempt never ends. Each later one ends on the test's signal.
const PATIENT: &str = "while :; do echo \"at $task\"; [ $SPILLWAY_WORK_EPOCH -gt 1 ] && [ -e $SPILLWAY_DATA_DIR/go ] && break; \
    sleep 1; done; echo \"by attempt $SPILLWAY_WORK_EPOCH\" > $SPILLWAY_RESULT_FILE";
/// The first attempt never ends. Each later one is done at once.
const SECOND: &str = "[ $SPILLWAY_WORK_EPOCH -gt 1 ] && exit 0; while :; do echo working; sleep 1; done";

async fn release_program(room: &TestNamespace, agent: &str) {
    sh(room, agent, "touch $SPILLWAY_DATA_DIR/go").await.ok();
}

/// Checks that calls with the token of an ended agent are refused. The API server rejects the token when its pod is
/// deleted.
fn is_revoked(answer: &Answer) {
    match answer.status {
        401 => {}
        _ => assert_eq!((answer.status, answer.refusal().code), (403, Code::AgentEnded), "{answer:?}"),
    }
}

#[tokio::test]
async fn a_frozen_holder_is_gone_before_its_item_is_given_out_again_and_its_finish_is_refused() {
    let (room, _operator, witness, history) = set_up("zombie").await;
    queue(&room, json!({"leaseDurationSeconds": 5})).await;
    room.apply_workers("fixers", &["bugs"], PATIENT, agents(1)).await;
    room.submit("bugs", "bug", json!({"payload": "the bug"})).await;
    let item = room.wait_for_item_phase("bug", Leased).await;
    let first = room.holder(&item).await;
    let (name, uid) = (first.name_any(), first.uid().expect("a uid"));
    let zombie = room.as_pod(&first).await;
    let path = format!("/agent/v1/work/{}/progress", item.uid().expect("a uid"));
    assert_eq!(zombie.post(&path, json!({"epoch": 1, "percent": 10})).await.status, 200, "it is the holder");

    let link = stopped::Link::of(&first);
    history
        .wait_for_agent("the first is given up", |agent| {
            agent.name_any() == name && has_condition(agent, "GivenUp", "True", "LeaseExpired")
        })
        .await;
    history
        .wait_for_pod("its pod is asked to end", |pod| pod.uid().as_ref() == Some(&uid) && pod.metadata.deletion_timestamp.is_some())
        .await;
    is_revoked(&zombie.completes(&item, 1, "by the zombie").await);
    let freed = witness
        .wait_for_state("bug", "freed", |state| {
            epoch(state) == 1 && !matches!(phase(state), Some(Leased | Ready)) && version(state) > version(&item)
        })
        .await;
    assert_eq!(node::of_pod(&uid), [], "nothing of the first runs when its item is free");
    assert!(version_of_pod_end(&history, &uid) < version(&freed), "nor did the API server believe so: {:?}", freed.status);
    drop(link);

    let again = witness.wait_for_state("bug", "given to another", |state| leased(state, 2)).await;
    let second = room.holder(&again).await;
    assert_ne!(second.uid(), first.uid());
    let living = room.as_pod(&second).await;
    let stale = living.completes(&item, 1, "by the wrong epoch").await;
    assert_eq!((stale.status, stale.refusal().code), (409, Code::StaleLease), "{stale:?}");
    is_revoked(&zombie.completes(&item, 1, "by the zombie").await);
    is_revoked(&zombie.completes(&item, 2, "by the zombie").await);
    release_program(&room, &second.name_any()).await;
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    is_revoked(&zombie.completes(&item, 1, "by the zombie").await);
    let stale = living.completes(&item, 1, "by the wrong epoch").await;
    assert_eq!((stale.status, stale.refusal().code), (409, Code::StaleLease), "{stale:?}");

    assert_eq!(version(&room.item("bug").await), version(&done), "nothing was written since");
    assert_eq!((result(&done).as_deref(), counts(&done)), (Some("by attempt 2"), (0, 1, 2, 2)));
    assert_eq!(attempts(&done), [("LeaseExpired".to_owned(), name), ("Complete".to_owned(), second.name_any())]);
    witness.each_was_finished_once();
    room.close().await;
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_gives_the_same_lease_again() {
    let (room, operator, witness, _) = set_up("lostreply").await;
    queue(&room, json!({})).await;
    room.apply_workers("fixers", &["bugs"], "", long_running()).await;
    let pod = room.pods_ready(1).await.remove(0);
    room.wait_until_idle("fixers", 1).await;
    let agent = room.as_pod(&pod).await;
    let asking = tokio::spawn({
        let agent = agent.clone();
        async move { agent.try_call("POST", "/agent/v1/work/claim", json!({"waitSeconds": 25}).to_string()).await }
    });
    room.submit("bugs", "bug", json!({})).await;
    let item = witness.wait_for_state("bug", "leased", |state| leased(state, 1)).await;
    room.kill_gateway();
    asking.abort(); // its answer is lost
    assert_eq!(crate::support::witness::holder(&item), pod.uid().expect("a uid"));

    let claims = async |what: &str| {
        let answer = eventually(what, async || {
            let answer = agent.try_call("POST", "/agent/v1/work/claim", json!({}).to_string()).await?;
            check_state(answer.status != 503, || format!("{answer:?}")).map(|()| answer)
        })
        .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["held"], json!({"uid": item.uid(), "epoch": 1}), "{answer:?}");
    };
    room.start_gateway("later");
    claims("the next gateway serves").await;
    claims("and again").await;
    drop(operator);
    let next = room.operator("next");
    next.leads(&room).await;
    claims("the next leader knows it too").await;
    assert_eq!(counts(&room.item("bug").await), (0, 0, 1, 1), "one claim");
    assert_eq!(agent.completes(&item, 1, "done").await.status, 200);
    assert_eq!(agent.completes(&item, 1, "done").await.status, 200, "a repetition is answered the same");
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!((result(&done).as_deref(), counts(&done)), (Some("done"), (0, 0, 1, 1)));
    witness.each_was_finished_once();
    room.close().await;
}

/// A program that never asks for work, so its sidecar never claims.
fn long_running() -> Value {
    let command = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"];
    json!({"replicas": 1, "agent": {"run": "LongRunning", "command": command}})
}

#[tokio::test]
async fn who_hangs_up_in_the_middle_of_a_call_leaves_no_item_that_nobody_can_finish() {
    let (room, _operator, witness, _) = set_up("hangup").await;
    queue(&room, json!({})).await;
    room.apply_workers("fixers", &["bugs"], "", long_running()).await;
    let pod = room.pods_ready(1).await.remove(0);
    room.wait_until_idle("fixers", 1).await;
    let agent = room.as_pod(&pod).await;
    let hangs_up = async |path: String, body: Value, after: u64| {
        let call = agent.try_call("POST", &path, body.to_string());
        drop(tokio::time::timeout(Duration::from_millis(after), call).await); // its answer is lost, if there was one
    };
    for at in 0..40_u64 {
        let name = format!("bug-{at}");
        room.submit("bugs", &name, json!({})).await;
        // A write takes some milliseconds, and so does a handshake.
        hangs_up("/agent/v1/work/claim".into(), json!({"waitSeconds": 1}), 2 + at % 20).await;
        let held = eventually("an item is claimed", async || {
            let answer = agent.try_call("POST", "/agent/v1/work/claim", json!({"waitSeconds": 5}).to_string()).await?;
            check_state(answer.status == 200, || format!("{answer:?}")).map(|()| answer.json()["held"].clone())
        })
        .await;
        let path = format!("/agent/v1/work/{}/complete", held["uid"].as_str().expect("a uid"));
        hangs_up(path.clone(), json!({"epoch": held["epoch"]}), 2 + at % 20).await;
        eventually(&format!("{name} is finished"), async || {
            let answer = agent.try_call("POST", &path, json!({"epoch": held["epoch"]}).to_string()).await?;
            check_state(answer.status == 200, || format!("{answer:?}"))
        })
        .await;
        let done = room.wait_for_item_phase(&name, Succeeded).await;
        assert_eq!(counts(&done), (0, 0, 1, 1), "{:?}", done.status);
    }
    witness.each_was_finished_once();
    room.close().await;
}

#[tokio::test]
async fn a_program_that_says_something_is_not_stalled_and_one_that_says_nothing_is() {
    let (room, _operator, _, history) = set_up("stall").await;
    queue(&room, json!({"stallTimeoutSeconds": 5})).await;
    // Its program does not know Spillway, and takes four times the time-out.
    let script = "n=0; while [ $n -lt 20 ]; do n=$((n+1)); echo \"step $n\"; sleep 1; done";
    room.apply_workers("fixers", &["bugs"], script, agents(1)).await;
    room.submit("bugs", "long", json!({})).await;
    let done = room.wait_for_item_phase("long", Succeeded).await;
    assert_eq!(counts(&done), (0, 0, 1, 1), "{:?}", done.status);
    room.api::<AgentPool>().delete("fixers", &DeleteParams::default()).await.expect("deleted");
    room.empty().await;

    let script = "[ $SPILLWAY_WORK_EPOCH -gt 1 ] && exit 0; exec sleep 1000";
    room.apply_workers("silent", &["bugs"], script, agents(1)).await;
    room.submit("bugs", "silent", json!({})).await;
    let done = room.wait_for_item_phase("silent", Succeeded).await;
    assert_eq!(counts(&done), (0, 1, 2, 2), "{:?}", done.status);
    let [(verb, agent), (last, _)] = attempts(&done).try_into().expect("two attempts");
    assert_eq!((verb.as_str(), last.as_str()), ("Stalled", "Complete"));
    history
        .wait_for_agent("it was given up for that", |one| one.name_any() == agent && has_condition(one, "GivenUp", "True", "ItemStalled"))
        .await;
    room.close().await;
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_ended_and_too_many_of_them_set_the_item_aside() {
    let (room, _operator, _, history) = set_up("late").await;
    queue(&room, json!({"attemptTimeoutSeconds": 5, "maxStalls": 1})).await;
    room.apply_workers("fixers", &["bugs"], "while :; do echo working; sleep 1; done", agents(1)).await;
    room.submit("bugs", "endless", json!({})).await;
    let item = room.wait_for_item_phase("endless", DeadLettered).await;
    let status = item.status.clone().expect("a status");
    assert_eq!((status.reason.as_deref(), counts(&item)), (Some("TooManyStalls"), (0, 1, 1, 1)));
    let attempt = status.attempt_history.expect("a history").remove(0);
    assert_eq!((attempt.verb.as_str(), attempt.reason.as_deref()), ("Stalled", Some("ItemPastTime")), "{attempt:?}");
    let given_up = |one: &Agent| one.name_any() == attempt.agent && has_condition(one, "GivenUp", "True", "ItemPastTime");
    history.wait_for_agent("it was given up for that", given_up).await;
    room.close().await;
}

#[tokio::test]
async fn who_leaves_with_an_item_in_hand_gives_it_back_and_it_counts_as_nothing() {
    let (room, _operator, witness, _) = set_up("leave").await;
    queue(&room, json!({})).await;
    room.apply_workers("fixers", &["bugs"], SECOND, agents(2)).await;
    room.pods_ready(2).await;
    for item in ["goodbye", "deleted"] {
        room.submit("bugs", item, json!({})).await;
        let held = witness.wait_for_state(item, "leased", |state| leased(state, 1)).await;
        let pod = room.holder(&held).await;
        let name = pod.name_any();
        if item == "goodbye" {
            spillway(&room, &name, &["goodbye", "enough"]).await;
        } else {
            room.api::<Pod>().delete(&name, &DeleteParams::default()).await.expect("deleted");
        }
        let done = room.wait_for_item_phase(item, Succeeded).await;
        assert_eq!(counts(&done), (0, 0, 2, 2), "{:?}", done.status);
        let [(verb, first), (last, second)] = attempts(&done).try_into().expect("two attempts");
        assert_eq!((verb.as_str(), last.as_str()), ("Release", "Complete"));
        assert!(first == name && second != name, "{first} {second}");
    }
    room.close().await;
}

#[tokio::test]
async fn a_holder_that_is_deleted_by_force_is_a_stall_and_its_item_is_done_by_another() {
    let (room, _operator, witness, history) = set_up("force").await;
    queue(&room, json!({})).await;
    room.apply_workers("fixers", &["bugs"], SECOND, agents(2)).await;
    room.pods_ready(2).await;
    room.submit("bugs", "bug", json!({})).await;
    let held = witness.wait_for_state("bug", "leased", |state| leased(state, 1)).await;
    let pod = room.holder(&held).await;
    let zombie = room.as_pod(&pod).await;
    // Otherwise it would give the item back at its end.
    let _link = stopped::Link::of(&pod);
    room.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.expect("deleted");
    let again = witness.wait_for_state("bug", "given to another", |state| leased(state, 2)).await;
    assert_eq!(node::of_pod(&pod.uid().expect("a uid")), [], "nothing of the first runs by then");
    is_revoked(&zombie.completes(&held, 1, "by the zombie").await);
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!(counts(&done), (0, 1, 2, 2), "{:?}", done.status);
    assert_eq!(attempts(&done)[0], ("LeaseExpired".to_owned(), pod.name_any()));
    assert_ne!(crate::support::witness::holder(&again), pod.uid().expect("a uid"));
    assert!(history.agents_ever().await.len() >= 3, "and it was replaced");
    room.close().await;
}

#[tokio::test]
async fn an_agent_that_vanished_proves_nothing_while_its_pod_is_there() {
    let (room, _operator, witness, history) = set_up("vanished").await;
    queue(&room, json!({})).await;
    // The program ends only by force, after its grace period. So the pod outlives its Agent.
    let script = "[ $SPILLWAY_WORK_EPOCH -gt 1 ] && exit 0; trap '' TERM; while :; do echo working; sleep 1; done";
    room.apply_workers("fixers", &["bugs"], script, agents(1)).await;
    room.submit("bugs", "bug", json!({})).await;
    let held = witness.wait_for_state("bug", "leased", |state| leased(state, 1)).await;
    let pod = room.holder(&held).await;
    let (name, uid) = (pod.name_any(), pod.uid().expect("a uid"));
    let _link = stopped::Link::of(&pod);
    let api = room.api::<Agent>();
    api.delete(&name, &DeleteParams::default()).await.expect("deleted");
    eventually("the Agent is gone, deleted by a user", async || {
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = api.patch_metadata(&name, &PatchParams::default(), &bare).await; // it may be deleted already
        let there = api.get_opt(&name).await.map_err(|error| error.to_string())?;
        check_state(there.is_none(), || "it is there".to_owned())
    })
    .await;
    assert!(!node::of_pod(&uid).is_empty(), "its pod is not");
    let freed = witness.wait_for_state("bug", "freed", |state| epoch(state) == 1 && phase(state) != Some(Leased)).await;
    assert_eq!(node::of_pod(&uid), [], "nothing of it runs when its item is free");
    assert!(version_of_pod_end(&history, &uid) < version(&freed), "nor did the API server believe so: {:?}", freed.status);
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!(counts(&done), (0, 1, 2, 2), "{:?}", done.status);
    room.close().await;
}

#[tokio::test]
async fn an_item_that_is_made_together_with_its_queue_is_not_refused() {
    let (room, _operator, witness, _) = set_up("together").await;
    // Queues and items have different watches.
    for at in 0..40 {
        let name = format!("pair-{at}");
        room.apply_queue(&name, json!({})).await;
        room.submit(&name, &name, json!({})).await;
    }
    for at in 0..40 {
        let name = format!("pair-{at}");
        let admitted = witness.wait_for_state(&name, "admitted", |state| phase(state).is_some()).await;
        assert_eq!(phase(&admitted), Some(Ready), "{name}: {:?}", admitted.status);
    }
    room.close().await;
}

#[tokio::test]
async fn the_next_leader_goes_on_with_what_waits_is_blocked_is_scheduled_and_is_held() {
    let (room, first, witness, _) = set_up("leader").await;
    queue(&room, json!({})).await;
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(5);
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
    room.submit("bugs", "ready", json!({"priority": 9})).await;
    room.submit("bugs", "after", json!({"dependsOn": [{"name": "ready"}, {"name": "later"}]})).await;
    room.submit("bugs", "soon", json!({"notBeforeTime": soon.to_string()})).await;
    room.submit("bugs", "later", json!({"notBeforeTime": later.to_string()})).await;
    for (name, waiting) in [("ready", Ready), ("after", Blocked), ("later", Scheduled)] {
        room.wait_for_item_phase(name, waiting).await;
    }
    drop(first);
    let second = room.operator("two");
    second.leads(&room).await;
    room.apply_workers("fixers", &["bugs"], "until [ -e $SPILLWAY_DATA_DIR/go ]; do echo working; sleep 1; done", agents(1)).await;
    // The first item is due, and stays leased while its leader is killed too.
    let held = witness.wait_for_state("ready", "leased", |state| leased(state, 1)).await;
    assert!(witness.states_of("soon").iter().all(|state| phase(state) != Some(Leased)), "priority comes first");
    drop(second);
    let agent = room.holder(&held).await.name_any();
    release_program(&room, &agent).await;
    let third = room.operator("three");
    third.leads(&room).await;
    let mut started = Vec::new();
    for name in ["ready", "soon", "later", "after"] {
        let done = room.wait_for_item_phase(name, Succeeded).await;
        assert_eq!((counts(&done), attempts(&done)), ((0, 0, 1, 1), vec![("Complete".to_owned(), agent.clone())]), "{name}");
        started.push(done.status.and_then(|status| status.attempt_history?.first().map(|attempt| attempt.start_time.0)).expect("a time"));
    }
    assert!(started.is_sorted(), "{started:?}");
    assert!(started[2].as_second() >= later.as_second(), "not before its time: {started:?}");
    witness.each_was_finished_once();
    room.close().await;
}

#[tokio::test]
async fn alone_an_item_of_a_dead_node_is_freed_by_a_word_and_nothing_that_thaws_changes_its_result() {
    let (room, _operator, witness, history) = set_up("deadnode").await;
    queue(&room, json!({"leaseDurationSeconds": 5})).await;
    // It finishes its item while it cannot reach a gateway.
    let script = "[ $SPILLWAY_WORK_EPOCH -gt 1 ] || sleep 20; echo \"by attempt $SPILLWAY_WORK_EPOCH\" > $SPILLWAY_RESULT_FILE";
    room.apply_workers("fixers", &["bugs"], script, agents(2)).await;
    room.pods_ready(2).await;
    room.wait_until_idle("fixers", 2).await;
    room.submit("bugs", "bug", json!({})).await;
    let held = witness.wait_for_state("bug", "leased", |state| leased(state, 1)).await;
    let first = room.holder(&held).await;
    let (name, uid) = (first.name_any(), first.uid().expect("a uid"));
    let zombie = room.as_pod(&first).await;
    let link = stopped::Link::of(&first);
    let kubelet = stopped::Kubelet::Stopped.stop_or_kill();
    history
        .wait_for_agent("the first is given up", |agent| {
            agent.name_any() == name && has_condition(agent, "GivenUp", "True", "LeaseExpired")
        })
        .await;
    history
        .wait_for_pod("its pod is asked to end", |pod| pod.uid().as_ref() == Some(&uid) && pod.metadata.deletion_timestamp.is_some())
        .await;
    eventually("the node is unreachable", async || {
        let node = first.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
        let node = Api::<Node>::all(room.client.clone()).get(&node).await.map_err(|error| error.to_string())?;
        let ready = node.status.into_iter().flat_map(|status| status.conditions.unwrap_or_default()).find(|one| one.type_ == "Ready");
        check_state(ready.as_ref().is_some_and(|ready| ready.status == "Unknown"), || format!("{ready:?}"))
    })
    .await;
    assert!(leased(&room.item("bug").await, 1), "nothing proves that its holder is gone: {:?}", room.item("bug").await.status);
    assert!(!node::of_pod(&uid).is_empty(), "and it is not");

    room.change_item("bug", json!({"releasedEpoch": 1})).await;
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!((result(&done).as_deref(), counts(&done)), (Some("by attempt 2"), (0, 1, 2, 2)), "{:?}", done.status);
    let [lost, finished] = attempts(&done).try_into().expect("two attempts");
    assert_eq!(lost, ("LeaseExpired".to_owned(), name.clone()));
    assert!(finished.0 == "Complete" && finished.1 != name, "{finished:?}");

    // Its sidecar continues first, and has enough time to report its program's result.
    assert!(!node::of_pod(&uid).is_empty(), "it was there all along");
    is_revoked(&zombie.completes(&held, 1, "by the zombie").await);
    drop(link);
    is_revoked(&zombie.completes(&held, 1, "by the zombie").await);
    drop(kubelet);
    eventually("no process of the first agent is left", async || {
        let left = room.api::<Pod>().get_opt(&name).await.map_err(|error| error.to_string())?;
        check_state(left.is_none() && node::of_pod(&uid).is_empty(), || format!("{left:?}"))
    })
    .await;
    is_revoked(&zombie.completes(&held, 1, "by the zombie").await);
    let still: WorkItem = room.item("bug").await;
    assert_eq!(still.status, done.status, "what was accepted stays");
    witness.each_was_finished_once();
    room.close().await;
}
