//! Interventions: repeated time-outs, agents that crash one after another, thresholds of a Budget, and the notices that
//! a pool sends to its scheduler.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};
use spillway::api::{Agent, Budget};

use crate::breakers;
use crate::notifications::{Calls, receiver, webhooks};
use crate::support::caller::{Caller, token_of};
use crate::support::history::{condition, has_condition};
use crate::support::models::Scripted;
use crate::support::work::{UNTIL_TOLD, attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// A function of the shell that makes one call of this model.
fn call(model: &str) -> String {
    let body = json!({"model": model, "max_tokens": 300, "messages": [{"role": "user", "content": "hello"}]});
    let options = "-q -Y off -O /dev/null --header 'content-type: application/json'";
    format!(r#"call() {{ wget {options} --post-data '{body}' "$OPENAI_BASE_URL/chat/completions"; }}"#)
}

async fn agent(room: &TestNamespace, what: &str, name: &str, fits: impl Fn(&Agent) -> bool) -> Agent {
    eventually(what, async || {
        let agent = room.api::<Agent>().get(name).await.map_err(|error| error.to_string())?;
        check_state(fits(&agent), || format!("{:?}", agent.status)).map(|()| agent)
    })
    .await
}

/// Whether an agent has an intervention with this signal and this action.
fn intervened(agent: &Agent, signal: &str, action: &str) -> bool {
    let told = agent.status.iter().flat_map(|status| status.interventions.iter().flatten());
    told.into_iter().any(|told| told.signal == signal && told.action == action)
}

/// Waits until the webhook has this notice; the notice.
async fn wait_for_notice(calls: &Calls, reason: &str) -> Value {
    eventually(&format!("the webhook has a notice {reason}"), async || {
        let calls = calls.lock().expect("whole").clone();
        let found = calls.iter().map(|(_, body)| body.clone()).find(|body| body["reason"] == reason);
        found.ok_or_else(|| format!("{calls:?}"))
    })
    .await
}

#[tokio::test]
async fn chronic_time_outs_end_the_agent_and_are_told_to_the_breakers_of_its_work() {
    let room = TestNamespace::open("chronic").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    breakers::breaker(&room, "for-all", json!({"project": {"failureThreshold": 1, "openSeconds": 600}})).await;
    breakers::breaker(&room, "strict", json!({"pools": ["slow"], "work": {"failureThreshold": 1, "openSeconds": 600}})).await;
    room.apply_queue("bugs", json!({})).await;
    let script = format!("{}; while :; do call; sleep 1; done", call("scripted-large--wait"));
    let extra = json!({
        "scaling": {"max": 1}, "models": [provider.entry("gpt", "OpenAIChat")],
        "bulkhead": {"lifetimeTokens": 1_000_000_000_i64, "modelTurnTimeoutSeconds": 2, "maxTimeouts": 2},
    });
    room.apply_workers("slow", &["bugs"], &script, extra).await;
    room.submit("bugs", "hangs", json!({"payload": "x"})).await;
    let name = holder(&room.wait_for_item_phase("hangs", Leased).await);
    let ended = agent(&room, "it is given up", &name, |agent| has_condition(agent, "GivenUp", "True", "Reaped")).await;
    assert!(intervened(&ended, "ChronicTimeout", "Reap"), "{:?}", ended.status);
    assert!(ended.status.and_then(|status| status.timeouts).is_some_and(|timeouts| timeouts >= 2));
    room.wait_for_event(&name, "ChronicTimeout", "spec.bulkhead.maxTimeouts").await;
    // No attempt timed out: only the agent's time-outs open the circuits.
    let words = breakers::wait_for_condition(&room, "strict", "Tripped", "True", "CircuitOpen").await;
    assert!(words.contains("work/slow is open") && words.contains("spec.bulkhead.maxTimeouts"), "{words}");
    let words = breakers::wait_for_condition(&room, "for-all", "Tripped", "True", "CircuitOpen").await;
    assert!(words.contains("work (all pools of the namespace) is open"), "{words}");
    let (reason, message) = room.pool_says("slow", "Blocked", "True").await;
    assert!(reason == "BreakerOpen" && message.contains("Breaker/strict") && message.contains("Breaker/for-all"), "{reason}: {message}");
    eventually("its item is released", async || {
        let tried = attempts(&room.item("hangs").await);
        check_state(tried == [("LeaseExpired".to_owned(), name.clone())], || format!("{tried:?}"))
    })
    .await;
    provider.release_waiting();
    room.close().await;
}

#[tokio::test]
async fn agents_that_crash_one_after_another_are_told_of_as_a_rule_says() {
    let room = TestNamespace::open("crashloop").await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    let rules = json!({"rules": [{"signal": "CrashLoop", "count": 3, "windowSeconds": 600, "do": "Notify"}]});
    let program = json!({"command": ["/bin/sh", "-c", "exit 7"]});
    room.apply_pool("fails", json!({"replicas": 1, "agent": program, "supervision": rules})).await;
    let notice = wait_for_notice(&calls, "CrashLoop").await;
    assert!(notice.to_string().contains("3 agents of AgentPool/fails recently ended soon after their start"), "{notice}");
    let agents: Vec<Agent> = room.list().await;
    let told: Vec<String> = agents.iter().filter(|agent| intervened(agent, "CrashLoop", "Notify")).map(ResourceExt::name_any).collect();
    assert!(!told.is_empty() && told.len() + 2 <= agents.len(), "the first two are no loop of three: {told:?} of {}", agents.len());
    assert!(
        agents.iter().all(|agent| condition(agent, "GivenUp").is_none_or(|given_up| given_up.status != "True")),
        "they ended by themselves"
    );
    room.wait_for_event(&told[0], "CrashLoop", "exit code 7").await;
    room.close().await;
}

#[tokio::test]
async fn thresholds_of_a_budget_tell_people_and_end_agents() {
    let room = TestNamespace::open("thresholds").await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    let thresholds = json!([{"percent": 50, "action": "Notify"}, {"percent": 90, "action": "Reap"}]);
    let budget = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        "spec": {"tokens": {"limits": [{"name": "daily", "tokens": 4000, "window": "Day"}], "estimate": "Bytes", "minOutputTokens": 1},
            "thresholds": thresholds},
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(budget)).await.expect("the Budget is accepted");
    room.apply_queue("bugs", json!({})).await;
    // It spends all tokens, reports no progress, and does not end after a refusal.
    let script = format!("{}; while call; do :; done; while :; do sleep 1; done", call("scripted-large--output-300"));
    let extra = json!({
        "scaling": {"max": 1}, "models": [provider.entry("gpt", "OpenAIChat")],
        "bulkhead": {"lifetimeTokens": 1_000_000_000_i64},
    });
    room.apply_workers("spenders", &["bugs"], &script, extra).await;
    room.submit("bugs", "spends", json!({"payload": "x"})).await;
    let spender = holder(&room.wait_for_item_phase("spends", Leased).await);
    let notice = wait_for_notice(&calls, "ThresholdReached").await;
    assert_eq!(notice["objects"][0]["kind"], "Budget", "{notice}");
    assert!(notice.to_string().contains("50 % of the limit daily of 4000 tokens"), "{notice}");
    let ended = agent(&room, "it is ended", &spender, |agent| has_condition(agent, "GivenUp", "True", "TokensSpent")).await;
    assert!(intervened(&ended, "TokenBudgetExceeded", "Reap"), "{:?}", ended.status);
    room.wait_for_event(&spender, "TokenBudgetExceeded", "90 % of the limit daily of 4000 tokens").await;
    let item = room.item("spends").await.status.unwrap_or_default();
    assert_eq!((item.failures.unwrap_or(0), item.stalls.unwrap_or(0)), (0, 0), "its item counts nothing");
    room.close().await;
}

#[tokio::test]
async fn what_a_pool_escalates_comes_to_the_inbox_of_the_scheduler() {
    let room = TestNamespace::open("escalate").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("planner", json!({"type": "scheduler", "replicas": 1})).await;
    let planner = room.wait_until_idle("planner", 1).await.remove(0).name_any();
    let pod = room.api::<Pod>().get(&planner).await.expect("its pod");
    let inbox = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pod).await);
    room.apply_queue("bugs", json!({"itemDefaults": {"attemptTimeoutSeconds": 3}})).await;
    let rules = json!({"rules": [{"signal": "ItemPastTime", "do": "Escalate"}]});
    room.apply_workers("fixers", &["bugs"], UNTIL_TOLD, json!({"scaling": {"max": 1}, "supervision": rules})).await;
    room.submit("bugs", "long", json!({"payload": "x"})).await;
    let name = holder(&room.wait_for_item_phase("long", Leased).await);
    let message = eventually("the scheduler's inbox has the message", async || {
        let answer = inbox.try_call("GET", "/agent/v1/inbox", "").await?;
        let messages = if answer.status == 200 { answer.json()["messages"].as_array().cloned().unwrap_or_default() } else { Vec::new() };
        messages.into_iter().find(|message| message["about"] == "escalated").ok_or_else(|| format!("{answer:?}"))
    })
    .await;
    assert_eq!(
        (&message["agent"], &message["signal"], &message["item"]),
        (&json!(name), &json!("ItemPastTime"), &json!("long")),
        "{message}"
    );
    let works = agent(&room, "it is told of", &name, |agent| intervened(agent, "ItemPastTime", "Escalate")).await;
    assert!(condition(&works, "GivenUp").is_none(), "and works on: {:?}", works.status);
    room.release_item("long").await;
    room.wait_for_item_phase("long", Succeeded).await;
    room.close().await;
}
