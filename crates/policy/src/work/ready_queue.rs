//! The items of one queue by phase, and the small indexes of the item index. It decides nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::item::{Phase, Spec, UnixMillis};
use super::requires::{PoolOffer, Requires};
use super::selector::Selector;

/// The order in which items of one queue are given out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueRank(pub Reverse<i32>, pub UnixMillis, pub String);

/// What an item requires of the agent that takes it. Items with equal requirements are kept together, so that an agent
/// skips all items of a class that it cannot take.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimClass {
    type_: Option<String>,
    selector: Selector,
    requires: Requires,
}

impl ClaimClass {
    /// The class of this item.
    pub fn of(spec: &Spec) -> Self {
        Self { type_: spec.type_.clone(), selector: spec.selector.clone(), requires: spec.requires.clone() }
    }

    /// Whether its type is among these (empty: all types).
    pub fn of_types(&self, types: &[String]) -> bool {
        types.is_empty() || self.type_.as_ref().is_some_and(|type_| types.contains(type_))
    }

    /// What the pool must have.
    pub fn requires(&self) -> &Requires {
        &self.requires
    }

    /// Whether a pool with this offer meets its requirements.
    pub fn met_by(&self, offer: &PoolOffer) -> bool {
        offer.meets(&self.requires)
    }

    /// Whether an agent with these labels may take it.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.matches(labels)
    }
}

/// The number of items in each phase.
#[derive(Clone, Debug, Default)]
pub struct Phases(BTreeMap<Phase, u64>);

impl Phases {
    pub fn add(&mut self, phase: Phase) {
        *self.0.entry(phase).or_default() += 1;
    }

    pub fn remove(&mut self, phase: Phase) {
        if let Some(count) = self.0.get_mut(&phase) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&phase);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn counts(&self) -> &BTreeMap<Phase, u64> {
        &self.0
    }

    pub fn count(&self, wanted: impl Fn(Phase) -> bool) -> u64 {
        self.0.iter().filter(|(phase, _)| wanted(**phase)).map(|(_, count)| count).sum()
    }
}

/// The items of one queue.
#[derive(Clone, Debug, Default)]
pub struct ReadyQueue {
    pub ready: BTreeMap<ClaimClass, BTreeSet<QueueRank>>,
    pub since: BTreeSet<(UnixMillis, String)>,
    pub ready_keys: HashMap<String, u64>,
    pub held_keys: HashMap<String, u64>,
    /// Ended items except dead letters, by the time of their end.
    pub finished: BTreeSet<(UnixMillis, String)>,
    /// Dead letters, by the time when they became one.
    pub dead_letters: BTreeSet<(UnixMillis, String)>,
    pub phases: Phases,
}

impl ReadyQueue {
    /// The ready items of the classes that fit, in the order of claims.
    pub fn in_order(&self, fits: impl Fn(&ClaimClass) -> bool) -> impl Iterator<Item = &QueueRank> {
        let mut classes: Vec<_> = self.ready.iter().filter(|(class, _)| fits(class)).map(|(_, ranks)| ranks.iter().peekable()).collect();
        std::iter::from_fn(move || {
            let (_, first) = classes.iter_mut().enumerate().filter_map(|(at, ranks)| Some((*ranks.peek()?, at))).min()?;
            classes.get_mut(first)?.next()
        })
    }

    /// The set that an item which ended in `phase` is in.
    pub fn ended_mut(&mut self, phase: Phase) -> &mut BTreeSet<(UnixMillis, String)> {
        if phase == Phase::DeadLettered { &mut self.dead_letters } else { &mut self.finished }
    }

    pub fn count(&self, wanted: impl Fn(Phase) -> bool) -> u64 {
        self.phases.count(wanted)
    }
}

pub fn add_name<K: std::hash::Hash + Eq>(index: &mut HashMap<K, BTreeSet<String>>, key: K, name: &str) {
    index.entry(key).or_default().insert(name.to_owned());
}

pub fn remove_name<K: std::hash::Hash + Eq>(index: &mut HashMap<K, BTreeSet<String>>, key: &K, name: &str) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

pub fn increment<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u64>, key: K) {
    *counts.entry(key).or_default() += 1;
}

pub fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u64>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
