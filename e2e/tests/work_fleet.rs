//! Work for fleets: many items for few agents, pools that scale with their work, restored items. Groups and refusals are in
//! `work_fleet/`.

mod calls;
mod groups;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::agent::AgentPhase;
use spillway::api::work_item::WorkItemPhase::{
    self, Blocked, Cancelled, Cancelling, DeadLettered, Failed, Leased, Ready, Rejected, Scheduled, Succeeded, Suspended,
};
use spillway::api::{Agent, AgentPool, WorkItem, WorkQueue};

use crate::support::caller::{Answer, Caller, token_of};
use crate::support::fleet::Fleet;
use crate::support::history::History;
use crate::support::test_namespace::merge;
use crate::support::track::Pods;
use crate::support::work::{Ledger, UNTIL_TOLD, Volumes, attempts, holder, phase};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// A namespace with an operator that leads, and the history of its items.
async fn set_up(name: &str) -> (TestNamespace, Operator, Ledger) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let ledger = Ledger::start(&room);
    (room, operator, ledger)
}

/// A pool that scales as fast as possible.
fn fast_scaling_spec(max: u32) -> Value {
    json!({"scaling": {"min": 0, "max": max, "cooldownSeconds": 5}, "whenEmpty": {"action": "Terminate", "afterSeconds": 5}})
}

fn with(mut one: Value, other: Value) -> Value {
    merge(&mut one, other);
    one
}

fn reason(item: &WorkItem) -> Option<&str> {
    item.status.as_ref().and_then(|status| status.reason.as_deref())
}

/// Attempts, failures and stalls.
fn counts(item: &WorkItem) -> (i32, i32, i32) {
    let status = item.status.as_ref().expect("a status");
    (status.attempts.unwrap_or(0), status.failures.unwrap_or(0), status.stalls.unwrap_or(0))
}

async fn ends_without_work(room: &TestNamespace, pool: &str) {
    room.pods_ready(0).await;
    let (reason, _) = room.pool_says(pool, "ScaledToZero", "True").await;
    assert_eq!(reason, "NoWork");
}

/// Item `at` of the two hundred: its queue, its priority, and its dependencies, across both queues and up to two levels
/// deep.
fn one_of_many(at: usize) -> (&'static str, i32, Vec<usize>) {
    let queue = if at.is_multiple_of(3) { "second" } else { "first" };
    let after = match at % 8 {
        3 => vec![at - 1, at - 3],
        7 => vec![at - 1, at - 4],
        _ => vec![],
    };
    (queue, i32::try_from(at * 7 % 5).expect("small") - 2, after)
}

#[tokio::test]
async fn two_hundred_items_are_done_once_each_in_their_order_and_the_pool_is_back_at_nothing() {
    const ITEMS: usize = 200;
    let (room, _operator, ledger) = set_up("fleet").await;
    let (pods, volumes) = (Pods::start(&room), Volumes::retain(&room));
    let name = |at: usize| format!("item-{at:03}");
    for name in ["first", "second"] {
        room.apply_queue(name, json!({})).await;
    }
    for at in 0..ITEMS {
        let (queue, priority, after) = one_of_many(at);
        let after: Vec<Value> = after.into_iter().map(|at| json!({"name": name(at)})).collect();
        room.submit(queue, &name(at), json!({"priority": priority, "dependsOn": after})).await;
    }
    ledger.wait_for_phases(ITEMS, "admitted", |phase| matches!(phase, Ready | Blocked)).await;
    let admitted = Timestamp::now();
    let claim = json!({"storageClassName": "standard", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}});
    let own = json!({"workspace": {"volumeClaimTemplate": claim}});
    let log = "echo $SPILLWAY_ITEM_UID >> /workspace/log";
    room.apply_workers("fixers", &["first", "second"], log, with(fast_scaling_spec(5), own)).await;
    ledger.wait_for_phases(ITEMS, "Succeeded", |phase| phase == Succeeded).await;
    ends_without_work(&room, "fixers").await;
    assert_eq!(pods.most_at_once(), 5);

    // Each item ran once, by the agents' own volumes and by the items' statuses.
    let items = ledger.last();
    let mut logged: Vec<String> = volumes.read("log").iter().flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let mut uids: Vec<String> = items.values().filter_map(ResourceExt::uid).collect();
    logged.sort();
    uids.sort();
    assert_eq!(logged, uids);
    for item in items.values() {
        assert_eq!((counts(item), attempts(item).len()), ((1, 0, 0), 1), "{item:?}");
    }

    // The latest time at which each item was ready, and the time of its claim.
    let all = ledger.all();
    let first = |name: &str, wanted: WorkItemPhase| {
        let found = all.iter().enumerate().find(|(_, (_, item))| item.name_any() == name && phase(item) == Some(wanted));
        found.map(|(place, (when, _))| (place, *when)).unwrap_or_else(|| panic!("{name} was never seen {wanted:?}"))
    };
    let claims = ledger.claims();
    let mut line = Vec::new();
    for at in 0..ITEMS {
        let (queue, priority, after) = one_of_many(at);
        let mut ready = admitted;
        for dependency in after {
            let (done, when) = first(&name(dependency), Succeeded);
            assert!(done < first(&name(at), Leased).0, "{} began before item {dependency} had ended", name(at));
            ready = ready.max(when);
        }
        let made = items[&name(at)].creation_timestamp().expect("a time").0;
        line.push(((queue, -priority, made, at), ready, claims[&name(at)]));
    }
    line.sort();
    for (place, (better, ready, claimed)) in line.iter().enumerate() {
        for (worse, _, sooner) in &line[place + 1..] {
            // Dependent items become ready with a delay after the end of an item. On a busy machine the delay is long.
            let overtaken = sooner < claimed && ready.saturating_add(SignedDuration::from_secs(2)).expect("a time") < *sooner;
            assert!(!overtaken, "{worse:?} was claimed at {sooner}, before {better:?}, which was ready by {ready}, was at {claimed}");
        }
    }
    let client = room.client.clone();
    room.close().await;
    volumes.remove(client).await;
}

#[tokio::test]
async fn a_pool_with_a_minimum_goes_to_nothing_without_work() {
    let (room, _operator, _) = set_up("empty").await;
    let history = History::start(&room);
    room.apply_queue("bugs", json!({})).await;
    let pool = json!({"scaling": {"min": 2, "max": 3}, "whenEmpty": {"action": "Terminate", "afterSeconds": 10}});
    room.apply_workers("fixers", &["bugs"], UNTIL_TOLD, pool).await;
    ends_without_work(&room, "fixers").await;
    assert!(history.agents_ever().await.is_empty(), "no agent starts without work");

    room.submit("bugs", "one", json!({})).await;
    room.pods_ready(2).await;
    room.release_item("one").await;
    room.wait_for_item_phase("one", Succeeded).await;
    ends_without_work(&room, "fixers").await;
    assert_eq!(history.agents_ever().await.len(), 2);
    room.close().await;
}

#[tokio::test]
async fn idle_agents_leave_first_and_busy_ones_finish() {
    let (room, _operator, _) = set_up("down").await;
    let history = History::start(&room);
    room.apply_queue("bugs", json!({})).await;
    let of = |max: u32| json!({"scaling": {"min": 0, "max": max, "idleBuffer": 3, "cooldownSeconds": 5}, "whenEmpty": {"action": "Terminate", "afterSeconds": 5}});
    room.apply_workers("fixers", &["bugs"], UNTIL_TOLD, of(5)).await;
    for name in ["long", "longer"] {
        room.submit("bugs", name, json!({})).await;
    }
    let mut busy = BTreeSet::new();
    for name in ["long", "longer"] {
        busy.insert(holder(&room.wait_for_item_phase(name, Leased).await));
    }
    room.pods_ready(5).await;
    eventually("two are active and three idle", async || {
        let agents: Vec<Agent> = room.list().await;
        let are = |wanted| agents.iter().filter(|agent| agent.status.as_ref().and_then(|status| status.phase) == Some(wanted)).count();
        check_state((are(AgentPhase::Active), are(AgentPhase::Idle)) == (2, 3), || {
            format!("{} and {}", are(AgentPhase::Active), are(AgentPhase::Idle))
        })
    })
    .await;
    room.apply_workers("fixers", &["bugs"], UNTIL_TOLD, of(1)).await;
    let left: BTreeSet<String> = room.pods_ready(2).await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, busy);
    let asked = |pods: &[Pod]| pods.iter().any(|pod| busy.contains(&pod.name_any()) && pod.metadata.deletion_timestamp.is_some());
    for name in ["long", "longer"] {
        assert!(!asked(&room.list::<Pod>().await), "no busy agent is asked to leave");
        room.release_item(name).await;
        let item = room.wait_for_item_phase(name, Succeeded).await;
        assert_eq!((counts(&item), attempts(&item).len()), ((1, 0, 0), 1), "{item:?}");
    }
    ends_without_work(&room, "fixers").await;
    assert_eq!(history.agents_ever().await.len(), 5, "no agent was replaced");
    room.close().await;
}

/// Number of items of each agent.
fn by_agent<'a>(items: impl IntoIterator<Item = &'a WorkItem>) -> Vec<usize> {
    let mut done = BTreeMap::<String, usize>::new();
    items.into_iter().flat_map(attempts).for_each(|(_, agent)| *done.entry(agent).or_default() += 1);
    let mut done: Vec<usize> = done.into_values().collect();
    done.sort();
    done
}

#[tokio::test]
async fn an_agent_leaves_after_its_items_and_a_drone_after_one() {
    let (room, _operator, ledger) = set_up("retire").await;
    for name in ["bugs", "odd-jobs"] {
        room.apply_queue(name, json!({"itemDefaults": {"backoff": {"initialSeconds": 1, "maxSeconds": 1}}})).await;
    }
    for at in 0..5 {
        room.submit("bugs", &format!("bug-{at}"), json!({})).await;
        room.submit("odd-jobs", &format!("job-{at}"), json!({"payload": if at == 2 { "fail" } else { "work" }})).await;
    }
    let script = "[ \"$task\" != fail ]";
    room.apply_workers("fixers", &["bugs"], script, with(fast_scaling_spec(1), json!({"agent": {"maxItems": 2}}))).await;
    room.apply_workers("drones", &["odd-jobs"], script, with(fast_scaling_spec(2), json!({"type": "drone"}))).await;
    ledger.wait_for_phases(9, "Succeeded", |phase| phase == Succeeded).await;
    let failed = room.wait_for_item_phase("job-2", Failed).await;
    assert_eq!((reason(&failed), counts(&failed)), (Some("DroneFailed"), (1, 1, 0)), "{failed:?}");
    let items = ledger.last();
    let of = |prefix: &'static str| items.values().filter(move |item| item.name_any().starts_with(prefix));
    assert_eq!(by_agent(of("bug-")), [1, 2, 2], "{items:?}");
    assert_eq!(by_agent(of("job-")), [1; 5], "{items:?}");
    assert!(items.values().all(|item| counts(item).0 == 1), "{items:?}");
    for pool in ["fixers", "drones"] {
        ends_without_work(&room, pool).await;
        room.pool_says(pool, "Blocked", "False").await;
    }
    room.close().await;
}

#[tokio::test]
async fn items_that_failed_together_are_tried_again_apart() {
    const ITEMS: usize = 50;
    const BOUND: i64 = 20;
    let (room, _operator, ledger) = set_up("jitter").await;
    room.apply_queue("bugs", json!({"itemDefaults": {"backoff": {"initialSeconds": BOUND, "maxSeconds": BOUND}}})).await;
    for at in 0..ITEMS {
        room.submit("bugs", &format!("bug-{at}"), json!({})).await;
    }
    room.apply_workers("fixers", &["bugs"], "[ $SPILLWAY_WORK_EPOCH -gt 1 ]", fast_scaling_spec(5)).await;
    ledger.wait_for_phases(ITEMS, "Succeeded", |phase| phase == Succeeded).await;
    let mut waits = Vec::new();
    for (name, item) in ledger.last() {
        assert_eq!(counts(&item), (2, 1, 0), "{item:?}");
        let states = ledger.states_of(&name);
        let failed = states.iter().find(|item| phase(item) == Some(Scheduled)).expect("it waited");
        assert_eq!(reason(failed), Some("Backoff"));
        let status = failed.status.clone().expect("a status");
        let again = status.next_attempt_time.expect("when it is tried again").0;
        let ended = status.attempt_history.expect("a history")[0].end_time.clone().expect("its end").0;
        let claimed = states.iter().rev().find_map(|item| item.status.as_ref()?.lease.as_ref()?.acquire_time.clone()).expect("a claim").0;
        assert!(claimed >= again, "{name} was claimed at {claimed}, and not to be before {again}");
        waits.push(again.duration_since(ended).as_secs());
    }
    waits.sort();
    // Times are in whole seconds, so one second more is possible.
    assert!(waits.iter().all(|wait| (0..=BOUND + 1).contains(wait)), "{waits:?}");
    assert!(waits[ITEMS - 1] - waits[0] >= BOUND / 2, "{waits:?}");
    room.close().await;
}

#[tokio::test]
async fn what_came_back_from_a_backup_waits_for_a_person() {
    let (room, _operator, _) = set_up("restored").await;
    room.apply_queue("bugs", json!({})).await;
    let long_ago = (Timestamp::now() - SignedDuration::from_secs(61)).to_string();
    room.submit("bugs", "restored", json!({"priority": 9, "submitTime": long_ago})).await;
    room.submit("bugs", "recent", json!({"submitTime": (Timestamp::now() - SignedDuration::from_secs(50)).to_string()})).await;
    room.apply_workers("fixers", &["bugs"], "exit 0", fast_scaling_spec(1)).await;
    // It would have been before the other.
    room.wait_for_item_phase("recent", Succeeded).await;
    let item = room.wait_for_item_phase("restored", Suspended).await;
    assert_eq!((reason(&item), counts(&item)), (Some("Restored"), (0, 0, 0)), "{item:?}");
    room.change_item("restored", json!({"redrives": 1})).await;
    let item = room.wait_for_item_phase("restored", Succeeded).await;
    assert_eq!(counts(&item), (1, 0, 0), "{item:?}");
    room.close().await;
}

#[tokio::test]
async fn what_argo_keeps_is_not_collected() {
    let (room, _operator, _) = set_up("argo").await;
    room.apply_queue("bugs", json!({})).await;
    let spec = |priority| json!({"queueRef": {"name": "bugs"}, "priority": priority, "overrides": {"ttlSecondsAfterFinished": 1}});
    let tracked = json!({"name": "tracked", "annotations": {"argocd.argoproj.io/tracking-id": "app:spillway.dev/WorkItem:x/tracked"}});
    room.submit_as(tracked, spec(1)).await;
    room.submit_as(json!({"name": "plain"}), spec(0)).await;
    room.apply_workers("fixers", &["bugs"], "exit 0", fast_scaling_spec(1)).await;
    eventually("the other item is collected", async || {
        let left = room.api::<WorkItem>().get_opt("plain").await.map_err(|error| error.to_string())?;
        check_state(left.is_none(), || format!("{:?}", left.and_then(|item| item.status)))
    })
    .await;
    // It was over before the other.
    assert_eq!(phase(&room.item("tracked").await), Some(Succeeded));
    room.close().await;
}

#[tokio::test]
async fn an_item_made_right_after_its_queue_is_admitted() {
    let (room, _operator, ledger) = set_up("moment").await;
    for at in 0..30 {
        room.apply_queue(&format!("queue-{at}"), json!({})).await;
        room.submit(&format!("queue-{at}"), &format!("item-{at}"), json!({})).await;
    }
    ledger.wait_for_phases(30, "looked at", |_| true).await;
    let rejected: Vec<_> = ledger.last().into_values().filter(|item| phase(item) == Some(Rejected)).collect();
    assert!(rejected.is_empty(), "{} of 30: {:?}", rejected.len(), rejected[0].status);
    room.close().await;
}

#[tokio::test]
async fn a_queue_that_is_deleted_rejects_what_waits_and_nothing_else_goes() {
    let (room, _operator, _) = set_up("unqueue").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("fixers", &["bugs"], UNTIL_TOLD, fast_scaling_spec(1)).await;
    room.submit("bugs", "held", json!({})).await;
    room.wait_for_item_phase("held", Leased).await;
    let waiting = [
        ("ready", Ready, json!({})),
        ("blocked", Blocked, json!({"dependsOn": [{"name": "held"}]})),
        ("scheduled", Scheduled, json!({"notBeforeTime": "2100-01-01T00:00:00Z"})),
        ("suspended", Suspended, json!({"suspend": true})),
    ];
    for (name, phase, spec) in &waiting {
        room.submit("bugs", name, spec.clone()).await;
        room.wait_for_item_phase(name, *phase).await;
    }
    room.api::<WorkQueue>().delete("bugs", &DeleteParams::default()).await.expect("deleted");
    for (name, _, _) in &waiting {
        let item = room.wait_for_item_phase(name, Rejected).await;
        assert_eq!((reason(&item), counts(&item)), (Some("QueueMissing"), (0, 0, 0)), "{item:?}");
    }
    // Agents that work continue.
    room.release_item("held").await;
    room.wait_for_item_phase("held", Succeeded).await;
    assert_eq!((room.list::<WorkItem>().await.len(), room.list::<AgentPool>().await.len()), (5, 1));
    room.close().await;
}
