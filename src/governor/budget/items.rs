//! Token usage of items without a share: counted in memory, and stored with the next write of the item. An extra write
//! is made only if the item has ended before its last call was settled.
//!
//! The numbers are for people, and no limit applies to them. Usage that is not stored is lost with the leader or the
//! item. Stored usage counts once, even if the answer to a write was lost.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::budget::{SessionId, Settle, Weights};

/// Writes of one item with an unknown result that are kept.
const MAX_UNCERTAIN_WRITES: usize = 8;

/// The usage to be stored for one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemUsage {
    /// Tokens used by all attempts: the new value in the status.
    pub total: i64,
    /// The part of `total` that is not in the status yet.
    pub part: i64,
}

/// The usage of one item.
#[derive(Debug, Default)]
pub(super) struct Item {
    /// Unsettled holds.
    pub open: usize,
    /// Used tokens that are not stored. Negative if too much was stored, for example for calls whose lost gateway came
    /// back.
    pub unstored: i64,
    pub uncertain_writes: Vec<ItemUsage>,
}

/// An item that ended before its calls were settled.
#[derive(Debug)]
pub(super) struct LateItem {
    /// The item.
    pub key: ObjectKey,
    /// When the item ended.
    pub since: BootTime,
    /// A task is storing its usage now.
    pub storing: bool,
}

/// The usage of items, by uid.
#[derive(Debug, Default)]
pub struct Items {
    pub(super) holds: HashMap<(SessionId, u64), String>,
    /// Tokens that were counted for holds of lost gateways. A gateway may come back and report their real usage.
    pub(super) lost: HashMap<(SessionId, u64), (String, i64)>,
    pub(super) items: HashMap<String, Item>,
    /// Ended items with open calls, whose usage is still to be stored.
    pub(super) late: HashMap<String, LateItem>,
    /// Notified when the last open call of an item is settled.
    pub(super) none_open: Arc<Notify>,
}

impl Items {
    /// Records that a hold is for an item.
    pub fn held(&mut self, session: SessionId, id: u64, item: &str) {
        // The same hold may be confirmed again, if the first answer was lost.
        if self.holds.insert((session, id), item.to_owned()).is_none() {
            self.items.entry(item.to_owned()).or_default().open += 1;
        }
    }

    /// Records that a hold was settled. A repeated settle counts nothing.
    pub fn settled(&mut self, session: SessionId, settle: &Settle) {
        if let Some(item) = self.holds.remove(&(session, settle.hold)) {
            self.close_hold(&item, settle.charged(&Weights::default()));
        }
    }

    /// Closes a hold with this usage.
    fn close_hold(&mut self, item: &str, used: i64) {
        let item = self.items.entry(item.to_owned()).or_default();
        item.open = item.open.saturating_sub(1);
        item.unstored = item.unstored.saturating_add(used);
        if item.open == 0 {
            self.none_open.notify_waiters();
        }
    }

    /// Records that a session began, or began again, with these settles. Of its other holds only those are open that
    /// the ledger knows.
    pub fn record_session_start(&mut self, session: SessionId, settles: &[Settle], is_open: impl Fn(u64) -> bool) {
        // The holds of a lost gateway count no more when it is back: it reports their usage, or that the call
        // continues.
        let back: Vec<_> = self.lost.extract_if(|(of, _), _| *of == session).collect();
        for ((_, hold), (item, counted)) in back {
            self.held(session, hold, &item);
            let item = self.items.entry(item).or_default();
            item.unstored = item.unstored.saturating_sub(counted);
        }
        settles.iter().for_each(|settle| self.settled(session, settle));
        let closed = self.holds.extract_if(|(of, hold), _| *of == session && !is_open(*hold));
        let closed: Vec<String> = closed.map(|(_, item)| item).collect();
        closed.iter().for_each(|item| self.close_hold(item, 0));
    }

    /// Records that a session is lost: each of its holds counts as fully used, finally once the ledger forgets the
    /// hold.
    pub fn lost(&mut self, session: SessionId, held: impl Fn(SessionId, u64) -> Option<i64>) {
        self.lost.retain(|(of, hold), _| held(*of, *hold).is_some());
        let lost: Vec<_> = self.holds.extract_if(|(of, _), _| *of == session).collect();
        for (key, item) in lost {
            let held = held(key.0, key.1).unwrap_or(0);
            self.close_hold(&item, held);
            self.lost.insert(key, (item, held));
        }
    }

    /// Whether an item has an unsettled call.
    pub(super) fn is_open(&self, uid: &str) -> bool {
        self.items.get(uid).is_some_and(|item| item.open > 0)
    }

    /// The usage to store for an item whose status has this value. `None` if there is nothing new.
    pub(super) fn unstored_usage(&mut self, uid: &str, stored: i64) -> Option<ItemUsage> {
        let item = self.items.get_mut(uid)?;
        if let Some(made) = item.uncertain_writes.iter().position(|told| told.total == stored) {
            item.unstored = item.unstored.saturating_sub(item.uncertain_writes[made].part);
            item.uncertain_writes.clear();
        }
        (item.unstored != 0).then(|| ItemUsage { total: stored.saturating_add(item.unstored).max(0), part: item.unstored })
    }

    /// Records that the usage was stored, or, with `doubt`, that it may have been.
    pub(super) fn told(&mut self, uid: &str, told: ItemUsage, doubt: bool) {
        let Some(item) = self.items.get_mut(uid) else { return };
        if !doubt {
            item.unstored = item.unstored.saturating_sub(told.part);
            item.uncertain_writes.clear();
        } else if item.uncertain_writes.len() < MAX_UNCERTAIN_WRITES {
            item.uncertain_writes.push(told);
        }
    }

    /// Forgets all other items.
    pub(super) fn keep(&mut self, items: impl Fn(&str) -> bool) {
        let kept = |uid: &String| items(uid) || self.late.contains_key(uid);
        self.items.retain(|uid, _| kept(uid));
        self.holds.retain(|_, uid| kept(uid));
        self.lost.retain(|_, (uid, _)| kept(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::{Ledger, Quality, SessionLog, Usage};

    fn session() -> SessionId {
        Ledger::new(0).begin(0, "g", &SessionLog { next_hold: 1, ..SessionLog::default() }).0
    }

    fn settle(hold: u64, output: i64, quality: Quality) -> Settle {
        Settle { seq: hold, hold, usage: Usage { output, ..Usage::default() }, quality, input: 0, output: 50 }
    }

    fn used(items: &mut Items, id: u64, output: i64, quality: Quality) {
        items.held(session(), id, "i");
        items.settled(session(), &settle(id, output, quality));
    }

    #[test]
    fn what_was_used_is_told_once() {
        let mut items = Items::default();
        assert_eq!(items.unstored_usage("i", 0), None);
        used(&mut items, 1, 30, Quality::Exact);
        items.settled(session(), &settle(1, 9, Quality::Exact));
        used(&mut items, 2, 10, Quality::Partial);
        let told = items.unstored_usage("i", 100).expect("there is something");
        assert_eq!(told, ItemUsage { total: 180, part: 80 }, "what is not known counts as it was held");
        used(&mut items, 3, 5, Quality::Exact);
        items.told("i", told, false);
        assert_eq!(items.unstored_usage("i", 180), Some(ItemUsage { total: 185, part: 5 }), "what came meanwhile");
        items.keep(|_| false);
        assert_eq!(items.unstored_usage("i", 180), None);
    }

    #[test]
    fn a_call_is_open_until_it_is_settled_also_if_it_was_given_twice() {
        let mut items = Items::default();
        items.held(session(), 1, "i");
        items.held(session(), 1, "i");
        items.held(session(), 2, "i");
        for (id, open) in [(1, true), (1, true), (2, false)] {
            items.settled(session(), &settle(id, 0, Quality::Exact));
            assert_eq!((items.is_open("i"), items.is_open("other")), (open, false));
        }
    }

    #[test]
    fn writes_in_doubt_of_one_item_are_bounded() {
        let mut items = Items::default();
        used(&mut items, 1, 30, Quality::Exact);
        let told = items.unstored_usage("i", 0).expect("there is something");
        (0..100).for_each(|_| items.told("i", told, true));
        assert_eq!(items.items["i"].uncertain_writes.len(), MAX_UNCERTAIN_WRITES);
    }

    #[test]
    fn a_write_whose_answer_was_lost_counts_once_whether_it_was_made_or_not() {
        for made in [false, true] {
            let mut items = Items::default();
            used(&mut items, 1, 30, Quality::Exact);
            let told = items.unstored_usage("i", 0).expect("there is something");
            items.told("i", told, true);
            used(&mut items, 2, 7, Quality::Exact);
            let stored = if made { told.total } else { 0 };
            assert_eq!(items.unstored_usage("i", stored).map(|told| told.total), Some(37), "made: {made}");
        }
    }
}
