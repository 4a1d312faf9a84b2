//! The circuits in memory, with a variable as the API server: their stored state, and the state that the next leader
//! finds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{BeginRefusal, Circuits, Key};
use crate::api::Breaker;
use crate::api::breaker::CircuitState;
use crate::cluster::ObjectKey;
use crate::policy::breaker::{Guard, Outcome, Permit, RejectionCause, State};
use crate::telemetry::Metrics;

const FAILURE: Outcome = Outcome::Failure { retry_after: None };
const WITHIN: Duration = Duration::from_secs(60);

fn breaker(name: &str, version: u64, spec: Value) -> Breaker {
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "spec": spec,
        "metadata": {"name": name, "namespace": "n", "uid": name, "generation": 1, "resourceVersion": version.to_string()}}))
    .expect("a Breaker")
}

fn pool(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

fn pools(names: &[&str]) -> HashMap<ObjectKey, u64> {
    names.iter().map(|name| (pool(name), 1000)).collect()
}

/// A leader that has read everything.
fn leader(epoch: i64, stored: &[Breaker], names: &[&str]) -> Circuits {
    let circuits = Circuits::new(epoch, Metrics::default());
    circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(names));
    circuits
}

/// Writes all that is due, as the API server would accept it.
fn write(circuits: &Circuits, stored: &mut [Breaker]) -> usize {
    let mut writes = 0;
    while let Some((name, over, status)) = circuits.next() {
        let there = stored.iter_mut().find(|there| there.metadata.name.as_ref() == Some(&name.name)).expect("it is there");
        if there.metadata.resource_version != over.metadata.resource_version {
            circuits.conflicted(&name, Some(there.clone()));
            continue;
        }
        let version: u64 = there.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).expect("a number");
        there.metadata.resource_version = Some((version + 1).to_string());
        there.status = Some(status);
        circuits.stored(&name, there.clone());
        writes += 1;
    }
    writes
}

async fn permit(circuits: &Circuits, of: &str, key: &Key) -> Permit {
    circuits.admit(&pool(of), key, WITHIN).await.expect("it is closed, or a probe")
}

async fn why(circuits: &Circuits, of: &str, key: &Key) -> RejectionCause {
    match circuits.admit(&pool(of), key, WITHIN).await {
        Err(BeginRefusal::Open { rejection, .. }) => rejection.cause,
        other => panic!("{other:?}"),
    }
}

async fn open(circuits: &Circuits, of: &str, key: &Key, times: usize) {
    for _ in 0..times {
        let permit = permit(circuits, of, key).await;
        circuits.complete(key, &permit, FAILURE, "timed out");
    }
}

fn state(circuits: &Circuits, of: &str, key: &Key) -> State {
    circuits.state(&pool(of), key).expect("everything was read").state
}

#[tokio::test(start_paused = true)]
async fn nobody_hears_of_an_opening_before_it_is_stored() {
    let mut stored = vec![breaker("default", 1, json!({}))];
    let circuits = leader(7, &stored, &["p"]);
    write(&circuits, &mut stored);
    let key = Key::work("n", "p");
    open(&circuits, "p", &key, 3).await;
    assert_eq!(state(&circuits, "p", &key), State::Open);
    // Without an answer of the API server callers get none either.
    assert!(matches!(circuits.admit(&pool("p"), &key, WITHIN).await, Err(BeginRefusal::Away(_))));
    let told = std::sync::Mutex::new(stored);
    let of = pool("p");
    let asks = circuits.admit(&of, &key, WITHIN);
    let writes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        write(&circuits, &mut told.lock().expect("nobody else"));
    };
    let (asked, ()) = tokio::join!(asks, writes);
    assert!(matches!(asked, Err(BeginRefusal::Open { words, .. }) if words.contains("work circuit breaker open for p")));
    let stored = told.into_inner().expect("nobody else");
    let circuit = stored[0].status.as_ref().and_then(|status| status.circuits.clone()).expect("it is stored").remove(0);
    assert_eq!((circuit.key.as_str(), circuit.state, circuit.epoch), ("work/p", CircuitState::Open, 1));
    // For another leader the circuit is still open. Results of the old leader count for nothing.
    let next = leader(8, &stored, &["p"]);
    assert_eq!(why(&next, "p", &key).await, RejectionCause::Open);
    next.pass(70_000);
    let probe = permit(&next, "p", &key).await;
    next.complete(&key, &Permit { owner: probe.owner - 1, ..probe }, FAILURE, "an earlier leader's");
    assert_eq!(state(&next, "p", &key), State::HalfOpen);
    next.complete(&key, &probe, Outcome::Success, "");
    assert_eq!(state(&next, "p", &key), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_namespace_is_written_to_by_nobody() {
    let mut stored = vec![breaker("default", 1, json!({}))];
    let circuits = leader(7, &stored, &["p"]);
    assert_eq!(write(&circuits, &mut stored), 1, "its conditions");
    let key = Key::work("n", "p");
    open(&circuits, "p", &key, 1).await;
    circuits.pass(6000);
    assert_eq!(write(&circuits, &mut stored), 1, "one failure");
    for _ in 0..100 {
        circuits.pass(600_000);
        circuits.tick();
        circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(&["p"]));
        assert_eq!(write(&circuits, &mut stored), 0);
    }
    open(&circuits, "p", &key, 3).await;
    assert_eq!(write(&circuits, &mut stored), 1, "it opened");
    for _ in 0..100 {
        circuits.pass(600_000);
        circuits.tick();
        assert_eq!(write(&circuits, &mut stored), 0, "it is open, and nobody asks");
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_approves_all_openings_up_to_one() {
    let spec = json!({"work": {"review": "Required", "failureThreshold": 1}});
    let mut stored = vec![breaker("default", 1, spec.clone())];
    let circuits = leader(7, &stored, &["p", "q", "r"]);
    for name in ["p", "q"] {
        open(&circuits, name, &Key::work("n", name), 1).await;
    }
    write(&circuits, &mut stored);
    circuits.pass(10_000_000);
    let keys = [Key::work("n", "p"), Key::work("n", "q")];
    assert_eq!(
        (why(&circuits, "p", &keys[0]).await, why(&circuits, "q", &keys[1]).await),
        (RejectionCause::Review, RejectionCause::Review)
    );
    let epochs: Vec<u64> = ["p", "q"].map(|name| circuits.state(&pool(name), &Key::work("n", name)).expect("known").epoch).to_vec();
    assert!(epochs[0] != epochs[1], "{epochs:?}");
    let highest = *epochs.iter().max().expect("two");
    stored[0].spec = serde_json::from_value(json!({"work": spec["work"], "approvedEpoch": highest})).expect("a spec");
    stored[0].metadata.resource_version = Some("90".into());
    circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(&["p", "q", "r"]));
    let probe = permit(&circuits, "p", &keys[0]).await;
    permit(&circuits, "q", &keys[1]).await;
    circuits.complete(&keys[0], &probe, FAILURE, "again");
    write(&circuits, &mut stored);
    circuits.pass(10_000_000);
    assert_eq!(why(&circuits, "p", &keys[0]).await, RejectionCause::Review, "the next opening is another one");
    // A first opening is not among those that were approved.
    open(&circuits, "r", &Key::work("n", "r"), 1).await;
    write(&circuits, &mut stored);
    circuits.pass(10_000_000);
    assert_eq!(why(&circuits, "r", &Key::work("n", "r")).await, RejectionCause::Review);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_goes_with_its_pool_to_another_breaker() {
    let key = Key::work("n", "p");
    let circuits = leader(7, &[], &["p"]);
    open(&circuits, "p", &key, 3).await;
    assert_eq!(why(&circuits, "p", &key).await, RejectionCause::Open, "there is nowhere to store it");
    let mut stored = vec![breaker("default", 1, json!({}))];
    let see = |circuits: &Circuits, stored: &[Breaker], names: &[&str]| {
        circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(names));
    };
    see(&circuits, &stored, &["p"]);
    write(&circuits, &mut stored);
    assert_eq!(why(&circuits, "p", &key).await, RejectionCause::Open);
    let kept = |stored: &[Breaker], at: usize| {
        stored[at]
            .status
            .as_ref()
            .and_then(|status| status.circuits.clone())
            .unwrap_or_default()
            .into_iter()
            .map(|circuit| circuit.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&stored, 0), ["work/p"]);
    stored.push(breaker("strict", 50, json!({"pools": ["p"]})));
    see(&circuits, &stored, &["p"]);
    write(&circuits, &mut stored);
    assert_eq!((kept(&stored, 0), kept(&stored, 1)), (vec![], vec!["work/p".to_owned()]));
    assert_eq!(why(&circuits, "p", &key).await, RejectionCause::Open);
    // The pool is deleted, and the circuit with it.
    see(&circuits, &stored, &["q"]);
    write(&circuits, &mut stored);
    assert_eq!(kept(&stored, 1), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_another_leader_wrote_after_we_read_is_believed() {
    let mut stored = vec![breaker("default", 1, json!({}))];
    let (old, new) = (leader(7, &stored, &["p"]), leader(8, &stored, &["p"]));
    let key = Key::work("n", "p");
    open(&old, "p", &key, 3).await;
    write(&old, &mut stored);
    // Our own write conflicts with it.
    write(&new, &mut stored);
    assert_eq!(why(&new, "p", &key).await, RejectionCause::Open);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_a_permit_for_counts_while_it_is_closed() {
    let mut stored = vec![breaker("default", 1, json!({"commands": {"failureThreshold": 2}}))];
    let circuits = leader(7, &stored, &["p", "q"]);
    let key = Key::commands("n");
    circuits.failed(&pool("p"), &key, "hung");
    assert_eq!(state(&circuits, "q", &key), State::Closed);
    circuits.failed(&pool("q"), &key, "hung");
    assert_eq!(state(&circuits, "p", &key), State::Open, "of a namespace all count");
    circuits.failed(&pool("q"), &key, "hung");
    write(&circuits, &mut stored);
    circuits.pass(40_000);
    let probe = permit(&circuits, "p", &key).await;
    circuits.failed(&pool("q"), &key, "began before");
    assert_eq!(state(&circuits, "p", &key), State::HalfOpen);
    // A probe without a result has failed.
    circuits.pass(61_000);
    circuits.tick();
    assert_eq!(state(&circuits, "p", &key), State::Open);
    circuits.complete(&key, &probe, Outcome::Success, "");
    assert_eq!(state(&circuits, "p", &key), State::Open);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_everything_was_read() {
    let circuits = Circuits::new(7, Metrics::default());
    assert!(matches!(circuits.admit(&pool("p"), &Key::work("n", "p"), WITHIN).await, Err(BeginRefusal::Away(_))));
    assert_eq!(circuits.state(&pool("p"), &Key::work("n", "p")), None);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_made_again_begins_anew_above_what_is_stored() {
    let mut stored = vec![breaker("default", 1, json!({}))];
    let circuits = leader(7, &stored, &["p"]);
    let key = Key::work("n", "p");
    open(&circuits, "p", &key, 3).await;
    write(&circuits, &mut stored);
    // The pool is deleted, and created again before the change was written.
    circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(&[]));
    circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(&["p"]));
    assert_eq!(state(&circuits, "p", &key), State::Closed);
    open(&circuits, "p", &key, 3).await;
    assert_eq!(circuits.state(&pool("p"), &key).expect("known").epoch, 2, "an epoch never falls in a status");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_where_a_circuit_was_before_is_taken_away() {
    let mut stored = vec![breaker("default", 1, json!({})), breaker("strict", 50, json!({"pools": ["p"]}))];
    let circuits = leader(7, &stored, &["p"]);
    let key = Key::work("n", "p");
    open(&circuits, "p", &key, 3).await;
    write(&circuits, &mut stored);
    stored[0].status = stored[1].status.clone();
    let next = leader(8, &stored, &["p"]);
    write(&next, &mut stored);
    assert_eq!(why(&next, "p", &key).await, RejectionCause::Open);
    let left = stored[0].status.as_ref().and_then(|status| status.circuits.clone());
    assert_eq!(left, None);
}

#[tokio::test]
async fn what_the_cluster_says_holds_where_a_breaker_or_none_says_something() {
    let said = breaker("b", 1, json!({"pools": ["p"], "work": {"failureThreshold": 2}}));
    let circuits = leader(1, std::slice::from_ref(&said), &["p", "q"]);
    let changes = circuits.changes();
    let defaults = json!({"work": {"failureThreshold": 1}, "commands": {"failureExitCodes": [137]}});
    let defaults = HashMap::from([("n".to_owned(), serde_json::from_value(defaults).expect("defaults"))]);
    circuits.set_defaults(defaults.clone());
    assert!(changes.has_changed().expect("it is there"), "agents are to be told");
    circuits.set_objects(vec![Arc::new(said)], pools(&["p", "q"]));
    assert_eq!(circuits.command_breakers(&pool("q")).expect("it is known").failure_exit_codes, [137]);
    for (of, failures) in [("p", 2), ("q", 1)] {
        let key = Key::work("n", of);
        for _ in 0..failures {
            let permit = permit(&circuits, of, &key).await;
            circuits.complete(&key, &permit, FAILURE, "hung");
        }
        assert_eq!(state(&circuits, of, &key), State::Open, "{of}");
    }
    let before = *circuits.changes().borrow();
    circuits.set_defaults(defaults);
    assert_eq!(*circuits.changes().borrow(), before, "the same is no news");
}

/// A whole attempt of a pool.
async fn attempt(circuits: &Circuits, of: &str, outcome: Outcome) {
    let permits = circuits.admit_work(&pool(of), WITHIN).await.expect("it may begin");
    circuits.complete_work(&pool(of), &permits, outcome, "ItemPastTime");
}

/// The guard of the circuit that refuses an attempt of a pool, and its message.
async fn refused(circuits: &Circuits, of: &str) -> (Guard, String) {
    match circuits.admit_work(&pool(of), WITHIN).await {
        Err(BeginRefusal::Open { rejection, words }) => (rejection.guard, words),
        other => panic!("{other:?}"),
    }
}

/// The open circuits in the status of a Breaker.
fn said_open(stored: &Breaker) -> Vec<&str> {
    let circuits = stored.status.iter().flat_map(|status| status.circuits.iter().flatten());
    circuits.filter(|circuit| circuit.state == CircuitState::Open).map(|circuit| circuit.key.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn three_time_outs_over_all_pools_stop_the_project_and_the_next_leader_knows() {
    let mut stored = vec![breaker("default", 1, json!({})), breaker("strict", 50, json!({"pools": ["q"]}))];
    let circuits = leader(7, &stored, &["p", "q", "r"]);
    for of in ["p", "q", "q"] {
        attempt(&circuits, of, FAILURE).await;
    }
    write(&circuits, &mut stored);
    assert_eq!((said_open(&stored[0]), said_open(&stored[1])), (vec!["work"], vec![]), "no pool has three of its own");
    for circuits in [circuits, leader(8, &stored, &["p", "q", "r"])] {
        for of in ["p", "q", "r"] {
            let (guard, words) = refused(&circuits, of).await;
            assert!(
                guard == Guard::Project && words.starts_with("work circuit breaker open for all pools of namespace n: "),
                "{of}: {words}"
            );
        }
        let of_r = circuits.pool_circuits(&pool("r")).expect("it is known");
        assert!(of_r.refuses() && of_r.own.refuses.is_none());
        assert_eq!(of_r.project.and_then(|project| project.breaker).as_deref(), Some("default"));
        circuits.pass(70_000);
        attempt(&circuits, "r", Outcome::Success).await;
        attempt(&circuits, "q", Outcome::Success).await;
        circuits.lock().circuits.check();
    }
}

#[tokio::test(start_paused = true)]
async fn the_circuit_of_a_project_is_at_home_where_no_pools_are_named() {
    let circuits = leader(7, &[], &["p", "q"]);
    for of in ["p", "q", "q"] {
        attempt(&circuits, of, FAILURE).await;
    }
    assert_eq!(refused(&circuits, "p").await.0, Guard::Project, "there is nowhere to store it");
    let mut stored = vec![breaker("all", 1, json!({"pools": ["p", "q"]})), breaker("default", 50, json!({}))];
    circuits.set_objects(stored.iter().cloned().map(Arc::new).collect(), pools(&["p", "q"]));
    write(&circuits, &mut stored);
    assert_eq!((said_open(&stored[0]), said_open(&stored[1])), (vec![], vec!["work"]));
    assert_eq!(refused(&circuits, "p").await.0, Guard::Project);
    // The circuit keeps counting while its spec does not change, also without a Breaker for all pools.
    let alone = leader(7, &stored[..1], &["p", "q"]);
    for of in ["p", "q", "p"] {
        attempt(&alone, of, FAILURE).await;
        alone.set_objects(stored[..1].iter().cloned().map(Arc::new).collect(), pools(&["p", "q"]));
    }
    assert_eq!(refused(&alone, "q").await.0, Guard::Project);
    // No namespace has pools any more.
    alone.set_objects(Vec::new(), pools(&[]));
    assert_eq!(alone.all(), []);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_a_permit_for_counts_for_the_project_unless_its_pool_is_stopped_itself() {
    let mut stored = vec![breaker("default", 1, json!({"project": {"failureThreshold": 5}}))];
    let circuits = leader(7, &stored, &["p", "q"]);
    for _ in 0..9 {
        circuits.failed_work(&pool("p"), "ChronicTimeout");
    }
    write(&circuits, &mut stored);
    assert_eq!(said_open(&stored[0]), ["work/p"], "three of nine count");
    attempt(&circuits, "q", FAILURE).await;
    circuits.failed_work(&pool("q"), "ChronicTimeout");
    write(&circuits, &mut stored);
    assert_eq!((said_open(&stored[0]), refused(&circuits, "q").await.0), (vec!["work", "work/p"], Guard::Project));
    let last = circuits.pool_circuits(&pool("q")).and_then(|of| of.project?.last_failure);
    assert_eq!(last.as_deref(), Some("ChronicTimeout"));
}
