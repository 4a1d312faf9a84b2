//! Service levels of a queue: which of its items are over them now, and whom to tell of it how often.
//!
//! It must not decide about an item: whoever is over goes on as before. What is over for less than a look and ends is not
//! counted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::entry::Entry;
use super::item::{Holder, Phase, UnixMillis};

/// Items that are told of one by one ...
pub const MAX_EVENTS_PER_WINDOW: u32 = 10;
/// ... within so long; those beyond are told together at its end.
pub const EVENT_WINDOW: Duration = Duration::from_secs(60);
/// Who looks for the first time takes what has been over for so long for told, by whoever looked before.
const ASSUMED_REPORTED_AFTER: Duration = Duration::from_secs(60);

/// What a queue promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objectives {
    /// From being ready for the first time to the first claim.
    pub wait: Option<Duration>,
    /// From being ready for the first time to the end.
    pub completion: Option<Duration>,
}

/// One of its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objective {
    /// To be claimed in time.
    Wait,
    /// To end in time.
    Completion,
}

impl Objective {
    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Completion => "completion",
        }
    }
}

/// An item that is over an objective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedObjective {
    /// Its name.
    pub item: String,
    /// Its uid.
    pub uid: String,
    /// Which.
    pub objective: Objective,
    /// Since when.
    pub since: UnixMillis,
    /// Who holds it.
    pub holder: Option<Holder>,
}

impl Objectives {
    /// Nothing is promised.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The objectives that an item is over now, with since when. One that a person suspended is over none.
    pub fn over(&self, entry: &Entry, now: UnixMillis) -> impl Iterator<Item = (Objective, UnixMillis)> + use<> {
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

/// What one look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectiveCheck {
    /// Items that are over an objective since the last look, those over for the longest first.
    pub new: Vec<MissedObjective>,
    /// So many of them, from the front, are told of one by one.
    pub told: usize,
    /// So many that were not told of one by one are told of together; none: it is not their time.
    pub more: Option<u64>,
}

/// What is remembered of one queue, for as long as one process looks.
#[derive(Clone, Debug, Default)]
pub struct ObjectiveWatch {
    looked: bool,
    known: BTreeSet<(String, Objective)>,
    /// When the present window began, and how many were told of in it.
    window: Option<(UnixMillis, u32)>,
    untold: u64,
}

impl ObjectiveWatch {
    /// Takes what is over now. `lives`: whether the item with this uid is there and has not ended; one that ended may be
    /// started again, and is told of again then.
    pub fn look(&mut self, mut over: Vec<MissedObjective>, lives: impl Fn(&str) -> bool, now: UnixMillis) -> ObjectiveCheck {
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
        let more = if window.is_none() { Some(std::mem::take(&mut self.untold)).filter(|more| *more > 0) } else { None };
        let (began, before) = window.unwrap_or((now, 0));
        let room = usize::try_from(MAX_EVENTS_PER_WINDOW.saturating_sub(before)).unwrap_or(0);
        let told = new.len().min(room);
        self.untold += u64::try_from(new.len() - told).unwrap_or(0);
        self.window = (window.is_some() || !new.is_empty()).then(|| (began, before + u32::try_from(told).unwrap_or(MAX_EVENTS_PER_WINDOW)));
        ObjectiveCheck { new, told, more }
    }
}

#[cfg(test)]
#[path = "objectives_tests.rs"]
mod tests;
