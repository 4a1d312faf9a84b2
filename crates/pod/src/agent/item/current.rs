//! The item in hand: the stage of the work on it, and its outcome. It knows no other item.

use spillway_wire::work::{Assignment, Outcome};

use super::outcome::{cancelled, fail, lost, release};
use super::{Action, RunOutput};
use crate::agent::processes::Exit;
use crate::clock::BootTime;

/// How the last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exit(Exit),
    NotStarted(u8, String),
}

/// The stage of the work on an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The workspace is being prepared.
    Preparing,
    /// The program runs.
    Running,
    /// All processes were asked to end.
    Asked { kill_at: BootTime },
    /// All processes are being killed, without a time limit: the next item must not meet them.
    Killing { again: BootTime },
    /// The container is being ended by `Life`.
    Ending,
    /// The program ended, and the checkpoint hook still runs. No process is asked to end before the hook ends.
    WaitingForHook,
    /// The program failed during the pause of its item, or because of what the item is paused for. It runs again after the pause.
    Paused,
    /// No process is left. The last output and the last messages are read.
    Copying { since: BootTime, until: BootTime },
    /// The item is being concluded.
    Concluding,
    /// The changes of the program, which is done, are being committed.
    Committing,
    /// The item ended with this outcome, which must be reported to the sidecar.
    Over(Outcome),
}

/// The changeset of an item, as far as the item's stages depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangesetProgress {
    /// The workspace is a clone for this item.
    pub(super) prepared: bool,
    /// The program is done, with this result, and its changes are not committed yet.
    pub(super) uncommitted: Option<Option<String>>,
}

/// The item in hand.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) assignment: Box<Assignment>,
    pub(super) turn: u32,
    /// Turns after a pause. They do not count against the pool's turns.
    pub(super) resumed: u32,
    pub(super) reported: Option<Outcome>,
    pub(super) cancelled: bool,
    pub(super) lost: bool,
    /// The number of the pause that the item is in.
    pub(super) paused: Option<i64>,
    /// The number of the last pause with a checkpoint, and whether the hook runs.
    pub(super) checkpoint: Option<i64>,
    pub(super) hook: bool,
    /// The run was asked to end before it ended by itself.
    pub(super) interrupted: bool,
    /// The sidecar settled the item before the run was over.
    pub(super) settled: bool,
    pub(super) end: Option<End>,
    pub(super) changeset: ChangesetProgress,
    pub(super) stage: Stage,
}

impl Current {
    /// Asks the run to end, or brings its kill forward.
    pub(super) fn interrupt(&mut self, kill_at: BootTime, actions: &mut Vec<Action>) {
        self.interrupted |= self.end.is_none();
        match self.stage {
            Stage::Running | Stage::WaitingForHook => {
                self.stage = Stage::Asked { kill_at };
                actions.push(Action::AskAll);
            }
            Stage::Asked { kill_at: before } => self.stage = Stage::Asked { kill_at: kill_at.min(before) },
            Stage::Preparing | Stage::Committing => actions.push(Action::StopChangeset),
            Stage::Killing { .. } | Stage::Ending | Stage::Copying { .. } | Stage::Concluding | Stage::Paused | Stage::Over(_) => {}
        }
    }

    /// Runs the checkpoint hook, once for each pause.
    pub(super) fn ask_for_checkpoint(&mut self, actions: &mut Vec<Action>) {
        let Some(number) = self.paused.filter(|number| !self.hook && self.checkpoint != Some(*number)) else { return };
        // A step of the changeset must meet no other process.
        if matches!(self.stage, Stage::Preparing | Stage::Committing) {
            return;
        }
        (self.checkpoint, self.hook) = (Some(number), true);
        actions.push(Action::Checkpoint(number));
    }

    /// Whether the outcome only says that the program died, so that a paused item can be worked on again.
    pub(super) fn would_run_again(&self, outcome: &Outcome, long: bool) -> bool {
        let died = matches!(outcome, Outcome::Fail { exit_code: Some(_), .. }) && matches!(self.end, Some(End::Exit(_)));
        died && self.reported.is_none() && !long && !self.cancelled && !self.lost && !self.settled
    }

    pub(super) fn conclude(&mut self, actions: &mut Vec<Action>) {
        if !matches!(self.stage, Stage::Over(_) | Stage::Concluding) {
            self.stage = Stage::Concluding;
            actions.push(Action::Conclude);
        }
    }

    /// Whether the program ended with 0 without a report about the item, and has turns left.
    pub(super) fn has_turns_left(&self, max_turns: u32) -> bool {
        self.end == Some(End::Exit(Exit { code: 0, killed: false }))
            && self.reported.is_none()
            && self.turn.saturating_sub(self.resumed) < max_turns
    }

    /// The outcome of the item. It follows from the program's report, then from the orders, then from the end of the program. An
    /// item that is cancelled or drained is given back, unless it was done before.
    pub(super) fn outcome(&self, words: RunOutput, long: bool, draining: bool, max_turns: u32) -> Outcome {
        let RunOutput { result, output, tail } = words;
        // The run was cut short, or another run would have followed.
        let unfinished = self.interrupted || self.has_turns_left(max_turns);
        match (&self.reported, &self.end) {
            _ if self.lost => lost(),
            (Some(Outcome::Complete { result: said, .. }), _) => Outcome::Complete { result: said.clone().or(result), changeset: None },
            _ if self.cancelled && unfinished => cancelled(),
            (Some(said), _) => said.clone(),
            (None, None) => release("Drained", "the agent was ended"),
            (None, Some(End::NotStarted(code, why))) => fail("NotStarted", why, *code),
            (None, Some(End::Exit(exit))) => {
                let well = *exit == Exit { code: 0, killed: false };
                if draining && unfinished && (long || !well || self.has_turns_left(max_turns)) {
                    release("Drained", "the agent was ended")
                } else if well && long {
                    fail("Exited", "the program ended and did not report how its item ended", 0)
                } else if well {
                    Outcome::Complete { result: result.or(Some(output).filter(|output| !output.is_empty())), changeset: None }
                } else {
                    fail(if exit.killed { "Killed" } else { "Exited" }, &tail, exit.code)
                }
            }
        }
    }
}
