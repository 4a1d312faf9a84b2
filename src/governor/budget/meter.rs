//! The ledger in memory, and what is known beside it: sessions by name, learned ratios, rates, who is above whom.
//!
//! It must not do I/O, and no lock is held over anything that waits. Other files have parts of it: `meter_tree` what people
//! wrote, `meter_leaves` lives and shares, `meter_items` what items used, `record_writes` what is written and what follows. What always holds: before everything was read once nothing is answered; a hold is passed on only when it is below
//! what is durable.

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

/// The most that one step of served time counts: a process that was stopped has not listened meanwhile.
const MAX_TICK: Duration = Duration::from_secs(3);
/// A call whose journal says that it was given so much later than now, in milliseconds, was not.
const MAX_CLOCK_AHEAD_MS: i64 = 86_400_000;
/// Estimates that are remembered until they are measured, once a second.
const MAX_PENDING_ESTIMATES: usize = 4096;
/// What becomes of a request for a hold.
#[derive(Clone, Debug, PartialEq)]
pub enum HoldResult {
    /// It is held.
    Given {
        /// When, and for how much, all choices together.
        given: HeldTokens,
        /// Output of each choice.
        each: i64,
        /// The places that it counts at.
        path: Vec<String>,
        /// How the tightest of their limits stands.
        room: Option<LimitRoom>,
    },
    /// It is not.
    Refused(Box<Refusal>),
    /// There is room, but something must be written first. It is being; then ask again.
    Soon,
    /// The number was used before.
    Closed,
    /// The session must begin.
    Unknown,
}

/// A place with limits.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitedPlace {
    /// The place.
    pub key: Key,
    /// Calls beyond it are refused.
    pub enforced: bool,
    /// How its limits stand.
    pub views: Vec<LimitView>,
}

/// What people wrote of one place.
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
    /// How far the wall clock was put, in a test, in milliseconds.
    step: i64,
    served: Duration,
    ticked: BootTime,
    pub ready: bool,
    pub epoch: i64,
    sessions: BTreeMap<String, SessionId>,
    pub records: BTreeMap<Key, Record>,
    /// Records of Budgets and ClusterBudgets: what people wrote.
    pub written: BTreeMap<Key, PlaceSpec>,
    /// Records whose status says something else than it should, or whose agent waits for a top-up.
    pub again: BTreeSet<Key>,
    /// Whose record is written next.
    pub write_order: WriteOrder,
    /// Records of who is over: until when what comes late is written soon, and how long after the last write.
    pub hurried: BTreeMap<Key, (i64, Duration)>,
    /// Agents with a pod under each Budget, each ClusterBudget, and each namespace of one, once they were counted.
    pub agents: Option<BTreeMap<Key, u64>>,
    /// Of calls that ended, tokens of input: those that were estimated, and those that were used.
    estimates: Vec<(i64, i64)>,
    pub items: Items,
    /// What calls of pools were refused for, by namespace and name of the pool.
    pub needs: HashMap<(String, String), RefusedNeed>,
    pub parents: BTreeMap<Key, Option<Key>>,
    pub enforced: BTreeSet<Key>,
    pub tops: BTreeMap<String, Key>,
    pub projects: BTreeSet<String>,
    pub defaults: BTreeMap<String, Defaults>,
    pub facts: Facts,
    pub granted: BTreeMap<Key, Vec<Grant>>,
    /// Of tokens to bytes, by namespace and model.
    ratios: Ratios,
    pub rates: HashMap<String, Rate>,
}

struct Shared {
    state: Mutex<State>,
    moved: watch::Sender<u64>,
    work: Notify,
    stale: Notify,
}

/// The governor's memory of tokens. Cheap to clone.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl State {
    /// The wall clock and one that runs steadily, in milliseconds.
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

    /// An object's record, for the first time.
    pub fn load(&mut self, key: &Key, object: Object) {
        let saved = object.saved(key);
        if saved != PersistedRecord::default() {
            self.ledger.load(key, &saved);
        }
        let known = Record::new(object, saved);
        self.records.insert(key.clone(), known);
    }

    /// A session that has begun.
    pub fn session(&self, name: &str) -> Option<SessionId> {
        self.sessions.get(name).copied()
    }

    /// The namespace of the agent that a hold was given for, if it is known still.
    fn namespace_of(&self, session: SessionId, hold: u64) -> Option<String> {
        let path = self.ledger.path(session, hold)?;
        let agent = path.iter().find(|key| matches!(key, Key::Agent(_)))?;
        Some(self.records.get(agent)?.object.namespace().to_owned())
    }

    /// The tightest limit of a path, of those that refuse.
    fn room(&self, path: &[Key]) -> Option<LimitRoom> {
        let places = path.iter().filter(|key| key.is_leaf() || self.enforced.contains(key));
        let views = places.flat_map(|key| self.ledger.view(key).into_iter().map(move |view| (key, view)));
        let (key, view) = views.min_by_key(|(_, view)| view.left)?;
        Some(room(key, &view))
    }
}

/// How a limit stands, for the wire.
pub fn room(key: &Key, view: &LimitView) -> LimitRoom {
    let LimitView { limit, span, height, used, held, lost, rest, carried, reserved: _, left, least: _, paused: _, reaping: _ } = view;
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
    /// Nothing is known; `epoch` is our owner epoch.
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
            again: BTreeSet::new(),
            write_order: WriteOrder::default(),
            hurried: BTreeMap::new(),
            agents: None,
            estimates: Vec::new(),
            items: Items::default(),
            needs: HashMap::new(),
            parents: BTreeMap::new(),
            enforced: BTreeSet::new(),
            tops: BTreeMap::new(),
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

    /// Everything was read once: what is not known does not exist.
    pub fn is_ready(&self) -> bool {
        self.lock().ready
    }

    /// Time goes on, in a test.
    #[cfg(test)]
    pub fn pass(&self, ms: u64) {
        let mut state = self.lock();
        state.skew += ms;
        state.served += Duration::from_millis(ms);
        state.records.values_mut().for_each(Record::be_impatient);
    }

    /// The wall clock is put so much ahead, or back, in a test.
    #[cfg(test)]
    pub fn step(&self, ms: i64) {
        self.lock().step += ms;
    }

    /// Now, on the clock that windows run on, which never goes back.
    pub fn time(&self) -> jiff::Timestamp {
        let now = self.lock().now();
        jiff::Timestamp::from_millisecond(now).unwrap_or(jiff::Timestamp::MAX)
    }

    /// All records there are, before anything else is asked. The clock is no earlier than the latest window in them.
    pub fn read_all(&self, objects: Vec<(Key, Object)>) {
        let mut state = self.lock();
        let saved = objects.iter().flat_map(|(key, object)| object.saved(key).places);
        let latest = saved.flat_map(|place| place.windows).map(|window| window.span.start()).max();
        state.start(latest.unwrap_or(i64::MIN));
        for (key, object) in objects {
            state.load(&key, object);
        }
    }

    /// From now on calls are answered.
    pub fn open(&self) {
        self.lock().ready = true;
    }

    /// Waits until something changed in what people wrote.
    pub async fn until_stale(&self) {
        self.0.stale.notified().await;
    }

    /// What people wrote has changed.
    pub fn stale(&self) {
        self.0.stale.notify_one();
    }

    /// There is something to write.
    pub fn work(&self) {
        self.0.work.notify_one();
    }

    /// Waits until there is.
    pub async fn until_work(&self) {
        self.0.work.notified().await;
    }

    /// A write ended, however: who waited asks again.
    pub(super) fn moved(&self) {
        self.0.moved.send_modify(|count| *count += 1);
    }

    /// Told of each write that ends.
    pub fn writes(&self) -> watch::Receiver<u64> {
        self.0.moved.subscribe()
    }

    /// A gateway's session begins. The last settle that is acknowledged.
    pub fn begin(&self, session: &str, log: &SessionLog) -> u64 {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let mut log = log.clone();
        let told = log.open.iter_mut().chain(log.settles.iter_mut().map(|told| &mut told.open));
        let told = told.chain(log.replayed.iter_mut().map(|(_, told)| &mut told.open));
        told.for_each(|open| open.at = open.at.min(now.saturating_add(MAX_CLOCK_AHEAD_MS)));
        let (id, acked) = state.ledger.begin(now, session, &log);
        state.sessions.insert(session.to_owned(), id);
        let settles: Vec<Settle> = log.settles.iter().zip(log.acked.saturating_add(1)..).map(|(told, seq)| told.settle(seq)).collect();
        state.items.begun(id, &settles, |hold| state.ledger.given(id, hold).is_some());
        self.work();
        acked
    }

    /// Whether an agent may make one more call in this second; if not, after how many seconds it may.
    pub fn call(&self, agent: &str, per_second: u32) -> Result<(), u32> {
        let mut state = self.lock();
        let now = state.micros();
        let rate = state.rates.entry(agent.to_owned()).or_default();
        rate.call(now, per_second).map_err(|wait| u32::try_from(wait / 1_000_000).unwrap_or(0).saturating_add(1))
    }

    /// Tokens for a call of an agent of `namespace`. `id` is the session's number of it.
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
                HoldResult::Given { given, each, path: path.iter().map(convert::text).collect(), room: state.room(&path) }
            }
            HoldAnswer::Refused(refusal) => HoldResult::Refused(refusal),
            HoldAnswer::Write(_) => {
                self.work();
                HoldResult::Soon
            }
            HoldAnswer::Closed => HoldResult::Closed,
            HoldAnswer::Unattached => HoldResult::Unknown,
        }
    }

    /// More output for a call that goes on.
    pub fn extend(&self, session: &str, id: u64, output: i64) -> HoldResult {
        let mut state = self.lock();
        let Some(session) = state.sessions.get(session).copied() else { return HoldResult::Unknown };
        let now = state.now();
        let given = |given| HoldResult::Given { given, each: 0, path: Vec::new(), room: None };
        match state.ledger.extend(now, session, id, output) {
            HoldAnswer::Given(more) => given(more),
            HoldAnswer::Refused(refusal) => HoldResult::Refused(refusal),
            HoldAnswer::Write(_) => {
                self.work();
                HoldResult::Soon
            }
            HoldAnswer::Closed => HoldResult::Closed,
            HoldAnswer::Unattached => HoldResult::Unknown,
        }
    }

    /// A sign of life, and calls that ended. The last settle that is acknowledged; none: the session must begin.
    pub fn settle(&self, session: &str, settles: &[(Settle, String, i64)], floor: u64, confirmed: u64) -> Option<u64> {
        let mut state = self.lock();
        let state = &mut *state;
        let id = state.sessions.get(session).copied()?;
        let now = state.now();
        for (settle, model, bytes) in settles {
            let (given, namespace) = (state.ledger.given(id, settle.hold), state.namespace_of(id, settle.hold));
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
                SettleOutcome::Again | SettleOutcome::Unknown => {}
                // Some before it never came: the gateway begins again, and tells all that is not acknowledged.
                SettleOutcome::Gap(_) | SettleOutcome::Unattached => return None,
            }
        }
        if !state.ledger.heard(id, floor, confirmed) {
            return None;
        }
        Some(state.ledger.acknowledged(id))
    }

    /// Of calls that ended since this was asked last, tokens of input: those that were estimated, and those that were used.
    pub fn estimates(&self) -> Vec<(i64, i64)> {
        std::mem::take(&mut self.lock().estimates)
    }

    /// Agents with a pod, by the place that counts them.
    pub fn set_agents(&self, agents: BTreeMap<Key, u64>) {
        self.lock().agents = Some(agents);
    }

    /// Time has passed. Sessions that died.
    pub fn tick(&self) -> Vec<String> {
        let mut state = self.lock();
        let state = &mut *state;
        let passed = std::mem::replace(&mut state.ticked, BootTime::now()).elapsed();
        state.served += passed.min(MAX_TICK);
        let (now, served) = (state.now(), u64::try_from(state.served.as_millis()).unwrap_or(u64::MAX));
        let died = state.ledger.tick(now, served);
        for session in died.iter().filter_map(|name| state.sessions.get(name).copied()) {
            let held = |given: HeldTokens| Weights::default().bound(given.input, given.output);
            state.items.lost(session, |session, hold| state.ledger.given(session, hold).map(held));
        }
        if !died.is_empty() {
            self.work();
        }
        died
    }

    /// How a place stands now, by limit.
    pub fn views(&self, key: &Key) -> Vec<LimitView> {
        let mut state = self.lock();
        // A window that is over is left before it is shown.
        let now = state.now();
        let _ = state.ledger.tick(now, 0);
        state.ledger.view(key)
    }

    /// How those of these places stand that have limits, in their order.
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

    /// All Budgets, ClusterBudgets and what those leave to namespaces, with their limits.
    pub fn standings(&self) -> Vec<(Key, Vec<LimitView>)> {
        let state = self.lock();
        state.parents.keys().map(|key| (key.clone(), state.ledger.view(key))).collect()
    }
}
