//! The ledger: all places that have limits, what is counted at each, and what is on its way to be durable.
//!
//! It is memory. What must outlive it is in [`PersistedRecord`] and in the gateways' [`super::SessionLog`]s: [`Ledger::load`] and
//! [`Ledger::begin`] make the one from the other two. What always holds, for each window of each limit: what is used, lost,
//! held and not explained is together no more than what is durable, but for calls that cost more than they were held for.
//!
//! Names are looked up when something is configured and when a [`super::Route`] is made; a call knows its places by number.

use std::collections::BTreeMap;

use super::counter::{Limit, WindowCounter};
use super::hold::Hold;
use super::node::{Debt, Grant, Key, Mode, NodeSpec};
use super::persisted::{Latch, PersistedPlace, PersistedRecord, PersistedWindow};
use super::session::{Session, State};
use super::thresholds::{Stage, TriggeredThreshold};
use super::tree::MAX_BUDGET_DEPTH;

/// Places that one call may pass: its item and its agent; then [`MAX_BUDGET_DEPTH`] Budgets, the namespace and the cluster, each with a
/// share of it that is kept for the pool's type. A path is written with each call: it must be short.
pub const MAX_PATH_LENGTH: usize = 2 + 2 * (MAX_BUDGET_DEPTH + 2);
/// Sessions that one record knows of at once.
pub const MAX_SESSIONS_PER_RECORD: usize = 64;

/// One place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// Rises when the place is removed: holds that passed it know it no more.
    pub generation: u32,
    pub alive: bool,
    pub spec: NodeSpec,
    pub record: usize,
    pub parent: Option<usize>,
    /// Shares of this place.
    pub shares: Vec<usize>,
    pub limits: Vec<Limit>,
    /// It has a guarantee at its parent.
    pub guards: bool,
    /// Calls in flight.
    pub open: u32,
    /// Calls that would have been refused if it refused.
    pub would_refuse: u64,
}

impl Node {
    /// Where nothing is refused, nothing is owed.
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

/// What a session is to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// It may have holds there from a leader before, and has not told yet.
    Awaited,
    /// It has told, or it is new.
    Live,
    /// It died before it told: what is not explained is charged.
    Missing,
    /// It died, and what it held is charged.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub session: usize,
    pub role: Role,
    /// The record says that it is one: holds may be given to it.
    pub durable: bool,
    /// The last settle that the durable record contains.
    pub contained: u64,
    /// The first settle that counts here and is in no write yet.
    pub first: Option<u64>,
    /// The first one in the write on its way, and the last one that is contained in that.
    pub flying: Option<(Option<u64>, u64)>,
}

/// One object's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub alive: bool,
    pub key: Key,
    pub nodes: Vec<usize>,
    pub members: Vec<Member>,
    /// Saved, of places that are not known (yet).
    pub shelf: Vec<PersistedPlace>,
    /// Likewise, thresholds that have acted there.
    pub latched: Vec<Latch>,
    /// Since when there is something to write that can wait.
    pub dirty: Option<i64>,
    /// There is something to write that somebody waits for.
    pub urgent: bool,
    /// What can wait has no reason to: see [`Ledger::hasten`].
    pub hasty: bool,
    pub ticket: u64,
    pub flying: Option<u64>,
    /// A session died before it told and is forgotten: what is not explained stays charged.
    pub forfeited: bool,
}

/// The ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub(super) now: i64,
    pub(super) served: u64,
    /// When something follows from time alone.
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
    /// Limits whose thresholds are to be looked at.
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
    /// Of a leader that begins at this time, in milliseconds. See [`super::Clock`].
    pub fn new(now: i64) -> Self {
        Self { now, ..Self::default() }
    }

    /// A record as it is stored, before its places are put. Its sessions are awaited: until each has begun or is dead, all
    /// that may have been given counts as spent. The clock is no earlier than the latest window in it. Nothing is given here
    /// before it was written once: if that write meets another one that was made after the record was read, whoever lost its
    /// lead was faster, and all of this is to be begun anew.
    pub fn load(&mut self, key: &Key, saved: &PersistedRecord) {
        let record = self.record(key);
        self.records[record].shelf = saved.places.clone();
        let starts = saved.places.iter().flat_map(|place| &place.windows).map(|window| window.span.start());
        let latest = starts.fold(self.now, i64::max);
        self.advance(latest);
        for acked in saved.acked.iter().take(MAX_SESSIONS_PER_RECORD) {
            let session = self.meet(&acked.session);
            // It has told already, and will not tell again: what nobody explains is charged.
            let told = self.sessions[session].state == State::Attached;
            self.records[record].forfeited |= told;
            let role = if told { Role::Live } else { Role::Awaited };
            let member = Member { session, role, durable: false, contained: acked.seq, first: None, flying: None };
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
            hasty: false,
            ticket: 0,
            flying: None,
            forfeited: false,
        };
        let index = match self.spare_records.pop() {
            Some(index) => {
                // A write that was on its way for the one before is not taken for ours.
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

    /// A place as it shall be from now on. What was counted in limits that keep their name and window stays.
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
                limit.latches.soft_at = 0;
                limit.latches.hard_at = 0;
            }
            limit.refresh(now);
        }
        place.spec = spec;
        self.unshelve(node);
        self.relatch(node);
        self.wake = self.nodes[node].limits.iter().fold(self.wake, |wake, limit| wake.min(limit.wake(now)));
        if leaf {
            (0..self.nodes[node].limits.len()).for_each(|limit| self.look(node, limit));
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
            open: 0,
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

    /// Gives a place what was saved of it.
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

    /// What has acted at a place in windows that live does not act again.
    fn relatch(&mut self, node: usize) {
        let Node { record, spec, limits, .. } = &mut self.nodes[node];
        let latched = &mut self.records[*record].latched;
        for latch in latched.extract_if(.., |latch| latch.key == spec.key) {
            for limit in limits.iter_mut().filter(|limit| limit.spec.name == latch.limit && limit.cell.span == latch.span) {
                limit.latches.acted.push(TriggeredThreshold { threshold: latch.threshold, height: latch.height, stage: Stage::Durable });
            }
        }
    }

    /// A place is no more. What is held there is settled into nothing. Of a share or a namespace whose record stays, what was
    /// spent in windows that live is kept for when it comes back.
    pub fn remove(&mut self, key: &Key) {
        let Some(node) = self.keys.remove(key) else { return };
        let record = self.nodes[node].record;
        let windows = self.saved_windows(node);
        let place = &mut self.nodes[node];
        place.generation = place.generation.wrapping_add(1);
        place.alive = false;
        place.limits.clear();
        (place.guards, place.parent, place.open) = (false, None, 0);
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

    /// All places but agents and tasks are these, from now on.
    pub fn set_tree(&mut self, nodes: &[NodeSpec]) {
        let wanted: std::collections::BTreeSet<&Key> = nodes.iter().map(|node| &node.key).collect();
        let gone: Vec<Key> = self.keys.keys().filter(|key| !key.is_leaf() && !wanted.contains(key)).cloned().collect();
        // First what is new: a record must not go, and come back empty, because one of its places is replaced by another.
        nodes.iter().for_each(|node| self.put(node.clone()));
        gone.iter().for_each(|key| self.remove(key));
    }

    /// All grants of a place, as they are now: one that is told again counts once.
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
        (0..self.nodes[node].limits.len()).for_each(|limit| self.look(node, limit));
    }

    /// Time goes on: never back. Windows that are over are left.
    pub(super) fn advance(&mut self, now: i64) {
        self.now = self.now.max(now);
        if self.unlinked {
            self.link();
        }
        if self.now >= self.wake {
            self.roll();
        }
    }

    /// Before anything else is asked, who is whose parent and what is reserved is looked at again.
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

    /// There is something to write.
    pub(super) fn touch(&mut self, record: usize, urgent: bool) {
        let now = self.now;
        let found = &mut self.records[record];
        found.dirty.get_or_insert(now);
        found.urgent |= urgent;
    }

    /// What is saved of a place.
    pub(super) fn saved_windows(&self, node: usize) -> Vec<PersistedWindow> {
        let node = &self.nodes[node];
        let awaiting = self.records[node.record].members.iter().any(|member| member.role == Role::Awaited);
        let window = |limit: &Limit, cell: &WindowCounter| PersistedWindow {
            limit: limit.spec.name.clone(),
            span: cell.span,
            peak: cell.peak,
            used: cell.used,
            held: cell.held,
            // Nobody is left who could explain it: it is charged.
            lost: if awaiting { cell.lost } else { cell.lost.saturating_add(cell.rest) },
            carried: cell.carried,
            high: cell.raising.unwrap_or(cell.high).max(cell.own()),
        };
        let all = node.limits.iter().flat_map(|limit| limit.cells().map(move |cell| (limit, cell)));
        all.filter(|(limit, cell)| cell.own() > 0 || cell.carried > 0 || cell.high > 0 || cell.span == limit.cell.span)
            .map(|(limit, cell)| window(limit, cell))
            .collect()
    }
}
