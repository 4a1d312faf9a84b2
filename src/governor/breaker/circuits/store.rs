//! The store of circuits, with indexes by key and Breaker, by owner, by provider, and of those that are half open, so
//! that no call iterates over circuits that it does not concern.
//!
//! Invariants: a removed circuit is in no index; a circuit that is read knows the highest epoch of its Breaker.

use std::collections::{BTreeSet, HashMap};

use super::slot::{Slot, StoredCircuit};
use crate::cluster::ObjectKey;
use crate::governor::breaker::Key;
use crate::policy::breaker::State as CircuitState;

/// Circuits that a namespace has for the models of one provider. Further models share one circuit.
pub const MAX_MODEL_CIRCUITS: usize = 64;

/// The circuits of one Breaker, or of a namespace without one.
#[derive(Default)]
struct Group {
    /// The highest epoch that any of its circuits ever had: a person approves all openings up to one.
    epoch: u64,
    circuits: HashMap<Key, StoredCircuit>,
}

/// The circuits of one provider's models.
#[derive(Default)]
struct Models {
    keys: BTreeSet<Key>,
    /// When the unneeded circuits were last searched, in milliseconds.
    seen: Option<u64>,
}

type CircuitPlace = (String, Option<String>);

/// Minimum time between two searches for unneeded circuits of a provider, however many new names are called.
const CIRCUIT_SCAN_INTERVAL_MS: u64 = 1000;

/// All circuits.
#[derive(Default)]
pub(in crate::governor::breaker) struct Store {
    groups: HashMap<CircuitPlace, Group>,
    /// The Breakers that have a circuit of a key.
    homes: HashMap<Key, BTreeSet<Option<String>>>,
    owners: HashMap<u64, Slot>,
    /// The circuits of models, except the shared ones, by namespace and provider.
    providers: HashMap<(String, String), Models>,
    /// The half-open circuits.
    tried: BTreeSet<Slot>,
    /// Number of circuits that were read, in a test.
    #[cfg(test)]
    pub looked: u64,
}

fn place(slot: &Slot) -> CircuitPlace {
    (slot.key.namespace.clone(), slot.breaker.clone())
}

/// The provider that a circuit counts for. `None` if it is not of a model, or is the shared one.
fn provider(key: &Key) -> Option<(String, String)> {
    let provider = key.provider().filter(|_| key.shared().is_some_and(|shared| shared != *key))?;
    Some((key.namespace.clone(), provider.to_owned()))
}

impl Store {
    /// The circuit of a slot.
    pub fn get_mut(&mut self, slot: &Slot) -> Option<&mut StoredCircuit> {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        let group = self.groups.get_mut(&place(slot))?;
        let kept = group.circuits.get_mut(&slot.key)?;
        kept.circuit.raise_epoch_floor(group.epoch);
        Some(kept)
    }

    /// Two circuits at once. `None` if one of them does not exist.
    pub fn get_both_mut(&mut self, one: &Slot, other: &Slot) -> Option<(&mut StoredCircuit, &mut StoredCircuit)> {
        #[cfg(test)]
        {
            self.looked += 2;
        }
        let with_epoch = |kept: &mut StoredCircuit, epoch| kept.circuit.raise_epoch_floor(epoch);
        if one == other {
            return None;
        }
        if place(one) == place(other) {
            let group = self.groups.get_mut(&place(one))?;
            let [Some(first), Some(second)] = group.circuits.get_disjoint_mut([&one.key, &other.key]) else { return None };
            with_epoch(first, group.epoch);
            with_epoch(second, group.epoch);
            return Some((first, second));
        }
        let [Some(first), Some(second)] = self.groups.get_disjoint_mut([&place(one), &place(other)]) else { return None };
        let epochs = (first.epoch, second.epoch);
        let (first, second) = (first.circuits.get_mut(&one.key)?, second.circuits.get_mut(&other.key)?);
        with_epoch(first, epochs.0);
        with_epoch(second, epochs.1);
        Some((first, second))
    }

    /// Whether the circuit exists.
    pub fn contains(&self, slot: &Slot) -> bool {
        self.homes.get(&slot.key).is_some_and(|homes| homes.contains(&slot.breaker))
    }

    /// The slot of the circuit with this owner number.
    pub fn slot_by_owner(&self, owner: u64) -> Option<Slot> {
        self.owners.get(&owner).cloned()
    }

    /// The Breakers with a circuit of this key. `None` is the circuit without a Breaker.
    pub fn homes(&self, key: &Key) -> Vec<Option<String>> {
        self.homes.get(key).into_iter().flatten().cloned().collect()
    }

    /// The highest epoch of the circuits of a Breaker.
    pub fn epoch(&self, slot: &Slot) -> u64 {
        self.groups.get(&place(slot)).map_or(0, |group| group.epoch)
    }

    /// Inserts a circuit, with an epoch that is not below those that its Breaker has or had.
    pub fn insert(&mut self, slot: Slot, mut kept: StoredCircuit) {
        self.remove(&slot);
        let group = self.groups.entry(place(&slot)).or_default();
        group.epoch = group.epoch.max(kept.circuit.epoch());
        kept.circuit.raise_epoch_floor(group.epoch);
        self.homes.entry(slot.key.clone()).or_default().insert(slot.breaker.clone());
        self.owners.insert(kept.circuit.owner(), slot.clone());
        if let Some(provider) = provider(&slot.key) {
            self.providers.entry(provider).or_default().keys.insert(slot.key.clone());
        }
        group.circuits.insert(slot.key.clone(), kept);
        self.moved(&slot);
    }

    /// Removes a circuit.
    pub fn remove(&mut self, slot: &Slot) -> Option<StoredCircuit> {
        let kept = self.groups.get_mut(&place(slot))?.circuits.remove(&slot.key)?;
        self.owners.remove(&kept.circuit.owner());
        self.tried.remove(slot);
        if let Some(homes) = self.homes.get_mut(&slot.key) {
            homes.remove(&slot.breaker);
            if !homes.is_empty() {
                return Some(kept);
            }
            self.homes.remove(&slot.key);
        }
        if let Some(provider) = provider(&slot.key)
            && let Some(models) = self.providers.get_mut(&provider)
        {
            models.keys.remove(&slot.key);
            if models.keys.is_empty() {
                self.providers.remove(&provider);
            }
        }
        Some(kept)
    }

    /// Updates the indexes after a possible change of state.
    pub fn moved(&mut self, slot: &Slot) {
        let Some(group) = self.groups.get_mut(&place(slot)) else { return };
        let Some(kept) = group.circuits.get(&slot.key) else { return };
        group.epoch = group.epoch.max(kept.circuit.epoch());
        match kept.circuit.state() {
            CircuitState::HalfOpen => {
                self.tried.insert(slot.clone());
            }
            CircuitState::Closed | CircuitState::Open => {
                self.tried.remove(slot);
            }
        }
    }

    /// The circuits that time alone may change.
    pub fn half_open(&self) -> Vec<Slot> {
        self.tried.iter().cloned().collect()
    }

    /// All circuits of a Breaker.
    pub fn of(&mut self, name: &ObjectKey) -> impl Iterator<Item = (&Key, &mut StoredCircuit)> {
        let group = self.groups.get_mut(&(name.namespace.clone(), Some(name.name.clone())));
        group.into_iter().flat_map(|group| {
            let epoch = group.epoch;
            group.circuits.iter_mut().map(move |(key, kept)| {
                kept.circuit.raise_epoch_floor(epoch);
                (key, kept)
            })
        })
    }

    /// All slots. Their number is bounded by pools, Breakers and providers.
    pub fn slots(&self) -> Vec<Slot> {
        self.iter().map(|(key, home, _)| Slot { key: key.clone(), breaker: home.map(str::to_owned) }).collect()
    }

    /// All circuits, with their Breakers.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, Option<&str>, &StoredCircuit)> {
        self.groups.iter().flat_map(|((_, home), group)| group.circuits.iter().map(move |(key, kept)| (key, home.as_deref(), kept)))
    }

    /// Whether a key may have a circuit of its own. If not, unneeded circuits must be searched first.
    pub fn may_have_own_circuit(&self, key: &Key) -> bool {
        let Some(provider) = provider(key) else { return true };
        self.homes.contains_key(key) || self.providers.get(&provider).is_none_or(|models| models.keys.len() < MAX_MODEL_CIRCUITS)
    }

    /// The circuits of the models of the same provider, if it is time to search for unneeded ones.
    pub fn circuits_to_scan(&mut self, key: &Key, now: u64) -> Vec<Slot> {
        let Some(models) = provider(key).and_then(|provider| self.providers.get_mut(&provider)) else { return Vec::new() };
        if models.seen.is_some_and(|seen| now < seen.saturating_add(CIRCUIT_SCAN_INTERVAL_MS)) {
            return Vec::new();
        }
        models.seen = Some(now);
        let slots = models.keys.iter().flat_map(|key| {
            let homes = self.homes.get(key).into_iter().flatten();
            homes.map(move |home| Slot { key: key.clone(), breaker: home.clone() })
        });
        slots.collect()
    }

    /// Forgets the epochs of deleted Breakers without circuits.
    pub fn forget_empty(&mut self, exists: impl Fn(&str, Option<&str>) -> bool) {
        self.groups.retain(|(namespace, home), group| !group.circuits.is_empty() || exists(namespace, home.as_deref()));
    }

    /// Checks that each circuit is in exactly its indexes.
    #[cfg(test)]
    pub fn check(&self) {
        let slots: BTreeSet<Slot> = self.slots().into_iter().collect();
        let by_key =
            self.homes.iter().flat_map(|(key, homes)| homes.iter().map(move |home| Slot { key: key.clone(), breaker: home.clone() }));
        assert_eq!(slots, by_key.collect::<BTreeSet<_>>());
        assert_eq!(slots, self.owners.values().cloned().collect::<BTreeSet<_>>());
        assert_eq!(slots.len(), self.owners.len());
        let models: BTreeSet<&Key> = self.providers.values().flat_map(|models| &models.keys).collect();
        assert_eq!(models, self.homes.keys().filter(|key| provider(key).is_some()).collect::<BTreeSet<_>>());
        assert!(self.providers.values().all(|models| !models.keys.is_empty() && models.keys.len() <= MAX_MODEL_CIRCUITS));
        let tried = self.iter().filter(|(_, _, kept)| kept.circuit.state() == CircuitState::HalfOpen).count();
        assert_eq!(tried, self.tried.len());
    }
}
