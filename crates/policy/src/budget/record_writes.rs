//! What is written, when, and what follows once it is durable.
//!
//! A write of a record is whole: amounts, how far each session's settles are contained in them, latches. Two of one record are
//! never on their way at once. From the moment a write is drafted until its outcome is known both it and what was there
//! before may be what is durable, so the lower of both is what holds are given from; settles are acknowledged, sessions
//! let in and thresholds told only after it.

use super::ledger::{Ledger, MAX_SESSIONS_PER_RECORD, Member, Role};
use super::node::{Chunk, Key};
use super::persisted::{AckedSettles, Latch, PersistedPlace, PersistedRecord, RecordDraft};
use super::session::SessionId;
use super::thresholds::{Event, Stage};

/// Milliseconds that a settle of a budget may wait for others to be written with it ...
const BUDGET_FLUSH_DELAY_MS: i64 = 10_000;
/// ... and one of an agent's life or an item's share, of which there are many.
const LEAF_FLUSH_DELAY_MS: i64 = 30_000;
/// About so many milliseconds between writes, over all records together.
const WRITE_SPACING_MS: i64 = 50;
/// A record that is raised more often than this, in milliseconds, is raised by more.
const MIN_RAISE_INTERVAL_MS: i64 = 1000;

/// What follows from a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteEffects {
    /// Sessions that may forget their settles up to a number.
    pub acked: Vec<(String, u64)>,
    /// Thresholds that have acted, each told once.
    pub events: Vec<Event>,
}

impl Ledger {
    /// Records to be written now, those that somebody waits for first. None that is being written.
    pub fn due(&self, now: i64) -> Vec<Key> {
        let now = self.now.max(now);
        let waits = |record: &&super::ledger::Record| {
            let flush = if record.key.is_leaf() { LEAF_FLUSH_DELAY_MS } else { BUDGET_FLUSH_DELAY_MS };
            record.alive
                && record.flying.is_none()
                && (record.urgent || record.dirty.is_some_and(|since| record.hasty || now.saturating_sub(since) >= flush))
        };
        let mut due: Vec<_> = self.records.iter().filter(waits).collect();
        due.sort_by_key(|record| (!record.urgent, record.dirty));
        due.into_iter().map(|record| record.key.clone()).collect()
    }

    /// Whether somebody waits for a record to be written.
    pub fn is_waited_for(&self, key: &Key) -> bool {
        self.record_keys.get(key).is_some_and(|record| self.records[*record].urgent)
    }

    /// Nobody adds to a record for a while: what waits to be written with more is written as soon as there is a turn for it.
    pub fn hasten(&mut self, key: &Key) {
        if let Some(record) = self.record_keys.get(key).copied() {
            let found = &mut self.records[record];
            found.hasty = found.dirty.is_some();
        }
    }

    /// What to write of a record now, by compare-and-swap. `None`: nothing, or a write is on its way.
    pub fn draft(&mut self, now: i64, key: &Key) -> Option<RecordDraft> {
        self.advance(now);
        let record = *self.record_keys.get(key)?;
        let found = &self.records[record];
        if found.flying.is_some() || (found.dirty.is_none() && !found.urgent) {
            return None;
        }
        let busy = self.records.iter().filter(|record| record.dirty.is_some()).count();
        let pace = i64::try_from(busy).unwrap_or(i64::MAX).saturating_mul(WRITE_SPACING_MS).max(MIN_RAISE_INTERVAL_MS);
        let urgent = self.records[record].urgent;
        for node in self.records[record].nodes.clone() {
            self.raise(node, pace, urgent);
        }
        let acked = self.enlist(record);
        let places = self.records[record]
            .nodes
            .iter()
            .map(|node| PersistedPlace { key: self.nodes[*node].spec.key.clone(), windows: self.saved_windows(*node) });
        let places = places.chain(self.records[record].shelf.iter().cloned()).collect();
        let latched = self.latched(record);
        let found = &mut self.records[record];
        found.ticket += 1;
        (found.flying, found.dirty, found.urgent, found.hasty) = (Some(found.ticket), None, false, false);
        Some(RecordDraft { record: key.clone(), ticket: found.ticket, saved: PersistedRecord { places, acked, latched } })
    }

    /// While somebody waits nothing is lowered: what he asked for next to it would have to be raised again in turn.
    fn raise(&mut self, node: usize, pace: i64, urgent: bool) {
        let now = self.now;
        let place = &mut self.nodes[node];
        let (chunk, enforced): (Chunk, bool) = (place.spec.chunk, place.enforced());
        for limit in &mut place.limits {
            let high = limit.raise(now, chunk, pace, enforced).max(if urgent { limit.cell.high } else { 0 });
            for old in &mut limit.old {
                let high = old.own().saturating_add(std::mem::take(&mut old.wanted));
                (old.high, old.raising) = (old.high.min(high), Some(high));
            }
            let cell = &mut limit.cell;
            (cell.high, cell.raising) = (cell.high.min(high), Some(high));
            (cell.wanted, cell.active) = (0, false);
        }
    }

    /// The sessions that the write names. Who is not among them is not durable from now on.
    fn enlist(&mut self, record: usize) -> Vec<AckedSettles> {
        let awaiting = self.records[record].members.iter().any(|member| member.role == Role::Awaited);
        let mut acked = Vec::new();
        for member in &mut self.records[record].members {
            let session = &self.sessions[member.session];
            let seq = match member.role {
                Role::Live => session.received,
                Role::Awaited => member.contained,
                // As long as others may explain a part, a leader after us must know that nobody explains the rest.
                Role::Missing if awaiting => member.contained,
                Role::Missing | Role::Gone => {
                    member.durable = false;
                    member.flying = Some((member.first.take(), session.received));
                    continue;
                }
            };
            member.flying = Some((member.first.take(), seq));
            acked.push(AckedSettles { session: session.name.clone(), seq });
        }
        acked
    }

    fn latched(&mut self, record: usize) -> Vec<Latch> {
        let mut latched = Vec::new();
        for node in &self.records[record].nodes {
            let node = &mut self.nodes[*node];
            for limit in &mut node.limits {
                for acted in &mut limit.latches.acted {
                    match acted.stage {
                        Stage::New => acted.stage = Stage::Flying,
                        Stage::Flying | Stage::Durable => {}
                    }
                    latched.push(Latch {
                        key: node.spec.key.clone(),
                        limit: limit.spec.name.clone(),
                        span: limit.cell.span,
                        threshold: acted.threshold,
                        height: acted.height,
                    });
                }
            }
        }
        latched
    }

    fn flying(&mut self, key: &Key, ticket: u64) -> Option<usize> {
        let record = *self.record_keys.get(key)?;
        let found = &mut self.records[record];
        (found.flying == Some(ticket)).then(|| {
            found.flying = None;
            record
        })
    }

    /// The write is durable: it was taken, and nothing else was written since.
    pub fn written(&mut self, draft: &RecordDraft) -> WriteEffects {
        let Some(record) = self.flying(&draft.record, draft.ticket) else { return WriteEffects::default() };
        let mut written = WriteEffects::default();
        for node in &self.records[record].nodes {
            let node = &mut self.nodes[*node];
            for limit in &mut node.limits {
                for cell in limit.cells_mut() {
                    if let Some(high) = cell.raising.take() {
                        cell.high = high;
                    }
                }
                let (key, span, name) = (&node.spec.key, limit.cell.span, &limit.spec.name);
                for acted in limit.latches.acted.iter_mut().filter(|acted| acted.stage == Stage::Flying) {
                    acted.stage = Stage::Durable;
                    let (threshold, height) = (acted.threshold, acted.height);
                    written.events.push(Event { key: key.clone(), limit: name.clone(), span, threshold, height });
                }
            }
        }
        let sessions: Vec<usize> = self.records[record].members.iter().map(|member| member.session).collect();
        for member in &mut self.records[record].members {
            if let Some((_, contained)) = member.flying.take() {
                let name = &self.sessions[member.session].name;
                if draft.saved.acked.iter().any(|acked| acked.session == *name) {
                    (member.durable, member.contained) = (member.role != Role::Gone, contained);
                }
            }
        }
        // Those that are dead and charged are not in the record any more. What they held is still known here.
        self.records[record].members.retain(|member| member.role != Role::Gone || member.durable || member.first.is_some());
        for session in sessions {
            let acked = self.acked(session);
            written.acked.push((self.sessions[session].name.clone(), acked));
        }
        written
    }

    /// The write was not made, or nobody knows. It is made again, from what is true then.
    pub fn failed(&mut self, draft: &RecordDraft) {
        let Some(record) = self.flying(&draft.record, draft.ticket) else { return };
        for node in &self.records[record].nodes {
            for limit in &mut self.nodes[*node].limits {
                for cell in limit.cells_mut() {
                    cell.active |= cell.raising.take().is_some_and(|high| high > cell.own());
                }
                for acted in limit.latches.acted.iter_mut().filter(|acted| acted.stage == Stage::Flying) {
                    acted.stage = Stage::New;
                }
            }
        }
        for member in &mut self.records[record].members {
            if let Some((Some(first), _)) = member.flying.take() {
                member.first = Some(member.first.map_or(first, |later| later.min(first)));
            }
        }
        self.touch(record, true);
    }

    /// The last settle of a session that is contained in every record it counts at, as are all before it.
    pub(super) fn acked(&self, session: usize) -> u64 {
        let found = &self.sessions[session];
        let members = found.records.iter().flat_map(|record| &self.records[*record].members).filter(|member| member.session == session);
        let firsts = members.flat_map(|member| [member.first, member.flying.and_then(|(first, _)| first)]).flatten();
        firsts.min().map_or(found.received, |first| first.saturating_sub(1).min(found.received))
    }

    /// The last settle of a session that is contained in what is written, and all before it: its gateway may forget them.
    pub fn acknowledged(&self, session: SessionId) -> u64 {
        if session.0 < self.sessions.len() { self.acked(session.0) } else { 0 }
    }

    /// A session is something else to a record from now on.
    pub(super) fn role(&mut self, record: usize, session: usize, role: Role) {
        let Some(member) = self.records[record].members.iter_mut().find(|member| member.session == session) else { return };
        if std::mem::replace(&mut member.role, role) != role {
            self.touch(record, true);
            self.resolve(record);
        }
    }

    /// Nobody waits any more for what a session would tell a record.
    pub(super) fn leave(&mut self, record: usize, session: usize) {
        let found = &mut self.records[record];
        found.forfeited |= found.members.iter().any(|member| member.session == session && member.role == Role::Missing);
        found.members.retain(|member| member.session != session);
        self.resolve(record);
    }

    /// All sessions have told: what they did not explain was never given to anybody, and is free again. Unless one that could
    /// have explained it is gone for good.
    pub(super) fn resolve(&mut self, record: usize) {
        let silent = |member: &Member| matches!(member.role, Role::Awaited | Role::Missing);
        if self.records[record].members.iter().any(silent) {
            return;
        }
        let forfeited = std::mem::take(&mut self.records[record].forfeited);
        for node in &self.records[record].nodes {
            let debt = self.nodes[*node].debt();
            for limit in &mut self.nodes[*node].limits {
                for cell in limit.cells_mut() {
                    let rest = std::mem::take(&mut cell.rest);
                    if forfeited {
                        cell.lost = cell.lost.saturating_add(rest);
                    }
                }
                limit.recarry(debt);
            }
        }
        self.relink();
    }

    /// Makes room for one more session: one that holds nothing, and will not tell again what is contained.
    pub(super) fn evict(&mut self, record: usize) -> bool {
        if self.records[record].flying.is_some() {
            return false;
        }
        let holds = |session: usize| {
            self.sessions[session]
                .ring
                .iter()
                .any(|(_, slot)| self.holds[slot].steps.iter().any(|step| self.nodes[step.node].record == record))
        };
        let idle = self.records[record].members.iter().position(|member| {
            let Member { session, role, first, .. } = member;
            let settled = self.sessions[*session].confirmed >= self.sessions[*session].received;
            *role == Role::Live && first.is_none() && settled && !holds(*session)
        });
        idle.is_some_and(|index| {
            let member = self.records[record].members.swap_remove(index);
            self.sessions[member.session].records.retain(|other| *other != record);
            self.records[record].members.len() < MAX_SESSIONS_PER_RECORD
        })
    }
}
