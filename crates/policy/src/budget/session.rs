//! The sessions of gateways: what each numbers, what it has told and what it is still owed; how it begins (and tells a new
//! leader all that the leader cannot know), falls silent, dies and may come back.
//!
//! A session is a gateway's pod. It numbers its holds (so that a repeat gets the same answer, and one that comes late gets
//! none) and its settles (so that each counts once, in order). What always holds: what a session holds here is what its
//! gateway knows it holds, from the moment its log was taken.

use std::collections::VecDeque;
use std::sync::Arc;

use super::estimate::{Quality, Usage};
use super::holding::{Hold, Settle, Step};
use super::ledger::{Ledger, Role};
use super::node::Key;

/// A session that was silent for so many milliseconds of served time is dead.
pub const SILENT: u64 = 60_000;
/// A dead session that comes back within so many milliseconds of served time is credited with what it did not spend.
pub const REMEMBERED: u64 = 3_600_000;
/// Numbers of holds that may be between the oldest that is open and the newest.
const SPREAD: u64 = 1 << 20;

/// A session, as this leader knows it. Never given out again to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) usize);

/// A hold as the gateway has it in its journal: all that another leader needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    /// Its number in the session, from 1.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The places that it counts at.
    pub path: Arc<[Key]>,
    /// Tokens of input it was given for.
    pub input: i64,
    /// Tokens of output it was given for, all choices together.
    pub output: i64,
}

/// A settle as the gateway has it in its journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    /// The hold that it ends.
    pub open: Open,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
}

impl Told {
    /// As it is told under this number.
    pub fn settle(&self, seq: u64) -> Settle {
        let Self { open: Open { id, input, output, .. }, usage, quality } = self;
        Settle { seq, hold: *id, usage: *usage, quality: *quality, input: *input, output: *output }
    }
}

/// All that a gateway knows when its session begins, here or again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Log {
    /// Every hold with a smaller number that is not in `open` is closed, or was never answered and never will be used.
    pub next_hold: u64,
    /// The last settle that was acknowledged, by whatever leader.
    pub acked: u64,
    /// Those after it, in order: their numbers are `acked + 1`, `acked + 2` and so on.
    pub settles: Vec<Told>,
    /// What is open.
    pub open: Vec<Open>,
    /// The store was rolled back: a record that does not contain a settle, or does not know the session, has lost it.
    pub rolled_back: bool,
    /// In that case, settles that earlier leaders acknowledged, with their numbers, in order.
    pub replayed: Vec<(u64, Told)>,
}

/// What a number of a hold stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Unused,
    Closed,
    Open(usize),
}

/// The numbers of a session's holds, from the oldest that is not closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    base: u64,
    marks: VecDeque<Mark>,
}

impl Ring {
    pub fn get(&self, id: u64) -> Mark {
        let Some(offset) = id.checked_sub(self.base) else { return Mark::Closed };
        if offset >= SPREAD {
            return Mark::Closed;
        }
        usize::try_from(offset).ok().and_then(|offset| self.marks.get(offset)).copied().unwrap_or(Mark::Unused)
    }

    /// What is below the base or too far above it stays closed.
    pub fn set(&mut self, id: u64, mark: Mark) {
        let Some(offset) = id.checked_sub(self.base).filter(|offset| *offset < SPREAD).and_then(|offset| usize::try_from(offset).ok())
        else {
            return;
        };
        if offset >= self.marks.len() {
            self.marks.resize(offset + 1, Mark::Unused);
        }
        if let Some(place) = self.marks.get_mut(offset) {
            *place = mark;
        }
        self.forward();
    }

    fn forward(&mut self) {
        while self.marks.front() == Some(&Mark::Closed) {
            self.marks.pop_front();
            self.base += 1;
        }
    }

    /// All numbers below that are not open are closed. Those that are open come back.
    pub fn close_below(&mut self, floor: u64) -> Vec<(u64, usize)> {
        let open: Vec<_> = self.iter().filter(|(id, _)| *id < floor).collect();
        let last = floor.saturating_sub(self.base).min(SPREAD);
        if !self.marks.is_empty() && usize::try_from(last).is_ok_and(|last| last > self.marks.len()) {
            self.marks.resize(usize::try_from(last).unwrap_or(0), Mark::Unused);
        }
        for (_, mark) in (0..last).zip(self.marks.iter_mut()) {
            if *mark == Mark::Unused {
                *mark = Mark::Closed;
            }
        }
        self.forward();
        if self.marks.is_empty() {
            self.base = self.base.max(floor);
        }
        open
    }

    /// Those that are open.
    pub fn iter(&self) -> impl Iterator<Item = (u64, usize)> {
        self.marks.iter().zip(self.base..).filter_map(|(mark, id)| match mark {
            Mark::Open(slot) => Some((id, *slot)),
            Mark::Unused | Mark::Closed => None,
        })
    }

    /// A session that this leader meets for the first time.
    pub fn start(base: u64) -> Self {
        Self { base, marks: VecDeque::new() }
    }
}

/// How a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// In some record, and not heard of.
    Awaited,
    /// It told what it knows.
    Attached,
    /// Silent for too long, or it said that it ends.
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub name: String,
    pub state: State,
    /// When it was heard of, in served time.
    pub heard: u64,
    /// The last settle that is counted.
    pub received: u64,
    /// The last settle that the gateway knows to be acknowledged: it will not tell it again.
    pub confirmed: u64,
    pub ring: Ring,
    /// Records that it is a member of.
    pub records: Vec<usize>,
}

impl Ledger {
    pub(super) fn meet(&mut self, name: &str) -> usize {
        if let Some(index) = self.session_names.get(name) {
            return *index;
        }
        let session = Session {
            name: name.to_owned(),
            state: State::Awaited,
            heard: self.served,
            received: 0,
            confirmed: 0,
            ring: Ring::start(1),
            records: Vec::new(),
        };
        self.sessions.push(session);
        self.session_names.insert(name.to_owned(), self.sessions.len() - 1);
        self.sessions.len() - 1
    }

    /// A gateway's session begins, or goes on after it was interrupted: with all that the gateway knows. From here on it may
    /// ask. Returned with it: the last settle that is acknowledged by now.
    pub fn begin(&mut self, now: i64, name: &str, log: &Log) -> (SessionId, u64) {
        // A hold that was given later than it is here: the other leader's clock was ahead of ours.
        let told = log.open.iter().chain(log.settles.iter().map(|told| &told.open));
        let lost = log.replayed.iter().map(|(_, told)| &told.open);
        self.advance(told.clone().chain(lost).map(|open| open.at).fold(now, i64::max));
        let oldest = told.map(|open| open.id).min();
        let index = self.meet(name);
        let again = self.sessions[index].state == State::Attached;
        // When a session begins again at this leader, its records know it.
        let first = self.sessions[index].state == State::Awaited;
        let session = &mut self.sessions[index];
        if session.state == State::Awaited {
            session.ring = Ring::start(oldest.unwrap_or(u64::MAX).min(log.next_hold).max(1));
        }
        (session.state, session.heard) = (State::Attached, self.served);
        session.received = session.received.max(log.acked);
        session.confirmed = session.confirmed.max(log.acked);
        let adopts = first && log.rolled_back;
        for (seq, told) in log.replayed.iter().filter(|(seq, _)| adopts && *seq <= log.acked) {
            let settle = told.settle(*seq);
            if let Some(slot) = self.count(index, &told.open, Some(&settle), true) {
                self.close(slot, Some(&settle));
            }
        }
        for (told, seq) in log.settles.iter().zip(log.acked.saturating_add(1)..) {
            self.take_told(index, told, seq, adopts);
        }
        for open in &log.open {
            self.take_open(index, open, adopts);
        }
        let kept: std::collections::BTreeSet<u64> = log.open.iter().map(|open| open.id).collect();
        for (id, slot) in self.sessions[index].ring.close_below(log.next_hold) {
            if !kept.contains(&id) {
                self.close(slot, None);
                self.sessions[index].ring.set(id, Mark::Closed);
            }
        }
        if !again {
            // It is back: nothing that it may still have is charged as lost beside what it will settle.
            let open: Vec<usize> = self.sessions[index].ring.iter().map(|(_, slot)| slot).collect();
            open.into_iter().for_each(|slot| self.revive(slot));
            for record in self.sessions[index].records.clone() {
                self.role(record, index, Role::Live);
            }
        }
        (SessionId(index), self.acked(index))
    }

    fn take_told(&mut self, index: usize, told: &Told, seq: u64, adopts: bool) {
        if seq <= self.sessions[index].received {
            return;
        }
        self.sessions[index].received = seq;
        let settle = told.settle(seq);
        match self.sessions[index].ring.get(told.open.id) {
            Mark::Open(slot) => self.close(slot, Some(&settle)),
            Mark::Unused => {
                if let Some(slot) = self.count(index, &told.open, Some(&settle), adopts) {
                    self.close(slot, Some(&settle));
                }
            }
            Mark::Closed => {}
        }
        self.sessions[index].ring.set(told.open.id, Mark::Closed);
    }

    fn take_open(&mut self, index: usize, open: &Open, adopts: bool) {
        match self.sessions[index].ring.get(open.id) {
            Mark::Open(slot) => self.revive(slot),
            Mark::Unused => {
                if let Some(slot) = self.count(index, open, None, adopts) {
                    self.sessions[index].ring.set(open.id, Mark::Open(slot));
                }
            }
            Mark::Closed => {}
        }
    }

    /// Counts a hold that another leader gave: at every record that knows of the session (see [`Self::fence`] for one that does
    /// not), and that does not contain its settle already. `adopts`: a record that does not know the session has lost it.
    fn count(&mut self, index: usize, open: &Open, settled: Option<&Settle>, adopts: bool) -> Option<usize> {
        let mut steps = Vec::new();
        for key in open.path.iter().take(super::DEPTH) {
            let Some(node) = self.keys.get(key).copied() else { continue };
            let record = self.nodes[node].record;
            if adopts {
                let _ = self.member(record, index); // if there is room for one more
            }
            let Some(member) = self.records[record].members.iter().find(|member| member.session == index) else {
                self.fence(record, index, settled.map(|settle| settle.seq));
                continue;
            };
            if settled.is_some_and(|settle| settle.seq <= member.contained) {
                continue;
            }
            let explains = match member.role {
                Role::Awaited | Role::Missing => true,
                Role::Live | Role::Gone => false,
            };
            let place = &mut self.nodes[node];
            place.open += 1;
            let weights = place.spec.weights;
            let estimate = weights.bound(open.input, open.output);
            let taken = settled.map_or(estimate, |settle| settle.charged(&weights));
            steps.push(Step { node, generation: place.generation, estimate });
            for limit in 0..place.limits.len() {
                self.change(node, limit, open.at, |cell| {
                    cell.held = cell.held.saturating_add(estimate);
                    if explains {
                        cell.rest = cell.rest.saturating_sub(taken).max(0);
                    }
                });
            }
        }
        self.serial += 1;
        let (id, at, input, output, path) = (open.id, open.at, open.input, open.output, Arc::clone(&open.path));
        let hold = Hold { session: index, id, at, serial: self.serial, input, output, lost: false, steps, path };
        Some(self.keep(hold))
    }

    /// A session tells of a hold at a record that does not know it. Either it was dead, and its holds are charged and closed
    /// there: then the charge stands. Or a leader before us wrote after we read: then all is to be begun anew. Our own write
    /// of the record will tell, and before it nothing is acknowledged.
    fn fence(&mut self, record: usize, session: usize, seq: Option<u64>) {
        self.touch(record, true);
        if let (Some(member), Some(seq)) = (self.member(record, session), seq) {
            member.first.get_or_insert(seq);
        }
    }

    /// A sign of life. `floor`: every hold with a smaller number is over at the gateway, and its settle, if it had one, is
    /// acknowledged; `confirmed`: the last settle that it knows to be. False: the session is not attached; let it begin again.
    pub fn heard(&mut self, session: SessionId, floor: u64, confirmed: u64) -> bool {
        let Some(found) = self.sessions.get_mut(session.0).filter(|found| found.state == State::Attached) else { return false };
        found.heard = self.served;
        found.confirmed = found.confirmed.max(confirmed);
        for (id, slot) in found.ring.close_below(floor) {
            self.close(slot, None);
            self.sessions[session.0].ring.set(id, Mark::Closed);
        }
        true
    }

    /// Time has passed: `served` is the time in milliseconds in which this leader led, by a clock that runs steadily. Sessions
    /// that were silent for too long die; those that come back are told which.
    pub fn tick(&mut self, now: i64, served: u64) -> Vec<String> {
        self.advance(now);
        self.served = self.served.max(served);
        let mut died = Vec::new();
        for index in 0..self.sessions.len() {
            let Session { state, heard, name, .. } = &self.sessions[index];
            let silent = self.served.saturating_sub(*heard);
            match state {
                State::Awaited | State::Attached if silent >= SILENT => {
                    died.push(name.clone());
                    self.die(index);
                }
                State::Dead if silent >= REMEMBERED => self.forget(index),
                State::Awaited | State::Attached | State::Dead => {}
            }
        }
        died
    }

    /// A gateway leaves: everything is settled and acknowledged, or is charged as if it had died.
    pub fn end(&mut self, now: i64, session: SessionId) {
        self.advance(now);
        if self.sessions.get(session.0).is_some_and(|found| found.state == State::Attached) {
            self.die(session.0);
        }
    }

    /// What it holds is charged at the estimate. What it holds by the word of a leader before us, nobody knows: that stays
    /// counted as not explained, and becomes lost with the next write.
    fn die(&mut self, index: usize) {
        self.sessions[index].state = State::Dead;
        let open: Vec<usize> = self.sessions[index].ring.iter().map(|(_, slot)| slot).collect();
        for slot in open {
            self.lose(slot);
        }
        for record in self.sessions[index].records.clone() {
            let awaited = self.records[record].members.iter().any(|member| member.session == index && member.role == Role::Awaited);
            self.role(record, index, if awaited { Role::Missing } else { Role::Gone });
        }
    }

    /// Nobody waits for it any more. Its name may come again, as a new session that is in no record.
    fn forget(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        if self.session_names.get(&session.name) != Some(&index) {
            return;
        }
        self.session_names.remove(&session.name);
        // Its number is not given out again: of the session nothing else is kept.
        session.name = String::new();
        let ring = std::mem::take(&mut session.ring);
        let records = std::mem::take(&mut session.records);
        for (_, slot) in ring.iter() {
            self.drop_hold(slot);
        }
        for record in records {
            self.leave(record, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_once_and_late_ones_are_closed() {
        let mut ring = Ring::start(1);
        assert_eq!((ring.get(0), ring.get(1), ring.get(1 + SPREAD)), (Mark::Closed, Mark::Unused, Mark::Closed));
        ring.set(2, Mark::Open(7));
        ring.set(3, Mark::Closed);
        assert_eq!((ring.get(1), ring.get(2), ring.get(3), ring.get(4)), (Mark::Unused, Mark::Open(7), Mark::Closed, Mark::Unused));
        assert_eq!(ring.close_below(3), [(2, 7)], "an open one is told, not closed");
        assert_eq!((ring.get(1), ring.get(2)), (Mark::Closed, Mark::Open(7)));
        ring.set(2, Mark::Closed);
        assert_eq!((ring.base, ring.marks.len()), (4, 0), "what is closed takes no room");
        ring.set(5, Mark::Open(1));
        assert_eq!(ring.close_below(9), [(5, 1)]);
        assert_eq!((ring.get(4), ring.get(5), ring.get(8), ring.get(9)), (Mark::Closed, Mark::Open(1), Mark::Closed, Mark::Unused));
        ring.set(5, Mark::Closed);
        assert_eq!(ring.close_below(10), []);
        assert_eq!((ring.get(9), ring.get(10)), (Mark::Closed, Mark::Unused));
        ring.set(u64::MAX, Mark::Open(1));
        assert_eq!(ring.marks.len(), 0, "a number from nowhere is not believed");
    }

    #[test]
    fn of_gateways_that_came_and_went_only_a_number_is_kept() {
        let mut ledger = Ledger::new(0);
        for at in 0..1_000_u64 {
            let open = Open { id: 1, at: 0, path: Arc::from([]), input: 1, output: 1 };
            let log = Log { next_hold: 2, open: vec![open], ..Log::default() };
            ledger.begin(0, &format!("gateway-{at}"), &log);
            ledger.tick(0, at * REMEMBERED);
        }
        ledger.tick(0, 1_001 * REMEMBERED);
        ledger.tick(0, 1_002 * REMEMBERED);
        assert!(ledger.session_names.is_empty());
        let empty = |session: &Session| session.name.is_empty() && session.ring.marks.is_empty() && session.records.is_empty();
        assert!(ledger.sessions.iter().all(empty));
        assert_eq!(ledger.spare_holds.len(), ledger.holds.len(), "each place of a hold is free again");
        assert!(ledger.holds.len() <= 3, "and was used again");
    }

    #[test]
    fn a_session_keeps_no_more_marks_than_its_spread() {
        let mut ring = Ring::start(1);
        for id in 1..=2 * SPREAD {
            ring.set(id, Mark::Open(0));
        }
        assert_eq!(ring.marks.len(), usize::try_from(SPREAD).expect("small"));
    }
}
