//! Tests of items of work: the real sidecar and supervisor, real programs, a gateway over real TLS. These programs run for each
//! item; tests of other programs are in `work/`.

mod common;

#[path = "work/commands.rs"]
mod commands;
#[path = "work/long_running.rs"]
mod long_running;

use std::fs;

use common::supervised::Supervised;
use common::{BINARY, FakeGateway, Folder, Process, start_link, text, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A pod: its gateway, its sidecar, and its supervisor of a shell script.
struct Pod {
    gateway: FakeGateway,
    link: Process,
    agent: Supervised,
    folder: Folder,
}

/// In the script, `spillway` is the command and `$dir` is the test's folder.
fn pod(work: Value, script: &str) -> Pod {
    pod_with(work, script, |_| {})
}

fn pod_with(work: Value, script: &str, prepare: impl FnOnce(&FakeGateway)) -> Pod {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.work(work);
    prepare(&gateway);
    let link = start_link(&folder, &gateway);
    let dir = folder.path("").display().to_string();
    let script = format!("dir={dir}; spillway() {{ {BINARY} --ask-socket {dir}/run/link.sock \"$@\"; }}; {script}");
    let agent = Supervised::start(&folder, &[], &["sh", "-c", &script, "sh"]);
    Pod { gateway, link, agent, folder }
}

fn complete(result: &str) -> impl Fn(i64) -> (String, Value) {
    move |epoch| ("complete".to_owned(), json!({"epoch": epoch, "result": result}))
}

/// A desired state with an order about the item `number`.
fn wanted(revision: &str, number: u32, order: &str) -> Value {
    let item = json!({"held": {"uid": format!("u-{number}"), "epoch": number}, "order": order});
    json!({"revision": revision, "directive": "run", "notices": [], "item": item})
}

fn count(text: &str, word: &str) -> usize {
    text.matches(word).count()
}

#[test]
fn items_are_done_one_after_the_other_however_their_tasks_come() {
    let cases = [
        ("stdin", "read -r task; echo \"did $task\"; echo to-stderr >&2", "did task-1"),
        ("file", "cat \"$SPILLWAY_PAYLOAD_FILE\" > \"$SPILLWAY_RESULT_FILE\"; echo not this", "task-1"),
        (
            "argument",
            "echo \"$SPILLWAY_ITEM $SPILLWAY_WORK_EPOCH $SPILLWAY_QUEUE $SPILLWAY_ATTEMPT $SPILLWAY_TURN $1\"",
            "item-1 1 fixes 1 1 task-1",
        ),
    ];
    for (input, script, first) in cases {
        let pod = pod(json!({"input": input}), script);
        pod.gateway.report(|report| report["program"] == "waiting" && report["held"].is_null());
        assert_eq!(pod.agent.children(), [] as [i32; 0], "nothing runs before there is an item");
        for number in 1..=3 {
            pod.gateway.offer(number, &format!("task-{number}"));
        }
        for number in 1..=3 {
            let (verb, body) = pod.gateway.ended(number);
            let result = body["result"].as_str().expect("a result").split_whitespace().collect::<Vec<_>>().join(" ");
            let mut expected = first.replace("task-1", &format!("task-{number}")).replace("item-1", &format!("item-{number}"));
            if input == "argument" {
                expected = expected.replacen(" 1 ", &format!(" {number} "), 1);
            }
            assert_eq!((verb.as_str(), &body["epoch"]), ("complete", &json!(number)), "{input}");
            assert_eq!(result, expected, "{input}: standard error is no part of a result");
        }
        let seen = pod.gateway.calls("/report").len();
        pod.gateway.wait("/report", seen, |call| call.body["held"].is_null() && call.body["program"] == "waiting");
        assert_eq!(pod.gateway.calls("/work/u-").len(), 3, "{input}: each end is said once");
    }
}

#[test]
fn a_failure_is_told_with_its_code_and_its_last_words() {
    let mut pod = pod(json!({}), "read -r how; echo why >&2; eval \"$how\"");
    let cases = [("exit 7", "Exited", 7, "why"), ("kill -KILL $$", "Killed", 137, "why"), ("kill -TERM $$", "Killed", 143, "why")];
    for (number, (how, ..)) in (1..).zip(cases) {
        pod.gateway.offer(number, how);
    }
    for (number, (how, reason, code, message)) in (1..).zip(cases) {
        let expected = json!({"epoch": number, "reason": reason, "message": message, "exitCode": code});
        assert_eq!(pod.gateway.ended(number), ("fail".to_owned(), expected), "{how}");
    }
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143), "with nothing in hand it ends as it is told");
    pod.link.signal(Signal::TERM);
    assert_eq!(pod.link.ended().code(), Some(0));
    pod.gateway.report(|report| report["program"] == "ended");
}

#[test]
fn a_program_that_cannot_be_started_fails_its_item() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.work(json!({}));
    let _link = start_link(&folder, &gateway);
    let agent = Supervised::start(&folder, &[], &["no-such-program"]);
    gateway.offer(1, "x");
    let (verb, body) = gateway.ended(1);
    assert_eq!((verb.as_str(), &body["reason"], &body["exitCode"]), ("fail", &json!("NotStarted"), &json!(127)));
    assert!(body["message"].as_str().is_some_and(|text| text.contains("cannot start no-such-program")), "{body}");
    assert!(agent.log().contains("cannot start no-such-program"));
}

#[test]
fn it_is_prompted_until_it_says_that_it_is_done_or_had_its_turns() {
    let script = "read -r prompt; echo \"$SPILLWAY_ITEM.$SPILLWAY_TURN $prompt\"; \
                  [ $SPILLWAY_ITEM.$SPILLWAY_TURN != item-1.3 ] || spillway work done at last; true";
    let pod = pod(json!({"maxTurns": 4}), script);
    pod.gateway.offer(1, "begin");
    assert_eq!(pod.gateway.ended(1), complete("at last")(1));
    assert_eq!(pod.agent.output(), "item-1.1 begin\nitem-1.2 go on\nitem-1.3 go on\n");
    pod.gateway.offer(2, "begin");
    assert_eq!(pod.gateway.ended(2), complete("item-2.4 go on")(2));
}

#[test]
fn what_the_program_says_of_its_item_counts() {
    let script = "read -r what; spillway progress working --percent 40 --checkpoint branch-1; spillway work $what; exit 9";
    let pod = pod(json!({"maxTurns": 3}), script);
    let cases = [
        ("done all is well", "complete", json!({"epoch": 1, "result": "all is well"})),
        (
            "fail --reason NoSense of no use --exit-code 5",
            "fail",
            json!({"epoch": 2, "reason": "NoSense", "message": "of no use", "exitCode": 5}),
        ),
        ("release not now", "release", json!({"epoch": 3, "reason": "Released", "message": "not now"})),
    ];
    for (number, (what, verb, body)) in (1..).zip(cases) {
        pod.gateway.offer(number, what);
        assert_eq!(pod.gateway.ended(number), (verb.to_owned(), body), "{what}");
        let progress = pod.gateway.wait(&format!("/work/u-{number}/progress"), 0, |call| call.status == 200).body;
        assert_eq!(progress, json!({"epoch": number, "percent": 40, "message": "working", "checkpointRef": "branch-1"}));
    }
    let refused = common::spillway(&pod.folder, &["work", "done"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("not_held"), "{}", text(&refused.stderr));
    let refused = common::spillway(&pod.folder, &["work", "next"]);
    assert!(text(&refused.stderr).contains("not_allowed"), "{}", text(&refused.stderr));
}

#[test]
fn a_sidecar_that_is_killed_loses_no_item_and_runs_none_twice() {
    let script = "read -r task; echo \"began $task\"; while [ ! -e $dir/go-on ]; do sleep 0.01; done; echo \"did $task\"";
    let mut pod = pod(json!({}), script);
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("began one");
    for _ in 0..2 {
        pod.link.signal(Signal::KILL);
        pod.link.ended();
        let seen = pod.gateway.calls("/report").len();
        pod.link = start_link(&pod.folder, &pod.gateway);
        let report = pod.gateway.wait("/report", seen, |call| call.status == 200).body;
        assert_eq!((&report["held"]["uid"], &report["program"]), (&json!("u-1"), &json!("running")));
    }
    // The item ends while the sidecar is down.
    pod.link.signal(Signal::KILL);
    pod.link.ended();
    fs::write(pod.folder.path("go-on"), "").expect("written");
    pod.agent.wait_output("did one");
    pod.link = start_link(&pod.folder, &pod.gateway);
    assert_eq!(pod.gateway.ended(1), complete("began one\ndid one")(1));
    pod.gateway.offer(2, "two");
    assert_eq!(pod.gateway.ended(2), complete("began two\ndid two")(2));
    assert_eq!(count(&pod.agent.output(), "began one"), 1);
    assert_eq!(pod.gateway.calls("/work/u-1").len(), 1);
}

#[test]
fn an_end_is_kept_while_the_gateway_is_away_and_over_a_restart() {
    let mut pod = pod(json!({}), "read -r task; echo \"began $task\"; while [ ! -e $dir/go-on ]; do sleep 0.01; done");
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("began one");
    pod.gateway.away(true);
    fs::write(pod.folder.path("go-on"), "").expect("written");
    until("the end is in the journal", || {
        let journal = fs::read_to_string(pod.folder.path("journal/work.json")).unwrap_or_default();
        journal.contains("\"finish\":{\"complete\"").then_some(())
    });
    pod.link.signal(Signal::KILL);
    pod.link.ended();
    pod.link = start_link(&pod.folder, &pod.gateway);
    pod.gateway.away(false);
    assert_eq!(pod.gateway.ended(1), complete("began one")(1));
}

#[test]
fn an_item_that_waits_is_kept_with_a_checkpoint_and_its_program_run_again_when_it_goes_on() {
    let script = r#"read -r task; cd "$SPILLWAY_DATA_DIR"; if [ -e half ]; then echo "went on from $(cat half) with $task"; else echo "$task" > half; exit 7; fi"#;
    let cases = [
        (json!(["sh", "-c", "cp \"$SPILLWAY_DATA_DIR/half\" \"$SPILLWAY_DATA_DIR/$SPILLWAY_ITEM\""]), "taken", ""),
        (json!(["sh", "-c", "exit 3"]), "failed", "ended with exit code 3"),
        (json!(["no-such-hook"]), "failed", "cannot be started"),
        (json!([]), "noHook", ""),
    ];
    for (hook, state, message) in cases {
        let pod = pod_with(json!({}), script, |gateway| {
            gateway.set("checkpointHook", hook.clone());
            // The governor has not decided about the item yet.
            gateway.refuse("/u-1/fail", Some((503, "governor_away")));
        });
        pod.gateway.offer(1, "task-1");
        pod.gateway.wait("/u-1/fail", 0, |call| call.status == 503);
        let item = json!({"held": {"uid": "u-1", "epoch": 1}, "order": {"pause": 4}});
        pod.gateway.want(json!({"revision": "p1", "directive": "pause", "notices": [], "item": item}));
        let report = pod.gateway.report(|report| report["checkpoint"]["state"] == state).body;
        assert_eq!(
            (&report["checkpoint"]["pause"], &report["checkpoint"]["held"], &report["held"]["uid"]),
            (&json!(4), &item["held"], &json!("u-1"))
        );
        let said = report["checkpoint"]["message"].as_str().unwrap_or_default();
        assert!(said.contains(message), "{said}");
        let written = fs::read_to_string(pod.folder.path("data/item-1")).ok();
        assert_eq!(written.as_deref(), (state == "taken").then_some("task-1\n"));
        // From now on a failure would be accepted, but none is sent.
        pod.gateway.refuse("/u-1/fail", None);
        pod.gateway.want(json!({"revision": "p2", "directive": "run", "notices": []}));
        let (verb, body) = pod.gateway.ended(1);
        assert_eq!((verb.as_str(), body["result"].as_str().map(str::trim)), ("complete", Some("went on from task-1 with go on")), "{hook}");
    }
}

#[test]
fn a_cancelled_item_is_given_back_and_the_next_one_is_run() {
    let pod = pod(json!({"maxTurns": 3}), "read -r how; echo \"began $how\"; eval \"$how\"; echo ended");
    pod.gateway.offer(1, "sleep 1000");
    pod.agent.wait_output("began sleep");
    pod.gateway.want(wanted("c1", 1, "cancel"));
    let (verb, body) = pod.gateway.ended(1);
    assert_eq!((verb.as_str(), &body["reason"]), ("release", &json!("Cancelled")));
    pod.gateway.offer(2, "spillway work done in time; sleep 1000");
    pod.agent.wait_output("began spillway");
    until("it said so", || fs::read_to_string(pod.folder.path("journal/work.json")).ok()?.contains("in time\"").then_some(()));
    pod.gateway.want(wanted("c2", 2, "cancel"));
    assert_eq!(pod.gateway.ended(2), complete("in time")(2));
}

#[test]
fn of_a_lost_item_nothing_is_told() {
    let pod = pod(json!({}), "trap '' TERM; read -r how; echo \"began $how\"; eval \"$how\"; echo did it");
    pod.gateway.offer(1, "while :; do sleep 0.01; done");
    pod.agent.wait_output("began while");
    pod.gateway.take_away();
    pod.gateway.want(wanted("l1", 1, "lost"));
    pod.gateway.offer(2, "true");
    assert_eq!(pod.gateway.ended(2).0, "complete");
    assert_eq!(pod.gateway.calls("/work/u-1").len(), 0);
    let log = fs::read_to_string(pod.folder.path("link.log")).expect("the log");
    assert!(log.contains("the lease of item-1 is lost"), "{log}");
}

#[test]
fn an_end_that_is_refused_for_good_is_dropped_and_the_next_item_is_run() {
    let pod = pod(json!({}), "cat; sleep 0.2");
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("one");
    pod.gateway.take_away();
    pod.gateway.offer(2, "two");
    assert_eq!(pod.gateway.ended(2), complete("two")(2));
    let calls = pod.gateway.calls("/work/u-1/complete");
    assert_eq!((calls.len(), calls[0].status), (1, 409));
}

#[test]
fn what_is_in_hand_when_the_pod_ends_is_given_back() {
    let mut pod = pod(json!({"maxTurns": 3}), "read -r task; echo \"began $task\"; exec sleep 1000");
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("began one");
    pod.gateway.refuse("/work/u-1", Some((503, "governor_away")));
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143));
    pod.gateway.wait("/work/u-1/release", 0, |call| call.status == 503);
    // As with a kubelet, the sidecar ends after the program.
    pod.link.signal(Signal::TERM);
    pod.gateway.refuse("/work/u-1", None);
    let (verb, body) = pod.gateway.ended(1);
    assert_eq!((verb.as_str(), &body["reason"], &body["epoch"]), ("release", &json!("Drained"), &json!(1)));
    assert_eq!(pod.link.ended().code(), Some(0));
    pod.gateway.report(|report| report["program"] == "ended");
}

#[test]
fn what_is_done_within_the_grace_is_done() {
    let script =
        "trap 'echo finished > $SPILLWAY_RESULT_FILE; exit 0' TERM; read -r task; echo \"began $task\"; while :; do sleep 0.01; done";
    let mut pod = pod(json!({}), script);
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("began one");
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(0));
    pod.link.signal(Signal::TERM);
    assert_eq!(pod.gateway.ended(1), complete("finished\n")(1));
}

#[test]
fn an_agent_whose_items_are_done_says_goodbye() {
    let pod = pod(json!({"maxItems": 2}), "cat");
    (1..=3).for_each(|number| pod.gateway.offer(number, "x"));
    let goodbye = pod.gateway.wait("/goodbye", 0, |call| call.status == 200);
    assert_eq!(goodbye.body, json!({"reason": "it has worked on as many items as agent.maxItems allows"}));
    assert_eq!((pod.gateway.ended(1).0, pod.gateway.ended(2).0), ("complete".to_owned(), "complete".to_owned()));
    // Two more reports take two seconds.
    let seen = pod.gateway.calls("/report").len();
    pod.gateway.wait("/report", seen + 1, |_| true);
    assert!(pod.gateway.calls("/work/claim").iter().filter(|call| call.status == 200).count() == 2, "it claims no more");
    assert_eq!(pod.gateway.calls("/goodbye").len(), 1);
}

#[test]
fn a_paused_agent_finishes_what_it_holds_and_takes_nothing_new() {
    let pod = pod(json!({}), "read -r task; echo \"began $task\"; while [ ! -e $dir/go-on ]; do sleep 0.01; done");
    pod.gateway.offer(1, "one");
    pod.agent.wait_output("began one");
    pod.gateway.want(json!({"revision": "p", "directive": "pause", "notices": []}));
    until("it knows", || {
        pod.folder
            .path("journal/settings.json")
            .exists()
            .then(|| fs::read_to_string(pod.folder.path("journal/settings.json")).ok()?.contains("pause").then_some(()))
            .flatten()
    });
    pod.gateway.offer(2, "two");
    fs::write(pod.folder.path("go-on"), "").expect("written");
    assert_eq!(pod.gateway.ended(1), complete("began one")(1));
    let seen = pod.gateway.calls("/report").len();
    pod.gateway.wait("/report", seen + 1, |_| true);
    assert_eq!(pod.gateway.calls("/work/claim").len(), 1);
    pod.gateway.want(json!({"revision": "r", "directive": "run", "notices": []}));
    assert_eq!(pod.gateway.ended(2), complete("began two")(2));
}

#[test]
fn what_an_item_leaves_behind_is_gone_before_the_next_one_begins() {
    let script = "read -r task; set -- /proc/[0-9]*; echo $#; \
                  if [ $task = one ]; then setsid sh -c 'trap \"\" TERM; echo left behind; while :; do sleep 0.01; done' & \
                  while [ ! -e $dir/go-on ]; do sleep 0.01; done; fi";
    let pod = pod(json!({}), script);
    pod.gateway.offer(1, "one");
    pod.gateway.offer(2, "two");
    pod.agent.wait_output("left behind");
    fs::write(pod.folder.path("go-on"), "").expect("written");
    pod.gateway.ended(2);
    let output = pod.agent.output();
    let counts: Vec<&str> = output.lines().filter(|line| *line != "left behind").collect();
    assert_eq!(counts.len(), 2, "{output}");
    assert_eq!(counts[0], counts[1], "both have the container for themselves");
}

#[test]
fn a_claim_whose_answer_is_lost_is_made_again() {
    let pod = pod_with(json!({}), "read -r task; echo \"did $task\"", |gateway| {
        gateway.lose_claim();
        gateway.offer(1, "one");
    });
    assert_eq!(pod.gateway.ended(1), complete("did one")(1));
    assert_eq!(pod.agent.output(), "did one\n");
}

#[test]
fn a_program_that_does_not_read_its_task_holds_nobody_up() {
    let pod = pod(json!({}), "echo done");
    pod.gateway.offer(1, &"x".repeat(200_000));
    assert_eq!(pod.gateway.ended(1), complete("done")(1));
}
