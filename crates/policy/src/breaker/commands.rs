//! Which results of a command are failures, for both circuits of commands. An exit code other than 0 is no failure in
//! itself: `grep` ends with 1 when it finds nothing.

use super::circuit::Outcome;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// By itself, with this code.
    Exited(i32),
    /// A signal that is not ours ended it.
    Signalled,
    /// Its time was over, and it was killed.
    TimedOut,
    /// It could not be started: it does not exist, may not be run, or there was no memory or place for a process.
    NotStarted,
    /// The caller cancelled it.
    Cancelled,
}

/// The result for the circuits. `failure_exit_codes` are the codes that a person wants to count as failures.
pub fn outcome(end: End, failure_exit_codes: &[i32]) -> Outcome {
    match end {
        End::TimedOut | End::NotStarted => Outcome::Failure { retry_after: None },
        End::Exited(0) => Outcome::Success,
        End::Exited(code) if failure_exit_codes.contains(&code) => Outcome::Failure { retry_after: None },
        End::Exited(_) | End::Signalled | End::Cancelled => Outcome::Neutral,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hangs_or_does_not_start_fails() {
        const FAILURE: Outcome = Outcome::Failure { retry_after: None };
        let cases = [
            (End::Exited(0), Outcome::Success),
            (End::Exited(1), Outcome::Neutral),
            (End::Exited(42), FAILURE),
            (End::Signalled, Outcome::Neutral),
            (End::TimedOut, FAILURE),
            (End::NotStarted, FAILURE),
            (End::Cancelled, Outcome::Neutral),
        ];
        for (end, expected) in cases {
            assert_eq!(outcome(end, &[42]), expected, "{end:?}");
        }
    }
}
