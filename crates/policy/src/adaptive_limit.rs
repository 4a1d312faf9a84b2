//! The limit on concurrent writes of one namespace to the API server, adapted to their latency.
//!
//! More concurrent writes than the server can process do not end sooner, and they delay the writes of others. So the
//! limit begins low, rises while the latency stays, and falls when the latency rises. The latency at the lowest limit
//! is measured again from time to time, to tell a slow server from a busy one.
//!
//! What always holds: the limit is between [`MIN_WRITE_LIMIT`] and [`MAX_WRITE_LIMIT`].

use std::time::Duration;

/// The lowest limit.
pub const MIN_WRITE_LIMIT: usize = 2;
/// The highest limit.
pub const MAX_WRITE_LIMIT: usize = 32;
/// Writes whose mean latency is compared once.
const WRITES_PER_ROUND: u32 = 32;
/// The limit rises while the mean latency is not above this, in percent of the latency at [`MIN_WRITE_LIMIT`].
const RAISE_BELOW_PERCENT: u128 = 120;
/// The limit falls when the mean latency is above this, in percent of the latency at [`MIN_WRITE_LIMIT`].
const LOWER_ABOVE_PERCENT: u128 = 140;
/// After this time the latency at [`MIN_WRITE_LIMIT`] is measured again.
const BASELINE_TTL: Duration = Duration::from_secs(10);

/// The limit and its measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveLimit {
    limit: usize,
    /// The latency at [`MIN_WRITE_LIMIT`], and when it was measured.
    baseline: Option<(Duration, Duration)>,
    /// Some of the writes that end now began under a higher limit.
    emptying: bool,
    sum: Duration,
    count: u32,
    /// In this round, more writes were ready than the limit allowed.
    saturated: bool,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self { limit: MIN_WRITE_LIMIT, baseline: None, emptying: false, sum: Duration::ZERO, count: 0, saturated: false }
    }
}

impl AdaptiveLimit {
    /// The number of writes that may be under way at once.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// A write ended at `now` and took `time`. `waiting`: other writes wait for their turn.
    pub fn record_write(&mut self, now: Duration, time: Duration, waiting: bool) {
        self.sum = self.sum.saturating_add(time);
        self.count += 1;
        self.saturated |= waiting;
        if self.count >= WRITES_PER_ROUND {
            self.judge(now, self.sum / self.count, self.saturated);
            (self.sum, self.count, self.saturated) = (Duration::ZERO, 0, false);
        }
    }

    fn judge(&mut self, now: Duration, mean: Duration, wanted: bool) {
        if std::mem::take(&mut self.emptying) {
            return;
        }
        let known = self.baseline.filter(|(_, since)| now.saturating_sub(*since) < BASELINE_TTL);
        let Some((fewest, _)) = known else {
            if self.limit == MIN_WRITE_LIMIT {
                self.baseline = Some((mean, now));
            } else {
                (self.limit, self.emptying) = (MIN_WRITE_LIMIT, true);
            }
            return;
        };
        let percent = mean.as_nanos().saturating_mul(100) / fewest.as_nanos().max(1);
        if percent > LOWER_ABOVE_PERCENT {
            self.limit = (self.limit * 3 / 4).max(MIN_WRITE_LIMIT);
        } else if percent <= RAISE_BELOW_PERCENT && wanted {
            self.limit = (self.limit + 1).min(MAX_WRITE_LIMIT);
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

    /// The limit after each write. The server processes `cores` writes at once, each for `work`, and each also waits
    /// for `disk`. As many writes as the limit allows are always under way.
    fn run(
        adaptive_limit: &mut AdaptiveLimit,
        from: Duration,
        writes: usize,
        (cores, work, disk): (u32, Duration, Duration),
    ) -> Vec<usize> {
        let mut now = from;
        let mut step = |adaptive_limit: &mut AdaptiveLimit| {
            let at_once = u32::try_from(adaptive_limit.limit()).expect("few");
            let takes = disk + work * at_once.max(cores) / cores;
            now += takes / at_once;
            adaptive_limit.record_write(now, takes, true);
            adaptive_limit.limit()
        };
        std::iter::repeat_with(|| step(adaptive_limit)).take(writes).collect()
    }

    #[test]
    fn a_server_that_only_waits_for_its_disk_is_given_many() {
        let seen = run(&mut AdaptiveLimit::default(), Duration::ZERO, 2_000, (64, ms(1), ms(20)));
        assert_eq!(seen.iter().max(), Some(&MAX_WRITE_LIMIT));
    }

    #[test]
    fn a_server_without_a_free_core_is_given_few() {
        let seen = run(&mut AdaptiveLimit::default(), Duration::ZERO, 20_000, (2, ms(4), ms(1)));
        assert!(seen.iter().all(|at_once| *at_once <= MIN_WRITE_LIMIT + 2), "{:?}", seen.iter().max());
    }

    #[test]
    fn one_that_has_become_slow_for_good_is_not_taken_for_one_that_is_busy() {
        let mut adaptive_limit = AdaptiveLimit::default();
        run(&mut adaptive_limit, Duration::ZERO, 1_000, (64, ms(1), ms(5)));
        let seen = run(&mut adaptive_limit, Duration::from_secs(60), 5_000, (64, ms(1), ms(50)));
        assert_eq!(seen.iter().max(), Some(&MAX_WRITE_LIMIT));
    }

    #[test]
    fn where_nobody_waits_there_are_no_more() {
        let mut adaptive_limit = AdaptiveLimit::default();
        (0..1_000).for_each(|at| adaptive_limit.record_write(ms(at), ms(1), false));
        assert_eq!(adaptive_limit.limit(), MIN_WRITE_LIMIT);
    }

    proptest! {
        #[test]
        fn it_stays_between_its_bounds(all in proptest::collection::vec((0_u64..20_000, 0_u64..5_000, any::<bool>()), 0..500)) {
            let (mut adaptive_limit, mut now) = (AdaptiveLimit::default(), Duration::ZERO);
            for (later, time, waiting) in all {
                now += ms(later);
                adaptive_limit.record_write(now, Duration::from_micros(time), waiting);
                prop_assert!((MIN_WRITE_LIMIT..=MAX_WRITE_LIMIT).contains(&adaptive_limit.limit()));
            }
        }
    }
}
