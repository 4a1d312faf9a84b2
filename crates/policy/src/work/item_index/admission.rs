//! Whether an item may enter a queue, from all that the index knows: queues, their items, keys, dependencies.
//!
//! It changes nothing.

use std::collections::HashSet;

use super::{ItemIndex, MATCHING_QUEUE_TIMEOUT, MISSING_QUEUE_TIMEOUT};
use crate::work::admission::{Admission, Refusal, enter, enter_project, route};
use crate::work::item::{Phase, Spec, UnixMillis};

impl ItemIndex {
    /// Whether the queue takes its type by name, and not as the default.
    fn takes_type(&self, queue: &str, spec: &Spec) -> bool {
        let types = self.queues.get(queue).map(|queue| &queue.types);
        types.is_some_and(|types| spec.type_.as_ref().is_some_and(|type_| types.contains(type_)))
    }

    /// Whether an item may enter a queue. Unknown while its queue may still be made.
    pub(super) fn admission_at(&self, name: &str, spec: &Spec, now: UnixMillis) -> Admission {
        match self.admission(name, spec) {
            Admission::Refused(Refusal::QueueMissing(_) | Refusal::TypeNotAccepted { .. })
                if now < spec.created.after(MISSING_QUEUE_TIMEOUT) =>
            {
                Admission::Unknown
            }
            Admission::To(queue)
                if now < spec.created.after(MATCHING_QUEUE_TIMEOUT) && spec.queue.is_none() && !self.takes_type(&queue, spec) =>
            {
                Admission::Unknown
            }
            admission => admission,
        }
    }

    /// Whether an item may enter a queue. `name` may be one that does not exist yet.
    pub fn admission(&self, name: &str, spec: &Spec) -> Admission {
        let refused = |refusal| Admission::Refused(refusal);
        if let Some(what) = &spec.unsupported {
            return refused(Refusal::Unsupported(what.clone()));
        }
        let (queue_name, queue) = match route(spec, self.queues.iter()) {
            Ok(found) => found,
            Err(refusal) => return refused(refusal),
        };
        // An item that does not exist yet comes after those that wait for admission. Those that wait are admitted in
        // turn.
        let known = self.items.get(name);
        let counts = |phase: Phase| !phase.ended() && (known.is_none() || phase != Phase::Pending);
        let own = known.is_some_and(|entry| counts(entry.record.phase) && Self::queue_of(entry) == *queue_name);
        let in_project = known.is_some_and(|entry| counts(entry.record.phase));
        let pending = self.ready_queues.get(queue_name).map_or(0, |line| line.count(counts));
        if let Err(refusal) = enter(spec, queue_name, queue, pending - u64::from(own)) {
            return refused(refusal);
        }
        if let Err(refusal) = enter_project(self.project_limit.as_ref(), self.phases.count(counts) - u64::from(in_project)) {
            return refused(refusal);
        }
        if let Some(twin) = self.duplicate_of(name, spec) {
            return refused(Refusal::Duplicate(twin));
        }
        if let Some(through) = self.cycle(name, spec) {
            return refused(Refusal::Cycle(through));
        }
        Admission::To(queue_name.clone())
    }

    /// The item that had the same key before: the earlier one by creation, then by name.
    fn duplicate_of(&self, name: &str, spec: &Spec) -> Option<String> {
        let key = spec.dedup_key.as_ref()?;
        let own = (spec.created, name);
        let twins = self.keys.get(key)?.iter().filter(|other| *other != name);
        twins
            .filter(|other| {
                let Some(entry) = self.items.get(*other) else { return false };
                let admitted = entry.record.phase != Phase::Pending && entry.record.phase != Phase::Rejected;
                admitted || (entry.record.phase == Phase::Pending && (entry.spec.created, other.as_str()) < own)
            })
            .min()
            .cloned()
    }

    /// The direct dependency through which it would wait for itself.
    fn cycle(&self, name: &str, spec: &Spec) -> Option<String> {
        if !self.dependents.contains_key(name) {
            return None; // no item waits for it
        }
        let mut seen = HashSet::new();
        spec.after.iter().map(|on| on.name.as_str()).find(|first| self.reaches(first, name, &mut seen)).map(str::to_owned)
    }

    /// Whether waiting for `from` means waiting for `to`. Items in `seen` do not lead to it.
    fn reaches<'a>(&'a self, from: &'a str, to: &str, seen: &mut HashSet<&'a str>) -> bool {
        let mut ahead = vec![from];
        while let Some(name) = ahead.pop() {
            if name == to {
                return true;
            }
            let Some(entry) = self.items.get(name) else { continue };
            if !entry.record.phase.ended() && seen.insert(name) {
                ahead.extend(entry.spec.after.iter().map(|on| on.name.as_str()));
            }
        }
        false
    }
}
