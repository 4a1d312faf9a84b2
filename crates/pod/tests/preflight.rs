//! What has to succeed before: the real sidecar and the real supervisor, real commands, a gateway over real TLS.

mod common;

use std::fs;

use common::supervised::Supervised;
use common::{BINARY, FakeGateway, Folder, Process, start_link, text};
use rustix::process::Signal;
use serde_json::{Value, json};

struct Pod {
    gateway: FakeGateway,
    _link: Process,
    agent: Supervised,
    folder: Folder,
}

/// A pod whose preflight is the shell script `check`, and whose program is `script`. In both, `$dir` is the test's folder.
fn pod(work: Option<Value>, check: &str, script: &str) -> Pod {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    if let Some(work) = work {
        gateway.work(work);
    }
    let dir = format!("dir={}; spillway() {{ {BINARY} --ask-socket $dir/run/link.sock \"$@\"; }};", folder.path("").display());
    gateway.set("preflightCommand", json!(["sh", "-c", format!("{dir} {check}")]));
    let link = start_link(&folder, &gateway);
    let agent = Supervised::start(&folder, &[], &["sh", "-c", &format!("{dir} {script}"), "sh"]);
    Pod { gateway, _link: link, agent, folder }
}

fn state(report: &Value) -> &Value {
    &report["preflight"]["state"]
}

#[test]
fn an_item_comes_after_the_preflight_passed_and_not_before() {
    // As the program: its user, its variables, nothing to read, no terminal, a process group of its own.
    let check = "read -r line && exit 4; [ -t 0 ] || [ -t 1 ] && exit 5; [ -n \"$SPILLWAY_DATA_DIR\" ] || exit 6; \
                 [ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] || exit 7; sleep 300 & while [ ! -e $dir/go-on ]; do sleep 0.02; done; echo checked";
    let pod = pod(Some(json!({})), check, "read -r task; cat /proc/[0-9]*/comm | grep -c sleep; echo \"did $task\"");
    pod.gateway.offer(1, "one");
    pod.gateway.report(|report| state(report) == "pending" && report["program"] == "waiting" && report["held"].is_null());
    assert_eq!(pod.gateway.calls("/work/claim").len(), 0);
    fs::write(pod.folder.path("go-on"), "").expect("written");
    let (verb, body) = pod.gateway.ended(1);
    assert_eq!((verb.as_str(), body["result"].as_str()), ("complete", Some("0\ndid one")), "and nothing of the preflight is left");
    pod.gateway.report(|report| state(report) == "passed");
    assert!(pod.agent.output().starts_with("checked\n"), "{}", pod.agent.output());
}

#[test]
fn what_fails_is_told_with_its_last_words_and_run_again() {
    let check =
        "echo \"run $(cat $dir/runs 2>/dev/null | wc -l)\"; echo >> $dir/runs; [ -e $dir/mended ] || { echo no login >&2; exit 3; }";
    let pod = pod(Some(json!({"run": "longRunning"})), check, "spillway work next --wait 20; spillway work done");
    pod.gateway.offer(1, "one");
    let report = pod.gateway.report(|report| state(report) == "failed").body;
    let message = report["preflight"]["message"].as_str().expect("words");
    assert!(message.starts_with("the preflight command ended with exit code 3: ") && message.contains("no login"), "{message}");
    // Whoever asks all the same is told so.
    let asked = common::spillway(&pod.folder, &["work", "next"]);
    assert_eq!(asked.status.code(), Some(3));
    let words = text(&asked.stderr);
    assert!(words.contains("preflight_not_passed") && words.contains("no login"), "{words}");
    assert_eq!((pod.gateway.calls("/work/claim").len(), pod.agent.children()), (0, Vec::new()), "nor is its program started");
    fs::write(pod.folder.path("mended"), "").expect("written");
    assert_eq!(pod.gateway.ended(1).0, "complete");
    assert_eq!(fs::read_to_string(pod.folder.path("runs")).expect("a list").lines().count(), 2);
}

#[test]
fn a_program_without_queues_waits_for_it_too_and_an_end_does_not() {
    let mut pod = pod(None, "echo began; while [ ! -e $dir/go-on ]; do sleep 0.02; done", "echo runs; sleep 300");
    pod.gateway.report(|report| state(report) == "pending" && report["program"] == "waiting");
    pod.agent.wait_output("began");
    assert!(!pod.agent.output().contains("runs"));
    fs::write(pod.folder.path("go-on"), "").expect("written");
    pod.agent.wait_output("runs");
    pod.gateway.report(|report| state(report) == "passed" && report["program"] == "running");
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143));

    let mut pod = self::pod(None, "echo began; trap '' TERM; sleep 300", "echo runs");
    pod.agent.wait_output("began");
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143), "at once, and not when the preflight has ended");
    assert!(!pod.agent.output().contains("runs"));
}
