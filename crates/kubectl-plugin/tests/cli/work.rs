//! `queue`, `cancel`, `priority`, `redrive`, `release`, and `pause` and `resume` of work.

use super::*;
use kubectl_spillway::work::{cancel, priority, queue as queues, redrive, release};

fn patched(path: &str) -> String {
    format!("PATCH {path}?&fieldManager=kubectl-spillway")
}

fn conflict() -> Value {
    refusal(409, "Conflict", "the object has been modified", "workqueues", "q")
}

fn prioritised(name: &str, priority: i32, status: Value) -> Value {
    let mut item = item(name, status);
    item["spec"]["priority"] = json!(priority);
    item
}

fn of_group(name: &str, status: Value) -> Value {
    let mut item = item(name, status);
    item["spec"]["group"] = json!("g");
    item
}

#[tokio::test]
async fn queue_lists_items_page_by_page_in_their_order() {
    let (cluster, mut server) = fake();
    let arguments = queues::Arguments { name: Some("q".into()), limit: 50, ..queues::Arguments::default() };
    let mut routed = prioritised("routed", 1, json!({"phase": "Ready", "queue": "q"}));
    routed["spec"] = json!({"type": "bug", "priority": 1});
    let mut elsewhere = item("elsewhere", json!({"phase": "Ready"}));
    elsewhere["spec"]["queueRef"]["name"] = json!("other");
    let mut first = list(vec![prioritised("low", -1, json!({"phase": "Ready"})), routed, elsewhere]);
    first["metadata"]["continue"] = json!("more");
    let talk = async {
        let read = server.answer(200, queue(json!({}))).await;
        let one = server.answer(200, first).await;
        let two = server.answer(200, list(vec![leased("held"), item("over", json!({"phase": "Succeeded"}))])).await;
        [read.line, one.line, two.line]
    };
    let (report, lines) = tokio::join!(queues::run(&cluster, &arguments), talk);
    assert_eq!(lines, [format!("GET {QUEUES}/q"), listed(ITEMS), format!("{}&continue=more", listed(ITEMS))]);
    let told = queues::render(&report.expect("a report"), jiff::Timestamp::UNIX_EPOCH);
    let (_, items) = told.out.split_once("Items in their order\n").expect("items");
    let names: Vec<&str> = items.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["routed", "held", "low"], "{items}");
    assert_eq!(told.err, "1 item ended (--all shows them)\n");
}

#[tokio::test]
async fn queues_of_all_namespaces_are_asked_for_once() {
    let (cluster, mut server) = fake();
    let arguments = queues::Arguments { all_namespaces: true, ..queues::Arguments::default() };
    let (report, seen) = tokio::join!(queues::run(&cluster, &arguments), server.answer(200, list(vec![queue(json!({}))])));
    assert_eq!(seen.line, listed("/apis/spillway.dev/v1alpha1/workqueues"));
    let told = queues::render(&report.expect("a report"), jiff::Timestamp::UNIX_EPOCH);
    assert!(
        told.out.starts_with("NAMESPACE   NAME   READY   OLDEST   LEASED") && told.out.contains("n           q      1       -"),
        "{}",
        told.out
    );
}

#[tokio::test]
async fn rates_and_times_are_those_of_the_items_that_were_routed_here() {
    let (cluster, mut server) = fake();
    let hour = std::time::Duration::from_secs(3600);
    let one = queues::Arguments { name: Some("q".into()), stats: true, since: hour, ..queues::Arguments::default() };
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    let done = |queue: &str| {
        json!({"phase": "Succeeded", "queue": queue, "readyTime": "2026-01-01T11:30:00Z", "startTime": "2026-01-01T11:30:20Z",
            "completionTime": "2026-01-01T11:31:20Z", "attemptHistory": [{"epoch": 1, "agent": "a", "verb": "Complete",
            "startTime": "2026-01-01T11:30:20Z", "endTime": "2026-01-01T11:31:20Z"}]})
    };
    let mut elsewhere = item("elsewhere", done("other"));
    elsewhere["spec"] = json!({"type": "bug"});
    let mut routed = item("routed", done("q"));
    routed["spec"] = json!({"type": "bug"});
    let items = vec![item("named", done("q")), routed, elsewhere];
    let talk = async {
        let read = server.answer(200, queue(json!({}))).await;
        let all = server.answer(200, list(items.clone())).await;
        [read.line, all.line]
    };
    let (report, lines) = tokio::join!(queues::read_stats(&cluster, &one, now), talk);
    assert_eq!(lines, [format!("GET {QUEUES}/q"), listed(ITEMS)]);
    let told = queues::render(&report.expect("a report"), now).out;
    assert!(told.contains("Ended                2, 2.0/h: 2 Succeeded") && told.contains("60s"), "{told}");
    // Of all queues, in a table.
    let all = queues::Arguments { name: None, all_namespaces: true, ..one };
    let talk = async { (server.answer(200, list(vec![queue(json!({}))])).await, server.answer(200, list(items.clone())).await) };
    let (report, (_, listed_items)) = tokio::join!(queues::read_stats(&cluster, &all, now), talk);
    assert_eq!(listed_items.line, listed("/apis/spillway.dev/v1alpha1/workitems"));
    let told = queues::render(&report.expect("a report"), now).out;
    assert!(told.starts_with("NAMESPACE   NAME   ARRIVED") && told.contains("2.0/h   0        0      0      20s"), "{told}");
}

#[tokio::test]
async fn a_queue_is_suspended_and_resumed_as_pause_and_resume_do() {
    for (suspend, stored, written, words) in [
        (true, json!({}), json!({"suspend": true}), "workqueue.spillway.dev/q pause requested\n"),
        (false, json!({"suspend": true}), json!({"suspend": null}), "workqueue.spillway.dev/q resume requested\n"),
    ] {
        let (cluster, mut server) = fake();
        let arguments = queues::Arguments { name: Some("q".into()), suspend, resume: !suspend, ..queues::Arguments::default() };
        let mut heard = HeardRequest::default();
        let talk = async { (server.answer(200, queue(stored)).await, server.answer(200, queue(json!({}))).await) };
        let (done, (_, patch)) = tokio::join!(queues::execute(&cluster, &arguments, &mut heard), talk);
        assert!(done.is_ok(), "{done:?}");
        assert_eq!((patch.line, patch.body), (patched(&format!("{QUEUES}/q")), json!({"metadata": {"uid": "queue-uid"}, "spec": written})));
        assert_eq!(heard.told.out, words);
    }
}

#[tokio::test]
async fn an_item_is_paused_with_a_word_on_who_holds_it_and_resumed_by_its_number() {
    let (cluster, mut server) = fake();
    let arguments = pause::Arguments { names: vec![Pausable::Item("i".into())], ..pause::Arguments::default() };
    let talk = async { (server.answer(200, leased("i")).await, server.answer(200, leased("i")).await) };
    let (report, (read, patch)) = tokio::join!(pause::run(&cluster, pause::Verb::Pause, &arguments), talk);
    assert_eq!((read.line, patch.line), (format!("GET {ITEMS}/i"), patched(&format!("{ITEMS}/i"))));
    assert_eq!(patch.body, json!({"metadata": {"uid": "uid-i"}, "spec": {"suspend": true}}));
    let told = pause::render(&report.expect("a report"));
    assert_eq!(told.out, "workitem.spillway.dev/i pause requested\n");
    assert!(told.err.starts_with("note: agent a holds the item and continues"), "{}", told.err);
    let fished = item("i", json!({"phase": "Paused", "pauses": 4, "lease": {"holder": "p", "agent": "a", "leaseTransitions": 3}}));
    let talk = async { (server.answer(200, fished.clone()).await, server.answer(200, fished.clone()).await) };
    let (_, (_, patch)) = tokio::join!(pause::run(&cluster, pause::Verb::Resume, &arguments), talk);
    assert_eq!(patch.body, json!({"metadata": {"uid": "uid-i"}, "spec": {"resumePause": 4}}));
}

#[tokio::test]
async fn cancel_asks_each_item_to_end_and_says_which_have() {
    let (cluster, mut server) = fake();
    let arguments = cancel::Arguments { items: vec!["a".into(), "b".into()], ..cancel::Arguments::default() };
    let mut heard = HeardRequest::default();
    // Both are read concurrently.
    let talk = async {
        server.answer(200, leased("a")).await;
        server.answer(200, item("b", json!({"phase": "DeadLettered"}))).await;
        server.answer(200, leased("a")).await
    };
    let (done, patch) = tokio::join!(cancel::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(
        (patch.line, patch.body),
        (patched(&format!("{ITEMS}/a")), json!({"metadata": {"uid": "uid-a"}, "spec": {"cancelRequested": true}}))
    );
    assert_eq!(
        heard.told.out,
        "workitem.spillway.dev/a cancel requested\nworkitem.spillway.dev/b unchanged: it has ended already (DeadLettered)\n"
    );
    assert!(heard.asked.is_empty());
}

#[tokio::test]
async fn a_group_is_cancelled_over_the_version_that_was_read_and_again_on_a_conflict() {
    let (cluster, mut server) = fake();
    let arguments = cancel::Arguments { group: Some("g".into()), ..cancel::Arguments::default() };
    let mut heard = HeardRequest { yes: true, ..HeardRequest::default() };
    let entry = |group: &str| json!({"group": group, "time": "2026-01-01T00:00:00Z"});
    let mut other = queue(json!({"cancelGroups": [entry("nobody")]}));
    other["metadata"]["resourceVersion"] = json!("10");
    let mut held = leased("held");
    held["spec"]["group"] = json!("g");
    let talk = async {
        let items = server
            .answer(200, list(vec![of_group("a", json!({"phase": "Ready"})), held, of_group("over", json!({"phase": "Failed"}))]))
            .await;
        server.answer(200, queue(json!({}))).await;
        let first = server.answer(409, conflict()).await;
        let read = server.answer(200, other).await;
        (items, first, read, server.answer(200, queue(json!({}))).await)
    };
    let (done, (items, first, read, second)) = tokio::join!(cancel::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!((items.line, read.line), (listed(ITEMS), format!("GET {QUEUES}/q")));
    assert_eq!(first.line, patched(&format!("{QUEUES}/q")));
    let versions = [&first, &second].map(|seen| seen.body["metadata"].clone());
    assert_eq!(versions, [json!({"resourceVersion": "9"}), json!({"resourceVersion": "10"})]);
    let groups: Vec<&Value> = second.body["spec"]["cancelGroups"].as_array().expect("a list").iter().map(|entry| &entry["group"]).collect();
    assert_eq!(groups, ["g"], "the entry of a group without items is dropped");
    assert_eq!(heard.asked, ["Cancel group g, 2 items in queue q? This cannot be undone."]);
    assert_eq!(heard.told.out, "workqueue.spillway.dev/q: group g cancelled: 2 items; agents hold 1 of them and are told to stop\n");
}

#[tokio::test]
async fn a_whole_queue_is_shown_first_asked_about_and_left_without_a_yes() {
    let all = cancel::Arguments { queue: Some("q".into()), all: true, ..cancel::Arguments::default() };
    for (arguments, words, asked) in [
        (cancel::Arguments { dry_run: true, ..all.clone() }, "workitem.spillway.dev/a would be cancelled (dry run)\n", 0),
        (all.clone(), "", 1),
    ] {
        let (cluster, mut server) = fake();
        let mut heard = HeardRequest::default();
        let talk = async {
            server.answer(200, queue(json!({}))).await;
            server.answer(200, list(vec![item("a", json!({"phase": "Ready"})), item("over", json!({"phase": "Failed"}))])).await;
        };
        let (done, ()) = tokio::join!(cancel::execute(&cluster, &arguments, &mut heard), talk);
        assert_eq!((done.is_ok(), heard.told.out.as_str(), heard.asked.len()), (asked == 0, words, asked));
    }
    let (cluster, _server) = fake();
    let unclear = cancel::Arguments { all: false, ..all };
    let refused = cancel::execute(&cluster, &unclear, &mut HeardRequest::default()).await.expect_err("refused").to_string();
    assert_eq!(refused, "--queue q also needs --all, for all items of the queue, or --group G");
    let everything = cancel::Arguments { items: vec!["a".into()], all: true, yes: true, ..cancel::Arguments::default() };
    let refused = cancel::execute(&cluster, &everything, &mut HeardRequest::default()).await.expect_err("refused").to_string();
    assert_eq!(refused, "--all means all items of a queue: write --queue Q, and name no items");
    let chosen =
        redrive::Arguments { items: vec!["a".into()], phase: vec![redrive::RedrivePhase::Failed], ..redrive::Arguments::default() };
    let refused = redrive::execute(&cluster, &chosen, &mut HeardRequest::default()).await.expect_err("refused").to_string();
    assert!(refused.starts_with("--phase, --group and --reason select items of a queue"), "{refused}");
}

#[tokio::test]
async fn a_priority_is_written_for_each_item_that_is_not_over() {
    let (cluster, mut server) = fake();
    let arguments = priority::Arguments { items: vec!["a".into(), "b".into(), "c".into()], priority: -5, ..priority::Arguments::default() };
    let mut heard = HeardRequest::default();
    // All three are read concurrently.
    let talk = async {
        server.answer(200, leased("a")).await;
        server.answer(200, item("b", json!({"phase": "Succeeded"}))).await;
        server.answer(404, refusal(404, "NotFound", "m", "workitems", "c")).await;
        server.answer(200, leased("a")).await
    };
    let (done, patch) = tokio::join!(priority::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!((patch.line, patch.body), (patched(&format!("{ITEMS}/a")), json!({"metadata": {"uid": "uid-a"}, "spec": {"priority": -5}})));
    assert_eq!(
        heard.told.out,
        "workitem.spillway.dev/a has priority -5 (was 0); agent a keeps the item, and the priority counts when it comes back\n\
         workitem.spillway.dev/b unchanged: it is Succeeded, which is final: no agent gets it again\n"
    );
    assert!(heard.told.err.starts_with("error: WorkItem \"c\" not found") && heard.told.failed, "{:?}", heard.told);
    assert!(heard.asked.is_empty());
}

#[tokio::test]
async fn the_priority_of_a_queues_items_is_asked_about_and_not_written_without_a_yes() {
    let all = priority::Arguments { queue: Some("q".into()), priority: 7, ..priority::Arguments::default() };
    let look = async |server: &mut Server| {
        server.answer(200, queue(json!({}))).await;
        let ready = json!({"phase": "Ready"});
        let items = vec![item("a", ready.clone()), prioritised("b", 7, ready), item("over", json!({"phase": "Failed"}))];
        server.answer(200, list(items)).await;
    };
    let same = "note: 1 item skipped: the priority is 7 already\n";
    for (dry_run, out, asked) in [(true, "workitem.spillway.dev/a would have priority 7 (dry run)\n", 0), (false, "", 1)] {
        let (cluster, mut server) = fake();
        let (arguments, mut heard) = (priority::Arguments { dry_run, ..all.clone() }, HeardRequest::default());
        let (done, ()) = tokio::join!(priority::execute(&cluster, &arguments, &mut heard), look(&mut server));
        assert_eq!((done.is_ok(), heard.told.out.as_str(), heard.told.err.as_str()), (dry_run, out, same));
        assert_eq!(heard.asked, vec!["Set the priority of 1 item of queue q to 7?"; asked]);
    }
    let (cluster, mut server) = fake();
    let mut heard = HeardRequest { yes: true, ..HeardRequest::default() };
    let talk = async {
        look(&mut server).await;
        server.answer(200, item("a", json!({"phase": "Ready"}))).await;
        server.answer(200, prioritised("a", 7, json!({"phase": "Ready"}))).await
    };
    let (done, patch) = tokio::join!(priority::execute(&cluster, &all, &mut heard), talk);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(patch.body["spec"], json!({"priority": 7}));
    assert_eq!(heard.told.out, "workitem.spillway.dev/a has priority 7 (was 0)\n");
    let unclear = priority::Arguments { queue: None, items: vec!["a".into()], group: Some("g".into()), ..all };
    let refused = priority::execute(&cluster, &unclear, &mut heard).await.expect_err("refused").to_string();
    assert!(refused.starts_with("--phase and --group select items of a queue"), "{refused}");
}

#[tokio::test]
async fn redrive_counts_up_over_the_version_it_saw_and_says_what_is_final() {
    let (cluster, mut server) = fake();
    let arguments = redrive::Arguments { items: vec!["a".into(), "b".into(), "c".into()], rate: 1000, ..redrive::Arguments::default() };
    let mut heard = HeardRequest::default();
    let dead = item("a", json!({"phase": "DeadLettered", "redrives": 2}));
    let talk = async {
        server.answer(200, list(vec![queue(json!({}))])).await;
        server.answer(200, dead.clone()).await;
        let first = server.answer(409, conflict()).await;
        server.answer(200, dead.clone()).await;
        let second = server.answer(200, dead.clone()).await;
        server.answer(200, item("b", json!({"phase": "Succeeded"}))).await;
        server.answer(404, refusal(404, "NotFound", "m", "workitems", "c")).await;
        (first, second)
    };
    let (done, (first, second)) = tokio::join!(redrive::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!((first.line, &first.body), (patched(&format!("{ITEMS}/a")), &second.body));
    assert_eq!(second.body, json!({"metadata": {"resourceVersion": "7"}, "spec": {"redrives": 3}}));
    assert_eq!(heard.told.out, "workitem.spillway.dev/a started again (was DeadLettered)\n");
    assert!(
        heard.told.err.starts_with("error: item \"b\" is Succeeded, which is final: submit another item\nerror: WorkItem \"c\" not found"),
        "{}",
        heard.told.err
    );
    assert!(heard.told.failed);
}

#[tokio::test(start_paused = true)]
async fn the_dead_letters_of_a_queue_are_redriven_at_a_rate_once_that_is_agreed_to() {
    let arguments = redrive::Arguments { queue: Some("q".into()), rate: 2, ..redrive::Arguments::default() };
    let dead = |name: &str| item(name, json!({"phase": "DeadLettered"}));
    let look = async |server: &mut Server| {
        server.answer(200, list(vec![queue(json!({}))])).await;
        server.answer(200, list(vec![dead("a"), dead("b"), item("c", json!({"phase": "Cancelled"}))])).await.line
    };
    let (cluster, mut server) = fake();
    let mut heard = HeardRequest::default();
    let (done, line) = tokio::join!(redrive::execute(&cluster, &arguments, &mut heard), look(&mut server));
    assert_eq!((done.expect_err("not agreed to").to_string(), line), ("no item was started again".into(), listed(ITEMS)));
    assert_eq!(heard.asked, ["Start 2 items of queue q again, 2 a second?"]);
    assert_eq!(heard.told.err, "note: 1 item in phase Cancelled skipped (final: submit another item)\n");
    let (mut heard, begin) = (HeardRequest { yes: true, ..HeardRequest::default() }, tokio::time::Instant::now());
    let talk = async {
        look(&mut server).await;
        for name in ["a", "a", "b", "b"] {
            server.answer(200, dead(name)).await;
        }
    };
    let (done, ()) = tokio::join!(redrive::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok() && begin.elapsed() >= Duration::from_millis(500), "{done:?}");
    assert_eq!(
        heard.told.out,
        "workitem.spillway.dev/a started again (was DeadLettered)\nworkitem.spillway.dev/b started again (was DeadLettered)\n"
    );
    let dry = redrive::Arguments { dry_run: true, ..arguments };
    let mut heard = HeardRequest::default();
    let (done, _) = tokio::join!(redrive::execute(&cluster, &dry, &mut heard), look(&mut server));
    assert!(done.is_ok() && heard.told.out.contains("workitem.spillway.dev/b would be started again (dry run)\n"), "{:?}", heard.told);
}

fn node(ready: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "k"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

fn held_pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "pod-uid"}, "spec": {"nodeName": "k", "containers": []}, "status": {"phase": "Running"}})
}

/// Answers the reads of `release`.
async fn around(server: &mut Server, ready: &str) -> [String; 4] {
    let item = server.answer(200, leased("i")).await;
    let agent = server.answer(200, agent("a", "u1", serving("a"))).await;
    let pod = server.answer(200, held_pod()).await;
    [item.line, agent.line, pod.line, server.answer(200, node(ready)).await.line]
}

#[tokio::test]
async fn release_alone_tells_what_is_known_and_fails() {
    let (cluster, mut server) = fake();
    let arguments = release::Arguments { item: "i".into(), ..release::Arguments::default() };
    let mut heard = HeardRequest::default();
    let (done, lines) = tokio::join!(release::execute(&cluster, &arguments, &mut heard), around(&mut server, "Unknown"));
    assert!(done.is_ok() && heard.told.failed && heard.asked.is_empty(), "{done:?}");
    assert_eq!(
        lines,
        [format!("GET {ITEMS}/i"), format!("GET {AGENTS}/a"), "GET /api/v1/namespaces/n/pods/a".into(), "GET /api/v1/nodes/k".into()]
    );
    for words in [
        "WorkItem i: Leased, epoch 3\n  Agent  a: Idle, R: m\n  Pod    a: Running\n  Node   k: not Ready\n",
        "--node-is-dead states, for this item,",
    ] {
        assert!(heard.told.err.contains(words), "{words:?} in {}", heard.told.err);
    }
}

#[tokio::test]
async fn release_of_a_ready_node_warns_asks_and_writes_the_epoch_it_saw() {
    let (cluster, mut server) = fake();
    let arguments = release::Arguments { item: "i".into(), node_is_dead: true, yes: false };
    let mut heard = HeardRequest { yes: true, ..HeardRequest::default() };
    let talk = async {
        around(&mut server, "True").await;
        (server.answer(200, leased("i")).await, server.answer(200, leased("i")).await)
    };
    let (done, (_, patch)) = tokio::join!(release::execute(&cluster, &arguments, &mut heard), talk);
    assert!(done.is_ok() && heard.told.err.contains("WARNING: node k IS READY."), "{done:?} {:?}", heard.told);
    assert_eq!(
        (patch.line, patch.body),
        (patched(&format!("{ITEMS}/i")), json!({"metadata": {"resourceVersion": "7"}, "spec": {"releasedEpoch": 3}}))
    );
    assert_eq!(heard.asked, ["Node k is READY. Release item i anyway? Two agents may then work on it."]);
    assert_eq!(heard.told.out, "workitem.spillway.dev/i released: Spillway no longer waits for its agent\n");
}

#[tokio::test]
async fn release_without_rights_to_nodes_says_so_and_nothing_is_written_without_a_yes() {
    let (cluster, mut server) = fake();
    let arguments = release::Arguments { item: "i".into(), node_is_dead: true, yes: false };
    let mut heard = HeardRequest::default();
    let talk = async {
        server.answer(200, leased("i")).await;
        server.answer(200, agent("a", "u1", serving("a"))).await;
        server.answer(200, held_pod()).await;
        server.answer(403, refusal(403, "Forbidden", "User \"u\" cannot get nodes", "nodes", "k")).await;
    };
    let (done, ()) = tokio::join!(release::execute(&cluster, &arguments, &mut heard), talk);
    assert_eq!(done.expect_err("not agreed to").to_string(), "nothing was released");
    assert!(
        heard.told.err.contains("cannot get nodes") && heard.told.err.contains("Node   k: its state is not known"),
        "{}",
        heard.told.err
    );
    let (done, _) =
        tokio::join!(release::execute(&cluster, &arguments, &mut heard), server.answer(200, item("i", json!({"phase": "Ready"}))));
    assert!(done.expect_err("refused").to_string().starts_with("no agent holds item \"i\" (Ready), so it cannot be released"));
}
