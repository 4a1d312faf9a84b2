//! The changeset of the item in hand, as the supervisor decides it: a clone before the program runs, and a checked and pushed
//! commit after it. Pure: events and the time come in, actions go out.
//!
//! What always holds: no process of a program runs beside a step, and none of a step runs beside the next one. A commit is
//! announced only while it may be pushed, and pushed only after the sidecar names it to the gateway. This module must not decide
//! how the item ends: [`item`](super::item) does.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_wire::changeset::{ChangesetReport, PendingCommit, reasons};

use super::processes::Exit;
use crate::clock::BootTime;

/// Time limit of a clone, and of a commit.
const GIT_TIMEOUT: Duration = Duration::from_secs(900);
/// Time limit of a push, as the gateway's.
const PUSH_TIMEOUT: Duration = Duration::from_secs(3600);
/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for copying the last output of a step. The reader of our output may be slow.
const OUTPUT_COPY_TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of a message. Written as JSON, it fits into the kept end of the output.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Why a changeset failed: a reason as one word, and a message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
}

impl StepFailure {
    /// A failure of this reason.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        // A name of a program may have any characters, and most of these are longer in JSON.
        let mut message: String = message.into().chars().map(|one| if one.is_control() && one != '\n' { ' ' } else { one }).collect();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        Self { reason: reason.to_owned(), message }
    }
}

/// What a step writes to its standard output, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepResult {
    /// The workspace is a clone at this commit.
    Prepared {
        /// The commit.
        base: String,
        /// The seal of the mirror.
        seal: String,
    },
    /// No file was changed.
    Unchanged,
    /// This commit may be pushed.
    Made {
        /// The commit.
        commit: PendingCommit,
        /// What it changes.
        report: ChangesetReport,
    },
    /// The commit is on the branch.
    Pushed,
    /// The changes are refused.
    Refused(StepFailure),
}

/// A process that runs for a changeset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the clone.
    Prepare,
    /// Make the commit, on this base.
    Commit(String),
    /// Run the pool's command.
    Verify,
    /// Push the commit.
    Push(PendingCommit),
}

impl Step {
    /// The reason of an item whose step could not do its work.
    fn failure_reason(&self) -> &'static str {
        match self {
            Self::Prepare => reasons::WORKSPACE_NOT_PREPARED,
            Self::Commit(_) | Self::Push(_) => reasons::CHANGESET_NOT_COMMITTED,
            Self::Verify => reasons::CHANGESET_NOT_VERIFIED,
        }
    }

    /// Its name in messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Prepare => "the clone of the repository (spec.workspace.git)",
            Self::Commit(_) => "the commit of the changes",
            Self::Verify => "the verify command (spec.sandbox.changeset.verify)",
            Self::Push(_) => "the push of the changes",
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An item begins: make its clone.
    Prepare,
    /// Its program is done: commit its changes. The time limit of the pool's command, if there is one.
    Commit(Option<Duration>),
    /// The step could not be started: why.
    NotStarted(String),
    /// The process of the step ended.
    Ended(Exit),
    /// No process is left but the supervisor.
    Empty,
    /// All output of the step was read.
    Copied,
    /// The sidecar names this commit to the gateway.
    Named(PendingCommit),
    /// The work on the item is to stop.
    Stop,
    /// Time passed.
    Tick,
}

/// An action for the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run this step.
    Run(Step),
    /// Kill all processes.
    KillAll,
    /// Read the output of the step, and [judge](Changeset::judge) it.
    Judge,
    /// The workspace is ready, or why not.
    Prepared(Result<(), Interruption>),
    /// The changes are committed, or why not.
    Committed(Result<ChangesetReport, Interruption>),
}

/// Why the work on a changeset ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// It was to stop.
    Stopped,
    /// A step failed.
    Failed(StepFailure),
}

/// How the process of a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Exit(Exit),
    TooLong(Duration),
    NotStarted(String),
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Processes that others left behind are being killed before the step begins, such as those of a hook.
    Starting { step: Step, again: BootTime },
    /// The process of the step runs, at most until `until`.
    Running { step: Step, begun: BootTime, until: BootTime },
    /// It has ended; processes that it left behind are being killed.
    Clearing { step: Step, end: End, again: BootTime },
    /// No process is left. The last output is read.
    Copying { step: Step, end: End, until: BootTime },
    /// The step is being judged.
    Judging { step: Step, end: End },
    /// The sidecar has not named the commit yet.
    Naming(PendingCommit),
}

/// The changeset of the item in hand.
#[derive(Clone, Debug, Default)]
pub struct Changeset {
    /// The commit that the work began from.
    base: Option<String>,
    /// The seal of the mirror: a program cannot read it here, and so cannot forge it.
    seal: String,
    branch: String,
    /// What was committed.
    report: ChangesetReport,
    commit: Option<PendingCommit>,
    /// Time limit of the pool's command.
    verify: Option<Duration>,
    stage: Stage,
}

impl Changeset {
    /// The seal of the mirror, as the last clone left it; empty: there was none.
    pub fn seal(&self) -> &str {
        &self.seal
    }

    /// Names the branch of the item in hand.
    pub fn set_branch(&mut self, branch: &str) {
        branch.clone_into(&mut self.branch);
    }

    /// Takes an event; returns the actions.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        match (event, &mut self.stage) {
            (Event::Prepare, Stage::Idle) => {
                (self.base, self.commit) = (None, None);
                self.start(now, Step::Prepare)
            }
            (Event::Commit(verify), Stage::Idle) => {
                (self.verify, self.commit) = (verify, None);
                match self.base.clone() {
                    Some(base) => self.start(now, Step::Commit(base)),
                    // Unreachable: an item is committed only after its clone was made.
                    None => vec![Action::Committed(Err(Interruption::Stopped))],
                }
            }
            (Event::NotStarted(why), Stage::Running { step, .. }) => {
                self.stage = Stage::Judging { step: step.clone(), end: End::NotStarted(why) };
                vec![Action::Judge]
            }
            (Event::Ended(exit), Stage::Running { step, .. }) => {
                let step = step.clone();
                self.clear(now, step, End::Exit(exit))
            }
            (Event::Empty, Stage::Starting { step, .. }) => {
                let step = step.clone();
                self.run(now, step)
            }
            (Event::Empty, Stage::Clearing { step, end, .. }) => {
                self.stage = Stage::Copying { step: step.clone(), end: end.clone(), until: now.after(OUTPUT_COPY_TIMEOUT) };
                Vec::new()
            }
            (Event::Copied, Stage::Copying { until, .. }) => {
                *until = now;
                self.handle_timeouts(now)
            }
            (Event::Named(named), Stage::Naming(commit)) if named == *commit => self.run(now, Step::Push(named)),
            (Event::Stop, Stage::Running { step, .. }) => {
                let step = step.clone();
                self.clear(now, step, End::Stopped)
            }
            (Event::Stop, Stage::Starting { step, .. }) => {
                let step = step.clone();
                self.end(&step, Err(Interruption::Stopped))
            }
            // A push that has succeeded stays one.
            (Event::Stop, Stage::Clearing { step, end, .. } | Stage::Copying { step, end, .. }) if !matches!(step, Step::Push(_)) => {
                *end = End::Stopped;
                Vec::new()
            }
            (Event::Stop, Stage::Naming(_)) => self.end_commit(Err(Interruption::Stopped)),
            (Event::Tick, _) => self.handle_timeouts(now),
            // The other events belong to a step that is over, or to other processes.
            (
                Event::Prepare
                | Event::Commit(_)
                | Event::NotStarted(_)
                | Event::Ended(_)
                | Event::Empty
                | Event::Copied
                | Event::Named(_)
                | Event::Stop,
                _,
            ) => Vec::new(),
        }
    }

    fn handle_timeouts(&mut self, now: BootTime) -> Vec<Action> {
        match &mut self.stage {
            Stage::Running { step, begun, until } if now >= *until => {
                let (step, limit) = (step.clone(), until.since(*begun));
                self.clear(now, step, End::TooLong(limit))
            }
            Stage::Starting { again, .. } | Stage::Clearing { again, .. } if now >= *again => {
                *again = now.after(KILL_INTERVAL);
                vec![Action::KillAll]
            }
            Stage::Copying { step, end, until } if now >= *until => {
                self.stage = Stage::Judging { step: step.clone(), end: end.clone() };
                vec![Action::Judge]
            }
            Stage::Idle
            | Stage::Starting { .. }
            | Stage::Running { .. }
            | Stage::Clearing { .. }
            | Stage::Copying { .. }
            | Stage::Judging { .. }
            | Stage::Naming(_) => Vec::new(),
        }
    }

    fn start(&mut self, now: BootTime, step: Step) -> Vec<Action> {
        self.stage = Stage::Starting { step, again: now.after(KILL_INTERVAL) };
        vec![Action::KillAll]
    }

    fn run(&mut self, now: BootTime, step: Step) -> Vec<Action> {
        let limit = match &step {
            Step::Prepare | Step::Commit(_) => GIT_TIMEOUT,
            Step::Verify => self.verify.unwrap_or_default(),
            Step::Push(_) => PUSH_TIMEOUT,
        };
        self.stage = Stage::Running { step: step.clone(), begun: now, until: now.after(limit) };
        vec![Action::Run(step)]
    }

    fn clear(&mut self, now: BootTime, step: Step, end: End) -> Vec<Action> {
        self.stage = Stage::Clearing { step, end, again: now.after(KILL_INTERVAL) };
        vec![Action::KillAll]
    }

    /// Judges the step that is over, of which `output` is the end of the standard output and `tail` the end of all output.
    pub fn judge(&mut self, now: BootTime, output: &str, tail: &str) -> Vec<Action> {
        let Stage::Judging { step, end } = std::mem::take(&mut self.stage) else { return Vec::new() };
        let how = match end {
            End::Stopped => return self.end(&step, Err(Interruption::Stopped)),
            End::Exit(Exit { code: 0, killed: false }) => return self.succeeded(now, step, output),
            End::Exit(Exit { code, killed: _ }) => format!("{} ended with exit code {code}", step.name()),
            End::TooLong(limit) => format!("{} did not end within {} s and was killed", step.name(), limit.as_secs()),
            End::NotStarted(why) => format!("{} was not started: {why}", step.name()),
        };
        // The end of the output has the cause.
        let room = MAX_MESSAGE_BYTES.saturating_sub(how.len() + ": ".len());
        let tail = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(room))..];
        let message = if tail.is_empty() { how } else { format!("{how}: {tail}") };
        self.end(&step, Err(Interruption::Failed(StepFailure::new(step.failure_reason(), message))))
    }

    fn succeeded(&mut self, now: BootTime, step: Step, output: &str) -> Vec<Action> {
        if let Step::Verify = step {
            return self.name_commit();
        }
        let result = output.lines().last().and_then(|line| serde_json::from_str(line).ok());
        match (&step, result) {
            (Step::Prepare, Some(StepResult::Prepared { base, seal })) => {
                (self.base, self.seal) = (Some(base), seal);
                self.end(&step, Ok(ChangesetReport::default()))
            }
            (Step::Commit(base), Some(StepResult::Unchanged)) => {
                let report = ChangesetReport { base: base.clone(), branch: self.branch.clone(), ..ChangesetReport::default() };
                self.end(&step, Ok(report))
            }
            (Step::Commit(_), Some(StepResult::Made { commit, report })) => {
                (self.commit, self.report) = (Some(commit), report);
                if self.verify.is_some() { self.run(now, Step::Verify) } else { self.name_commit() }
            }
            (Step::Push(_), Some(StepResult::Pushed)) => {
                let report = std::mem::take(&mut self.report);
                self.end(&step, Ok(report))
            }
            (_, Some(StepResult::Refused(failure))) => self.end(&step, Err(Interruption::Failed(failure))),
            (_, Some(_) | None) => {
                let message = format!("{} wrote no result (this is a fault of Spillway)", step.name());
                self.end(&step, Err(Interruption::Failed(StepFailure::new(step.failure_reason(), message))))
            }
        }
    }

    fn name_commit(&mut self) -> Vec<Action> {
        self.stage = self.commit.clone().map_or(Stage::Idle, Stage::Naming);
        Vec::new()
    }

    fn end(&mut self, step: &Step, ended: Result<ChangesetReport, Interruption>) -> Vec<Action> {
        match step {
            Step::Prepare => {
                self.stage = Stage::Idle;
                vec![Action::Prepared(ended.map(drop))]
            }
            Step::Commit(_) | Step::Verify | Step::Push(_) => self.end_commit(ended),
        }
    }

    fn end_commit(&mut self, ended: Result<ChangesetReport, Interruption>) -> Vec<Action> {
        (self.stage, self.commit) = (Stage::Idle, None);
        vec![Action::Committed(ended)]
    }

    /// The commit that may be pushed now.
    pub fn announced(&self) -> Option<PendingCommit> {
        match &self.stage {
            Stage::Naming(commit) => Some(commit.clone()),
            Stage::Running { step: Step::Push(commit), .. } => Some(commit.clone()),
            Stage::Idle
            | Stage::Starting { .. }
            | Stage::Running { .. }
            | Stage::Clearing { .. }
            | Stage::Copying { .. }
            | Stage::Judging { .. } => None,
        }
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Starting { again: at, .. }
            | Stage::Running { until: at, .. }
            | Stage::Clearing { again: at, .. }
            | Stage::Copying { until: at, .. } => Some(*at),
            Stage::Idle | Stage::Judging { .. } | Stage::Naming(_) => None,
        }
    }

    /// Whether it waits until no process is left.
    pub fn clearing(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. } | Stage::Clearing { .. })
    }

    /// Whether it waits for the last output.
    pub fn copying(&self) -> bool {
        matches!(self.stage, Stage::Copying { .. })
    }
}

#[cfg(test)]
#[path = "changeset_tests.rs"]
mod tests;
