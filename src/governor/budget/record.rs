//! The record of one object, as far as we know its stored state, and the state of its writes.
//!
//! It decides nothing: `record_writes` decides which records are written, and when.

use std::time::Duration;

use super::object::Object;
use crate::cluster::clock::BootTime;
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{Key, PersistedRecord};

/// The record of an object, as far as we know its stored state.
pub(super) struct Record {
    /// The object as it was last read or answered, with the record in it.
    pub object: Object,
    pub known: PersistedRecord,
    /// Records that may have been written since: the answers never came.
    pub uncertain_writes: Vec<PersistedRecord>,
    pub writing: bool,
    pub written: Option<BootTime>,
    pub put_off: Option<(BootTime, Duration)>,
    pub failures: u32,
    /// The lifetime of an agent.
    pub lifetime: Option<Lifetime>,
    /// Its lifetime with a top-up that is not durable yet.
    pub pending_top_up: Option<Lifetime>,
    /// Since when the record is not needed any more.
    pub unneeded_since: Option<i64>,
}

impl Record {
    pub fn new(object: Object, known: PersistedRecord) -> Self {
        Self {
            object,
            known,
            uncertain_writes: Vec::new(),
            writing: false,
            written: None,
            put_off: None,
            failures: 0,
            lifetime: None,
            pending_top_up: None,
            unneeded_since: None,
        }
    }

    /// Takes an object as it was read. Returns whether its record is one of ours: if not, it is ignored.
    pub fn saw(&mut self, key: &Key, object: &Object) -> bool {
        let saved = object.saved(key);
        if saved != self.known && !self.uncertain_writes.contains(&saved) {
            return false;
        }
        if object.newer_than(&self.object) {
            self.known = saved;
            self.object = object.clone();
        }
        true
    }

    /// Drops the delays before the next write, in a test.
    #[cfg(test)]
    pub fn clear_delays(&mut self) {
        (self.put_off, self.written) = (None, None);
    }

    /// Whether no write of the record is in flight or delayed.
    pub fn is_free(&self) -> bool {
        !self.writing && self.put_off.is_none_or(|(since, wait)| since.elapsed() >= wait)
    }

    /// The conditions of its object.
    pub fn conditions(&self) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
        conditions(&self.object)
    }
}

/// The conditions of an object.
pub(super) fn conditions(object: &Object) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    match object {
        Object::Budget(budget) => budget.status.as_ref().map_or(&[], |status| &status.conditions),
        Object::Cluster(cluster) => cluster.status.as_ref().map_or(&[], |status| &status.conditions),
        Object::Agent(_) | Object::Item(_) => &[],
    }
}
