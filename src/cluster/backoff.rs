//! Counts the consecutive failures of each object, for `policy::backoff`. A success resets the count. Counts of objects
//! that are no longer tried are removed, at the latest when as many others have failed.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use super::clock::BootTime;
use crate::policy::backoff::delay;
use crate::policy::sweep::Sweep;

/// From this number of objects on, those that are no longer tried are removed.
const OBJECT_SWEEP_THRESHOLD: usize = 4096;

/// The consecutive failures of an object.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: BootTime,
}

#[derive(Debug)]
struct FailureCounts<K> {
    failures: HashMap<K, Failures>,
    sweep: Sweep,
}

/// Consecutive failures, by object.
#[derive(Debug)]
pub struct Backoff<K> {
    known: Mutex<FailureCounts<K>>,
    initial: Duration,
    max: Duration,
}

impl<K: Eq + Hash> Backoff<K> {
    /// `initial` and `max` bound the delays.
    pub fn new(initial: Duration, max: Duration) -> Self {
        let known = FailureCounts { failures: HashMap::new(), sweep: Sweep::new(OBJECT_SWEEP_THRESHOLD) };
        Self { known: Mutex::new(known), initial, max }
    }

    /// Counts a failure of `key`. Returns how long to wait before the next attempt.
    pub fn failed(&self, key: K) -> Duration {
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let FailureCounts { failures, sweep } = &mut *known;
        if sweep.is_due(failures.len()) {
            // An object that is still tried is tried again within its longest delay.
            failures.retain(|_, known| known.last.elapsed() < self.max * 2);
            sweep.done(failures.len());
        }
        let known = failures.entry(key).or_insert(Failures { count: 0, last: BootTime::now() });
        *known = Failures { count: known.count.saturating_add(1), last: BootTime::now() };
        delay(known.count, self.initial, self.max, rand::random())
    }

    /// A success of `key`.
    pub fn succeeded(&self, key: &K) {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).failures.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_nobody_tries_any_more_are_forgotten() {
        let backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
        for name in 0..3 * OBJECT_SWEEP_THRESHOLD {
            backoff.failed(name);
        }
        let length = || backoff.known.lock().expect("no panic").failures.len();
        assert!(length() <= OBJECT_SWEEP_THRESHOLD, "{}", length());
        let patient = Backoff::new(Duration::from_secs(1), Duration::from_secs(64));
        for name in 0..3 * OBJECT_SWEEP_THRESHOLD {
            patient.failed(name);
        }
        assert_eq!(patient.known.lock().expect("no panic").failures.len(), 3 * OBJECT_SWEEP_THRESHOLD, "those are still to be tried");
    }

    #[test]
    fn grows_with_failures_of_one_object_and_starts_again_after_a_success() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(64));
        for _ in 0..6 {
            backoff.failed("a");
        }
        assert!(backoff.failed("a") >= Duration::from_millis(6400), "the bound is 64 s by now");
        assert!(backoff.failed("b") <= Duration::from_secs(1), "another object has its own count");
        backoff.succeeded(&"a");
        assert!(backoff.failed("a") <= Duration::from_secs(1));
    }
}
