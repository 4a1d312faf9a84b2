//! The preflight: the command that must succeed before the program is started, as the supervisor decides it. Pure: events and
//! the time come in, actions go out.
//!
//! What always holds: no other program runs in the container at the same time, so that all processes are killed after a run. The
//! program is started once, after a successful run of which no process is left. A successful run is never repeated. This module
//! must not end the container: only [`life`](super::life) does so, at any time.

use std::time::Duration;

use spillway_wire::agent::{Preflight as Told, PreflightState};

use super::processes::Exit;
use crate::clock::BootTime;

/// Time limit of one run, if the settings name none. A command that asks a question must not hang for ever.
pub const DEFAULT_PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(30);
/// First and longest pause between two runs.
const PREFLIGHT_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(120));
/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for copying the last output of a run. The reader of our output may be slow.
const OUTPUT_COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sidecar lets the program start; this command must succeed before, within this time. Empty: there is no such command.
    Begin(Vec<String>, Duration),
    /// The command could not be started: why.
    NotStarted(String),
    /// The command ended.
    Ended(Exit),
    /// No process is left but the supervisor.
    Empty,
    /// All output of the run was read.
    Copied,
    /// Time passed.
    Tick,
}

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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Exit(Exit),
    TooLong,
    NotStarted(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// [`Event::Begin`] has not come.
    #[default]
    NotBegun,
    /// The command runs, at most until `until`.
    Running { until: BootTime },
    /// The command has ended; processes that it left behind are being killed.
    Clearing { end: End, again: BootTime },
    /// No process is left; the last output is read.
    Copying { end: End, until: BootTime },
    /// The run is being judged.
    Judging(End),
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
    /// Takes an event; returns the actions.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        match (event, &mut self.stage) {
            (Event::Begin(command, timeout), Stage::NotBegun) => {
                if command.is_empty() {
                    self.stage = Stage::Passed;
                    return vec![Action::Start];
                }
                (self.command, self.timeout) = (command, timeout);
                self.run(now)
            }
            (Event::NotStarted(why), Stage::Running { .. }) => {
                self.stage = Stage::Judging(End::NotStarted(why));
                vec![Action::Judge]
            }
            (Event::Ended(exit), Stage::Running { .. }) => self.clear(now, End::Exit(exit)),
            (Event::Empty, Stage::Clearing { end, .. }) => {
                self.stage = Stage::Copying { end: end.clone(), until: now.after(OUTPUT_COPY_TIMEOUT) };
                Vec::new()
            }
            (Event::Copied, Stage::Copying { until, .. }) => {
                *until = now;
                self.handle_timeouts(now)
            }
            (Event::Tick, _) => self.handle_timeouts(now),
            // A restarted sidecar repeats `Begin`. The other events belong to a run that is over, or to other processes.
            (Event::Begin(..) | Event::NotStarted(_) | Event::Ended(_) | Event::Empty | Event::Copied, _) => Vec::new(),
        }
    }

    /// Takes the actions that are due by time alone.
    fn handle_timeouts(&mut self, now: BootTime) -> Vec<Action> {
        match &mut self.stage {
            Stage::Running { until } if now >= *until => self.clear(now, End::TooLong),
            Stage::Clearing { again, .. } if now >= *again => {
                *again = now.after(KILL_INTERVAL);
                vec![Action::KillAll]
            }
            Stage::Copying { end, until } if now >= *until => {
                self.stage = Stage::Judging(end.clone());
                vec![Action::Judge]
            }
            Stage::Resting { until } if now >= *until => self.run(now),
            Stage::NotBegun
            | Stage::Running { .. }
            | Stage::Clearing { .. }
            | Stage::Copying { .. }
            | Stage::Judging(_)
            | Stage::Resting { .. }
            | Stage::Passed => Vec::new(),
        }
    }

    fn run(&mut self, now: BootTime) -> Vec<Action> {
        self.stage = Stage::Running { until: now.after(self.timeout) };
        vec![Action::Run(self.command.clone())]
    }

    fn clear(&mut self, now: BootTime, end: End) -> Vec<Action> {
        self.stage = Stage::Clearing { end, again: now.after(KILL_INTERVAL) };
        vec![Action::KillAll]
    }

    /// Judges the run that is over, of which `tail` is the last output.
    pub fn judge(&mut self, now: BootTime, tail: &str) -> Vec<Action> {
        let Stage::Judging(end) = &self.stage else { return Vec::new() };
        let how = match end {
            End::Exit(Exit { code: 0, killed: false }) => {
                self.stage = Stage::Passed;
                self.message.clear();
                return vec![Action::Start];
            }
            End::Exit(Exit { code, killed: _ }) => format!("the preflight command ended with exit code {code}"),
            End::TooLong => format!("the preflight command did not end within {} s and was killed", self.timeout.as_secs()),
            End::NotStarted(why) => format!("the preflight command was not started: {why}"),
        };
        let words = if tail.is_empty() { how } else { format!("{how}: {tail}") };
        self.message = words.chars().take(Told::MAX_MESSAGE_CHARS).collect();
        self.failures = self.failures.saturating_add(1);
        let pause = PREFLIGHT_RETRY_BACKOFF.0.saturating_mul(1 << (self.failures - 1).min(16)).min(PREFLIGHT_RETRY_BACKOFF.1);
        self.stage = Stage::Resting { until: now.after(pause) };
        Vec::new()
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Running { until: at } | Stage::Clearing { again: at, .. } | Stage::Copying { until: at, .. } => Some(*at),
            Stage::Resting { until } => Some(*until),
            Stage::NotBegun | Stage::Judging(_) | Stage::Passed => None,
        }
    }

    /// Whether the preflight waits until no process is left.
    pub fn clearing(&self) -> bool {
        matches!(self.stage, Stage::Clearing { .. })
    }

    /// Whether the preflight waits for the last output.
    pub fn copying(&self) -> bool {
        matches!(self.stage, Stage::Copying { .. })
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
            Stage::NotBegun
            | Stage::Running { .. }
            | Stage::Clearing { .. }
            | Stage::Copying { .. }
            | Stage::Judging(_)
            | Stage::Resting { .. } => {
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
