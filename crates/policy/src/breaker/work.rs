//! Which ends of an attempt at an item are failures, for the circuit of a pool's work: those that took the whole time they may
//! take, or all the tokens, and came to nothing. An agent that says that its task failed has worked.

use super::circuit::Outcome;
use crate::work::item::Verb;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What was done.
    pub verb: Verb,
    /// The tokens of the item's share are spent.
    pub spent: bool,
    /// It was said how far the item is, in this attempt.
    pub progressed: bool,
}

/// What it is for the circuit.
pub fn outcome(ended: Ended) -> Outcome {
    match ended.verb {
        Verb::Complete => Outcome::Success,
        Verb::Stalled => Outcome::Failure { retry_after: None },
        Verb::Fail | Verb::LeaseExpired | Verb::Release if ended.spent && !ended.progressed => Outcome::Failure { retry_after: None },
        Verb::Fail | Verb::LeaseExpired | Verb::Release | Verb::CancelDone => Outcome::Neutral,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_to_nothing_fails() {
        const FAILURE: Outcome = Outcome::Failure { retry_after: None };
        let ended = |verb, spent, progressed| outcome(Ended { verb, spent, progressed });
        for verb in Verb::ALL {
            let expected = match verb {
                Verb::Complete => (Outcome::Success, Outcome::Success, Outcome::Success),
                Verb::Stalled => (FAILURE, FAILURE, FAILURE),
                Verb::Fail | Verb::Release | Verb::LeaseExpired => (Outcome::Neutral, FAILURE, Outcome::Neutral),
                Verb::CancelDone => (Outcome::Neutral, Outcome::Neutral, Outcome::Neutral),
            };
            assert_eq!((ended(verb, false, false), ended(verb, true, false), ended(verb, true, true)), expected, "{verb:?}");
        }
    }
}
