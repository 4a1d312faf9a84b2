//! Permits of attempts at items that are being made.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::breaker::work::Permits;

/// An attempt whose item nobody holds any more is told to have ended within this time, or never: the watch may be faster than the
/// answer to the write that ended it.
const ENDED_ATTEMPT_TTL: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Attempt {
    pool: ObjectKey,
    permits: Permits,
    /// Since when nobody holds its item.
    over: Option<BootTime>,
}

/// Permits of attempts that are being made, by uid of the item and epoch of its lease.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<(String, i64), Attempt>>);

impl Attempts {
    /// An attempt begins.
    pub fn began(&self, item: &str, epoch: i64, pool: ObjectKey, permits: Permits) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((item.to_owned(), epoch), Attempt { pool, permits, over: None });
    }

    /// It ended: the pool it was of, and its permits.
    pub fn ended(&self, item: &str, epoch: i64) -> Option<(ObjectKey, Permits)> {
        let attempt = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(item.to_owned(), epoch))?;
        Some((attempt.pool, attempt.permits))
    }

    /// Takes those off that are over, and of which nobody told in time how they ended.
    pub fn forgotten(&self, goes_on: impl Fn(&(String, i64)) -> bool) -> Vec<(ObjectKey, Permits)> {
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
