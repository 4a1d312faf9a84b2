//! Writes of the status of Breakers: which one is due, and its result. At most one write of a Breaker is in flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Circuits, State};
use crate::api::Breaker;
use crate::api::breaker::BreakerStatus;
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::governor::breaker::convert::MAX_STATUS_CIRCUITS;
use crate::governor::breaker::status::only_counts_differ;
use crate::policy::backoff::delay;

/// Minimum time between two writes of counts alone.
const COUNTS_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// First and longest bound of the delay between attempts of one write.
const WRITE_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Circuits {
    /// The next Breaker to write, and its new status.
    pub(in crate::governor::breaker) fn next(&self) -> Option<(ObjectKey, Arc<Breaker>, BreakerStatus)> {
        let mut state = self.lock();
        let state = &mut *state;
        let names: Vec<ObjectKey> = state.dirty.iter().cloned().collect();
        for name in names {
            let Some((breaker, next)) = state.next_status(&name) else {
                state.dirty.remove(&name);
                continue;
            };
            let Some(home) = state.breakers.get_mut(&name) else { continue };
            if home.writing || home.put_off.is_some_and(|(since, wait)| since.elapsed() < wait) {
                continue;
            }
            let stored = breaker.status.clone().unwrap_or_default();
            if next == stored {
                state.dirty.remove(&name);
                // Callers need not wait for an opening that is already in the status.
                self.is_stored(state, &name, &breaker);
                continue;
            }
            if only_counts_differ(&stored, &next) && home.written.is_some_and(|written| written.elapsed() < COUNTS_WRITE_INTERVAL) {
                continue;
            }
            home.writing = true;
            state.dirty.remove(&name);
            return Some((name, breaker, next));
        }
        None
    }

    fn is_stored(&self, state: &mut State, name: &ObjectKey, breaker: &Breaker) {
        let stored: HashMap<&str, u64> = breaker
            .status
            .iter()
            .flat_map(|status| status.circuits.iter().flatten())
            .map(|circuit| (circuit.key.as_str(), u64::try_from(circuit.epoch).unwrap_or(0)))
            .collect();
        let mut moved = false;
        for (key, kept) in state.circuits.of(name).filter(|(_, kept)| kept.circuit.must_store()) {
            match stored.get(key.name.as_str()) {
                Some(epoch) => kept.circuit.stored(*epoch),
                // The status is full of open circuits.
                None if stored.len() >= MAX_STATUS_CIRCUITS => {
                    tracing::warn!(circuit = %key, breaker = %name.name, "an open circuit is kept in memory only: the status of its Breaker is full of open circuits");
                    kept.circuit.stored(kept.circuit.epoch());
                }
                None => {}
            }
            moved |= !kept.circuit.must_store();
        }
        if moved {
            self.notify_change();
        }
    }

    /// Records that a write was made. `breaker` is the object now.
    pub(in crate::governor::breaker) fn stored(&self, name: &ObjectKey, breaker: Breaker) {
        let mut state = self.lock();
        let breaker = Arc::new(breaker);
        if let Some(home) = state.breakers.get_mut(name) {
            (home.writing, home.failures, home.put_off, home.written) = (false, 0, None, Some(BootTime::now()));
        }
        self.is_stored(&mut state, name, &breaker);
        state.observe(breaker);
        drop(state);
        self.notify_change();
    }

    /// Handles a conflict of a write. `live` is the object now.
    pub(in crate::governor::breaker) fn conflicted(&self, name: &ObjectKey, live: Option<Breaker>) {
        let mut state = self.lock();
        match live {
            Some(live) => {
                let live = Arc::new(live);
                state.observe(Arc::clone(&live));
                self.is_stored(&mut state, name, &live);
            }
            None => drop(state.breakers.remove(name)),
        }
        if let Some(home) = state.breakers.get_mut(name) {
            home.writing = false;
        }
        state.dirty.insert(name.clone());
        drop(state);
        self.notify_change();
    }

    /// Takes an object that was read.
    pub(in crate::governor::breaker) fn saw(&self, live: Breaker) {
        self.lock().observe(Arc::new(live));
    }

    /// Records that a write failed. Returns the delay before the next attempt.
    pub(in crate::governor::breaker) fn put_off(&self, name: &ObjectKey) -> Duration {
        let mut state = self.lock();
        state.dirty.insert(name.clone());
        let Some(home) = state.breakers.get_mut(name) else { return WRITE_RETRY_BACKOFF.0 };
        home.writing = false;
        home.failures = home.failures.saturating_add(1);
        let wait = delay(home.failures, WRITE_RETRY_BACKOFF.0, WRITE_RETRY_BACKOFF.1, rand::random());
        home.put_off = Some((BootTime::now(), wait));
        wait
    }
}
