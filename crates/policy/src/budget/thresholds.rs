//! What happens near a limit: each threshold acts once a window and height of the limit. A new window, a raised limit or a
//! grant arms it again.
//!
//! `Log`, `Warn` and `Notify` count what is spent and held, `Pause` and `Reap` what is spent only; both against what may be
//! reached by who has no reservation. What was given by a leader before and is not explained yet counts for neither: nobody
//! is ended for our own restart. `Pause` and `Reap` are states while they stand; all of them are events once they are durable.

use super::node::{Action, Key, Threshold};
use super::window::Span;

/// A threshold has acted, and that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Where.
    pub key: Key,
    /// Name of the limit.
    pub limit: String,
    /// The window.
    pub span: Span,
    /// What has acted.
    pub threshold: Threshold,
    /// How high the limit was, grants among it, in tokens.
    pub height: i64,
}

/// How far an act of a threshold has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Only in memory.
    New,
    /// In the write that is on its way.
    Flying,
    /// Durable, and told.
    Durable,
}

/// A threshold that has acted in the present window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TriggeredThreshold {
    pub threshold: Threshold,
    pub height: i64,
    pub stage: Stage,
}

/// What of a limit's thresholds has acted in the present window, and where the next ones are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Latches {
    pub acted: Vec<TriggeredThreshold>,
    /// The amount, spent and held, from which on one has to look.
    pub soft_at: i64,
    /// The amount spent from which on one has to look.
    pub hard_at: i64,
    pub paused: bool,
    pub reaping: bool,
}

/// How much there is of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Spent and held.
    pub committed: i64,
    /// Spent.
    pub spent: i64,
    /// What may be reached.
    pub reach: i64,
    /// The limit, grants among it.
    pub height: i64,
}

impl Latches {
    /// A new window.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Lets act what is due. Whether there was something.
    pub fn look(&mut self, thresholds: &[Threshold], level: Level) -> bool {
        (self.soft_at, self.hard_at) = (i64::MAX, i64::MAX);
        let mut new = false;
        for threshold in thresholds {
            let hard = threshold.action.counts_spent_only();
            let amount = if hard { level.spent } else { level.committed };
            let at = share_of(level.reach, threshold.percent);
            if self.stands(*threshold, level.height) {
                continue;
            }
            if amount >= at {
                self.acted.retain(|acted| acted.threshold != *threshold);
                self.acted.push(TriggeredThreshold { threshold: *threshold, height: level.height, stage: Stage::New });
                new = true;
            } else if hard {
                self.hard_at = self.hard_at.min(at);
            } else {
                self.soft_at = self.soft_at.min(at);
            }
        }
        let stands = |action| thresholds.iter().any(|threshold| threshold.action == action && self.stands(*threshold, level.height));
        (self.paused, self.reaping) = (stands(Action::Pause), stands(Action::Reap));
        new
    }

    /// Whether it has acted for a limit of this height, or a higher one.
    fn stands(&self, threshold: Threshold, height: i64) -> bool {
        self.acted.iter().any(|acted| acted.threshold == threshold && acted.height >= height)
    }
}

/// So many percent of it, rounded up; at least 1, so that nothing happens where nothing was spent.
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
        let new = latches.look(&ALL, Level { committed, spent, reach: height, height });
        (new, latches.acted.len(), latches.paused)
    }

    #[test]
    fn each_acts_once_until_the_limit_is_higher() {
        let mut latches = Latches::default();
        assert_eq!(look(&mut latches, 79, 0, 100), (false, 0, false));
        assert_eq!((latches.soft_at, latches.hard_at), (80, 100));
        assert_eq!(look(&mut latches, 95, 50, 100), (true, 2, false), "holds count for warnings");
        assert_eq!(look(&mut latches, 200, 99, 100), (false, 2, false), "not for pauses");
        assert_eq!(look(&mut latches, 200, 100, 100), (true, 3, true));
        assert_eq!(look(&mut latches, 10, 10, 100), (false, 3, true), "what was reached stays reached");
        assert_eq!(look(&mut latches, 100, 100, 50), (false, 3, true), "a lower limit is no reason to act again");
        assert_eq!(look(&mut latches, 100, 100, 150), (false, 3, false), "a higher one arms all again");
        assert_eq!((latches.soft_at, latches.hard_at), (120, 150));
        assert_eq!(look(&mut latches, 150, 150, 150), (true, 3, true));
        latches.clear();
        assert_eq!(look(&mut latches, 0, 0, 0), (false, 0, false), "an empty limit says nothing by itself");
    }
}
