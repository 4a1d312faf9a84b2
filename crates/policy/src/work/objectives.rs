//! Service levels of a queue: which items miss them now, and when people are notified.
//!
//! It decides nothing about an item: an item that misses an objective continues as before. A miss that ends before the
//! next look is not counted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::entry::Entry;
use super::item::{Holder, Phase, UnixMillis};

/// The most items that are reported one by one ...
pub const MAX_EVENTS_PER_WINDOW: u32 = 10;
/// ... within this time. The others are reported together at its end.
pub const EVENT_WINDOW: Duration = Duration::from_secs(60);
/// At the first look, items that have missed an objective for this long are taken as reported by an earlier leader.
const ASSUMED_REPORTED_AFTER: Duration = Duration::from_secs(60);

/// The service levels of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objectives {
    /// Time from the first ready phase to the first claim.
    pub wait: Option<Duration>,
    /// Time from the first ready phase to the end.
    pub completion: Option<Duration>,
}

/// One of the service levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objective {
    /// To be claimed in time.
    Wait,
    /// To end in time.
    Completion,
}

impl Objective {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Completion => "completion",
        }
    }
}

/// An item that misses an objective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedObjective {
    /// Its name.
    pub item: String,
    /// Its uid.
    pub uid: String,
    /// The objective.
    pub objective: Objective,
    /// Since when.
    pub since: UnixMillis,
    /// The holder of the item.
    pub holder: Option<Holder>,
}

impl Objectives {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The objectives that an item misses now, with the time since then. A suspended item misses none.
    pub fn missed(&self, entry: &Entry, now: UnixMillis) -> impl Iterator<Item = (Objective, UnixMillis)> + use<> {
        let Self { wait, completion } = *self;
        let record = &entry.record;
        let waits = record.phase == Phase::Ready && record.started.is_none();
        let unfinished = !record.phase.ended() && record.phase != Phase::Suspended;
        let promises = [(Objective::Wait, wait.filter(|_| waits)), (Objective::Completion, completion.filter(|_| unfinished))];
        let ready = entry.first_ready;
        promises
            .into_iter()
            .filter_map(move |(objective, within)| Some((objective, ready?.after(within?))))
            .filter(move |(_, since)| now > *since)
    }
}

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectiveCheck {
    /// Items that miss an objective since the last look, the longest misses first.
    pub new: Vec<MissedObjective>,
    /// The number of them, from the front, that are reported one by one.
    pub reported: usize,
    /// The number of earlier misses that are reported together now; `None`: not now.
    pub more: Option<u64>,
}

/// What one process remembers of a queue.
#[derive(Clone, Debug, Default)]
pub struct ObjectiveWatch {
    looked: bool,
    known: BTreeSet<(String, Objective)>,
    /// When the present window began, and how many items were reported in it.
    window: Option<(UnixMillis, u32)>,
    unreported: u64,
}

impl ObjectiveWatch {
    /// Compares with the items that miss an objective now. `lives`: whether the item with this uid exists and has not
    /// ended. An item that ended may be redriven, and is reported again then.
    pub fn check(&mut self, mut over: Vec<MissedObjective>, lives: impl Fn(&str) -> bool, now: UnixMillis) -> ObjectiveCheck {
        self.known.retain(|(uid, _)| lives(uid));
        let first = !std::mem::replace(&mut self.looked, true);
        over.sort_by(|one, other| (one.since, &one.uid, one.objective).cmp(&(other.since, &other.uid, other.objective)));
        let mut new = Vec::new();
        for one in over {
            let news = self.known.insert((one.uid.clone(), one.objective));
            if news && !(first && now.since(one.since) >= ASSUMED_REPORTED_AFTER) {
                new.push(one);
            }
        }
        let window = self.window.filter(|(began, _)| *began <= now && now.since(*began) < EVENT_WINDOW);
        let more = if window.is_none() { Some(std::mem::take(&mut self.unreported)).filter(|more| *more > 0) } else { None };
        let (began, before) = window.unwrap_or((now, 0));
        let room = usize::try_from(MAX_EVENTS_PER_WINDOW.saturating_sub(before)).unwrap_or(0);
        let told = new.len().min(room);
        self.unreported += u64::try_from(new.len() - told).unwrap_or(0);
        self.window = (window.is_some() || !new.is_empty()).then(|| (began, before + u32::try_from(told).unwrap_or(MAX_EVENTS_PER_WINDOW)));
        ObjectiveCheck { new, reported: told, more }
    }
}

#[cfg(test)]
#[path = "objectives_tests.rs"]
mod tests;
