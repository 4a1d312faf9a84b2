//! The item in hand: where the work on it is, and what it came to. Knows of no other item.

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

/// Where the work on an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The program runs.
    Running,
    /// Everything was asked to end.
    Asked { kill_at: BootTime },
    /// Everything is being killed, for as long as that takes: the next item must not meet it.
    Killing { again: BootTime },
    /// The container is being ended, by its life.
    Ending,
    /// The program ended, and the checkpoint hook has not: nothing is asked to end before.
    Hooked,
    /// The program ended badly while the item waits, or of what makes it wait: it is run again when that is over.
    Parked,
    /// Nothing is left; the last of the output is read, and of what was said.
    Copying { since: BootTime, until: BootTime },
    /// It is being concluded.
    Concluding,
    /// It ended so, which the sidecar has to be told.
    Over(Outcome),
}

/// The item in hand.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) assignment: Box<Assignment>,
    pub(super) turn: u32,
    /// Turns that were taken because the item went on after a pause: they are none of the pool's.
    pub(super) resumed: u32,
    pub(super) said: Option<Outcome>,
    pub(super) cancelled: bool,
    pub(super) lost: bool,
    /// The pause that it waits for the end of.
    pub(super) paused: Option<i64>,
    /// The last pause for which a checkpoint was asked, and whether its hook runs.
    pub(super) checkpoint: Option<i64>,
    pub(super) hook: bool,
    /// The run was asked to end before it ended by itself.
    pub(super) interrupted: bool,
    /// The sidecar settled it before it was over.
    pub(super) settled: bool,
    pub(super) end: Option<End>,
    pub(super) stage: Stage,
}

impl Current {
    /// Asks the run to end, or hastens its end.
    pub(super) fn interrupt(&mut self, kill_at: BootTime, actions: &mut Vec<Action>) {
        self.interrupted |= self.end.is_none();
        match self.stage {
            Stage::Running | Stage::Hooked => {
                self.stage = Stage::Asked { kill_at };
                actions.push(Action::AskAll);
            }
            Stage::Asked { kill_at: before } => self.stage = Stage::Asked { kill_at: kill_at.min(before) },
            Stage::Killing { .. } | Stage::Ending | Stage::Copying { .. } | Stage::Concluding | Stage::Parked | Stage::Over(_) => {}
        }
    }

    /// Has it written down where the work is, once for each pause.
    pub(super) fn ask_for_checkpoint(&mut self, actions: &mut Vec<Action>) {
        let Some(number) = self.paused.filter(|number| !self.hook && self.checkpoint != Some(*number)) else { return };
        (self.checkpoint, self.hook) = (Some(number), true);
        actions.push(Action::Checkpoint(number));
    }

    /// This end is how its program died, and nothing that anybody said of the item: one that waits can be worked on again.
    pub(super) fn would_run_again(&self, outcome: &Outcome, long: bool) -> bool {
        let died = matches!(outcome, Outcome::Fail { exit_code: Some(_), .. }) && matches!(self.end, Some(End::Exit(_)));
        died && self.said.is_none() && !long && !self.cancelled && !self.lost && !self.settled
    }

    pub(super) fn conclude(&mut self, actions: &mut Vec<Action>) {
        if !matches!(self.stage, Stage::Over(_) | Stage::Concluding) {
            self.stage = Stage::Concluding;
            actions.push(Action::Conclude);
        }
    }

    /// It ended well without a word about the item, and may be run again.
    pub(super) fn again(&self, max_turns: u32) -> bool {
        self.end == Some(End::Exit(Exit { code: 0, killed: false }))
            && self.said.is_none()
            && self.turn.saturating_sub(self.resumed) < max_turns
    }

    /// How the item ended: by what was said of it, by what was wanted, by how its program ended; in this order, but that
    /// what is cancelled or drained is given back unless it was done before.
    pub(super) fn outcome(&self, words: RunOutput, long: bool, draining: bool, max_turns: u32) -> Outcome {
        let RunOutput { result, output, tail } = words;
        // Another run would have followed, or this one was cut short.
        let unfinished = self.interrupted || self.again(max_turns);
        match (&self.said, &self.end) {
            _ if self.lost => lost(),
            (Some(Outcome::Complete { result: said }), _) => Outcome::Complete { result: said.clone().or(result) },
            _ if self.cancelled && unfinished => cancelled(),
            (Some(said), _) => said.clone(),
            (None, None) => release("Drained", "the agent was ended"),
            (None, Some(End::NotStarted(code, why))) => fail("NotStarted", why, *code),
            (None, Some(End::Exit(exit))) => {
                let well = *exit == Exit { code: 0, killed: false };
                if draining && unfinished && (long || !well || self.again(max_turns)) {
                    release("Drained", "the agent was ended")
                } else if well && long {
                    fail("Exited", "the program ended and did not report how its item ended", 0)
                } else if well {
                    Outcome::Complete { result: result.or(Some(output).filter(|output| !output.is_empty())) }
                } else {
                    fail(if exit.killed { "Killed" } else { "Exited" }, &tail, exit.code)
                }
            }
        }
    }
}
