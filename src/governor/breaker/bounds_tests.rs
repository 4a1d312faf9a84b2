//! Bounds of what agents can do to circuits: invented names of models, and failures of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::circuits::MAX_MODEL_CIRCUITS;
use super::{Circuits, Key};
use crate::api::Breaker;
use crate::cluster::ObjectKey;
use crate::policy::breaker::State;
use crate::telemetry::Metrics;
use crate::wire::Refusal;
use crate::wire::meter::{CallEnd, FaultCause, Outcome};

const ORIGIN: &str = "https://api.example.com";
const WITHIN: Duration = Duration::from_secs(720);
const FAILED: Outcome = Outcome::Failed { why: FaultCause::Status(529), retry_after: None };

fn name(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

fn breaker(threshold: u32) -> Arc<Breaker> {
    let breaker = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "spec": {"models": {"failureThreshold": threshold}},
        "metadata": {"name": "b", "namespace": "n", "uid": "b", "resourceVersion": "1"}});
    Arc::new(serde_json::from_value(breaker).expect("a Breaker"))
}

fn leader(breakers: Vec<Arc<Breaker>>) -> Circuits {
    let circuits = Circuits::new(1, Metrics::default());
    circuits.set_objects(breakers, HashMap::from([(name("p"), 1000)]));
    circuits
}

/// A call of an agent, from its hold to its settle.
async fn call(circuits: &Circuits, agent: &str, model: &str, outcome: Outcome) -> Result<(), Refusal> {
    let asked = circuits.may_call(&name("p"), ORIGIN, model, WITHIN).await?;
    asked.keep("g", 1, "pod", &name(agent));
    circuits.end_call("g", 1, &CallEnd { outcome: Some(outcome), timed_out: false });
    Ok(())
}

fn looked(circuits: &Circuits) -> u64 {
    std::mem::take(&mut circuits.lock().circuits.looked)
}

/// The number of circuits that one call of an honest agent reads.
async fn cost(circuits: &Circuits) -> u64 {
    looked(circuits);
    call(circuits, "honest", "large", Outcome::Worked).await.expect("it is closed");
    looked(circuits)
}

fn count(circuits: &Circuits) -> usize {
    circuits.lock().circuits.check();
    circuits.all().len()
}

#[tokio::test]
async fn invented_names_that_fail_take_a_bounded_number_of_circuits_and_cost_others_nothing() {
    let circuits = leader(vec![breaker(1_000_000)]);
    call(&circuits, "honest", "large", FAILED).await.expect("it is closed");
    let alone = cost(&circuits).await;
    for number in 0..20_000 {
        call(&circuits, "hostile", &format!("made-up-{number}"), FAILED).await.expect("it is closed");
    }
    assert_eq!(count(&circuits), MAX_MODEL_CIRCUITS + 1);
    assert_eq!(cost(&circuits).await, alone, "a call looks at its own circuit");
    looked(&circuits);
    circuits.tick();
    assert_eq!(looked(&circuits), 0, "nothing is being tried");
    // Without recent failures they are not needed any more.
    circuits.pass(120_000);
    call(&circuits, "honest", "new", Outcome::Worked).await.expect("it is closed");
    assert!(circuits.all().iter().any(|(_, _, what, _)| what == "models/api.example.com/new"), "it has one of its own");
    assert!(count(&circuits) <= MAX_MODEL_CIRCUITS + 1);
    circuits.set_objects(vec![breaker(1_000_000)], HashMap::from([(name("p"), 1000)]));
    assert_eq!(count(&circuits), 0);
}

#[tokio::test]
async fn invented_names_that_open_are_bounded_too_and_those_beyond_share_one_that_says_so() {
    // Without a Breaker an opening need not be stored.
    let circuits = leader(Vec::new());
    let defaults = serde_json::from_value(json!({"models": {"failureThreshold": 1}})).expect("defaults");
    circuits.set_defaults(HashMap::from([("n".to_owned(), defaults)]));
    let mut refused = 0;
    for number in 0..20_000 {
        refused += usize::from(call(&circuits, "hostile", &format!("made-up-{number}"), FAILED).await.is_err());
    }
    assert_eq!(count(&circuits), MAX_MODEL_CIRCUITS + 1);
    assert_eq!(refused, 20_000 - MAX_MODEL_CIRCUITS - 1, "the shared one is open");
    let refusal = call(&circuits, "hostile", "one-more", FAILED).await.expect_err("it shares that");
    for words in ["api.example.com/other", "shared by all models of this provider beyond the first 64"] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
    // All of them are unused for longer than an opening may last: a new name gets a circuit again.
    circuits.pass(1_100_000);
    call(&circuits, "honest", "large", Outcome::Worked).await.expect("it is closed");
    assert!(circuits.all().iter().any(|(_, _, what, _)| what == "models/api.example.com/large"));
    assert!(count(&circuits) <= MAX_MODEL_CIRCUITS + 1);
}

#[tokio::test]
async fn one_that_opened_and_closed_is_forgotten_after_the_longest_opening() {
    let circuits = leader(Vec::new());
    let look = || circuits.set_objects(Vec::new(), HashMap::from([(name("p"), 1000)]));
    for _ in 0..5 {
        call(&circuits, "a", "large", FAILED).await.expect("it is closed");
    }
    circuits.pass(70_000);
    call(&circuits, "a", "large", Outcome::Worked).await.expect("a probe");
    look();
    assert_eq!(circuits.all().iter().map(|(_, _, _, state)| *state).collect::<Vec<_>>(), [State::Closed], "people may want to see it");
    circuits.pass(890_000);
    look();
    assert_eq!(count(&circuits), 1);
    circuits.pass(20_000);
    look();
    assert_eq!(count(&circuits), 0);
    // Its epoch is not forgotten: the next opening is not one that a person approved.
    for _ in 0..5 {
        call(&circuits, "a", "large", FAILED).await.expect("it is closed");
    }
    let standing = circuits.state(&name("p"), &Key::models("n", "api.example.com", "large")).expect("it is known");
    assert_eq!((standing.state, standing.epoch), (State::Open, 3));
}

#[tokio::test]
async fn what_is_found_by_one_way_is_found_by_all() {
    let circuits = leader(vec![breaker(1)]);
    for step in 0..600_u32 {
        let model = format!("m-{}", step.wrapping_mul(2_654_435_761) % 90);
        let outcome = if step % 3 == 0 { Outcome::Worked } else { FAILED };
        // The call would wait for an opening to be stored.
        drop(tokio::time::timeout(Duration::ZERO, call(&circuits, "a", &model, outcome)).await);
        match step % 50 {
            7 => circuits.pass(70_000),
            19 => circuits.tick(),
            31 => circuits.set_objects(vec![breaker(1)], HashMap::from([(name("p"), 1000)])),
            41 => circuits.set_objects(Vec::new(), HashMap::from([(name("p"), 1000)])),
            _ => {}
        }
        circuits.lock().circuits.check();
    }
}

#[tokio::test]
async fn one_agent_alone_does_not_open_a_circuit_that_others_use() {
    let circuits = leader(Vec::new());
    call(&circuits, "honest", "large", Outcome::Worked).await.expect("it is closed");
    for _ in 0..50 {
        call(&circuits, "hostile", "large", FAILED).await.expect("it fails alone");
    }
    call(&circuits, "honest", "large", Outcome::Worked).await.expect("it works for others");
    // The provider really fails: the first failure of another agent opens the circuit.
    call(&circuits, "honest", "large", FAILED).await.expect("it is closed");
    call(&circuits, "hostile", "large", FAILED).await.expect_err("two agents failed");
    // An agent that is the only caller opens the circuit as before.
    let circuits = leader(Vec::new());
    for _ in 0..5 {
        call(&circuits, "a", "large", FAILED).await.expect("it is closed");
    }
    call(&circuits, "a", "large", FAILED).await.expect_err("five failed");
}

#[tokio::test]
async fn an_agent_whose_call_goes_on_counts_as_another() {
    let circuits = leader(Vec::new());
    let long = circuits.may_call(&name("p"), ORIGIN, "large", WITHIN).await.expect("it is closed");
    long.keep("h", 1, "pod", &name("honest"));
    circuits.pass(600_000);
    for _ in 0..50 {
        call(&circuits, "hostile", "large", FAILED).await.expect("it fails alone");
    }
    // The other call ended, and no other agent calls any more.
    circuits.end_call("h", 1, &CallEnd { outcome: Some(Outcome::Worked), timed_out: false });
    circuits.pass(120_000);
    for _ in 0..5 {
        call(&circuits, "hostile", "large", FAILED).await.expect("it is closed");
    }
    call(&circuits, "hostile", "large", FAILED).await.expect_err("nobody else could say that it works");
}
