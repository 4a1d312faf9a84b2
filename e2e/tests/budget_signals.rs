//! Effects of a spent Budget on its pool, agents and items, and that they continue by themselves when it has tokens
//! again.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use spillway::api::work_item::WorkItemPhase::{Ready, Succeeded};
use spillway::api::{Agent, Budget, WorkItem};

use crate::support::gateways::Gateways;
use crate::support::history::{condition, has_condition};
use crate::support::models::{Scripted, spent};
use crate::support::work::attempts;
use crate::support::{TestNamespace, check_state, eventually};

/// One call of a model, at the address in the environment. Its answer is ignored. The rest of the script runs if it
/// fails.
fn one_call(model: &str, failed: &str) -> String {
    let body = json!({"model": model, "max_tokens": 300, "messages": [{"role": "user", "content": "hello"}]});
    let options = "-q -Y off -O /dev/null --header 'content-type: application/json'";
    format!(r#"wget {options} --post-data '{body}' "$OPENAI_BASE_URL/chat/completions" || {failed}"#)
}

async fn budget(room: &TestNamespace, tokens: i64) {
    let object = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        // A call needs more than the least output: Spillway learns from a refusal that a pool's calls do not fit any
        // more.
        "spec": {"tokens": {"limits": [{"name": "daily", "tokens": tokens, "window": "Day"}], "estimate": "Bytes", "minOutputTokens": 1}},
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Budget is accepted");
}

async fn agent(room: &TestNamespace, what: &str, name: &str, fits: impl Fn(&Agent) -> bool) -> Agent {
    eventually(what, async || {
        let agent = room.api::<Agent>().get(name).await.map_err(|error| error.to_string())?;
        check_state(fits(&agent), || format!("{:?}", agent.status)).map(|()| agent)
    })
    .await
}

#[tokio::test]
async fn work_waits_for_a_spent_budget_and_is_done_when_that_is_raised() {
    let room = TestNamespace::open("felt").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    budget(&room, 6_000).await;
    room.apply_queue("bugs", json!({})).await;
    let extra = json!({
        "scaling": {"min": 0, "max": 2}, "whenEmpty": {"action": "Idle", "afterSeconds": 600},
        "models": [provider.entry("gpt", "OpenAIChat")], "bulkhead": {"lifetimeTokens": 1_000_000_000_i64},
    });
    room.apply_workers("fixers", &["bugs"], &one_call("scripted-large", "exit 7"), extra).await;
    room.submit("bugs", "first", json!({"payload": "x"})).await;
    let first = room.wait_for_item_phase("first", Succeeded).await;
    eventually("the status of an item without a share has the used tokens", async || {
        let item = room.api::<WorkItem>().get("first").await.map_err(|error| error.to_string())?;
        let used = item.status.and_then(|status| status.tokens).map(|tokens| tokens.used);
        check_state(used == Some(provider.reported_tokens()), || format!("{used:?} of {}", provider.reported_tokens()))
    })
    .await;
    let name = attempts(&first)[0].1.clone();
    let told = provider.reported_tokens();
    let spends = |agent: &Agent| agent.status.as_ref().and_then(|status| status.tokens.as_ref()?.used);
    agent(&room, "what its agent used is told when the item has ended", &name, |agent| spends(agent) == Some(told)).await;

    // The test spends the rest with the agent's own token, while the agent waits for work.
    let pod = room.api::<Pod>().get(&name).await.expect("its pod");
    let caller = room.as_pod(&pod).await;
    let body = json!({"model": "scripted-large", "max_tokens": 300, "messages": [{"role": "user", "content": "hello"}]});
    eventually("the budget is spent", async || {
        let answer = caller.try_call("POST", "/models/gpt/v1/chat/completions", body.to_string()).await?;
        check_state(answer.status == 402, || format!("{answer:?}"))
    })
    .await;
    room.wait_for_event(&name, "BudgetNearLimit", "80 % of the limit daily").await;

    for item in ["second", "third"] {
        room.submit("bugs", item, json!({"payload": "x"})).await;
    }
    let (reason, message) = room.pool_says("fixers", "Blocked", "True").await;
    assert_eq!(reason, "BudgetExhausted", "{message}");
    for word in ["Budget/default", "daily", "spec.tokens.limits[daily].tokens"] {
        assert!(message.contains(word), "{word:?} is not said: {message}");
    }
    let short = agent(&room, "its agent says so", &name, |agent| has_condition(agent, "BudgetAvailable", "False", "BudgetExhausted")).await;
    let words = condition(&short, "BudgetAvailable").map(|said| said.message.clone()).unwrap_or_default();
    assert_eq!(words, message);
    for item in ["second", "third"] {
        let status = room.wait_for_item_phase(item, Ready).await.status.expect("a status");
        assert_eq!((status.attempts.unwrap_or(0), status.failures.unwrap_or(0), status.stalls.unwrap_or(0)), (0, 0, 0), "{item}");
    }
    eventually("the pool wants two agents", async || {
        let desired = room.pool("fixers").await.status.and_then(|status| status.desired);
        check_state(desired == Some(2), || format!("{desired:?}"))
    })
    .await;
    let agents: Vec<String> = room.list::<Agent>().await.iter().map(|agent| agent.name_any()).collect();
    assert_eq!(agents, std::slice::from_ref(&name), "and none is made");
    eventually("the Budget's status has its number of agents", async || {
        let budget = room.api::<Budget>().get("default").await.map_err(|error| error.to_string())?;
        let used = budget.status.and_then(|status| status.agents).map(|agents| agents.used);
        check_state(used == Some(1), || format!("{used:?}"))
    })
    .await;

    budget(&room, 1_000_000).await;
    for item in ["second", "third"] {
        let done = room.wait_for_item_phase(item, Succeeded).await;
        let verbs: Vec<String> = attempts(&done).into_iter().map(|(verb, _)| verb).collect();
        assert_eq!(verbs, ["Complete"], "{item}: there was no other attempt");
    }
    room.pool_says("fixers", "Blocked", "False").await;
    agent(&room, "its agent has tokens again", &name, |agent| has_condition(agent, "BudgetAvailable", "True", "TokensLeft")).await;
    room.close().await;
}

#[tokio::test]
async fn what_a_gateways_death_cut_is_counted_for_items_as_for_agents_and_budgets() {
    let room = TestNamespace::open("cut").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    budget(&room, 1_000_000).await;
    room.apply_queue("bugs", json!({})).await;
    let extra = json!({
        "scaling": {"min": 0, "max": 2}, "whenEmpty": {"action": "Idle", "afterSeconds": 600},
        "models": [provider.entry("gpt", "OpenAIChat")], "bulkhead": {"lifetimeTokens": 1_000_000_000_i64},
    });
    // The provider holds its answer until the test releases it. The cut is no failure of the item.
    room.apply_workers("fixers", &["bugs"], &one_call("scripted-large--wait", "true"), extra).await;
    let gateways = Gateways::start(&room, 1).await;
    room.submit("bugs", "plain", json!({"payload": "x"})).await;
    room.submit("bugs", "shared", json!({"payload": "x", "bulkhead": {"tokens": 50_000}})).await;
    eventually("the provider has both calls", async || check_state(provider.calls() == 2, || provider.calls().to_string())).await;
    gateways.kill(0);
    gateways.wait_until_serving(0).await;
    for item in ["plain", "shared"] {
        let done = room.wait_for_item_phase(item, Succeeded).await;
        let holder = attempts(&done)[0].1.clone();
        eventually(&format!("item {item} and its agent have the same token count"), async || {
            let item = room.api::<WorkItem>().get(item).await.map_err(|error| error.to_string())?;
            let agent = room.api::<Agent>().get(&holder).await.map_err(|error| error.to_string())?;
            let of_item = item.status.and_then(|status| status.tokens).map(|tokens| tokens.used);
            let of_agent = agent.status.and_then(|status| status.tokens).and_then(|tokens| tokens.used);
            // Unknown usage is charged as it was held: 300 tokens of possible output, and the input.
            check_state(of_item == of_agent && of_item > Some(300), || format!("{of_item:?}, {of_agent:?}"))
        })
        .await;
    }
    let items = room.list::<WorkItem>().await;
    let all: i64 = items.into_iter().filter_map(|item| item.status?.tokens).map(|tokens| tokens.used).sum();
    eventually("the Budget has the sum of its items", async || {
        let spent = spent(&room).await;
        check_state(spent == (all, 0, 0), || format!("{spent:?} and {all}"))
    })
    .await;
    provider.release_waiting();
    room.close().await;
}
