//! How a gateway's session begins (and reports to a new leader what that cannot know), falls silent, dies and may come
//! back.
//!
//! What always holds: from the moment when its log was read, the holds of a session here are the holds that its gateway
//! knows.

use std::sync::Arc;

use super::hold::{Hold, Settle, Step};
use super::ledger::{Ledger, MAX_PATH_LENGTH, Role};
use super::session::{
    DEAD_SESSION_TTL_MS, HoldMark, JournaledHold, JournaledSettle, Ring, SESSION_TIMEOUT_MS, Session, SessionId, SessionLog, State,
};

impl Ledger {
    pub(super) fn meet(&mut self, name: &str) -> usize {
        if let Some(index) = self.session_names.get(name) {
            return *index;
        }
        let session = Session {
            name: name.to_owned(),
            state: State::Awaited,
            last_report: self.served,
            received: 0,
            confirmed: 0,
            ring: Ring::start(1),
            records: Vec::new(),
        };
        self.sessions.push(session);
        self.session_names.insert(name.to_owned(), self.sessions.len() - 1);
        self.sessions.len() - 1
    }

    /// A gateway's session begins, or continues after an interruption, with all that the gateway knows. From then on it
    /// may ask. Returns the session, and the last settle that is acknowledged by now.
    pub fn begin(&mut self, now: i64, name: &str, log: &SessionLog) -> (SessionId, u64) {
        // If a hold was given later than our time, the clock of the other leader was ahead of ours.
        let told = log.open.iter().chain(log.settles.iter().map(|told| &told.hold));
        let lost = log.replayed.iter().map(|(_, told)| &told.hold);
        self.advance(told.clone().chain(lost).map(|open| open.at).fold(now, i64::max));
        let oldest = told.map(|open| open.id).min();
        let index = self.meet(name);
        let again = self.sessions[index].state == State::Attached;
        // If a session begins again at this leader, its records know it.
        let first = self.sessions[index].state == State::Awaited;
        let session = &mut self.sessions[index];
        if session.state == State::Awaited {
            session.ring = Ring::start(oldest.unwrap_or(u64::MAX).min(log.next_hold).max(1));
        }
        (session.state, session.last_report) = (State::Attached, self.served);
        session.received = session.received.max(log.acked);
        session.confirmed = session.confirmed.max(log.acked);
        let adopts = first && log.rolled_back;
        for (seq, told) in log.replayed.iter().filter(|(seq, _)| adopts && *seq <= log.acked) {
            let settle = told.settle(*seq);
            if let Some(slot) = self.count_hold(index, &told.hold, Some(&settle), true) {
                self.close(slot, Some(&settle));
            }
        }
        for (told, seq) in log.settles.iter().zip(log.acked.saturating_add(1)..) {
            self.take_settle(index, told, seq, adopts);
        }
        for open in &log.open {
            self.take_open(index, open, adopts);
        }
        let kept: std::collections::BTreeSet<u64> = log.open.iter().map(|open| open.id).collect();
        for (id, slot) in self.sessions[index].ring.close_below(log.next_hold) {
            if !kept.contains(&id) {
                self.close(slot, None);
                self.sessions[index].ring.set(id, HoldMark::Closed);
            }
        }
        if !again {
            // It is back, so its open holds are not charged as lost any more.
            let open: Vec<usize> = self.sessions[index].ring.iter().map(|(_, slot)| slot).collect();
            open.into_iter().for_each(|slot| self.revive(slot));
            for record in self.sessions[index].records.clone() {
                self.set_role(record, index, Role::Live);
            }
        }
        (SessionId(index), self.acked_seq(index))
    }

    fn take_settle(&mut self, index: usize, told: &JournaledSettle, seq: u64, adopts: bool) {
        if seq <= self.sessions[index].received {
            return;
        }
        self.sessions[index].received = seq;
        let settle = told.settle(seq);
        match self.sessions[index].ring.get(told.hold.id) {
            HoldMark::Open(slot) => self.close(slot, Some(&settle)),
            HoldMark::Unused => {
                if let Some(slot) = self.count_hold(index, &told.hold, Some(&settle), adopts) {
                    self.close(slot, Some(&settle));
                }
            }
            HoldMark::Closed => {}
        }
        self.sessions[index].ring.set(told.hold.id, HoldMark::Closed);
    }

    fn take_open(&mut self, index: usize, open: &JournaledHold, adopts: bool) {
        match self.sessions[index].ring.get(open.id) {
            HoldMark::Open(slot) => self.revive(slot),
            HoldMark::Unused => {
                if let Some(slot) = self.count_hold(index, open, None, adopts) {
                    self.sessions[index].ring.set(open.id, HoldMark::Open(slot));
                }
            }
            HoldMark::Closed => {}
        }
    }

    /// Counts a hold that another leader gave, at every record that knows the session (see [`Self::fence`] for the
    /// others) and that does not contain its settle. `adopts`: a record that does not know the session has lost it.
    fn count_hold(&mut self, index: usize, open: &JournaledHold, settled: Option<&Settle>, adopts: bool) -> Option<usize> {
        let mut steps = Vec::new();
        for key in open.path.iter().take(MAX_PATH_LENGTH) {
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
            place.in_flight += 1;
            let weights = place.spec.weights;
            let estimate = weights.bound(open.input, open.output);
            let taken = settled.map_or(estimate, |settle| settle.charged(&weights));
            steps.push(Step { node, generation: place.generation, estimate });
            for limit in 0..place.limits.len() {
                self.change(node, limit, open.at, |cell| {
                    cell.held = cell.held.saturating_add(estimate);
                    if explains {
                        cell.unexplained = cell.unexplained.saturating_sub(taken).max(0);
                    }
                });
            }
        }
        self.serial += 1;
        let (id, at, input, output, path) = (open.id, open.at, open.input, open.output, Arc::clone(&open.path));
        let hold = Hold { session: index, id, at, serial: self.serial, input, output, lost: false, steps, path };
        Some(self.add_hold(hold))
    }

    /// A session reports a hold at a record that does not know the session. Either the session was dead, and its holds
    /// are charged and closed there: then the charge stays. Or an earlier leader wrote after our read: then the ledger
    /// must be loaded again. Our own write of the record will show which. Before it, neither the settle of the hold nor
    /// any later one is acknowledged: `seq`, or the next one if the hold is open.
    fn fence(&mut self, record: usize, session: usize, seq: Option<u64>) {
        self.touch(record, true);
        let seq = seq.unwrap_or(self.sessions[session].received.saturating_add(1));
        if let Some(member) = self.member(record, session) {
            member.first_unwritten.get_or_insert(seq);
        }
    }

    /// A report of a session. `floor`: every hold with a smaller number is over at the gateway, and its settle, if
    /// there was one, is acknowledged. `confirmed`: the last settle that the gateway knows to be acknowledged. False:
    /// the session is not attached and must begin again.
    pub fn record_report(&mut self, session: SessionId, floor: u64, confirmed: u64) -> bool {
        let Some(found) = self.sessions.get_mut(session.0).filter(|found| found.state == State::Attached) else { return false };
        found.last_report = self.served;
        found.confirmed = found.confirmed.max(confirmed);
        for (id, slot) in found.ring.close_below(floor) {
            self.close(slot, None);
            self.sessions[session.0].ring.set(id, HoldMark::Closed);
        }
        true
    }

    /// Time has passed. `served` is the time in milliseconds in which this leader led, by a steady clock. Sessions that
    /// were silent for too long die. Returns their names.
    pub fn tick(&mut self, now: i64, served: u64) -> Vec<String> {
        self.advance(now);
        self.served = self.served.max(served);
        let mut died = Vec::new();
        for index in 0..self.sessions.len() {
            let Session { state, last_report: heard, name, .. } = &self.sessions[index];
            let silent = self.served.saturating_sub(*heard);
            match state {
                State::Awaited | State::Attached if silent >= SESSION_TIMEOUT_MS => {
                    died.push(name.clone());
                    self.die(index);
                }
                State::Dead if silent >= DEAD_SESSION_TTL_MS => self.forget(index),
                State::Awaited | State::Attached | State::Dead => {}
            }
        }
        died
    }

    /// A gateway ends: everything is settled and acknowledged, or is charged as if it had died.
    pub fn end(&mut self, now: i64, session: SessionId) {
        self.advance(now);
        if self.sessions.get(session.0).is_some_and(|found| found.state == State::Attached) {
            self.die(session.0);
        }
    }

    /// Charges its holds at the estimate. Holds that an earlier leader gave are not known here: they stay counted as
    /// unexplained, and become lost with the next write.
    fn die(&mut self, index: usize) {
        self.sessions[index].state = State::Dead;
        let open: Vec<usize> = self.sessions[index].ring.iter().map(|(_, slot)| slot).collect();
        for slot in open {
            self.lose(slot);
        }
        for record in self.sessions[index].records.clone() {
            let awaited = self.records[record].members.iter().any(|member| member.session == index && member.role == Role::Awaited);
            self.set_role(record, index, if awaited { Role::Missing } else { Role::Gone });
        }
    }

    /// Removes a session that is not awaited any more. Its name may come again, as a new session that is in no record.
    fn forget(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        if self.session_names.get(&session.name) != Some(&index) {
            return;
        }
        self.session_names.remove(&session.name);
        // Its number is not reused. Nothing else of the session is kept.
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
    fn of_gateways_that_came_and_went_only_a_number_is_kept() {
        let mut ledger = Ledger::new(0);
        for at in 0..1_000_u64 {
            let open = JournaledHold { id: 1, at: 0, path: Arc::from([]), input: 1, output: 1 };
            let log = SessionLog { next_hold: 2, open: vec![open], ..SessionLog::default() };
            ledger.begin(0, &format!("gateway-{at}"), &log);
            ledger.tick(0, at * DEAD_SESSION_TTL_MS);
        }
        ledger.tick(0, 1_001 * DEAD_SESSION_TTL_MS);
        ledger.tick(0, 1_002 * DEAD_SESSION_TTL_MS);
        assert!(ledger.session_names.is_empty());
        let empty = |session: &Session| session.name.is_empty() && session.ring.marks.is_empty() && session.records.is_empty();
        assert!(ledger.sessions.iter().all(empty));
        assert_eq!(ledger.spare_holds.len(), ledger.holds.len(), "each place of a hold is free again");
        assert!(ledger.holds.len() <= 3, "and was used again");
    }
}
