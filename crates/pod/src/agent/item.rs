//! The item that an agent works on, as its supervisor decides it. Pure: events and the time come in, actions go out.
//!
//! What always holds: a lease is worked on once; the program is run again, for this item or the next, only when nothing of
//! its last run is left in the container; how an item ended is said until the sidecar settles it. While the container itself
//! ends, [`life`](super::life) asks and kills, and this only keeps book.

use std::time::Duration;

use spillway_wire::agent::{Input, Run, Settings, WorkSettings};
use spillway_wire::work::{Assignment, ItemOrder, ItemWanted, LeaseRef, MAX_RESULT_BYTES, Outcome};

use super::processes::Exit;
use crate::clock::BootTime;

/// From being asked to being killed: of what a run leaves behind, and of a program whose item is another's by now.
const SHORT: Duration = Duration::from_secs(2);
/// The same of a program whose item was cancelled, unless the pool's grace is shorter.
const CANCELLED_WITHIN: Duration = Duration::from_secs(10);
/// Between two kills of everything.
const KILL_EACH: Duration = Duration::from_millis(50);
/// For the last of a run's output, which others read as slowly as they like.
const COPY_WITHIN: Duration = Duration::from_secs(2);
/// So long after the last process is gone its end is not judged: what it told the sidecar before may be on its way to us, in
/// the socket, which is read before a timer fires.
const LISTEN: Duration = Duration::from_millis(2);
/// The most characters of a message.
const MAX_MESSAGE: usize = 1024;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sidecar says what to work on.
    Take(Box<Assignment>),
    /// What is wanted of an item.
    Wanted(Option<ItemWanted>),
    /// The program said how its item ended.
    Said(LeaseRef, Outcome),
    /// The sidecar needs to hear no more of this lease.
    Settled(LeaseRef),
    /// The program ended.
    Ended(Exit),
    /// The program could not be started: the exit code that a shell would give, and why.
    NotStarted(u8, String),
    /// No process is left but the supervisor.
    Empty,
    /// All that the run wrote was read.
    Copied,
    /// The container is being ended.
    Draining,
    /// The supervisor leaves.
    Leave,
    /// The checkpoint hook ended, or there is none.
    CheckpointEnded,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the program: for the how-manieth time, with what, and how it gets that.
    Run {
        /// From 1.
        turn: u32,
        /// The task, or the prompt to go on.
        text: String,
        /// How it reaches the program.
        input: Input,
    },
    /// Ask everything to end.
    AskAll,
    /// Kill everything.
    KillAll,
    /// Read what the item came to, and [conclude](Items::conclude).
    Conclude,
    /// Let the program know.
    Notice(&'static str, String),
    /// Have it written down where the work is, for the pause of this number.
    Checkpoint(i64),
}

/// What a run left to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOutput {
    /// The result file.
    pub result: Option<String>,
    /// The end of standard output.
    pub output: String,
    /// The end of standard output and standard error.
    pub tail: String,
}

/// How the last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Exit(Exit),
    NotStarted(u8, String),
}

/// Where the work on an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
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
struct Current {
    assignment: Box<Assignment>,
    turn: u32,
    /// Turns that were taken because the item went on after a pause: they are none of the pool's.
    resumed: u32,
    said: Option<Outcome>,
    cancelled: bool,
    lost: bool,
    /// The pause that it waits for the end of.
    paused: Option<i64>,
    /// The last pause for which a checkpoint was asked, and whether its hook runs.
    checkpoint: Option<i64>,
    hook: bool,
    /// The run was asked to end before it ended by itself.
    interrupted: bool,
    /// The sidecar settled it before it was over.
    settled: bool,
    end: Option<End>,
    stage: Stage,
}

/// The supervisor's book of items.
#[derive(Clone, Debug, Default)]
pub struct Items {
    how: Option<WorkSettings>,
    grace: Duration,
    wanted: Option<ItemWanted>,
    current: Option<Current>,
    /// Came while another was in hand.
    next: Option<Box<Assignment>>,
    draining: bool,
}

impl Items {
    /// How the agent works, as the sidecar says it.
    pub fn settings(&mut self, settings: &Settings) {
        self.how.clone_from(&settings.work);
        self.grace = Duration::from_secs(settings.goodbye_timeout_seconds.into());
    }

    /// The program is run for each item.
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

    /// The end that the sidecar has to be told.
    pub fn finished(&self) -> Option<(LeaseRef, Outcome)> {
        match self.current.as_ref() {
            Some(Current { assignment, stage: Stage::Over(outcome), .. }) => Some((assignment.held.clone(), outcome.clone())),
            Some(_) | None => None,
        }
    }

    /// It matters that no process is left.
    pub fn clearing(&self) -> bool {
        self.current.as_ref().is_some_and(|current| matches!(current.stage, Stage::Asked { .. } | Stage::Killing { .. }))
    }

    /// It matters that all output was read, and that was not said yet.
    pub fn copying(&self) -> bool {
        let stage = self.current.as_ref().map(|current| &current.stage);
        matches!(stage, Some(Stage::Copying { since, until }) if *until > since.after(LISTEN))
    }

    /// When to say [`Event::Tick`] at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match self.current.as_ref()?.stage {
            Stage::Asked { kill_at: at } | Stage::Killing { again: at } | Stage::Copying { since: _, until: at } => Some(at),
            Stage::Running | Stage::Hooked | Stage::Parked | Stage::Ending | Stage::Concluding | Stage::Over(_) => None,
        }
    }

    /// Takes what happened; says what is to be done.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Take(assignment) => self.take(now, assignment, &mut actions),
            Event::Wanted(wanted) => {
                self.wanted = wanted;
                self.obey(now, &mut actions);
            }
            Event::Said(held, outcome) => {
                if let Some(current) = self.named(&held) {
                    current.said = Some(outcome);
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
                    current.stage = Stage::Copying { since: now, until: now.after(COPY_WITHIN) };
                }
            }
            Event::Copied => {
                if let Some(Current { stage: Stage::Copying { since, until }, .. }) = &mut self.current {
                    *until = since.after(LISTEN);
                }
            }
            Event::Draining => self.drain(),
            Event::Leave => {
                if let Some(current) = &mut self.current {
                    current.conclude(&mut actions);
                }
            }
            Event::CheckpointEnded => self.checkpointed(now, &mut actions),
            Event::Tick => self.pass(now, &mut actions),
        }
        actions
    }

    /// The item that is concluded came to this. Says what is to be done next.
    pub fn conclude(&mut self, now: BootTime, words: RunOutput) -> Vec<Action> {
        let mut actions = Vec::new();
        let long = !self.per_item();
        let draining = self.draining;
        let max_turns = self.max_turns();
        let Some(current) = &mut self.current else { return actions };
        let outcome = current.outcome(words, long, draining, max_turns);
        let waits = current.paused.is_some() && !draining && current.would_run_again(&outcome, long);
        current.stage = if waits { Stage::Parked } else { Stage::Over(outcome) };
        if current.settled {
            self.forget(now, &mut actions);
        }
        actions
    }

    fn max_turns(&self) -> u32 {
        self.how.as_ref().map_or(1, |how| how.max_turns)
    }

    fn named(&mut self, held: &LeaseRef) -> Option<&mut Current> {
        self.current.as_mut().filter(|current| current.assignment.held == *held)
    }

    fn take(&mut self, now: BootTime, assignment: Box<Assignment>, actions: &mut Vec<Action>) {
        if self.how.is_none() || self.named(&assignment.held).is_some() {
            return; // said again
        }
        if self.current.is_some() {
            self.next = Some(assignment);
            return;
        }
        self.current = Some(Current {
            assignment,
            turn: 1,
            resumed: 0,
            said: None,
            cancelled: false,
            lost: false,
            paused: None,
            checkpoint: None,
            hook: false,
            interrupted: false,
            settled: false,
            end: None,
            stage: Stage::Running,
        });
        let per_item = self.per_item();
        if let (true, Some(current)) = (self.draining, &mut self.current) {
            current.stage = Stage::Over(release("Drained", "the agent is being ended"));
            return;
        }
        // One that is over before it began is not begun, nor one that waits.
        if per_item && let Some(order) = self.order() {
            let stage = match order {
                ItemOrder::Cancel => Stage::Over(cancelled()),
                ItemOrder::Lost => Stage::Over(lost()),
                ItemOrder::Pause(_) => Stage::Parked,
            };
            self.current.iter_mut().for_each(|current| current.stage = stage.clone());
            self.obey(now, actions);
        } else if per_item {
            self.run(actions);
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

    /// What is wanted of the item in hand.
    fn order(&self) -> Option<ItemOrder> {
        let (current, wanted) = (self.current.as_ref()?, self.wanted.as_ref()?);
        (wanted.held == current.assignment.held).then_some(wanted.order)
    }

    fn obey(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let order = self.order();
        if let Some(ItemOrder::Pause(number)) = order {
            return self.wait(number, actions);
        }
        if self.current.as_mut().is_some_and(|current| current.paused.take().is_some()) {
            self.go_on(order, actions);
        }
        let Some(order) = order else { return };
        let (long, grace) = (!self.per_item(), self.grace);
        let Some(current) = &mut self.current else { return };
        if matches!(current.stage, Stage::Over(_) | Stage::Concluding) {
            return;
        }
        let known = match order {
            ItemOrder::Cancel => std::mem::replace(&mut current.cancelled, true),
            ItemOrder::Lost => std::mem::replace(&mut current.lost, true),
            ItemOrder::Pause(_) => true,
        };
        if known {
            return;
        }
        let name = &current.assignment.name;
        match (long, order) {
            (true, ItemOrder::Cancel) => {
                let text = format!("{name} was cancelled, or its deadline passed: stop working on it and say `spillway work release`");
                actions.push(Action::Notice("ItemCancelled", text));
            }
            (true, ItemOrder::Lost) => {
                let text = format!("{name} is not yours any more: stop working on it, nothing that you say of it counts");
                actions.push(Action::Notice("ItemLost", text));
                self.forget(now, actions);
            }
            (false, ItemOrder::Cancel) => current.interrupt(now.after(grace.min(CANCELLED_WITHIN)), actions),
            (false, ItemOrder::Lost) => current.interrupt(now.after(SHORT), actions),
            (_, ItemOrder::Pause(_)) => {}
        }
    }

    /// The item waits: it is written down where it is, and all that runs goes on. An end that was its program's dying of what
    /// makes it wait is none.
    fn wait(&mut self, number: i64, actions: &mut Vec<Action>) {
        let (long, draining) = (!self.per_item(), self.draining);
        let Some(current) = &mut self.current else { return };
        if current.paused == Some(number) || current.cancelled || current.lost || current.settled || draining {
            return;
        }
        current.paused = Some(number);
        if let Stage::Over(outcome) = &current.stage {
            if !current.would_run_again(&outcome.clone(), long) {
                return;
            }
            current.stage = Stage::Parked;
        }
        if long {
            let text = format!("{} waits, and so do you: nothing that calls a model is taken before it goes on", current.assignment.name);
            actions.push(Action::Notice("ItemPaused", text));
        }
        current.ask_for_checkpoint(actions);
    }

    /// The item waits no more, for this reason.
    fn go_on(&mut self, order: Option<ItemOrder>, actions: &mut Vec<Action>) {
        let Some(current) = self.current.as_mut().filter(|current| current.stage == Stage::Parked) else { return };
        match order {
            Some(ItemOrder::Cancel) => current.stage = Stage::Over(cancelled()),
            Some(ItemOrder::Lost) => current.stage = Stage::Over(lost()),
            // Again when the hook is done with what it writes down.
            Some(ItemOrder::Pause(_)) | None if current.hook => {}
            Some(ItemOrder::Pause(_)) | None => {
                if current.end.take().is_some() {
                    current.turn += 1;
                    current.resumed += 1;
                }
                (current.stage, current.interrupted) = (Stage::Running, false);
                self.run(actions);
            }
        }
    }

    /// The checkpoint hook ended.
    fn checkpointed(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        current.hook = false;
        if current.stage == Stage::Hooked {
            current.stage = Stage::Asked { kill_at: now.after(SHORT) };
            actions.push(Action::AskAll);
        }
        match current.paused {
            Some(_) => current.ask_for_checkpoint(actions),
            None => self.go_on(None, actions),
        }
    }

    fn ended(&mut self, now: BootTime, exit: Exit, actions: &mut Vec<Action>) {
        let long = !self.per_item();
        let Some(current) = &mut self.current else { return };
        if matches!(current.stage, Stage::Over(_) | Stage::Concluding | Stage::Parked) {
            return;
        }
        current.end = Some(End::Exit(exit));
        if current.stage == Stage::Running {
            if current.hook && !long {
                current.stage = Stage::Hooked;
            } else if long {
                // The container ends with its program.
                current.stage = Stage::Ending;
            } else {
                current.stage = Stage::Asked { kill_at: now.after(SHORT) };
                actions.push(Action::AskAll);
            }
        }
    }

    fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        match current.stage {
            Stage::Running | Stage::Hooked | Stage::Asked { .. } | Stage::Killing { .. } => {
                current.interrupted |= current.end.is_none();
                current.stage = Stage::Ending;
            }
            Stage::Parked => current.stage = Stage::Over(release("Drained", "the agent is being ended")),
            Stage::Ending | Stage::Copying { .. } | Stage::Concluding | Stage::Over(_) => {}
        }
    }

    /// Nothing of a run is left: again, or never again.
    fn decide(&mut self, actions: &mut Vec<Action>) {
        let (draining, max_turns) = (self.draining, self.max_turns());
        let Some(current) = &mut self.current else { return };
        if current.again(max_turns) && !current.cancelled && !current.lost && !draining {
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
        let Some(current) = self.named(held) else { return };
        if long || matches!(current.stage, Stage::Over(_)) {
            return self.forget(now, actions);
        }
        // Nobody wants to hear of it any more, and its program still runs.
        (current.settled, current.lost) = (true, true);
        current.interrupt(now.after(SHORT), actions);
    }

    fn forget(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        self.current = None;
        if let Some(next) = self.next.take() {
            self.take(now, next, actions);
        }
    }

    /// What follows from time alone.
    fn pass(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        match current.stage {
            Stage::Asked { kill_at: at } | Stage::Killing { again: at } if now >= at => {
                current.stage = Stage::Killing { again: now.after(KILL_EACH) };
                actions.push(Action::KillAll);
            }
            Stage::Copying { since: _, until } if now >= until => self.decide(actions),
            Stage::Running
            | Stage::Hooked
            | Stage::Parked
            | Stage::Asked { .. }
            | Stage::Killing { .. }
            | Stage::Ending
            | Stage::Copying { .. }
            | Stage::Concluding
            | Stage::Over(_) => {}
        }
    }
}

impl Current {
    /// Asks the run to end, or hastens its end.
    fn interrupt(&mut self, kill_at: BootTime, actions: &mut Vec<Action>) {
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
    fn ask_for_checkpoint(&mut self, actions: &mut Vec<Action>) {
        let Some(number) = self.paused.filter(|number| !self.hook && self.checkpoint != Some(*number)) else { return };
        (self.checkpoint, self.hook) = (Some(number), true);
        actions.push(Action::Checkpoint(number));
    }

    /// This end is how its program died, and nothing that anybody said of the item: one that waits can be worked on again.
    fn would_run_again(&self, outcome: &Outcome, long: bool) -> bool {
        let died = matches!(outcome, Outcome::Fail { exit_code: Some(_), .. }) && matches!(self.end, Some(End::Exit(_)));
        died && self.said.is_none() && !long && !self.cancelled && !self.lost && !self.settled
    }

    fn conclude(&mut self, actions: &mut Vec<Action>) {
        if !matches!(self.stage, Stage::Over(_) | Stage::Concluding) {
            self.stage = Stage::Concluding;
            actions.push(Action::Conclude);
        }
    }

    /// It ended well without a word about the item, and may be run again.
    fn again(&self, max_turns: u32) -> bool {
        self.end == Some(End::Exit(Exit { code: 0, killed: false }))
            && self.said.is_none()
            && self.turn.saturating_sub(self.resumed) < max_turns
    }

    /// How the item ended: by what was said of it, by what was wanted, by how its program ended; in this order, but that
    /// what is cancelled or drained is given back unless it was done before.
    fn outcome(&self, words: RunOutput, long: bool, draining: bool, max_turns: u32) -> Outcome {
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
                    fail("Exited", "the program ended and did not say how its item ended", 0)
                } else if well {
                    Outcome::Complete { result: result.or(Some(output).filter(|output| !output.is_empty())) }
                } else {
                    fail(if exit.killed { "Killed" } else { "Exited" }, &tail, exit.code)
                }
            }
        }
    }
}

fn cancelled() -> Outcome {
    release("Cancelled", "the item was cancelled")
}

/// Never told to a gateway by a sidecar that knows it too.
fn lost() -> Outcome {
    release("Lost", "the lease was lost")
}

fn release(reason: &str, message: &str) -> Outcome {
    Outcome::Release { reason: reason.to_owned(), message: message.to_owned() }
}

fn fail(reason: &str, message: &str, code: u8) -> Outcome {
    let message = message.chars().take(MAX_MESSAGE).collect();
    Outcome::Fail { reason: reason.to_owned(), message, exit_code: Some(code.into()) }
}

/// `bytes` as a result: at most as long as one may be, cut between two characters; none if there are none.
pub fn result_of(bytes: &[u8]) -> Option<String> {
    let kept = bytes.get(..MAX_RESULT_BYTES).unwrap_or(bytes);
    // A character that the cut went through is not a broken one.
    let whole = match std::str::from_utf8(kept) {
        Err(error) if bytes.len() > kept.len() && error.error_len().is_none() => kept.get(..error.valid_up_to()).unwrap_or(kept),
        Ok(_) | Err(_) => kept,
    };
    let mut text = String::from_utf8_lossy(whole).into_owned();
    if text.len() > MAX_RESULT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES));
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;
