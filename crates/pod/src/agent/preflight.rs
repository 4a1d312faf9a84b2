//! The command that has to succeed before the program is started, as its supervisor decides it. Pure: events and the time
//! come in, actions go out.
//!
//! What always holds: nothing else runs in the container meanwhile, so that whatever a run leaves behind is killed with it;
//! the program is started once, after a run that succeeded and of which nothing is left; a run that passed is never repeated.
//! It must not end the container: that is [`life`](super::life)'s to do, at any time.

use std::time::Duration;

use spillway_wire::agent::{Preflight as Told, PreflightState};

use super::processes::Exit;
use crate::clock::BootTime;

/// For one run: what asks a question that nobody answers must not hang for ever.
const PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(30);
/// First and longest pause between two runs.
const PREFLIGHT_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(120));
/// Between two kills of everything.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// For the last of a run's output, which others read as slowly as they like.
const OUTPUT_COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The program may be started, as far as others are concerned; this has to succeed before. Empty: nothing has to.
    Begin(Vec<String>),
    /// The command could not be started: why.
    NotStarted(String),
    /// The command ended.
    Ended(Exit),
    /// No process is left but the supervisor.
    Empty,
    /// All that the run wrote was read.
    Copied,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run this.
    Run(Vec<String>),
    /// Kill everything.
    KillAll,
    /// Read what it wrote last, and [judge](Preflight::judge).
    Judge,
    /// It passed: the program may be started.
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
    /// It was not asked for.
    #[default]
    Unasked,
    /// The command runs, until this at most.
    Running { until: BootTime },
    /// It is over; what it left behind is being killed.
    Clearing { end: End, again: BootTime },
    /// Nothing is left; the last of the output is read.
    Copying { end: End, until: BootTime },
    /// It is being judged.
    Judging(End),
    /// It failed, and is run again then.
    Resting { until: BootTime },
    /// It passed, or nothing had to.
    Passed,
}

/// The supervisor's state of its preflight.
#[derive(Clone, Debug, Default)]
pub struct Preflight {
    command: Vec<String>,
    stage: Stage,
    /// Runs that failed.
    failures: u32,
    /// How the last of them did.
    message: String,
}

impl Preflight {
    /// Takes what happened; says what is to be done.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        match (event, &mut self.stage) {
            (Event::Begin(command), Stage::Unasked) => {
                if command.is_empty() {
                    self.stage = Stage::Passed;
                    return vec![Action::Start];
                }
                self.command = command;
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
                self.pass(now)
            }
            (Event::Tick, _) => self.pass(now),
            // Said again after a sidecar's restart; of a run that is over; of processes that are nobody's concern.
            (Event::Begin(_) | Event::NotStarted(_) | Event::Ended(_) | Event::Empty | Event::Copied, _) => Vec::new(),
        }
    }

    /// What follows from time alone.
    fn pass(&mut self, now: BootTime) -> Vec<Action> {
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
            Stage::Unasked
            | Stage::Running { .. }
            | Stage::Clearing { .. }
            | Stage::Copying { .. }
            | Stage::Judging(_)
            | Stage::Resting { .. }
            | Stage::Passed => Vec::new(),
        }
    }

    fn run(&mut self, now: BootTime) -> Vec<Action> {
        self.stage = Stage::Running { until: now.after(PREFLIGHT_TIMEOUT) };
        vec![Action::Run(self.command.clone())]
    }

    fn clear(&mut self, now: BootTime, end: End) -> Vec<Action> {
        self.stage = Stage::Clearing { end, again: now.after(KILL_INTERVAL) };
        vec![Action::KillAll]
    }

    /// The run that is over wrote this last.
    pub fn judge(&mut self, now: BootTime, tail: &str) -> Vec<Action> {
        let Stage::Judging(end) = &self.stage else { return Vec::new() };
        let how = match end {
            End::Exit(Exit { code: 0, killed: false }) => {
                self.stage = Stage::Passed;
                self.message.clear();
                return vec![Action::Start];
            }
            End::Exit(Exit { code, killed: _ }) => format!("the preflight command ended with exit code {code}"),
            End::TooLong => format!("the preflight command did not end within {} s and was killed", PREFLIGHT_TIMEOUT.as_secs()),
            End::NotStarted(why) => format!("the preflight command was not started: {why}"),
        };
        let words = if tail.is_empty() { how } else { format!("{how}: {tail}") };
        self.message = words.chars().take(Told::MAX_MESSAGE_CHARS).collect();
        self.failures = self.failures.saturating_add(1);
        let pause = PREFLIGHT_RETRY_BACKOFF.0.saturating_mul(1 << (self.failures - 1).min(16)).min(PREFLIGHT_RETRY_BACKOFF.1);
        self.stage = Stage::Resting { until: now.after(pause) };
        Vec::new()
    }

    /// When to say [`Event::Tick`] at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Running { until: at } | Stage::Clearing { again: at, .. } | Stage::Copying { until: at, .. } => Some(*at),
            Stage::Resting { until } => Some(*until),
            Stage::Unasked | Stage::Judging(_) | Stage::Passed => None,
        }
    }

    /// It matters that no process is left.
    pub fn clearing(&self) -> bool {
        matches!(self.stage, Stage::Clearing { .. })
    }

    /// It matters that all output was read.
    pub fn copying(&self) -> bool {
        matches!(self.stage, Stage::Copying { .. })
    }

    /// The program may be started.
    pub fn passed(&self) -> bool {
        self.stage == Stage::Passed
    }

    /// How the last run failed, if one did and none has passed since.
    pub fn failure(&self) -> Option<&str> {
        Some(self.message.as_str()).filter(|message| !message.is_empty())
    }

    /// What the sidecar is told; none: nothing was asked for. While it is run again it has failed still.
    pub fn told(&self) -> Option<Told> {
        let state = match &self.stage {
            _ if self.command.is_empty() => return None,
            Stage::Passed => PreflightState::Passed,
            Stage::Unasked
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
