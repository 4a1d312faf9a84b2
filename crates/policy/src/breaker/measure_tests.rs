//! How fast a closed circuit gives permits and takes results, on one thread. A measurement, not a test:
//! `cargo test --release -p spillway-policy breaker::measure -- --ignored --nocapture`

use std::time::Instant;

use super::admission;
use super::circuit::{Answer, Circuit, Moment, Outcome};
use super::settings::{Guard, Settings};

const PAIRS: u64 = 2_000_000;
/// Permits that are given and not completed at any time.
const OUT: usize = 64;

#[test]
#[ignore = "a measurement"]
fn admit_and_complete() {
    for guards in [&[Guard::Models][..], &[Guard::Session, Guard::Commands]] {
        let mut circuits: Vec<Circuit> = guards.iter().map(|guard| Circuit::new(Settings::of(*guard), 1)).collect();
        let mut out = std::collections::VecDeque::new();
        let began = Instant::now();
        for number in 0..PAIRS {
            // Few fail, so that nothing opens.
            let at = Moment { now: number, random: 0.5 };
            let mut all: Vec<&mut Circuit> = circuits.iter_mut().collect();
            if let Answer::Permit(permits) = admission::admit(&mut all, at, 120_000) {
                out.push_back(permits);
            }
            if out.len() > OUT
                && let Some(permits) = out.pop_front()
            {
                let outcome = if number % 100_000 == 0 { Outcome::Failure { retry_after: None } } else { Outcome::Success };
                for (circuit, permit) in circuits.iter_mut().zip(&permits) {
                    circuit.complete(permit, outcome, at);
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        println!("{guards:?}: {:.0} a second, {:.0} ns each", PAIRS as f64 / seconds, seconds * 1e9 / PAIRS as f64);
        assert_eq!(out.len(), OUT, "none was refused");
    }
}
