//! When a changed status is worth a write. Nothing is written for time alone.

use std::time::Duration;

/// Counts are written at most this often for one object.
pub const COUNTS_PERIOD: Duration = Duration::from_secs(5);
/// Counts are written when they have differed for so long: what an agent does between two pieces of work is over at once.
pub const COUNTS_STAND: Duration = Duration::from_secs(1);

/// What changed between the status that is stored and the one that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Only numbers that move all the time.
    Counts,
    /// A condition, a phase, a reason or a number that others wait for.
    State,
}

/// When to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Not at all.
    Never,
    /// At once.
    Now,
    /// After this long, if it still differs then.
    After(Duration),
}

/// Decide about a write of an object whose last write by us was `since_last` ago (`None`: not known), and which has differed
/// for `differs`.
pub fn decide(change: Change, since_last: Option<Duration>, differs: Duration) -> When {
    let left = COUNTS_STAND.saturating_sub(differs).max(since_last.map_or(Duration::ZERO, |since| COUNTS_PERIOD.saturating_sub(since)));
    match change {
        Change::None => When::Never,
        Change::State => When::Now,
        Change::Counts if left.is_zero() => When::Now,
        Change::Counts => When::After(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_at_once_counts_when_they_stand_at_most_each_five_seconds_nothing_for_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(decide(Change::None, None, second), When::Never);
        assert_eq!(decide(Change::State, Some(Duration::ZERO), Duration::ZERO), When::Now);
        assert_eq!(decide(Change::Counts, None, second), When::Now);
        assert_eq!(decide(Change::Counts, None, second / 4), When::After(second * 3 / 4));
        assert_eq!(decide(Change::Counts, Some(second), second), When::After(4 * second));
        assert_eq!(decide(Change::Counts, Some(9 * second / 2), Duration::ZERO), When::After(second));
        assert_eq!(decide(Change::Counts, Some(5 * second), second), When::Now);
    }
}
