//! What a call needs before it runs: artifacts that the gateway brings, and the approval of a person. Here the test is the gateway.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spillway::wire::text::hex;
use spillway::wire::tools::{TOOL_REQUEST_HEADER, TOOL_STATUS_HEADER, TOOL_VERDICT_HEADER};

use super::gateways::{CALLER, Toolset, install_provider};

/// Prints a file of the item, once a person has approved that.
const SHOW: &str = "command: /usr/bin/cat\nargs: [{name: file, type: artifact, required: true}]\nrequiresApproval: true\n";
/// Prints a file of the item.
const CAT: &str = "command: /usr/bin/cat\nargs: [{name: file, type: artifact, required: true}]\n";

fn arguments() -> Value {
    json!({"file": "notes.txt"})
}

/// The headers of a request with this id, and perhaps a verdict.
fn headers<'a>(request: &'a str, verdict: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
    let verdict = verdict.map(|verdict| (TOOL_VERDICT_HEADER, verdict));
    CALLER.iter().copied().chain([(TOOL_REQUEST_HEADER, request)]).chain(verdict).collect()
}

async fn bring(toolset: &Toolset, request: &str, content: &str) -> StatusCode {
    bring_with_hash(toolset, request, content, &hex(&Sha256::digest(content.as_bytes()))).await
}

async fn bring_with_hash(toolset: &Toolset, request: &str, content: &str, sha256: &str) -> StatusCode {
    let path = format!("/files/{request}/notes.txt");
    toolset.send(Method::PUT, &path, &[("spillway-sha256", sha256)], content.as_bytes()).await.0
}

fn encoded(id: &str, verdict: &Value) -> String {
    BASE64_STANDARD.encode(json!({"id": id, "verdict": verdict}).to_string())
}

/// The question for a person about the call of `show` in a request, after its artifact was brought.
async fn question(toolset: &Toolset, request: &str, content: &str) -> Value {
    bring(toolset, request, content).await;
    let (status, _, needs) = toolset.execute(&headers(request, None), "show", &arguments()).await;
    assert_eq!(status, StatusCode::PRECONDITION_REQUIRED, "{needs}");
    needs["approval"].clone()
}

fn starts(toolset: &Toolset) -> Vec<Value> {
    toolset.bridge.events().into_iter().filter(|event| event["event"] == "Start").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_a_private_copy_of_an_artifact_that_the_gateway_brings() {
    install_provider();
    let toolset = Toolset::with(&[("cat", CAT)]);
    let call = async |request: &str| toolset.execute(&headers(request, None), "cat", &arguments()).await;
    let (status, told, needs) = call("r1").await;
    assert_eq!((status, &needs), (StatusCode::PRECONDITION_REQUIRED, &json!({"files": ["notes.txt"]})));
    assert_eq!(told.get(TOOL_STATUS_HEADER), None, "nothing has ended");
    assert_eq!(bring(&toolset, "r1", "a note").await, StatusCode::NO_CONTENT);
    assert_eq!(call("r2").await.0, StatusCode::PRECONDITION_REQUIRED, "another request has no files");
    let (status, _, body) = call("r1").await;
    assert_eq!((status, &body["result"]["structuredContent"]["stdout"]), (StatusCode::OK, &json!("a note")), "{body}");
    assert_eq!(call("r1").await.0, StatusCode::PRECONDITION_REQUIRED, "a file is for one call");
    let recorded = &starts(&toolset)[0]["artifacts"]["notes.txt"];
    assert_eq!(recorded, &json!({"sha256": hex(&Sha256::digest(b"a note")), "bytes": 6}));
    assert_eq!(bring_with_hash(&toolset, "r3", "a note", &"0".repeat(64)).await, StatusCode::BAD_REQUEST);
    assert_eq!(toolset.send(Method::PUT, "/files/r3/notes.txt", &[], b"x").await.0, StatusCode::LENGTH_REQUIRED, "no hash");
    assert_eq!(toolset.send(Method::PUT, "/files/r3/..%2fx", &[("spillway-sha256", "0")], b"x").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(call("r3").await.0, StatusCode::PRECONDITION_REQUIRED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_runs_when_a_person_has_approved_exactly_this_one() {
    install_provider();
    let toolset = Toolset::with(&[("show", SHOW)]);
    let asked = question(&toolset, "r1", "a note").await;
    let (id, shown) = (asked["id"].as_str().expect("an id"), asked["arguments"].as_str().expect("arguments"));
    assert!(shown.contains(r#"{"artifact":"notes.txt","bytes":6,"sha256":""#), "{shown}");
    assert_eq!(asked, question(&toolset, "r1", "a note").await, "the same call has the same id");
    let approved = encoded(id, &json!({"approved": {"by": "alice@example.com \u{e9}"}}));

    // The same words, and another content: the approval is for what the person was shown.
    bring(&toolset, "r2", "other").await;
    let (status, _, _) = toolset.execute(&headers("r2", Some(&approved)), "show", &arguments()).await;
    assert_eq!(status, StatusCode::PRECONDITION_REQUIRED);
    assert!(starts(&toolset).is_empty(), "nothing ran");

    bring(&toolset, "r1", "a note").await;
    let (status, told, body) = toolset.execute(&headers("r1", Some(&approved)), "show", &arguments()).await;
    assert_eq!((status, &body["result"]["structuredContent"]["stdout"]), (StatusCode::OK, &json!("a note")), "{body}");
    assert_eq!(told.get(TOOL_STATUS_HEADER).and_then(|status| status.to_str().ok()), Some("ok"));
    assert_eq!(starts(&toolset)[0]["approvedBy"], "alice@example.com \u{e9}");
    let (status, _, _) = toolset.execute(&headers("r1", Some("rubbish")), "show", &arguments()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_runs_nothing_and_says_who_denied_it() {
    install_provider();
    let toolset = Toolset::with(&[("show", SHOW)]);
    let id = question(&toolset, "r1", "a note").await["id"].as_str().expect("an id").to_owned();
    let verdicts = [
        (json!({"denied": {"by": "bob", "reason": "not now"}}), "denied", "bob denied this call: not now", json!("bob")),
        (json!("timedOut"), "approvalTimeout", "nobody has approved", Value::Null),
    ];
    for (verdict, rule, words, denied_by) in verdicts {
        bring(&toolset, "r1", "a note").await;
        let (status, told, body) = toolset.execute(&headers("r1", Some(&encoded(&id, &verdict))), "show", &arguments()).await;
        let answer = &body["result"]["structuredContent"];
        assert_eq!((status, &answer["status"], &answer["rule"]), (StatusCode::OK, &json!("denied"), &json!(rule)), "{body}");
        assert!(answer["message"].as_str().is_some_and(|message| message.contains(words)), "{answer}");
        assert_eq!(told.get(TOOL_STATUS_HEADER).and_then(|status| status.to_str().ok()), Some("denied"));
        let refused = toolset.bridge.events().into_iter().rfind(|event| event["event"] == "Refused").expect("a record");
        assert_eq!((&refused["status"], &refused["rule"], &refused["deniedBy"]), (&json!("denied"), &json!(rule), &denied_by));
    }
    assert!(starts(&toolset).is_empty(), "nothing ran");
}
