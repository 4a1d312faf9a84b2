//! The record of one object, as it is stored as far as we know, and the state of its writes.
//!
//! It decides nothing: which records are written, and when, is in `record_writes`.

use std::time::Duration;

use super::object::Object;
use crate::cluster::clock::BootTime;
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{Key, PersistedRecord};

/// An object's record, as it is stored as far as we know.
pub(super) struct Record {
    /// The object as it was read or answered last, with that record in it.
    pub object: Object,
    pub known: PersistedRecord,
    /// What may have been written since: the answer never came.
    pub doubts: Vec<PersistedRecord>,
    pub writing: bool,
    pub written: Option<BootTime>,
    pub put_off: Option<(BootTime, Duration)>,
    pub failures: u32,
    /// An agent's life.
    pub lifetime: Option<Lifetime>,
    /// Its life with a top-up that is not durable yet.
    pub wants: Option<Lifetime>,
    /// Since when it is not needed any more.
    pub over: Option<i64>,
}

impl Record {
    pub fn new(object: Object, known: PersistedRecord) -> Self {
        Self {
            object,
            known,
            doubts: Vec::new(),
            writing: false,
            written: None,
            put_off: None,
            failures: 0,
            lifetime: None,
            wants: None,
            over: None,
        }
    }

    /// The object, as somebody read it. Whether its record is one of ours: if it is not, nothing is believed of it.
    pub fn saw(&mut self, key: &Key, object: &Object) -> bool {
        let saved = object.saved(key);
        if saved != self.known && !self.doubts.contains(&saved) {
            return false;
        }
        if object.newer_than(&self.object) {
            self.known = saved;
            self.object = object.clone();
        }
        true
    }

    /// It is tried again at once, and written when it says something else.
    #[cfg(test)]
    pub fn be_impatient(&mut self) {
        (self.put_off, self.written) = (None, None);
    }

    /// No write of it is on its way, or put off.
    pub fn is_free(&self) -> bool {
        !self.writing && self.put_off.is_none_or(|(since, wait)| since.elapsed() >= wait)
    }

    /// The conditions that its object has.
    pub fn conditions(&self) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
        conditions(&self.object)
    }
}

/// The conditions that an object has.
pub(super) fn conditions(object: &Object) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    match object {
        Object::Budget(budget) => budget.status.as_ref().map_or(&[], |status| &status.conditions),
        Object::Cluster(cluster) => cluster.status.as_ref().map_or(&[], |status| &status.conditions),
        Object::Agent(_) | Object::Item(_) => &[],
    }
}
