//! `ask`: the selected queue, the requests to the server, and the output.

use super::*;
use kubectl_spillway::work::ask;

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn named(name: &str, spec: Value) -> Value {
    let mut queue = queue(spec);
    queue["metadata"]["name"] = json!(name);
    queue
}

fn queues(queues: Vec<Value>) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueueList", "metadata": {}, "items": queues})
}

fn asks() -> Value {
    named("asks", json!({"accepts": {"types": ["ask"]}}))
}

fn items(items: Vec<Value>) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItemList", "metadata": {}, "items": items})
}

fn scheduler() -> Value {
    let mut scheduler = pool();
    scheduler["spec"]["queues"] = json!([{"name": "asks"}]);
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPoolList", "metadata": {}, "items": [scheduler]})
}

fn ended(name: &str, phase: &str, more: Value) -> Value {
    let mut status = json!({"phase": phase, "queue": "bugs", "completionTime": "2026-01-01T00:00:09Z"});
    more.as_object().expect("an object").iter().for_each(|(key, value)| status[key] = value.clone());
    item(name, status)
}

fn of_group() -> String {
    format!("GET {ITEMS}?&fieldSelector=spec.group%3Dask-x&limit=500")
}

#[tokio::test]
async fn words_become_an_item_of_the_queue_that_accepts_the_type_by_name() {
    let (cluster, mut server) = fake();
    let mut heard = HeardRequest::default();
    let talk = async {
        let default = named("chores", json!({"accepts": {"default": true}, "priority": 5}));
        let read = server.answer(200, queues(vec![default, asks()])).await;
        let made = server.answer(201, item("ask-x", Value::Null)).await;
        (read, made, server.answer(200, list(vec![])).await)
    };
    let (asked, (read, made, pools)) = tokio::join!(ask::ask(&cluster, "fix \"it\"", now(), &mut heard), talk);
    assert_eq!(asked.expect("an item").metadata.name.as_deref(), Some("ask-x"));
    assert_eq!((read.line, made.line), (listed(QUEUES), format!("POST {ITEMS}?&fieldManager=kubectl-spillway")));
    assert_eq!(pools.line, listed(POOLS));
    assert_eq!(made.body["metadata"], json!({"generateName": "ask-"}));
    assert_eq!(
        made.body["spec"],
        json!({"queueRef": {"name": "asks"}, "type": "ask", "priority": 0, "payload": "fix \"it\"", "submitTime": "2026-01-01T00:00:00.000000Z", "onDependencyFailure": "Cancel"})
    );
    assert!(heard.told.out.is_empty(), "{:?}", heard.told);
    let (first, note) = heard.told.err.split_once('\n').expect("two lines");
    assert_eq!(first, "workitem.spillway.dev/ask-x asked in queue asks");
    assert!(note.starts_with("note: no AgentPool works from queue asks"), "{note}");
}

#[tokio::test]
async fn where_nobody_hears_nothing_is_sent() {
    let (cluster, mut server) = fake();
    let (mut heard, default) = (HeardRequest::default(), named("chores", json!({"accepts": {"types": ["chore"], "default": true}})));
    let (asked, _) = tokio::join!(ask::ask(&cluster, "fix it", now(), &mut heard), server.answer(200, queues(vec![default])));
    let words = asked.expect_err("refused").to_string();
    assert!(
        words.starts_with("no WorkQueue in namespace \"n\" accepts the type ask by name") && words.contains("config/samples/"),
        "{words}"
    );
    let long = "x".repeat(20_000);
    let (asked, _) = tokio::join!(ask::ask(&cluster, &long, now(), &mut heard), server.answer(200, queues(vec![asks()])));
    assert!(asked.expect_err("refused").to_string().starts_with("the payload has 20000 bytes: the limit is 16384"));
}

async fn executed(arguments: ask::Arguments, answers: Vec<Value>) -> (Result<(), Error>, HeardRequest, Vec<String>) {
    let (cluster, mut server) = fake();
    let mut heard = HeardRequest::default();
    let talk = async {
        server.answer(200, queues(vec![asks()])).await;
        server.answer(201, item("ask-x", Value::Null)).await;
        server.answer(200, scheduler()).await;
        let mut lines = Vec::new();
        for answer in answers {
            lines.push(server.answer(200, answer).await.line);
        }
        lines
    };
    let (ended, lines) = tokio::join!(ask::execute(&cluster, &arguments, &mut heard), talk);
    (ended, heard, lines)
}

fn arguments(wait: bool) -> ask::Arguments {
    ask::Arguments { words: vec!["fix".into(), "it".into()], wait, ..ask::Arguments::default() }
}

const ANSWER: &str = "Queued 1 item. I'll let you know when it's done.";

#[tokio::test(start_paused = true)]
async fn the_answer_alone_is_on_standard_output() {
    let done = ended("ask-x", "Succeeded", json!({"result": ANSWER}));
    let (ended, heard, lines) =
        executed(arguments(false), vec![leased("ask-x"), done.clone(), done, items(vec![item("item-a", json!({"phase": "Ready"}))])]).await;
    assert!(ended.is_ok() && !heard.told.failed, "{ended:?}");
    assert_eq!(heard.told.out, format!("{ANSWER}\n"));
    assert!(
        heard.told.err.contains("workitem.spillway.dev/ask-x Leased by a\nworkitem.spillway.dev/ask-x Succeeded\n"),
        "{:?}",
        heard.told
    );
    assert!(heard.told.err.contains("note: 1 item is queued"), "{:?}", heard.told);
    assert_eq!(lines[3], of_group());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_what_came_out_of_each() {
    let done = ended("ask-x", "Succeeded", json!({"result": ANSWER}));
    let (good, bad) =
        (ended("item-a", "Succeeded", json!({"result": "merged"})), ended("item-b", "DeadLettered", json!({"reason": "TooManyFailures"})));
    let waiting = items(vec![leased("item-a"), item("item-b", json!({"phase": "Blocked"}))]);
    let over = items(vec![good.clone(), bad.clone()]);
    let (ended, heard, _) = executed(arguments(true), vec![done.clone(), done.clone(), waiting, good, bad, done, over]).await;
    assert!(ended.is_ok() && heard.told.failed, "one has not succeeded: {ended:?}");
    let (answer, table) = heard.told.out.split_once('\n').expect("two parts");
    assert_eq!(answer, ANSWER);
    assert!(table.contains("item-a   -      bugs    Succeeded      merged\n"), "{table}");
    assert!(heard.told.err.contains("error: item \"item-b\" has not succeeded: DeadLettered, TooManyFailures\n"), "{:?}", heard.told);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_says_why_and_fails() {
    let condition = json!([{"type": "Failed", "status": "True", "reason": "FailureRule", "message": "the queue is full (queue_full)", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let failed = ended("ask-x", "Failed", json!({"reason": "FailureRule", "conditions": condition}));
    let (ended, heard, _) = executed(arguments(true), vec![failed.clone(), failed, items(vec![])]).await;
    assert!(ended.is_ok() && heard.told.failed, "{ended:?}");
    assert_eq!(heard.told.out, "");
    assert!(
        heard.told.err.ends_with("error: item \"ask-x\" has not succeeded: Failed, FailureRule: the queue is full (queue_full)\n"),
        "{:?}",
        heard.told
    );
}

#[tokio::test(start_paused = true)]
async fn when_time_is_up_it_says_how_to_find_out_why() {
    let late = ask::Arguments { timeout: Some(Duration::from_millis(100)), ..arguments(false) };
    let (ended, heard, _) = executed(late, vec![item("ask-x", json!({"phase": "Ready"}))]).await;
    let words = ended.expect_err("late").to_string();
    assert!(
        words.contains("ask-x (Ready)") && words.ends_with("`kubectl spillway explain item/ask-x -n n` shows what it waits for"),
        "{words}"
    );
    assert_eq!(heard.told.out, "");
}
