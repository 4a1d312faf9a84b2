//! The part of the meter for Budgets, ClusterBudgets, Grants, and the budgets above a call.
//!
//! It must not do I/O. Invariant: an unknown budget never means "no limit".

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{self, Facts, Project};
use super::meter::{Meter, PlaceSpec, State};
use super::object::Object;
use super::record::Record;
use crate::api::cluster_budget::Defaults;
use crate::api::{Budget, ClusterBudget};
use crate::policy::budget::tree::{Tree, build};
use crate::policy::budget::{Grant, Key, Mode};

/// The budgets above an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Ancestors {
    /// The first place after the agent. `None` if nothing is above it.
    pub top: Option<Key>,
}

impl Meter {
    /// Sets the current objects, with the namespaces that have a pool or a Budget.
    pub fn set_tree(&self, clusters: &[Arc<ClusterBudget>], budgets: &[Arc<Budget>], projects: &BTreeMap<String, Project>) {
        let above: Vec<&ClusterBudget> = clusters.iter().map(AsRef::as_ref).collect();
        let below: Vec<&Budget> = budgets.iter().map(AsRef::as_ref).collect();
        let facts = facts::facts(&above, &below, projects);
        let objects = clusters.iter().map(|cluster| {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            (Key::Cluster(name), Object::Cluster(Arc::clone(cluster)))
        });
        let objects = objects.chain(budgets.iter().map(|budget| {
            let of = |name: &Option<String>| name.clone().unwrap_or_default();
            (Key::budget(&of(&budget.metadata.namespace), &of(&budget.metadata.name)), Object::Budget(Arc::clone(budget)))
        }));
        let objects: BTreeMap<Key, Object> = objects.collect();
        let mut state = self.lock();
        let state = &mut *state;
        state.projects = projects.keys().cloned().collect();
        let defaults = |project: (&String, &Project)| Some((project.0.clone(), facts::defaults_of(&above, Some(project.1))?.clone()));
        state.defaults = projects.iter().filter_map(defaults).collect();
        let anew = state.adopt(&objects);
        if facts != state.facts || anew {
            state.build_tree(facts);
            self.notify_writer();
        }
    }

    /// Sets all Grants that count.
    pub fn set_grants(&self, grants: BTreeMap<Key, Vec<Grant>>) {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let before = std::mem::replace(&mut state.granted, grants);
        for key in before.keys().filter(|key| !state.granted.contains_key(key)) {
            state.ledger.set_grants(now, key, &[]);
        }
        for (key, grants) in &state.granted {
            state.ledger.set_grants(now, key, grants);
        }
    }

    /// The place above the agents of a pool. `None` if it is not known yet: an unknown budget never means "no limit".
    pub fn above(&self, namespace: &str, budget: Option<&str>, default_exists: bool) -> Option<Ancestors> {
        let state = self.lock();
        if !state.projects.contains(namespace) {
            self.mark_stale();
            return None;
        }
        let own = match budget {
            Some(name) => Some(Key::budget(namespace, name)),
            None => Some(Key::budget(namespace, "default")).filter(|_| default_exists),
        };
        Some(Ancestors { top: own.or_else(|| state.top_by_namespace.get(namespace).cloned()) })
    }

    /// A place and all places above it.
    pub fn chain(&self, top: Option<&Key>) -> Vec<Key> {
        let state = self.lock();
        let next = |key: &Key| state.parents.get(key).cloned().flatten();
        std::iter::successors(top.cloned(), next).take(crate::policy::budget::MAX_PATH_LENGTH).collect()
    }

    /// The defaults for a namespace, from the ClusterBudget that binds it.
    pub fn defaults(&self, namespace: &str) -> Option<Defaults> {
        self.lock().defaults.get(namespace).cloned()
    }
}

impl State {
    /// Takes objects as they were read. Returns whether one is new or replaces another: the counts of its predecessor
    /// are gone.
    fn adopt(&mut self, objects: &BTreeMap<Key, Object>) -> bool {
        let other = |key: &Key, record: &Record| objects.get(key).is_none_or(|object| object.uid() != record.object.uid());
        let gone: Vec<Key> =
            self.records.iter().filter(|(key, record)| !key.is_leaf() && other(key, record)).map(|(key, _)| key.clone()).collect();
        if !gone.is_empty() {
            let of = |key: &Key| gone.contains(&key.record());
            let places: Vec<Key> = self.parents.keys().filter(|key| of(key)).cloned().collect();
            places.iter().for_each(|key| self.ledger.remove(key));
            gone.iter().for_each(|key| drop(self.records.remove(key)));
        }
        let mut anew = !gone.is_empty();
        for (key, object) in objects {
            match self.records.get_mut(key) {
                // Foreign changes of its record are detected when it is written.
                Some(record) => {
                    record.saw(key, object);
                }
                None => {
                    self.load(key, object.clone());
                    anew = true;
                }
            }
        }
        anew
    }

    fn build_tree(&mut self, facts: Facts) {
        let Tree { nodes, defects, mut tops } = build(&facts.clusters, &facts.budgets);
        // Namespaces beyond the bound lead to a place that does not exist, so nothing is given.
        for (cluster, namespace) in &facts.beyond {
            let key = Key::Namespace { cluster: cluster.clone(), namespace: namespace.clone() };
            tops.entry(namespace.clone()).or_insert(key);
        }
        self.parents = nodes.iter().map(|node| (node.key.clone(), node.parent.clone())).collect();
        self.enforced = nodes.iter().filter(|node| node.mode == Mode::Enforce).map(|node| node.key.clone()).collect();
        let mut written: BTreeMap<Key, PlaceSpec> = BTreeMap::new();
        for cluster in &facts.clusters {
            let beyond = facts.beyond.iter().filter(|(name, _)| *name == cluster.name).count();
            written.insert(Key::Cluster(cluster.name.clone()), PlaceSpec { beyond, ..PlaceSpec::default() });
        }
        for budget in &facts.budgets {
            let lowest = budget.thresholds.iter().map(|threshold| threshold.percent).min();
            written.insert(Key::budget(&budget.namespace, &budget.name), PlaceSpec { mode: budget.mode, lowest, ..PlaceSpec::default() });
        }
        for (key, defect) in defects {
            written.entry(key.record()).or_default().defects.push(defect);
        }
        self.ledger.set_tree(&nodes);
        (self.top_by_namespace, self.written, self.facts) = (tops, written, facts);
    }
}
