//! Events of items, each counted once: arrivals, claims, ends of attempts and of items.
//!
//! Claims and ends are counted from the difference between a stored record and the last one that was seen. So a version
//! that is seen twice (in the answer to a write and in the watch, or in a new list) counts nothing, and a write whose
//! answer was lost counts when it is seen. A new leader takes the records of its first look as counted by an earlier
//! leader. What always holds: one tally counts no event twice.

use std::collections::HashMap;
use std::time::Duration;

use super::item::{Attempt, Phase, Record, UnixMillis, Verb};

/// Times of ends are stored in whole seconds, so the real end is later by at most this.
const STORED_TIME_ROUNDING: Duration = Duration::from_millis(999);

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// By this verb in the item's history.
    By(Verb),
    /// Its item was deleted.
    Deleted,
}

impl AttemptEnd {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::By(verb) => verb.name(),
            Self::Deleted => DELETED_REASON,
        }
    }
}

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemEnd {
    /// In this phase.
    In(Phase),
    /// It was deleted before its end.
    Deleted,
}

impl ItemEnd {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::In(phase) => phase.name(),
            Self::Deleted => DELETED_REASON,
        }
    }
}

/// The name of the end of a deleted item.
const DELETED_REASON: &str = "Deleted";

/// An event of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemEvent {
    /// It was admitted, or ended before that.
    Arrived,
    /// It was started again after its end.
    Redriven,
    /// An agent got it, this long after it was ready; `None`: the time when it was ready is not known.
    Claimed(Option<Duration>),
    /// An attempt ended, this long after it began.
    AttemptEnded(AttemptEnd, Duration),
    /// It ended.
    Ended(ItemEnd),
}

/// What was counted for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountedItem {
    arrived: bool,
    redrives: i64,
    /// The epoch of its last claim.
    claimed: i64,
    /// The epoch of the last attempt whose end was counted.
    ended_attempt: i64,
    /// It has ended.
    ended: bool,
    /// Since when its holder has it.
    held_since: Option<UnixMillis>,
    /// When it last became ready.
    ready: Option<UnixMillis>,
}

impl CountedItem {
    fn of(record: &Record) -> Self {
        Self {
            arrived: record.phase != Phase::Pending || record.epoch > 0 || record.redrives > 0,
            redrives: record.redrives,
            claimed: record.epoch,
            ended_attempt: last_attempt(record),
            ended: record.phase.ended(),
            held_since: record.holder.as_ref().map(|holder| holder.since),
            ready: None,
        }
    }
}

fn last_attempt(record: &Record) -> i64 {
    record.history.iter().map(|attempt| attempt.epoch).max().unwrap_or(0)
}

/// The counted state of a namespace's items.
#[derive(Clone, Debug, Default)]
pub struct Tally(HashMap<String, CountedItem>);

impl Tally {
    /// The item with this uid is stored with this record. Returns the events since it was last seen.
    pub fn observe_stored(&mut self, uid: &str, record: &Record, now: UnixMillis) -> Vec<ItemEvent> {
        let Some(counted) = self.0.get_mut(uid) else {
            self.0.insert(uid.to_owned(), CountedItem::of(record));
            return Vec::new();
        };
        let mut happened = Vec::new();
        if !counted.arrived && record.phase != Phase::Pending {
            happened.push(ItemEvent::Arrived);
        }
        let times = |count: i64| usize::try_from(count).unwrap_or(0);
        happened.extend(std::iter::repeat_n(ItemEvent::Redriven, times(record.redrives - counted.redrives)));
        // If there were several claims, only the times of the last one are known.
        let claims = times(record.epoch - counted.claimed);
        let last = record.history.last().filter(|attempt| attempt.epoch == record.epoch);
        let since = record.holder.as_ref().map(|holder| holder.since).or_else(|| last.map(|attempt| attempt.start));
        let waited = counted.ready.zip(since).map(|(ready, since)| since.since(ready));
        happened.extend(std::iter::repeat_n(ItemEvent::Claimed(None), claims.saturating_sub(1)));
        happened.extend((claims > 0).then_some(ItemEvent::Claimed(waited)));
        for attempt in record.history.iter().filter(|attempt| attempt.epoch > counted.ended_attempt) {
            let began = counted.held_since.filter(|_| attempt.epoch == counted.claimed).unwrap_or(attempt.start);
            happened.push(ItemEvent::AttemptEnded(AttemptEnd::By(attempt.verb), ended_at(attempt, now).since(began)));
        }
        // An item that was redriven and has ended since has ended once more.
        if record.phase.ended() && (!counted.ended || record.redrives > counted.redrives) {
            happened.push(ItemEvent::Ended(ItemEnd::In(record.phase)));
        }
        let known = *counted;
        *counted = CountedItem {
            arrived: known.arrived || record.phase != Phase::Pending,
            ended_attempt: known.ended_attempt.max(last_attempt(record)),
            ready: known.ready.filter(|_| claims == 0 && !record.phase.ended()),
            ..CountedItem::of(record)
        };
        happened
    }

    /// Its phase is decided, and not stored yet.
    pub fn observe_phase(&mut self, uid: &str, phase: Phase) -> Option<ItemEvent> {
        let counted = self.0.get_mut(uid).filter(|counted| !counted.arrived && phase != Phase::Pending)?;
        counted.arrived = true;
        Some(ItemEvent::Arrived)
    }

    /// It has been ready since then.
    pub fn ready(&mut self, uid: &str, since: UnixMillis) {
        if let Some(counted) = self.0.get_mut(uid) {
            counted.ready = Some(since);
        }
    }

    /// It was deleted.
    pub fn observe_deleted(&mut self, uid: &str, now: UnixMillis) -> Vec<ItemEvent> {
        let Some(counted) = self.0.remove(uid).filter(|counted| !counted.ended) else { return Vec::new() };
        let arrived = (!counted.arrived).then_some(ItemEvent::Arrived);
        let attempt = counted.held_since.map(|since| ItemEvent::AttemptEnded(AttemptEnd::Deleted, now.since(since)));
        arrived.into_iter().chain(attempt).chain([ItemEvent::Ended(ItemEnd::Deleted)]).collect()
    }

    /// The number of remembered items.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no item is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// When an attempt ended. The time is stored in whole seconds, and it is seen soon after.
fn ended_at(attempt: &Attempt, now: UnixMillis) -> UnixMillis {
    attempt.end.max(now.min(attempt.end.after(STORED_TIME_ROUNDING)))
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
