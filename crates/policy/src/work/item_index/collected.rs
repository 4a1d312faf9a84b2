//! Which ended items may be removed, and why. It changes nothing.
//!
//! What always holds: an item that an unfinished item names is kept, and so is an item that another tool would create
//! again. Dead letters are counted and timed apart from all others, so neither displaces the other.

use super::ItemIndex;
use crate::work::entry::Entry;
use crate::work::item::{Phase, UnixMillis};
use crate::work::transitions::retention_over;

/// Why an ended item is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Removal {
    /// It was kept as long as its queue says.
    TimeOver,
    /// Its queue keeps fewer ended items, and this is one of the oldest.
    TooMany,
}

impl ItemIndex {
    /// Why an ended item may be removed; `None`: it may not.
    pub fn removal(&self, name: &str, now: UnixMillis) -> Option<Removal> {
        let entry = self.items.get(name).filter(|entry| entry.record.phase.ended() && entry.unsaved.is_none() && !entry.tracked)?;
        let removal = if retention_over(&entry.record, &self.policy(entry), now) {
            Removal::TimeOver
        } else if self.is_surplus(name, entry) {
            Removal::TooMany
        } else {
            return None;
        };
        let lives = |other: &String| self.items.get(other).is_some_and(|entry| !entry.record.phase.ended());
        let plan = entry.spec.plan.as_ref().and_then(|(plan, _)| self.plans.get(plan));
        let needed = self.dependents.get(name).into_iter().flatten().chain(plan.into_iter().flatten()).any(lives);
        (!needed).then_some(removal)
    }

    fn is_surplus(&self, name: &str, entry: &Entry) -> bool {
        let dead = entry.record.phase == Phase::DeadLettered;
        self.oldest_beyond(&Self::queue_of(entry), dead).any(|surplus| surplus == name)
    }

    /// The oldest ended items of a queue beyond its limit: dead letters, or all others.
    fn oldest_beyond(&self, queue: &str, dead: bool) -> impl Iterator<Item = &String> {
        let kept =
            self.queues.get(queue).zip(self.ready_queues.get(queue)).map(|(queue, line)| {
                if dead { (&line.dead_letters, queue.max_dead_letters) } else { (&line.finished, queue.max_finished) }
            });
        kept.into_iter().flat_map(|(ended, most)| {
            let surplus = ended.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
            ended.iter().take(surplus).map(|(_, name)| name)
        })
    }

    /// The oldest ended items of a queue beyond its limits.
    pub fn surplus(&self, queue: &str) -> Vec<String> {
        self.oldest_beyond(queue, false).chain(self.oldest_beyond(queue, true)).cloned().collect()
    }

    /// Sets the timers of a queue's ended items again, after a change of the queue.
    pub(super) fn time_ended_anew(&mut self, queue: &str) {
        let Some(line) = self.ready_queues.get(queue) else { return };
        let ended: Vec<String> = line.finished.iter().chain(&line.dead_letters).map(|(_, name)| name.clone()).collect();
        // The timer of an ended item does not depend on the time of the call.
        ended.iter().for_each(|name| self.set_timer(name, UnixMillis::default()));
    }

    /// Since when the oldest dead letter of a queue is one.
    pub fn oldest_dead_letter(&self, queue: &str) -> Option<UnixMillis> {
        self.ready_queues.get(queue)?.dead_letters.first().map(|(at, _)| *at)
    }
}
