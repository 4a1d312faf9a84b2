//! Since when a namespace with pools is without a Budget, or a Breaker.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::clock::BootTime;

/// So long a namespace is without any: whoever applies pools from Git applies the others with them.
pub const DEFAULT_CREATION_DELAY: Duration = Duration::from_secs(60);

/// Since when namespaces with a pool are without any of a kind: in memory, for as long as we lead.
#[derive(Debug, Default)]
pub struct WaitingNamespaces(Mutex<HashMap<(String, String), BootTime>>);

impl WaitingNamespaces {
    /// How long until the namespace gets one; `None`: now.
    pub fn left(&self, kind: &str, namespace: &str) -> Option<Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.entry((kind.to_owned(), namespace.to_owned())).or_insert_with(BootTime::now);
        DEFAULT_CREATION_DELAY.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// It has one, or was given one.
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
        assert!(waiting.left("Budget", "n").is_some_and(|left| left <= DEFAULT_CREATION_DELAY && !left.is_zero()));
    }
}
