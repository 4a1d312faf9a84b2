//! How much is measured: all of it, or little, to see that the benchmarks themselves work.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

/// The fleet of the numbers in the document.
const WHOLE: usize = 1000;
/// Pools of a fleet.
pub const POOLS: usize = 10;

/// How much is measured. All of it follows from the size of the fleet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Agents of a fleet: `BENCH_AGENTS`, else 1,000. Below that everything is small, and no number is worth keeping.
    pub agents: usize,
}

impl Size {
    /// As the environment says.
    pub fn of_environment() -> anyhow::Result<Self> {
        let agents = match std::env::var("BENCH_AGENTS") {
            Ok(text) => text.parse().context("BENCH_AGENTS is no number")?,
            Err(_) => WHOLE,
        };
        anyhow::ensure!(agents >= POOLS && agents % POOLS == 0, "BENCH_AGENTS: a multiple of {POOLS}");
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

    /// How often something is repeated that is repeated `whole` times.
    pub fn runs(self, whole: usize) -> usize {
        if self.small() { whole.min(2) } else { whole }
    }

    /// How many of something, where `whole` are taken.
    pub fn some(self, whole: usize) -> usize {
        if self.small() { whole.min(self.agents / POOLS).max(2) } else { whole }
    }

    /// How long something is watched, or left alone, that takes `whole`.
    pub fn time(self, whole: Duration) -> Duration {
        if self.small() { whole / 4 } else { whole }
    }

    /// How long a fleet may take for what takes a fleet of 1,000 `whole`.
    pub fn limit(self, whole: Duration) -> Duration {
        whole.mul_f64((crate::report::float(self.agents) / crate::report::float(WHOLE)).max(1.0))
    }
}
