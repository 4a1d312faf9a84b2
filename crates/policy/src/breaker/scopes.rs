//! A permit of several circuits at once, such as a session's and the whole namespace's: of all of them, or of none.

use super::circuit::{Answer, At, Circuit, Look, Permit};

/// Asks all of `circuits` for an operation that may take `within` milliseconds. The first that refuses is the one that is
/// named; no other has given anything then, and none has begun to probe.
pub fn admit(circuits: &mut [&mut Circuit], at: At, within: u64) -> Answer<Vec<Permit>> {
    for circuit in circuits.iter_mut() {
        match circuit.look(at) {
            Look::Pass => {}
            Look::Store => return Answer::Store,
            Look::Reject(rejection) => {
                circuit.refused();
                return Answer::Rejected(rejection);
            }
        }
    }
    Answer::Permit(circuits.iter_mut().map(|circuit| circuit.take(at.now, within)).collect())
}
