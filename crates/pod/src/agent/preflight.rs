//! The preflight: the command that must succeed before the program is started, as the supervisor decides it. Pure: events and
//! the time come in, actions go out.
//!
//! What always holds: no other program runs in the container at the same time ([`command_run`](super::command_run)). The program is started once, after a successful run of which no process is left. A successful run is never repeated. This module
//! must not end the container: only [`life`](super::life) does so, at any time.

use std::time::Duration;

use spillway_wire::agent::{Preflight as Told, PreflightState};

use super::command_run::{CommandRun, RunAction, RunEvent};
use crate::clock::BootTime;

/// Time limit of one run, if the settings name none. A command that asks a question must not hang for ever.
pub const DEFAULT_PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(30);
/// First and longest pause between two runs.
const PREFLIGHT_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(120));

/// An action for the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run this command.
    Run(Vec<String>),
    /// Kill all processes.
    KillAll,
    /// Read its last output, and [judge](Preflight::judge) the run.
    Judge,
    /// The preflight passed: start the program.
    Start,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// [`Preflight::begin`] was not called.
    #[default]
    NotBegun,
    /// The command runs, or its end is being judged.
    Running(CommandRun),
    /// The run failed, and the command runs again at `until`.
    Resting { until: BootTime },
    /// The preflight passed, or there is no command.
    Passed,
}

/// The supervisor's state of its preflight.
#[derive(Clone, Debug, Default)]
pub struct Preflight {
    command: Vec<String>,
    /// Time limit of one run.
    timeout: Duration,
    stage: Stage,
    /// Runs that failed.
    failures: u32,
    /// The message about the last failed run.
    message: String,
}

impl Preflight {
    /// The sidecar lets the program start; this command must succeed before, within this time. Empty: there is no such command.
    /// A restarted sidecar repeats it.
    pub fn begin(&mut self, now: BootTime, command: Vec<String>, timeout: Duration) -> Vec<Action> {
        if self.stage != Stage::NotBegun {
            return Vec::new();
        }
        if command.is_empty() {
            self.stage = Stage::Passed;
            return vec![Action::Start];
        }
        (self.command, self.timeout) = (command, timeout);
        self.run(now)
    }

    /// Takes an event of a run; returns the actions.
    pub fn on(&mut self, now: BootTime, event: RunEvent) -> Vec<Action> {
        match &mut self.stage {
            Stage::Running(run) => run.on(now, event).map(|action| self.action(action)).into_iter().collect(),
            Stage::Resting { until } if now >= *until => self.run(now),
            Stage::NotBegun | Stage::Resting { .. } | Stage::Passed => Vec::new(),
        }
    }

    fn run(&mut self, now: BootTime) -> Vec<Action> {
        // The container has no other process.
        self.stage = Stage::Running(CommandRun::started(now, self.timeout));
        vec![self.action(RunAction::Start)]
    }

    fn action(&self, action: RunAction) -> Action {
        match action {
            RunAction::Start => Action::Run(self.command.clone()),
            RunAction::KillAll => Action::KillAll,
            RunAction::Judge => Action::Judge,
        }
    }

    /// Judges the run that is over, of which `tail` is the last output.
    pub fn judge(&mut self, now: BootTime, tail: &str) -> Vec<Action> {
        let Stage::Running(run) = &self.stage else { return Vec::new() };
        if run.end().is_none() {
            return Vec::new();
        }
        let Some(how) = run.failure("the preflight command") else {
            self.stage = Stage::Passed;
            self.message.clear();
            return vec![Action::Start];
        };
        let words = if tail.is_empty() { how } else { format!("{how}: {tail}") };
        self.message = words.chars().take(Told::MAX_MESSAGE_CHARS).collect();
        self.failures = self.failures.saturating_add(1);
        let pause = PREFLIGHT_RETRY_BACKOFF.0.saturating_mul(1 << (self.failures - 1).min(16)).min(PREFLIGHT_RETRY_BACKOFF.1);
        self.stage = Stage::Resting { until: now.after(pause) };
        Vec::new()
    }

    fn current_run(&self) -> Option<&CommandRun> {
        match &self.stage {
            Stage::Running(run) => Some(run),
            Stage::NotBegun | Stage::Resting { .. } | Stage::Passed => None,
        }
    }

    /// When [`RunEvent::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Running(run) => run.wake(),
            Stage::Resting { until } => Some(*until),
            Stage::NotBegun | Stage::Passed => None,
        }
    }

    /// Whether the preflight waits until no process is left.
    pub fn clearing(&self) -> bool {
        self.current_run().is_some_and(CommandRun::clearing)
    }

    /// Whether the preflight waits for the last output.
    pub fn copying(&self) -> bool {
        self.current_run().is_some_and(CommandRun::copying)
    }

    /// Whether the preflight has passed, so that the program may be started.
    pub fn passed(&self) -> bool {
        self.stage == Stage::Passed
    }

    /// The message about the last run, if it failed and none has passed since.
    pub fn failure(&self) -> Option<&str> {
        Some(self.message.as_str()).filter(|message| !message.is_empty())
    }

    /// The state for the sidecar; `None` if there is no command. While a failed command runs again, the state stays `Failed`.
    pub fn reported_state(&self) -> Option<Told> {
        let state = match &self.stage {
            _ if self.command.is_empty() => return None,
            Stage::Passed => PreflightState::Passed,
            Stage::NotBegun | Stage::Running(_) | Stage::Resting { .. } => {
                if self.failures == 0 {
                    PreflightState::Pending
                } else {
                    PreflightState::Failed
                }
            }
        };
        Some(Told { state, message: self.message.clone() })
    }
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
