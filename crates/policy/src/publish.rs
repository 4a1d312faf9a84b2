//! When a changed status is worth a write. Nothing is written for time alone.

use std::time::Duration;

/// Counts are written at most this often for one object.
pub const COUNTS_PERIOD: Duration = Duration::from_secs(5);

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

/// Decide about a write of an object whose last write by us was `since_last` ago (`None`: not known).
pub fn decide(change: Change, since_last: Option<Duration>) -> When {
    match (change, since_last) {
        (Change::None, _) => When::Never,
        (Change::State, _) | (Change::Counts, None) => When::Now,
        (Change::Counts, Some(since)) if since >= COUNTS_PERIOD => When::Now,
        (Change::Counts, Some(since)) => When::After(COUNTS_PERIOD - since),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_at_once_counts_at_most_each_five_seconds_nothing_for_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(decide(Change::None, None), When::Never);
        assert_eq!(decide(Change::State, Some(Duration::ZERO)), When::Now);
        assert_eq!(decide(Change::Counts, None), When::Now);
        assert_eq!(decide(Change::Counts, Some(second)), When::After(4 * second));
        assert_eq!(decide(Change::Counts, Some(5 * second)), When::Now);
    }
}
