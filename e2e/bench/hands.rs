//! What went through the hands of simulated agents: every item that one of them was given, and every end that was taken.
//! It only keeps; what it means is judged elsewhere.

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

/// The end of an item was taken.
#[derive(Clone, Debug)]
pub struct End {
    /// The lease.
    pub held: LeaseRef,
    /// When the agent had the answer.
    pub at: Instant,
}

/// What the agents of one fleet did, in the order of its answers.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// What they were given.
    pub claims: Vec<Claim>,
    /// What they finished.
    pub ends: Vec<End>,
}

/// The hands of one fleet.
pub struct Hands {
    think_ms: [AtomicU64; 2],
    log: Mutex<Log>,
    waiting: AtomicUsize,
    /// One more for each end: what a supplier takes before it makes another item.
    pub places: Semaphore,
}

impl Default for Hands {
    fn default() -> Self {
        Self { think_ms: Default::default(), log: Mutex::default(), waiting: AtomicUsize::new(0), places: Semaphore::new(0) }
    }
}

impl Hands {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on each item takes its agent so long.
    pub fn set_think(&self, think: Duration) {
        self.set_thinks(think, think);
    }

    /// From now on each item takes its agent some time between these, each as likely.
    pub fn set_thinks(&self, least: Duration, most: Duration) {
        for (known, time) in self.think_ms.iter().zip([least, most]) {
            known.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// How long the next item takes its agent.
    pub fn think(&self) -> Duration {
        let [least, most] = [0, 1].map(|at| self.think_ms[at].load(Ordering::Relaxed));
        Duration::from_millis(rand::rng().random_range(least..=most.max(least)))
    }

    /// Agents that wait for work at this moment.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// An agent asks for work.
    pub fn asks(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Its claim was answered, or not.
    pub fn claimed(&self, result: &Result<Answer, Silence>) {
        let at = Instant::now();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let CallOutcome::Done(Some(assignment)) = calls::claimed(result) {
            self.log().claims.push(Claim { item: assignment.name, held: assignment.held, at });
        }
    }

    /// It told of the end of this item; that was taken, or not.
    pub fn ended(&self, held: &LeaseRef, result: &Result<Answer, Silence>) {
        let at = Instant::now();
        if let CallOutcome::Done(()) = calls::taken(result) {
            self.log().ends.push(End { held: held.clone(), at });
            self.places.add_permits(1);
        }
    }

    /// How many ends were taken since the log was last taken.
    pub fn ends(&self) -> usize {
        self.log().ends.len()
    }

    /// When an agent was first given something since the log was last taken.
    pub fn first_claim(&self) -> Option<Instant> {
        self.log().claims.first().map(|claim| claim.at)
    }

    /// What was done since this was asked last.
    pub fn take(&self) -> Log {
        std::mem::take(&mut self.log())
    }
}
