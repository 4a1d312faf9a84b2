//! Writes of Breakers' statuses: which is due, and what became of it. One of a Breaker is on its way at a time.

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

/// Counts alone are written at most this often.
const COUNTS_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// First and longest bound of the delay between tries of one write.
const WRITE_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Circuits {
    /// The next Breaker whose status is to be written, and what it shall say.
    pub(in crate::governor::breaker) fn next(&self) -> Option<(ObjectKey, Arc<Breaker>, BreakerStatus)> {
        let mut state = self.lock();
        let state = &mut *state;
        let names: Vec<ObjectKey> = state.dirty.iter().cloned().collect();
        for name in names {
            let Some((breaker, next)) = state.said(&name) else {
                state.dirty.remove(&name);
                continue;
            };
            let Some(home) = state.homes.get_mut(&name) else { continue };
            if home.writing || home.put_off.is_some_and(|(since, wait)| since.elapsed() < wait) {
                continue;
            }
            let stored = breaker.status.clone().unwrap_or_default();
            if next == stored {
                state.dirty.remove(&name);
                // Whoever waits for an opening that stands there already need not wait.
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
            match stored.get(key.what.as_str()) {
                Some(epoch) => kept.circuit.stored(*epoch),
                // There is no room for it: those that stand there are open too.
                None if stored.len() >= MAX_STATUS_CIRCUITS => {
                    tracing::warn!(circuit = %key, breaker = %name.name, "an open circuit is kept in memory only: the status of its Breaker is full of open circuits");
                    kept.circuit.stored(kept.circuit.epoch());
                }
                None => {}
            }
            moved |= !kept.circuit.must_store();
        }
        if moved {
            self.moved();
        }
    }

    /// A write was made; this is the object now.
    pub(in crate::governor::breaker) fn stored(&self, name: &ObjectKey, breaker: Breaker) {
        let mut state = self.lock();
        let breaker = Arc::new(breaker);
        if let Some(home) = state.homes.get_mut(name) {
            (home.writing, home.failures, home.put_off, home.written) = (false, 0, None, Some(BootTime::now()));
        }
        self.is_stored(&mut state, name, &breaker);
        state.observe(breaker);
        drop(state);
        self.moved();
    }

    /// The write met another one; this is the object now.
    pub(in crate::governor::breaker) fn conflicted(&self, name: &ObjectKey, live: Option<Breaker>) {
        let mut state = self.lock();
        match live {
            Some(live) => {
                let live = Arc::new(live);
                state.observe(Arc::clone(&live));
                self.is_stored(&mut state, name, &live);
            }
            None => drop(state.homes.remove(name)),
        }
        if let Some(home) = state.homes.get_mut(name) {
            home.writing = false;
        }
        state.dirty.insert(name.clone());
        drop(state);
        self.moved();
    }

    /// An object was read.
    pub(in crate::governor::breaker) fn saw(&self, live: Breaker) {
        self.lock().observe(Arc::new(live));
    }

    /// The write was not made. After how long it may be tried again.
    pub(in crate::governor::breaker) fn put_off(&self, name: &ObjectKey) -> Duration {
        let mut state = self.lock();
        state.dirty.insert(name.clone());
        let Some(home) = state.homes.get_mut(name) else { return WRITE_RETRY_BACKOFF.0 };
        home.writing = false;
        home.failures = home.failures.saturating_add(1);
        let wait = delay(home.failures, WRITE_RETRY_BACKOFF.0, WRITE_RETRY_BACKOFF.1, rand::random());
        home.put_off = Some((BootTime::now(), wait));
        wait
    }
}
