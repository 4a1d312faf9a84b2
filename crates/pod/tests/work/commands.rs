//! Tests of commands that need no item: work is submitted, and tokens are asked for. They start no supervisor.

use super::*;

#[test]
fn more_work_is_submitted_under_one_key() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.refuse("/agent/v1/work", Some((503, "governor_away")));
    let _link = start_link(&folder, &gateway);
    common::until_registered(&folder);
    let words =
        ["submit", "--queue", "fixes", "--type", "fix", "--priority", "-3", "--after", "a", "--after", "b", "--dedup-key", "k", "do it"];
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| common::spillway(&folder, &words));
        gateway.wait("/agent/v1/work", 1, |call| call.status == 503);
        gateway.refuse("/agent/v1/work", None);
        asking.join().expect("asked")
    });
    assert_eq!((asked.status.code(), text(&asked.stdout).as_str()), (Some(0), "item-9\n"), "{}", text(&asked.stderr));
    let calls = gateway.calls("/agent/v1/work");
    let body = &calls[0].body;
    assert_eq!((&body["queue"], &body["type"], &body["priority"]), (&json!("fixes"), &json!("fix"), &json!(-3)));
    assert_eq!((&body["after"], &body["dedupKey"], &body["payload"]), (&json!(["a", "b"]), &json!("k"), &json!("do it")));
    assert!(calls[0].key.is_some() && calls.iter().all(|call| call.key == calls[0].key));
    gateway.refuse("/agent/v1/work", Some((409, "duplicate")));
    let refused = common::spillway(&folder, &["submit", "--type", "fix", "--key", "mine"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("duplicate"), "{}", text(&refused.stderr));
    let finish = common::spillway(&folder, &["work", "done"]);
    assert!(text(&finish.stderr).contains("no_queues"), "{}", text(&finish.stderr));
}

#[test]
fn what_is_left_is_printed_and_more_is_asked_for_until_somebody_takes_it() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    common::until_registered(&folder);
    let left = common::spillway(&folder, &["budget"]);
    let line = "the agent's lifetime, lifetime (Lifetime): 7000 of 10000 left, 2500 used, 500 held\n";
    assert_eq!((left.status.code(), text(&left.stdout).as_str()), (Some(0), line), "{}", text(&left.stderr));
    let json = common::spillway(&folder, &["budget", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&json["limits"][0]["left"], &json["limits"][0]["enforced"]), (&json!(7000), &json!(true)));
    gateway.refuse("/budget/request", Some((503, "governor_away")));
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| common::spillway(&folder, &["budget", "ask", "50k", "the", "tests"]));
        gateway.wait("/budget/request", 0, |call| call.status == 503);
        gateway.refuse("/budget/request", None);
        asking.join().expect("asked")
    });
    assert_eq!((asked.status.code(), text(&asked.stdout).as_str()), (Some(0), ""), "{}", text(&asked.stderr));
    let call = gateway.wait("/budget/request", 0, |call| call.status == 200);
    assert_eq!(call.body, json!({"tokens": 50_000, "reason": "the tests"}));
    let back = common::spillway(&folder, &["budget", "withdraw"]);
    assert_eq!(back.status.code(), Some(0), "{}", text(&back.stderr));
    assert_eq!(gateway.calls("/budget/request").last().expect("a call").body["tokens"], 0);
    let before = gateway.calls("/budget").len();
    for wrong in [&["budget", "ask", "0", "x"][..], &["budget", "ask", "50k"], &["budget", "ask", "many", "x"], &["budget", "give", "5"]] {
        assert_eq!(common::spillway(&folder, wrong).status.code(), Some(2), "{wrong:?}");
    }
    let long = "x".repeat(257);
    let refused = common::spillway(&folder, &["budget", "ask", "1", &long]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("reason"), "{}", text(&refused.stderr));
    assert_eq!(gateway.calls("/budget").len(), before, "nothing of that left the pod");
}
