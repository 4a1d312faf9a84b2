//! Times of independent arrivals: a Poisson process that a seed fixes beforehand. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Times from the start at which arrivals are due, at `rate` a second.
pub fn arrivals(seed: u64, rate: f64, time: Duration) -> Vec<Duration> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut at = Duration::ZERO;
    let mut all = Vec::new();
    loop {
        // In (0, 1], so that its logarithm is finite.
        let uniform = 1.0 - dice.random::<f64>();
        at += Duration::from_secs_f64(-uniform.ln() / rate);
        if at >= time {
            return all;
        }
        all.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::float;

    #[test]
    fn things_come_at_the_rate_that_is_said_and_at_the_same_times_again() {
        let (seed, rate, time) = (75, 75.0, Duration::from_secs(60));
        let all = arrivals(seed, rate, time);
        assert_eq!(all, arrivals(seed, rate, time));
        assert!(all.is_sorted() && all.iter().all(|at| *at < time));
        // Four standard deviations of a Poisson process.
        let (wanted, got) = (rate * time.as_secs_f64(), float(all.len()));
        assert!((got - wanted).abs() < 4.0 * wanted.sqrt(), "{got} of {wanted}");
    }
}
