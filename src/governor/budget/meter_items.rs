//! The part of the meter for the usage of items: it is counted with holds and settles, and stored when an item ends.
//!
//! No limit applies to it. The counts are in [`items`](super::items).

use std::collections::HashSet;
use std::time::Duration;

use super::items::{ItemUsage, Items, LateItem};
use super::meter::Meter;
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;

/// How long after the end of an item its unsettled calls are awaited. After that their gateway is gone, and their holds
/// are charged.
const LATE_SETTLE_GRACE: Duration = Duration::from_secs(120);

impl Meter {
    /// Records that a hold of a session is for an item without a share.
    pub fn held_for(&self, session: &str, id: u64, item: &str) {
        let mut state = self.lock();
        if let Some(session) = state.session(session) {
            state.items.held(session, id, item);
        }
    }

    /// Waits at most `within` until no call for an item is open: the usage of the last one may be in flight from its
    /// gateway. Returns false if one is still open.
    pub async fn until_settled(&self, item: &str, within: Duration) -> bool {
        let settled = self.lock().items.none_open.clone();
        let wait = async {
            loop {
                let next = settled.notified(); // from here on no notification is missed
                if !self.lock().items.is_open(item) {
                    return;
                }
                next.await;
            }
        };
        tokio::time::timeout(within, wait).await.is_ok()
    }

    /// Records that an item ended before its calls: their usage is stored later.
    pub fn ended_with_open_calls(&self, item: &str, key: ObjectKey) {
        self.lock().items.late.insert(item.to_owned(), LateItem { key, since: BootTime::now(), storing: false });
    }

    /// Ended items whose late usage is complete now. The caller stores it.
    pub fn take_late_usage(&self) -> Vec<(String, ObjectKey)> {
        let state = &mut *self.lock();
        let Items { late, items, .. } = &mut state.items;
        let open = |uid: &str| items.get(uid).is_some_and(|item| item.open > 0);
        let known = late.iter_mut().filter(|(uid, late)| !late.storing && (!open(uid) || late.since.elapsed() >= LATE_SETTLE_GRACE));
        known
            .map(|(uid, late)| {
                late.storing = true;
                (uid.clone(), late.key.clone())
            })
            .collect()
    }

    /// Records that late usage was stored, or, with `again`, that it must be tried again.
    pub fn late_usage_stored(&self, item: &str, again: bool) {
        let mut state = self.lock();
        match state.items.late.get_mut(item) {
            Some(late) if again => late.storing = false,
            Some(_) | None => drop(state.items.late.remove(item)),
        }
    }

    /// The usage to store for an item whose status has this value.
    pub fn used_by(&self, item: &str, stored: i64) -> Option<ItemUsage> {
        self.lock().items.unstored_usage(item, stored)
    }

    /// Records that usage was written, or, with `doubt`, that it may have been.
    pub fn usage_stored(&self, item: &str, told: ItemUsage, doubt: bool) {
        self.lock().items.told(item, told, doubt);
    }

    /// Forgets the usage of all items that have ended.
    pub fn keep_items(&self, living: impl FnOnce(&HashSet<String>) -> HashSet<String>) {
        let known: HashSet<String> = {
            let state = self.lock();
            let Items { items, holds, lost, .. } = &state.items;
            items.keys().chain(holds.values()).chain(lost.values().map(|(item, _)| item)).cloned().collect()
        };
        // Not under our lock: the callback takes locks of its own.
        let living = living(&known);
        let gone: HashSet<String> = known.into_iter().filter(|uid| !living.contains(uid)).collect();
        if !gone.is_empty() {
            self.lock().items.keep(|uid| !gone.contains(uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::budget::{JournaledHold, JournaledSettle as BudgetTold, Ledger, Quality, SessionId, SessionLog, Settle, Usage};

    fn session() -> SessionId {
        Ledger::new(0).begin(0, "g", &SessionLog { next_hold: 1, ..SessionLog::default() }).0
    }

    fn settle(hold: u64, output: i64, quality: Quality) -> Settle {
        Settle { seq: hold, hold, usage: Usage { output, ..Usage::default() }, quality, input: 0, output: 50 }
    }

    fn open(id: u64) -> JournaledHold {
        JournaledHold { id, at: 0, path: Arc::from([]), input: 20, output: 30 }
    }

    #[tokio::test]
    async fn what_is_settled_after_the_end_of_an_item_is_told_once_and_kept_until_then() {
        let meter = Meter::new(1);
        let key = ObjectKey { namespace: "n".into(), name: "i".into() };
        meter.lock().items.held(session(), 1, "i");
        assert!(!meter.until_settled("i", Duration::ZERO).await && meter.until_settled("other", Duration::ZERO).await);
        meter.ended_with_open_calls("i", key.clone());
        meter.keep_items(|_| HashSet::new());
        assert_eq!(meter.take_late_usage(), [], "its call is open");
        meter.lock().items.settled(session(), &settle(1, 9, Quality::Exact));
        assert_eq!(meter.take_late_usage(), [("i".to_owned(), key)]);
        assert_eq!(meter.take_late_usage(), [], "it is being told");
        meter.late_usage_stored("i", true);
        assert_eq!(meter.take_late_usage().len(), 1, "that failed");
        assert_eq!(meter.used_by("i", 0).map(|told| told.total), Some(9));
        meter.late_usage_stored("i", false);
        meter.keep_items(|_| HashSet::new());
        assert_eq!((meter.take_late_usage().len(), meter.used_by("i", 0)), (0, None));
    }

    #[test]
    fn a_call_that_is_never_settled_keeps_no_item_in_mind() {
        let meter = Meter::new(1);
        meter.lock().items.held(session(), 1, "i");
        meter.ended_with_open_calls("i", ObjectKey { namespace: "n".into(), name: "i".into() });
        assert_eq!(meter.take_late_usage(), []);
        meter.lock().items.late.values_mut().for_each(|late| late.since = BootTime::default());
        assert_eq!(meter.take_late_usage().len(), 1);
        meter.late_usage_stored("i", false);
        meter.keep_items(|_| HashSet::new());
        let state = meter.lock();
        let Items { holds, lost, items, late, none_open: _ } = &state.items;
        assert_eq!((holds.len(), lost.len(), items.len(), late.len()), (0, 0, 0, 0));
    }

    #[test]
    fn what_a_gateways_journal_tells_when_it_begins_again_counts_for_the_items_once() {
        let meter = Meter::new(1);
        let began = SessionLog { next_hold: 4, open: vec![open(1), open(2), open(3)], ..SessionLog::default() };
        meter.begin("g", &began);
        for (id, item) in [(1, "cut"), (2, "never-sent"), (3, "goes-on")] {
            meter.held_for("g", id, item);
        }
        let cut = BudgetTold { hold: open(1), usage: Usage::default(), quality: Quality::Estimated };
        let again = SessionLog { next_hold: 4, settles: vec![cut], open: vec![open(3)], ..SessionLog::default() };
        for _ in 0..2 {
            meter.begin("g", &again);
            assert_eq!(meter.used_by("cut", 100), Some(ItemUsage { total: 150, part: 50 }), "as it was held");
            assert_eq!(meter.used_by("never-sent", 100), None);
        }
        let is_open = ["cut", "never-sent", "goes-on"].map(|item| meter.lock().items.is_open(item));
        assert_eq!(is_open, [false, false, true]);
    }

    #[test]
    fn calls_of_a_gateway_that_is_lost_count_as_held_until_it_comes_back_and_tells() {
        let meter = Meter::new(1);
        meter.begin("g", &SessionLog { next_hold: 2, open: vec![open(1)], ..SessionLog::default() });
        meter.held_for("g", 1, "i");
        meter.pass(61_000);
        assert_eq!(meter.tick(), ["g"]);
        let told = meter.used_by("i", 100).expect("what was held");
        assert_eq!(told, ItemUsage { total: 150, part: 50 });
        assert!(!meter.lock().items.is_open("i"));
        meter.usage_stored("i", told, false);
        let usage = Usage { output: 7, ..Usage::default() };
        let back = BudgetTold { hold: open(1), usage, quality: Quality::Exact };
        for _ in 0..2 {
            meter.begin("g", &SessionLog { next_hold: 2, settles: vec![back.clone()], ..SessionLog::default() });
            assert_eq!(meter.used_by("i", 150), Some(ItemUsage { total: 107, part: -43 }));
        }
    }

    #[test]
    fn what_a_gateway_that_was_lost_never_sent_counts_nothing_when_it_is_back() {
        let meter = Meter::new(1);
        meter.begin("g", &SessionLog { next_hold: 2, open: vec![open(1)], ..SessionLog::default() });
        meter.held_for("g", 1, "i");
        meter.pass(61_000);
        meter.tick();
        meter.begin("g", &SessionLog { next_hold: 2, ..SessionLog::default() });
        assert_eq!(meter.used_by("i", 100), None);
        assert!(!meter.lock().items.is_open("i"));
    }

    #[test]
    fn of_gateways_that_are_lost_for_good_no_holds_are_kept() {
        let meter = Meter::new(1);
        for (name, hour) in [("a", 0), ("b", 3), ("c", 6)] {
            meter.begin(name, &SessionLog { next_hold: 2, open: vec![open(1)], ..SessionLog::default() });
            meter.held_for(name, 1, "i");
            (0..3600 * 2 / 59).for_each(|_| {
                meter.pass(59_000);
                meter.tick();
            });
            let state = meter.lock();
            assert_eq!((state.items.holds.len(), state.items.lost.len()), (0, 1), "after {hour} hours");
        }
        assert_eq!(meter.used_by("i", 0), Some(ItemUsage { total: 150, part: 150 }), "what they held stays counted");
    }
}
