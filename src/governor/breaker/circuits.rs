//! The circuits in memory, under one lock over nothing that waits.
//!
//! What always holds: a refusal because of an opening is said only when that opening is in the status of its Breaker, or has
//! nowhere to be stored; of two records of a circuit the one with the higher epoch is believed; circuits of one Breaker never
//! have the same epoch, so that a person can approve all openings up to one.

mod slot;
mod state;
mod store;
mod work;
mod writes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

pub(super) use self::slot::{Slot, StoredCircuit};
pub(super) use self::store::MAX_MODEL_CIRCUITS;
use self::store::Store;
pub use self::work::PoolCircuits;
use super::key::Key;
use super::open_calls::OpenCalls;
use crate::api::Breaker;
use crate::api::cluster_budget::BreakerDefaults;
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::breaker::circuit::Kind;
use crate::policy::breaker::{Answer, Outcome, Permit, Rejection, State as CircuitState};
use crate::telemetry::Metrics;

/// Whoever asks waits so long for an opening to be stored.
const OPENING_STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Circuits of one leader have numbers of their own as owners: so many for each owner epoch.
const OWNER_NUMBER_BITS: u32 = 20;

/// Why an operation may not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginRefusal {
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

/// A Breaker.
pub(super) struct BreakerRef {
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
    pub homes: BTreeMap<ObjectKey, BreakerRef>,
    /// Pools, with the longest that one operation of their work may take, in milliseconds.
    pub pools: HashMap<ObjectKey, u64>,
    /// What Breakers of a namespace leave unset.
    defaults: HashMap<String, BreakerDefaults>,
    pub circuits: Store,
    /// Breakers whose status may say something else than it should.
    dirty: HashSet<ObjectKey>,
    metrics: Metrics,
}

struct Shared {
    state: Mutex<State>,
    calls: Mutex<OpenCalls>,
    moved: watch::Sender<u64>,
    work: Notify,
}

/// The governor's memory of circuits. Cheap to clone.
#[derive(Clone)]
pub struct Circuits(Arc<Shared>);

fn name_of(slot: &Slot) -> Option<ObjectKey> {
    slot.home.as_ref().map(|home| ObjectKey { namespace: slot.key.namespace.clone(), name: home.clone() })
}

impl Circuits {
    /// Nothing is known; `epoch` is our owner epoch.
    pub fn new(epoch: i64, metrics: Metrics) -> Self {
        let state = State {
            ready: false,
            // No circuit that a leader before us kept has an owner like ours.
            owners: u64::try_from(epoch).unwrap_or(0).wrapping_shl(OWNER_NUMBER_BITS),
            origin: BootTime::now(),
            skew: 0,
            homes: BTreeMap::new(),
            pools: HashMap::new(),
            defaults: HashMap::new(),
            circuits: Store::default(),
            dirty: HashSet::new(),
            metrics,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), calls: Mutex::default(), moved: watch::Sender::new(0), work: Notify::new() }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of models that are under way. Never to be held over a use of the circuits.
    pub(super) fn calls(&self) -> MutexGuard<'_, OpenCalls> {
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
    pub fn plant(&self, breakers: Vec<Arc<Breaker>>, pools: HashMap<ObjectKey, u64>) {
        let mut state = self.lock();
        let names: HashSet<ObjectKey> = breakers.iter().map(|breaker| ObjectKey::of(breaker.as_ref())).collect();
        let count = state.homes.len();
        state.homes.retain(|name, _| names.contains(name));
        let mut changed = state.homes.len() != count || state.pools != pools || !state.ready;
        if state.pools != pools {
            let differs = |one: &HashMap<ObjectKey, u64>, other: &HashMap<ObjectKey, u64>| {
                one.keys().filter(|pool| !other.contains_key(*pool)).map(|pool| pool.namespace.clone()).collect::<HashSet<_>>()
            };
            let (come, gone) = (differs(&pools, &state.pools), differs(&state.pools, &pools));
            state.pools = pools;
            let all: Vec<ObjectKey> =
                state.homes.keys().filter(|name| come.contains(&name.namespace) || gone.contains(&name.namespace)).cloned().collect();
            state.dirty.extend(all);
        }
        for breaker in breakers {
            state.observe(breaker);
        }
        state.tidy();
        let at = state.at();
        for slot in state.circuits.slots() {
            // One whose pool, or project, has another Breaker now goes there.
            let slot = match slot.key.goes_along().then(|| slot.key.pool().unwrap_or_default().to_owned()) {
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
            let Some(operation) = state.circuits.get_mut(&slot).map(|kept| kept.operation) else { continue };
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
    pub async fn admit(&self, pool: &ObjectKey, key: &Key, within: Duration) -> Result<Permit, BeginRefusal> {
        self.answered(|| self.ask(pool, key, within), |rejection| rejection.name(key.about())).await
    }

    /// What is answered once no opening waits to be stored. `name` names who refuses.
    async fn answered<T>(
        &self,
        ask: impl Fn() -> Result<Answer<T>, BeginRefusal>,
        name: impl Fn(&Rejection) -> String,
    ) -> Result<T, BeginRefusal> {
        let mut changes = self.changes();
        let waited = tokio::time::Instant::now() + OPENING_STORE_TIMEOUT;
        loop {
            match ask()? {
                Answer::Permit(permit) => return Ok(permit),
                Answer::Rejected(rejection) => {
                    let words = format!("{}: {rejection}", name(&rejection));
                    return Err(BeginRefusal::Open { rejection, words });
                }
                Answer::Store => self.0.work.notify_one(),
            }
            match tokio::time::timeout_at(waited, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => {
                    return Err(BeginRefusal::Away("a circuit breaker has opened, and its state cannot be stored now; try again"));
                }
            }
        }
    }

    fn ask(&self, pool: &ObjectKey, key: &Key, within: Duration) -> Result<Answer<Permit>, BeginRefusal> {
        let mut state = self.lock();
        if !state.ready {
            return Err(BeginRefusal::Away("the circuit breakers are being read; try again"));
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

    /// An operation of `agent` is under way, with this permit.
    pub(super) fn began(&self, permit: &Permit, agent: &ObjectKey) {
        let mut state = self.lock();
        let now = state.at().now;
        let Some(slot) = state.circuits.owned(permit.owner).filter(|_| permit.kind != Kind::Free) else { return };
        if let Some(kept) = state.circuits.get_mut(&slot) {
            kept.callers.began(&agent.name, now);
        }
    }

    /// What came of the operation that `permit` was given for; of a failure, why, for people.
    pub fn complete(&self, key: &Key, permit: &Permit, outcome: Outcome, why: &str) {
        self.complete_for(key, permit, outcome, why, None);
    }

    /// The same, for an agent of which it was said that its operation [began](Self::began).
    pub(super) fn complete_for(&self, key: &Key, permit: &Permit, outcome: Outcome, why: &str, agent: Option<&ObjectKey>) {
        if permit.kind == Kind::Free {
            return;
        }
        let mut state = self.lock();
        let slot = state.circuits.owned(permit.owner).filter(|slot| (&slot.key.namespace, slot.key.guard) == (&key.namespace, key.guard));
        if let Some(slot) = slot {
            self.end(&mut state, &slot, permit, outcome, why, agent);
        }
    }

    /// A failure that nobody has a permit for: it counts while the circuit is closed, and else says nothing new.
    pub fn failed(&self, pool: &ObjectKey, key: &Key, why: &str) {
        let mut state = self.lock();
        if !state.ready {
            return;
        }
        let slot = state.slot(&pool.name, key);
        let at = state.at();
        let Some(kept) = state.circuits.get_mut(&slot).filter(|kept| kept.circuit.state() == CircuitState::Closed) else { return };
        if let Answer::Permit(permit) = kept.circuit.admit(at, 0) {
            self.end(&mut state, &slot, &permit, Outcome::Failure { retry_after: None }, why, None);
        }
    }

    fn end(&self, state: &mut State, slot: &Slot, permit: &Permit, outcome: Outcome, why: &str, agent: Option<&ObjectKey>) {
        let at = state.at();
        let Some(kept) = state.circuits.get_mut(slot) else { return };
        let failed = matches!(outcome, Outcome::Failure { .. } | Outcome::Dropped);
        let mut counts = outcome;
        if let Some(ObjectKey { name, .. }) = agent {
            kept.callers.ended(name, at.now, failed);
            // The failure that would open it says nothing while another agent could say the same and does not.
            if failed && kept.circuit.opens_next(at.now) && kept.callers.fails_alone(name, at.now, kept.set.window) {
                counts = Outcome::Neutral;
            }
        }
        kept.circuit.complete(permit, counts, at);
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
        let mut moved = false;
        // Of the others time alone makes nothing.
        for slot in state.circuits.tried() {
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
