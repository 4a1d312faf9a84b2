//! The place of a circuit in the store, and its data.

use crate::governor::breaker::Key;
use crate::policy::breaker::{Callers, Circuit, Counts, Settings};

/// A circuit, and its Breaker. `None` if no Breaker applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::governor::breaker) struct Slot {
    /// The key of the circuit.
    pub key: Key,
    /// Its Breaker.
    pub breaker: Option<String>,
}

/// The data of a circuit.
pub(in crate::governor::breaker) struct StoredCircuit {
    /// The circuit.
    pub circuit: Circuit,
    /// The current settings.
    pub set: Settings,
    /// The time of one operation from which `set` was made.
    pub operation: u64,
    /// The counts that metrics have.
    pub reported_counts: Counts,
    /// When the circuit entered its current state.
    pub state_since: u64,
    /// Which agents call, and whose calls failed.
    pub callers: Callers,
    /// The message of the last failure.
    pub last_failure: Option<String>,
}
