//! Tests of programs that run all the time and ask for their items themselves.

use super::*;

#[test]
fn a_program_that_runs_all_the_time_asks_for_its_items() {
    let script = "echo up; while :; do if task=$(spillway work next --wait 3); then echo \"got $task\"; \
                  case $task in bad) spillway work fail --reason Bad;; *) spillway work done \"did $task\";; esac; \
                  else echo \"none $?\"; fi; [ ! -e $dir/stop ] || exit 0; done";
    let pod = pod(json!({"run": "longRunning"}), script);
    pod.agent.wait_output("up");
    pod.gateway.report(|report| report["program"] == "running" && report["held"].is_null());
    for (number, task) in [(1, "one"), (2, "bad"), (3, "three")] {
        pod.gateway.offer(number, task);
    }
    assert_eq!(pod.gateway.ended(1), complete("did one")(1));
    assert_eq!(pod.gateway.ended(2), ("fail".to_owned(), json!({"epoch": 2, "reason": "Bad", "message": "", "exitCode": null})));
    assert_eq!(pod.gateway.ended(3), complete("did three")(3));
    pod.agent.wait_output("none 3");
    assert_eq!(pod.agent.children().len(), 1, "it was started once");
}

#[test]
fn an_item_in_hand_is_given_again_and_its_orders_are_notices() {
    let pod = pod(json!({"run": "longRunning"}), "echo up; exec sleep 1000");
    pod.agent.wait_output("up");
    let command = |words: &[&str]| common::spillway(&pod.folder, words);
    let none = command(&["work", "next", "--wait", "0"]);
    assert_eq!((none.status.code(), text(&none.stderr).as_str()), (Some(3), "there is no item\n"));
    pod.gateway.offer(1, "the task\nin two lines");
    for _ in 0..2 {
        assert_eq!(text(&command(&["work", "next"]).stdout), "the task\nin two lines");
    }
    let whole: Value = serde_json::from_slice(&command(&["work", "next", "--json"]).stdout).expect("JSON");
    assert_eq!((&whole["name"], &whole["held"]["epoch"]), (&json!("item-1"), &json!(1)));
    pod.gateway.report(|report| report["held"]["uid"] == "u-1");
    pod.gateway.want(wanted("c1", 1, "cancel"));
    let notices = |word: &str| until(word, || text(&command(&["notices"]).stdout).contains(word).then_some(()));
    notices("ItemCancelled: item-1 was cancelled");
    assert_eq!(command(&["work", "release", "as told"]).status.code(), Some(0));
    assert_eq!(pod.gateway.ended(1).1["message"], "as told");

    pod.gateway.offer(2, "second");
    assert_eq!(text(&command(&["work", "next"]).stdout), "second");
    pod.gateway.take_away();
    pod.gateway.want(wanted("l2", 2, "lost"));
    notices("ItemLost: item-2 is not yours any more");
    let refused = command(&["work", "done"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("stale_lease"), "{}", text(&refused.stderr));
    assert_eq!(pod.gateway.calls("/work/u-2").len(), 0);
    pod.gateway.offer(3, "third");
    assert_eq!(text(&command(&["work", "next"]).stdout), "third");
    let seen = pod.gateway.report(|report| report["held"]["uid"] == "u-3");
    assert_eq!(seen.body["noticesSeen"], 0, "the pod's own notices are no concern of the controller");
}

#[test]
fn the_end_of_a_program_that_runs_all_the_time_ends_its_item() {
    for (how, verb, reason) in [("exit", "fail", "Exited"), ("drain", "release", "Drained")] {
        let script = "spillway work next; while [ ! -e $dir/go-on ]; do sleep 0.01; done; exit 5";
        let mut pod = pod_with(json!({"run": "longRunning"}), script, |gateway| gateway.offer(1, "got it"));
        pod.agent.wait_output("got it");
        pod.gateway.report(|report| report["held"]["uid"] == "u-1");
        match how {
            "exit" => fs::write(pod.folder.path("go-on"), "").expect("written"),
            _ => pod.agent.signal(Signal::TERM),
        }
        pod.agent.ended();
        pod.link.signal(Signal::TERM);
        let (said, body) = pod.gateway.ended(1);
        assert_eq!((said.as_str(), &body["reason"]), (verb, &json!(reason)));
        assert_eq!(pod.link.ended().code(), Some(0));
    }
}
