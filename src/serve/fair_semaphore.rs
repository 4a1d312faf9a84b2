//! A semaphore that is fair between namespaces: a waiter waits behind waiters of its own namespace, and not behind the
//! many waiters of another one. `policy::fair_queue` decides who is next; this module does the waiting.
//!
//! What always holds: while a permit is free, no waiter that may have it waits. A waiter that stops waiting, or drops
//! its permit, keeps no permit from others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::policy::fair_queue::FairQueue;

/// The limits of permits and waiters.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Permits in all.
    pub total: usize,
    /// The most permits of one namespace. The rest is always free for others, also if this namespace keeps its permits
    /// for long.
    pub per_namespace: usize,
    /// The most waiters of one namespace.
    pub max_waiting: usize,
}

/// The namespace has reached its limit of waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

struct State {
    bounds: Bounds,
    taken: usize,
    taken_by_namespace: HashMap<String, usize>,
    queue: FairQueue<String, oneshot::Sender<Permit>>,
}

/// The permits. Cheap to clone.
#[derive(Clone)]
pub struct FairSemaphore(Arc<Mutex<State>>);

/// One permit, until it is dropped.
pub struct Permit {
    semaphore: FairSemaphore,
    namespace: String,
}

impl State {
    fn may_take(&self, namespace: &str) -> bool {
        self.taken < self.bounds.total && self.taken_by_namespace.get(namespace).is_none_or(|own| *own < self.bounds.per_namespace)
    }

    fn begin(&mut self, namespace: &str) {
        self.taken += 1;
        *self.taken_by_namespace.entry(namespace.to_owned()).or_default() += 1;
    }

    fn end(&mut self, namespace: &str) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(own) = self.taken_by_namespace.get_mut(namespace) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.taken_by_namespace.remove(namespace);
            }
        }
    }
}

impl FairSemaphore {
    /// All permits are free.
    pub fn new(bounds: Bounds) -> Self {
        let line = FairQueue::new(bounds.max_waiting);
        Self(Arc::new(Mutex::new(State { bounds, taken: 0, taken_by_namespace: HashMap::new(), queue: line })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self, namespace: &str) -> Permit {
        Permit { semaphore: self.clone(), namespace: namespace.to_owned() }
    }

    /// Waits for a permit. Cancel safe: a dropped future leaves the queue.
    pub async fn take(&self, namespace: &str) -> Result<Permit, QueueFull> {
        let (number, called) = {
            let mut state = self.lock();
            // Free permits are given to waiters at once, so a waiter may not have the permits that are free now.
            if state.may_take(namespace) {
                state.begin(namespace);
                return Ok(self.permit(namespace));
            }
            let (call, called) = oneshot::channel();
            (state.queue.join(namespace.to_owned(), call).map_err(|_| QueueFull)?, called)
        };
        let _waiting = QueuedWaiter { semaphore: self, namespace, number };
        // The queue never drops a sender: it is used, or the waiter removes it.
        called.await.map_err(|_| QueueFull)
    }

    /// Changes the numbers of permits. Permits in use stay valid; the limit of waiters does not change.
    pub fn resize(&self, all: usize, of_one: usize) {
        self.update_and_wake(|state| state.bounds = Bounds { total: all, per_namespace: of_one, ..state.bounds });
    }

    /// Whether there are waiters.
    pub fn has_waiters(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    fn end(&self, namespace: &str) {
        self.update_and_wake(|state| state.end(namespace));
    }

    /// Applies `change`, and wakes the waiters that may have a permit after it.
    fn update_and_wake(&self, change: impl FnOnce(&mut State)) {
        let mut called = Vec::new();
        {
            let mut state = self.lock();
            change(&mut state);
            while state.taken < state.bounds.total {
                let State { taken_by_namespace: of, queue: line, bounds, .. } = &mut *state;
                let may = |one: &String| of.get(one).is_none_or(|own| *own < bounds.per_namespace);
                let Some((next, call)) = line.next(may) else { break };
                state.begin(&next);
                called.push((call, self.permit(&next)));
            }
        }
        // A permit for a waiter that has just left comes back and is dropped, which wakes the next waiter.
        called.into_iter().for_each(|(call, turn)| drop(call.send(turn)));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.end(&self.namespace);
    }
}

/// Removes a waiter from the queue, unless it got its permit.
struct QueuedWaiter<'a> {
    semaphore: &'a FairSemaphore,
    namespace: &'a str,
    number: u64,
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        drop(self.semaphore.lock().queue.leave(&self.namespace.to_owned(), self.number));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn turns(all: usize, of_one: usize) -> FairSemaphore {
        FairSemaphore::new(Bounds { total: all, per_namespace: of_one, max_waiting: 10 })
    }

    /// All permits are free, and no namespace is remembered.
    fn is_empty(turns: &FairSemaphore) -> bool {
        let state = turns.lock();
        state.taken == 0 && state.taken_by_namespace.is_empty() && state.queue.is_empty()
    }

    #[tokio::test]
    async fn a_flood_waits_behind_itself() {
        let turns = turns(1, 1);
        let first = turns.take("loud").await.expect("free");
        let mut loud: Vec<_> = (0..5).map(|_| Box::pin(turns.take("loud"))).collect();
        assert!(loud.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let mut quiet = Box::pin(turns.take("quiet"));
        assert!((&mut quiet).now_or_never().is_none());
        drop(first);
        assert!((&mut quiet).now_or_never().is_none(), "one that came before has the first turn");
        let turn = loud.remove(0).await.expect("its turn");
        drop(turn);
        let turn = quiet.await.expect("the second turn is another namespace's, whatever else waits");
        drop(turn);
        for waiting in loud {
            drop(waiting.await.expect("its turn"));
        }
        assert!(is_empty(&turns));
    }

    #[tokio::test]
    async fn one_namespace_leaves_places_for_others() {
        let turns = turns(4, 3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(turns.take("loud").await.expect("free"));
        }
        let mut fourth = Box::pin(turns.take("loud"));
        assert!((&mut fourth).now_or_never().is_none());
        let other = turns.take("quiet").now_or_never().expect("at once").expect("free");
        drop(other);
        assert!((&mut fourth).now_or_never().is_none(), "what others leave is not its own");
        held.pop();
        drop(fourth.await.expect("its turn"));
        drop(held);
        assert!(is_empty(&turns));
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_no_hole_also_when_it_was_just_called() {
        let turns = turns(1, 1);
        let first = turns.take("a").await.expect("free");
        let (mut gone, mut called, mut last) = (Box::pin(turns.take("a")), Box::pin(turns.take("a")), Box::pin(turns.take("a")));
        for waiting in [&mut gone, &mut called, &mut last] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(gone);
        drop(first);
        // It was woken and not polled since: its permit goes to the next waiter.
        drop(called);
        drop(last.now_or_never().expect("its turn").expect("its turn"));
        assert!(is_empty(&turns));
    }

    #[tokio::test]
    async fn more_places_are_there_at_once_and_fewer_when_those_are_given_back() {
        let turns = turns(1, 1);
        let first = turns.take("a").await.expect("free");
        let mut second = Box::pin(turns.take("a"));
        assert!((&mut second).now_or_never().is_none() && turns.has_waiters());
        turns.resize(4, 2);
        let second = second.now_or_never().expect("at once").expect("a place");
        turns.resize(1, 1);
        let mut third = Box::pin(turns.take("a"));
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "one is still taken");
        drop(second);
        drop(third.now_or_never().expect("its turn").expect("its turn"));
        assert!(is_empty(&turns));
    }

    #[tokio::test]
    async fn so_many_of_one_wait_and_no_more() {
        let turns = FairSemaphore::new(Bounds { total: 1, per_namespace: 1, max_waiting: 1 });
        let _first = turns.take("loud").await.expect("free");
        let mut second = Box::pin(turns.take("loud"));
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(turns.take("loud").await.err(), Some(QueueFull));
        let mut other = Box::pin(turns.take("quiet"));
        assert!((&mut other).now_or_never().is_none(), "it waits, and is not refused");
    }
}
