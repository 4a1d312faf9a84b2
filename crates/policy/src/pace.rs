//! How many writes of one namespace may be on their way to the API server at once, found out by how long they take.
//!
//! More at once than it works on makes none of them end sooner and everybody else's end later. So there are few, more as long
//! as that makes none slower, and fewer when it does. What few take is measured from time to time: a server that became slow
//! is not one that has too much to do, and the other way round.
//!
//! What always holds: there are at least [`LEAST`] and at most [`MOST`].

use std::time::Duration;

/// At least so many, whatever they take.
pub const LEAST: usize = 2;
/// At most so many, however fast they are.
pub const MOST: usize = 32;
/// Writes that are judged together.
const ROUND: u32 = 32;
/// There are more while they take no longer than this, in percent of what [`LEAST`] take.
const FASTER: u128 = 120;
/// There are fewer when they take longer than that.
const SLOWER: u128 = 140;
/// What [`LEAST`] take is measured anew after so long.
const ANEW: Duration = Duration::from_secs(10);

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    at_once: usize,
    /// What a write takes when there are the fewest, and when that was measured.
    fewest: Option<(Duration, Duration)>,
    /// Some of those that end now began when there were more.
    emptying: bool,
    sum: Duration,
    count: u32,
    /// More wanted to be on their way than might.
    wanted: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { at_once: LEAST, fewest: None, emptying: false, sum: Duration::ZERO, count: 0, wanted: false }
    }
}

impl Pace {
    /// So many may be on their way.
    #[must_use]
    pub const fn at_once(&self) -> usize {
        self.at_once
    }

    /// A write ended at `now` and took so long; `waiting`: others wait for their turn.
    pub fn took(&mut self, now: Duration, time: Duration, waiting: bool) {
        self.sum = self.sum.saturating_add(time);
        self.count += 1;
        self.wanted |= waiting;
        if self.count >= ROUND {
            self.judge(now, self.sum / self.count, self.wanted);
            (self.sum, self.count, self.wanted) = (Duration::ZERO, 0, false);
        }
    }

    fn judge(&mut self, now: Duration, mean: Duration, wanted: bool) {
        if std::mem::take(&mut self.emptying) {
            return;
        }
        let known = self.fewest.filter(|(_, since)| now.saturating_sub(*since) < ANEW);
        let Some((fewest, _)) = known else {
            if self.at_once == LEAST {
                self.fewest = Some((mean, now));
            } else {
                (self.at_once, self.emptying) = (LEAST, true);
            }
            return;
        };
        let percent = mean.as_nanos().saturating_mul(100) / fewest.as_nanos().max(1);
        if percent > SLOWER {
            self.at_once = (self.at_once * 3 / 4).max(LEAST);
        } else if percent <= FASTER && wanted {
            self.at_once = (self.at_once + 1).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Writes at a server that works on `cores` of them at once, each for `work`, and lets each wait for `disk` besides; how
    /// many were on their way after each. As many as may are on their way.
    fn run(pace: &mut Pace, from: Duration, writes: usize, (cores, work, disk): (u32, Duration, Duration)) -> Vec<usize> {
        let mut now = from;
        let mut step = |pace: &mut Pace| {
            let at_once = u32::try_from(pace.at_once()).expect("few");
            let takes = disk + work * at_once.max(cores) / cores;
            now += takes / at_once;
            pace.took(now, takes, true);
            pace.at_once()
        };
        std::iter::repeat_with(|| step(pace)).take(writes).collect()
    }

    #[test]
    fn a_server_that_only_waits_for_its_disk_is_given_many() {
        let seen = run(&mut Pace::default(), Duration::ZERO, 2_000, (64, ms(1), ms(20)));
        assert_eq!(seen.iter().max(), Some(&MOST));
    }

    #[test]
    fn a_server_without_a_free_core_is_given_few() {
        let seen = run(&mut Pace::default(), Duration::ZERO, 20_000, (2, ms(4), ms(1)));
        assert!(seen.iter().all(|at_once| *at_once <= LEAST + 2), "{:?}", seen.iter().max());
    }

    #[test]
    fn one_that_has_become_slow_for_good_is_not_taken_for_one_that_is_busy() {
        let mut pace = Pace::default();
        run(&mut pace, Duration::ZERO, 1_000, (64, ms(1), ms(5)));
        let seen = run(&mut pace, Duration::from_secs(60), 5_000, (64, ms(1), ms(50)));
        assert_eq!(seen.iter().max(), Some(&MOST));
    }

    #[test]
    fn where_nobody_waits_there_are_no_more() {
        let mut pace = Pace::default();
        (0..1_000).for_each(|at| pace.took(ms(at), ms(1), false));
        assert_eq!(pace.at_once(), LEAST);
    }

    proptest! {
        #[test]
        fn it_stays_between_its_bounds(all in proptest::collection::vec((0_u64..20_000, 0_u64..5_000, any::<bool>()), 0..500)) {
            let (mut pace, mut now) = (Pace::default(), Duration::ZERO);
            for (later, time, waiting) in all {
                now += ms(later);
                pace.took(now, Duration::from_micros(time), waiting);
                prop_assert!((LEAST..=MOST).contains(&pace.at_once()));
            }
        }
    }
}
