//! A read-only view of a circuit, for the conditions of pools, for agents and for people.

use jiff::Timestamp;

use super::circuits::Circuits;
use super::convert;
use super::key::Key;
use crate::cluster::ObjectKey;
use crate::policy::breaker::{Rejection, State};

/// The state of a circuit.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitStanding {
    /// Its name. For a model without a circuit of its own, the name of the shared circuit.
    pub what: String,
    /// The Breaker that applies. `None` if the defaults apply.
    pub breaker: Option<String>,
    /// Its state at the last request.
    pub state: State,
    /// Why a request for a permit would be refused now, if so.
    pub refuses: Option<Rejection>,
    /// Its epoch, which a person approves.
    pub epoch: u64,
    /// Consecutive openings.
    pub opens: u32,
    /// Until when it is open, in wall-clock time, as it is stored.
    pub until: Option<Timestamp>,
    /// The message of the last failure.
    pub last_failure: Option<String>,
    /// Whether it is open and a person must approve the next try.
    pub review: bool,
    /// The number of concurrent probes, if the circuit is half open or may become so.
    pub probes: Option<u32>,
}

impl Circuits {
    /// The state of a circuit for the agents of `pool`. `None` if nothing is loaded yet.
    pub fn state(&self, pool: &ObjectKey, key: &Key) -> Option<CircuitStanding> {
        if !self.is_ready() {
            return None;
        }
        self.with(&pool.name, key, |state, slot| {
            let (at, wall) = (state.current_moment(), state.wall());
            let home = slot.breaker.as_ref().map(|name| ObjectKey { namespace: slot.key.namespace.clone(), name: name.clone() });
            let breaker = home.and_then(|home| state.breakers.get(&home)).map(|home| home.breaker.clone());
            let stored = breaker.iter().flat_map(|breaker| breaker.status.iter()).flat_map(|status| status.circuits.iter().flatten());
            let stored = stored.into_iter().find(|circuit| circuit.key == slot.key.name);
            let kept = state.circuits.get_mut(slot)?;
            let refuses = kept.circuit.rejection(at);
            let saved = kept.circuit.to_persisted(at.now, wall);
            let until = convert::circuit(&slot.key.name, &saved, stored).open_until;
            Some(CircuitStanding {
                what: slot.key.name.clone(),
                breaker: slot.breaker.clone(),
                state: saved.state,
                refuses,
                epoch: saved.epoch,
                opens: saved.opens,
                until: until.map(|until| until.0),
                last_failure: kept.last_failure.clone(),
                review: kept.circuit.awaits_approval(),
                probes: kept.circuit.probes(),
            })
        })
    }

    /// All circuits, for metrics: namespace, Breaker, circuit and state.
    pub fn all(&self) -> Vec<(String, String, String, State)> {
        let state = self.lock();
        let all = state
            .circuits
            .iter()
            .map(|(key, home, kept)| (key.namespace.clone(), home.unwrap_or_default().to_owned(), key.name.clone(), kept.circuit.state()));
        all.collect()
    }
}
