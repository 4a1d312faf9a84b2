//! Agents that hibernate without work, and wake with the same name, the same volume and another pod.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use spillway::api::agent::AgentPhase;
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};
use spillway::api::{Agent, AgentPool, WorkItem};

use crate::support::exec::spillway;
use crate::support::history::{History, has_condition, phase, pod_uid};
use crate::support::track::Pods;
use crate::support::work::{UNTIL_TOLD, attempts, holder};
use crate::support::{Operator, TestNamespace, audit, check_state, eventually};

/// Prints the files of earlier items, and writes one itself.
const REMEMBER: &str = "cat /workspace/log > $SPILLWAY_RESULT_FILE 2>/dev/null; echo $task >> /workspace/log";

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({})).await;
    (room, operator)
}

/// A pool whose agents hibernate as soon as possible.
fn hibernating_pool_spec(max: u32) -> Value {
    let claim = json!({"storageClassName": "standard", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}});
    json!({
        "scaling": {"min": 0, "max": max, "cooldownSeconds": 3}, "whenEmpty": {"action": "Hibernate", "afterSeconds": 3},
        "workspace": {"volumeClaimTemplate": claim},
    })
}

impl TestNamespace {
    /// Waits until there are `count` Agents, all of them hibernated and without a pod.
    async fn wait_until_hibernated(&self, count: usize) -> Vec<Agent> {
        let asleep = eventually(&format!("{count} agents hibernate"), async || {
            let all: Vec<Agent> = self.list().await;
            let asleep = all.iter().filter(|agent| phase(agent) == Some(AgentPhase::Hibernated)).count();
            check_state(asleep == count && all.len() == count, || format!("{asleep} of {}", all.len())).map(|()| all)
        })
        .await;
        assert!(self.list::<Pod>().await.is_empty(), "an agent that hibernates has no pod");
        asleep
    }

    async fn claims(&self) -> Vec<PersistentVolumeClaim> {
        self.list().await
    }

    async fn no_claim(&self) {
        eventually("the claims are gone", async || {
            let left: Vec<String> = self.claims().await.iter().map(ResourceExt::name_any).collect();
            check_state(left.is_empty(), || left.join(", "))
        })
        .await;
    }

    async fn done(&self, name: &str) -> WorkItem {
        let item = self.wait_for_item_phase(name, Succeeded).await;
        let status = item.status.as_ref().expect("a status");
        let counts = (status.attempts.unwrap_or(0), status.failures.unwrap_or(0), status.stalls.unwrap_or(0));
        assert_eq!((counts, attempts(&item).len()), ((1, 0, 0), 1), "{item:?}");
        item
    }
}

fn has_pod(agent: &Agent) -> bool {
    agent.status.as_ref().is_some_and(|status| status.pod_ref.is_some())
}

/// A named state of an Agent.
type Moment = (&'static str, fn(&Agent) -> bool);

/// The files that an item found.
fn found(item: &WorkItem) -> Vec<String> {
    let result = item.status.as_ref().and_then(|status| status.result.clone()).unwrap_or_default();
    result.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn an_agent_sleeps_without_work_and_wakes_as_itself() {
    let (room, _operator) = set_up("sleep").await;
    let (pods, history) = (Pods::start(&room), History::start(&room));
    room.apply_workers("sleepers", &["bugs"], REMEMBER, hibernating_pool_spec(2)).await;
    room.submit("bugs", "first", json!({"payload": "one"})).await;
    let first = room.done("first").await;
    assert_eq!(found(&first), Vec::<String>::new());

    let before = room.wait_until_hibernated(1).await.remove(0);
    assert!(has_condition(&before, "Ready", "False", "Hibernated"), "{:?}", before.status);
    let status = before.status.clone().expect("a status");
    assert_eq!((status.pod_ref.as_ref(), status.node.as_ref(), status.start_time.as_ref()), (None, None, None));
    let claims = room.claims().await;
    assert_eq!(status.claim_ref.map(|claim| claim.uid), claims.first().and_then(ResourceExt::uid), "{claims:?}");
    let (pool_reason, _) = room.pool_says("sleepers", "ScaledToZero", "True").await;
    assert_eq!(pool_reason, "NoWork");
    eventually("the pool counts the agent only as hibernated", async || {
        let status = room.pool("sleepers").await.status.unwrap_or_default();
        check_state((status.agents, status.hibernated) == (Some(0), Some(1)), || format!("{status:?}"))
    })
    .await;
    room.wait_for_event(&before.name_any(), "Hibernated", "no work").await;
    // Its phase Active is not always written, because a short item has ended by then.
    let (_, awake) = history.wait_for_agent("it had a pod", has_pod).await;
    let old = pod_uid(&awake);

    room.submit("bugs", "second", json!({"payload": "two"})).await;
    let second = room.done("second").await;
    assert_eq!(found(&second), ["one"], "what the first item left");
    assert_eq!(attempts(&second), attempts(&first), "the same agent");
    room.wait_for_event(&before.name_any(), "Woken", "work").await;

    let after = room.wait_until_hibernated(1).await.remove(0);
    assert_eq!((after.uid(), after.name_any()), (before.uid(), before.name_any()));
    assert_eq!(after.spec.display_name, before.spec.display_name);
    assert_eq!(room.claims().await.first().and_then(ResourceExt::uid), claims.first().and_then(ResourceExt::uid));
    assert_eq!((pods.most_at_once(), pods.total(), history.agents_ever().await.len()), (1, 2, 1));
    history.wait_for_agent("it had another pod", |agent| has_pod(agent) && pod_uid(agent) != old).await;

    room.api::<AgentPool>().delete("sleepers", &DeleteParams::default()).await.expect("the pool is deleted");
    room.empty().await;
    room.no_claim().await;
    room.close().await;
}

#[tokio::test]
async fn who_sleeps_is_woken_before_others_come_and_max_is_kept() {
    let (room, _operator) = set_up("wake").await;
    let (pods, history) = (Pods::start(&room), History::start(&room));
    room.apply_workers("sleepers", &["bugs"], UNTIL_TOLD, hibernating_pool_spec(3)).await;
    for name in ["one", "two"] {
        room.submit("bugs", name, json!({})).await;
    }
    for name in ["one", "two"] {
        room.release_item(name).await;
        room.done(name).await;
    }
    let mut asleep = room.wait_until_hibernated(2).await;

    // A person pauses one of them: it stays asleep, and another one takes its place.
    asleep.sort_by_key(|agent| agent.spec.sequence);
    let held = asleep.remove(0);
    let pause = |paused: bool| Patch::Merge(json!({"spec": {"paused": paused}}));
    let agents = room.api::<Agent>();
    agents.patch(&held.name_any(), &PatchParams::default(), &pause(true)).await.expect("it is paused");
    eventually("the pause is seen", async || {
        let agent = agents.get(&held.name_any()).await.map_err(|error| error.to_string())?;
        check_state(has_condition(&agent, "Paused", "True", "PausedBySpec"), || format!("{:?}", agent.status))
    })
    .await;
    for name in ["three", "four"] {
        room.submit("bugs", name, json!({})).await;
    }
    let mut holders = Vec::new();
    for name in ["three", "four"] {
        holders.push(holder(&room.wait_for_item_phase(name, Leased).await));
    }
    assert!(holders.contains(&asleep[0].name_any()), "the one that sleeps is woken: {holders:?}");
    assert!(!holders.contains(&held.name_any()), "the one that is held is not: {holders:?}");
    assert_eq!((history.agents_ever().await.len(), pods.most_at_once()), (3, 2));
    agents.patch(&held.name_any(), &PatchParams::default(), &pause(false)).await.expect("it is let go");
    for name in ["three", "four"] {
        room.release_item(name).await;
        room.done(name).await;
    }
    let asleep = room.wait_until_hibernated(3).await;

    // A hibernated agent is deleted at once, with its volume.
    let gone = asleep[0].name_any();
    agents.delete(&gone, &DeleteParams::default()).await.expect("it is deleted");
    room.wait_until_hibernated(2).await;
    // The pool keeps at most its maximum.
    room.apply_workers("sleepers", &["bugs"], UNTIL_TOLD, hibernating_pool_spec(1)).await;
    room.wait_until_hibernated(1).await;
    eventually("one claim is left", async || {
        let left = room.claims().await.len();
        check_state(left == 1, || format!("{left}"))
    })
    .await;
    let mut other = hibernating_pool_spec(1);
    other["whenEmpty"]["action"] = json!("Terminate");
    room.apply_workers("sleepers", &["bugs"], UNTIL_TOLD, other).await;
    room.wait_until_hibernated(0).await;
    room.no_claim().await;
    room.close().await;
}

#[tokio::test]
async fn the_volume_of_an_agent_that_ended_is_gone_while_its_agent_is_kept() {
    let (room, _operator) = set_up("ended").await;
    room.apply_pool("free", json!({"replicas": 1, "workspace": hibernating_pool_spec(1)["workspace"]})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0).name_any();
    assert_eq!(room.claims().await.len(), 1);
    // The pod can end before the command does.
    let said = spillway(&room, &agent, &["goodbye", "all is done"]).await;
    assert!(!said.err.contains("refused"), "{said:?}");
    eventually("its volume is gone", async || {
        let left: Vec<String> = room.claims().await.iter().map(ResourceExt::name_any).collect();
        check_state(!left.contains(&format!("{agent}-workspace")), || left.join(", "))
    })
    .await;
    let kept = room.api::<Agent>().get(&agent).await.expect("its Agent");
    assert_eq!(phase(&kept), Some(AgentPhase::Stopped));
    room.close().await;
}

#[tokio::test]
async fn a_claim_that_was_not_made_for_the_agent_is_not_used() {
    let (room, _operator) = set_up("foreign").await;
    room.apply_workers("sleepers", &["bugs"], REMEMBER, hibernating_pool_spec(1)).await;
    room.submit("bugs", "first", json!({"payload": "one"})).await;
    room.done("first").await;
    let agent = room.wait_until_hibernated(1).await.remove(0).name_any();
    let claims = room.api::<PersistentVolumeClaim>();
    let name = format!("{agent}-workspace");
    let own = claims.get(&name).await.expect("its claim");
    claims.delete(&name, &DeleteParams::default()).await.expect("the claim is deleted");
    room.no_claim().await;
    let other: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": name}, "spec": own.spec})).expect("a claim");
    claims.create(&PostParams::default(), &other).await.expect("another one");

    room.submit("bugs", "second", json!({"payload": "two"})).await;
    let (reason, words) = room.pool_says("sleepers", "Blocked", "True").await;
    assert!(reason == "VolumeRefused" && words.contains("not made for this agent"), "{reason}: {words}");
    assert!(room.list::<Pod>().await.is_empty());
    let still = claims.get(&name).await.expect("it is left alone");
    assert!(still.metadata.deletion_timestamp.is_none() && still.metadata.owner_references.is_none(), "{still:?}");

    claims.delete(&name, &DeleteParams::default()).await.expect("it is taken away");
    let second = room.done("second").await;
    assert_eq!(found(&second), Vec::<String>::new(), "it begins with an empty volume");
    room.wait_for_event(&agent, "VolumeLost", "empty volume").await;
    room.close().await;
}

#[tokio::test]
async fn a_leader_that_dies_anywhere_in_between_loses_no_item_and_makes_no_second_pod() {
    let (room, mut operator) = set_up("dies").await;
    let (pods, history) = (Pods::start(&room), History::start(&room));
    room.apply_workers("sleepers", &["bugs"], REMEMBER, hibernating_pool_spec(1)).await;
    // The operator is killed between important writes, as far as a watch shows them in time.
    let moments: [Moment; 4] = [
        ("it is to sleep", |agent| agent.spec.hibernated == Some(true) && phase(agent) != Some(AgentPhase::Hibernated)),
        ("its pod is on its way out", |agent| has_condition(agent, "Ready", "False", "Hibernating")),
        ("it is to wake", |agent| agent.spec.hibernated == Some(false) && phase(agent) == Some(AgentPhase::Hibernated)),
        ("its pod is there again", |agent| agent.spec.hibernated == Some(false) && phase(agent) == Some(AgentPhase::Spawning)),
    ];
    let mut left = Vec::new();
    for (at, (what, fits)) in moments.into_iter().enumerate() {
        let since = History::start(&room);
        let name = format!("item-{at}");
        room.submit("bugs", &name, json!({"payload": name})).await;
        since.wait_for_agent(what, fits).await;
        drop(operator); // this kills it
        operator = room.operator(&format!("after-{at}"));
        operator.leads(&room).await;
        assert_eq!(found(&room.done(&name).await), left, "{what}");
        left.push(name);
        room.wait_until_hibernated(1).await;
    }
    assert_eq!((pods.most_at_once(), history.agents_ever().await.len()), (1, 1), "one agent, and never two pods of it");
    let writes = audit::writes(&room.namespace, jiff::Timestamp::MIN);
    let made = writes.iter().filter(|write| write.is("create", "persistentvolumeclaims")).count();
    assert_eq!(made, 1, "one volume");
    room.close().await;
}
