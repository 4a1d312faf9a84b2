//! The meter's part for agents' lives and items' shares: when each becomes a place, is topped up, and is a place no more.
//!
//! It must not do I/O: what follows is written elsewhere.

use std::collections::BTreeSet;

use super::meter::Meter;
use super::object::Object;
use crate::policy::budget::share::{Lifetime, TopUp, agent, task};
use crate::policy::budget::{Key, Route};

/// What is not needed any more is kept for so long at least, in milliseconds: a cache may be behind ...
const MIN_LEAF_TTL_MS: i64 = 10_000;
/// ... and no longer than this for settles that are late.
const MAX_LEAF_TTL_MS: i64 = 120_000;
/// Agents whose rates are remembered; then those that were quiet are forgotten.
const MAX_REMEMBERED_RATES: usize = 20_000;

impl Meter {
    /// An agent's life is a place from now on, or is as long as this.
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

    /// Whether an agent's life is a place.
    pub fn knows(&self, key: &Key) -> bool {
        self.lock().records.contains_key(key)
    }

    /// The share of one lease of an item is a place from now on.
    pub fn place_task(&self, object: &Object, epoch: i64, tokens: i64) {
        let mut state = self.lock();
        let key = Key::Task { item: object.uid().to_owned(), epoch };
        if !state.records.contains_key(&key) {
            state.load(&key, object.clone());
        }
        state.ledger.put(task(object.uid(), epoch, tokens));
    }

    /// Agents that are gone, and leases that are over and of which everything is written, are places no more.
    pub fn tidy(&self, lives: impl Fn(&Key) -> bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let due: BTreeSet<Key> = state.ledger.due(i64::MAX).into_iter().collect();
        let mut gone = Vec::new();
        for (key, record) in state.records.iter_mut().filter(|(key, _)| key.is_leaf()) {
            if lives(key) {
                record.over = None;
                continue;
            }
            let since = *record.over.get_or_insert(now);
            let quiet = !record.writing && !due.contains(key) && state.ledger.traffic(key).0 == 0;
            let over = now.saturating_sub(since);
            // A cache may be behind what was read live a moment ago.
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

    /// An agent's life is spent: one more top-up, if it has one and the budgets above could bear it. Whether one is being
    /// written: then ask again.
    pub fn top_up(&self, uid: &str, above: &mut Route) -> bool {
        let mut state = self.lock();
        let left = state.ledger.room(above);
        let Some(record) = state.records.get_mut(&Key::Agent(uid.to_owned())) else { return false };
        let Some(life) = record.lifetime else { return false };
        match life.top_up(left) {
            TopUp::Granted(more) => {
                record.wants = Some(more);
                state.again.insert(Key::Agent(uid.to_owned()));
                self.work();
                true
            }
            TopUp::Spent | TopUp::ParentsLack(_) => false,
        }
    }

    /// Whether an agent whose life is spent could take a top-up now.
    pub fn may_top_up(&self, uid: &str, above: &mut Route) -> bool {
        let mut state = self.lock();
        let left = state.ledger.room(above);
        let life = state.records.get(&Key::Agent(uid.to_owned())).and_then(|record| record.lifetime);
        life.is_some_and(|life| matches!(life.top_up(left), TopUp::Granted(_)))
    }
}
