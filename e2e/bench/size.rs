//! The size of the measurements: full, or small, to see that the benchmarks themselves work.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

/// Size of the fleet for the numbers in the document.
const WHOLE: usize = 1000;
/// Pools of a fleet.
pub const POOLS: usize = 10;

/// The size of the measurements. All of them follow from the size of the fleet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Agents of a fleet: `BENCH_AGENTS`, else 1,000. Below 1,000 everything is small, and the numbers mean little.
    pub agents: usize,
}

impl Size {
    /// Reads it from the environment.
    pub fn of_environment() -> anyhow::Result<Self> {
        let agents = match std::env::var("BENCH_AGENTS") {
            Ok(text) => text.parse().context("BENCH_AGENTS must be a number")?,
            Err(_) => WHOLE,
        };
        anyhow::ensure!(agents >= POOLS && agents % POOLS == 0, "BENCH_AGENTS must be a multiple of {POOLS}, the number of pools");
        Ok(Self { agents })
    }

    /// Whether this is a trial.
    pub fn small(self) -> bool {
        self.agents < WHOLE
    }

    /// Agents of each pool of a fleet.
    pub fn in_a_pool(self) -> usize {
        self.agents / POOLS
    }

    /// Number of repetitions, of `whole` at full size.
    pub fn runs(self, whole: usize) -> usize {
        if self.small() { whole.min(2) } else { whole }
    }

    /// Number of samples, of `whole` at full size.
    pub fn scaled_count(self, whole: usize) -> usize {
        if self.small() { whole.min(self.agents / POOLS).max(2) } else { whole }
    }

    /// Length of a measurement or a pause, of `whole` at full size.
    pub fn time(self, whole: Duration) -> Duration {
        if self.small() { whole / 4 } else { whole }
    }

    /// Time limit for this fleet, where a fleet of 1,000 has `whole`.
    pub fn limit(self, whole: Duration) -> Duration {
        whole.mul_f64((crate::report::float(self.agents) / crate::report::float(WHOLE)).max(1.0))
    }
}
