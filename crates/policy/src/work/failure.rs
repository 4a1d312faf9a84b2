//! What happens after a failure, and when the next attempt is.

use std::time::Duration;

use super::item::Policy;

/// The failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// The reason, as one word.
    pub reason: String,
    /// The message, for people.
    pub message: String,
    /// The program's exit code, if it ended with one.
    pub exit_code: Option<i32>,
}

/// A rule of a queue. With both lists empty it matches every failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// The reasons that it matches.
    pub reasons: Vec<String>,
    /// The exit codes that it matches.
    pub exit_codes: Vec<i32>,
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Try again after a wait, up to the attempts of the policy.
    Retry,
    /// Try again, by another agent.
    RetryElsewhere,
    /// Try again, and do not count the failure.
    Ignore,
    /// Make it a dead letter at once.
    DeadLetter,
    /// End it as failed.
    Fail,
}

/// The action of the first rule that matches; without one the item is tried again.
pub fn judge(rules: &[Rule], failure: &Failure) -> Action {
    let matches = |rule: &&Rule| {
        let Rule { action: _, reasons, exit_codes } = rule;
        (reasons.is_empty() && exit_codes.is_empty())
            || reasons.contains(&failure.reason)
            || failure.exit_code.is_some_and(|code| exit_codes.contains(&code))
    };
    rules.iter().find(matches).map_or(Action::Retry, |rule| rule.action)
}

/// How long to wait before the next attempt, after `tries` attempts without success (the first is 1): exponential with
/// full jitter, so that items that failed together are not tried again together. `dice` is uniform in [0, 1).
pub fn wait(policy: &Policy, tries: u32, dice: f64) -> Duration {
    let (initial, factor, most) = policy.backoff;
    let factor = factor.max(1).saturating_pow(tries.saturating_sub(1).min(30));
    initial.saturating_mul(factor).min(most).mul_f64(dice.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(action: Action, reasons: &[&str], exit_codes: &[i32]) -> Rule {
        Rule { action, reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(), exit_codes: exit_codes.to_vec() }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = [rule(Action::Fail, &["BadInput"], &[2]), rule(Action::Ignore, &[], &[75]), rule(Action::DeadLetter, &[], &[])];
        let failed = |reason: &str, exit_code| judge(&rules, &Failure { reason: reason.into(), message: String::new(), exit_code });
        assert_eq!(failed("BadInput", None), Action::Fail);
        assert_eq!(failed("Exited", Some(2)), Action::Fail);
        assert_eq!(failed("Exited", Some(75)), Action::Ignore);
        assert_eq!(failed("Exited", Some(1)), Action::DeadLetter);
        assert_eq!(judge(&[], &Failure { reason: "Exited".into(), message: String::new(), exit_code: Some(1) }), Action::Retry);
    }

    proptest! {
        #[test]
        fn a_wait_is_within_its_bound_and_uses_the_whole_of_it(tries in 1u32..1000, dice in 0.0f64..1.0) {
            let policy = Policy::default();
            let bound = wait(&policy, tries, 1.0);
            prop_assert!(bound <= policy.backoff.2);
            prop_assert!(wait(&policy, tries, dice) <= bound);
            prop_assert_eq!(wait(&policy, tries, 0.0), Duration::ZERO);
        }
    }
}
