//! Preflight checks of agents and objectives of queues: an agent that fails its preflight gets no work and is reported.
//! An item that takes too long is reported and continues.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{Leased, Ready, Succeeded};
use spillway::api::{Agent, WorkQueue};

use crate::scheduler::plugin;
use crate::support::exec::{sh, spillway};
use crate::support::models::Scripted;
use crate::support::work::{attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    (room, operator)
}

/// Waits until the only agent's preflight failed; its name and the message.
async fn wait_for_failed_preflight(room: &TestNamespace) -> (String, String) {
    eventually("an agent fails its preflight", async || {
        let agents: Vec<Agent> = room.list().await;
        let [agent] = &agents[..] else { return Err(format!("{} agents", agents.len())) };
        let conditions = agent.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let failed = conditions.iter().find(|one| one.type_ == "Ready" && one.status == "False" && one.reason == "PreflightFailed");
        failed.map(|failed| (agent.name_any(), failed.message.clone())).ok_or_else(|| format!("{conditions:?}"))
    })
    .await
}

/// Waits until the preflight of an agent of the pool failed; its name and the message.
async fn wait_for_failed_preflight_of(room: &TestNamespace, pool: &str) -> (String, String) {
    eventually("an agent of the pool fails its preflight", async || {
        let agents: Vec<Agent> = room.list().await;
        let failed = agents.iter().filter(|agent| agent.spec.pool_ref.name == pool).find_map(|agent| {
            let conditions = &agent.status.as_ref()?.conditions;
            let failed = conditions.iter().find(|one| one.type_ == "Ready" && one.reason == "PreflightFailed")?;
            Some((agent.name_any(), failed.message.clone()))
        });
        failed.ok_or_else(|| format!("{} agents", agents.len()))
    })
    .await
}

#[tokio::test]
async fn an_agent_gets_its_item_when_its_preflight_passed() {
    let (room, operator) = set_up("preflight").await;
    room.apply_queue("bugs", json!({})).await;
    let check = "[ -t 0 ] && exit 9; read -r line && exit 8; [ -e /tmp/mended ] || { echo no login; exit 3; }";
    let agent = json!({"agent": {"preflightCommand": ["/bin/sh", "-c", check]}, "scaling": {"min": 0, "max": 1}});
    room.apply_workers("fixers", &["bugs"], "echo \"fixed $task\"", agent).await;
    room.submit("bugs", "bug", json!({"payload": "the bug"})).await;
    let (name, words) = wait_for_failed_preflight(&room).await;
    assert_eq!(words, "the preflight command ended with exit code 3: no login");
    let (reason, words) = room.pool_says("fixers", "Blocked", "True").await;
    assert_eq!((reason.as_str(), words), ("PreflightFailed", format!("{name}: the preflight command ended with exit code 3: no login")));
    room.wait_for_event(&name, "PreflightFailed", "no login").await;
    let item = room.wait_for_item_phase("bug", Ready).await;
    assert_eq!(item.status.as_ref().and_then(|status| status.attempts).unwrap_or(0), 0, "no agent tried it");
    // A new leader knows it from the stored status, and then from the agent itself.
    drop(operator);
    let second = room.operator("two");
    second.leads(&room).await;
    assert_eq!(wait_for_failed_preflight(&room).await.0, name, "it is kept");
    eventually("a person repairs it", async || {
        let said = sh(&room, &name, "touch /tmp/mended").await;
        // The end of a run kills all processes in the container, also the user's own command.
        check_state(said.code == 0, || format!("{said:?}"))
    })
    .await;
    let item = room.wait_for_item_phase("bug", Succeeded).await;
    let status = item.status.clone().expect("a status");
    assert_eq!((status.attempts, status.failures, status.stalls), (Some(1), Some(0), Some(0)));
    assert_eq!(attempts(&item), [("Complete".to_owned(), name)], "by the agent that was there all along");
    room.pool_says("fixers", "Blocked", "False").await;
    room.close().await;
}

#[tokio::test]
async fn a_sandbox_that_is_required_by_name_and_not_there_keeps_work_away() {
    let (room, _operator) = set_up("strict").await;
    room.apply_queue("bugs", json!({})).await;
    let strict = |require: bool| json!({"preflight": {"requireSandbox": require}, "sandbox": {"isolation": {"landlock": "Disabled"}}, "scaling": {"min": 0, "max": 1}});
    room.apply_workers("fixers", &["bugs"], "exit 0", strict(true)).await;
    room.submit("bugs", "bug", json!({})).await;
    let (name, words) = wait_for_failed_preflight(&room).await;
    assert!(words.contains("Landlock") && words.contains("requireSandbox"), "{words}");
    room.wait_for_event(&name, "PreflightFailed", "Landlock").await;
    room.wait_for_item_phase("bug", Ready).await;
    room.apply_workers("fixers", &["bugs"], "exit 0", strict(false)).await;
    let item = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!(attempts(&item), [("Complete".to_owned(), name)], "by the same agent, which asked again");
    room.close().await;
}

/// A queue, and a pool for it that may call these models at the provider.
async fn with_models(room: &TestNamespace, provider: &Scripted, pool: &str, allow: &[&str], extra: Value) {
    let mut entry = provider.entry("main", "OpenAIChat");
    entry["allow"] = json!(allow);
    let mut spec =
        json!({"models": [entry], "scaling": {"min": 0, "max": 2, "cooldownSeconds": 1}, "bulkhead": {"lifetimeTokens": 1_000_000}});
    crate::support::test_namespace::merge(&mut spec, extra);
    room.apply_workers(pool, &["bugs"], "echo done > $SPILLWAY_RESULT_FILE", spec).await;
}

#[tokio::test]
async fn an_item_goes_to_a_pool_that_has_what_it_needs_and_says_so_where_none_has() {
    let (room, _operator) = set_up("requires").await;
    let provider = Scripted::serve(&room).await;
    room.apply_queue("bugs", json!({})).await;
    with_models(&room, &provider, "small", &["scripted-small"], json!({})).await;
    let needs = |model: &str| json!({"requires": {"models": [model]}});
    room.submit("bugs", "waits", needs("scripted-large")).await;
    let waits = eventually("the item's status has the missing requirement", async || {
        let item = room.item("waits").await;
        let conditions = item.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let found = conditions.iter().find(|one| one.type_ == "PreflightPassed" && one.status == "False").cloned();
        found.ok_or_else(|| format!("{:?}", item.status))
    })
    .await;
    let words = "no AgentPool that takes items from WorkQueue/bugs offers what the item requires: scripted-large (requires.models). \
                 Add it to a pool, or submit the item without it";
    assert_eq!((waits.reason.as_str(), waits.message.as_str()), ("RequirementsUnmet", words));
    room.wait_for_event("waits", "RequirementsUnmet", "scripted-large").await;
    // Other items overtake it, and no agent is started for it.
    room.submit("bugs", "plain", json!({})).await;
    room.wait_for_item_phase("plain", Succeeded).await;
    let said = plugin(&room, &["explain", "item/waits"]).await.ok();
    assert!(said.contains("pool small lacks what the item requires: scripted-large (requires.models)"), "{said}");
    eventually("the pool has no agents", async || {
        let status = room.pool("small").await.status.unwrap_or_default();
        check_state(status.desired == Some(0) && status.agents == Some(0), || format!("{status:?}"))
    })
    .await;
    assert_eq!(room.item("waits").await.status.and_then(|status| status.attempts).unwrap_or(0), 0);
    // Only a pool with the model takes it.
    with_models(&room, &provider, "large", &["scripted-*"], json!({})).await;
    let done = room.wait_for_item_phase("waits", Succeeded).await;
    let [(_, agent)] = &attempts(&done)[..] else { panic!("{done:?}") };
    let agent = room.api::<Agent>().get(agent).await.expect("its agent");
    assert_eq!(agent.spec.pool_ref.name, "large");
    room.close().await;
}

#[tokio::test]
async fn who_submitted_an_item_that_no_pool_can_take_is_told() {
    let (room, _operator) = set_up("unmet").await;
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("workers", &["bugs"], "exit 0", json!({})).await;
    room.apply_pool("planner", json!({"replicas": 1, "may": {"submitTo": ["bugs"]}})).await;
    let planner = room.wait_until_idle("planner", 1).await.remove(0).name_any();
    let submit = |needs: &'static str, task: &'static str| ["submit", "--queue", "bugs", "--requires", needs, task];
    let first = spillway(&room, &planner, &submit("tools=git", "one")).await.ok().trim().to_owned();
    let told = eventually("the inbox has the message", async || {
        let said = spillway(&room, &planner, &["inbox", "--wait", "25"]).await;
        check_state(said.code == 0, || format!("{said:?}")).map(|()| said.out)
    })
    .await;
    let words = "waits: no AgentPool that takes items from WorkQueue/bugs offers what the item requires: git (requires.tools). Add it to a \
                 pool, or submit the item without it";
    assert_eq!(told.trim_end(), format!("{first}: {words}"));
    // The pool requires a tool that its image does not have, so its agent gets no work.
    let named = json!({"preflight": {"tools": ["sh", "git"]}, "scaling": {"min": 0, "max": 2}});
    room.apply_workers("workers", &["bugs"], "exit 0", named).await;
    let (_, words) = wait_for_failed_preflight_of(&room, "workers").await;
    assert_eq!(words, "the preflight command ended with exit code 1: git is not on the path (spec.preflight.tools)");
    room.pool_says("workers", "Blocked", "True").await;
    spillway(&room, &planner, &submit("tools=git", "two")).await.ok();
    eventually("the pool wants one more", async || {
        let status = room.pool("workers").await.status.unwrap_or_default();
        check_state(status.desired == Some(2), || format!("{status:?}"))
    })
    .await;
    let agents: Vec<Agent> = room.list().await;
    assert_eq!(agents.iter().filter(|agent| agent.spec.pool_ref.name == "workers").count(), 1, "one tries for all");
    room.close().await;
}

#[tokio::test]
async fn a_pool_whose_models_do_not_answer_gives_its_agents_no_work() {
    let (room, _operator) = set_up("answers").await;
    let provider = Scripted::absent(&room).await;
    room.apply_queue("bugs", json!({})).await;
    let checks = json!({"preflight": {"models": true, "urls": [format!("{}/v1", provider.origin)]}});
    with_models(&room, &provider, "workers", &["scripted-*"], checks).await;
    room.submit("bugs", "bug", json!({})).await;
    let (_, words) = wait_for_failed_preflight_of(&room, "workers").await;
    for part in ["the model API main answers 503", "(spec.preflight.models)", &format!("{}/v1 does not answer", provider.origin)] {
        assert!(words.contains(part), "{part}: {words}");
    }
    room.wait_for_item_phase("bug", Ready).await;
    provider.start_listening().await;
    let done = room.wait_for_item_phase("bug", Succeeded).await;
    assert_eq!(done.status.and_then(|status| status.attempts), Some(1));
    assert_eq!(provider.reported_tokens(), 0, "it costs nothing");
    // An origin that no agent could reach blocks the pool before its first agent.
    let unreached = json!({"preflight": {"urls": ["https://nowhere.example.org"]}, "replicas": 1});
    room.apply_workers("cut-off", &["bugs"], "exit 0", unreached).await;
    let (reason, words) = room.pool_says("cut-off", "Blocked", "True").await;
    assert!(reason == "PreflightFailed" && words.contains("https://nowhere.example.org"), "{reason}: {words}");
    let agents: Vec<Agent> = room.list().await;
    assert!(agents.iter().all(|agent| agent.spec.pool_ref.name != "cut-off"), "{agents:?}");
    room.close().await;
}

#[tokio::test]
async fn a_promise_that_is_missed_is_told_and_changes_nothing_else() {
    let (room, operator) = set_up("objectives").await;
    room.apply_queue("urgent", json!({"objectives": {"waitSeconds": 1, "completionSeconds": 4}})).await;
    room.apply_queue("calm", json!({"objectives": {"waitSeconds": 3600}})).await;
    for name in ["first", "second"] {
        room.submit("urgent", name, json!({})).await;
    }
    room.submit("calm", "calm", json!({})).await;
    let says = async |queue: &str, status: &str, words: &str| -> Condition {
        eventually(&format!("queue {queue} says ObjectivesMet={status} {words}"), async || {
            let queue: WorkQueue = room.api::<WorkQueue>().get(queue).await.map_err(|error| error.to_string())?;
            let conditions = queue.status.map(|status| status.conditions).unwrap_or_default();
            let found = conditions.iter().find(|one| one.type_ == "ObjectivesMet" && one.status == status && one.message.contains(words));
            found.cloned().ok_or_else(|| format!("{conditions:?}"))
        })
        .await
    };
    let missed = says("urgent", "False", "2 waited for more than 1 s (waitSeconds)").await;
    assert_eq!(missed.reason, "ObjectiveMissed");
    assert_eq!(says("calm", "True", "").await.reason, "ObjectivesMet");
    room.wait_for_event("first", "ObjectiveMissed", "waitSeconds of WorkQueue/urgent").await;
    room.wait_for_event("second", "ObjectiveMissed", "completionSeconds of WorkQueue/urgent").await;
    eventually("the metrics count the missed objectives", async || {
        let counted = operator.get("/metrics").await?.1;
        let lines = ["objectives_missed_total{objective=\"wait\"} 2", "objectives_missed_total{objective=\"completion\"} 2"];
        check_state(lines.iter().all(|line| counted.contains(line)), || counted)
    })
    .await;
    // The items continue. A leased item over its time is also a signal of its agent.
    room.apply_workers("workers", &["urgent", "calm"], crate::support::work::UNTIL_TOLD, json!({"scaling": {"min": 0, "max": 1}})).await;
    room.wait_for_item_phase("first", Leased).await;
    for name in ["first", "second", "calm"] {
        room.release_item(name).await;
        room.wait_for_item_phase(name, Succeeded).await;
    }
    room.submit("urgent", "third", json!({})).await;
    let third = room.wait_for_item_phase("third", Leased).await;
    room.wait_for_event("third", "ObjectiveMissed", "completionSeconds").await;
    room.wait_for_event(&holder(&third), "ObjectiveMissed", "completionSeconds").await;
    room.release_item("third").await;
    assert_eq!(room.wait_for_item_phase("third", Succeeded).await.status.and_then(|status| status.attempts), Some(1));
    says("urgent", "True", "no item misses").await;
    // After many reconciles.
    let events = room.list::<k8s_openapi::api::events::v1::Event>().await;
    let told = |name: &str, action: &str| {
        let about = |event: &&k8s_openapi::api::events::v1::Event| {
            event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name) && event.action.as_deref() == Some(action)
        };
        events.iter().filter(about).map(|event| event.series.as_ref().map_or(1, |series| series.count)).sum::<i32>()
    };
    assert_eq!((told("first", "Wait"), told("first", "Complete"), told("calm", "Wait")), (1, 1, 0), "each is told once");
    room.close().await;
}
