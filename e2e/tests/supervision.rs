//! Interventions about work: an agent without tokens is paused or ended by the progress of its item, and a gang whose
//! members fail together is ended together.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::json;
use spillway::api::agent::AgentPhase;
use spillway::api::work_item::WorkItemPhase::{Leased, Paused, Succeeded};
use spillway::api::{Agent, Grant, WorkItem};

use crate::notifications::{receiver, webhooks};
use crate::support::history::{condition, has_condition};
use crate::support::models::Scripted;
use crate::support::work::{attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// A function of the shell that makes one call of about 330 tokens.
const CALL: &str = r#"call() { wget -q -Y off -O /dev/null --header 'content-type: application/json' --post-data '{"model": "scripted-large--output-300", "max_tokens": 300, "messages": [{"role": "user", "content": "hello"}]}' "$OPENAI_BASE_URL/chat/completions"; }; cd "$SPILLWAY_DATA_DIR""#;
/// Tokens for a life that ends at about the third call.
const LIFE: i64 = 1_000;

async fn agent(room: &TestNamespace, what: &str, name: &str, fits: impl Fn(&Agent) -> bool) -> Agent {
    eventually(what, async || {
        let agent = room.api::<Agent>().get(name).await.map_err(|error| error.to_string())?;
        check_state(fits(&agent), || format!("{:?}", agent.status)).map(|()| agent)
    })
    .await
}

fn given_up(agent: &Agent) -> Option<&Condition> {
    condition(agent, "GivenUp").filter(|given_up| given_up.status == "True")
}

/// Attempts, failures, stalls and pauses that an item counts.
fn counted(item: &WorkItem) -> (i32, i32, i32, i64) {
    let status = item.status.clone().unwrap_or_default();
    (status.attempts.unwrap_or(0), status.failures.unwrap_or(0), status.stalls.unwrap_or(0), status.pauses.unwrap_or(0))
}

#[tokio::test]
async fn out_of_tokens_work_that_got_somewhere_is_kept_and_finished_after_a_grant() {
    let room = TestNamespace::open("fish").await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    room.apply_queue("bugs", json!({})).await;
    // It continues after its earlier calls. Only the hook writes "checkpoint".
    let script = format!(
        r#"{CALL}; n=$(cat made 2>/dev/null || echo 0); while [ "$n" -lt 6 ]; do call || exit 7; n=$((n+1)); echo "$n" > made; spillway progress --percent $((n*10)) "call $n"; done; echo "calls: $n, checkpoint after $(cat checkpoint)" > "$SPILLWAY_RESULT_FILE""#
    );
    let extra = json!({
        "scaling": {"max": 1}, "models": [provider.entry("gpt", "OpenAIChat")], "bulkhead": {"lifetimeTokens": LIFE},
        "agent": {"hooks": {"checkpoint": ["/bin/sh", "-c", "cd \"$SPILLWAY_DATA_DIR\" && cp made checkpoint"]}},
    });
    room.apply_workers("fishers", &["bugs"], &script, extra).await;
    room.submit("bugs", "big", json!({"payload": "x"})).await;

    let waits = room.wait_for_item_phase("big", Paused).await;
    assert_eq!(counted(&waits), (1, 0, 0, 1), "the lease is kept");
    let name = holder(&waits);
    let held =
        agent(&room, "its checkpoint is taken", &name, |agent| has_condition(agent, "Checkpointed", "True", "CheckpointTaken")).await;
    assert!(has_condition(&held, "Paused", "True", "TokenBudgetExceeded"), "{:?}", held.status);
    let status = held.status.expect("a status");
    assert_eq!((status.phase, status.paused_at_limit, status.pauses), (Some(AgentPhase::Paused), Some(LIFE), Some(1)));
    eventually("the webhook has a notice with the remedy", async || {
        let calls = calls.lock().expect("whole").clone();
        let told = calls.iter().map(|(_, body)| body).any(|body| {
            let words = body.to_string();
            body["reason"] == "TokenBudgetExceeded" && words.contains(&name) && words.contains("kubectl spillway grant")
        });
        check_state(told, || format!("{calls:?}"))
    })
    .await;
    let before = provider.calls();

    let grant: Grant = serde_json::from_value(json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Grant", "metadata": {"name": "more"},
        "spec": {"targetRef": {"kind": "Agent", "name": name}, "tokens": 100_000},
    }))
    .expect("a Grant");
    room.api::<Grant>().create(&PostParams::default(), &grant).await.expect("the Grant is accepted");
    let done = room.wait_for_item_phase("big", Succeeded).await;
    assert_eq!((attempts(&done), counted(&done)), (vec![("Complete".to_owned(), name.clone())], (1, 0, 0, 1)));
    let result = done.status.as_ref().and_then(|status| status.result.clone()).unwrap_or_default();
    assert!(result.starts_with("calls: 6, checkpoint after ") && !result.ends_with("after "), "{result}");
    assert!(provider.calls() - before < 6, "it went on from where it was: {before}, then {}", provider.calls());
    let on = agent(&room, "it goes on", &name, |agent| condition(agent, "Paused").is_some_and(|paused| paused.status == "False")).await;
    assert_eq!(on.status.and_then(|status| status.paused_at_limit), None);
    room.close().await;
}

#[tokio::test]
async fn out_of_tokens_without_progress_the_agent_is_ended_and_its_item_counts_nothing() {
    let room = TestNamespace::open("bait").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    room.apply_queue("bugs", json!({})).await;
    // Only an agent that did another item before spends all its tokens on the second one. A call may come before the tokens that the call
    // before it held are given back. That refusal passes, so a call is tried twice.
    let script = format!(
        r#"{CALL}; if [ "$SPILLWAY_ITEM" = second ] && [ -e used ]; then while call || {{ sleep 2; call; }}; do :; done; exit 7; fi; touch used; call || exit 8"#
    );
    let extra = json!({
        "scaling": {"max": 1}, "models": [provider.entry("gpt", "OpenAIChat")], "bulkhead": {"lifetimeTokens": LIFE},
        "whenEmpty": {"action": "Idle", "afterSeconds": 600},
    });
    room.apply_workers("baiters", &["bugs"], &script, extra).await;
    room.submit("bugs", "first", json!({"payload": "x"})).await;
    let first = attempts(&room.wait_for_item_phase("first", Succeeded).await)[0].1.clone();
    room.submit("bugs", "second", json!({"payload": "x"})).await;
    let done = room.wait_for_item_phase("second", Succeeded).await;
    let all = attempts(&done);
    let verbs: Vec<&str> = all.iter().map(|(verb, _)| verb.as_str()).collect();
    assert_eq!((verbs, all[0].1.as_str()), (vec!["Release", "Complete"], first.as_str()));
    assert_ne!(all[1].1, first, "another one did it");
    let (_, failures, stalls, pauses) = counted(&done);
    assert_eq!((failures, stalls, pauses), (0, 0, 0));
    let history = done.status.and_then(|status| status.attempt_history).unwrap_or_default();
    assert_eq!(history[0].reason.as_deref(), Some("TokensSpent"));
    let ended = room.api::<Agent>().get(&first).await.expect("it is kept for reading");
    assert_eq!(ended.status.as_ref().and_then(|status| status.phase), Some(AgentPhase::ForceStopped));
    assert_eq!(given_up(&ended).map(|given_up| given_up.reason.as_str()), Some("TokensSpent"));
    room.close().await;
}

#[tokio::test]
async fn a_gang_of_which_most_fail_is_ended_together_and_told_of_once() {
    let room = TestNamespace::open("gang").await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({})).await;
    // In its first attempt an item that shall fail does so on the test's signal. All others succeed on it. Each attempt
    // needs a signal.
    let script = r#"while [ ! -e /tmp/go-$SPILLWAY_ITEM ]; do sleep 1; done; rm /tmp/go-$SPILLWAY_ITEM; if [ "$task" = fail ] && [ "$SPILLWAY_ATTEMPT" = 1 ]; then exit 1; fi"#;
    let extra = json!({
        "scaling": {"max": 5}, "supervision": {"gang": {"failedPercent": 50, "minFailed": 3, "windowSeconds": 600}},
    });
    room.apply_workers("gangs", &["bugs"], script, extra).await;
    let items = ["f-1", "f-2", "f-3", "h-1", "h-2"];
    for item in items {
        let task = if item.starts_with('f') { "fail" } else { "hold" };
        room.submit("bugs", item, json!({"payload": task, "group": "release"})).await;
    }
    let mut gang = BTreeSet::new();
    for item in items {
        gang.insert(holder(&room.wait_for_item_phase(item, Leased).await));
    }
    assert_eq!(gang.len(), 5, "each has an agent");
    for item in &items[..3] {
        room.release_item(item).await;
    }
    for name in &gang {
        let ended = agent(&room, "all of the gang are ended", name, |agent| {
            agent.status.as_ref().and_then(|status| status.phase) == Some(AgentPhase::ForceStopped)
        })
        .await;
        let reason = given_up(&ended).map(|given_up| given_up.reason.clone());
        assert_eq!(reason.as_deref(), Some("GangDivergence"), "{name}");
        let told = ended.status.and_then(|status| status.interventions).unwrap_or_default();
        assert!(told.iter().any(|told| told.signal == "GangDivergence" && told.action == "RestartGang"), "{name}: {told:?}");
    }
    for item in items {
        let again = eventually(&format!("another agent holds {item}"), async || {
            let item = room.item(item).await;
            let agent = item.status.as_ref().and_then(|status| status.lease.as_ref()?.agent.clone()).filter(|agent| !gang.contains(agent));
            check_state(agent.is_some(), || format!("{:?}", item.status)).map(|()| item)
        })
        .await;
        let (_, failures, stalls, _) = counted(&again);
        assert_eq!((failures, stalls), (i32::from(item.starts_with('f')), 0), "{item}: only its own failure counts");
        room.release_item(item).await;
        room.wait_for_item_phase(item, Succeeded).await;
    }
    let told: BTreeSet<String> = {
        let calls = calls.lock().expect("whole");
        calls
            .iter()
            .filter(|(_, body)| body["reason"] == "GangDivergence")
            .map(|(number, body)| format!("{number} {}", body["count"]))
            .collect()
    };
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told.iter().all(|one| one.ends_with(" 1")), "{told:?}");
    let others: Vec<Agent> = room.list().await;
    assert!(others.iter().all(|agent| gang.contains(&agent.name_any()) || given_up(agent).is_none()), "the next ones are left alone");
    room.close().await;
}
