//! The two circuits of work: the one of a pool, and the one of its project, which all pools of a namespace share. Which
//! results of an attempt at an item are failures, and whether an attempt may begin.
//!
//! A failure is an attempt without a result that took all of its time or all of its tokens. An agent that reports that
//! its task failed is no failure.
//!
//! What always holds: an attempt has the permits of both circuits or of none. A pool whose own circuit is not closed
//! does not count for the project: it neither takes the project's probe nor counts there. So a pool that keeps failing
//! stops the others once, and afterwards only itself.

use super::circuit::{Answer, Availability, Circuit, Moment, Outcome, Permit};
use super::settings::{Force, Mode, Settings};
use super::state::State;
use crate::work::item::Verb;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptResult {
    /// The verb that ended it.
    pub verb: Verb,
    /// The tokens of the item's share are spent.
    pub tokens_spent: bool,
    /// The agent reported progress in this attempt.
    pub progressed: bool,
}

/// The result for the circuits.
pub fn outcome(ended: AttemptResult) -> Outcome {
    match ended.verb {
        Verb::Complete => Outcome::Success,
        Verb::Stalled => Outcome::Failure { retry_after: None },
        Verb::Fail | Verb::LeaseExpired | Verb::Release if ended.tokens_spent && !ended.progressed => {
            Outcome::Failure { retry_after: None }
        }
        Verb::Fail | Verb::LeaseExpired | Verb::Release | Verb::CancelDone => Outcome::Neutral,
    }
}

/// The permits of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// Of its pool's circuit.
    pub pool: Permit,
    /// Of its project's circuit. `None`: the attempt does not count for the project.
    pub project: Option<Permit>,
}

/// Whether the circuit of the project applies to a pool whose own circuit has these settings. If a person has a pool's
/// circuit only observed, or forced closed, its work is to go on in spite of failures.
pub fn is_bound(own: &Settings) -> bool {
    own.mode == Mode::Enforce && own.force != Some(Force::Closed)
}

/// Whether the results of a pool's work count for its project.
pub fn counts_for_project(pool: &Circuit) -> bool {
    is_bound(pool.settings()) && pool.state() == State::Closed
}

/// Asks the circuits of a pool and of its project for an attempt that takes `within` milliseconds at most. If both
/// refuse, the pool's is named.
pub fn admit(pool: &mut Circuit, project: &mut Circuit, at: Moment, within: u64) -> Answer<Permits> {
    if let Some(answer) = refusal_of(pool, at) {
        return answer;
    }
    if is_bound(pool.settings())
        && let Some(answer) = refusal_of(project, at)
    {
        return answer;
    }
    let speaks = counts_for_project(pool);
    let pool = pool.issue_permit(at.now, within);
    Answer::Permit(Permits { pool, project: speaks.then(|| project.issue_permit(at.now, within)) })
}

/// The answer of a circuit if it gives no permit.
fn refusal_of(circuit: &mut Circuit, at: Moment) -> Option<Answer<Permits>> {
    match circuit.availability(at) {
        Availability::Pass => None,
        Availability::Store => Some(Answer::Store),
        Availability::Reject(rejection) => {
            circuit.count_rejection();
            Some(Answer::Rejected(rejection))
        }
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
