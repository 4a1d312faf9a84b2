//! The log of simulated agents: every item that one of them was given, and every end that was accepted. Other modules
//! judge it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use spillway_pod::link::calls;
use spillway_pod::link::gateway::{Answer, Silence};
use spillway_pod::link::retry::CallOutcome;
use spillway_wire::work::LeaseRef;
use tokio::sync::Semaphore;

/// An agent was given an item.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The item's name.
    pub item: String,
    /// The lease.
    pub held: LeaseRef,
    /// When the agent had the answer.
    pub at: Instant,
}

/// The end of an item was accepted.
#[derive(Clone, Debug)]
pub struct End {
    /// The lease.
    pub held: LeaseRef,
    /// When the agent had the answer.
    pub at: Instant,
}

/// The log of one fleet's agents, in the order of the answers.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Items that they were given.
    pub claims: Vec<Claim>,
    /// Items that they finished.
    pub ends: Vec<End>,
}

/// The work of one fleet's agents.
pub struct Hands {
    think_ms: [AtomicU64; 2],
    log: Mutex<Log>,
    waiting: AtomicUsize,
    /// Permits for a supplier: each end of an item adds one, and each new item takes one.
    pub supply_permits: Semaphore,
}

impl Default for Hands {
    fn default() -> Self {
        Self { think_ms: Default::default(), log: Mutex::default(), waiting: AtomicUsize::new(0), supply_permits: Semaphore::new(0) }
    }
}

impl Hands {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long an agent works on each item from now on.
    pub fn set_work_time(&self, think: Duration) {
        self.set_work_time_range(think, think);
    }

    /// Sets the least and the longest time that an agent works on an item from now on, uniformly distributed.
    pub fn set_work_time_range(&self, least: Duration, most: Duration) {
        for (known, time) in self.think_ms.iter().zip([least, most]) {
            known.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// How long an agent works on the next item.
    pub fn work_time(&self) -> Duration {
        let [least, most] = [0, 1].map(|at| self.think_ms[at].load(Ordering::Relaxed));
        Duration::from_millis(rand::rng().random_range(least..=most.max(least)))
    }

    /// Agents that wait for work at this moment.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// An agent asks for work.
    pub fn note_claim_start(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the answer to its claim.
    pub fn note_claim(&self, result: &Result<Answer, Silence>) {
        let at = Instant::now();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let CallOutcome::Done(Some(assignment)) = calls::claim_outcome(result) {
            self.log().claims.push(Claim { item: assignment.name, held: assignment.held, at });
        }
    }

    /// Records the answer to its report of an item's end.
    pub fn note_end(&self, held: &LeaseRef, result: &Result<Answer, Silence>) {
        let at = Instant::now();
        if let CallOutcome::Done(()) = calls::taken(result) {
            self.log().ends.push(End { held: held.clone(), at });
            self.supply_permits.add_permits(1);
        }
    }

    /// Number of ends since the log was last taken.
    pub fn end_count(&self) -> usize {
        self.log().ends.len()
    }

    /// When an agent was first given an item since the log was last taken.
    pub fn first_claim(&self) -> Option<Instant> {
        self.log().claims.first().map(|claim| claim.at)
    }

    /// Takes the log since the last call.
    pub fn take(&self) -> Log {
        std::mem::take(&mut self.log())
    }
}
