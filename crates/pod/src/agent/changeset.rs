//! The changeset of the item in hand, as the supervisor decides it: a clone or a copy before the program runs, and a checked and
//! pushed commit, or changes of the folder, after it. Pure: events and the time come in, actions go out.
//!
//! What always holds: no process of a program runs beside a step, and none of a step runs beside the next one
//! ([`command_run`](super::command_run)). A commit is announced only while it may be pushed, and pushed only after the sidecar
//! names it to the gateway. This module must not decide how the item ends: [`item`](super::item) does.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_wire::changeset::{ChangesetReport, PendingCommit, reasons};

use super::command_run::{CommandRun, RunAction, RunEnd, RunEvent};
use crate::clock::BootTime;

/// Time limit of a clone or a copy, and of a commit.
const GIT_TIMEOUT: Duration = Duration::from_secs(900);
/// Time limit of a push, as the gateway's, and of changes of a folder.
const PUSH_TIMEOUT: Duration = Duration::from_secs(3600);
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
    /// The workspace is a clone at this commit, or a copy with this manifest.
    Prepared {
        /// The commit, or SHA-256 of the manifest.
        base: String,
        /// The seal of the mirror. Empty: there is none.
        seal: String,
    },
    /// No file was changed: the report has no commit.
    Unchanged(ChangesetReport),
    /// This commit may be pushed.
    Made {
        /// The commit.
        commit: PendingCommit,
        /// What it changes.
        report: ChangesetReport,
    },
    /// The commit is on the branch, or the changes are made in the folder.
    Pushed,
    /// The changes are refused.
    Refused(StepFailure),
}

/// A process that runs for a changeset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the clone or the copy.
    Prepare,
    /// Make the commit, on this base.
    Commit(String),
    /// Run the pool's command.
    Verify,
    /// Push the commit, or make the changes in the folder.
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
            Self::Prepare => "the preparation of the workspace (spec.workspace)",
            Self::Commit(_) => "the commit of the changes",
            Self::Verify => "the verify command (spec.sandbox.changeset.verify)",
            Self::Push(_) => "the delivery of the changes",
        }
    }
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// A step runs, or its end is being judged.
    Step(Step, CommandRun),
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
    /// The commit, once it is made.
    made: Option<(PendingCommit, ChangesetReport)>,
    /// Time limit of the pool's command, if there is one.
    verify: Option<Duration>,
    stage: Stage,
}

impl Changeset {
    /// The seal of the mirror, as the last clone left it; empty: there was none.
    pub fn seal(&self) -> &str {
        &self.seal
    }

    /// An item begins: its clone is made.
    pub fn prepare(&mut self, now: BootTime) -> Vec<Action> {
        (self.base, self.made) = (None, None);
        self.begin(now, Step::Prepare)
    }

    /// The program of the item is done: its changes are committed. `verify` is the time limit of the pool's command, if there is one.
    pub fn commit(&mut self, now: BootTime, verify: Option<Duration>) -> Vec<Action> {
        (self.verify, self.made) = (verify, None);
        match self.base.clone() {
            Some(base) => self.begin(now, Step::Commit(base)),
            // Unreachable: an item is committed only after its clone was made.
            None => vec![Action::Committed(Err(Interruption::Stopped))],
        }
    }

    /// The sidecar names this commit to the gateway. A sidecar that was started anew repeats it.
    pub fn named(&mut self, now: BootTime, commit: &PendingCommit) -> Vec<Action> {
        if self.stage != Stage::Naming(commit.clone()) {
            return Vec::new();
        }
        self.begin(now, Step::Push(commit.clone()))
    }

    /// The work on the item is to stop.
    pub fn stop(&mut self, now: BootTime) -> Vec<Action> {
        match &self.stage {
            // A push that has succeeded stays one.
            Stage::Step(Step::Push(_), run) if run.has_ended() => Vec::new(),
            Stage::Step(..) => self.on(now, RunEvent::Stop),
            Stage::Naming(_) => self.end_commit(Err(Interruption::Stopped)),
            Stage::Idle => Vec::new(),
        }
    }

    /// Takes an event of a step; returns the actions.
    pub fn on(&mut self, now: BootTime, event: RunEvent) -> Vec<Action> {
        let Stage::Step(step, run) = &mut self.stage else { return Vec::new() };
        let action = run.on(now, event).map(|action| match action {
            RunAction::Start => Action::Run(step.clone()),
            RunAction::KillAll => Action::KillAll,
            RunAction::Judge => Action::Judge,
        });
        action.into_iter().collect()
    }

    /// Begins a step, when no process that others left behind is there, such as those of a hook.
    fn begin(&mut self, now: BootTime, step: Step) -> Vec<Action> {
        let limit = match &step {
            Step::Prepare | Step::Commit(_) => GIT_TIMEOUT,
            Step::Verify => self.verify.unwrap_or_default(),
            Step::Push(_) => PUSH_TIMEOUT,
        };
        self.stage = Stage::Step(step, CommandRun::after_others(now, limit));
        vec![Action::KillAll]
    }

    /// Judges the step that is over, of which `output` is the end of the standard output and `tail` the end of all output.
    pub fn judge(&mut self, now: BootTime, output: &str, tail: &str) -> Vec<Action> {
        let Stage::Step(step, run) = std::mem::take(&mut self.stage) else { return Vec::new() };
        if run.end() == Some(&RunEnd::Stopped) {
            return self.end(&step, Err(Interruption::Stopped));
        }
        let Some(how) = run.failure(step.name()) else { return self.succeeded(now, step, output) };
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
            (Step::Commit(_), Some(StepResult::Unchanged(report))) => self.end(&step, Ok(report)),
            (Step::Commit(_), Some(StepResult::Made { commit, report })) => {
                self.made = Some((commit, report));
                if self.verify.is_some() { self.begin(now, Step::Verify) } else { self.name_commit() }
            }
            (Step::Push(_), Some(StepResult::Pushed)) => {
                let report = self.made.take().map(|(_, report)| report);
                self.end(&step, Ok(report.unwrap_or_default()))
            }
            (_, Some(StepResult::Refused(failure))) => self.end(&step, Err(Interruption::Failed(failure))),
            (_, Some(_) | None) => {
                let message = format!("{} wrote no result (this is a fault of Spillway)", step.name());
                self.end(&step, Err(Interruption::Failed(StepFailure::new(step.failure_reason(), message))))
            }
        }
    }

    fn name_commit(&mut self) -> Vec<Action> {
        self.stage = self.made.as_ref().map_or(Stage::Idle, |(commit, _)| Stage::Naming(commit.clone()));
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
        (self.stage, self.made) = (Stage::Idle, None);
        vec![Action::Committed(ended)]
    }

    /// The commit that may be pushed now.
    pub fn announced(&self) -> Option<PendingCommit> {
        match &self.stage {
            Stage::Naming(commit) => Some(commit.clone()),
            Stage::Step(Step::Push(commit), run) if !run.has_ended() => Some(commit.clone()),
            Stage::Idle | Stage::Step(..) => None,
        }
    }

    fn run(&self) -> Option<&CommandRun> {
        match &self.stage {
            Stage::Step(_, run) => Some(run),
            Stage::Idle | Stage::Naming(_) => None,
        }
    }

    /// When [`RunEvent::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        self.run()?.wake()
    }

    /// Whether it waits until no process is left.
    pub fn clearing(&self) -> bool {
        self.run().is_some_and(CommandRun::clearing)
    }

    /// Whether it waits for the last output.
    pub fn copying(&self) -> bool {
        self.run().is_some_and(CommandRun::copying)
    }
}

#[cfg(test)]
#[path = "changeset_tests.rs"]
mod tests;
