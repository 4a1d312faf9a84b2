//! What is written, when, and the effects of a durable write.
//!
//! A write replaces a whole record: amounts, the last contained settle of each session, latches. Two writes of one
//! record are never under way at once. From the draft of a write until its outcome is known, either the write or the
//! data before it may be durable. So holds are given from the lower amount of both, and settles are acknowledged,
//! sessions admitted and thresholds reported only after the write.

use super::ledger::{Ledger, MAX_SESSIONS_PER_RECORD, Member, Role};
use super::node::{Chunk, Key};
use super::persisted::{AckedSettles, Latch, PersistedPlace, PersistedRecord, RecordDraft};
use super::session::SessionId;
use super::thresholds::{Event, Stage};

/// Milliseconds that a settle of a budget may wait for others in the same write ...
const BUDGET_FLUSH_DELAY_MS: i64 = 10_000;
/// ... and a settle of an agent's life or an item's share, because there are many of these.
const LEAF_FLUSH_DELAY_MS: i64 = 30_000;
/// The approximate time between writes of all records together, in milliseconds.
const WRITE_SPACING_MS: i64 = 50;
/// If a record is raised more often than this, in milliseconds, it is raised by more.
const MIN_RAISE_INTERVAL_MS: i64 = 1000;

/// The effects of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteEffects {
    /// Sessions, and the number up to which each may forget its settles.
    pub acked: Vec<(String, u64)>,
    /// Thresholds that have acted, each reported once.
    pub events: Vec<Event>,
}

impl Ledger {
    /// The records to write now, those that a caller waits for first. Without those that are being written.
    pub fn due(&self, now: i64) -> Vec<Key> {
        let now = self.now.max(now);
        let waits = |record: &&super::ledger::Record| {
            let flush = if record.key.is_leaf() { LEAF_FLUSH_DELAY_MS } else { BUDGET_FLUSH_DELAY_MS };
            record.alive
                && record.flying.is_none()
                && (record.urgent || record.dirty.is_some_and(|since| record.no_delay || now.saturating_sub(since) >= flush))
        };
        let mut due: Vec<_> = self.records.iter().filter(waits).collect();
        due.sort_by_key(|record| (!record.urgent, record.dirty));
        due.into_iter().map(|record| record.key.clone()).collect()
    }

    /// Whether a caller waits for a record to be written.
    pub fn is_waited_for(&self, key: &Key) -> bool {
        self.record_keys.get(key).is_some_and(|record| self.records[*record].urgent)
    }

    /// The record gets no more changes for a while, so its waiting changes are written as soon as possible.
    pub fn hasten(&mut self, key: &Key) {
        if let Some(record) = self.record_keys.get(key).copied() {
            let found = &mut self.records[record];
            found.no_delay = found.dirty.is_some();
        }
    }

    /// The data to write for a record now, by compare-and-swap. `None`: no changes, or a write is under way.
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
        (found.flying, found.dirty, found.urgent, found.no_delay) = (Some(found.ticket), None, false, false);
        Some(RecordDraft { record: key.clone(), ticket: found.ticket, saved: PersistedRecord { places, acked, latched } })
    }

    /// While a caller waits, no amount is lowered: it would have to be raised again for another request of that caller.
    fn raise(&mut self, node: usize, pace: i64, urgent: bool) {
        let now = self.now;
        let place = &mut self.nodes[node];
        let (chunk, enforced): (Chunk, bool) = (place.spec.chunk, place.enforced());
        for limit in &mut place.limits {
            let high = limit.raise(now, chunk, pace, enforced).max(if urgent { limit.current.high } else { 0 });
            for old in &mut limit.old {
                let high = old.given_tokens().saturating_add(std::mem::take(&mut old.requested));
                (old.high, old.raising) = (old.high.min(high), Some(high));
            }
            let cell = &mut limit.current;
            (cell.high, cell.raising) = (cell.high.min(high), Some(high));
            (cell.requested, cell.active) = (0, false);
        }
    }

    /// The sessions that the write names. The others are not durable from now on.
    fn enlist(&mut self, record: usize) -> Vec<AckedSettles> {
        let awaiting = self.records[record].members.iter().any(|member| member.role == Role::Awaited);
        let mut acked = Vec::new();
        for member in &mut self.records[record].members {
            let session = &self.sessions[member.session];
            let seq = match member.role {
                Role::Live => session.received,
                Role::Awaited => member.contained,
                // While other sessions may explain a part, a later leader must know that no session explains the rest.
                Role::Missing if awaiting => member.contained,
                Role::Missing | Role::Gone => {
                    member.durable = false;
                    member.flying = Some((member.first_unwritten.take(), session.received));
                    continue;
                }
            };
            member.flying = Some((member.first_unwritten.take(), seq));
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
                        span: limit.current.span,
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

    /// The write is durable: it succeeded, and nothing else was written since.
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
                let (key, span, name) = (&node.spec.key, limit.current.span, &limit.spec.name);
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
        // Dead and charged sessions are not in the record any more. Their holds are still known here.
        self.records[record].members.retain(|member| member.role != Role::Gone || member.durable || member.first_unwritten.is_some());
        for session in sessions {
            let acked = self.acked_seq(session);
            written.acked.push((self.sessions[session].name.clone(), acked));
        }
        written
    }

    /// The write failed, or its outcome is unknown. A new write is drafted from the state at that time.
    pub fn failed(&mut self, draft: &RecordDraft) {
        let Some(record) = self.flying(&draft.record, draft.ticket) else { return };
        for node in &self.records[record].nodes {
            for limit in &mut self.nodes[*node].limits {
                for cell in limit.cells_mut() {
                    cell.active |= cell.raising.take().is_some_and(|high| high > cell.given_tokens());
                }
                for acted in limit.latches.acted.iter_mut().filter(|acted| acted.stage == Stage::Flying) {
                    acted.stage = Stage::New;
                }
            }
        }
        for member in &mut self.records[record].members {
            if let Some((Some(first), _)) = member.flying.take() {
                member.first_unwritten = Some(member.first_unwritten.map_or(first, |later| later.min(first)));
            }
        }
        self.touch(record, true);
    }

    /// The last settle of a session that, with all settles before it, is contained in every record at which it counts.
    pub(super) fn acked_seq(&self, session: usize) -> u64 {
        let found = &self.sessions[session];
        let members = found.records.iter().flat_map(|record| &self.records[*record].members).filter(|member| member.session == session);
        let firsts = members.flat_map(|member| [member.first_unwritten, member.flying.and_then(|(first, _)| first)]).flatten();
        firsts.min().map_or(found.received, |first| first.saturating_sub(1).min(found.received))
    }

    /// The last settle of a session that, with all settles before it, is contained in durable records. Its gateway may
    /// forget these.
    pub fn acknowledged(&self, session: SessionId) -> u64 {
        if session.0 < self.sessions.len() { self.acked_seq(session.0) } else { 0 }
    }

    /// Sets the role of a session in a record.
    pub(super) fn set_role(&mut self, record: usize, session: usize, role: Role) {
        let Some(member) = self.records[record].members.iter_mut().find(|member| member.session == session) else { return };
        if std::mem::replace(&mut member.role, role) != role {
            self.touch(record, true);
            self.resolve(record);
        }
    }

    /// Stops waiting for the report of a session to a record.
    pub(super) fn leave(&mut self, record: usize, session: usize) {
        let found = &mut self.records[record];
        found.forfeited |= found.members.iter().any(|member| member.session == session && member.role == Role::Missing);
        found.members.retain(|member| member.session != session);
        self.resolve(record);
    }

    /// If all sessions have reported, tokens that they did not explain were never given, and are free again; unless a
    /// session that could have explained them is gone for good.
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
                    let rest = std::mem::take(&mut cell.unexplained);
                    if forfeited {
                        cell.lost = cell.lost.saturating_add(rest);
                    }
                }
                limit.carry_debt(debt);
            }
        }
        self.relink();
    }

    /// Makes room for one more session: removes one without holds that will not report contained settles again.
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
            let Member { session, role, first_unwritten: first, .. } = member;
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
