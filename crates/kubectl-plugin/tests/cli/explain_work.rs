//! `explain` of items and queues: the requests, and the notes on failed reads. `diff` of an item.

use super::*;
use kubectl_spillway::explain;
use kubectl_spillway::input::Explainable;
use kubectl_spillway::input::Work;
use kubectl_spillway::work::diff;

#[tokio::test]
async fn explain_reads_all_around_an_item() {
    let (cluster, mut server) = fake();
    let arguments = explain::Arguments { name: Explainable::Work(Work::Item("i".into())), output: None };
    let mut works = pool();
    works["spec"]["queues"] = json!([{"name": "q"}]);
    works["status"] = json!({"desired": 1});
    let ready = item("i", json!({"phase": "Ready"}));
    let talk = async {
        let read = server.answer(200, ready.clone()).await;
        let items = server.answer(200, list(vec![ready.clone()])).await;
        let queues = server.answer(200, list(vec![queue(json!({"suspend": true}))])).await;
        let pools = server.answer(200, list(vec![works])).await;
        let agents = server.answer(403, refusal(403, "Forbidden", "no agents for you", "agents", "")).await;
        let events = server.answer(200, json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []})).await;
        [read.line, items.line, queues.line, pools.line, agents.line, events.line]
    };
    let (facts, lines) = tokio::join!(explain::run(&cluster, &arguments), talk);
    let events = "GET /api/v1/namespaces/n/events?&fieldSelector=involvedObject.uid%3Duid-i".to_owned();
    assert_eq!(lines, [format!("GET {ITEMS}/i"), listed(ITEMS), listed(QUEUES), listed(POOLS), format!("GET {AGENTS}?"), events]);
    let told = explain::render(&explain::report(&facts.expect("facts")), None, jiff::Timestamp::UNIX_EPOCH).expect("text");
    assert!(
        told.out.starts_with(
            "WorkItem i in namespace n\n  Ready\n\nWhy\n  queue q is paused (spec.suspend)\n  the item is the next one in queue q\n"
        ),
        "{}",
        told.out
    );
    assert!(told.out.contains("Suspended: `kubectl spillway resume queue/q -n n`\n"), "{}", told.out);
    assert_eq!(told.err, "note: an object could not be read: from server (Forbidden): no agents for you\n");
}

#[tokio::test]
async fn explain_of_a_queue_is_json_for_machines() {
    let (cluster, mut server) = fake();
    let arguments = explain::Arguments { name: Explainable::Work(Work::Queue("q".into())), output: Some(explain::Format::Json) };
    let talk = async {
        server.answer(200, queue(json!({}))).await;
        server.answer(200, list(vec![item("i", json!({"phase": "Ready"}))])).await;
        server.answer(200, list(vec![queue(json!({}))])).await;
        server.answer(200, list(Vec::new())).await;
        server.answer(200, list(Vec::new())).await;
        server.answer(200, json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []})).await;
    };
    let (facts, ()) = tokio::join!(explain::run(&cluster, &arguments), talk);
    let told = explain::render(&explain::report(&facts.expect("facts")), arguments.output, jiff::Timestamp::UNIX_EPOCH).expect("text");
    let json: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!((&json["kind"], &json["state"], &json["advice"][0]["reason"]), (&json!("WorkQueue"), &json!("1 ready"), &json!("NoPool")));
    assert_eq!(json["why"][0], json!("no pool of namespace n works from queue q"));
}

#[tokio::test]
async fn explain_of_what_is_not_there_says_so() {
    let (cluster, mut server) = fake();
    let arguments = explain::Arguments { name: Explainable::Work(Work::Item("i".into())), output: None };
    let (facts, _) = tokio::join!(explain::run(&cluster, &arguments), server.answer(404, refusal(404, "NotFound", "m", "workitems", "i")));
    assert!(matches!(facts, Err(Error::NotFound { .. })), "{facts:?}");
    let arguments = explain::Arguments { name: Explainable::Fleet(NamedKind::Either("i".into())), output: None };
    let talk = async {
        server.answer(404, refusal(404, "NotFound", "m", "agents", "i")).await;
        server.answer(404, refusal(404, "NotFound", "m", "agentpools", "i")).await;
    };
    let (facts, ()) = tokio::join!(explain::run(&cluster, &arguments), talk);
    assert!(facts.expect_err("nothing").to_string().ends_with("; for an item or a queue write item/NAME or queue/NAME"));
}

#[tokio::test]
async fn diff_reads_the_item_alone_and_prints_the_commands_of_git() {
    let (cluster, mut server) = fake();
    let arguments = diff::Arguments { item: "i".into(), output: None };
    let changeset = json!({"state": "Committed", "epoch": 1, "remote": "https://git.example.com/app", "branch": "spillway/i",
        "base": "0".repeat(40), "commit": "a1".repeat(20), "files": 1, "insertions": 1, "deletions": 0});
    let done = item("i", json!({"phase": "Succeeded", "changeset": changeset}));
    let mut heard = HeardRequest::default();
    let (shown, seen) = tokio::join!(diff::execute(&cluster, &arguments, &mut heard), server.answer(200, done));
    assert_eq!((shown.is_ok(), seen.line), (true, format!("GET {ITEMS}/i")));
    let commands = format!("  git fetch https://git.example.com/app spillway/i\n  git diff {} {}\n", "0".repeat(40), "a1".repeat(20));
    assert!(heard.told.out.ends_with(&commands) && !heard.told.failed, "{:?}", heard.told);
    let (shown, _) =
        tokio::join!(diff::execute(&cluster, &arguments, &mut heard), server.answer(200, item("i", json!({"phase": "Ready"}))));
    assert!(shown.expect_err("no changeset").to_string().starts_with("item \"i\" (Ready) has no changeset yet"));
}
