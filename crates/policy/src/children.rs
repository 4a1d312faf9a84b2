//! The rate at which an agent may make children. A child that ends at once frees its place, so the limit on living
//! children does not limit the number of pods.

use std::time::Duration;

/// The time in which children are counted.
pub const CHILD_RATE_WINDOW: Duration = Duration::from_secs(60);
/// Children that may be made in the window, even if fewer may live at a time.
const MIN_CHILDREN_PER_WINDOW: u32 = 10;

/// Children that an agent may make within [`CHILD_RATE_WINDOW`]: twice the `most` that may live at a time.
pub fn rate(most: u32) -> u32 {
    most.saturating_mul(2).max(MIN_CHILDREN_PER_WINDOW)
}

/// The time until an agent may make one more child; `None`: now. `ages`: how long ago it made each child, in any order.
pub fn wait(ages: impl IntoIterator<Item = Duration>, most: u32) -> Option<Duration> {
    let mut lately: Vec<Duration> = ages.into_iter().filter(|age| *age < CHILD_RATE_WINDOW).collect();
    lately.sort_unstable();
    let rate = usize::try_from(rate(most)).unwrap_or(usize::MAX);
    // When this child leaves the window, one more is allowed.
    lately.get(rate.checked_sub(1)?).map(|age| CHILD_RATE_WINDOW - *age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(ages: &[u64]) -> Vec<Duration> {
        ages.iter().copied().map(Duration::from_secs).collect()
    }

    #[test]
    fn children_that_end_at_once_are_not_replaced_at_once_for_ever() {
        assert_eq!(wait(Vec::new(), 0), None);
        assert_eq!(wait(seconds(&[0; 9]), 3), None);
        assert_eq!(wait(seconds(&[0; 10]), 3), Some(CHILD_RATE_WINDOW));
        assert_eq!(wait(seconds(&[0; 39]), 20), None, "all that may live, and each of them once more");
        assert_eq!(wait(seconds(&[0; 40]), 20), Some(CHILD_RATE_WINDOW));
        let ages: Vec<u64> = (0..10).map(|number| 5 * number).rev().collect();
        assert_eq!(wait(seconds(&ages), 1), Some(Duration::from_secs(15)), "the oldest was made 45 s ago");
        assert_eq!(wait(seconds(&[60; 1000]), 1), None);
    }

    proptest! {
        /// An agent that asks as often as it can makes no more children in any minute than it may.
        #[test]
        fn no_minute_has_more(asks in prop::collection::vec(0..9000u64, 1..300), most in 0..12u32) {
            let (mut now, mut made) = (0, Vec::<u64>::new());
            for ask in asks {
                now += ask;
                let ages = made.iter().map(|at| Duration::from_millis(now - at));
                match wait(ages, most) {
                    None => made.push(now),
                    Some(left) => {
                        prop_assert!(left <= CHILD_RATE_WINDOW && !left.is_zero());
                        let later = now + u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                        prop_assert_eq!(wait(made.iter().map(|at| Duration::from_millis(later - at)), most), None);
                    }
                }
                let lately = made.iter().filter(|at| now - **at < 60_000).count();
                prop_assert!(lately <= usize::try_from(rate(most)).unwrap_or(0));
            }
        }
    }
}
