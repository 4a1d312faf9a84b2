//! What a circuit protects, its settings, and their defaults.

pub use crate::budget::Mode;

/// No wait is longer than this (milliseconds), whatever a provider or a caller asks for.
pub const MAX_WAIT_MS: u64 = 86_400_000;

/// What a circuit protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// A pool, from runaway retries.
    Work,
    /// All pools of a namespace together, from runaway retries.
    Project,
    /// One agent's pod, from its hanging commands.
    Session,
    /// The nodes, from the hanging commands of a whole namespace.
    Commands,
    /// A model provider, and the cost of calls that fail.
    Models,
}

/// What lets an open circuit be tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Review {
    /// Time.
    #[default]
    Auto,
    /// Time, and then a person who approves the epoch of the opening.
    Required,
}

/// The state that a person sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// Everything is refused.
    Open,
    /// Everything passes.
    Closed,
}

/// The settings of a circuit. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// What it protects.
    pub guard: Guard,
    /// Whether it refuses, only counts, or neither.
    pub mode: Mode,
    /// Set by a person; results change nothing meanwhile.
    pub force: Option<Force>,
    /// Failures within the window that open it.
    pub threshold: u32,
    /// How long a failure counts.
    pub window: u64,
    /// How long it stays open the first time ...
    pub open: u64,
    /// ... the factor for each further opening in a row ...
    pub factor: u32,
    /// ... and the longest time, unless a provider asks for more. A random tenth is added or taken away.
    pub max_open: u64,
    /// Successful probes in a row that close it.
    pub successes: u32,
    /// Probes at once.
    pub probes: u32,
    /// A probe without a result has failed after this time. `None`: after the time that the operation itself may take.
    pub probe_within: Option<u64>,
    /// What lets it be tried again.
    pub review: Review,
    /// The epoch up to which a person has approved openings.
    pub approved: Option<u64>,
}

impl Guard {
    /// As one word, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Project => "project",
            Self::Session => "commands_session",
            Self::Commands => "commands",
            Self::Models => "models",
        }
    }

    /// Whether its failures come one after another, each after the whole time of an operation.
    fn fails_sequentially(self) -> bool {
        match self {
            Self::Work | Self::Session => true,
            Self::Project | Self::Commands | Self::Models => false,
        }
    }
}

impl Settings {
    /// The defaults of a guard.
    pub fn of(guard: Guard) -> Self {
        let (threshold, window, open, successes) = match guard {
            Guard::Work | Guard::Project => (3, 300, 60, 1),
            Guard::Session => (10, 120, 30, 2),
            Guard::Commands => (50, 120, 30, 2),
            Guard::Models => (5, 60, 60, 1),
        };
        Self {
            guard,
            mode: Mode::default(),
            force: None,
            threshold,
            window: window * 1000,
            open: open * 1000,
            factor: 1,
            max_open: 900_000,
            successes,
            probes: 1,
            probe_within: None,
            review: Review::Auto,
            approved: None,
        }
    }

    /// Widens the window for failures that come one after another, each after `operation`. Without it the slow
    /// time-outs of one agent would never add up. To be called once, when the circuit is made.
    pub fn with_effective_window(mut self, operation: u64) -> Self {
        if self.guard.fails_sequentially() {
            self.window = self.window.max(operation.saturating_mul(self.threshold.into()));
        }
        self
    }

    /// Replaces numbers that the schema does not allow by the nearest valid ones, so that they do not stop the circuit.
    pub(super) fn sound(mut self) -> Self {
        for number in [&mut self.threshold, &mut self.factor, &mut self.successes, &mut self.probes] {
            *number = (*number).max(1);
        }
        for time in [&mut self.window, &mut self.open, &mut self.max_open] {
            *time = (*time).clamp(1, MAX_WAIT_MS);
        }
        self.max_open = self.max_open.max(self.open);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_guards() {
        let cases = [
            (Guard::Work, 3, 300, 60, 1),
            (Guard::Project, 3, 300, 60, 1),
            (Guard::Session, 10, 120, 30, 2),
            (Guard::Commands, 50, 120, 30, 2),
            (Guard::Models, 5, 60, 60, 1),
        ];
        for (guard, threshold, window, open, successes) in cases {
            let found = Settings::of(guard);
            assert_eq!((found.threshold, found.window, found.open, found.successes), (threshold, window * 1000, open * 1000, successes));
            assert_eq!((found.factor, found.max_open, found.probes, found.probe_within), (1, 900_000, 1, None));
            assert_eq!(found.clone().sound(), found, "{guard:?}");
        }
    }

    #[test]
    fn failures_that_come_in_turn_have_the_time_to_add_up() {
        let window = |guard, operation| Settings::of(guard).with_effective_window(operation).window;
        assert_eq!(window(Guard::Session, 120_000), 1_200_000);
        assert_eq!(window(Guard::Work, 600_000), 1_800_000);
        assert_eq!(window(Guard::Session, 5_000), 120_000, "never shorter than it was set");
        assert_eq!(window(Guard::Commands, 120_000), 120_000);
        assert_eq!(window(Guard::Models, 600_000), 60_000);
        assert_eq!(window(Guard::Project, 600_000), 300_000, "pools fail beside each other");
    }
}
