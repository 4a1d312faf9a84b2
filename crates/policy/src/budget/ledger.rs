//! The ledger: all places, their counters, and the writes that make them durable.
//!
//! It is in memory. What must survive it is in [`PersistedRecord`] and in the gateways' [`super::SessionLog`]s;
//! [`Ledger::load`] and [`Ledger::begin`] restore it from both. What always holds, for each window of each limit: the
//! used, lost, held and unexplained tokens together are at most the durable amount, except for calls that cost more
//! than their hold.
//!
//! Names are looked up when a place is configured and when a [`super::Route`] is made. A call knows its places by
//! number.

use std::collections::BTreeMap;

use super::counter::{Limit, WindowCounter};
use super::hold::Hold;
use super::node::{Debt, Grant, Key, Mode, NodeSpec};
use super::persisted::{Latch, PersistedPlace, PersistedRecord, PersistedWindow};
use super::session::{Session, State};
use super::thresholds::{Stage, TriggeredThreshold};
use super::tree::MAX_BUDGET_DEPTH;

/// The most places of one call: its item and its agent; then [`MAX_BUDGET_DEPTH`] Budgets, the namespace and the
/// cluster, each with a share that is reserved for the pool's type. A path is written with each call, so it must be
/// short.
pub const MAX_PATH_LENGTH: usize = 2 + 2 * (MAX_BUDGET_DEPTH + 2);
/// The most sessions in one record at once.
pub const MAX_SESSIONS_PER_RECORD: usize = 64;

/// One place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// Rises when the place is removed, so that holds do not match a later place of the same index.
    pub generation: u32,
    pub alive: bool,
    pub spec: NodeSpec,
    pub record: usize,
    pub parent: Option<usize>,
    /// The shares of this place.
    pub shares: Vec<usize>,
    pub limits: Vec<Limit>,
    /// It has a guarantee at its parent.
    pub guards: bool,
    /// The number of calls in flight.
    pub in_flight: u32,
    /// Calls that the place would have refused in mode `Enforce`.
    pub would_refuse: u64,
}

impl Node {
    /// A place that refuses nothing has no debt.
    pub fn debt(&self) -> Debt {
        match self.spec.mode {
            Mode::Enforce => self.spec.debt,
            Mode::Observe | Mode::Disabled => Debt::Forgive,
        }
    }

    pub fn enforced(&self) -> bool {
        match self.spec.mode {
            Mode::Enforce => true,
            Mode::Observe | Mode::Disabled => false,
        }
    }
}

/// The state of a session in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// It may have holds there from an earlier leader, and has not reported yet.
    Awaited,
    /// It has reported, or it is new.
    Live,
    /// It died before it reported: unexplained tokens are charged.
    Missing,
    /// It died, and its holds are charged.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub session: usize,
    pub role: Role,
    /// The durable record contains it, so it may get holds.
    pub durable: bool,
    /// The last settle that the durable record contains.
    pub contained: u64,
    /// The first settle that counts here and is in no write yet.
    pub first_unwritten: Option<u64>,
    /// The first settle in the write under way, and the last settle that this write contains.
    pub flying: Option<(Option<u64>, u64)>,
}

/// One object's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub alive: bool,
    pub key: Key,
    pub nodes: Vec<usize>,
    pub members: Vec<Member>,
    /// Persisted data of places that are not known (yet).
    pub shelf: Vec<PersistedPlace>,
    /// Thresholds that have acted at such places.
    pub latched: Vec<Latch>,
    /// Since when there are changes to write that can wait.
    pub dirty: Option<i64>,
    /// There are changes to write that a caller waits for.
    pub urgent: bool,
    /// The changes that can wait have no reason to wait: see [`Ledger::hasten`].
    pub no_delay: bool,
    pub ticket: u64,
    pub flying: Option<u64>,
    /// A session died before it reported, and is forgotten: unexplained tokens stay charged.
    pub forfeited: bool,
}

/// The ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub(super) now: i64,
    pub(super) served: u64,
    /// The next time at which something changes without a call.
    wake: i64,
    pub(super) version: u64,
    pub(super) serial: u64,
    pub(super) unlinked: bool,
    pub(super) keys: BTreeMap<Key, usize>,
    pub(super) nodes: Vec<Node>,
    spare_nodes: Vec<usize>,
    pub(super) record_keys: BTreeMap<Key, usize>,
    pub(super) records: Vec<Record>,
    spare_records: Vec<usize>,
    pub(super) session_names: BTreeMap<String, usize>,
    pub(super) sessions: Vec<Session>,
    pub(super) holds: Vec<Hold>,
    pub(super) spare_holds: Vec<usize>,
    /// Limits whose thresholds must be checked.
    pub(super) crossed: Vec<(usize, usize)>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            now: 0,
            served: 0,
            wake: i64::MAX,
            version: 1,
            serial: 1,
            unlinked: false,
            keys: BTreeMap::new(),
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            record_keys: BTreeMap::new(),
            records: Vec::new(),
            spare_records: Vec::new(),
            session_names: BTreeMap::new(),
            sessions: Vec::new(),
            holds: Vec::new(),
            spare_holds: Vec::new(),
            crossed: Vec::new(),
        }
    }
}

impl Ledger {
    /// The ledger of a leader that begins at this time, in milliseconds. See [`super::Clock`].
    pub fn new(now: i64) -> Self {
        Self { now, ..Self::default() }
    }

    /// Loads a stored record, before its places are put. Its sessions are awaited: until each of them has begun or is
    /// dead, all tokens that may have been given count as spent. The clock is set to the start of the latest window in
    /// it, if that is later. Nothing is given from the record before it was written once. If that write conflicts with
    /// a write after our read, an earlier leader was still writing: then the ledger must be loaded again.
    pub fn load(&mut self, key: &Key, saved: &PersistedRecord) {
        let record = self.record(key);
        self.records[record].shelf = saved.places.clone();
        let starts = saved.places.iter().flat_map(|place| &place.windows).map(|window| window.span.start());
        let latest = starts.fold(self.now, i64::max);
        self.advance(latest);
        for acked in saved.acked.iter().take(MAX_SESSIONS_PER_RECORD) {
            let session = self.meet(&acked.session);
            // It has reported already and will not report again, so unexplained tokens are charged.
            let told = self.sessions[session].state == State::Attached;
            self.records[record].forfeited |= told;
            let role = if told { Role::Live } else { Role::Awaited };
            let member = Member { session, role, durable: false, contained: acked.seq, first_unwritten: None, flying: None };
            if self.records[record].members.iter().all(|member| member.session != session) {
                self.records[record].members.push(member);
                self.sessions[session].records.push(record);
            }
        }
        let places = self.records[record].nodes.clone();
        for node in places {
            self.unshelve(node);
        }
        self.records[record].latched = saved.latched.clone();
        (0..self.records[record].nodes.len()).for_each(|which| self.relatch(self.records[record].nodes[which]));
        self.unlinked = true;
    }

    pub(super) fn record(&mut self, key: &Key) -> usize {
        if let Some(record) = self.record_keys.get(key) {
            return *record;
        }
        let record = Record {
            alive: true,
            key: key.clone(),
            nodes: Vec::new(),
            members: Vec::new(),
            shelf: Vec::new(),
            latched: Vec::new(),
            dirty: None,
            urgent: false,
            no_delay: false,
            ticket: 0,
            flying: None,
            forfeited: false,
        };
        let index = match self.spare_records.pop() {
            Some(index) => {
                // The ticket continues, so that a write under way for the previous record does not match.
                let ticket = self.records[index].ticket;
                self.records[index] = Record { ticket, ..record };
                index
            }
            None => {
                self.records.push(record);
                self.records.len() - 1
            }
        };
        self.record_keys.insert(key.clone(), index);
        index
    }

    /// Adds or changes a place. The counters of limits that keep their name and window stay.
    pub fn put(&mut self, spec: NodeSpec) {
        let leaf = spec.key.is_leaf();
        let node = match self.keys.get(&spec.key).copied() {
            Some(node) if self.nodes[node].spec == spec => return,
            Some(node) => node,
            None => self.add(&spec),
        };
        let (now, serial) = (self.now, self.serial);
        let place = &mut self.nodes[node];
        let before = std::mem::take(&mut place.limits);
        place.limits = spec.limits.iter().map(|limit| Limit::new(limit.clone(), serial + 1, now)).collect();
        for (limit, spec) in place.limits.iter_mut().zip(&spec.limits) {
            if let Some(known) = before.iter().find(|known| known.spec.name == spec.name && known.spec.window == spec.window) {
                *limit = Limit { spec: spec.clone(), lifts: Vec::new(), ..known.clone() };
                limit.latches.next_with_holds = 0;
                limit.latches.next_spent = 0;
            }
            limit.refresh(now);
        }
        place.spec = spec;
        self.unshelve(node);
        self.relatch(node);
        self.wake = self.nodes[node].limits.iter().fold(self.wake, |wake, limit| wake.min(limit.wake(now)));
        if leaf {
            (0..self.nodes[node].limits.len()).for_each(|limit| self.check_thresholds(node, limit));
            return;
        }
        self.version += 1;
        self.unlinked = true;
    }

    fn add(&mut self, spec: &NodeSpec) -> usize {
        let record = self.record(&spec.key.record());
        let node = Node {
            generation: 0,
            alive: true,
            spec: spec.clone(),
            record,
            parent: None,
            shares: Vec::new(),
            limits: Vec::new(),
            guards: false,
            in_flight: 0,
            would_refuse: 0,
        };
        let index = match self.spare_nodes.pop() {
            Some(index) => {
                self.nodes[index] = Node { generation: self.nodes[index].generation, ..node };
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.records[record].nodes.push(index);
        self.keys.insert(spec.key.clone(), index);
        index
    }

    /// Restores a place from its persisted data.
    fn unshelve(&mut self, node: usize) {
        let Node { record, spec, .. } = &self.nodes[node];
        let record = *record;
        let Some(found) = self.records[record].shelf.iter().position(|place| place.key == spec.key) else { return };
        let saved = self.records[record].shelf.swap_remove(found);
        let (now, debt) = (self.now, self.nodes[node].debt());
        for limit in &mut self.nodes[node].limits {
            limit.born = 0;
            limit.restore(&saved.windows, now, debt);
        }
        self.resolve(record);
    }

    /// Thresholds that have acted in a live window do not act again.
    fn relatch(&mut self, node: usize) {
        let Node { record, spec, limits, .. } = &mut self.nodes[node];
        let latched = &mut self.records[*record].latched;
        for latch in latched.extract_if(.., |latch| latch.key == spec.key) {
            for limit in limits.iter_mut().filter(|limit| limit.spec.name == latch.limit && limit.current.span == latch.span) {
                limit.latches.acted.push(TriggeredThreshold { threshold: latch.threshold, height: latch.height, stage: Stage::Durable });
            }
        }
    }

    /// Removes a place. Its holds are settled without effect. If the record of a share or a namespace stays, what was
    /// spent in live windows is kept for its return.
    pub fn remove(&mut self, key: &Key) {
        let Some(node) = self.keys.remove(key) else { return };
        let record = self.nodes[node].record;
        let windows = self.saved_windows(node);
        let place = &mut self.nodes[node];
        place.generation = place.generation.wrapping_add(1);
        place.alive = false;
        place.limits.clear();
        (place.guards, place.parent, place.in_flight) = (false, None, 0);
        self.spare_nodes.push(node);
        self.records[record].nodes.retain(|other| *other != node);
        self.version += 1;
        self.unlinked = true;
        if self.records[record].nodes.is_empty() {
            self.remove_record(record);
            return;
        }
        let now = self.now;
        let live = windows.into_iter().filter(|window| window.span.end().is_some_and(|end| end > now));
        let windows: Vec<_> =
            live.map(|window| PersistedWindow { lost: window.lost.saturating_add(window.held), held: 0, ..window }).collect();
        if !windows.is_empty() {
            self.records[record].shelf.push(PersistedPlace { key: key.clone(), windows });
        }
        self.touch(record, true);
    }

    fn remove_record(&mut self, record: usize) {
        let found = &mut self.records[record];
        found.alive = false;
        (found.dirty, found.urgent, found.flying) = (None, false, None);
        found.ticket += 1;
        found.shelf.clear();
        let members = std::mem::take(&mut found.members);
        self.record_keys.remove(&found.key);
        for member in members {
            self.sessions[member.session].records.retain(|other| *other != record);
        }
        self.spare_records.push(record);
    }

    /// Sets all places except agents and tasks.
    pub fn set_tree(&mut self, nodes: &[NodeSpec]) {
        let wanted: std::collections::BTreeSet<&Key> = nodes.iter().map(|node| &node.key).collect();
        let gone: Vec<Key> = self.keys.keys().filter(|key| !key.is_leaf() && !wanted.contains(key)).cloned().collect();
        // Add first: a record must not go and come back empty because one of its places is replaced by another.
        nodes.iter().for_each(|node| self.put(node.clone()));
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Sets all grants of a place. A repeated grant counts once.
    pub fn set_grants(&mut self, now: i64, key: &Key, grants: &[Grant]) {
        self.advance(now);
        let Some(node) = self.keys.get(key).copied() else { return };
        let now = self.now;
        let mut grants = grants.to_vec();
        grants.sort();
        grants.dedup_by(|one, other| one.id == other.id);
        for limit in &mut self.nodes[node].limits {
            limit.grants = grants.iter().filter(|grant| grant.limit == limit.spec.name).cloned().collect();
            limit.refresh(now);
            self.wake = self.wake.min(limit.wake(now));
        }
        (0..self.nodes[node].limits.len()).for_each(|limit| self.check_thresholds(node, limit));
    }

    /// Advances the time, never backwards, and leaves windows that are over.
    pub(super) fn advance(&mut self, now: i64) {
        self.now = self.now.max(now);
        if self.unlinked {
            self.link();
        }
        if self.now >= self.wake {
            self.roll();
        }
    }

    /// Parents and guarantees are computed again before the next call.
    pub(super) fn relink(&mut self) {
        self.unlinked = true;
    }

    fn roll(&mut self) {
        let now = self.now;
        self.wake = i64::MAX;
        for node in &mut self.nodes {
            let debt = node.debt();
            for limit in &mut node.limits {
                limit.roll(now, debt);
                self.wake = self.wake.min(limit.wake(now));
            }
        }
        for record in &mut self.records {
            record.shelf.retain(|place| place.windows.iter().any(|window| window.span.end().is_none_or(|end| end > now)));
        }
        self.reserve();
    }

    /// Marks a record as changed.
    pub(super) fn touch(&mut self, record: usize, urgent: bool) {
        let now = self.now;
        let found = &mut self.records[record];
        found.dirty.get_or_insert(now);
        found.urgent |= urgent;
    }

    /// The persisted windows of a place.
    pub(super) fn saved_windows(&self, node: usize) -> Vec<PersistedWindow> {
        let node = &self.nodes[node];
        let awaiting = self.records[node.record].members.iter().any(|member| member.role == Role::Awaited);
        let window = |limit: &Limit, cell: &WindowCounter| PersistedWindow {
            limit: limit.spec.name.clone(),
            span: cell.span,
            peak: cell.peak,
            used: cell.used,
            held: cell.held,
            // No session is left that could explain it, so it is charged.
            lost: if awaiting { cell.lost } else { cell.lost.saturating_add(cell.unexplained) },
            debt: cell.debt,
            high: cell.raising.unwrap_or(cell.high).max(cell.given_tokens()),
        };
        let all = node.limits.iter().flat_map(|limit| limit.cells().map(move |cell| (limit, cell)));
        all.filter(|(limit, cell)| cell.given_tokens() > 0 || cell.debt > 0 || cell.high > 0 || cell.span == limit.current.span)
            .map(|(limit, cell)| window(limit, cell))
            .collect()
    }
}
