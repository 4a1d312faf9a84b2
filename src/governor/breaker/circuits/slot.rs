//! Where a circuit is kept, and what is kept of it: data alone.

use crate::governor::breaker::Key;
use crate::policy::breaker::{Callers, Circuit, Counts, Settings};

/// A circuit, and the Breaker that it belongs to; none: no Breaker holds for who asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::governor::breaker) struct Slot {
    /// Which circuit.
    pub key: Key,
    /// Its Breaker.
    pub home: Option<String>,
}

/// What is kept of a circuit.
pub(in crate::governor::breaker) struct StoredCircuit {
    /// The circuit.
    pub circuit: Circuit,
    /// The settings as they were set, and the time of one operation that they were made with.
    pub set: Settings,
    /// See `set`.
    pub operation: u64,
    /// What metrics were told.
    pub told: Counts,
    /// When it took the state that it is in.
    pub moved: u64,
    /// Whose calls failed, and who else calls.
    pub callers: Callers,
    /// Why the last failure was one, for people.
    pub last_failure: Option<String>,
}
