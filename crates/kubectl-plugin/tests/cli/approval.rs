//! `approvals`, `approve` and `deny`: the reads, the user's name, and the written answer.

use super::*;
use kubectl_spillway::approval::{self, AnswerArguments, ListArguments};
use spillway_api::tool_approval::ToolDecision::{Approve, Deny};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn call(id: &str, state: &str, expires: &str) -> Value {
    json!({"id": id, "call": "d", "toolset": "deploy", "program": "deploy", "arguments": "{\"version\":\"v7\"}", "podUid": "u",
        "item": {"name": "release", "uid": "i", "epoch": 3},
        "requestTime": "2026-01-01T00:00:00Z", "expireTime": expires, "state": state})
}

fn asking(calls: Value, answers: Value) -> Value {
    let mut agent = agent("a", "u1", json!({"phase": "Active", "toolApprovals": calls}));
    agent["metadata"]["resourceVersion"] = json!("7");
    agent["spec"]["toolApprovals"] = answers;
    agent
}

fn waiting() -> Value {
    asking(
        json!([call("5f0e", "Waiting", "2126-01-01T00:00:00Z")]),
        json!([{"id": "0a", "toolset": "deploy", "decision": "Deny", "user": "bob"}]),
    )
}

fn reviewed(user: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}, "status": {"userInfo": {"username": user}}})
}

fn arguments(id: Option<&str>) -> AnswerArguments {
    AnswerArguments { agent: "a".into(), id: id.map(str::to_owned), reason: Some("OPS-7".into()), yes: id.is_some() }
}

#[tokio::test]
async fn an_answer_is_written_under_the_name_of_the_user_and_replaces_old_ones() {
    let (cluster, mut server) = fake();
    let mut console = HeardRequest { yes: true, ..HeardRequest::default() };
    let talk = async {
        let read = server.answer(200, waiting()).await;
        let review = server.answer(201, reviewed("alice")).await;
        let again = server.answer(200, waiting()).await;
        (read, review, again, server.answer(200, waiting()).await)
    };
    let asked = arguments(None);
    let (done, (read, review, again, patch)) = tokio::join!(approval::answer(&cluster, Approve, &asked, &mut console), talk);
    done.expect("it is written");
    assert_eq!([&read.line, &again.line], [&format!("GET {AGENTS}/a"), &format!("GET {AGENTS}/a")]);
    assert!(review.line.starts_with(&format!("POST {REVIEWS}")), "{}", review.line);
    assert_eq!(patch.line, format!("PATCH {AGENTS}/a?&fieldManager=kubectl-spillway"));
    let answer = json!({"id": "5f0e", "toolset": "deploy", "decision": "Approve", "user": "alice", "reason": "OPS-7"});
    assert_eq!(patch.body, json!({"metadata": {"resourceVersion": "7"}, "spec": {"toolApprovals": [answer]}}));
    let question = &console.asked[0];
    assert!(question.contains("deploy") && question.contains(r#"{"version":"v7"}"#) && question.contains("release"), "{question}");
    assert!(console.told.out.starts_with("agent.spillway.dev/a call 5f0e approved by alice\n"), "{}", console.told.out);
}

#[tokio::test]
async fn a_named_call_needs_no_question_and_a_refusal_of_the_server_is_shown() {
    let (cluster, mut server) = fake();
    let mut console = HeardRequest::default();
    let refused = refusal(403, "Forbidden", "agents \"a\" is forbidden: you need the right approve", "agents", "a");
    let talk = async {
        server.answer(200, waiting()).await;
        server.answer(201, reviewed("alice")).await;
        server.answer(200, waiting()).await;
        server.answer(403, refused).await
    };
    let asked = arguments(Some("5f"));
    let (done, patch) = tokio::join!(approval::answer(&cluster, Deny, &asked, &mut console), talk);
    done.expect("it is told");
    assert_eq!(patch.body["spec"]["toolApprovals"][0]["decision"], "Deny");
    assert!(
        console.asked.is_empty() && console.told.failed && console.told.err.contains("you need the right approve"),
        "{:?}",
        console.told
    );
}

#[tokio::test]
async fn a_call_that_changes_meanwhile_is_not_answered() {
    let (cluster, mut server) = fake();
    let mut console = HeardRequest::default();
    let talk = async {
        server.answer(200, waiting()).await;
        server.answer(201, reviewed("alice")).await;
        server.answer(200, asking(json!([call("5f0f", "Waiting", "2126-01-01T00:00:00Z")]), json!([]))).await;
    };
    let asked = arguments(Some("5f0e"));
    let (done, ()) = tokio::join!(approval::answer(&cluster, Approve, &asked, &mut console), talk);
    done.expect("it is told");
    assert!(console.told.failed && console.told.err.contains("waits no more for call 5f0e"), "{:?}", console.told);
    // Without a yes nothing is written.
    let asked = arguments(None);
    let (done, _) = tokio::join!(approval::answer(&cluster, Approve, &asked, &mut console), server.answer(200, waiting()));
    assert_eq!(done.expect_err("refused").to_string(), "nothing was answered");
    // A person sees the whole call before it is approved, also one that is named.
    let asked = AnswerArguments { yes: false, ..arguments(Some("5f0e")) };
    let (done, _) = tokio::join!(approval::answer(&cluster, Approve, &asked, &mut console), server.answer(200, waiting()));
    assert_eq!(done.expect_err("refused").to_string(), "nothing was answered");
    let late = asking(json!([call("5f0e", "Waiting", "2026-01-01T00:00:01Z")]), json!([]));
    let asked = arguments(Some("5f0e"));
    let (done, _) = tokio::join!(approval::answer(&cluster, Approve, &asked, &mut console), server.answer(200, late));
    assert!(done.expect_err("refused").to_string().contains("it expired at 2026-01-01T00:00:01Z"));
}

#[tokio::test]
async fn the_list_has_what_waits_in_all_namespaces() {
    let (cluster, mut server) = fake();
    let calls = json!([
        call("5f0e", "Waiting", "2126-01-01T00:00:00Z"),
        call("1", "Denied", "2126-01-01T00:00:00Z"),
        call("2", "Waiting", "2026-01-01T00:00:01Z"),
    ]);
    let now: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
    let asked = ListArguments { all_namespaces: true, output: None };
    let (report, seen) = tokio::join!(approval::list(&cluster, &asked, now), server.answer(200, list(vec![asking(calls, json!([]))])));
    assert_eq!(seen.line, "GET /apis/spillway.dev/v1alpha1/agents?");
    let told = approval::render_list(&report.expect("a list"), None, now).expect("a table").out;
    assert!(told.starts_with("NAMESPACE   AGENT   ID     TOOLSET") && told.lines().count() == 2 && told.contains("5f0e"), "{told}");
}
