//! Read your writes: an object is not reconciled until the cache has seen our own last write of it.
//!
//! With an older cache a controller would repeat its last write. That would be safe, because children have
//! deterministic names and every irreversible step reads live. The gate avoids the useless requests.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::BootTime;
use crate::policy::sweep::Sweep;

/// From this number of writes on, those that have timed out are removed.
const WRITE_SWEEP_THRESHOLD: usize = 4096;
/// After this time the gate opens in any case: a cache never sees an object that was created and removed while its
/// watch was interrupted, and later irreversible steps read live anyway.
const GATE_TIMEOUT: Duration = Duration::from_secs(90);

/// The state of an object that the cache must have.
#[derive(Clone, Copy, Debug)]
struct Expected {
    version: u64,
    /// The write may have removed the object, so absence also opens the gate.
    or_absent: bool,
    written: BootTime,
}

#[derive(Debug)]
struct Writes<K> {
    expected: HashMap<K, Expected>,
    sweep: Sweep,
}

/// The last writes, by object.
#[derive(Debug)]
pub struct Gate<K> {
    writes: Mutex<Writes<K>>,
}

impl<K> Default for Gate<K> {
    fn default() -> Self {
        Self { writes: Mutex::new(Writes { expected: HashMap::new(), sweep: Sweep::new(WRITE_SWEEP_THRESHOLD) }) }
    }
}

impl<K: Eq + Hash> Gate<K> {
    /// This process created or changed `key`, and the server answered with this resource version.
    pub fn wrote(&self, key: K, resource_version: Option<&str>) {
        self.expect(key, resource_version, false);
    }

    /// This process deleted `key`, and the server answered with this resource version: it is being deleted, or gone
    /// already.
    pub fn deleted(&self, key: K, resource_version: Option<&str>) {
        self.expect(key, resource_version, true);
    }

    fn expect(&self, key: K, resource_version: Option<&str>, or_absent: bool) {
        self.expect_since(key, resource_version, or_absent, BootTime::now());
    }

    fn expect_since(&self, key: K, resource_version: Option<&str>, or_absent: bool, written: BootTime) {
        let Some(version) = parse(resource_version) else { return };
        let mut writes = self.lock();
        let Writes { expected, sweep } = &mut *writes;
        if sweep.is_due(expected.len()) {
            expected.retain(|_, write| write.written.elapsed() < GATE_TIMEOUT);
            sweep.done(expected.len());
        }
        expected.insert(key, Expected { version, or_absent, written });
    }

    fn lock(&self) -> MutexGuard<'_, Writes<K>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cache, which has `key` at this resource version (or not at all), has seen our last write.
    pub fn open(&self, key: &K, cached: Option<&str>) -> bool {
        let expected = &mut self.lock().expected;
        let Some(wanted) = expected.get(key) else { return true };
        let seen = match parse(cached) {
            Some(version) => version >= wanted.version,
            None => wanted.or_absent,
        };
        if seen || wanted.written.elapsed() >= GATE_TIMEOUT {
            expected.remove(key);
            return true;
        }
        false
    }

    /// `key` is gone, so the gate no longer waits for it.
    pub fn forget(&self, key: &K) {
        self.lock().expected.remove(key);
    }
}

/// Resource versions of one resource are numbers that rise: Kubernetes guarantees it since 1.35, and etcd always did.
fn parse(resource_version: Option<&str>) -> Option<u64> {
    resource_version?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_until_the_cache_caught_up_with_our_write() {
        let gate = Gate::default();
        assert!(gate.open(&"a", Some("5")), "nothing was written");
        gate.wrote("a", Some("10"));
        assert!(!gate.open(&"a", Some("9")));
        assert!(!gate.open(&"a", None), "made, and not seen yet");
        assert!(gate.open(&"b", Some("1")), "another object");
        assert!(gate.open(&"a", Some("10")));
        assert!(gate.open(&"a", Some("9")), "once seen it is forgotten");
    }

    #[test]
    fn a_deletion_is_seen_as_a_newer_version_or_as_absence() {
        let gate = Gate::default();
        gate.deleted("a", Some("10"));
        assert!(!gate.open(&"a", Some("9")));
        assert!(gate.open(&"a", None), "an object that never ran is gone at once");
        gate.deleted("a", Some("10"));
        assert!(gate.open(&"a", Some("10")), "one that runs is only marked");
    }

    #[test]
    fn writes_of_objects_that_nobody_looks_at_any_more_are_forgotten() {
        let gate = Gate::default();
        for name in 0..3 * WRITE_SWEEP_THRESHOLD {
            gate.expect_since(name, Some("10"), true, BootTime::default());
        }
        assert!(gate.lock().expected.len() <= WRITE_SWEEP_THRESHOLD);
        gate.wrote(0, Some("10"));
        assert!(!gate.open(&0, Some("9")), "what was written just now is awaited");
    }

    #[test]
    fn what_is_gone_holds_nothing_back() {
        let gate = Gate::default();
        gate.wrote("a", Some("10"));
        gate.forget(&"a");
        assert!(gate.open(&"a", None));
    }
}
