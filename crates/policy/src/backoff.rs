//! Exponential backoff with full jitter, for one object at a time.

use std::time::Duration;

/// How long to wait after `failures` failures in a row (the first is 1): a random part of `initial * 2^(failures-1)`,
/// at most `max` and at least a tenth of the bound, so that a retry is never immediate. `random` is uniform in [0, 1).
pub fn delay(failures: u32, initial: Duration, max: Duration, random: f64) -> Duration {
    let bound = initial.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(30))).min(max);
    bound.mul_f64(0.1 + 0.9 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bounded_and_never_zero(failures in 0u32..u32::MAX, random in 0.0f64..1.0) {
            let max = Duration::from_secs(30);
            let got = delay(failures, Duration::from_millis(200), max, random);
            prop_assert!(got <= max && got >= Duration::from_millis(20));
        }
    }

    #[test]
    fn doubles_up_to_the_bound() {
        let at = |failures| delay(failures, Duration::from_secs(1), Duration::from_secs(10), 1.0).as_secs_f64().round();
        assert_eq!([at(1), at(2), at(3), at(4), at(5), at(60)], [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
    }
}
