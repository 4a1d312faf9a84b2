//! The effects of reconciling an Agent: writes, events and messages.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::{Breaker, WorkItem, names};
use crate::cluster::ObjectKey;
use crate::controller::fake::{self, Leader, TEAM};
use crate::policy::breaker::State;
use crate::policy::interventions::Timeout;
use crate::wire::follow::Message;

fn pool(name: &str, type_: &str, more: Value) -> Value {
    let mut spec = json!({"type": type_, "agent": {"image": "x", "command": ["y"]}});
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    fake::object("AgentPool", name, spec)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: TEAM.into(), name: name.into() }
}

/// A leader whose work circuits open at the first failure, and agent `a` of such a pool, after this many time-outs of
/// its calls.
async fn after_timeouts(of_pool: Value, timeouts: usize) -> Leader {
    let [agent, pod] = fake::agent("a", "p");
    let leader = Leader::of(&[pool("p", "worker", of_pool), agent, pod]);
    let spec = json!({"work": {"failureThreshold": 1}, "project": {"failureThreshold": 1}});
    let breaker: Breaker = serde_json::from_value(fake::object("Breaker", "b", spec)).expect("a Breaker");
    leader.context.circuits.set_objects(vec![Arc::new(breaker)], HashMap::from([(key("p"), 1000)]));
    leader.context.live.registered("POD-a", "g", None);
    for _ in 0..timeouts {
        leader.context.live.timed_out("POD-a", Timeout::ModelTurn);
    }
    leader.reconcile_agent("a").await;
    leader
}

fn circuits(leader: &Leader) -> (State, Option<State>) {
    let of = leader.context.circuits.pool_circuits(&key("p")).expect("it is known");
    (of.own.state, of.project.map(|project| project.state))
}

fn given_up(leader: &Leader) -> Option<String> {
    let conditions = leader.status("Agent", "a")["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|one| one["type"] == "GivenUp" && one["status"] == "True")?;
    found["reason"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn an_agent_whose_time_outs_are_chronic_is_ended_and_the_breakers_of_its_work_are_told() {
    let few = after_timeouts(json!({}), 2).await;
    assert_eq!((given_up(&few), circuits(&few)), (None, (State::Closed, Some(State::Closed))));
    assert_eq!(few.status("Agent", "a")["timeouts"], 2);
    let many = after_timeouts(json!({}), 3).await;
    assert_eq!((given_up(&many).as_deref(), circuits(&many)), (Some("Reaped"), (State::Open, Some(State::Open))));
    assert_eq!(many.status("Agent", "a")["interventions"][0]["signal"], "ChronicTimeout");
    let last = many.context.circuits.pool_circuits(&key("p")).and_then(|of| of.own.last_failure).unwrap_or_default();
    assert!(last.contains("spec.bulkhead.maxTimeouts"), "{last}");
    // The pool sets the limit.
    let strict = after_timeouts(json!({"bulkhead": {"maxTimeouts": 1}}), 1).await;
    assert_eq!((given_up(&strict).as_deref(), circuits(&strict).0), (Some("Reaped"), State::Open));
    let observed = after_timeouts(json!({"supervision": {"mode": "Observe"}}), 9).await;
    assert_eq!((given_up(&observed), circuits(&observed).0), (None, State::Closed));
    assert_eq!(observed.status("Agent", "a")["interventions"][0]["action"], "Reap", "it is told");
}

#[tokio::test]
async fn where_the_operator_is_being_removed_each_agent_is_deleted_once_and_gets_no_pod() {
    let [agent, _] = fake::agent("a", "p");
    let mut leaving = agent.clone();
    leaving["metadata"]["name"] = json!("b");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:01Z");
    leaving["status"] = json!({"phase": "Spawning"});
    let leader = Leader::removing(&[pool("p", "worker", json!({})), agent.clone(), leaving]);
    leader.reconcile_agent("a").await;
    leader.reconcile_agent("b").await;
    assert_eq!(leader.deleted(), ["agents/a"], "b is being deleted already");
    let staying = Leader::of(&[pool("p", "worker", json!({})), agent]);
    staying.reconcile_agent("a").await;
    assert!(staying.deleted().is_empty());
}

fn item(submitted_by: Option<&str>) -> WorkItem {
    let mut item = fake::object("WorkItem", "fix", json!({"queueRef": {"name": "bugs"}}));
    if let Some(pool) = submitted_by {
        item["metadata"]["labels"] = json!({names::SUBMITTED_BY_LABEL: pool});
    }
    let lease = json!({"holder": "POD-a", "agent": "a", "leaseTransitions": 1, "acquireTime": "2026-01-01T00:00:09.000000Z"});
    item["status"] = json!({"phase": "Leased", "queue": "bugs", "lease": lease});
    serde_json::from_value(item).expect("a WorkItem")
}

/// The messages to the agents of each pool, after an agent that holds `held` raised a signal that its pool escalates.
async fn escalated(held: Option<WorkItem>, mode: &str) -> (Leader, HashMap<&'static str, Vec<Message>>) {
    let rule = json!({"supervision": {"mode": mode, "rules": [{"signal": "OperationTimeout", "do": "Escalate"}]}});
    let [agent, pod] = fake::agent("a", "p");
    let pools = [pool("p", "worker", rule), pool("planner", "scheduler", json!({})), pool("lead", "free", json!({}))];
    let leader = Leader::of(&[pools.as_slice(), &[agent, pod]].concat());
    if let Some(item) = held {
        leader.context.work_index.observe(&item);
    }
    leader.context.live.registered("POD-a", "g", None);
    leader.context.live.timed_out("POD-a", Timeout::ModelTurn);
    leader.reconcile_agent("a").await;
    let told = leader.context.work_index.with(TEAM, |work| {
        let of = |pool| (pool, work.messages.after(pool, 0).map(|(_, message)| message.clone()).collect());
        ["p", "planner", "lead"].map(of)
    });
    (leader, HashMap::from(told))
}

#[tokio::test]
async fn an_escalation_goes_to_the_scheduler_or_to_the_submitter_of_the_item() {
    let message = |item: Option<&str>| Message::Escalated {
        agent: "a".into(),
        signal: "OperationTimeout".into(),
        text: Timeout::ModelTurn.message().into(),
        item: item.map(str::to_owned),
    };
    let (mut leader, told) = escalated(None, "Enforce").await;
    assert_eq!(told, HashMap::from([("p", vec![]), ("planner", vec![message(None)]), ("lead", vec![])]));
    assert_eq!(given_up(&leader), None, "it works on");
    assert!(leader.take_notices().iter().any(|(reason, kind, _)| reason == "OperationTimeout" && kind == "Agent"), "people are told too");
    let (_, told) = escalated(Some(item(None)), "Enforce").await;
    assert_eq!(told["planner"], [message(Some("fix"))]);
    let (_, told) = escalated(Some(item(Some("lead"))), "Enforce").await;
    assert_eq!((&told["planner"], &told["lead"]), (&vec![], &vec![message(Some("fix"))]));
    let (_, told) = escalated(None, "Observe").await;
    assert!(told.values().all(Vec::is_empty), "{told:?}");
}
