//! Questions of a gateway, and the answers of people, against an API server in memory.

use std::collections::HashSet;

use serde_json::Value;

use super::*;
use crate::controller::fake::{self, Leader, TEAM};
use crate::controller::served_toolsets::ServedToolset;
use crate::governor::live::Working;
use crate::governor::tools;
use crate::policy::health::Finding;
use crate::wire::agent::{Program, Report};
use crate::wire::tools::{ToolStep, ToolsetRequest};

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: TEAM.into(), name: name.into() }
}

fn item(epoch: i64) -> Value {
    let mut item = fake::object("WorkItem", "fix", json!({"queueRef": {"name": "bugs"}}));
    let lease = json!({"holder": "POD-a", "agent": "a", "leaseTransitions": epoch, "acquireTime": "2026-01-01T00:00:09.000000Z"});
    item["metadata"]["resourceVersion"] = json!(epoch.to_string());
    item["status"] = json!({"phase": "Leased", "queue": "bugs", "lease": lease});
    item
}

/// A leader that has read this Agent. Its pod holds an item, and its pool lists the Toolset `deploy`, which is served.
fn leader(agent: &Value) -> Leader {
    let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "toolsets": [{"name": "deploy"}]});
    let [_, pod] = fake::agent("a", "p");
    let leader = Leader::of(&[fake::object("AgentPool", "p", spec), agent.clone(), pod]);
    leader.context.work_index.items_listed(&HashSet::new());
    leader.context.work_index.queues_listed();
    leader.context.work_index.observe(&serde_json::from_value(item(1)).expect("a WorkItem"));
    let served =
        ServedToolset { address: ([10, 0, 0, 1], 443).into(), service_account: "deploy-toolset".into(), approval_timeout_seconds: 900 };
    leader.context.toolsets.set(key("deploy"), served.clone());
    leader.context.toolsets.set(key("other"), served);
    leader
}

fn new_agent() -> Value {
    fake::agent("a", "p")[0].clone()
}

async fn ask_for(leader: &Leader, toolset: &str, digest: &str, arguments: &str) -> Result<ApprovalVerdict, Refusal> {
    let caller = Caller { key: key("a"), uid: "POD-a".into(), gateway: "g".into(), external: None };
    let call = CallToApprove { id: digest.into(), program: "deploy".into(), arguments: arguments.into() };
    let item = Some(LeaseRef { uid: "WorkItem-fix".into(), epoch: 1 });
    let request = ToolsetRequest { toolset: toolset.into(), item, step: ToolStep::Approval(call) };
    let bytes = serde_json::to_vec(&request).expect("JSON");
    tools::of_agent(&caller, &bytes, &leader.context).await.map(|answer| serde_json::from_value(answer).expect("a verdict"))
}

async fn ask(leader: &Leader) -> Result<ApprovalVerdict, Refusal> {
    ask_for(leader, "deploy", DIGEST, r#"{"version":"v7"}"#).await
}

fn stored(leader: &Leader) -> Vec<Value> {
    leader.status("Agent", "a")["toolApprovals"].as_array().cloned().unwrap_or_default()
}

/// A person answers the first question, for this Toolset.
fn answer(leader: &Leader, toolset: &str, decision: &str) {
    let mut agent = leader.stored("agents", "a").expect("the Agent");
    let id = stored(leader)[0]["id"].clone();
    agent["spec"]["toolApprovals"] =
        json!([{"id": id, "toolset": toolset, "decision": decision, "user": "alice", "reason": "see the ticket"}]);
    agent["metadata"]["resourceVersion"] = json!("answered");
    leader.put("agents", "a", Some(agent));
}

#[tokio::test]
async fn a_call_waits_for_a_person_and_is_let_through_once() {
    let mut leader = leader(&new_agent());
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
    let waiting = stored(&leader);
    let [one] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!((&one["state"], &one["toolset"], &one["program"]), (&json!("Waiting"), &json!("deploy"), &json!("deploy")));
    assert_eq!((&one["call"], &one["podUid"]), (&json!(DIGEST), &json!("POD-a")));
    assert_eq!(one["item"], json!({"name": "fix", "uid": "WorkItem-fix", "epoch": 1}));
    assert_eq!(leader.status("Agent", "a")["governorEpoch"], 7);
    let told = leader.take_notices();
    let [(reason, kind, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((reason.as_str(), kind.as_str()), ("ApprovalRequested", "Agent"));
    let id = one["id"].as_str().expect("an id");
    assert!(message.contains(&format!("kubectl spillway approve a {id} -n team")) && message.contains(r#"{"version":"v7"}"#), "{message}");
    // The gateway repeats its question.
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
    assert_eq!((stored(&leader), leader.take_notices().len()), (waiting.clone(), 0));
    // An answer for another Toolset is none.
    answer(&leader, "other", "Approve");
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
    answer(&leader, "deploy", "Approve");
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Approved { by: "alice".into() }));
    assert_eq!((stored(&leader)[0]["state"].clone(), stored(&leader)[0]["by"].clone()), (json!("Used"), json!("alice")));
    // The approval is spent, also if the gateway did not hear of it, and though the answer is still in the spec.
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
    assert_ne!(stored(&leader)[0]["id"], waiting[0]["id"]);
    let events: Vec<String> = leader.events().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(events, ["ApprovalRequested", "ApprovalGiven"], "a repeated event counts in its series");
    assert_eq!(leader.take_notices().len(), 1, "people are told again");
}

#[tokio::test]
async fn an_item_does_not_stall_while_its_agent_waits_for_a_person() {
    let leader = leader(&new_agent());
    leader.reconcile_agent("a").await;
    let live = &leader.context.live;
    let _session = live.session("g".into());
    let silent = Report { silent_ms: 3_600_000, ..Report::of(Program::Running) };
    live.reported("POD-a", "g", silent, jiff::Timestamp::UNIX_EPOCH);
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    let held = LeaseRef { uid: "WorkItem-fix".into(), epoch: 1 };
    let working = Working { held, lease: hour, stall: minute, attempt: hour, cancelling: false, paused: None, had_all_tokens: false };
    live.holds("POD-a", Some(working));
    let finding_after = |seconds| {
        (0..seconds).for_each(|_| drop(live.tick(Duration::from_secs(1))));
        live.view("POD-a").expect("it is known").finding
    };
    for _ in 0..3 {
        assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
        assert_eq!(finding_after(50), Finding::Well);
    }
    assert!(matches!(finding_after(10), Finding::ItemStalled(_)), "it asks no more");
}

#[tokio::test]
async fn the_reconciler_takes_an_answer_over_and_the_next_leader_knows_it() {
    let first = leader(&new_agent());
    assert_eq!(ask(&first).await, Ok(ApprovalVerdict::Waiting));
    // The next leader knows the call that waits, and the answer that it finds.
    let second = leader(&first.stored("agents", "a").expect("the Agent"));
    assert_eq!((ask(&second).await, stored(&second)), (Ok(ApprovalVerdict::Waiting), stored(&first)));
    answer(&second, "deploy", "Approve");
    let third = leader(&second.stored("agents", "a").expect("the Agent"));
    third.reconcile_agent("a").await;
    assert_eq!(stored(&third)[0]["state"], "Approved");
    let fourth = leader(&third.stored("agents", "a").expect("the Agent"));
    assert_eq!(ask(&fourth).await, Ok(ApprovalVerdict::Approved { by: "alice".into() }));
    let fifth = leader(&fourth.stored("agents", "a").expect("the Agent"));
    assert_eq!(ask(&fifth).await, Ok(ApprovalVerdict::Waiting), "it was used before");
    // A denial is told to every repeat of the call.
    answer(&fifth, "deploy", "Deny");
    let denied = ApprovalVerdict::Denied { by: "alice".into(), reason: "see the ticket".into() };
    assert_eq!((ask(&fifth).await, ask(&fifth).await), (Ok(denied.clone()), Ok(denied)));
}

#[tokio::test]
async fn an_agent_that_lost_its_item_or_has_ended_can_not_be_approved() {
    let first = leader(&new_agent());
    assert_eq!(ask(&first).await, Ok(ApprovalVerdict::Waiting));
    answer(&first, "deploy", "Approve");
    let agent = first.stored("agents", "a").expect("the Agent");
    let lost = leader(&agent);
    lost.context.work_index.observe(&serde_json::from_value(item(2)).expect("a WorkItem"));
    assert_eq!(ask(&lost).await.expect_err("refused").code, Code::NotWorking);
    lost.reconcile_agent("a").await;
    assert_eq!(stored(&lost), [Value::Null; 0]);
    let mut over = agent.clone();
    over["status"]["phase"] = json!("Stopped");
    let ended = leader(&over);
    assert_eq!(ask(&ended).await.expect_err("refused").code, Code::AgentEnded);
    ended.reconcile_agent("a").await;
    assert_eq!(stored(&ended), [Value::Null; 0]);
    let mut replaced = agent;
    replaced["status"]["podRef"]["uid"] = json!("POD-b");
    assert_eq!(ask(&leader(&replaced)).await.expect_err("refused").code, Code::NotAnAgent, "another pod");
}

#[tokio::test]
async fn a_call_that_nobody_answers_times_out() {
    let first = leader(&new_agent());
    assert_eq!(ask(&first).await, Ok(ApprovalVerdict::Waiting));
    answer(&first, "deploy", "Approve");
    let mut agent = first.stored("agents", "a").expect("the Agent");
    agent["status"]["toolApprovals"][0]["expireTime"] = json!(jiff::Timestamp::from_second(now()).expect("a time").to_string());
    let late = leader(&agent);
    late.reconcile_agent("a").await;
    assert_eq!(stored(&late)[0]["state"], "TimedOut");
    assert_eq!(ask(&late).await, Ok(ApprovalVerdict::TimedOut));
    assert!(late.events().iter().any(|(reason, _)| reason == "ApprovalTimedOut"), "{:?}", late.events());
}

#[tokio::test]
async fn the_checks_of_a_call_hold_and_a_full_list_is_refused() {
    let leader = leader(&new_agent());
    assert_eq!(ask_for(&leader, "other", DIGEST, "{}").await.expect_err("refused").code, Code::ToolsDenied);
    assert_eq!(stored(&leader), [Value::Null; 0]);
    for number in 0..8 {
        assert_eq!(ask_for(&leader, "deploy", &format!("{number:064x}"), "{}").await, Ok(ApprovalVerdict::Waiting));
    }
    let refusal = ask(&leader).await.expect_err("refused");
    assert!(refusal.code == Code::LimitReached && refusal.retry_after_seconds.is_some_and(|seconds| seconds > 900), "{refusal:?}");
    assert_eq!(ask_for(&leader, "deploy", &format!("{:064x}", 3), "{}").await, Ok(ApprovalVerdict::Waiting), "a repeat");
    leader.context.toolsets.remove(&key("deploy"));
    assert_eq!(ask(&leader).await.expect_err("refused").code, Code::DestinationUnreachable);
}

#[tokio::test]
async fn a_leader_that_another_one_replaced_lets_nothing_through() {
    let leader = leader(&new_agent());
    assert_eq!(ask(&leader).await, Ok(ApprovalVerdict::Waiting));
    answer(&leader, "deploy", "Approve");
    let mut agent = leader.stored("agents", "a").expect("the Agent");
    agent["status"]["governorEpoch"] = json!(8);
    leader.put("agents", "a", Some(agent));
    assert_eq!(ask(&leader).await.expect_err("refused").code, Code::GovernorAway);
    assert_eq!(stored(&leader)[0]["state"], "Waiting");
    assert!(leader.context.leadership.check().is_err());
}

#[tokio::test]
async fn texts_of_an_agent_cannot_deceive_the_reader() {
    let mut leader = leader(&new_agent());
    let hostile = "{\"a\":\"\u{1b}[2J\u{202e}x\u{200b}\"}";
    assert_eq!(ask_for(&leader, "deploy", DIGEST, hostile).await, Ok(ApprovalVerdict::Waiting));
    let expected = r#"{"a":"\u001b[2J\u202ex\u200b"}"#;
    assert_eq!(stored(&leader)[0]["arguments"], expected);
    assert!(leader.take_notices()[0].2.contains(expected));
    let long = "\u{200b}".repeat(200);
    let refusal = ask_for(&leader, "deploy", DIGEST, &long).await.expect_err("refused");
    assert!(refusal.code == Code::LimitReached && refusal.message.contains("must see its arguments whole"), "{refusal:?}");
}
