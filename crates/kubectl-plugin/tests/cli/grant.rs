//! `grant`: the reads, the created Grant, and the wait for the operator.

use super::*;
use kubectl_spillway::grant::{self, Arguments, Waited};
use kubectl_spillway::input::Grantable;

const GRANTS: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/grants";
const BUDGETS: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/budgets";

fn arguments(target: Grantable) -> Arguments {
    Arguments { target, tokens: 5000, limit: None, lasting: None, reason: None, name: None, dry_run: false }
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn budget(kind: &str, limits: &[&str]) -> Value {
    let limits: Vec<Value> = limits.iter().map(|name| json!({"name": name, "tokens": 1, "window": "Hour"})).collect();
    let metadata = if kind == "Budget" { json!({"name": "team", "namespace": "n"}) } else { json!({"name": "team"}) };
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {"namespaceSelector": {}, "tokens": {"limits": limits}}})
}

fn made(status: Value) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Grant", "metadata": {"name": "team-abcde", "namespace": "n", "uid": "u"},
        "spec": {"targetRef": {"kind": "Budget", "name": "team"}, "limitName": "hourly", "tokens": 5000}, "status": status})
}

#[tokio::test]
async fn a_grant_is_made_for_the_only_limit_of_a_budget() {
    let (cluster, mut server) = fake();
    let asked = Arguments {
        lasting: Some(Duration::from_secs(3600)),
        reason: Some("release".into()),
        ..arguments(Grantable::Budget("team".into()))
    };
    let talk = async { (server.answer(200, budget("Budget", &["hourly"])).await, server.answer(201, made(Value::Null)).await) };
    let (report, (read, sent)) = tokio::join!(grant::run(&cluster, &asked, now()), talk);
    assert_eq!((read.line, sent.line), (format!("GET {BUDGETS}/team"), format!("POST {GRANTS}?&fieldManager=kubectl-spillway")));
    assert_eq!(
        sent.body["metadata"],
        json!({"generateName": "team-", "namespace": "n", "annotations": {"spillway.dev/reason": "release"}})
    );
    assert_eq!(
        sent.body["spec"],
        json!({"targetRef": {"kind": "Budget", "name": "team"}, "limitName": "hourly", "tokens": 5000, "untilTime": "2026-01-01T01:00:00Z"})
    );
    let told = grant::render(&report.expect("a report"));
    assert_eq!(told.out, "grant.spillway.dev/team-abcde created: 5000 tokens for budget/team, limit hourly, until 2026-01-01T01:00:00Z\n");
}

#[tokio::test]
async fn what_could_only_lie_there_is_not_made() {
    let (cluster, mut server) = fake();
    let asked = arguments(Grantable::Budget("team".into()));
    let (report, _) = tokio::join!(grant::run(&cluster, &asked, now()), server.answer(200, budget("Budget", &["hourly", "daily"])));
    assert!(report.expect_err("refused").to_string().ends_with("name one with --limit (daily, hourly)"));
    let asked = arguments(Grantable::Agent("a".into()));
    let ended = agent("a", "u", json!({"phase": "Stopped"}));
    let (report, _) = tokio::join!(grant::run(&cluster, &asked, now()), server.answer(200, ended));
    assert!(report.expect_err("refused").to_string().contains("has ended"));
    let asked = Arguments { limit: Some("x".into()), ..asked };
    assert!(grant::run(&cluster, &asked, now()).await.expect_err("refused").to_string().contains("leave --limit out"));
}

#[tokio::test]
async fn an_agent_has_no_limit_to_name_and_a_cluster_budget_no_namespace() {
    let (cluster, mut server) = fake();
    let asked = Arguments { name: Some("g".into()), dry_run: true, ..arguments(Grantable::Agent("a".into())) };
    let talk = async { (server.answer(200, agent("a", "u", serving("a"))).await, server.answer(201, made(Value::Null)).await) };
    let (report, (_, sent)) = tokio::join!(grant::run(&cluster, &asked, now()), talk);
    assert_eq!(sent.line, format!("POST {GRANTS}?&dryRun=All&fieldManager=kubectl-spillway"));
    assert_eq!(sent.body["spec"], json!({"targetRef": {"kind": "Agent", "name": "a"}, "tokens": 5000}));
    assert_eq!(sent.body["metadata"]["name"], "g");
    assert!(grant::render(&report.expect("a report")).out.ends_with("for agent/a, for its life (server dry run)\n"));

    let asked = arguments(Grantable::ClusterBudget("team".into()));
    let talk = async { (server.answer(200, budget("ClusterBudget", &["rate"])).await, server.answer(201, made(Value::Null)).await) };
    let (report, (read, sent)) = tokio::join!(grant::run(&cluster, &asked, now()), talk);
    assert!(report.is_ok());
    assert_eq!(read.line, "GET /apis/spillway.dev/v1alpha1/clusterbudgets/team");
    assert_eq!((&sent.body["spec"]["targetRef"]["kind"], &sent.body["spec"]["limitName"]), (&json!("ClusterBudget"), &json!("rate")));
    let (report, _) =
        tokio::join!(grant::run(&cluster, &asked, now()), server.answer(404, refusal(404, "NotFound", "m", "clusterbudgets", "team")));
    assert!(report.expect_err("refused").to_string().starts_with("ClusterBudget \"team\" not found"));
}

#[tokio::test(start_paused = true)]
async fn a_moment_is_waited_for_the_operators_word() {
    let (cluster, mut server) = fake();
    let report = grant::Report {
        namespace: "n".into(),
        name: "team-abcde".into(),
        uid: "u".into(),
        target: "budget/team".into(),
        limit: Some("hourly".into()),
        tokens: 5,
        until: None,
        dry_run: false,
        notes: Vec::new(),
    };
    let applied = |status: &str| made(json!({"conditions": [condition("Applied", status, 1)]}));
    let talk = async { (server.answer(200, made(Value::Null)).await, server.answer(200, applied("True")).await) };
    let (waited, _) = tokio::join!(grant::wait(&cluster, &report), talk);
    assert_eq!(waited.expect("an answer"), Waited::Applied);
    let (waited, _) = tokio::join!(grant::wait(&cluster, &report), server.answer(200, applied("False")));
    assert_eq!(waited.expect("an answer"), Waited::Refused("R: m".into()));
    let silence = async { while server.answer(200, made(Value::Null)).await.body.is_null() {} };
    let waited = tokio::select! {
        waited = grant::wait(&cluster, &report) => waited,
        () = silence => panic!("a request has a body"),
    };
    assert_eq!(waited.expect("an answer"), Waited::Unknown("the operator has not observed it yet".into()));
}
