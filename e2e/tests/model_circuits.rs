//! Calls to a failing provider stop for a while at all gateways, and one call then probes it.

use kube::api::PostParams;
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::Breaker;
use spillway::api::breaker::{Circuit, CircuitState};

use crate::support::caller::{Answer, Caller};
use crate::support::gateways::Gateways;
use crate::support::models::{Scripted, wait_until_counts_agree};
use crate::support::restarted::Controllers;
use crate::support::standins::Standin;
use crate::support::{GENEROUS, TestNamespace, check_state, eventually};

/// Number of failures that open a circuit.
const FAILURES: usize = 5;
const FAILS: &str = "status-529";

struct Scene<'a> {
    room: &'a TestNamespace,
    provider: Scripted,
    gateways: Gateways<'a>,
    agents: Vec<Standin>,
}

impl<'a> Scene<'a> {
    /// Two agents at two gateways, under a Breaker with this guard of models. `turn` is the time limit of a turn, in
    /// seconds.
    async fn new(room: &'a TestNamespace, guard: Value, turn: i64) -> Self {
        Self::with(room, Scripted::serve(room).await, guard, turn).await
    }

    async fn with(room: &'a TestNamespace, provider: Scripted, guard: Value, turn: i64) -> Self {
        let budget = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
            "spec": {"tokens": {"limits": [{"name": "all", "tokens": 1_000_000_000_i64, "window": "Lifetime"}]}}});
        let budget = serde_json::from_value(budget).expect("a Budget");
        room.api::<spillway::api::Budget>().create(&PostParams::default(), &budget).await.expect("the Budget is accepted");
        let breaker =
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "guard"}, "spec": {"models": guard}});
        let breaker = serde_json::from_value(breaker).expect("a Breaker");
        room.api::<Breaker>().create(&PostParams::default(), &breaker).await.expect("the Breaker is accepted");
        let bulkhead = json!({"lifetimeTokens": 1_000_000_000_i64, "modelTurnTimeoutSeconds": turn});
        let agents = room.standins("callers", 2, json!({"models": [provider.entry("gpt", "OpenAIChat")], "bulkhead": bulkhead})).await;
        let gateways = Gateways::start(room, 2).await;
        Self { room, provider, gateways, agents }
    }

    fn caller(&self, which: usize, script: &str) -> Caller {
        let which = which % 2;
        self.agents[which].caller.at(self.gateways.address(which)).with_header("x-script", script)
    }

    /// A call of one of them through one of the gateways. `script` has the provider's modes.
    async fn call(&self, which: usize, script: &str, stream: bool) -> Answer {
        let body = json!({"model": "scripted-large", "max_tokens": 50, "stream": stream, "messages": [{"role": "user", "content": "say something"}]});
        let mut line = self.caller(which, script).connect().await.expect("the gateway is there");
        line.call_for(GENEROUS, "POST", "/models/gpt/v1/chat/completions", body.to_string()).await.expect("an answer")
    }

    async fn circuit(&self) -> Result<Circuit, String> {
        let breaker = self.room.api::<Breaker>().get("guard").await.map_err(|error| error.to_string())?;
        let circuits = breaker.status.and_then(|status| status.circuits).unwrap_or_default();
        circuits.into_iter().find(|circuit| circuit.key.starts_with("models/")).ok_or_else(|| "no circuit of models".to_owned())
    }

    /// Makes enough failing calls to open it, at both gateways.
    async fn opens(&self) -> Circuit {
        for which in 0..FAILURES {
            let answer = self.call(which, FAILS, false).await;
            assert_eq!(answer.status, 529, "what the provider says is passed on: {answer:?}");
        }
        self.is_open().await
    }

    async fn is_open(&self) -> Circuit {
        eventually("the circuit is open", async || {
            let circuit = self.circuit().await?;
            check_state(circuit.state == CircuitState::Open, || format!("{circuit:?}")).map(|()| circuit)
        })
        .await
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn is_refused(answer: &Answer, status: u16) {
    let said = text(answer);
    assert_eq!(answer.status, status, "{answer:?}");
    for words in ["model circuit breaker open for", "scripted-large", "Breaker/guard"] {
        assert!(said.contains(words), "{words:?} is not said: {said}");
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_tried_with_one_call_over_all_gateways_and_comes_back_by_itself() {
    let room = TestNamespace::open("circuit").await;
    let controllers = Controllers::start(&room, 1);
    let test = async {
        let scene = Scene::new(&room, json!({"openSeconds": 10}), 600).await;
        scene.opens().await;
        // The first call after the time is a probe. Until then both gateways refuse, and the provider gets no calls.
        for which in 0..2 {
            let answer = scene.call(which, FAILS, false).await;
            if answer.status == 503 {
                is_refused(&answer, 503);
                assert!(answer.headers.get("retry-after").is_some(), "{answer:?}");
            }
        }
        // A probe that lasts as long as this test needs.
        let before = scene.provider.calls();
        let probe = async {
            eventually("the provider gets a probe", async || {
                let answer = scene.call(0, "wait", false).await;
                check_state(answer.status == 200, || text(&answer))
            })
            .await;
        };
        let meanwhile = async {
            eventually("the provider has the probe", async || {
                check_state(scene.provider.calls() == before + 1, || scene.provider.calls().to_string())
            })
            .await;
            let all = futures::future::join_all((0..16).map(|which| scene.call(which, FAILS, false))).await;
            all.iter().for_each(|answer| is_refused(answer, 503));
            assert_eq!(scene.provider.calls(), before + 1, "one, over all gateways");
            scene.provider.release_waiting();
        };
        futures::join!(probe, meanwhile);
        eventually("the circuit is closed by itself", async || {
            let answer = scene.call(1, "cache", true).await;
            check_state(answer.status == 200, || text(&answer))
        })
        .await;
        wait_until_counts_agree(&room, &scene.provider).await;
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_left_alone_and_found_again_without_a_restart() {
    let room = TestNamespace::open("dead").await;
    let controllers = Controllers::start(&room, 1);
    let test = async {
        // Long enough that the circuit is still open in the next steps on a slow machine.
        let scene = Scene::with(&room, Scripted::absent(&room).await, json!({"openSeconds": 30}), 600).await;
        for which in 0..FAILURES {
            let answer = scene.call(which, "cache", which % 2 == 1).await;
            let said = text(&answer);
            assert!(answer.status == 503 && said.contains("cannot be reached") && !said.contains("breaker"), "{}: {said}", answer.status);
        }
        let open = scene.is_open().await;
        assert!(open.last_failure.as_deref().is_some_and(|last| last.contains("reach")), "{open:?}");
        for which in 0..2 {
            is_refused(&scene.call(which, "cache", false).await, 503);
        }
        // The provider is back, but is not called before the probe.
        scene.provider.start_listening().await;
        is_refused(&scene.call(0, "cache", false).await, 503);
        assert_eq!(scene.provider.calls(), 0);
        for which in 0..2 {
            eventually("the provider is called again", async || {
                let answer = scene.call(which, "cache", false).await;
                check_state(answer.status == 200, || text(&answer))
            })
            .await;
        }
        wait_until_counts_agree(&room, &scene.provider).await;
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}

#[tokio::test]
async fn an_open_circuit_outlives_its_leader_and_what_was_asked_before_it_opened() {
    let room = TestNamespace::open("circuitkept").await;
    let controllers = Controllers::start(&room, 2);
    let test = async {
        let scene = Scene::new(&room, json!({"openSeconds": 3600, "maxOpenSeconds": 3600}), 600).await;
        let old = scene.call(0, "wait", false);
        let opens = async {
            eventually("the provider has the old call", async || {
                check_state(scene.provider.calls() == 1, || scene.provider.calls().to_string())
            })
            .await;
            let opened = scene.opens().await;
            scene.provider.release_waiting();
            opened
        };
        let (old, opened) = futures::join!(old, opens);
        assert_eq!(old.status, 200, "{old:?}");
        wait_until_counts_agree(&room, &scene.provider).await;
        let calls = scene.provider.calls();
        let is_open = async || {
            // The gap after a killed leader may be longer than a gateway waits.
            let answer = eventually("a leader answers", async || {
                let answer = scene.call(1, "cache", false).await;
                check_state(!text(&answer).contains("governor_away"), || text(&answer)).map(|()| answer)
            })
            .await;
            is_refused(&answer, 402);
            assert_eq!(
                answer.headers.get("x-should-retry").map(|value| value.as_bytes()),
                Some(&b"false"[..]),
                "no client waits for an hour"
            );
            let circuit = scene.circuit().await.expect("it is told");
            assert_eq!((circuit.state, circuit.epoch), (CircuitState::Open, opened.epoch));
        };
        is_open().await;
        let leader = controllers.leader(&room, "").await;
        controllers.with(&leader, |leader| leader.signal(Signal::KILL));
        controllers.leader(&room, &leader).await;
        is_open().await;
        assert_eq!(scene.provider.calls(), calls, "no call reached it");
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}

#[tokio::test]
async fn a_probe_that_never_answers_does_not_wedge_it() {
    let room = TestNamespace::open("circuitprobe").await;
    let controllers = Controllers::start(&room, 1);
    let test = async {
        let scene = Scene::new(&room, json!({"openSeconds": 2, "firstTokenSeconds": 2}), 600).await;
        scene.opens().await;
        let before = scene.provider.calls();
        let hangs = async {
            loop {
                let answer = scene.call(0, "wait", true).await;
                assert_eq!(answer.status, 503, "it waits for as long as the test runs: {answer:?}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        let recovers = async {
            eventually("the provider has the probe", async || {
                check_state(scene.provider.calls() > before, || scene.provider.calls().to_string())
            })
            .await;
            eventually("another probe is answered", async || {
                let answer = scene.call(1, "cache", false).await;
                check_state(answer.status == 200, || text(&answer))
            })
            .await;
        };
        tokio::select! {
            () = recovers => {}
            () = hangs => {}
        }
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}

#[tokio::test]
async fn a_provider_that_hangs_counts_when_the_clients_of_calls_that_are_not_streamed_leave() {
    let room = TestNamespace::open("hungprovider").await;
    let controllers = Controllers::start(&room, 1);
    let test = async {
        let guard = json!({"failureThreshold": 2, "firstTokenSeconds": 2, "openSeconds": 600});
        let scene = Scene::new(&room, guard, 600).await;
        // A client that leaves before the time limit of the first token does not count as a failure of the provider.
        let leaves = async |which, after| {
            tokio::time::timeout(std::time::Duration::from_secs(after), scene.call(which, "wait", false)).await.is_err()
        };
        assert!(leaves(0, 1).await, "it waits for as long as the test runs");
        let (one, other) = futures::join!(leaves(0, 5), leaves(1, 5));
        assert!(one && other);
        let open = scene.is_open().await;
        assert!(open.last_failure.as_deref().is_some_and(|last| last.contains("late")), "{open:?}");
        let calls = scene.provider.calls();
        assert_eq!(calls, 3);
        is_refused(&scene.call(1, "cache", false).await, 402);
        scene.provider.release_waiting();
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}

#[tokio::test]
async fn a_model_turn_that_takes_too_long_is_told_so_and_counted_all_the_same() {
    let room = TestNamespace::open("turntime").await;
    let controllers = Controllers::start(&room, 1);
    let test = async {
        let scene = Scene::new(&room, json!({}), 2).await;
        let answer = scene.call(0, "wait", false).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(text(&answer).contains("spec.bulkhead.modelTurnTimeoutSeconds"), "{answer:?}");
        // A late answer is read for its usage, and dropped.
        scene.provider.release_waiting();
        eventually("the provider has answered", async || check_state(scene.provider.reported_tokens() > 0, || "it waits".to_owned())).await;
        wait_until_counts_agree(&room, &scene.provider).await;
        // In the middle of a stream.
        let answer = scene.call(1, "output-20 events-20 pace-1000", true).await;
        let said = text(&answer);
        assert!(answer.status == 200 && !said.contains("[DONE]") && said.contains("turn_timed_out"), "{said}");
    };
    controllers.run_during(&room, test).await;
    room.close().await;
}
