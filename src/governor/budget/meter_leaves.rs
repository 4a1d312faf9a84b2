//! The part of the meter for agents' lifetimes and items' shares: when they become places, are topped up, and are
//! removed.
//!
//! It must not do I/O. The writes that follow are made elsewhere.

use std::collections::BTreeSet;

use super::meter::Meter;
use super::object::Object;
use crate::policy::budget::share::{Lifetime, TopUp, agent, task};
use crate::policy::budget::{Key, Route};

/// How long an unneeded place is kept at least, in milliseconds, because a cache may lag behind ...
const MIN_LEAF_TTL_MS: i64 = 10_000;
/// ... and at most, for late settles.
const MAX_LEAF_TTL_MS: i64 = 120_000;
/// Agents whose call rates are kept. Beyond it all rates are forgotten.
const MAX_REMEMBERED_RATES: usize = 20_000;

impl Meter {
    /// Makes the lifetime of an agent a place, or updates its length.
    pub fn place_agent(&self, object: &Object, tokens: Lifetime) {
        let mut state = self.lock();
        let state = &mut *state;
        let key = Key::Agent(object.uid().to_owned());
        let anew = !state.records.contains_key(&key);
        if anew {
            state.load(&key, object.clone());
        }
        let Some(record) = state.records.get_mut(&key) else { return };
        let taken = record.object.top_ups();
        let life = Lifetime { taken, ..tokens };
        record.lifetime = Some(life);
        state.ledger.put(agent(object.uid(), &life));
        if let Some(grants) = state.granted.get(&key).filter(|_| anew) {
            let grants = grants.clone();
            let now = state.now();
            state.ledger.set_grants(now, &key, &grants);
        }
    }

    /// Whether a record exists, for example of an agent's lifetime.
    pub fn knows(&self, key: &Key) -> bool {
        self.lock().records.contains_key(key)
    }

    /// Makes the share of one lease of an item a place.
    pub fn place_task(&self, object: &Object, epoch: i64, tokens: i64) {
        let mut state = self.lock();
        let key = Key::Task { item: object.uid().to_owned(), epoch };
        if !state.records.contains_key(&key) {
            state.load(&key, object.clone());
        }
        state.ledger.put(task(object.uid(), epoch, tokens));
    }

    /// Removes the places of deleted agents, and of ended leases whose usage is all written.
    pub fn tidy(&self, lives: impl Fn(&Key) -> bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let due: BTreeSet<Key> = state.ledger.due(i64::MAX).into_iter().collect();
        let mut gone = Vec::new();
        for (key, record) in state.records.iter_mut().filter(|(key, _)| key.is_leaf()) {
            if lives(key) {
                record.unneeded_since = None;
                continue;
            }
            let since = *record.unneeded_since.get_or_insert(now);
            let quiet = !record.writing && !due.contains(key) && state.ledger.traffic(key).0 == 0;
            let over = now.saturating_sub(since);
            // A cache may lag behind a live read of a moment ago.
            if (quiet && over > MIN_LEAF_TTL_MS) || over > MAX_LEAF_TTL_MS {
                gone.push(key.clone());
            }
        }
        for key in gone {
            state.ledger.remove(&key);
            state.records.remove(&key);
        }
        if state.rates.len() > MAX_REMEMBERED_RATES {
            state.rates.clear();
        }
    }

    /// Takes one more top-up for a spent lifetime, if it has one left and the budgets above have enough tokens. Returns
    /// whether one is being written: then ask again.
    pub fn top_up(&self, uid: &str, above: &mut Route) -> bool {
        let mut state = self.lock();
        let left = state.ledger.available_tokens(above);
        let Some(record) = state.records.get_mut(&Key::Agent(uid.to_owned())) else { return false };
        let Some(life) = record.lifetime else { return false };
        match life.top_up(left) {
            TopUp::Granted(more) => {
                record.pending_top_up = Some(more);
                state.restate.insert(Key::Agent(uid.to_owned()));
                self.notify_writer();
                true
            }
            TopUp::Spent | TopUp::ParentsLack(_) => false,
        }
    }

    /// Whether a top-up is possible for a spent lifetime now.
    pub fn may_top_up(&self, uid: &str, above: &mut Route) -> bool {
        let mut state = self.lock();
        let left = state.ledger.available_tokens(above);
        let life = state.records.get(&Key::Agent(uid.to_owned())).and_then(|record| record.lifetime);
        life.is_some_and(|life| matches!(life.top_up(left), TopUp::Granted(_)))
    }
}
