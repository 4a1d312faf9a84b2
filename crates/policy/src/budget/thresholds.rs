//! The actions near a limit. Each threshold acts once in a window and for a height of the limit. A new window, a raised
//! limit or a grant arms it again.
//!
//! `Log`, `Warn` and `Notify` count spent and held tokens; `Pause` and `Reap` count spent tokens only. Both are
//! compared with what a pool without a reservation may reach. Tokens that an earlier leader gave and that are not
//! explained yet do not count, so that no agent is ended because of our own restart. `Pause` and `Reap` are also states
//! while they are in force. All of them are events once they are durable.

use super::node::{Action, Key, Threshold};
use super::window::Span;

/// A threshold has acted, and that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The place.
    pub key: Key,
    /// Name of the limit.
    pub limit: String,
    /// The window.
    pub span: Span,
    /// The threshold.
    pub threshold: Threshold,
    /// The limit, with grants, in tokens.
    pub height: i64,
}

/// How durable an action of a threshold is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Only in memory.
    New,
    /// In the write that is under way.
    Flying,
    /// Durable, and reported.
    Durable,
}

/// A threshold that has acted in the present window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TriggeredThreshold {
    pub threshold: Threshold,
    pub height: i64,
    pub stage: Stage,
}

/// The thresholds of a limit that have acted in the present window, and the amounts at which the next ones act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Latches {
    pub acted: Vec<TriggeredThreshold>,
    /// The amount, spent and held, from which on thresholds must be checked.
    pub next_with_holds: i64,
    /// The spent amount from which on thresholds must be checked.
    pub next_spent: i64,
    pub paused: bool,
    pub reaping: bool,
}

/// The amounts of a limit that thresholds compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Spent and held.
    pub committed: i64,
    /// Spent.
    pub spent: i64,
    /// The most that a pool without a reservation may reach.
    pub reach: i64,
    /// The limit, with grants.
    pub height: i64,
}

impl Latches {
    /// A new window.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Triggers all thresholds that are reached. Returns whether there was a new one.
    pub fn trigger(&mut self, thresholds: &[Threshold], level: Level) -> bool {
        (self.next_with_holds, self.next_spent) = (i64::MAX, i64::MAX);
        let mut new = false;
        for threshold in thresholds {
            let hard = threshold.action.counts_spent_only();
            let amount = if hard { level.spent } else { level.committed };
            let at = share_of(level.reach, threshold.percent);
            if self.has_acted(*threshold, level.height) {
                continue;
            }
            if amount >= at {
                self.acted.retain(|acted| acted.threshold != *threshold);
                self.acted.push(TriggeredThreshold { threshold: *threshold, height: level.height, stage: Stage::New });
                new = true;
            } else if hard {
                self.next_spent = self.next_spent.min(at);
            } else {
                self.next_with_holds = self.next_with_holds.min(at);
            }
        }
        let stands = |action| thresholds.iter().any(|threshold| threshold.action == action && self.has_acted(*threshold, level.height));
        (self.paused, self.reaping) = (stands(Action::Pause), stands(Action::Reap));
        new
    }

    /// Whether it has acted for a limit of this height, or a higher one.
    fn has_acted(&self, threshold: Threshold, height: i64) -> bool {
        self.acted.iter().any(|acted| acted.threshold == threshold && acted.height >= height)
    }
}

/// `percent` of `reach`, rounded up; at least 1, so that nothing happens before anything is spent.
fn share_of(reach: i64, percent: i64) -> i64 {
    let hundredths = i128::from(reach.max(0)) * i128::from(percent.clamp(0, 100));
    i64::try_from(hundredths.div_euclid(100) + i128::from(hundredths % 100 > 0)).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Threshold; 3] = [
        Threshold { percent: 80, action: Action::Warn },
        Threshold { percent: 90, action: Action::Notify },
        Threshold { percent: 100, action: Action::Pause },
    ];

    fn look(latches: &mut Latches, committed: i64, spent: i64, height: i64) -> (bool, usize, bool) {
        let new = latches.trigger(&ALL, Level { committed, spent, reach: height, height });
        (new, latches.acted.len(), latches.paused)
    }

    #[test]
    fn each_acts_once_until_the_limit_is_higher() {
        let mut latches = Latches::default();
        assert_eq!(look(&mut latches, 79, 0, 100), (false, 0, false));
        assert_eq!((latches.next_with_holds, latches.next_spent), (80, 100));
        assert_eq!(look(&mut latches, 95, 50, 100), (true, 2, false), "holds count for warnings");
        assert_eq!(look(&mut latches, 200, 99, 100), (false, 2, false), "not for pauses");
        assert_eq!(look(&mut latches, 200, 100, 100), (true, 3, true));
        assert_eq!(look(&mut latches, 10, 10, 100), (false, 3, true), "what was reached stays reached");
        assert_eq!(look(&mut latches, 100, 100, 50), (false, 3, true), "a lower limit is no reason to act again");
        assert_eq!(look(&mut latches, 100, 100, 150), (false, 3, false), "a higher one arms all again");
        assert_eq!((latches.next_with_holds, latches.next_spent), (120, 150));
        assert_eq!(look(&mut latches, 150, 150, 150), (true, 3, true));
        latches.clear();
        assert_eq!(look(&mut latches, 0, 0, 0), (false, 0, false), "an empty limit says nothing by itself");
    }
}
