//! When a changed status is written. Time alone is no reason to write.

use std::time::Duration;

/// Counts are written at most this often for one object.
pub const COUNTS_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Counts are written when they have differed for this long. So the pause of an agent between two items is not written.
pub const COUNTS_SETTLE_DELAY: Duration = Duration::from_secs(1);

/// What changed between the stored status and the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// Nothing.
    None,
    /// Only numbers that move all the time.
    Counts,
    /// A condition, a phase, a reason or a number that others wait for.
    State,
}

/// When to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDecision {
    /// Not at all.
    Never,
    /// At once.
    Now,
    /// After this long, if it still differs then.
    After(Duration),
}

/// Decide about a write of an object whose last write by us was `since_last` ago (`None`: not known), and which has differed
/// for `differs`.
pub fn decide(change: StatusChange, since_last: Option<Duration>, differs: Duration) -> WriteDecision {
    let left = COUNTS_SETTLE_DELAY
        .saturating_sub(differs)
        .max(since_last.map_or(Duration::ZERO, |since| COUNTS_WRITE_INTERVAL.saturating_sub(since)));
    match change {
        StatusChange::None => WriteDecision::Never,
        StatusChange::State => WriteDecision::Now,
        StatusChange::Counts if left.is_zero() => WriteDecision::Now,
        StatusChange::Counts => WriteDecision::After(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_at_once_counts_when_they_stand_at_most_each_five_seconds_nothing_for_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(decide(StatusChange::None, None, second), WriteDecision::Never);
        assert_eq!(decide(StatusChange::State, Some(Duration::ZERO), Duration::ZERO), WriteDecision::Now);
        assert_eq!(decide(StatusChange::Counts, None, second), WriteDecision::Now);
        assert_eq!(decide(StatusChange::Counts, None, second / 4), WriteDecision::After(second * 3 / 4));
        assert_eq!(decide(StatusChange::Counts, Some(second), second), WriteDecision::After(4 * second));
        assert_eq!(decide(StatusChange::Counts, Some(9 * second / 2), Duration::ZERO), WriteDecision::After(second));
        assert_eq!(decide(StatusChange::Counts, Some(5 * second), second), WriteDecision::Now);
    }
}
