//! How a circuit stands, for those who only look: pools that are blocked, agents that are told, people.

use jiff::Timestamp;

use super::circuits::Circuits;
use super::convert;
use super::key::Key;
use crate::cluster::ObjectKey;
use crate::policy::breaker::{Rejection, State};

/// How a circuit stands.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitStanding {
    /// Its name: of a model beyond those that have a circuit of their own the one that such models share.
    pub what: String,
    /// The Breaker that holds; none: the defaults do.
    pub breaker: Option<String>,
    /// Its state, as it was last asked.
    pub state: State,
    /// Why nobody would get a permit now, if nobody would.
    pub refuses: Option<Rejection>,
    /// Its epoch: what a person approves.
    pub epoch: u64,
    /// Openings in a row.
    pub opens: u32,
    /// Until when it is open, by the wall clock, as it is stored.
    pub until: Option<Timestamp>,
    /// The last failure, in words.
    pub last_failure: Option<String>,
    /// It is open, and a person has to approve that it is tried again.
    pub review: bool,
    /// How many may try at once whether things work again, if that is being tried or may be.
    pub probes: Option<u32>,
}

impl Circuits {
    /// How a circuit stands for the agents of `pool`. None: nothing is known yet.
    pub fn state(&self, pool: &ObjectKey, key: &Key) -> Option<CircuitStanding> {
        if !self.is_ready() {
            return None;
        }
        self.with(&pool.name, key, |state, slot| {
            let (at, wall) = (state.at(), state.wall());
            let home = slot.home.as_ref().map(|name| ObjectKey { namespace: slot.key.namespace.clone(), name: name.clone() });
            let breaker = home.and_then(|home| state.homes.get(&home)).map(|home| home.breaker.clone());
            let stored = breaker.iter().flat_map(|breaker| breaker.status.iter()).flat_map(|status| status.circuits.iter().flatten());
            let stored = stored.into_iter().find(|circuit| circuit.key == slot.key.what);
            let kept = state.circuits.get_mut(slot)?;
            let refuses = kept.circuit.refuses(at);
            let saved = kept.circuit.saved(at.now, wall);
            let until = convert::circuit(&slot.key.what, &saved, stored).open_until;
            Some(CircuitStanding {
                what: slot.key.what.clone(),
                breaker: slot.home.clone(),
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

    /// All circuits that are kept, for metrics: namespace, Breaker, circuit and state.
    pub fn all(&self) -> Vec<(String, String, String, State)> {
        let state = self.lock();
        let all = state
            .circuits
            .iter()
            .map(|(key, home, kept)| (key.namespace.clone(), home.unwrap_or_default().to_owned(), key.what.clone(), kept.circuit.state()));
        all.collect()
    }
}
