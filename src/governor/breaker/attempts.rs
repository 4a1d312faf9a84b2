//! Permits of attempts in progress.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::breaker::work::Permits;

/// How long the end of an attempt is awaited after its item lost its holder: the watch may be faster than the answer to
/// the write that ended the attempt.
const ENDED_ATTEMPT_TTL: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Attempt {
    pool: ObjectKey,
    permits: Permits,
    /// Since when its item has no holder.
    over: Option<BootTime>,
}

/// Permits of attempts in progress, by uid of the item and epoch of its lease.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<(String, i64), Attempt>>);

impl Attempts {
    /// Records the start of an attempt.
    pub fn began(&self, item: &str, epoch: i64, pool: ObjectKey, permits: Permits) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((item.to_owned(), epoch), Attempt { pool, permits, over: None });
    }

    /// Removes an attempt that ended. Returns its pool and its permits.
    pub fn ended(&self, item: &str, epoch: i64) -> Option<(ObjectKey, Permits)> {
        let attempt = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(item.to_owned(), epoch))?;
        Some((attempt.pool, attempt.permits))
    }

    /// Removes the attempts that are over and whose end was not reported in time.
    pub fn take_abandoned(&self, goes_on: impl Fn(&(String, i64)) -> bool) -> Vec<(ObjectKey, Permits)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |lease: &(String, i64), attempt: &mut Attempt| {
            if goes_on(lease) {
                attempt.over = None;
                return false;
            }
            attempt.over.get_or_insert_with(BootTime::now).elapsed() >= ENDED_ATTEMPT_TTL
        };
        all.extract_if(over).map(|(_, attempt)| (attempt.pool, attempt.permits)).collect()
    }
}
