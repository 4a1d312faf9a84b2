//! The agents that ship with Spillway, with a model behind the gateway. Requests become items, in each protocol, and
//! every token is counted. An idea becomes a document. A person talks to an agent at its terminal.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Resource as _, ResourceExt};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{Blocked, Ready, Succeeded};
use spillway::api::{Budget, WorkItem};

use crate::scheduler::plugin;
use crate::support::exec::Attached;
use crate::support::fleet::log;
use crate::support::models::{Scripted, wait_until_counts_agree};
use crate::support::{Operator, TestNamespace, check_state, eventually};

const PROTOCOLS: [(&str, &str); 4] =
    [("anthropic", "Anthropic"), ("chat", "OpenAIChat"), ("responses", "OpenAIResponses"), ("gemini", "Gemini")];

/// A namespace with a provider, queues, a prompt and a table of types.
async fn set_up(name: &str) -> (TestNamespace, Operator, Scripted) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    let limits = json!([{"name": "hourly", "tokens": 10_000_000, "window": "Hour"}]);
    let budget = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"}, "spec": {"tokens": {"limits": limits}}});
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(budget)).await.expect("the Budget is accepted");
    for (queue, types) in [("bugs", "bug"), ("urgent", "hotfix"), ("ideas", "idea"), ("chores", "chore"), ("asks", "ask")] {
        room.apply_queue(queue, json!({"accepts": {"types": [types]}})).await;
    }
    let routes = json!({"otherwise": "chore", "types": [
        {"type": "bug", "about": "something is broken", "queues": ["bugs"], "priority": 10, "maxPriority": 50, "words": ["fix"]},
        {"type": "chore", "about": "anything else", "queues": ["chores"]},
    ]});
    let data = json!({"prompt.md": "You are the scheduler of the team in these tests.", "routes.json": routes.to_string()});
    let settings: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "think"}, "data": data})).expect("a ConfigMap");
    room.api::<ConfigMap>().create(&PostParams::default(), &settings).await.expect("a new ConfigMap");
    (room, operator, provider)
}

/// A pool whose program calls a model with this protocol.
fn thinking(provider: &Scripted, dialect: &str, role: &str, extra: Value) -> Value {
    let file = |key: &str| json!({"path": key, "configMapKeyRef": {"name": "think", "key": key}});
    let words = [
        "/spillway/bin/spillway",
        "think",
        role,
        "--model",
        "scripted-large",
        "--dialect",
        dialect,
        "--prompt",
        "/spillway/files/0/content",
        "--routes",
        "/spillway/files/1/content",
    ];
    let mut pool = json!({
        "type": role, "may": {"submitTo": ["bugs", "chores"]}, "bulkhead": {"lifetimeTokens": 1_000_000},
        "models": [provider.entry("main", dialect)], "agent": {"command": words, "files": [file("prompt.md"), file("routes.json")]},
    });
    crate::support::test_namespace::merge(&mut pool, extra);
    pool
}

/// The items of a group, in the order of their tasks.
async fn members(room: &TestNamespace, group: &str) -> Vec<WorkItem> {
    let params = ListParams::default().fields(&format!("spec.group={group}"));
    let mut items = room.api::<WorkItem>().list(&params).await.expect("a list").items;
    items.sort_by(|one, other| one.spec.payload.cmp(&other.spec.payload));
    items
}

fn result(item: &WorkItem) -> String {
    item.status.as_ref().and_then(|status| status.result.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_model_of_each_protocol_makes_work_of_words_and_every_token_is_counted() {
    let (room, _operator, provider) = set_up("think").await;
    let step = |key: &str, type_: &str, after: &[&str], task: &str| json!({"key": key, "type": type_, "after": after, "task": task});
    for (name, dialect) in PROTOCOLS {
        let mut steps = vec![step("mend", "bug", &[], "a: mend it"), step("tell", "chore", &["mend"], "b: tell everybody")];
        steps[0]["priority"] = json!(40);
        provider.say(&format!("the {name} clock runs backwards"), &json!({"say": "Two steps.", "steps": steps}).to_string());
        room.apply_queue(&format!("asks-{name}"), json!({})).await;
        let extra = json!({"queues": [{"name": format!("asks-{name}")}], "agent": {"run": "LongRunning"}});
        room.apply_pool(&format!("scheduler-{name}"), thinking(&provider, dialect, "scheduler", extra)).await;
        room.submit(&format!("asks-{name}"), &format!("ask-{name}"), json!({"payload": format!("the {name} clock runs backwards")})).await;
    }
    for (name, dialect) in PROTOCOLS {
        let asked = room.wait_for_item_phase(&format!("ask-{name}"), Succeeded).await;
        assert_eq!(result(&asked), "Two steps.\nQueued 2 items. I'll let you know when they're done.", "{dialect}");
        let items = members(&room, &format!("ask-{name}")).await;
        let queue = |item: &WorkItem| item.spec.queue_ref.as_ref().map(|queue| queue.name.clone());
        let rows: Vec<_> = items.iter().map(|item| (item.spec.payload.as_str(), queue(item), item.spec.priority)).collect();
        assert_eq!(rows, [("a: mend it", Some("bugs".to_owned()), 40), ("b: tell everybody", Some("chores".to_owned()), 0)], "{dialect}");
        room.wait_for_item_phase(&items[0].name_any(), Ready).await;
        room.wait_for_item_phase(&items[1].name_any(), Blocked).await;
    }
    assert_eq!(provider.calls(), 4);
    wait_until_counts_agree(&room, &provider).await;
    room.close().await;
}

#[tokio::test]
async fn a_scheduler_asks_back_and_goes_by_rules_where_no_model_answers() {
    let (room, _operator, provider) = set_up("askback").await;
    provider.say("mend the login", &json!({"questions": ["Which login?"]}).to_string());
    provider.say("the first one", &json!({"steps": [{"key": "a", "type": "bug", "task": "mend the first login"}]}).to_string());
    provider.say("of no use", "I would rather not.");
    let extra = json!({"queues": [{"name": "asks"}], "agent": {"run": "LongRunning"}});
    room.apply_pool("scheduler", thinking(&provider, "OpenAIChat", "scheduler", extra)).await;
    let ask = async |words: &[&str]| {
        let said = plugin(&room, &[&["ask", "--timeout", "3m"], words].concat()).await;
        let name = said.err.lines().find_map(|line| line.strip_prefix("workitem.spillway.dev/")?.strip_suffix(" asked in queue asks"));
        let name = name.unwrap_or_else(|| panic!("{said:?}")).to_owned();
        (name, said.ok().trim_end().to_owned())
    };
    let (first, answer) = ask(&["mend the login"]).await;
    assert_eq!(
        answer,
        format!("Nothing is queued yet. To answer:\n1. Which login?\nAnswer with: kubectl spillway ask --answers {first} \"...\"")
    );
    assert!(members(&room, &first).await.is_empty());
    let (second, answer) = ask(&["--answers", &first, "the first one"]).await;
    assert_eq!(answer, "Queued 1 item. I'll let you know when it's done.");
    assert_eq!(members(&room, &second).await[0].spec.payload, "mend the first login");

    let (third, answer) = ask(&["fix what is of no use"]).await;
    assert!(answer.starts_with("Queued 1 item. I'll let you know when it's done.\n(By rules, without the model: "), "{answer}");
    let items = members(&room, &third).await;
    assert_eq!((items[0].spec.payload.as_str(), items[0].spec.type_.as_deref()), ("fix what is of no use", Some("bug")));
    wait_until_counts_agree(&room, &provider).await;
    room.close().await;
}

#[tokio::test]
async fn an_idea_becomes_a_document_and_work() {
    let (room, _operator, provider) = set_up("prd").await;
    let document = "# Dark mode\n\n## Problem\nIt is too bright at night.";
    let steps = json!([{"key": "a", "type": "chore", "task": "measure how bright it is"}]);
    provider.say("a dark mode", &json!({"document": document, "steps": steps}).to_string());
    let extra = json!({"queues": [{"name": "ideas"}], "scaling": {"min": 1, "max": 1}});
    room.apply_pool("prd", thinking(&provider, "Anthropic", "prd", extra)).await;
    room.submit("ideas", "dark-mode", json!({"type": "idea", "payload": "a dark mode"})).await;
    let done = room.wait_for_item_phase("dark-mode", Succeeded).await;
    let follows = members(&room, "dark-mode").await;
    assert_eq!(follows.iter().map(|item| item.spec.payload.as_str()).collect::<Vec<_>>(), ["measure how bright it is"]);
    assert_eq!(result(&done).trim_end(), format!("{document}\n\nQueued: {} (chore).", follows[0].name_any()));
    wait_until_counts_agree(&room, &provider).await;
    room.close().await;
}

#[tokio::test]
async fn a_person_talks_to_buddy_at_its_terminal() {
    let (room, _operator, provider) = set_up("buddy").await;
    provider.say("a button does nothing", &json!({"questions": ["Which button?"]}).to_string());
    let step = json!({"key": "a", "type": "bug", "task": "the login button does nothing"});
    provider.say("the one of the login", &json!({"say": "I will have it mended.", "steps": [step]}).to_string());
    let extra = json!({"mode": "Chat", "scaling": {"min": 1, "max": 1}});
    room.apply_pool("buddy", thinking(&provider, "Gemini", "buddy", extra)).await;
    let agent = room.wait_until_idle("buddy", 1).await.remove(0).name_any();
    let hears = async |words: &str| {
        eventually(&format!("buddy says {words:?}"), async || {
            let log = log(&room, &agent, "agent").await.replace('\r', "");
            check_state(log.contains(words), || log.clone())
        })
        .await;
    };
    hears("buddy: tell me about bugs, tasks and ideas").await;
    let mut person = Attached::to(&room, &agent);
    person.types("a button does nothing");
    hears("Which button?\n").await;
    person.types("the one of the login");
    hears("I will have it mended.\nQueued item-").await;
    let items: Vec<WorkItem> = room.list().await;
    let rows: Vec<_> = items.iter().map(|item| (item.spec.payload.as_str(), item.spec.type_.as_deref(), item.spec.priority)).collect();
    assert_eq!(rows, [("the login button does nothing", Some("bug"), 10)]);
    room.apply_workers("workers", &["bugs"], "echo mended > $SPILLWAY_RESULT_FILE", json!({})).await;
    hears(&format!("Done: {}: mended", items[0].name_any())).await;
    drop(person);
    wait_until_counts_agree(&room, &provider).await;
    assert_eq!(
        items[0].meta().labels.as_ref().and_then(|labels| labels.get("spillway.dev/submitted-by")).map(String::as_str),
        Some("buddy")
    );
    room.close().await;
}
