//! The ledger in memory and related state: sessions by name, learned ratios, call rates, and the tree of budgets.
//!
//! It must not do I/O, and holds no lock while it waits. Parts of it are in other files: `meter_tree` for budgets,
//! `meter_leaves` for lifetimes and shares, `meter_items` for the usage of items, `record_writes` for writes and their
//! effects. Invariants: nothing is answered before everything was read once; a hold is confirmed only when the durable
//! state covers it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::convert;
use super::facts::Facts;
use super::items::Items;
use super::object::Object;
use super::record::Record;
use super::write_order::WriteOrder;
use crate::api::cluster_budget::Defaults;
use crate::cluster::clock::BootTime;
use crate::policy::budget::blocker::RefusedNeed;
use crate::policy::budget::concurrency::Rate;
use crate::policy::budget::facts::Defect;
use crate::policy::budget::{
    CallSize, Clock, Grant, HeldTokens, HoldAnswer, HoldRequest, Key, Ledger, LimitView, Mode, PersistedRecord, Quality, Ratios, Refusal,
    Route, SessionId, SessionLog, Settle, SettleOutcome, Weights,
};
use crate::wire::shortage::LimitRoom;

/// The longest served time that one tick counts: a process that was stopped did not listen meanwhile.
const MAX_TICK: Duration = Duration::from_secs(3);
/// How far in the future a journaled hold may lie, in milliseconds. A later time is cut to this.
const MAX_CLOCK_AHEAD_MS: i64 = 86_400_000;
/// Estimates that are kept until metrics read them, once a second.
const MAX_PENDING_ESTIMATES: usize = 4096;
/// The result of a request for a hold.
#[derive(Clone, Debug, PartialEq)]
pub enum HoldResult {
    /// The tokens are held.
    Given {
        /// The time and the amount, for all choices together.
        given: HeldTokens,
        /// The output tokens of each choice.
        each: i64,
        /// The places that the hold counts at.
        path: Vec<String>,
        /// The state of the tightest limit of these places.
        room: Option<LimitRoom>,
    },
    /// The hold is refused.
    Refused(Box<Refusal>),
    /// There are enough tokens, but a write is needed first and has been started. Ask again after it.
    WritePending,
    /// The number of the hold was used before.
    Closed,
    /// The session is unknown and must begin.
    Unknown,
}

/// A place with limits.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitedPlace {
    /// The place.
    pub key: Key,
    /// Whether calls beyond its limits are refused.
    pub enforced: bool,
    /// The state of its limits.
    pub views: Vec<LimitView>,
}

/// The spec of one place.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaceSpec {
    pub mode: Mode,
    pub lowest: Option<i64>,
    pub defects: Vec<Defect>,
    pub beyond: usize,
}

pub(super) struct State {
    pub ledger: Ledger,
    clock: Option<Clock>,
    origin: BootTime,
    skew: u64,
    /// Offset of the wall clock in a test, in milliseconds.
    step: i64,
    served: Duration,
    ticked: BootTime,
    pub ready: bool,
    pub epoch: i64,
    sessions: BTreeMap<String, SessionId>,
    pub records: BTreeMap<Key, Record>,
    /// The specs of Budgets and ClusterBudgets, by record.
    pub written: BTreeMap<Key, PlaceSpec>,
    /// Records whose status is outdated, or whose agent waits for a top-up.
    pub restate: BTreeSet<Key>,
    /// Decides which record is written next.
    pub write_order: WriteOrder,
    /// Records of ended agents and leases: until when late usage is written soon, and the minimum time since the last
    /// write.
    pub late_usage_due: BTreeMap<Key, (i64, Duration)>,
    /// Agents with a pod for each Budget, each ClusterBudget, and each namespace of one. `None` before the first count.
    pub agents: Option<BTreeMap<Key, u64>>,
    /// Input tokens of ended calls: estimated and used.
    estimates: Vec<(i64, i64)>,
    pub items: Items,
    /// The needs of refused calls, by namespace and name of the pool.
    pub needs: HashMap<(String, String), RefusedNeed>,
    pub parents: BTreeMap<Key, Option<Key>>,
    pub enforced: BTreeSet<Key>,
    pub top_by_namespace: BTreeMap<String, Key>,
    pub projects: BTreeSet<String>,
    pub defaults: BTreeMap<String, Defaults>,
    pub facts: Facts,
    pub granted: BTreeMap<Key, Vec<Grant>>,
    /// Ratios of tokens to bytes, by namespace and model.
    ratios: Ratios,
    pub rates: HashMap<String, Rate>,
}

struct Shared {
    state: Mutex<State>,
    moved: watch::Sender<u64>,
    work: Notify,
    stale: Notify,
}

/// The token state in memory. Cheap to clone.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl State {
    /// The wall clock and a monotonic clock, in milliseconds.
    fn times(&self) -> (i64, u64) {
        let skew = i64::try_from(self.skew).unwrap_or(0);
        let wall = jiff::Timestamp::now().as_millisecond().saturating_add(skew).saturating_add(self.step);
        let ticks = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(self.skew);
        (wall, ticks)
    }

    /// Now, on the ledger's clock, in milliseconds.
    pub fn now(&mut self) -> i64 {
        let (wall, ticks) = self.times();
        self.clock.get_or_insert_with(|| Clock::start(wall, ticks, i64::MIN)).now(wall, ticks)
    }

    fn micros(&self) -> i64 {
        i64::try_from(self.origin.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    fn start(&mut self, latest: i64) {
        let (wall, ticks) = self.times();
        self.clock = Some(Clock::start(wall, ticks, latest));
        let now = self.now();
        self.ledger = Ledger::new(now);
    }

    /// Loads the record of an object for the first time.
    pub fn load(&mut self, key: &Key, object: Object) {
        let saved = object.saved(key);
        if saved != PersistedRecord::default() {
            self.ledger.load(key, &saved);
        }
        let known = Record::new(object, saved);
        self.records.insert(key.clone(), known);
    }

    /// The id of a session that has begun.
    pub fn session(&self, name: &str) -> Option<SessionId> {
        self.sessions.get(name).copied()
    }

    /// The namespace of the agent of a hold, if it is still known.
    fn namespace_of(&self, session: SessionId, hold: u64) -> Option<String> {
        let path = self.ledger.path(session, hold)?;
        let agent = path.iter().find(|key| matches!(key, Key::Agent(_)))?;
        Some(self.records.get(agent)?.object.namespace().to_owned())
    }

    /// The tightest enforced limit of a path.
    fn room(&self, path: &[Key]) -> Option<LimitRoom> {
        let places = path.iter().filter(|key| key.is_leaf() || self.enforced.contains(key));
        let views = places.flat_map(|key| self.ledger.view(key).into_iter().map(move |view| (key, view)));
        let (key, view) = views.min_by_key(|(_, view)| view.left)?;
        Some(room(key, &view))
    }
}

/// The state of a limit in the form of the wire.
pub fn room(key: &Key, view: &LimitView) -> LimitRoom {
    let LimitView {
        limit,
        span,
        height,
        used,
        held,
        lost,
        unexplained: rest,
        debt: carried,
        reserved: _,
        left,
        least: _,
        paused: _,
        reaping: _,
    } = view;
    LimitRoom {
        budget: key.to_string(),
        name: limit.clone(),
        limit: *height,
        used: [used, lost, rest, carried].into_iter().fold(0_i64, |sum, amount| sum.saturating_add(*amount)),
        held: *held,
        left: *left,
        resets_at: span.end(),
    }
}

impl Meter {
    /// Starts empty. `epoch` is our owner epoch.
    pub fn new(epoch: i64) -> Self {
        let state = State {
            ledger: Ledger::default(),
            clock: None,
            origin: BootTime::now(),
            skew: 0,
            step: 0,
            served: Duration::ZERO,
            ticked: BootTime::now(),
            ready: false,
            epoch,
            sessions: BTreeMap::new(),
            records: BTreeMap::new(),
            written: BTreeMap::new(),
            restate: BTreeSet::new(),
            write_order: WriteOrder::default(),
            late_usage_due: BTreeMap::new(),
            agents: None,
            estimates: Vec::new(),
            items: Items::default(),
            needs: HashMap::new(),
            parents: BTreeMap::new(),
            enforced: BTreeSet::new(),
            top_by_namespace: BTreeMap::new(),
            projects: BTreeSet::new(),
            defaults: BTreeMap::new(),
            facts: Facts::default(),
            granted: BTreeMap::new(),
            ratios: Ratios::default(),
            rates: HashMap::new(),
        };
        let shared = Shared { state: Mutex::new(state), moved: watch::Sender::new(0), work: Notify::new(), stale: Notify::new() };
        Self(Arc::new(shared))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything was read once: from then on, an unknown object does not exist.
    pub fn is_ready(&self) -> bool {
        self.lock().ready
    }

    /// Advances the clock, in a test.
    #[cfg(test)]
    pub fn pass(&self, ms: u64) {
        let mut state = self.lock();
        state.skew += ms;
        state.served += Duration::from_millis(ms);
        state.records.values_mut().for_each(Record::clear_delays);
    }

    /// Moves the wall clock forward or back, in a test.
    #[cfg(test)]
    pub fn step(&self, ms: i64) {
        self.lock().step += ms;
    }

    /// The time of the clock that windows use. It never goes back.
    pub fn time(&self) -> jiff::Timestamp {
        let now = self.lock().now();
        jiff::Timestamp::from_millisecond(now).unwrap_or(jiff::Timestamp::MAX)
    }

    /// Loads all records, before any other call. The clock starts no earlier than the latest window in them.
    pub fn read_all(&self, objects: Vec<(Key, Object)>) {
        let mut state = self.lock();
        let saved = objects.iter().flat_map(|(key, object)| object.saved(key).places);
        let latest = saved.flat_map(|place| place.windows).map(|window| window.span.start()).max();
        state.start(latest.unwrap_or(i64::MIN));
        for (key, object) in objects {
            state.load(&key, object);
        }
    }

    /// Starts to answer calls.
    pub fn open(&self) {
        self.lock().ready = true;
    }

    /// Waits until a spec may have changed.
    pub async fn until_stale(&self) {
        self.0.stale.notified().await;
    }

    /// Marks that a spec may have changed.
    pub fn mark_stale(&self) {
        self.0.stale.notify_one();
    }

    /// Marks that there may be something to write.
    pub fn notify_writer(&self) {
        self.0.work.notify_one();
    }

    /// Waits until there may be something to write.
    pub async fn until_work(&self) {
        self.0.work.notified().await;
    }

    /// Marks that a write ended, with any result: waiting calls ask again.
    pub(super) fn moved(&self) {
        self.0.moved.send_modify(|count| *count += 1);
    }

    /// Notified of each write that ends.
    pub fn writes(&self) -> watch::Receiver<u64> {
        self.0.moved.subscribe()
    }

    /// Begins a session of a gateway. Returns the last settle that is acknowledged.
    pub fn begin(&self, session: &str, log: &SessionLog) -> u64 {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let mut log = log.clone();
        let told = log.open.iter_mut().chain(log.settles.iter_mut().map(|told| &mut told.hold));
        let told = told.chain(log.replayed.iter_mut().map(|(_, told)| &mut told.hold));
        told.for_each(|open| open.at = open.at.min(now.saturating_add(MAX_CLOCK_AHEAD_MS)));
        let (id, acked) = state.ledger.begin(now, session, &log);
        state.sessions.insert(session.to_owned(), id);
        let settles: Vec<Settle> = log.settles.iter().zip(log.acked.saturating_add(1)..).map(|(told, seq)| told.settle(seq)).collect();
        state.items.record_session_start(id, &settles, |hold| state.ledger.held_tokens(id, hold).is_some());
        self.notify_writer();
        acked
    }

    /// Whether an agent may make one more call in this second. If not, returns after how many seconds it may.
    pub fn call(&self, agent: &str, per_second: u32) -> Result<(), u32> {
        let mut state = self.lock();
        let now = state.micros();
        let rate = state.rates.entry(agent.to_owned()).or_default();
        rate.call(now, per_second).map_err(|wait| u32::try_from(wait / 1_000_000).unwrap_or(0).saturating_add(1))
    }

    /// Holds tokens for a call of an agent of `namespace`. `id` is the number of the call in its session.
    pub fn hold(&self, session: &str, id: u64, route: &mut Route, body: &CallSize, (namespace, model): (&str, &str)) -> HoldResult {
        let mut state = self.lock();
        let Some(session) = state.sessions.get(session).copied() else { return HoldResult::Unknown };
        let now = state.now();
        state.ledger.refresh(route);
        let ask = HoldRequest::of(body, route.terms(), state.ratios.ratio(namespace, model));
        match state.ledger.hold(now, session, id, route, &ask) {
            HoldAnswer::Given(given) => {
                let path = state.ledger.path(session, id).unwrap_or_else(|| Arc::from([]));
                let each = given.output / ask.choices.max(1);
                HoldResult::Given { given, each, path: path.iter().map(convert::key_to_text).collect(), room: state.room(&path) }
            }
            HoldAnswer::Refused(refusal) => HoldResult::Refused(refusal),
            HoldAnswer::Write(_) => {
                self.notify_writer();
                HoldResult::WritePending
            }
            HoldAnswer::Closed => HoldResult::Closed,
            HoldAnswer::Unattached => HoldResult::Unknown,
        }
    }

    /// Holds more output for a call that continues.
    pub fn extend(&self, session: &str, id: u64, output: i64) -> HoldResult {
        let mut state = self.lock();
        let Some(session) = state.sessions.get(session).copied() else { return HoldResult::Unknown };
        let now = state.now();
        let given = |given| HoldResult::Given { given, each: 0, path: Vec::new(), room: None };
        match state.ledger.extend(now, session, id, output) {
            HoldAnswer::Given(more) => given(more),
            HoldAnswer::Refused(refusal) => HoldResult::Refused(refusal),
            HoldAnswer::Write(_) => {
                self.notify_writer();
                HoldResult::WritePending
            }
            HoldAnswer::Closed => HoldResult::Closed,
            HoldAnswer::Unattached => HoldResult::Unknown,
        }
    }

    /// Processes a sign of life of a session, and calls that ended. Returns the last settle that is acknowledged, or
    /// `None` if the session must begin.
    pub fn settle(&self, session: &str, settles: &[(Settle, String, i64)], floor: u64, confirmed: u64) -> Option<u64> {
        let mut state = self.lock();
        let state = &mut *state;
        let id = state.sessions.get(session).copied()?;
        let now = state.now();
        for (settle, model, bytes) in settles {
            let (given, namespace) = (state.ledger.held_tokens(id, settle.hold), state.namespace_of(id, settle.hold));
            match state.ledger.settle(now, id, settle) {
                SettleOutcome::Counted => {
                    state.items.settled(id, settle);
                    if settle.quality == Quality::Exact && *bytes > 0 && !model.is_empty() {
                        let usage = &settle.usage;
                        let input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
                        if let Some(namespace) = namespace {
                            state.ratios.learn(&namespace, model, *bytes, input);
                        }
                        if let Some(given) = given.filter(|_| state.estimates.len() < MAX_PENDING_ESTIMATES) {
                            state.estimates.push((given.input, input));
                        }
                    }
                }
                SettleOutcome::Repeated | SettleOutcome::Unknown => {}
                // Earlier settles are missing: the gateway begins again, and sends all that is not acknowledged.
                SettleOutcome::Gap(_) | SettleOutcome::Unattached => return None,
            }
        }
        if !state.ledger.record_report(id, floor, confirmed) {
            return None;
        }
        Some(state.ledger.acknowledged(id))
    }

    /// Input tokens of calls that ended since the last call of this function: estimated and used.
    pub fn estimates(&self) -> Vec<(i64, i64)> {
        std::mem::take(&mut self.lock().estimates)
    }

    /// Sets the number of agents with a pod, by the place that counts them.
    pub fn set_agents(&self, agents: BTreeMap<Key, u64>) {
        self.lock().agents = Some(agents);
    }

    /// Advances the clock. Returns the sessions that died.
    pub fn tick(&self) -> Vec<String> {
        let mut state = self.lock();
        let state = &mut *state;
        let passed = std::mem::replace(&mut state.ticked, BootTime::now()).elapsed();
        state.served += passed.min(MAX_TICK);
        let (now, served) = (state.now(), u64::try_from(state.served.as_millis()).unwrap_or(u64::MAX));
        let died = state.ledger.tick(now, served);
        for session in died.iter().filter_map(|name| state.sessions.get(name).copied()) {
            let held = |given: HeldTokens| Weights::default().bound(given.input, given.output);
            state.items.lost(session, |session, hold| state.ledger.held_tokens(session, hold).map(held));
        }
        if !died.is_empty() {
            self.notify_writer();
        }
        died
    }

    /// The state of the limits of a place.
    pub fn views(&self, key: &Key) -> Vec<LimitView> {
        let mut state = self.lock();
        // Closes windows that are over first.
        let now = state.now();
        let _ = state.ledger.tick(now, 0);
        state.ledger.view(key)
    }

    /// The state of the places that have limits, in their order.
    pub fn limits(&self, places: &[Key]) -> Vec<LimitedPlace> {
        let mut state = self.lock();
        let now = state.now();
        let _ = state.ledger.tick(now, 0); // as in `views`
        let limited = |key: &Key| LimitedPlace {
            key: key.clone(),
            enforced: key.is_leaf() || state.enforced.contains(key),
            views: state.ledger.view(key),
        };
        places.iter().map(limited).filter(|limited| !limited.views.is_empty()).collect()
    }

    /// All Budgets, ClusterBudgets and their shares for namespaces, with their limits.
    pub fn standings(&self) -> Vec<(Key, Vec<LimitView>)> {
        let state = self.lock();
        state.parents.keys().map(|key| (key.clone(), state.ledger.view(key))).collect()
    }
}
