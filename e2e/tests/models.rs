//! Calls of models, from a program in a real pod through its sidecar and the gateway to a provider with its own count.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::{Agent, Budget};

use crate::support::caller::{Answer, Caller};
use crate::support::exec::{sh, spillway};
use crate::support::history::{condition, has_condition};
use crate::support::models::{Scripted, spent, wait_until_counts_agree};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Does nothing, until it is asked to end.
const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// A namespace with a provider, a budget of `tokens` an hour, and one agent without a limit for its life.
async fn set_up(name: &str, tokens: i64) -> (TestNamespace, Operator, Scripted, Agent) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    budget(&room, tokens).await;
    let models = json!([
        provider.entry("gpt", "OpenAIChat"),
        provider.entry("codex", "OpenAIResponses"),
        provider.entry("claude", "Anthropic"),
        provider.entry("gemini", "Gemini")
    ]);
    let pool = json!({"replicas": 1, "models": models, "bulkhead": {"lifetimeTokens": 1_000_000_000_i64}, "agent": {"command": ["/bin/sh", "-c", QUIET]}});
    room.apply_pool("callers", pool).await;
    let agent = room.wait_until_idle("callers", 1).await.remove(0);
    (room, operator, provider, agent)
}

async fn budget(room: &TestNamespace, tokens: i64) {
    let object = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        // Bytes: usage never exceeds its hold.
        "spec": {"tokens": {"limits": [{"name": "hourly", "tokens": tokens, "window": "Hour"}], "estimate": "Bytes", "minOutputTokens": 1}},
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Budget is accepted");
}

fn chat(model: &str, output: u32, stream: bool) -> Value {
    json!({"model": model, "max_tokens": output, "stream": stream, "messages": [{"role": "user", "content": "say something"}]})
}

/// A call as the pod's sidecar makes it.
async fn call(agent: &Caller, body: &Value) -> Result<Answer, String> {
    agent.try_call("POST", "/models/gpt/v1/chat/completions", body.to_string()).await
}

#[tokio::test]
async fn a_program_calls_a_model_and_every_token_is_counted() {
    let (room, _operator, provider, agent) = set_up("models", 1_000_000).await;
    let name = agent.name_any();
    // Like any client: with the addresses in its environment, and with a key without value.
    let script = r#"
        post() { wget -q -Y off -O - --header 'content-type: application/json' --header "authorization: Bearer $OPENAI_API_KEY" --post-data "$2" "$1"; echo; }
        post "$OPENAI_BASE_URL/chat/completions" '{"model": "scripted-large", "messages": [{"role": "user", "content": "hello"}]}'
        post "$OPENAI_BASE_URL/chat/completions" '{"model": "scripted-large", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
        post "$ANTHROPIC_BASE_URL/v1/messages" '{"model": "scripted-large", "max_tokens": 500, "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
        post "$GOOGLE_GEMINI_BASE_URL/v1beta/models/scripted-large:generateContent" '{"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}'
    "#;
    let said = sh(&room, &name, script).await;
    assert_eq!(provider.calls(), 4, "{said:?}");
    assert!(provider.reported_tokens() > 0, "{said:?}");
    wait_until_counts_agree(&room, &provider).await;
    eventually("the agent's status has the provider's count", async || {
        let agent = room.api::<Agent>().get(&name).await.map_err(|error| error.to_string())?;
        let used = agent.status.and_then(|status| status.tokens?.used);
        check_state(used == Some(provider.reported_tokens()), || format!("{used:?}"))
    })
    .await;
    room.close().await;
}

#[tokio::test]
async fn what_is_spent_is_refused_in_words_that_say_what_to_raise() {
    let (room, _operator, provider, agent) = set_up("spent", 2_000).await;
    let pod = room.api::<Pod>().get(&agent.name_any()).await.expect("its pod");
    let caller = room.as_pod(&pod).await;
    let refused = eventually("the budget is spent", async || {
        let answer = call(&caller, &chat("scripted-large", 300, false)).await?;
        check_state(answer.status == 402, || format!("{answer:?}")).map(|()| answer)
    })
    .await;
    assert_eq!(refused.headers.get("x-should-retry").map(|value| value.as_bytes()), Some(&b"false"[..]), "{refused:?}");
    // The sidecar needs it, also in a refusal.
    assert!(refused.headers.contains_key("spillway-conversation"), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    for word in ["Budget/default", "hourly", "spec.tokens.limits"] {
        assert!(text.contains(word), "{word:?} is not said: {text}");
    }
    let object = room.api::<Budget>().get("default").await.expect("the Budget");
    let windows = object.status.iter().flat_map(|status| status.windows.iter().flatten());
    // Each hour is checked by itself, because another one may have begun meanwhile.
    windows.for_each(|window| assert!(window.used + window.held.unwrap_or(0) <= 2_000, "{window:?}"));
    let before = provider.calls();
    let not_allowed = call(&caller, &chat("other-model", 10, false)).await.expect("an answer");
    assert!(not_allowed.status == 400 && String::from_utf8_lossy(&not_allowed.body).contains("other-model"), "{not_allowed:?}");
    let elsewhere = caller.try_call("POST", "/models/gpt/v1/files", "{}").await.expect("an answer");
    assert!((400..500).contains(&elsewhere.status), "{elsewhere:?}");
    assert_eq!(provider.calls(), before, "nothing of it reached the provider");
    // After the budget is raised, the same call is answered.
    budget(&room, 1_000_000).await;
    eventually("calls are answered again", async || {
        let answer = call(&caller, &chat("scripted-large", 300, false)).await?;
        check_state(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    wait_until_counts_agree(&room, &provider).await;
    room.close().await;
}

#[tokio::test]
async fn gateways_and_leaders_that_die_leave_nothing_held_and_nothing_uncounted() {
    let (room, mut leader, provider, agent) = set_up("modelfaults", 100_000_000).await;
    let pod = room.api::<Pod>().get(&agent.name_any()).await.expect("its pod");
    let mut done = 0;
    for round in 0..3 {
        let caller = room.as_pod(&pod).await;
        let calls: Vec<_> = (0..8).map(|_| async { call(&caller, &chat("scripted-large", 200, true)).await }).collect();
        done += futures::future::join_all(calls).await.into_iter().flatten().filter(|answer| answer.status == 200).count();
        leader.signal(Signal::KILL);
        leader.ended().await;
        leader = room.operator(&format!("leader-{round}"));
        // It waits for the next leader, or is refused. It must be counted in both cases.
        drop(call(&caller, &chat("scripted-large", 200, false)).await);
        leader.leads(&room).await;
        room.kill_gateway();
        room.start_gateway(&format!("gateway-{round}"));
    }
    assert!(done > 0, "some calls were answered");
    let caller = room.as_pod(&pod).await;
    eventually("a call is answered after the faults", async || {
        let answer = call(&caller, &chat("scripted-large", 200, false)).await?;
        check_state(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    eventually("no tokens are held, and all tokens of the provider are counted", async || {
        let (used, held, lost) = spent(&room).await;
        check_state(held == 0 && used + lost >= provider.reported_tokens(), || {
            format!("used {used}, held {held}, lost {lost}; told {}", provider.reported_tokens())
        })
    })
    .await;
    room.close().await;
}

#[tokio::test]
async fn an_agent_sees_what_is_left_and_asks_people_for_more_which_raises_nothing() {
    let (room, _operator, _provider, agent) = set_up("asks", 2_000).await;
    let name = agent.name_any();
    let left = spillway(&room, &name, &["budget"]).await.ok();
    let hourly = format!("Budget/default in {}, hourly (Hour): 2000 of 2000 left, 0 used, 0 held, resets ", room.namespace);
    assert!(left.starts_with("the agent's lifetime, ") && left.contains(&hourly), "{left}");
    spillway(&room, &name, &["budget", "ask", "50k", "the", "tests"]).await.ok();
    // When it is answered, it is stored.
    let asked = room.api::<Agent>().get(&name).await.expect("the agent");
    let condition = condition(&asked, "TokensRequested").expect("a condition");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "AskedForTokens"));
    assert!(condition.message.starts_with("50000 more: the tests (`kubectl spillway grant"), "{condition:?}");
    room.wait_for_event(&name, "AskedForTokens", "the tests").await;
    let still = spillway(&room, &name, &["budget"]).await.ok();
    assert!(still.contains("2000 of 2000 left"), "nothing is raised: {still}");
    spillway(&room, &name, &["budget", "withdraw"]).await.ok();
    let back = room.api::<Agent>().get(&name).await.expect("the agent");
    assert!(has_condition(&back, "TokensRequested", "False", "TakenBack"), "{back:?}");
    room.close().await;
}
