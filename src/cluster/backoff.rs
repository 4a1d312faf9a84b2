//! How often each object failed in a row: the memory behind `policy::backoff`. Reset on success, forgotten with the object.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use crate::policy::backoff::delay;

/// Failures in a row, by object.
#[derive(Debug)]
pub struct Backoff<K> {
    failures: Mutex<HashMap<K, u32>>,
    initial: Duration,
    max: Duration,
}

impl<K: Eq + Hash> Backoff<K> {
    /// With the first and the longest bound of a delay.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { failures: Mutex::default(), initial, max }
    }

    /// One more failure of `key`: how long to wait before the next try.
    pub fn failed(&self, key: K) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = failures.entry(key).or_default();
        *count = count.saturating_add(1);
        delay(*count, self.initial, self.max, rand::random())
    }

    /// A success of `key`.
    pub fn succeeded(&self, key: &K) {
        self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
