//! Permits of model calls: each is given back once, whichever gateway the call came through.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::Circuits;
use crate::api::Breaker;
use crate::cluster::ObjectKey;
use crate::telemetry::Metrics;
use crate::wire::meter::{Begin, CallEnd, FaultCause, Outcome};
use crate::wire::{Code, Refusal};

const ORIGIN: &str = "https://api.example.com";
const WITHIN: Duration = Duration::from_secs(720);

fn name(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

fn end(outcome: Outcome) -> CallEnd {
    CallEnd { outcome: Some(outcome), timed_out: false }
}

const FAILED: Outcome = Outcome::Failed { why: FaultCause::Status(529), retry_after: None };

fn leader(breakers: Vec<Breaker>) -> Circuits {
    let circuits = Circuits::new(1, Metrics::default());
    circuits.set_objects(breakers.into_iter().map(Arc::new).collect(), HashMap::from([(name("p"), 1000)]));
    circuits
}

/// A hold of a session.
async fn hold(circuits: &Circuits, session: &str, id: u64) -> Result<(), Refusal> {
    let asked = circuits.may_call(&name("p"), ORIGIN, "large", WITHIN).await?;
    asked.keep(session, id, "pod", &name("a"));
    Ok(())
}

/// Opens the circuit with five failed calls of two gateways.
async fn open(circuits: &Circuits) {
    for id in 1..=5 {
        let session = if id % 2 == 0 { "g" } else { "h" };
        hold(circuits, session, id).await.expect("it is closed");
        assert_eq!(circuits.end_call(session, id, &end(FAILED)).map(|out| out.pod).as_deref(), Some("pod"));
        assert!(circuits.end_call(session, id, &end(FAILED)).is_none(), "told again it is nobody's");
    }
}

async fn refused(circuits: &Circuits) -> Refusal {
    hold(circuits, "g", 1000).await.expect_err("it is open")
}

#[tokio::test]
async fn what_fails_at_one_gateway_is_refused_at_all_in_words_that_say_where_to_look() {
    let circuits = leader(Vec::new());
    open(&circuits).await;
    let refusal = refused(&circuits).await;
    assert_eq!(refusal.code, Code::CircuitOpen);
    assert!((1..=66).contains(&refusal.retry_after_seconds.expect("it passes")));
    for words in [
        "model circuit breaker open for api.example.com/large",
        "no Breaker applies to AgentPool/p",
        "the provider answered with status 529",
    ] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
    let other = circuits.may_call(&name("p"), ORIGIN, "small", WITHIN).await;
    assert!(other.is_ok(), "another model is not guarded by it");
}

#[tokio::test]
async fn one_probe_tells_for_all_and_what_becomes_of_it_is_always_known() {
    let circuits = leader(Vec::new());
    open(&circuits).await;
    let half_open = || circuits.pass(70_000);
    // The hold was refused: the permit is given back unused.
    half_open();
    drop(circuits.may_call(&name("p"), ORIGIN, "large", WITHIN).await.expect("a probe"));
    hold(&circuits, "g", 10).await.expect("the place is free again");
    assert!(circuits.has_permit("g", 10));
    let soon = refused(&circuits).await.retry_after_seconds;
    assert!(soon.is_some_and(|seconds| seconds <= 15), "the probe may be over in a moment: {soon:?}");
    // The gateway begins anew and does not report the call: it was never sent.
    circuits.session_begins(&Begin { session: "g".into(), next_hold: 11, ..Begin::default() });
    hold(&circuits, "g", 11).await.expect("the place is free again");
    // The gateway dies.
    circuits.session_died("g");
    refused(&circuits).await;
    half_open();
    // The first token is late: the answer that follows comes too late.
    hold(&circuits, "h", 12).await.expect("a probe");
    circuits.record_late_first_token("h", 12);
    assert!(refused(&circuits).await.message.contains("first token was late"));
    assert!(circuits.end_call("h", 12, &end(Outcome::Worked)).is_some());
    refused(&circuits).await;
    half_open();
    hold(&circuits, "h", 13).await.expect("a probe");
    circuits.end_call("h", 13, &end(Outcome::Worked));
    hold(&circuits, "h", 14).await.expect("it is closed");
    hold(&circuits, "g", 15).await.expect("for all");
}

#[tokio::test]
async fn a_probe_that_nobody_tells_of_does_not_wedge_it() {
    let circuits = leader(Vec::new());
    open(&circuits).await;
    circuits.pass(70_000);
    hold(&circuits, "g", 10).await.expect("a probe");
    circuits.pass(720_000);
    circuits.tick();
    refused(&circuits).await;
    circuits.pass(70_000);
    hold(&circuits, "g", 11).await.expect("another probe");
}

#[tokio::test]
async fn models_that_nobody_calls_any_more_are_forgotten() {
    let breaker: Breaker = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker",
        "metadata": {"name": "b", "namespace": "n", "uid": "b", "resourceVersion": "1"},
        "spec": {"models": {"firstTokenSeconds": 7}}}))
    .expect("a Breaker");
    let circuits = leader(vec![breaker.clone()]);
    assert_eq!((circuits.first_token(&name("p")), leader(Vec::new()).first_token(&name("p"))), (7, 60));
    for id in 1..=50 {
        let asked = circuits.may_call(&name("p"), ORIGIN, &format!("made-up-{id}"), WITHIN).await.expect("it is closed");
        asked.keep("g", id, "pod", &name("a"));
    }
    circuits.end_calls_below("g", 50);
    circuits.set_objects(vec![Arc::new(breaker)], HashMap::from([(name("p"), 1000)]));
    let left: Vec<_> = circuits.all().into_iter().map(|(_, _, what, _)| what).collect();
    assert_eq!(left, ["models/api.example.com/made-up-50"], "only one is under way");
}
