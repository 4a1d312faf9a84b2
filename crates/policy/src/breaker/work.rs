//! The two circuits of work: that of a pool, and that of its project, which all pools of a namespace share. Which ends of an attempt
//! at an item are failures, and whether an attempt may begin.
//!
//! A failure is an end that took the whole time it may take, or all the tokens, and came to nothing. An agent that says that its
//! task failed has worked.
//!
//! What always holds: an attempt has the permits of both circuits or none. A pool whose own circuit is not closed says nothing of the
//! project: it neither takes the project's probe nor counts there. So one pool that goes on failing stops the others once, and is
//! stopped alone from then on.

use super::circuit::{Answer, Availability, Circuit, Moment, Outcome, Permit};
use super::settings::{Force, Mode, Settings};
use super::state::State;
use crate::work::item::Verb;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptResult {
    /// What was done.
    pub verb: Verb,
    /// The tokens of the item's share are spent.
    pub spent: bool,
    /// It was said how far the item is, in this attempt.
    pub progressed: bool,
}

/// What it is for the circuits.
pub fn outcome(ended: AttemptResult) -> Outcome {
    match ended.verb {
        Verb::Complete => Outcome::Success,
        Verb::Stalled => Outcome::Failure { retry_after: None },
        Verb::Fail | Verb::LeaseExpired | Verb::Release if ended.spent && !ended.progressed => Outcome::Failure { retry_after: None },
        Verb::Fail | Verb::LeaseExpired | Verb::Release | Verb::CancelDone => Outcome::Neutral,
    }
}

/// The permits of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// Of its pool's circuit.
    pub pool: Permit,
    /// Of its project's. None: how it ends says nothing of the project.
    pub project: Option<Permit>,
}

/// Whether the circuit of the project holds for a pool whose own circuit has these settings. Who has a pool's circuit only observed, or
/// held closed, wants its work to go on whatever fails.
pub fn is_bound(own: &Settings) -> bool {
    own.mode == Mode::Enforce && own.force != Some(Force::Closed)
}

/// Whether what becomes of a pool's work counts for its project.
pub fn speaks_for_project(pool: &Circuit) -> bool {
    is_bound(pool.settings()) && pool.state() == State::Closed
}

/// Asks the circuits of a pool and of its project for an attempt that takes `within` milliseconds at most. Where both refuse, the pool's
/// is named.
pub fn admit(pool: &mut Circuit, project: &mut Circuit, at: Moment, within: u64) -> Answer<Permits> {
    if let Some(answer) = stopped_by(pool, at) {
        return answer;
    }
    if is_bound(pool.settings())
        && let Some(answer) = stopped_by(project, at)
    {
        return answer;
    }
    let speaks = speaks_for_project(pool);
    let pool = pool.take(at.now, within);
    Answer::Permit(Permits { pool, project: speaks.then(|| project.take(at.now, within)) })
}

/// The answer of a circuit that gives no permit.
fn stopped_by(circuit: &mut Circuit, at: Moment) -> Option<Answer<Permits>> {
    match circuit.look(at) {
        Availability::Pass => None,
        Availability::Store => Some(Answer::Store),
        Availability::Reject(rejection) => {
            circuit.refused();
            Some(Answer::Rejected(rejection))
        }
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
