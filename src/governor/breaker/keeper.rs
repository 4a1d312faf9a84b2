//! The circuits in memory, under one lock over nothing that waits.
//!
//! What always holds: a refusal because of an opening is said only when that opening is in the status of its Breaker, or has
//! nowhere to be stored; of two records of a circuit the one with the higher epoch is believed; circuits of one Breaker never
//! have the same epoch, so that a person can approve all openings up to one.

mod writes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::{Notify, watch};

use super::calls::Calls;
use super::convert::{self, Written};
use super::key::Key;
use super::status::{Facts, View, said};
use crate::api::Breaker;
use crate::api::breaker::BreakerStatus;
use crate::api::cluster_budget::BreakerDefaults;
use crate::cluster::clock::BootTime;
use crate::controller::Key as Name;
use crate::policy::breaker::choice::{Candidate, choose};
use crate::policy::breaker::circuit::Kind;
use crate::policy::breaker::{Answer, At, Circuit, Counts, Guard, Outcome, Permit, Rejection, Settings, State as CircuitState};
use crate::telemetry::Metrics;

/// Whoever asks waits so long for an opening to be stored.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// Circuits of one leader have numbers of their own as owners: so many for each owner epoch.
const OWNERS: u32 = 20;

/// Why an operation may not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The circuit refuses it.
    Open {
        /// Why, and when to come back.
        rejection: Rejection,
        /// Which breaker, why, and when to come back, for whoever asked.
        words: String,
    },
    /// It is not known yet, or cannot be stored now: come again soon.
    Away(&'static str),
}

/// A circuit, and the Breaker that it belongs to; none: no Breaker holds for who asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot {
    pub key: Key,
    pub home: Option<String>,
}

pub(super) struct Kept {
    pub circuit: Circuit,
    /// The settings as they were set, and the time of one operation that they were made with.
    set: Settings,
    operation: u64,
    /// What metrics were told.
    told: Counts,
    pub last_failure: Option<String>,
}

/// A Breaker.
pub(super) struct Home {
    /// As it was read or answered last.
    pub breaker: Arc<Breaker>,
    writing: bool,
    written: Option<BootTime>,
    put_off: Option<(BootTime, Duration)>,
    failures: u32,
}

pub(super) struct State {
    ready: bool,
    owners: u64,
    origin: BootTime,
    skew: u64,
    pub homes: BTreeMap<Name, Home>,
    /// Pools, with the longest that one operation of their work may take, in milliseconds.
    pub pools: HashMap<Name, u64>,
    /// What Breakers of a namespace leave unset.
    defaults: HashMap<String, BreakerDefaults>,
    pub circuits: BTreeMap<Slot, Kept>,
    /// Breakers whose status may say something else than it should.
    dirty: HashSet<Name>,
    metrics: Metrics,
}

struct Shared {
    state: Mutex<State>,
    calls: Mutex<Calls>,
    moved: watch::Sender<u64>,
    work: Notify,
}

/// The governor's memory of circuits. Cheap to clone.
#[derive(Clone)]
pub struct Circuits(Arc<Shared>);

fn newer(one: &Breaker, other: &Breaker) -> bool {
    let number = |breaker: &Breaker| breaker.metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
    number(one) > number(other)
}

impl State {
    pub fn at(&self) -> At {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(self.skew);
        At { now, random: rand::random() }
    }

    pub fn wall(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond().saturating_add(i64::try_from(self.skew).unwrap_or(0))
    }

    /// The Breaker that holds for a pool.
    pub fn home_of(&self, namespace: &str, pool: &str) -> Option<String> {
        let first = Name { namespace: namespace.to_owned(), name: String::new() };
        let homes = self.homes.range(first..).take_while(|(name, _)| name.namespace == namespace);
        let candidates = homes.map(|(name, home)| Candidate { name: &name.name, pools: home.breaker.spec.pools.as_deref().unwrap_or(&[]) });
        choose(pool, candidates).map(str::to_owned)
    }

    fn home(&self, slot: &Slot) -> Option<&Home> {
        self.homes.get(&name_of(slot)?)
    }

    /// What people wrote for the circuits of this Breaker; or, if none holds, of the namespace.
    pub fn written(&self, namespace: &str, home: Option<&str>) -> Written<'_> {
        let name = home.map(|home| Name { namespace: namespace.to_owned(), name: home.to_owned() });
        let own = name.and_then(|name| self.homes.get(&name)).map(|home| &home.breaker.spec);
        Written { own, defaults: self.defaults.get(namespace) }
    }

    fn settings(&self, slot: &Slot, operation: u64) -> Settings {
        self.written(&slot.key.namespace, slot.home.as_deref()).settings(slot.key.guard, operation)
    }

    fn operation(&self, key: &Key) -> u64 {
        let pool = key.pool().map(|pool| Name { namespace: key.namespace.clone(), name: pool.to_owned() });
        pool.and_then(|pool| self.pools.get(&pool)).copied().unwrap_or(0)
    }

    fn owner(&mut self) -> u64 {
        self.owners = self.owners.saturating_add(1);
        self.owners
    }

    /// Puts a circuit into its place, beside the others of its Breaker.
    fn keep(&mut self, slot: Slot, mut kept: Kept) {
        // What stands in the status must not fall, also where it is of a pool that was deleted and made again.
        let stored =
            self.home(&slot).and_then(|home| home.breaker.status.as_ref()).into_iter().flat_map(|status| status.circuits.iter().flatten());
        let stored = stored.map(|circuit| convert::saved(circuit).epoch).max();
        let highest = self.beside(&slot).map(|other| other.circuit.epoch()).max().max(stored);
        kept.circuit.beside(highest.unwrap_or(0));
        self.circuits.insert(slot.clone(), kept);
        self.rises(&slot);
        self.dirty.extend(name_of(&slot));
    }

    fn beside<'a>(&'a self, slot: &'a Slot) -> impl Iterator<Item = &'a Kept> {
        of_namespace(&self.circuits, &slot.key.namespace).filter(|(other, _)| other.home == slot.home).map(|(_, kept)| kept)
    }

    /// All circuits of a Breaker know how far one of them has come.
    fn rises(&mut self, slot: &Slot) {
        let Some(epoch) = self.circuits.get(slot).map(|kept| kept.circuit.epoch()) else { return };
        let all = self.circuits.range_mut(first(&slot.key.namespace)..);
        for (other, kept) in all.take_while(|(other, _)| other.key.namespace == slot.key.namespace) {
            if other.home == slot.home {
                kept.circuit.beside(epoch);
            }
        }
    }

    fn made(&mut self, slot: &Slot, load: Option<&crate::policy::breaker::Saved>) -> Kept {
        let operation = self.operation(&slot.key);
        let settings = self.settings(slot, operation);
        let owner = self.owner();
        let circuit = match load {
            Some(saved) => Circuit::load(settings.clone(), owner, saved, self.at(), self.wall()),
            None => Circuit::new(settings.clone(), owner),
        };
        let told = circuit.counts();
        Kept { circuit, set: settings, operation, told, last_failure: None }
    }

    /// Where a circuit is that an agent of `pool` asks; it is made, or comes along from the Breaker that held before.
    fn slot(&mut self, pool: &str, key: &Key) -> Slot {
        let slot = Slot { key: key.clone(), home: self.home_of(&key.namespace, pool) };
        if self.circuits.contains_key(&slot) {
            return slot;
        }
        // A pool has one circuit of work, whichever Breaker holds for it.
        let comes = |other: &Slot, state: &Self| other.key == *key && (key.pool().is_some() || state.home(other).is_none());
        let before = of_namespace(&self.circuits, &key.namespace).map(|(other, _)| other).find(|other| comes(other, self)).cloned();
        let kept = match before.and_then(|before| Some((self.circuits.remove(&before)?, before))) {
            Some((mut kept, before)) => {
                self.dirty.extend(name_of(&before));
                kept.circuit.elsewhere();
                kept.set = self.settings(&slot, kept.operation);
                let at = self.at();
                kept.circuit.set(kept.set.clone(), at);
                kept
            }
            None => self.made(&slot, None),
        };
        self.keep(slot.clone(), kept);
        slot
    }

    /// Something may have happened to a circuit. Whether it changed its state.
    fn after(&mut self, slot: &Slot) -> bool {
        let Some(kept) = self.circuits.get_mut(slot) else { return false };
        let (now, before) = (kept.circuit.counts(), kept.told);
        kept.told = now;
        if slot.home.is_none() && kept.circuit.must_store() {
            kept.circuit.stored(kept.circuit.epoch()); // there is nowhere to store it
        }
        let guard = slot.key.guard.label();
        let (closed, open, half) = (CircuitState::Closed.label(), CircuitState::Open.label(), CircuitState::HalfOpen.label());
        let edges = [
            (closed, open, now.tripped - before.tripped),
            (open, half, now.tried - before.tried),
            (half, open, now.reopened - before.reopened),
            (half, closed, now.closed - before.closed),
        ];
        let mut moved = false;
        for (from, to, times) in edges.into_iter().filter(|(_, _, times)| *times > 0) {
            self.metrics.breaker_moved(guard, from, to, times);
            tracing::info!(circuit = %slot.key, breaker = slot.home.as_deref().unwrap_or_default(), from, to, "a circuit moved");
            moved = true;
        }
        if moved {
            self.rises(slot);
            self.dirty.extend(name_of(slot));
        }
        moved
    }

    /// What a Breaker shall say.
    fn said(&mut self, name: &Name) -> Option<(Arc<Breaker>, BreakerStatus)> {
        let at = self.at();
        let wall = self.wall();
        let breaker = Arc::clone(&self.homes.get(name)?.breaker);
        let mut guarded: Vec<String> =
            self.pools.keys().filter(|pool| pool.namespace == name.namespace).map(|pool| pool.name.clone()).collect();
        let exists = |pool: &String| guarded.contains(pool);
        let unknown: Vec<String> = breaker.spec.pools.iter().flatten().filter(|pool| !exists(pool)).cloned().collect();
        guarded.retain(|pool| self.home_of(&name.namespace, pool).as_deref() == Some(&name.name));
        guarded.sort();
        let ours = |slot: &Slot| slot.key.namespace == name.namespace && slot.home.as_deref() == Some(&name.name);
        let views = self.circuits.iter_mut().filter(|(slot, _)| ours(slot)).map(|(slot, kept)| View {
            what: &slot.key.what,
            guard: slot.key.guard,
            saved: kept.circuit.saved(at.now, wall),
            failures: kept.circuit.failures(at.now),
            last_failure: kept.last_failure.as_deref(),
            review: kept.circuit.awaits_approval(),
        });
        let views: Vec<View> = views.collect();
        let facts = Facts { name: &name.name, unknown: &unknown, guarded: &guarded };
        let status = said(&breaker, &facts, &views, jiff::Timestamp::now());
        Some((breaker, status))
    }

    /// An object as somebody read it: what of it is newer than what is known is believed.
    fn observe(&mut self, breaker: Arc<Breaker>) {
        let name = Name::of(breaker.as_ref());
        let known = self.homes.get(&name);
        let same = known.is_some_and(|home| home.breaker.uid() == breaker.uid());
        if same && known.is_some_and(|home| !newer(&breaker, &home.breaker)) {
            return;
        }
        let ours = |slot: &Slot| name_of(slot).as_ref() == Some(&name);
        if !same {
            // Another object under its name: nothing of what is kept is stored there.
            self.circuits.iter_mut().filter(|(slot, _)| ours(slot)).for_each(|(_, kept)| kept.circuit.elsewhere());
        }
        let stored = breaker.status.iter().flat_map(|status| status.circuits.iter().flatten()).cloned().collect::<Vec<_>>();
        match self.homes.get_mut(&name) {
            Some(home) if same => home.breaker = breaker,
            Some(_) | None => {
                let home = Home { breaker, writing: false, written: None, put_off: None, failures: 0 };
                self.homes.insert(name.clone(), home);
            }
        }
        self.dirty.insert(name.clone());
        for circuit in stored {
            let Some(key) = Key::named(&name.namespace, &circuit.key) else { continue };
            let slot = Slot { key, home: Some(name.name.clone()) };
            let saved = convert::saved(&circuit);
            if self.circuits.get(&slot).is_some_and(|kept| kept.circuit.epoch() >= saved.epoch) {
                continue;
            }
            let mut kept = self.made(&slot, Some(&saved));
            kept.last_failure = circuit.last_failure;
            self.keep(slot, kept);
        }
    }

    /// Circuits of pools that are gone, and those that nobody will ask again and that say nothing, are forgotten.
    fn tidy(&mut self) {
        let at = self.at();
        let Self { circuits, pools, homes, dirty, .. } = self;
        let namespaces: HashSet<&String> = pools.keys().map(|pool| &pool.namespace).collect();
        circuits.retain(|slot, kept| {
            let home = name_of(slot);
            let stays = match slot.key.pool() {
                Some(pool) => pools.contains_key(&Name { namespace: slot.key.namespace.clone(), name: pool.to_owned() }),
                // Agents name models: one that nobody calls, and that never failed for long, is not kept.
                None if slot.key.guard == Guard::Models && kept.circuit.is_idle(at.now) => false,
                None if home.as_ref().is_some_and(|home| homes.contains_key(home)) => true,
                None => namespaces.contains(&slot.key.namespace) && kept.circuit.state() != CircuitState::Closed,
            };
            if !stays {
                dirty.extend(home);
            }
            stays
        });
    }
}

/// Before all circuits of a namespace.
fn first(namespace: &str) -> Slot {
    Slot { key: Key { namespace: namespace.to_owned(), guard: Guard::Work, what: String::new() }, home: None }
}

fn of_namespace<'a>(circuits: &'a BTreeMap<Slot, Kept>, namespace: &'a str) -> impl Iterator<Item = (&'a Slot, &'a Kept)> {
    circuits.range(first(namespace)..).take_while(move |(slot, _)| slot.key.namespace == namespace)
}

fn name_of(slot: &Slot) -> Option<Name> {
    slot.home.as_ref().map(|home| Name { namespace: slot.key.namespace.clone(), name: home.clone() })
}

impl Circuits {
    /// Nothing is known; `epoch` is our owner epoch.
    pub fn new(epoch: i64, metrics: Metrics) -> Self {
        let state = State {
            ready: false,
            // No circuit that a leader before us kept has an owner like ours.
            owners: u64::try_from(epoch).unwrap_or(0).wrapping_shl(OWNERS),
            origin: BootTime::now(),
            skew: 0,
            homes: BTreeMap::new(),
            pools: HashMap::new(),
            defaults: HashMap::new(),
            circuits: BTreeMap::new(),
            dirty: HashSet::new(),
            metrics,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), calls: Mutex::default(), moved: watch::Sender::new(0), work: Notify::new() }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of models that are under way. Never to be held over a use of the circuits.
    pub(super) fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything was read once: what is not known does not exist.
    pub fn is_ready(&self) -> bool {
        self.lock().ready
    }

    /// Told whenever a circuit, or what people wrote, may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.moved.subscribe()
    }

    pub(super) fn moved(&self) {
        self.0.moved.send_modify(|count| *count = count.wrapping_add(1));
        self.0.work.notify_one();
    }

    /// Waits until there may be something to write.
    pub async fn until_work(&self) {
        self.0.work.notified().await;
    }

    /// What Breakers of each namespace leave unset. For circuits that there are it counts from the next [`plant`](Self::plant) on.
    pub fn set_defaults(&self, defaults: HashMap<String, BreakerDefaults>) {
        let mut state = self.lock();
        if state.defaults != defaults {
            state.defaults = defaults;
            drop(state);
            self.moved();
        }
    }

    /// All Breakers and pools as they are now: `pools` with the longest that one operation of their work may take, in milliseconds.
    pub fn plant(&self, breakers: Vec<Arc<Breaker>>, pools: HashMap<Name, u64>) {
        let mut state = self.lock();
        let names: HashSet<Name> = breakers.iter().map(|breaker| Name::of(breaker.as_ref())).collect();
        let count = state.homes.len();
        state.homes.retain(|name, _| names.contains(name));
        let mut changed = state.homes.len() != count || state.pools != pools || !state.ready;
        if state.pools != pools {
            let differs = |one: &HashMap<Name, u64>, other: &HashMap<Name, u64>| {
                one.keys().filter(|pool| !other.contains_key(*pool)).map(|pool| pool.namespace.clone()).collect::<HashSet<_>>()
            };
            let (come, gone) = (differs(&pools, &state.pools), differs(&state.pools, &pools));
            state.pools = pools;
            let all: Vec<Name> =
                state.homes.keys().filter(|name| come.contains(&name.namespace) || gone.contains(&name.namespace)).cloned().collect();
            state.dirty.extend(all);
        }
        for breaker in breakers {
            state.observe(breaker);
        }
        state.tidy();
        let at = state.at();
        let slots: Vec<Slot> = state.circuits.keys().cloned().collect();
        for slot in slots {
            // One whose pool has another Breaker now goes there.
            let slot = match slot.key.pool().map(str::to_owned) {
                Some(pool) => {
                    let at_home = state.slot(&pool, &slot.key);
                    // It has gone there, or did under a leader before us that could not take it away here.
                    if at_home != slot && state.circuits.remove(&slot).is_some() {
                        state.dirty.extend(name_of(&slot));
                    }
                    at_home
                }
                None => slot,
            };
            let Some(operation) = state.circuits.get(&slot).map(|kept| kept.operation) else { continue };
            let settings = state.settings(&slot, operation);
            if let Some(kept) = state.circuits.get_mut(&slot).filter(|kept| kept.set != settings) {
                kept.set = settings.clone();
                kept.circuit.set(settings, at);
                changed = true;
                state.dirty.extend(name_of(&slot));
            }
            state.after(&slot);
        }
        state.ready = true;
        let due = !state.dirty.is_empty();
        drop(state);
        if changed || due {
            self.moved();
        }
    }

    /// Whether an operation of an agent of `pool` may begin, which takes `within` at most. What came of it is told with
    /// [`complete`](Self::complete).
    pub async fn admit(&self, pool: &Name, key: &Key, within: Duration) -> Result<Permit, Refused> {
        let mut changes = self.changes();
        let waited = tokio::time::Instant::now() + STORED_WITHIN;
        loop {
            match self.ask(pool, key, within)? {
                Answer::Permit(permit) => return Ok(permit),
                Answer::Rejected(rejection) => {
                    let words = format!("{}: {rejection}", rejection.name(key.about()));
                    return Err(Refused::Open { rejection, words });
                }
                Answer::Store => self.0.work.notify_one(),
            }
            match tokio::time::timeout_at(waited, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(Refused::Away("a circuit breaker has opened, and that cannot be stored now; try again")),
            }
        }
    }

    fn ask(&self, pool: &Name, key: &Key, within: Duration) -> Result<Answer<Permit>, Refused> {
        let mut state = self.lock();
        if !state.ready {
            return Err(Refused::Away("the circuit breakers are being read; try again"));
        }
        let slot = state.slot(&pool.name, key);
        let at = state.at();
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut answer = Answer::Store;
        // Once more where there was nowhere to store an opening.
        for _ in 0..2 {
            let Some(kept) = state.circuits.get_mut(&slot) else { break };
            answer = kept.circuit.admit(at, within);
            let moved = state.after(&slot);
            if moved {
                self.moved();
            }
            if answer != Answer::Store || slot.home.is_some() {
                break;
            }
        }
        Ok(answer)
    }

    /// What came of the operation that `permit` was given for; of a failure, why, for people.
    pub fn complete(&self, key: &Key, permit: &Permit, outcome: Outcome, why: &str) {
        if permit.kind == Kind::Free {
            return;
        }
        let mut state = self.lock();
        let mut all = of_namespace(&state.circuits, &key.namespace);
        let found = all.find(|(slot, kept)| slot.key == *key && kept.circuit.owner() == permit.owner);
        let slot = found.map(|(slot, _)| slot.clone());
        drop(all);
        if let Some(slot) = slot {
            self.end(&mut state, &slot, permit, outcome, why);
        }
    }

    /// A failure that nobody has a permit for: it counts while the circuit is closed, and else says nothing new.
    pub fn failed(&self, pool: &Name, key: &Key, why: &str) {
        let mut state = self.lock();
        if !state.ready {
            return;
        }
        let slot = state.slot(&pool.name, key);
        let at = state.at();
        let Some(kept) = state.circuits.get_mut(&slot).filter(|kept| kept.circuit.state() == CircuitState::Closed) else { return };
        if let Answer::Permit(permit) = kept.circuit.admit(at, 0) {
            self.end(&mut state, &slot, &permit, Outcome::Failure { retry_after: None }, why);
        }
    }

    fn end(&self, state: &mut State, slot: &Slot, permit: &Permit, outcome: Outcome, why: &str) {
        let at = state.at();
        let Some(kept) = state.circuits.get_mut(slot) else { return };
        kept.circuit.complete(permit, outcome, at);
        let failed = matches!(outcome, Outcome::Failure { .. } | Outcome::Dropped);
        if failed {
            kept.last_failure = Some(why.chars().take(256).collect());
            state.dirty.extend(name_of(slot));
        }
        if state.after(slot) || failed {
            self.moved();
        }
    }

    /// Lets time go by: probes that said nothing in their time have failed.
    pub fn tick(&self) {
        let mut state = self.lock();
        let at = state.at();
        let slots: Vec<Slot> = state.circuits.keys().cloned().collect();
        let mut moved = false;
        for slot in slots {
            if let Some(kept) = state.circuits.get_mut(&slot) {
                kept.circuit.tick(at);
                moved |= state.after(&slot);
            }
        }
        let dirty = !state.dirty.is_empty();
        drop(state);
        if moved || dirty {
            self.moved();
        }
    }

    /// Time goes on, in a test.
    #[cfg(test)]
    pub fn pass(&self, ms: u64) {
        let mut state = self.lock();
        state.skew += ms;
        state.homes.values_mut().for_each(|home| (home.put_off, home.written) = (None, None));
    }

    /// Where a circuit is that an agent of `pool` asks, and what is kept of it.
    pub(super) fn with<T>(&self, pool: &str, key: &Key, look: impl FnOnce(&mut State, &Slot) -> T) -> T {
        let mut state = self.lock();
        let slot = state.slot(pool, key);
        let result = look(&mut state, &slot);
        let moved = state.after(&slot);
        drop(state);
        if moved {
            self.moved();
        }
        result
    }
}
