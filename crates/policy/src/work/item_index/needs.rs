//! Ready items that require something of a pool, and whether any pool has it.

use super::{ClaimClass, ItemIndex};
use crate::work::admission::Admission;
use crate::work::entry::Entry;
use crate::work::item::Phase;
use crate::work::requires::{PoolIntake, UnmetRequirement};

impl ItemIndex {
    /// Whether a ready item requires something. Only then it matters what pools have.
    pub fn needs_pools(&self) -> bool {
        !self.needing.is_empty()
    }

    /// Sets what the pools of the namespace take. If that changed, returns the ready items that require something.
    pub fn set_pools(&mut self, mut pools: Vec<PoolIntake>) -> Vec<String> {
        pools.sort(); // the order in which they were read is no change
        if self.pools.as_ref() == Some(&pools) {
            return Vec::new();
        }
        self.pools = Some(pools);
        self.needing.iter().cloned().collect()
    }

    /// Queue, class and submitter of a ready item that requires something.
    pub fn needs(&self, name: &str) -> Option<(String, ClaimClass, Option<String>)> {
        let entry = self.items.get(name).filter(|entry| entry.record.phase == Phase::Ready && !entry.spec.requires.is_empty())?;
        Some((Self::queue_of(entry), ClaimClass::of(&entry.spec), entry.spec.submitted_by.clone()))
    }

    /// Whether a queue has ready items of this class.
    pub fn has_class(&self, queue: &str, class: &ClaimClass) -> bool {
        self.ready_queues.get(queue).is_some_and(|line| line.ready.contains_key(class))
    }

    /// The requirements of a class that no pool of its queue meets: those of the pool that lacks the least. `None`: a
    /// pool meets all, no pool takes from the queue, or the pools are not known.
    pub fn lacking(&self, queue: &str, class: &ClaimClass) -> Option<Vec<UnmetRequirement>> {
        if class.requires().is_empty() {
            return None;
        }
        let takes = |pool: &&PoolIntake| pool.queues.iter().any(|(name, types)| name == queue && class.of_types(types));
        self.pools
            .iter()
            .flatten()
            .filter(takes)
            .map(|pool| pool.offer.lacks(class.requires()))
            .min_by_key(Vec::len)
            .filter(|lacks| !lacks.is_empty())
    }

    /// Whether pools take from the queue of a waiting item, or from the queue that it enters, and none of them meets
    /// its requirements. `None`: not known.
    pub(super) fn unmet(&self, entry: &Entry, admission: &Admission) -> Option<bool> {
        if entry.spec.requires.is_empty() || !entry.record.phase.waits() {
            return Some(false);
        }
        self.pools.as_ref()?;
        let queue = match admission {
            Admission::To(queue) => queue.clone(),
            Admission::Unknown | Admission::Refused(_) => Self::queue_of(entry),
        };
        Some(self.lacking(&queue, &ClaimClass::of(&entry.spec)).is_some())
    }
}
