//! What calls for an item without a share of its own have used: counted in memory, and told with whatever is written of the item
//! next. A write is made for it only if the item has ended before its last call was settled.
//!
//! It is for people, and no limit is held against it: what was used and not told is forgotten with the leader, or with the item.
//! What is told is told once, also if the answer to a write was lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::meter::Meter;
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::budget::{SessionId, Settle, Weights};

/// Writes of one item of which nobody knows whether they were made; more are not remembered.
const DOUBTS: usize = 8;

/// What is not settled so long after the end of its item is not waited for: its gateway is gone, and what it used is charged.
const LATEST: Duration = Duration::from_secs(120);

/// What is to be told of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Used by all attempts, as it shall stand in the status.
    pub total: i64,
    /// What of it does not stand there yet.
    pub part: i64,
}

#[derive(Debug, Default)]
struct Item {
    /// Holds that are not settled.
    open: usize,
    /// What was used and is not told; below 0 where too much was told, as of calls whose gateway came back.
    untold: i64,
    doubts: Vec<Told>,
}

#[derive(Debug)]
struct Late {
    key: ObjectKey,
    /// When the item ended.
    since: BootTime,
    /// Somebody tells it now.
    telling: bool,
}

/// What was used for items, by their uids.
#[derive(Debug, Default)]
pub struct Items {
    holds: HashMap<(SessionId, u64), String>,
    /// Of holds whose gateway is lost: what was counted for them. It may come back and say what they used.
    lost: HashMap<(SessionId, u64), (String, i64)>,
    items: HashMap<String, Item>,
    /// Items that ended with calls open: what those used is still to be told.
    late: HashMap<String, Late>,
    /// The last open call for some item was settled.
    none_open: Arc<Notify>,
}

impl Items {
    /// A hold is for an item.
    pub fn held(&mut self, session: SessionId, id: u64, item: &str) {
        // The same hold may be given again: its answer was lost.
        if self.holds.insert((session, id), item.to_owned()).is_none() {
            self.items.entry(item.to_owned()).or_default().open += 1;
        }
    }

    /// A hold was settled. Said again it counts nothing.
    pub fn settled(&mut self, session: SessionId, settle: &Settle) {
        if let Some(item) = self.holds.remove(&(session, settle.hold)) {
            self.over(&item, settle.charged(&Weights::default()));
        }
    }

    /// A hold is not open any more, and so much was used.
    fn over(&mut self, item: &str, used: i64) {
        let item = self.items.entry(item.to_owned()).or_default();
        item.open = item.open.saturating_sub(1);
        item.untold = item.untold.saturating_add(used);
        if item.open == 0 {
            self.none_open.notify_waiters();
        }
    }

    /// A session began, or began again, and told these settles: of its other holds only those are open that the ledger knows.
    pub fn begun(&mut self, session: SessionId, settles: &[Settle], is_open: impl Fn(u64) -> bool) {
        // What a lost gateway held counts no more when it is back: it says what it used, or that the call goes on.
        let back: Vec<_> = self.lost.extract_if(|(of, _), _| *of == session).collect();
        for ((_, hold), (item, counted)) in back {
            self.held(session, hold, &item);
            let item = self.items.entry(item).or_default();
            item.untold = item.untold.saturating_sub(counted);
        }
        settles.iter().for_each(|settle| self.settled(session, settle));
        let closed = self.holds.extract_if(|(of, hold), _| *of == session && !is_open(*hold));
        let closed: Vec<String> = closed.map(|(_, item)| item).collect();
        closed.iter().for_each(|item| self.over(item, 0));
    }

    /// A session is lost: each of its holds counts as what was held, for good once the ledger does not remember it.
    pub fn lost(&mut self, session: SessionId, held: impl Fn(SessionId, u64) -> Option<i64>) {
        self.lost.retain(|(of, hold), _| held(*of, *hold).is_some());
        let lost: Vec<_> = self.holds.extract_if(|(of, _), _| *of == session).collect();
        for (key, item) in lost {
            let held = held(key.0, key.1).unwrap_or(0);
            self.over(&item, held);
            self.lost.insert(key, (item, held));
        }
    }

    /// Whether a call for an item is not settled.
    fn is_open(&self, uid: &str) -> bool {
        self.items.get(uid).is_some_and(|item| item.open > 0)
    }

    /// What is to be told of an item of which so much stands in the status. None: nothing new.
    fn news_of(&mut self, uid: &str, stored: i64) -> Option<Told> {
        let item = self.items.get_mut(uid)?;
        if let Some(made) = item.doubts.iter().position(|told| told.total == stored) {
            item.untold = item.untold.saturating_sub(item.doubts[made].part);
            item.doubts.clear();
        }
        (item.untold != 0).then(|| Told { total: stored.saturating_add(item.untold).max(0), part: item.untold })
    }

    /// It was told; or (`doubt`) nobody knows whether it was.
    fn told(&mut self, uid: &str, told: Told, doubt: bool) {
        let Some(item) = self.items.get_mut(uid) else { return };
        if !doubt {
            item.untold = item.untold.saturating_sub(told.part);
            item.doubts.clear();
        } else if item.doubts.len() < DOUBTS {
            item.doubts.push(told);
        }
    }

    fn keep(&mut self, items: impl Fn(&str) -> bool) {
        let kept = |uid: &String| items(uid) || self.late.contains_key(uid);
        self.items.retain(|uid, _| kept(uid));
        self.holds.retain(|_, uid| kept(uid));
        self.lost.retain(|_, (uid, _)| kept(uid));
    }
}

impl Meter {
    /// A hold of a session is for an item that has no share.
    pub fn held_for(&self, session: &str, id: u64, item: &str) {
        let mut state = self.lock();
        if let Some(session) = state.session(session) {
            state.items.held(session, id, item);
        }
    }

    /// Waits until no call for an item is open, at most so long: what the last one used may be on its way from its gateway.
    /// False: one is open still.
    pub async fn until_settled(&self, item: &str, within: Duration) -> bool {
        let settled = self.lock().items.none_open.clone();
        let wait = async {
            loop {
                let next = settled.notified(); // from here on none is missed
                if !self.lock().items.is_open(item) {
                    return;
                }
                next.await;
            }
        };
        tokio::time::timeout(within, wait).await.is_ok()
    }

    /// An item ended before its calls: what they use is told of it later.
    pub fn ended_early(&self, item: &str, key: ObjectKey) {
        self.lock().items.late.insert(item.to_owned(), Late { key, since: BootTime::now(), telling: false });
    }

    /// Items of which all is known now that was not when they ended. Whoever gets them tells it.
    pub fn known_late(&self) -> Vec<(String, ObjectKey)> {
        let state = &mut *self.lock();
        let Items { late, items, .. } = &mut state.items;
        let open = |uid: &str| items.get(uid).is_some_and(|item| item.open > 0);
        let known = late.iter_mut().filter(|(uid, late)| !late.telling && (!open(uid) || late.since.elapsed() >= LATEST));
        known
            .map(|(uid, late)| {
                late.telling = true;
                (uid.clone(), late.key.clone())
            })
            .collect()
    }

    /// That was told, or (`again`) is to be told later.
    pub fn told_late(&self, item: &str, again: bool) {
        let mut state = self.lock();
        match state.items.late.get_mut(item) {
            Some(late) if again => late.telling = false,
            Some(_) | None => drop(state.items.late.remove(item)),
        }
    }

    /// What is to be told of an item of which so much stands in the status.
    pub fn used_by(&self, item: &str, stored: i64) -> Option<Told> {
        self.lock().items.news_of(item, stored)
    }

    /// It was written; or (`doubt`) nobody knows whether it was.
    pub fn told_of(&self, item: &str, told: Told, doubt: bool) {
        self.lock().items.told(item, told, doubt);
    }

    /// Of all other items nothing is told any more.
    pub fn keep_items(&self, living: impl FnOnce(&HashSet<String>) -> HashSet<String>) {
        let known: HashSet<String> = {
            let state = self.lock();
            let Items { items, holds, lost, .. } = &state.items;
            items.keys().chain(holds.values()).chain(lost.values().map(|(item, _)| item)).cloned().collect()
        };
        // Not under our lock: whoever is asked has one of its own.
        let living = living(&known);
        let gone: HashSet<String> = known.into_iter().filter(|uid| !living.contains(uid)).collect();
        if !gone.is_empty() {
            self.lock().items.keep(|uid| !gone.contains(uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::{Ledger, Log, Open, Quality, Told as BudgetTold, Usage};

    fn session() -> SessionId {
        Ledger::new(0).begin(0, "g", &Log { next_hold: 1, ..Log::default() }).0
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
        assert_eq!(items.news_of("i", 0), None);
        used(&mut items, 1, 30, Quality::Exact);
        items.settled(session(), &settle(1, 9, Quality::Exact));
        used(&mut items, 2, 10, Quality::Partial);
        let told = items.news_of("i", 100).expect("there is something");
        assert_eq!(told, Told { total: 180, part: 80 }, "what is not known counts as it was held");
        used(&mut items, 3, 5, Quality::Exact);
        items.told("i", told, false);
        assert_eq!(items.news_of("i", 180), Some(Told { total: 185, part: 5 }), "what came meanwhile");
        items.keep(|_| false);
        assert_eq!(items.news_of("i", 180), None);
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

    #[tokio::test]
    async fn what_is_settled_after_the_end_of_an_item_is_told_once_and_kept_until_then() {
        let meter = Meter::new(1);
        let key = ObjectKey { namespace: "n".into(), name: "i".into() };
        meter.lock().items.held(session(), 1, "i");
        assert!(!meter.until_settled("i", Duration::ZERO).await && meter.until_settled("other", Duration::ZERO).await);
        meter.ended_early("i", key.clone());
        meter.keep_items(|_| HashSet::new());
        assert_eq!(meter.known_late(), [], "its call is open");
        meter.lock().items.settled(session(), &settle(1, 9, Quality::Exact));
        assert_eq!(meter.known_late(), [("i".to_owned(), key)]);
        assert_eq!(meter.known_late(), [], "it is being told");
        meter.told_late("i", true);
        assert_eq!(meter.known_late().len(), 1, "that failed");
        assert_eq!(meter.used_by("i", 0).map(|told| told.total), Some(9));
        meter.told_late("i", false);
        meter.keep_items(|_| HashSet::new());
        assert_eq!((meter.known_late().len(), meter.used_by("i", 0)), (0, None));
    }

    #[test]
    fn a_call_that_is_never_settled_keeps_no_item_in_mind() {
        let meter = Meter::new(1);
        meter.lock().items.held(session(), 1, "i");
        meter.ended_early("i", ObjectKey { namespace: "n".into(), name: "i".into() });
        assert_eq!(meter.known_late(), []);
        meter.lock().items.late.values_mut().for_each(|late| late.since = BootTime::default());
        assert_eq!(meter.known_late().len(), 1);
        meter.told_late("i", false);
        meter.keep_items(|_| HashSet::new());
        let state = meter.lock();
        let Items { holds, lost, items, late, none_open: _ } = &state.items;
        assert_eq!((holds.len(), lost.len(), items.len(), late.len()), (0, 0, 0, 0));
    }

    fn open(id: u64) -> Open {
        Open { id, at: 0, path: Arc::from([]), input: 20, output: 30 }
    }

    #[test]
    fn what_a_gateways_journal_tells_when_it_begins_again_counts_for_the_items_once() {
        let meter = Meter::new(1);
        let began = Log { next_hold: 4, open: vec![open(1), open(2), open(3)], ..Log::default() };
        meter.begin("g", &began);
        for (id, item) in [(1, "cut"), (2, "never-sent"), (3, "goes-on")] {
            meter.held_for("g", id, item);
        }
        let cut = BudgetTold { open: open(1), usage: Usage::default(), quality: Quality::Estimated };
        let again = Log { next_hold: 4, settles: vec![cut], open: vec![open(3)], ..Log::default() };
        for _ in 0..2 {
            meter.begin("g", &again);
            assert_eq!(meter.used_by("cut", 100), Some(Told { total: 150, part: 50 }), "as it was held");
            assert_eq!(meter.used_by("never-sent", 100), None);
        }
        let is_open = ["cut", "never-sent", "goes-on"].map(|item| meter.lock().items.is_open(item));
        assert_eq!(is_open, [false, false, true]);
    }

    #[test]
    fn calls_of_a_gateway_that_is_lost_count_as_held_until_it_comes_back_and_tells() {
        let meter = Meter::new(1);
        meter.begin("g", &Log { next_hold: 2, open: vec![open(1)], ..Log::default() });
        meter.held_for("g", 1, "i");
        meter.pass(61_000);
        assert_eq!(meter.tick(), ["g"]);
        let told = meter.used_by("i", 100).expect("what was held");
        assert_eq!(told, Told { total: 150, part: 50 });
        assert!(!meter.lock().items.is_open("i"));
        meter.told_of("i", told, false);
        let usage = Usage { output: 7, ..Usage::default() };
        let back = BudgetTold { open: open(1), usage, quality: Quality::Exact };
        for _ in 0..2 {
            meter.begin("g", &Log { next_hold: 2, settles: vec![back.clone()], ..Log::default() });
            assert_eq!(meter.used_by("i", 150), Some(Told { total: 107, part: -43 }));
        }
    }

    #[test]
    fn what_a_gateway_that_was_lost_never_sent_counts_nothing_when_it_is_back() {
        let meter = Meter::new(1);
        meter.begin("g", &Log { next_hold: 2, open: vec![open(1)], ..Log::default() });
        meter.held_for("g", 1, "i");
        meter.pass(61_000);
        meter.tick();
        meter.begin("g", &Log { next_hold: 2, ..Log::default() });
        assert_eq!(meter.used_by("i", 100), None);
        assert!(!meter.lock().items.is_open("i"));
    }

    #[test]
    fn of_gateways_that_are_lost_for_good_no_holds_are_kept() {
        let meter = Meter::new(1);
        for (name, hour) in [("a", 0), ("b", 3), ("c", 6)] {
            meter.begin(name, &Log { next_hold: 2, open: vec![open(1)], ..Log::default() });
            meter.held_for(name, 1, "i");
            (0..3600 * 2 / 59).for_each(|_| {
                meter.pass(59_000);
                meter.tick();
            });
            let state = meter.lock();
            assert_eq!((state.items.holds.len(), state.items.lost.len()), (0, 1), "after {hour} hours");
        }
        assert_eq!(meter.used_by("i", 0), Some(Told { total: 150, part: 150 }), "what they held stays counted");
    }

    #[test]
    fn writes_in_doubt_of_one_item_are_bounded() {
        let mut items = Items::default();
        used(&mut items, 1, 30, Quality::Exact);
        let told = items.news_of("i", 0).expect("there is something");
        (0..100).for_each(|_| items.told("i", told, true));
        assert_eq!(items.items["i"].doubts.len(), DOUBTS);
    }

    #[test]
    fn a_write_whose_answer_was_lost_counts_once_whether_it_was_made_or_not() {
        for made in [false, true] {
            let mut items = Items::default();
            used(&mut items, 1, 30, Quality::Exact);
            let told = items.news_of("i", 0).expect("there is something");
            items.told("i", told, true);
            used(&mut items, 2, 7, Quality::Exact);
            let stored = if made { told.total } else { 0 };
            assert_eq!(items.news_of("i", stored).map(|told| told.total), Some(37), "made: {made}");
        }
    }
}
