//! Since when namespaces with pools have no Budget, or no Breaker.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::clock::BootTime;

/// How long a namespace may have none before a default is created: people who apply pools from Git apply these objects
/// with them.
pub const DEFAULT_CREATION_DELAY: Duration = Duration::from_secs(60);

/// Since when namespaces with a pool have no object of a kind. Kept in memory, while we lead.
#[derive(Debug, Default)]
pub struct WaitingNamespaces(Mutex<HashMap<(String, String), BootTime>>);

impl WaitingNamespaces {
    /// How long until the namespace gets a default; `None`: now.
    pub fn time_left(&self, kind: &str, namespace: &str) -> Option<Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.entry((kind.to_owned(), namespace.to_owned())).or_insert_with(BootTime::now);
        DEFAULT_CREATION_DELAY.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Forgets a namespace that has one now, or got a default.
    pub fn forget(&self, kind: &str, namespace: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(kind.to_owned(), namespace.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_waits_from_the_first_look() {
        let waiting = WaitingNamespaces::default();
        assert!(waiting.time_left("Budget", "n").is_some_and(|left| left <= DEFAULT_CREATION_DELAY && !left.is_zero()));
    }
}
