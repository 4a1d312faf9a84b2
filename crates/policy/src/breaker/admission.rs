//! Asking for a permit: of one circuit, or of several at once, such as those of a session and of the whole namespace.
//!
//! What always holds: either all of the circuits give a permit, or none does. This module decides nothing about a
//! single circuit.

use super::circuit::{Answer, Availability, Circuit, Moment, Permit};

/// Asks all of `circuits` for an operation that may take `within` milliseconds. The first circuit that refuses is named
/// in the answer. Then no other circuit has given a permit or begun to probe.
pub fn admit(circuits: &mut [&mut Circuit], at: Moment, within: u64) -> Answer<Vec<Permit>> {
    for circuit in circuits.iter_mut() {
        match circuit.availability(at) {
            Availability::Pass => {}
            Availability::Store => return Answer::Store,
            Availability::Reject(rejection) => {
                circuit.count_rejection();
                return Answer::Rejected(rejection);
            }
        }
    }
    Answer::Permit(circuits.iter_mut().map(|circuit| circuit.issue_permit(at.now, within)).collect())
}

impl Circuit {
    /// Whether an operation may begin that takes `within` milliseconds at most.
    pub fn admit(&mut self, at: Moment, within: u64) -> Answer<Permit> {
        match admit(&mut [self], at, within) {
            Answer::Permit(permits) => match permits.first() {
                Some(permit) => Answer::Permit(*permit),
                None => Answer::Store, // not reached: one circuit gives one permit
            },
            Answer::Rejected(rejection) => Answer::Rejected(rejection),
            Answer::Store => Answer::Store,
        }
    }
}
