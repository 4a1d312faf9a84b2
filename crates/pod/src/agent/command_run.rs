//! One run of a command that meets no process of another program, as the supervisor decides it: the preflight, and the steps of a
//! changeset. Pure: events and the time come in, actions go out.
//!
//! What always holds: a run is judged only when no process of it is left. This module must not judge it.

use std::time::Duration;

use super::processes::Exit;
use crate::clock::BootTime;

/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for copying the last output of a run. The reader of our output may be slow.
const OUTPUT_COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The command could not be started: why.
    NotStarted(String),
    /// The command ended.
    Ended(Exit),
    /// No process is left but the supervisor.
    Empty,
    /// All output of the run was read.
    Copied,
    /// The run is to stop.
    Stop,
    /// Time passed.
    Tick,
}

/// An action for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAction {
    /// Start the command.
    Start,
    /// Kill all processes.
    KillAll,
    /// Read the last output, and judge the [end](CommandRun::end).
    Judge,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The command ended.
    Exit(Exit),
    /// It took longer than its time limit.
    TooLong,
    /// It was not started: why.
    NotStarted(String),
    /// It was stopped.
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Processes that others left behind are being killed.
    Emptying { again: BootTime },
    /// The command runs, at most until `until`.
    Running { until: BootTime },
    /// The command has ended; processes that it left behind are being killed.
    Clearing { end: RunEnd, again: BootTime },
    /// No process is left; the last output is read.
    Copying { end: RunEnd, until: BootTime },
    /// The run is over.
    Over(RunEnd),
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRun {
    /// Time limit of the command.
    limit: Duration,
    stage: Stage,
}

impl CommandRun {
    /// A run that begins now, while no other process is there: the caller starts the command.
    pub fn started(now: BootTime, limit: Duration) -> Self {
        Self { limit, stage: Stage::Running { until: now.after(limit) } }
    }

    /// A run that begins when all other processes are killed: the caller kills them now.
    pub fn after_others(now: BootTime, limit: Duration) -> Self {
        Self { limit, stage: Stage::Emptying { again: now.after(KILL_INTERVAL) } }
    }

    /// Takes an event; returns the next action. Other events belong to a run that is over, or to other processes.
    pub fn on(&mut self, now: BootTime, event: RunEvent) -> Option<RunAction> {
        match (event, &mut self.stage) {
            (RunEvent::Empty, Stage::Emptying { .. }) => {
                self.stage = Stage::Running { until: now.after(self.limit) };
                Some(RunAction::Start)
            }
            (RunEvent::NotStarted(why), Stage::Running { .. }) => self.over(RunEnd::NotStarted(why)),
            (RunEvent::Ended(exit), Stage::Running { .. }) => self.clear(now, RunEnd::Exit(exit)),
            (RunEvent::Empty, Stage::Clearing { end, .. }) => {
                self.stage = Stage::Copying { end: end.clone(), until: now.after(OUTPUT_COPY_TIMEOUT) };
                None
            }
            (RunEvent::Copied, Stage::Copying { end, .. }) => {
                let end = end.clone();
                self.over(end)
            }
            (RunEvent::Stop, Stage::Emptying { .. }) => self.over(RunEnd::Stopped),
            (RunEvent::Stop, Stage::Running { .. }) => self.clear(now, RunEnd::Stopped),
            (RunEvent::Stop, Stage::Clearing { end, .. } | Stage::Copying { end, .. }) => {
                *end = RunEnd::Stopped;
                None
            }
            (RunEvent::Tick, _) => self.handle_timeouts(now),
            (RunEvent::NotStarted(_) | RunEvent::Ended(_) | RunEvent::Empty | RunEvent::Copied | RunEvent::Stop, _) => None,
        }
    }

    /// Takes the action that is due by time alone.
    fn handle_timeouts(&mut self, now: BootTime) -> Option<RunAction> {
        match &mut self.stage {
            Stage::Running { until } if now >= *until => self.clear(now, RunEnd::TooLong),
            Stage::Emptying { again } | Stage::Clearing { again, .. } if now >= *again => {
                *again = now.after(KILL_INTERVAL);
                Some(RunAction::KillAll)
            }
            Stage::Copying { end, until } if now >= *until => {
                let end = end.clone();
                self.over(end)
            }
            Stage::Emptying { .. } | Stage::Running { .. } | Stage::Clearing { .. } | Stage::Copying { .. } | Stage::Over(_) => None,
        }
    }

    fn clear(&mut self, now: BootTime, end: RunEnd) -> Option<RunAction> {
        self.stage = Stage::Clearing { end, again: now.after(KILL_INTERVAL) };
        Some(RunAction::KillAll)
    }

    fn over(&mut self, end: RunEnd) -> Option<RunAction> {
        self.stage = Stage::Over(end);
        Some(RunAction::Judge)
    }

    /// The end, once the run is over.
    pub fn end(&self) -> Option<&RunEnd> {
        match &self.stage {
            Stage::Over(end) => Some(end),
            Stage::Emptying { .. } | Stage::Running { .. } | Stage::Clearing { .. } | Stage::Copying { .. } => None,
        }
    }

    /// Why the command, with this name, did not succeed; none if it did.
    pub fn failure(&self, name: &str) -> Option<String> {
        Some(match self.end()? {
            RunEnd::Exit(Exit { code: 0, killed: false }) => return None,
            RunEnd::Exit(Exit { code, killed: _ }) => format!("{name} ended with exit code {code}"),
            RunEnd::TooLong => format!("{name} did not end within {} s and was killed", self.limit.as_secs()),
            RunEnd::NotStarted(why) => format!("{name} was not started: {why}"),
            RunEnd::Stopped => format!("{name} was stopped"),
        })
    }

    /// When [`RunEvent::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Emptying { again: at }
            | Stage::Running { until: at }
            | Stage::Clearing { again: at, .. }
            | Stage::Copying { until: at, .. } => Some(*at),
            Stage::Over(_) => None,
        }
    }

    /// Whether the command has ended, or was never started.
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Clearing { .. } | Stage::Copying { .. } | Stage::Over(_))
    }

    /// Whether the run waits until no process is left.
    pub fn clearing(&self) -> bool {
        matches!(self.stage, Stage::Emptying { .. } | Stage::Clearing { .. })
    }

    /// Whether the run waits for the last output.
    pub fn copying(&self) -> bool {
        matches!(self.stage, Stage::Copying { .. })
    }
}
