//! The circuits in memory, under one lock that is never held while waiting.
//!
//! Invariants: a refusal because of an opening is given only after the opening is in the status of its Breaker, unless
//! no Breaker applies; of two records of a circuit the one with the higher epoch is used; circuits of one Breaker never
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

/// How long a caller waits for an opening to be stored.
const OPENING_STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bits for the owner numbers of one leader: each owner epoch has a range of its own.
const OWNER_NUMBER_BITS: u32 = 20;

/// Why an operation may not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginRefusal {
    /// The circuit refuses it.
    Open {
        /// The reason, and when to retry.
        rejection: Rejection,
        /// The message for the caller: the breaker, the reason, and when to retry.
        words: String,
    },
    /// The state is not loaded yet, or cannot be stored now: retry soon.
    Away(&'static str),
}

/// A Breaker.
pub(super) struct BreakerRef {
    /// The object as it was last read or answered.
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
    pub breakers: BTreeMap<ObjectKey, BreakerRef>,
    /// Pools, with the longest time of one operation of their work, in milliseconds.
    pub pools: HashMap<ObjectKey, u64>,
    /// The defaults for the Breakers of each namespace.
    defaults: HashMap<String, BreakerDefaults>,
    pub circuits: Store,
    /// Breakers whose status may be outdated.
    dirty: HashSet<ObjectKey>,
    metrics: Metrics,
}

struct Shared {
    state: Mutex<State>,
    calls: Mutex<OpenCalls>,
    moved: watch::Sender<u64>,
    work: Notify,
}

/// The circuits in memory. Cheap to clone.
#[derive(Clone)]
pub struct Circuits(Arc<Shared>);

fn name_of(slot: &Slot) -> Option<ObjectKey> {
    slot.breaker.as_ref().map(|home| ObjectKey { namespace: slot.key.namespace.clone(), name: home.clone() })
}

impl Circuits {
    /// Starts empty. `epoch` is our owner epoch.
    pub fn new(epoch: i64, metrics: Metrics) -> Self {
        let state = State {
            ready: false,
            // No circuit of a previous leader has an owner number of ours.
            owners: u64::try_from(epoch).unwrap_or(0).wrapping_shl(OWNER_NUMBER_BITS),
            origin: BootTime::now(),
            skew: 0,
            breakers: BTreeMap::new(),
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

    /// Model calls in flight. This lock must not be held while the circuits are used.
    pub(super) fn calls(&self) -> MutexGuard<'_, OpenCalls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything was read once: from then on, an unknown object does not exist.
    pub fn is_ready(&self) -> bool {
        self.lock().ready
    }

    /// Notified when a circuit or a spec may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.moved.subscribe()
    }

    pub(super) fn notify_change(&self) {
        self.0.moved.send_modify(|count| *count = count.wrapping_add(1));
        self.0.work.notify_one();
    }

    /// Waits until there may be something to write.
    pub async fn until_work(&self) {
        self.0.work.notified().await;
    }

    /// Sets the defaults for the Breakers of each namespace. For existing circuits they apply from the next
    /// [`set_objects`](Self::set_objects) on.
    pub fn set_defaults(&self, defaults: HashMap<String, BreakerDefaults>) {
        let mut state = self.lock();
        if state.defaults != defaults {
            state.defaults = defaults;
            drop(state);
            self.notify_change();
        }
    }

    /// Sets all Breakers and pools. `pools` has the longest time of one operation of their work, in milliseconds.
    pub fn set_objects(&self, breakers: Vec<Arc<Breaker>>, pools: HashMap<ObjectKey, u64>) {
        let mut state = self.lock();
        let names: HashSet<ObjectKey> = breakers.iter().map(|breaker| ObjectKey::of(breaker.as_ref())).collect();
        let count = state.breakers.len();
        state.breakers.retain(|name, _| names.contains(name));
        let mut changed = state.breakers.len() != count || state.pools != pools || !state.ready;
        if state.pools != pools {
            let differs = |one: &HashMap<ObjectKey, u64>, other: &HashMap<ObjectKey, u64>| {
                one.keys().filter(|pool| !other.contains_key(*pool)).map(|pool| pool.namespace.clone()).collect::<HashSet<_>>()
            };
            let (come, gone) = (differs(&pools, &state.pools), differs(&state.pools, &pools));
            state.pools = pools;
            let all: Vec<ObjectKey> =
                state.breakers.keys().filter(|name| come.contains(&name.namespace) || gone.contains(&name.namespace)).cloned().collect();
            state.dirty.extend(all);
        }
        for breaker in breakers {
            state.observe(breaker);
        }
        state.tidy();
        let at = state.current_moment();
        for slot in state.circuits.slots() {
            // A circuit moves when another Breaker applies to its pool or project.
            let slot = match slot.key.moves_between_breakers().then(|| slot.key.pool().unwrap_or_default().to_owned()) {
                Some(pool) => {
                    let at_home = state.slot(&pool, &slot.key);
                    // The circuit was moved just now, or earlier by a previous leader that could not remove it from the
                    // old Breaker.
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
            state.process_change(&slot);
        }
        state.ready = true;
        let due = !state.dirty.is_empty();
        drop(state);
        if changed || due {
            self.notify_change();
        }
    }

    /// Asks for a permit for an operation of an agent of `pool` that takes at most `within`.
    /// [`complete`](Self::complete) reports its result.
    pub async fn admit(&self, pool: &ObjectKey, key: &Key, within: Duration) -> Result<Permit, BeginRefusal> {
        self.wait_for_answer(|| self.ask(pool, key, within), |rejection| rejection.name(key.target())).await
    }

    /// The answer, after no opening waits to be stored any more. `name` names the breaker that refuses.
    async fn wait_for_answer<T>(
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
        let at = state.current_moment();
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut answer = Answer::Store;
        // Asks a second time if there is no Breaker to store an opening in.
        for _ in 0..2 {
            let Some(kept) = state.circuits.get_mut(&slot) else { break };
            answer = kept.circuit.admit(at, within);
            let moved = state.process_change(&slot);
            if moved {
                self.notify_change();
            }
            if answer != Answer::Store || slot.breaker.is_some() {
                break;
            }
        }
        Ok(answer)
    }

    /// Records that an operation of `agent` is in flight with this permit.
    pub(super) fn record_operation_start(&self, permit: &Permit, agent: &ObjectKey) {
        let mut state = self.lock();
        let now = state.current_moment().now;
        let Some(slot) = state.circuits.slot_by_owner(permit.owner).filter(|_| permit.kind != Kind::Free) else { return };
        if let Some(kept) = state.circuits.get_mut(&slot) {
            kept.callers.began(&agent.name, now);
        }
    }

    /// Reports the result of the operation of `permit`. `why` is the message of a failure.
    pub fn complete(&self, key: &Key, permit: &Permit, outcome: Outcome, why: &str) {
        self.complete_for(key, permit, outcome, why, None);
    }

    /// The same, for an agent whose operation was recorded with [`record_operation_start`](Self::record_operation_start).
    pub(super) fn complete_for(&self, key: &Key, permit: &Permit, outcome: Outcome, why: &str, agent: Option<&ObjectKey>) {
        if permit.kind == Kind::Free {
            return;
        }
        let mut state = self.lock();
        let slot =
            state.circuits.slot_by_owner(permit.owner).filter(|slot| (&slot.key.namespace, slot.key.guard) == (&key.namespace, key.guard));
        if let Some(slot) = slot {
            self.end(&mut state, &slot, permit, outcome, why, agent);
        }
    }

    /// Reports a failure without a permit. It counts only while the circuit is closed.
    pub fn failed(&self, pool: &ObjectKey, key: &Key, why: &str) {
        let mut state = self.lock();
        if !state.ready {
            return;
        }
        let slot = state.slot(&pool.name, key);
        let at = state.current_moment();
        let Some(kept) = state.circuits.get_mut(&slot).filter(|kept| kept.circuit.state() == CircuitState::Closed) else { return };
        if let Answer::Permit(permit) = kept.circuit.admit(at, 0) {
            self.end(&mut state, &slot, &permit, Outcome::Failure { retry_after: None }, why, None);
        }
    }

    fn end(&self, state: &mut State, slot: &Slot, permit: &Permit, outcome: Outcome, why: &str, agent: Option<&ObjectKey>) {
        let at = state.current_moment();
        let Some(kept) = state.circuits.get_mut(slot) else { return };
        let failed = matches!(outcome, Outcome::Failure { .. } | Outcome::Dropped);
        let mut counts = outcome;
        if let Some(ObjectKey { name, .. }) = agent {
            kept.callers.ended(name, at.now, failed);
            // The failure that would open the circuit does not count while only one agent fails and another one calls
            // too.
            if failed && kept.circuit.opens_next(at.now) && kept.callers.fails_alone(name, at.now, kept.set.window) {
                counts = Outcome::Neutral;
            }
        }
        kept.circuit.complete(permit, counts, at);
        if failed {
            kept.last_failure = Some(why.chars().take(256).collect());
            state.dirty.extend(name_of(slot));
        }
        if state.process_change(slot) || failed {
            self.notify_change();
        }
    }

    /// Advances the clock: probes without a result in their time count as failed.
    pub fn tick(&self) {
        let mut state = self.lock();
        let at = state.current_moment();
        let mut moved = false;
        // Time alone does not change the other circuits.
        for slot in state.circuits.half_open() {
            if let Some(kept) = state.circuits.get_mut(&slot) {
                kept.circuit.tick(at);
                moved |= state.process_change(&slot);
            }
        }
        let dirty = !state.dirty.is_empty();
        drop(state);
        if moved || dirty {
            self.notify_change();
        }
    }

    /// Advances the clock, in a test.
    #[cfg(test)]
    pub fn pass(&self, ms: u64) {
        let mut state = self.lock();
        state.skew += ms;
        state.breakers.values_mut().for_each(|home| (home.put_off, home.written) = (None, None));
    }

    /// Runs `look` on the circuit for an agent of `pool`.
    pub(super) fn with<T>(&self, pool: &str, key: &Key, look: impl FnOnce(&mut State, &Slot) -> T) -> T {
        let mut state = self.lock();
        let slot = state.slot(pool, key);
        let result = look(&mut state, &slot);
        let moved = state.process_change(&slot);
        drop(state);
        if moved {
            self.notify_change();
        }
        result
    }
}
