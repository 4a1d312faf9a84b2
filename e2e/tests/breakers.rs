//! Breakers on a real cluster: a pool whose attempts fail gets no work until a person approves, or the time is over.

use std::collections::HashSet;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::breaker::CircuitState;
use spillway::api::work_item::WorkItemPhase::{Ready, Succeeded};
use spillway::api::{Agent, Breaker};

use crate::notifications::{Calls, receiver, webhooks};
use crate::support::work::attempts;
use crate::support::{Operator, TestNamespace, check_state, eventually, plugin_path};

/// Items whose payload begins with `good` succeed. All others hang until their time is over.
const HANGS: &str = "case \"$task\" in good*) exit 0;; esac; while :; do sleep 1; done";

pub async fn breaker(room: &TestNamespace, name: &str, spec: Value) {
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": name}, "spec": spec});
    room.api::<Breaker>().patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Breaker is accepted");
}

/// Waits until the condition `type_` of a Breaker has this status and reason; its message.
pub async fn wait_for_condition(room: &TestNamespace, name: &str, type_: &str, status: &str, reason: &str) -> String {
    eventually(&format!("Breaker {name} has {type_}={status}, {reason}"), async || {
        let breaker = room.api::<Breaker>().get(name).await.map_err(|error| error.to_string())?;
        let conditions = breaker.status.map(|status| status.conditions).unwrap_or_default();
        let found = conditions.iter().find(|one| one.type_ == type_ && one.status == status && one.reason == reason);
        found.map(|found| found.message.clone()).ok_or_else(|| format!("{conditions:?}"))
    })
    .await
}

/// State and epoch of the stored circuit of a pool's work.
async fn circuit(room: &TestNamespace, name: &str, pool: &str) -> Option<(CircuitState, i64)> {
    let breaker = room.api::<Breaker>().get(name).await.expect("the Breaker is there");
    let circuits = breaker.status.and_then(|status| status.circuits).unwrap_or_default();
    circuits.into_iter().find(|circuit| circuit.key == format!("work/{pool}")).map(|circuit| (circuit.state, circuit.epoch))
}

fn plugin(room: &TestNamespace, words: &[&str]) -> String {
    let mut run = std::process::Command::new(plugin_path());
    let output = run.args(words).args(["-n", &room.namespace]).output().expect("the plugin runs");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{words:?}: {text}");
    text
}

/// A queue whose items soon time out, and are retried many times.
fn short_retries_spec() -> Value {
    let policy =
        json!({"attemptTimeoutSeconds": 3, "leaseDurationSeconds": 5, "maxStalls": 100, "backoff": {"initialSeconds": 1, "maxSeconds": 1}});
    json!({"itemDefaults": policy})
}

/// A namespace with a pool and items that hang.
async fn hanging(name: &str, spec: Value, items: usize) -> (TestNamespace, Operator, Calls) {
    let room = TestNamespace::open(name).await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    breaker(&room, "strict", spec).await;
    // Another test covers the circuit of the project.
    breaker(&room, "for-all", json!({"project": {"failureThreshold": 1000}})).await;
    room.apply_queue("bugs", short_retries_spec()).await;
    let extra = json!({"scaling": {"min": 1, "max": 2}, "supervision": {"heartbeatPeriodSeconds": 1}});
    room.apply_workers("fixers", &["bugs"], HANGS, extra).await;
    for at in 0..items {
        room.submit("bugs", &format!("bad-{at}"), json!({"payload": "bad"})).await;
    }
    (room, operator, calls)
}

/// Waits until the webhook has this notice about the Breaker; the number of such notices. Retries count once.
async fn wait_for_notices(calls: &Calls, reason: &str) -> usize {
    eventually(&format!("the webhook has a notice {reason}"), async || {
        let calls = calls.lock().expect("whole").clone();
        let of = calls.iter().filter(|(_, body)| body["reason"] == reason && body["objects"][0]["kind"] == "Breaker");
        let numbers: HashSet<&String> = of.map(|(number, _)| number).collect();
        check_state(!numbers.is_empty(), || format!("{calls:?}")).map(|()| numbers.len())
    })
    .await
}

#[tokio::test]
async fn a_pool_whose_attempts_run_out_of_time_stops_until_a_person_approves_and_a_leader_that_dies_changes_nothing() {
    let spec = json!({"pools": ["fixers"], "work": {"failureThreshold": 2, "openSeconds": 1, "review": "Required"}});
    let (room, operator, _) = hanging("review", spec, 2).await;
    let words = wait_for_condition(&room, "strict", "Tripped", "True", "ReviewRequired").await;
    assert!(words.contains("work/fixers") && words.contains("breaker approve strict") && words.contains("ItemPastTime"), "{words}");
    let (reason, message) = room.pool_says("fixers", "Blocked", "True").await;
    assert_eq!(reason, "BreakerOpen", "{message}");
    for word in ["Breaker/strict", "kubectl spillway breaker approve strict"] {
        assert!(message.contains(word), "{word:?} is not said: {message}");
    }
    room.wait_for_event("strict", "CircuitOpened", "work/fixers").await;
    room.submit("bugs", "good", json!({"payload": "good", "priority": 100})).await;
    let open = circuit(&room, "strict", "fixers").await;
    assert!(matches!(open, Some((CircuitState::Open, 1..))), "{open:?}");

    // The circuit is open for the next leader too.
    operator.signal(Signal::KILL);
    let next = room.operator("two");
    next.leads(&room).await;
    eventually("its state is measured by the next leader", async || {
        let (_, text) = next.get("/metrics").await?;
        let state =
            text.lines().find(|line| line.starts_with("spillway_breaker_state{") && line.contains("work/fixers")).map(str::to_owned);
        check_state(state.as_ref().is_some_and(|state| state.ends_with(" 2")), || format!("{state:?}"))
    })
    .await;
    eventually("all items wait, Ready", async || {
        let mut phases = Vec::new();
        for name in ["bad-0", "bad-1", "good"] {
            phases.push(crate::support::work::phase(&room.item(name).await));
        }
        check_state(phases.iter().all(|phase| *phase == Some(Ready)), || format!("{phases:?}"))
    })
    .await;
    let tried = attempts(&room.item("bad-0").await).len() + attempts(&room.item("bad-1").await).len();
    assert_eq!(circuit(&room, "strict", "fixers").await, open);
    let explained = plugin(&room, &["explain", "item/good"]);
    assert!(explained.contains("BreakerOpen"), "{explained}");
    assert!(attempts(&room.item("good").await).is_empty(), "nothing is given out, however long the circuit is beyond its time");

    // The probe is the item that works.
    let approved = plugin(&room, &["breaker", "approve", "strict"]);
    assert!(approved.contains("approved up to epoch"), "{approved}");
    room.wait_for_item_phase("good", Succeeded).await;
    let closed = wait_for_condition(&room, "strict", "Tripped", "False", "CircuitsClosed").await;
    assert!(closed.contains("closed"), "{closed}");
    room.wait_for_event("strict", "CircuitClosed", "work/fixers").await;
    // The items that hang open it again, with a new epoch.
    wait_for_condition(&room, "strict", "Tripped", "True", "ReviewRequired").await;
    let again = circuit(&room, "strict", "fixers").await;
    assert!(again.map(|(_, epoch)| epoch) > open.map(|(_, epoch)| epoch), "{again:?}");
    let now = attempts(&room.item("bad-0").await).len() + attempts(&room.item("bad-1").await).len();
    assert!(now > tried || now >= 5, "they were tried again: {tried}, {now}");
    room.close().await;
}

#[tokio::test]
async fn it_tries_again_by_itself_with_one_probe_and_a_person_may_hold_it() {
    let spec = json!({"pools": ["fixers"], "work": {"failureThreshold": 1, "openSeconds": 5, "maxOpenSeconds": 5}});
    let (room, _operator, calls) = hanging("auto", spec, 1).await;
    let words = wait_for_condition(&room, "strict", "Tripped", "True", "CircuitOpen").await;
    assert!(words.contains("work/fixers is open until"), "{words}");
    // Its probe hangs too.
    eventually("a probe opens the circuit again", async || {
        let now = circuit(&room, "strict", "fixers").await;
        check_state(matches!(now, Some((_, 3..))), || format!("{now:?}"))
    })
    .await;
    assert_eq!(wait_for_notices(&calls, "CircuitOpened").await, 1, "that it stopped; not each probe that failed");
    let held = plugin(&room, &["breaker", "close", "strict"]);
    assert!(held.contains("breaker auto strict"), "{held}");
    wait_for_condition(&room, "strict", "Tripped", "False", "ForcedClosed").await;
    room.submit("bugs", "good", json!({"payload": "good", "priority": 100})).await;
    room.wait_for_item_phase("good", Succeeded).await;
    plugin(&room, &["breaker", "open", "strict"]);
    wait_for_condition(&room, "strict", "Tripped", "True", "ForcedOpen").await;
    let (reason, message) = room.pool_says("fixers", "Blocked", "True").await;
    assert!(reason == "BreakerOpen" && message.contains("breaker auto strict"), "{reason}: {message}");
    room.submit("bugs", "good-2", json!({"payload": "good", "priority": 100})).await;
    room.wait_for_item_phase("good-2", Ready).await;
    plugin(&room, &["breaker", "auto", "strict"]);
    room.wait_for_item_phase("good-2", Succeeded).await;
    wait_for_notices(&calls, "CircuitClosed").await;
    let agents: Vec<String> = room.list::<Agent>().await.iter().map(|agent| agent.name_any()).collect();
    assert!(!agents.is_empty());
    room.close().await;
}

#[tokio::test]
async fn three_time_outs_of_several_pools_stop_the_whole_project_as_shipped() {
    let room = TestNamespace::open("project").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    // The default Breaker, and another one for one of the pools.
    breaker(&room, "default", json!({})).await;
    breaker(&room, "strict", json!({"pools": ["menders"], "work": {"failureThreshold": 5}})).await;
    let extra = json!({"scaling": {"min": 1, "max": 1}, "supervision": {"heartbeatPeriodSeconds": 1}});
    for (pool, queue) in [("fixers", "bugs"), ("menders", "leaks"), ("idlers", "chores")] {
        room.apply_queue(queue, short_retries_spec()).await;
        room.apply_workers(pool, &[queue], HANGS, extra.clone()).await;
    }
    // Both pools retry their items: of three time-outs one pool has at most two.
    for queue in ["bugs", "leaks"] {
        room.submit(queue, &format!("bad-{queue}"), json!({"payload": "bad"})).await;
    }
    let words = wait_for_condition(&room, "default", "Tripped", "True", "CircuitOpen").await;
    assert!(words.starts_with("circuit work (all pools of the namespace) is open until") && words.contains("ItemPastTime"), "{words}");
    room.wait_for_event("default", "CircuitOpened", "all pools of the namespace").await;
    let name = format!("work circuit breaker open for all pools of namespace {} (Breaker/default)", room.namespace);
    // A pool without failures gets no work either, and all pools show the reason.
    room.submit("chores", "good", json!({"payload": "good"})).await;
    room.wait_for_item_phase("good", Ready).await;
    for pool in ["fixers", "menders", "idlers"] {
        let (reason, message) = room.pool_says(pool, "Blocked", "True").await;
        assert!(reason == "BreakerOpen" && message.contains(&name), "{pool}: {reason}: {message}");
    }
    let explained = plugin(&room, &["explain", "item/good"]);
    assert!(explained.contains("all pools of namespace"), "{explained}");
    let listed = room.api::<Breaker>().get("default").await.expect("it is there").status.and_then(|status| status.circuits);
    let circuits: Vec<_> = listed.unwrap_or_default().into_iter().map(|circuit| (circuit.key, circuit.state)).collect();
    assert!(circuits.contains(&("work".to_owned(), CircuitState::Open)), "{circuits:?}");
    assert!(
        circuits.iter().all(|(key, state)| key == "work" || *state == CircuitState::Closed),
        "no pool is stopped by itself: {circuits:?}"
    );
    // The remaining pool makes the probe for all.
    for queue in ["bugs", "leaks"] {
        room.change_item(&format!("bad-{queue}"), json!({"cancelRequested": true})).await;
    }
    room.wait_for_item_phase("good", Succeeded).await;
    wait_for_condition(&room, "default", "Tripped", "False", "CircuitsClosed").await;
    for pool in ["fixers", "menders", "idlers"] {
        room.pool_says(pool, "Blocked", "False").await;
    }
    room.close().await;
}

#[tokio::test]
async fn nonsense_is_refused_and_one_that_guards_nothing_says_so() {
    let room = TestNamespace::open("nonsense").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let nonsense = [
        json!({"work": {"failureThreshold": 0}}),
        json!({"models": {"failureThreshold": -1}}),
        json!({"commands": {"windowSeconds": 0}}),
        json!({"work": {"openSeconds": 90, "maxOpenSeconds": 60}}),
        json!({"work": {"openSeconds": 901}}),
        json!({"approvedEpoch": -1}),
        json!({"force": "Ajar"}),
        json!({"pools": ["some"], "project": {"failureThreshold": 3}}),
        json!({"project": {"openSeconds": 901}}),
    ];
    for spec in nonsense {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "odd"}, "spec": spec});
        let answer = room.api::<Breaker>().patch("odd", &PatchParams::apply("e2e"), &Patch::Apply(object)).await;
        let refused = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422);
        assert!(refused, "{spec}: {answer:?}");
    }
    breaker(&room, "odd", json!({"pools": ["nobody", "none"]})).await;
    let words = wait_for_condition(&room, "odd", "Ready", "False", "NoPool").await;
    assert!(words.contains("nobody, none"), "{words}");
    room.apply_pool("nobody", json!({"replicas": 0})).await;
    let words = wait_for_condition(&room, "odd", "Ready", "True", "Guarding").await;
    assert!(words.contains("guards AgentPool nobody") && words.contains("do not exist: AgentPool none"), "{words}");
    room.close().await;
}
