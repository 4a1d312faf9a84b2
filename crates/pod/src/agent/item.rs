//! The item that an agent works on, as its supervisor decides it. Pure: events and the time come in, actions go out.
//!
//! What always holds: the work on a lease begins once. The program runs again, for this item or the next, only when no process
//! of its last run is left in the container. The end of an item is reported until the sidecar settles it. While the container
//! itself ends, [`life`](super::life) signals the processes, and this module only keeps the state of the item.

mod changeset;
mod current;
mod orders;
mod outcome;

use std::time::Duration;

use spillway_wire::agent::{Input, Run, Settings, WorkSettings};
use spillway_wire::changeset::ChangesetReport;
use spillway_wire::work::{Assignment, ItemOrder, ItemWanted, LeaseRef, Outcome};

use super::changeset::Interruption;
use super::processes::Exit;
use crate::clock::BootTime;
use current::{ChangesetProgress, Current, End, Stage};
use outcome::{cancelled, lost, release};

pub use outcome::result_of;

/// From SIGTERM to SIGKILL, for processes that a run leaves behind, and for a program whose item belongs to another agent.
const SHORT_KILL_GRACE: Duration = Duration::from_secs(2);
/// From SIGTERM to SIGKILL, for a program whose item was cancelled, unless the pool's grace period is shorter.
const CANCEL_KILL_GRACE: Duration = Duration::from_secs(10);
/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for copying the last output of a run. The reader of our output may be slow.
const OUTPUT_COPY_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait after the end of the last process, before its end is judged: a message that the program sent to the sidecar may still be
/// on its way to us. The socket is read before a timer fires.
const LAST_REPORT_GRACE: Duration = Duration::from_millis(2);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sidecar gives an item.
    Take(Box<Assignment>),
    /// The order about an item.
    Wanted(Option<ItemWanted>),
    /// The program reported the end of its item.
    ReportedByProgram(LeaseRef, Outcome),
    /// The sidecar needs no more reports about this lease.
    Settled(LeaseRef),
    /// The program ended.
    Ended(Exit),
    /// The program could not be started: the exit code that a shell would give, and why.
    NotStarted(u8, String),
    /// No process is left but the supervisor.
    Empty,
    /// All output of the run was read.
    Copied,
    /// The container is being ended.
    Draining,
    /// The supervisor leaves.
    Leave,
    /// The checkpoint hook ended, or there is none.
    CheckpointEnded,
    /// The workspace of the item is ready, or why not.
    Prepared(Result<(), Interruption>),
    /// The changes of the item are committed, or why not.
    Committed(Result<ChangesetReport, Interruption>),
    /// Time passed.
    Tick,
}

/// An action for the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the program for the item.
    Run {
        /// The number of the run, from 1.
        turn: u32,
        /// The task, or the prompt to continue.
        text: String,
        /// How the text reaches the program.
        input: Input,
    },
    /// Ask all processes to end.
    AskAll,
    /// Kill all processes.
    KillAll,
    /// Read the output of the run, and [conclude](Items::conclude) the item.
    Conclude,
    /// Send the program a notice.
    Notice(&'static str, String),
    /// Run the checkpoint hook, for the pause of this number.
    Checkpoint(i64),
    /// Make the clone of the item.
    Prepare,
    /// Commit the changes of the item.
    Commit,
    /// Stop the work on the changeset of the item.
    StopChangeset,
}

/// The output of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOutput {
    /// The result file.
    pub result: Option<String>,
    /// The end of standard output.
    pub output: String,
    /// The end of standard output and standard error.
    pub tail: String,
}

/// The supervisor's state of its items.
#[derive(Clone, Debug, Default)]
pub struct Items {
    how: Option<WorkSettings>,
    grace: Duration,
    wanted: Option<ItemWanted>,
    current: Option<Current>,
    /// An item that came while another was in hand.
    next: Option<Box<Assignment>>,
    draining: bool,
}

impl Items {
    /// Takes the settings of the agent's work, as the sidecar sends them.
    pub fn settings(&mut self, settings: &Settings) {
        self.how.clone_from(&settings.work);
        self.grace = Duration::from_secs(settings.goodbye_timeout_seconds.into());
    }

    /// Whether the program runs once for each item.
    pub fn per_item(&self) -> bool {
        self.how.as_ref().is_some_and(|how| how.run == Run::PerItem)
    }

    /// The lease in hand, until it is settled.
    pub fn held(&self) -> Option<LeaseRef> {
        self.current.as_ref().map(|current| current.assignment.held.clone())
    }

    /// The item in hand.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.current.as_ref().map(|current| &*current.assignment)
    }

    /// The end of the item, which must be reported to the sidecar.
    pub fn finished(&self) -> Option<(LeaseRef, Outcome)> {
        match self.current.as_ref() {
            Some(Current { assignment, stage: Stage::Over(outcome), .. }) => Some((assignment.held.clone(), outcome.clone())),
            Some(_) | None => None,
        }
    }

    /// Whether the item waits until no process is left.
    pub fn clearing(&self) -> bool {
        self.current.as_ref().is_some_and(|current| matches!(current.stage, Stage::Asked { .. } | Stage::Killing { .. }))
    }

    /// Whether the item waits for the last output, and [`Event::Copied`] has not come yet.
    pub fn copying(&self) -> bool {
        let stage = self.current.as_ref().map(|current| &current.stage);
        matches!(stage, Some(Stage::Copying { since, until }) if *until > since.after(LAST_REPORT_GRACE))
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match self.current.as_ref()?.stage {
            Stage::Asked { kill_at: at } | Stage::Killing { again: at } | Stage::Copying { since: _, until: at } => Some(at),
            Stage::Preparing
            | Stage::Running
            | Stage::WaitingForHook
            | Stage::Paused
            | Stage::Ending
            | Stage::Concluding
            | Stage::Committing
            | Stage::Over(_) => None,
        }
    }

    /// Takes an event; returns the actions.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Take(assignment) => self.take(now, assignment, &mut actions),
            Event::Wanted(wanted) => {
                self.wanted = wanted;
                self.obey(now, &mut actions);
            }
            Event::ReportedByProgram(held, outcome) => {
                if let Some(current) = self.current_with_lease(&held) {
                    current.reported = Some(outcome);
                }
            }
            Event::Settled(held) => self.settled(now, &held, &mut actions),
            Event::Ended(exit) => self.ended(now, exit, &mut actions),
            Event::NotStarted(code, why) => {
                if let Some(current) = &mut self.current {
                    current.end = Some(End::NotStarted(code, why));
                    current.conclude(&mut actions);
                }
            }
            Event::Empty => {
                if let Some(current) = &mut self.current
                    && matches!(current.stage, Stage::Asked { .. } | Stage::Killing { .. })
                {
                    current.stage = Stage::Copying { since: now, until: now.after(OUTPUT_COPY_TIMEOUT) };
                }
            }
            Event::Copied => {
                if let Some(Current { stage: Stage::Copying { since, until }, .. }) = &mut self.current {
                    *until = since.after(LAST_REPORT_GRACE);
                }
            }
            Event::Draining => self.drain(&mut actions),
            Event::Leave => {
                self.draining = true;
                if let Some(current) = &mut self.current {
                    current.conclude(&mut actions);
                }
            }
            Event::CheckpointEnded => self.checkpointed(now, &mut actions),
            Event::Prepared(ended) => self.prepared(now, ended, &mut actions),
            Event::Committed(ended) => self.committed(now, ended, &mut actions),
            Event::Tick => self.handle_timeouts(now, &mut actions),
        }
        actions
    }

    /// Concludes the item with the output of its run; returns the next actions.
    pub fn conclude(&mut self, now: BootTime, words: RunOutput) -> Vec<Action> {
        let mut actions = Vec::new();
        let long = !self.per_item();
        let draining = self.draining;
        let max_turns = self.max_turns();
        let has_changeset = self.has_changeset();
        let Some(current) = &mut self.current else { return actions };
        let outcome = current.outcome(words, long, draining, max_turns);
        let waits = current.paused.is_some() && !draining && current.would_run_again(&outcome, long);
        current.stage = match outcome {
            _ if waits => Stage::Paused,
            outcome if has_changeset => Self::after_program(current, outcome, draining, &mut actions),
            outcome => Stage::Over(outcome),
        };
        if current.stage == Stage::Committing {
            return actions;
        }
        if current.settled {
            self.forget(now, &mut actions);
        }
        actions
    }

    fn max_turns(&self) -> u32 {
        self.how.as_ref().map_or(1, |how| how.max_turns)
    }

    fn current_with_lease(&mut self, held: &LeaseRef) -> Option<&mut Current> {
        self.current.as_mut().filter(|current| current.assignment.held == *held)
    }

    fn take(&mut self, now: BootTime, assignment: Box<Assignment>, actions: &mut Vec<Action>) {
        if self.how.is_none() || self.current_with_lease(&assignment.held).is_some() {
            return; // the sidecar repeated it
        }
        if self.current.is_some() {
            self.next = Some(assignment);
            return;
        }
        self.current = Some(Current {
            assignment,
            turn: 1,
            resumed: 0,
            reported: None,
            cancelled: false,
            lost: false,
            paused: None,
            checkpoint: None,
            hook: false,
            interrupted: false,
            settled: false,
            end: None,
            changeset: ChangesetProgress::default(),
            stage: Stage::Running,
        });
        let per_item = self.per_item();
        if let (true, Some(current)) = (self.draining, &mut self.current) {
            current.stage = Stage::Over(release("Drained", "the agent is being ended"));
            return;
        }
        // An item that is cancelled, lost or paused before its first run is not begun.
        if per_item && let Some(order) = self.order() {
            let stage = match order {
                ItemOrder::Cancel => Stage::Over(cancelled()),
                ItemOrder::Lost => Stage::Over(lost()),
                ItemOrder::Pause(_) => Stage::Paused,
            };
            self.current.iter_mut().for_each(|current| current.stage = stage.clone());
            self.obey(now, actions);
        } else if per_item {
            self.begin(actions);
        } else {
            self.obey(now, actions);
        }
    }

    /// Runs the program for the item in hand.
    fn run(&self, actions: &mut Vec<Action>) {
        let (Some(how), Some(current)) = (&self.how, &self.current) else { return };
        let anew = current.turn == 1 || how.continue_prompt.is_empty();
        let text = if anew { &current.assignment.payload } else { &how.continue_prompt };
        actions.push(Action::Run { turn: current.turn, text: text.clone(), input: how.input });
    }

    fn ended(&mut self, now: BootTime, exit: Exit, actions: &mut Vec<Action>) {
        let long = !self.per_item();
        let Some(current) = &mut self.current else { return };
        if matches!(current.stage, Stage::Over(_) | Stage::Concluding | Stage::Paused | Stage::Preparing | Stage::Committing) {
            return;
        }
        current.end = Some(End::Exit(exit));
        if current.stage == Stage::Running {
            if current.hook && !long {
                current.stage = Stage::WaitingForHook;
            } else if long {
                // The container ends with a program that runs all the time.
                current.stage = Stage::Ending;
            } else {
                current.stage = Stage::Asked { kill_at: now.after(SHORT_KILL_GRACE) };
                actions.push(Action::AskAll);
            }
        }
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        match current.stage {
            Stage::Running | Stage::WaitingForHook | Stage::Asked { .. } | Stage::Killing { .. } => {
                current.interrupted |= current.end.is_none();
                current.stage = Stage::Ending;
            }
            Stage::Paused => current.stage = Stage::Over(release("Drained", "the agent is being ended")),
            Stage::Preparing | Stage::Committing => actions.push(Action::StopChangeset),
            Stage::Ending | Stage::Copying { .. } | Stage::Concluding | Stage::Over(_) => {}
        }
    }

    /// No process of the run is left: runs the program again, or concludes the item.
    fn decide(&mut self, actions: &mut Vec<Action>) {
        let (draining, max_turns) = (self.draining, self.max_turns());
        let Some(current) = &mut self.current else { return };
        if current.has_turns_left(max_turns) && !current.cancelled && !current.lost && !draining {
            current.turn += 1;
            current.end = None;
            current.stage = Stage::Running;
            self.run(actions);
        } else {
            current.conclude(actions);
        }
    }

    fn settled(&mut self, now: BootTime, held: &LeaseRef, actions: &mut Vec<Action>) {
        let long = !self.per_item();
        let Some(current) = self.current_with_lease(held) else { return };
        if long || matches!(current.stage, Stage::Over(_)) {
            return self.forget(now, actions);
        }
        // The sidecar needs no more reports, and the program still runs.
        (current.settled, current.lost) = (true, true);
        current.interrupt(now.after(SHORT_KILL_GRACE), actions);
    }

    fn forget(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        self.current = None;
        if let Some(next) = self.next.take() {
            self.take(now, next, actions);
        }
    }

    /// Takes the actions that are due by time alone.
    fn handle_timeouts(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        match current.stage {
            Stage::Asked { kill_at: at } | Stage::Killing { again: at } if now >= at => {
                current.stage = Stage::Killing { again: now.after(KILL_INTERVAL) };
                actions.push(Action::KillAll);
            }
            Stage::Copying { since: _, until } if now >= until => self.decide(actions),
            Stage::Preparing
            | Stage::Running
            | Stage::WaitingForHook
            | Stage::Paused
            | Stage::Asked { .. }
            | Stage::Killing { .. }
            | Stage::Ending
            | Stage::Copying { .. }
            | Stage::Concluding
            | Stage::Committing
            | Stage::Over(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;
