//! The changeset of the item in hand: when its clone is made, and when its changes are committed. This module neither makes nor
//! judges them: [`changeset`](crate::agent::changeset) does.

use spillway_wire::changeset::{ChangesetReport, ChangesetSettings, reasons};
use spillway_wire::work::Outcome;

use super::current::{Current, Stage};
use super::outcome::{cancelled, lost, release};
use super::{Action, Items};
use crate::agent::changeset::{Interruption, StepFailure};
use crate::clock::BootTime;

impl Items {
    /// How changesets are made, if the pool has them.
    pub fn changeset_settings(&self) -> Option<&ChangesetSettings> {
        self.how.as_ref()?.changeset.as_deref()
    }

    /// Whether the item in hand has a changeset.
    pub(super) fn has_changeset(&self) -> bool {
        self.per_item() && self.current.as_ref().is_some_and(|current| current.assignment.has_changeset())
    }

    /// Runs the program for the item in hand, after its workspace is prepared; or commits what the program has done.
    pub(super) fn begin(&mut self, actions: &mut Vec<Action>) {
        let (has_changeset, is_able) = (self.has_changeset(), self.changeset_settings().is_some());
        let Some(current) = &mut self.current else { return };
        if has_changeset && !is_able {
            let message = "this agent started before its pool had changesets. Delete the agent: its pool creates another one";
            current.stage = Stage::Over(failed(StepFailure::new(reasons::WORKSPACE_NOT_PREPARED, message)));
        } else if has_changeset && !current.changeset.prepared {
            current.stage = Stage::Preparing;
            actions.push(Action::Prepare);
        } else if current.changeset.uncommitted.is_some() {
            current.stage = Stage::Committing;
            actions.push(Action::Commit);
        } else {
            current.stage = Stage::Running;
            self.run(actions);
        }
    }

    /// The workspace is ready, or why not.
    pub(super) fn prepared(&mut self, now: BootTime, ended: Result<(), Interruption>, actions: &mut Vec<Action>) {
        let draining = self.draining;
        let Some(current) = self.current.as_mut().filter(|current| current.stage == Stage::Preparing) else { return };
        let outcome = match ended {
            _ if current.lost => lost(),
            _ if current.cancelled => cancelled(),
            Err(Interruption::Failed(_)) if current.paused.is_some() && !draining => {
                // The gateway refuses what a paused agent does.
                current.stage = Stage::Paused;
                current.ask_for_checkpoint(actions);
                return;
            }
            Err(Interruption::Failed(failure)) if !draining => failed(failure),
            Ok(()) if !draining => {
                current.changeset.prepared = true;
                if current.paused.is_some() {
                    current.stage = Stage::Paused;
                    current.ask_for_checkpoint(actions);
                } else {
                    self.begin(actions);
                }
                return;
            }
            Ok(()) | Err(_) => release("Drained", "the agent was ended"),
        };
        self.over(now, outcome, actions);
    }

    /// The changes are committed, or why not.
    pub(super) fn committed(&mut self, now: BootTime, ended: Result<ChangesetReport, Interruption>, actions: &mut Vec<Action>) {
        let draining = self.draining;
        let Some(current) = self.current.as_mut().filter(|current| current.stage == Stage::Committing) else { return };
        let outcome = match ended {
            _ if current.lost => lost(),
            Ok(report) => Outcome::Complete { result: current.changeset.uncommitted.take().flatten(), changeset: Some(Box::new(report)) },
            Err(_) if current.cancelled => cancelled(),
            Err(Interruption::Failed(_)) if current.paused.is_some() && !draining => {
                // The gateway refuses what a paused agent does.
                current.stage = Stage::Paused;
                current.ask_for_checkpoint(actions);
                return;
            }
            Err(Interruption::Failed(failure)) if !draining => failed(failure),
            Err(_) => drained_uncommitted(),
        };
        self.over(now, outcome, actions);
    }

    fn over(&mut self, now: BootTime, outcome: Outcome, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        current.stage = Stage::Over(outcome);
        if current.settled {
            self.forget(now, actions);
        }
    }

    /// The next stage of an item of which the program is done with this outcome: the changes of a success are committed first.
    pub(super) fn after_program(current: &mut Current, outcome: Outcome, draining: bool, actions: &mut Vec<Action>) -> Stage {
        match outcome {
            Outcome::Complete { .. } if draining || current.settled => Stage::Over(drained_uncommitted()),
            Outcome::Complete { result, changeset: _ } => {
                current.changeset.uncommitted = Some(result);
                actions.push(Action::Commit);
                Stage::Committing
            }
            Outcome::Fail { .. } | Outcome::Release { .. } => Stage::Over(outcome),
        }
    }
}

fn failed(failure: StepFailure) -> Outcome {
    let StepFailure { reason, message } = failure;
    Outcome::Fail { reason, message, exit_code: None }
}

/// The program is done, and the agent ends before the changes are pushed: another agent works on the item again.
fn drained_uncommitted() -> Outcome {
    release("Drained", "the agent was ended before the changes of the item were pushed")
}

#[cfg(test)]
#[path = "changeset_tests.rs"]
mod tests;
