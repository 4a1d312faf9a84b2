//! Recent failures in a ring of buckets, so that the cost of counting does not depend on their number.
//!
//! A failure counts for the whole window, and for at most one bucket (a twentieth) longer.

/// The number of buckets in a window. One more is being filled.
const BUCKETS_PER_WINDOW: u64 = 20;
const BUCKET_COUNT: usize = BUCKETS_PER_WINDOW as usize + 1;

/// The ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    width: u64,
    /// The bucket that is being filled, counted from the start of the clock.
    newest: u64,
    buckets: [u32; BUCKET_COUNT],
    sum: u32,
}

impl Window {
    /// An empty window of `length` milliseconds.
    pub fn new(length: u64) -> Self {
        Self { width: length.div_ceil(BUCKETS_PER_WINDOW).max(1), newest: 0, buckets: [0; BUCKET_COUNT], sum: 0 }
    }

    /// How much longer than the window a failure may count.
    pub fn bucket(&self) -> u64 {
        self.width
    }

    /// Adds a failure, and returns the number that count now.
    pub fn add(&mut self, now: u64) -> u32 {
        self.advance(now);
        let bucket = &mut self.buckets[slot(self.newest)];
        *bucket = bucket.saturating_add(1);
        self.sum = self.sum.saturating_add(1);
        self.sum
    }

    /// The number of failures that count now.
    pub fn count(&mut self, now: u64) -> u32 {
        self.advance(now);
        self.sum
    }

    /// The same failures in a window of another length.
    pub fn resized(&self, length: u64, now: u64) -> Self {
        let mut new = Self::new(length);
        for age in (0..BUCKET_COUNT as u64).rev().filter(|age| *age <= self.newest) {
            let index = self.newest - age;
            for _ in 0..self.buckets[slot(index)] {
                new.add(index.saturating_mul(self.width));
            }
        }
        new.advance(now);
        new
    }

    /// Empties the buckets that are too old. A time before the newest bucket counts as that bucket.
    fn advance(&mut self, now: u64) {
        let index = now / self.width;
        for step in 1..=index.saturating_sub(self.newest).min(BUCKET_COUNT as u64) {
            let old = std::mem::take(&mut self.buckets[slot(self.newest + step)]);
            self.sum = self.sum.saturating_sub(old);
        }
        self.newest = self.newest.max(index);
    }
}

fn slot(index: u64) -> usize {
    usize::try_from(index % BUCKET_COUNT as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_failure_counts_for_the_window_and_a_bucket_at_most() {
        let mut window = Window::new(1000);
        assert_eq!((window.bucket(), window.add(49), window.add(50)), (50, 1, 2));
        assert_eq!(window.count(1049), 2);
        assert_eq!(window.count(1050), 1);
        assert_eq!(window.count(1100), 0);
        assert_eq!(window.add(10_000_000), 1);
        assert_eq!(window.count(u64::MAX), 0);
    }

    #[test]
    fn failures_find_their_place_in_a_longer_window() {
        let mut window = Window::new(1000);
        for index in 0..5 {
            window.add(index * 100);
        }
        let mut longer = window.resized(4000, 500);
        assert_eq!((longer.count(500), longer.count(3900), longer.count(5000)), (5, 5, 0));
        assert_eq!(window.resized(100, 500).count(500), 1, "of those that are older than it none counts");
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_failures_in_the_window(length in 1u64..5000, steps in proptest::collection::vec((0u64..600, any::<bool>()), 1..80)) {
            let mut window = Window::new(length);
            let (mut now, mut failures) = (0, Vec::new());
            for (step, failure) in steps {
                now += step;
                if failure {
                    window.add(now);
                    failures.push(now);
                }
                let within = |age: u64| u32::try_from(failures.iter().filter(|at| now - **at < age).count()).unwrap_or(u32::MAX);
                let count = window.count(now);
                // A bucket is at least a millisecond wide.
                prop_assert!(within(length) <= count && count <= within((BUCKETS_PER_WINDOW + 1) * window.bucket()), "{count}");
            }
        }
    }
}
