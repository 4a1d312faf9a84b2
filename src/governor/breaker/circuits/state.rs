//! Changes of the circuits by specs, by time, and by requests.

use std::collections::HashSet;
use std::sync::Arc;

use kube::ResourceExt;

use super::{BreakerRef, Slot, State, StoredCircuit, name_of};
use crate::api::Breaker;
use crate::api::breaker::BreakerStatus;
use crate::cluster::ObjectKey;
use crate::governor::breaker::convert::{self, CircuitSpec};
use crate::governor::breaker::key::Key;
use crate::governor::breaker::status::{CircuitView, Facts, next_status};
use crate::policy::breaker::selection::{Candidate, choose};
use crate::policy::breaker::{Callers, Circuit, Guard, Moment, PersistedCircuit, Settings, State as CircuitState};

fn newer(one: &Breaker, other: &Breaker) -> bool {
    let number = |breaker: &Breaker| breaker.metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
    number(one) > number(other)
}

impl State {
    pub fn current_moment(&self) -> Moment {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(self.skew);
        Moment { now, random: rand::random() }
    }

    pub fn wall(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond().saturating_add(i64::try_from(self.skew).unwrap_or(0))
    }

    /// The Breaker that applies to a pool, or, with an empty name, to all pools of the namespace together.
    pub fn breaker_for(&self, namespace: &str, pool: &str) -> Option<String> {
        let first = ObjectKey { namespace: namespace.to_owned(), name: String::new() };
        let homes = self.breakers.range(first..).take_while(|(name, _)| name.namespace == namespace);
        let candidates = homes.map(|(name, home)| Candidate { name: &name.name, pools: home.breaker.spec.pools.as_deref().unwrap_or(&[]) });
        choose(pool, candidates).map(str::to_owned)
    }

    fn home(&self, slot: &Slot) -> Option<&BreakerRef> {
        self.breakers.get(&name_of(slot)?)
    }

    /// The settings for the circuits of this Breaker, or of the namespace if none applies.
    pub fn spec_for(&self, namespace: &str, home: Option<&str>) -> CircuitSpec<'_> {
        let name = home.map(|home| ObjectKey { namespace: namespace.to_owned(), name: home.to_owned() });
        let own = name.and_then(|name| self.breakers.get(&name)).map(|home| &home.breaker.spec);
        CircuitSpec { own, defaults: self.defaults.get(namespace) }
    }

    pub(super) fn settings(&self, slot: &Slot, operation: u64) -> Settings {
        self.spec_for(&slot.key.namespace, slot.breaker.as_deref()).settings(slot.key.guard, operation)
    }

    fn operation(&self, key: &Key) -> u64 {
        let pool = key.pool().map(|pool| ObjectKey { namespace: key.namespace.clone(), name: pool.to_owned() });
        pool.and_then(|pool| self.pools.get(&pool)).copied().unwrap_or(0)
    }

    fn owner(&mut self) -> u64 {
        self.owners = self.owners.saturating_add(1);
        self.owners
    }

    /// Puts a circuit into its group, with the other circuits of its Breaker.
    fn keep(&mut self, slot: Slot, mut kept: StoredCircuit) {
        // The epoch in the status must not fall, also if it belongs to a pool that was deleted and created again.
        let stored =
            self.home(&slot).and_then(|home| home.breaker.status.as_ref()).into_iter().flat_map(|status| status.circuits.iter().flatten());
        let stored = stored.map(|circuit| convert::saved(circuit).epoch).max();
        kept.circuit.raise_epoch_floor(self.circuits.epoch(&slot).max(stored.unwrap_or(0)));
        self.dirty.extend(name_of(&slot));
        self.circuits.insert(slot, kept);
    }

    fn new_circuit(&mut self, slot: &Slot, load: Option<&PersistedCircuit>) -> StoredCircuit {
        let operation = self.operation(&slot.key);
        let settings = self.settings(slot, operation);
        let owner = self.owner();
        let circuit = match load {
            Some(saved) => Circuit::load(settings.clone(), owner, saved, self.current_moment(), self.wall()),
            None => Circuit::new(settings.clone(), owner),
        };
        let told = circuit.counts();
        let moved = self.current_moment().now;
        StoredCircuit {
            circuit,
            set: settings,
            operation,
            reported_counts: told,
            state_since: moved,
            callers: Callers::default(),
            last_failure: None,
        }
    }

    /// The slot of the circuit for an agent of `pool`. The circuit is created, or moved from the Breaker that applied
    /// before.
    pub(super) fn slot(&mut self, pool: &str, key: &Key) -> Slot {
        // A Breaker that names pools does not apply to the project.
        let pool = if key.guard == Guard::Project { "" } else { pool };
        let slot = Slot { key: self.effective_key(key), breaker: self.breaker_for(&key.namespace, pool) };
        if self.circuits.contains(&slot) {
            return slot;
        }
        // A pool or a project has one circuit of work, whichever Breaker applies.
        let key = &slot.key;
        let others = self.circuits.homes(key).into_iter().map(|home| Slot { key: key.clone(), breaker: home });
        let before = others.into_iter().find(|other| key.moves_between_breakers() || self.home(other).is_none());
        let kept = match before.and_then(|before| Some((self.circuits.remove(&before)?, before))) {
            Some((mut kept, before)) => {
                self.dirty.extend(name_of(&before));
                kept.circuit.mark_store_moved();
                kept.set = self.settings(&slot, kept.operation);
                let at = self.current_moment();
                kept.circuit.set(kept.set.clone(), at);
                kept
            }
            None => self.new_circuit(&slot, None),
        };
        self.keep(slot.clone(), kept);
        slot
    }

    /// The key itself, or the key of the shared circuit for a model without a circuit of its own. Agents choose the
    /// names of models, so there may be any number of names.
    fn effective_key(&mut self, key: &Key) -> Key {
        if self.circuits.may_have_own_circuit(key) {
            return key.clone();
        }
        let now = self.current_moment().now;
        for slot in self.circuits.circuits_to_scan(key, now) {
            let unneeded = |kept: &mut StoredCircuit| {
                let quiet = now.saturating_sub(kept.state_since) >= kept.circuit.settings().max_open;
                kept.circuit.is_idle(now) || (quiet && kept.circuit.is_unattended(now))
            };
            if self.circuits.get_mut(&slot).is_some_and(unneeded) {
                self.circuits.remove(&slot);
                self.dirty.extend(name_of(&slot));
            }
        }
        let shared = key.shared().filter(|_| !self.circuits.may_have_own_circuit(key));
        shared.unwrap_or_else(|| key.clone())
    }

    /// Processes a possible change of a circuit. Returns whether its state changed.
    pub(super) fn process_change(&mut self, slot: &Slot) -> bool {
        let at = self.current_moment();
        let Some(kept) = self.circuits.get_mut(slot) else { return false };
        let (now, before) = (kept.circuit.counts(), kept.reported_counts);
        kept.reported_counts = now;
        if slot.breaker.is_none() && kept.circuit.must_store() {
            kept.circuit.stored(kept.circuit.epoch()); // there is no Breaker to store it in
        }
        let guard = slot.key.guard.label();
        let (closed, open, half) = (CircuitState::Closed.label(), CircuitState::Open.label(), CircuitState::HalfOpen.label());
        let edges = [
            (closed, open, now.tripped - before.tripped),
            (open, half, now.tried - before.tried),
            (half, open, now.reopened - before.reopened),
            (half, closed, now.closed - before.closed),
        ];
        let mut moved = false;
        for (from, to, times) in edges.into_iter().filter(|(_, _, times)| *times > 0) {
            self.metrics.breaker_moved(guard, from, to, times);
            tracing::info!(circuit = %slot.key, breaker = slot.breaker.as_deref().unwrap_or_default(), from, to, "a circuit changed its state");
            moved = true;
        }
        if moved {
            kept.state_since = at.now;
            self.circuits.moved(slot);
            self.dirty.extend(name_of(slot));
        }
        moved
    }

    /// The status to write for a Breaker.
    pub(super) fn next_status(&mut self, name: &ObjectKey) -> Option<(Arc<Breaker>, BreakerStatus)> {
        let at = self.current_moment();
        let wall = self.wall();
        let breaker = Arc::clone(&self.breakers.get(name)?.breaker);
        let mut guarded: Vec<String> =
            self.pools.keys().filter(|pool| pool.namespace == name.namespace).map(|pool| pool.name.clone()).collect();
        let exists = |pool: &String| guarded.contains(pool);
        let unknown: Vec<String> = breaker.spec.pools.iter().flatten().filter(|pool| !exists(pool)).cloned().collect();
        guarded.retain(|pool| self.breaker_for(&name.namespace, pool).as_deref() == Some(&name.name));
        guarded.sort();
        let views = self.circuits.of(name).map(|(key, kept)| CircuitView {
            what: &key.name,
            guard: key.guard,
            saved: kept.circuit.to_persisted(at.now, wall),
            failures: kept.circuit.failures(at.now),
            last_failure: kept.last_failure.as_deref(),
            review: kept.circuit.awaits_approval(),
        });
        let views: Vec<CircuitView> = views.collect();
        let facts = Facts { name: &name.name, unknown: &unknown, guarded: &guarded };
        let status = next_status(&breaker, &facts, &views, jiff::Timestamp::now());
        Some((breaker, status))
    }

    /// Takes a Breaker as it was read, and the parts of it that are newer.
    pub(super) fn observe(&mut self, breaker: Arc<Breaker>) {
        let name = ObjectKey::of(breaker.as_ref());
        let known = self.breakers.get(&name);
        let same = known.is_some_and(|home| home.breaker.uid() == breaker.uid());
        if same && known.is_some_and(|home| !newer(&breaker, &home.breaker)) {
            return;
        }
        if !same {
            // The Breaker was replaced: none of its circuits is stored there.
            self.circuits.of(&name).for_each(|(_, kept)| kept.circuit.mark_store_moved());
        }
        let stored = breaker.status.iter().flat_map(|status| status.circuits.iter().flatten()).cloned().collect::<Vec<_>>();
        match self.breakers.get_mut(&name) {
            Some(home) if same => home.breaker = breaker,
            Some(_) | None => {
                let home = BreakerRef { breaker, writing: false, written: None, put_off: None, failures: 0 };
                self.breakers.insert(name.clone(), home);
            }
        }
        self.dirty.insert(name.clone());
        for circuit in stored {
            let Some(key) = Key::named(&name.namespace, &circuit.key) else { continue };
            let slot = Slot { key, breaker: Some(name.name.clone()) };
            let saved = convert::saved(&circuit);
            if self.circuits.get_mut(&slot).is_some_and(|kept| kept.circuit.epoch() >= saved.epoch) {
                continue;
            }
            let mut kept = self.new_circuit(&slot, Some(&saved));
            kept.last_failure = circuit.last_failure;
            self.keep(slot, kept);
        }
    }

    /// Removes the circuits of deleted pools, and circuits that are not needed any more.
    pub(super) fn tidy(&mut self) {
        let at = self.current_moment();
        let namespaces: HashSet<String> = self.pools.keys().map(|pool| pool.namespace.clone()).collect();
        for slot in self.circuits.slots() {
            let home = name_of(&slot);
            let homeless = !home.as_ref().is_some_and(|home| self.breakers.contains_key(home));
            let Some(kept) = self.circuits.get_mut(&slot) else { continue };
            let stays = match slot.key.pool() {
                Some(pool) => self.pools.contains_key(&ObjectKey { namespace: slot.key.namespace.clone(), name: pool.to_owned() }),
                None if slot.key.guard == Guard::Project => namespaces.contains(&slot.key.namespace),
                // Agents choose the names of models: a circuit that is unused and did not open lately is removed.
                None if slot.key.guard == Guard::Models && kept.circuit.is_idle(at.now) => {
                    kept.circuit.epoch() > 0 && at.now.saturating_sub(kept.state_since) < kept.circuit.settings().max_open
                }
                None if !homeless => true,
                None => namespaces.contains(&slot.key.namespace) && kept.circuit.state() != CircuitState::Closed,
            };
            if !stays {
                self.circuits.remove(&slot);
                self.dirty.extend(home);
            }
        }
        let homes = &self.breakers;
        self.circuits.forget_empty(|namespace, home| match home {
            Some(home) => homes.contains_key(&ObjectKey { namespace: namespace.to_owned(), name: home.to_owned() }),
            None => namespaces.contains(namespace),
        });
    }
}
