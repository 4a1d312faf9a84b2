//! The sidecar's state of work, and its decisions about it. Pure, as [`state`](super::state) is.
//!
//! What always holds: an item is claimed only with none in hand. An item in hand is written to the journal before any order,
//! answer or call about it. The end of an item is sent until a gateway accepts it or refuses it for good, or the lease is lost.
//! Only then it is forgotten.

mod plan;

use std::time::Duration;

use spillway_policy::backoff;
use spillway_wire::agent::Run;
pub use spillway_wire::agent::WorkSettings as How;
use spillway_wire::link::{Answer, Progress};
use spillway_wire::work::{Assignment, ItemWanted, LeaseRef, Outcome, ProgressUpdate};
use spillway_wire::{Code, Refusal};

use super::action::WorkAction;
use super::kept_state::{KeptItem, KeptWork, LastItem};
use super::retry::{CALL_RETRY_BACKOFF, CallOutcome, is_final};
use crate::clock::BootTime;

/// Between the starts of two claims that found no item, also if the gateway answers at once.
const MIN_EMPTY_CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Between the starts of two claims that found an item. A gateway limits the calls of an agent, and the calls about items (claim,
/// progress, end) must leave room for the reports.
const MIN_CLAIM_INTERVAL: Duration = Duration::from_millis(200);
/// Between two reports of the progress of an item.
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Wait for the answer to a claim, beyond the time that the program asked for.
const CLAIM_ANSWER_GRACE: Duration = Duration::from_secs(3);
/// How long a program waits for the answer to the end of its item. Afterwards it gets the answer that the end is kept.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The reason of the goodbye after `agent.maxItems` items.
const ITEMS_DONE_REASON: &str = "it has worked on as many items as agent.maxItems allows";

/// What the supervisor reported and got on its current connection.
#[derive(Clone, Debug, Default)]
pub struct SupervisorView {
    /// The lease that it holds, once it has reported it.
    pub held: Option<Option<LeaseRef>>,
    item: Option<LeaseRef>,
    reported: Option<(LeaseRef, Outcome)>,
    settled: Option<LeaseRef>,
}

/// The facts for a plan of work.
#[derive(Debug)]
pub struct WorkFacts<'a> {
    /// The settings of this agent's work.
    pub how: &'a How,
    /// This process is registered.
    pub registered: bool,
    /// A new item may be claimed.
    pub may_claim: bool,
    /// The reason to give back an item without any work on it.
    pub give_back: Option<&'static str>,
    /// The order about an item.
    pub wanted: Option<&'a ItemWanted>,
    /// The supervisor, if it is connected, and whether it got the order to start.
    pub supervisor: Option<(&'a mut SupervisorView, bool)>,
}

/// A program that asked for an item.
#[derive(Clone, Debug)]
struct ClaimWaiter {
    number: u64,
    until: BootTime,
    /// A claim for it is under way.
    claimed: bool,
    tried: bool,
    trouble: Option<Refusal>,
}

/// A program that reported the end of its item, and waits for the answer.
#[derive(Clone, Debug)]
struct EndReporter {
    number: u64,
    until: BootTime,
}

/// Calls of one kind, one at a time.
#[derive(Clone, Debug, Default)]
struct Lane {
    busy: bool,
    failures: u32,
    not_before: BootTime,
}

impl Lane {
    fn failed(&mut self, now: BootTime, at_least: Duration, random: f64) {
        self.busy = false;
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.after(backoff::delay(self.failures, CALL_RETRY_BACKOFF.0, CALL_RETRY_BACKOFF.1, random).max(at_least));
    }

    fn passed(&mut self, not_before: BootTime) {
        *self = Self { busy: false, failures: 0, not_before };
    }
}

/// The sidecar's state of work.
#[derive(Clone, Debug, Default)]
pub struct SidecarWork {
    kept: KeptWork,
    /// `kept` has changed and is not written to the journal yet.
    dirty: bool,
    claim: Lane,
    claimed_at: BootTime,
    /// Calls about progress and ends.
    calls: Lane,
    advanced: Option<BootTime>,
    waiters: Vec<ClaimWaiter>,
    end_reporters: Vec<EndReporter>,
    /// Settled leases, which the supervisor need not report any more.
    settled: Vec<LeaseRef>,
    /// Actions since the last plan.
    pending_actions: Vec<WorkAction>,
    farewell: bool,
    /// The paused lease. The death of its program meanwhile is no end of the item.
    paused: Option<LeaseRef>,
}

impl SidecarWork {
    /// With the state that an earlier process kept.
    pub fn new(kept: KeptWork) -> Self {
        Self { kept, ..Self::default() }
    }

    /// The lease in hand, until its end is settled.
    pub fn held(&self) -> Option<LeaseRef> {
        self.kept.item.as_ref().map(|item| item.held.clone())
    }

    /// The claim and the path of the folder that the changes of the item in hand go to.
    pub fn folder(&self) -> Option<&str> {
        self.kept.item.as_ref()?.assignment.as_ref()?.folder.as_deref()
    }

    /// Whether no end of an item is left to report. `connected`: the supervisor may still report one.
    pub fn is_quiet(&self, connected: bool) -> bool {
        self.kept.item.as_ref().is_none_or(|item| item.lost || (item.finish.is_none() && !connected))
    }

    /// Drops the pause after an earlier failure.
    pub fn hurry(&mut self, now: BootTime) {
        self.calls.not_before = self.calls.not_before.min(now);
    }

    fn lose(&mut self) {
        if let Some(item) = self.kept.item.take() {
            self.pending_actions.push(WorkAction::Say(format!("the lease of {} is lost: the item is not reported any more", item.name())));
            self.settle(item.held, None, &Answer::Refused(stale()));
        }
    }

    /// A claim was answered, or not. `at_least` is the wait that the gateway asks for; `random` is in [0, 1).
    pub fn on_claim_answer(&mut self, now: BootTime, taken: CallOutcome<Option<Assignment>>, at_least: Duration, random: f64) {
        let (trouble, lasts) = match taken {
            CallOutcome::Done(Some(assignment)) => {
                self.claim.passed(self.claimed_at.after(MIN_CLAIM_INTERVAL).max(now));
                return self.take(assignment);
            }
            CallOutcome::Done(None) => {
                self.claim.passed(self.claimed_at.after(MIN_EMPTY_CLAIM_INTERVAL).max(now));
                (None, false)
            }
            CallOutcome::Refused(refusal) => {
                self.claim.failed(now, at_least, random);
                let lasts = is_final(refusal.code);
                (Some(refusal), lasts)
            }
            CallOutcome::Silence => {
                self.claim.failed(now, at_least, random);
                (Some(Refusal::new(Code::GovernorAway, "no gateway answers; try again")), false)
            }
        };
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.claimed) {
            (waiter.claimed, waiter.tried, waiter.trouble) = (false, true, trouble.clone());
            if lasts {
                waiter.until = now;
            }
        }
    }

    fn take(&mut self, assignment: Assignment) {
        let held = assignment.held.clone();
        let known = self.kept.item.take();
        self.dirty = true;
        if let Some(known) = known {
            if known.held == held {
                self.kept.item = Some(KeptItem { assignment: Some(Box::new(assignment)), ..known });
                return;
            }
            // A gateway that gives us another lease knows that we do not hold this one.
            self.settle(known.held, None, &Answer::Refused(stale()));
        }
        // The end of this lease was accepted and then lost, by a rollback of the store. It is sent again, without a run.
        let finish = self.kept.last.as_ref().filter(|last| last.held == held).and_then(|last| last.outcome.clone());
        let words = if finish.is_some() { "the agent gets an item again that it has finished:" } else { "the agent holds" };
        self.pending_actions
            .push(WorkAction::Say(format!("{words} {} of queue {} (epoch {})", assignment.name, assignment.queue, held.epoch)));
        let (assignment, untouched) = (Some(Box::new(assignment)), finish.is_some());
        self.kept.item = Some(KeptItem { held, assignment, said: None, finish, untouched, lost: false, advance: None });
    }

    /// A report of progress was accepted, or not.
    pub fn on_progress_answer(
        &mut self,
        now: BootTime,
        held: &LeaseRef,
        told: &ProgressUpdate,
        taken: CallOutcome<()>,
        at_least: Duration,
        random: f64,
    ) {
        self.advanced = Some(now);
        let over = match taken {
            CallOutcome::Done(()) => true,
            // A temporary refusal is tried again. Progress that the gateway cannot process must not delay the end.
            CallOutcome::Refused(refusal) => is_final(refusal.code) || matches!(refusal.code, Code::Internal | Code::Unknown),
            CallOutcome::Silence => false,
        };
        if over {
            self.calls.passed(now);
        } else {
            self.calls.failed(now, at_least, random);
        }
        if over
            && let Some(item) = self.kept.item.as_mut().filter(|item| item.held == *held)
            && item.advance.as_ref() == Some(told)
        {
            item.advance = None;
            self.dirty = true;
        }
    }

    /// The end of the item was accepted, or not.
    pub fn on_end_answer(&mut self, now: BootTime, held: &LeaseRef, taken: CallOutcome<()>, at_least: Duration, random: f64) {
        let answer = match taken {
            CallOutcome::Done(()) => Answer::Done,
            CallOutcome::Refused(refusal) if is_final(refusal.code) => Answer::Refused(refusal),
            CallOutcome::Refused(_) | CallOutcome::Silence => return self.calls.failed(now, at_least, random),
        };
        self.calls.passed(now);
        if let Some(item) = self.kept.item.take_if(|item| item.held == *held) {
            let mut taken = item.finish.clone();
            if let Answer::Refused(refusal) = &answer {
                self.pending_actions
                    .push(WorkAction::Say(format!("the gateway refuses the end of {}, which is dropped: {refusal}", item.name())));
                taken = None;
            }
            self.settle(item.held, taken, &answer);
            self.kept.done -= u32::from(item.untouched);
        }
    }

    /// Settles a lease.
    fn settle(&mut self, held: LeaseRef, outcome: Option<Outcome>, answer: &Answer) {
        for talker in self.end_reporters.drain(..) {
            self.pending_actions.push(WorkAction::Answer(talker.number, answer.clone()));
        }
        self.settled.push(held.clone());
        self.kept.last = Some(LastItem { held, outcome });
        self.kept.done = self.kept.done.saturating_add(1);
        self.advanced = None;
        self.dirty = true;
    }

    /// The supervisor reports which lease it holds.
    pub fn on_supervisor_lease(&mut self, held: Option<&LeaseRef>) {
        let Some(held) = held.filter(|_| self.kept.item.is_none()) else { return };
        if self.kept.last.as_ref().is_none_or(|last| last.held != *held) {
            self.adopt(held.clone(), None);
        }
    }

    /// The supervisor reports the end of an item.
    pub fn on_supervisor_end(&mut self, held: LeaseRef, outcome: Outcome) {
        match &mut self.kept.item {
            Some(item) if item.held == held && item.lost => self.lose(),
            Some(item) if item.held == held && self.paused.as_ref() == Some(&held) && item.said.is_none() && died(&outcome) => {}
            Some(item) if item.held == held => {
                self.dirty = true;
                let said = item.said.take();
                let has_changeset = item.assignment.as_ref().is_some_and(|assignment| assignment.has_changeset());
                item.finish.get_or_insert(combined_outcome(said, outcome, has_changeset));
            }
            // A lease that was settled before, or of which nothing is known.
            Some(_) => self.settled.push(held),
            None if self.kept.last.as_ref().is_some_and(|last| last.held == held) => self.settled.push(held),
            None => self.adopt(held, Some(outcome)),
        }
    }

    /// Takes over a lease that only the supervisor knows, because our journal was lost.
    fn adopt(&mut self, held: LeaseRef, finish: Option<Outcome>) {
        self.kept.item = Some(KeptItem { held, assignment: None, said: None, finish, untouched: false, lost: false, advance: None });
        self.dirty = true;
    }

    /// The program asks for an item. The answer comes at once, or later by [`WorkAction::Answer`].
    pub fn next(&mut self, now: BootTime, number: u64, wait_seconds: u32, run: Option<Run>) -> Option<Answer> {
        match run {
            Some(Run::LongRunning) => {
                let until = now.after(Duration::from_secs(wait_seconds.into()));
                self.waiters.push(ClaimWaiter { number, until, claimed: false, tried: false, trouble: None });
                None
            }
            Some(Run::PerItem) => {
                let message = "with agent.run: PerItem the program runs for each item, and cannot ask for one";
                Some(Answer::Refused(Refusal::new(Code::NotAllowed, message)))
            }
            None => Some(Answer::Refused(no_queues())),
        }
    }

    /// The program reports the end of its item. The answer comes at once, or later by [`WorkAction::Answer`].
    pub fn report_item_end(&mut self, now: BootTime, number: u64, outcome: Outcome, run: Option<Run>) -> Option<Answer> {
        let Some(run) = run else { return Some(Answer::Refused(no_queues())) };
        let item = match &mut self.kept.item {
            Some(item) if item.lost => return Some(Answer::Refused(stale())),
            Some(item) => item,
            None => {
                return Some(match &self.kept.last {
                    Some(LastItem { outcome: None, .. }) => Answer::Refused(stale()),
                    Some(last) if last.outcome.as_ref() == Some(&outcome) => Answer::Done, // a repetition
                    Some(_) | None => Answer::Refused(Refusal::new(Code::NotHeld, "this agent holds no item")),
                });
            }
        };
        match (&item.finish, run) {
            (Some(finish), _) if *finish != outcome => {
                return Some(Answer::Refused(Refusal::new(Code::FinishedAlready, "another end of this item was reported already")));
            }
            // The supervisor uses it when the program ends: the last report counts.
            (None, Run::PerItem) => {
                item.said = Some(outcome);
                self.dirty = true;
            }
            (None, Run::LongRunning) => {
                item.finish = Some(outcome);
                self.dirty = true;
            }
            (Some(_), _) => {}
        }
        self.end_reporters.push(EndReporter { number, until: now.after(FINISH_TIMEOUT) });
        None
    }

    /// The program reports its progress.
    pub fn progress(&mut self, progress: &Progress) {
        let Progress { action, percent, checkpoint_ref } = progress;
        let Some(item) = self.kept.item.as_mut().filter(|item| item.finish.is_none() && !item.lost) else { return };
        let before = item.advance.take().unwrap_or_default();
        item.advance = Some(ProgressUpdate {
            epoch: item.held.epoch,
            percent: percent.or(before.percent),
            message: Some(action.clone()).filter(|action| !action.is_empty()).or(before.message),
            checkpoint_ref: checkpoint_ref.clone().or(before.checkpoint_ref),
        });
        self.dirty = true;
    }
}

/// The end of an item whose program reported `said`, by the supervisor's rules: the supervisor may not know `said`. Only the
/// supervisor knows whether a changeset was pushed.
fn combined_outcome(said: Option<Outcome>, outcome: Outcome, has_changeset: bool) -> Outcome {
    match (said, outcome) {
        (Some(Outcome::Complete { .. }), outcome) if has_changeset => outcome,
        (Some(Outcome::Complete { .. }), outcome @ Outcome::Complete { .. }) => outcome,
        (Some(said @ Outcome::Complete { .. }), _) => said,
        (Some(_), outcome @ Outcome::Release { .. }) if matches!(&outcome, Outcome::Release { reason, .. } if reason == "Cancelled") => {
            outcome
        }
        (Some(said), _) => said,
        (None, outcome) => outcome,
    }
}

/// Whether the outcome only says that the program died.
fn died(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Fail { exit_code: Some(code), .. } if *code != 0)
}

fn stale() -> Refusal {
    Refusal::new(Code::StaleLease, "the item is not this agent's any more")
}

fn no_queues() -> Refusal {
    Refusal::new(Code::NoQueues, "the pool of this agent has no queues (spec.queues)")
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
