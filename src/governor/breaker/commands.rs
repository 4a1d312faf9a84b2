//! The state of the command breakers that agents are sent: the settings of their own breaker, and whether that of the
//! namespace is open.

use super::circuits::{Circuits, Slot};
use super::key::Key;
use crate::cluster::ObjectKey;
use crate::policy::breaker::{Force, Guard, Mode, RejectionCause, Settings, State};
use crate::wire::command::{BreakerForce, BreakerMode, CommandBreakers, OpenGlobally};

impl Circuits {
    /// The state for the agents of `pool`. `None` if nothing is loaded yet. It creates no circuit that no agent has
    /// asked.
    pub fn command_breakers(&self, pool: &ObjectKey) -> Option<CommandBreakers> {
        if !self.is_ready() {
            return None;
        }
        let mut state = self.lock();
        let home = state.breaker_for(&pool.namespace, &pool.name);
        let written = state.spec_for(&pool.namespace, home.as_deref());
        let (session, codes) = (written.settings(Guard::Session, 0), written.failure_exit_codes());
        let at = state.current_moment();
        let slot = Slot { key: Key::commands(&pool.namespace), breaker: home };
        let circuit = state.circuits.get_mut(&slot).map(|kept| &mut kept.circuit);
        let open_globally = match (session.mode, session.force) {
            (Mode::Disabled | Mode::Observe, _) | (Mode::Enforce, Some(Force::Closed)) => None,
            (Mode::Enforce, Some(Force::Open)) => Some(OpenGlobally { forced: true, retry_after_milliseconds: session.open }),
            // An opening is not announced before it is stored. A half-open circuit is open for all agents except those
            // with a permit.
            (Mode::Enforce, None) => circuit.filter(|circuit| circuit.state() != State::Closed && !circuit.must_store()).map(|circuit| {
                let rejection = circuit.rejection(at);
                OpenGlobally {
                    forced: rejection.is_some_and(|rejection| rejection.cause == RejectionCause::Forced),
                    retry_after_milliseconds: rejection.map_or(0, |rejection| rejection.retry_after),
                }
            }),
        };
        Some(to_wire(&session, codes, open_globally))
    }
}

fn to_wire(session: &Settings, failure_exit_codes: Vec<i32>, open_globally: Option<OpenGlobally>) -> CommandBreakers {
    CommandBreakers {
        mode: match session.mode {
            Mode::Enforce => BreakerMode::Enforce,
            Mode::Observe => BreakerMode::Observe,
            Mode::Disabled => BreakerMode::Off,
        },
        force: session.force.map(|force| match force {
            Force::Open => BreakerForce::Open,
            Force::Closed => BreakerForce::Closed,
        }),
        failure_threshold: session.threshold,
        window_milliseconds: session.window,
        open_milliseconds: session.open,
        backoff_factor: session.factor,
        max_open_milliseconds: session.max_open,
        success_threshold: session.successes,
        half_open_probes: session.probes,
        probe_milliseconds: session.probe_within,
        failure_exit_codes,
        open_globally,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::Breaker;
    use crate::telemetry::Metrics;

    fn pool() -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: "p".into() }
    }

    /// A leader that has read this Breaker, or that no Breaker exists.
    fn leader(spec: Option<Value>) -> Circuits {
        let breaker = spec.map(|spec| {
            let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "spec": spec,
                "metadata": {"name": "b", "namespace": "n", "uid": "b", "resourceVersion": "1"}});
            Arc::new(serde_json::from_value::<Breaker>(object).expect("a Breaker"))
        });
        let circuits = Circuits::new(1, Metrics::default());
        circuits.set_objects(breaker.into_iter().collect(), HashMap::from([(pool(), 1000)]));
        circuits
    }

    fn open(circuits: &Circuits) -> Option<OpenGlobally> {
        circuits.command_breakers(&pool()).expect("it is known").open_globally
    }

    fn fail(circuits: &Circuits, times: u32) {
        (0..times).for_each(|_| circuits.failed(&pool(), &Key::commands("n"), "hung"));
    }

    #[test]
    fn agents_are_told_what_people_wrote() {
        assert_eq!(Circuits::new(1, Metrics::default()).command_breakers(&pool()), None, "nothing was read yet");
        let said = leader(None).command_breakers(&pool()).expect("it is known");
        assert_eq!(
            (said.mode, said.failure_threshold, said.window_milliseconds, said.open_globally),
            (BreakerMode::Enforce, 10, 120_000, None)
        );
        let spec = json!({"mode": "Observe", "force": "Closed",
            "commands": {"session": {"failureThreshold": 3}, "openSeconds": 5, "failureExitCodes": [42]}});
        let said = leader(Some(spec)).command_breakers(&pool()).expect("it is known");
        assert_eq!((said.mode, said.force, said.failure_threshold), (BreakerMode::Observe, Some(BreakerForce::Closed), 3));
        assert_eq!((said.open_milliseconds, said.failure_exit_codes), (5000, vec![42]));
    }

    #[tokio::test]
    async fn that_of_the_namespace_is_open_to_all_until_two_that_are_tried_worked() {
        // No Breaker exists to store the opening in, so it applies at once.
        let circuits = leader(None);
        fail(&circuits, 49);
        assert_eq!(open(&circuits), None);
        fail(&circuits, 1);
        let told = open(&circuits).expect("fifty are enough");
        assert!(!told.forced && (20_000..=33_000).contains(&told.retry_after_milliseconds), "{told:?}");
        circuits.pass(33_000);
        assert_eq!(open(&circuits).map(|open| open.retry_after_milliseconds), Some(0), "whoever wants to may ask now");
        for _ in 0..2 {
            let key = Key::commands("n");
            let permit = circuits.admit(&pool(), &key, Duration::from_secs(9)).await.expect("it is tried");
            assert!(open(&circuits).is_some_and(|open| open.retry_after_milliseconds > 0), "one at a time");
            circuits.complete(&key, &permit, crate::policy::breaker::Outcome::Success, "");
        }
        assert_eq!(open(&circuits), None);
    }

    #[test]
    fn an_opening_that_is_not_stored_is_nobodys_yet_and_a_person_needs_none() {
        let circuits = leader(Some(json!({})));
        fail(&circuits, 50);
        assert_eq!(open(&circuits), None, "its Breaker does not say so yet");
        assert_eq!(open(&leader(Some(json!({"force": "Open"})))).map(|open| open.forced), Some(true));
        assert_eq!(open(&leader(Some(json!({"force": "Open", "mode": "Observe"})))), None);
        let observed = leader(Some(json!({"mode": "Observe"})));
        fail(&observed, 100);
        assert_eq!(open(&observed), None);
    }
}
