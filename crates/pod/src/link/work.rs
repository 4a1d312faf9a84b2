//! What the sidecar knows of its agent's work, and what it does next about it. Pure, as [`state`](super::state) is.
//!
//! What always holds: a claim is made only with nothing in hand; what is in hand is written down before anybody is told of
//! it; an end is delivered until it is taken, refused for good, or of no interest to anybody any more, and only then forgotten.

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
use super::retry::{CALL_RETRY_BACKOFF, CallOutcome, lasting};
use crate::clock::BootTime;

/// Between the starts of two claims that found nothing, whatever the other side does.
const MIN_EMPTY_CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Between the starts of two claims that found something: with an end and a word about progress for each item that leaves
/// room, of what a gateway takes from one agent, for what keeps it alive.
const MIN_CLAIM_INTERVAL: Duration = Duration::from_millis(200);
/// Between two words about the progress of an item.
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Beyond the time that was asked for, for an answer that is on its way.
const CLAIM_ANSWER_GRACE: Duration = Duration::from_secs(3);
/// Who says how its item ended waits so long before it is told that this is kept.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Why an agent whose items are done says goodbye.
const ITEMS_DONE_REASON: &str = "it has worked on as many items as agent.maxItems allows";

/// What the supervisor said and was told on its present connection.
#[derive(Clone, Debug, Default)]
pub struct SupervisorView {
    /// The lease that it holds, once it said whether it does.
    pub held: Option<Option<LeaseRef>>,
    item: Option<LeaseRef>,
    said: Option<(LeaseRef, Outcome)>,
    settled: Option<LeaseRef>,
}

/// How things stand around the work.
#[derive(Debug)]
pub struct WorkFacts<'a> {
    /// How this agent works.
    pub how: &'a How,
    /// This process is registered.
    pub registered: bool,
    /// New work is welcome.
    pub may_claim: bool,
    /// Why what nobody works on yet has to be given back.
    pub give_back: Option<&'static str>,
    /// What is wanted of an item.
    pub wanted: Option<&'a ItemWanted>,
    /// The supervisor, if it is connected, and whether it was told that the program may run.
    pub supervisor: Option<(&'a mut SupervisorView, bool)>,
}

/// A program that asked for an item.
#[derive(Clone, Debug)]
struct ClaimWaiter {
    number: u64,
    until: BootTime,
    /// A claim that was made for it is under way; it was answered.
    claimed: bool,
    tried: bool,
    trouble: Option<Refusal>,
}

/// A program that said how its item ended.
#[derive(Clone, Debug)]
struct EndReporter {
    number: u64,
    until: BootTime,
}

/// One call at a time.
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
    /// `kept` was not written down yet.
    dirty: bool,
    claim: Lane,
    claimed_at: BootTime,
    /// Progress and ends.
    calls: Lane,
    advanced: Option<BootTime>,
    waiters: Vec<ClaimWaiter>,
    talkers: Vec<EndReporter>,
    /// Leases of which the supervisor need not speak any more.
    settled: Vec<LeaseRef>,
    /// What was decided since the last plan.
    news: Vec<WorkAction>,
    farewell: bool,
    /// The lease that waits: how its program dies meanwhile is no end of it.
    paused: Option<LeaseRef>,
}

impl SidecarWork {
    /// With what an earlier process left.
    pub fn new(kept: KeptWork) -> Self {
        Self { kept, ..Self::default() }
    }

    /// The lease in hand, until its end is settled.
    pub fn held(&self) -> Option<LeaseRef> {
        self.kept.item.as_ref().map(|item| item.held.clone())
    }

    /// Nothing is left to be told, as far as somebody is there who could say it.
    pub fn is_quiet(&self, connected: bool) -> bool {
        self.kept.item.as_ref().is_none_or(|item| item.lost || (item.finish.is_none() && !connected))
    }

    /// No failure of before holds up what is to be told now.
    pub fn hurry(&mut self, now: BootTime) {
        self.calls.not_before = self.calls.not_before.min(now);
    }

    fn lose(&mut self) {
        if let Some(item) = self.kept.item.take() {
            self.news.push(WorkAction::Say(format!("the lease of {} is lost: the item is not reported any more", item.name())));
            self.settle(item.held, None, &Answer::Refused(stale()));
        }
    }

    /// A claim was answered, or not. `at_least` is what the gateway asks us to wait; `random` is in [0, 1).
    pub fn claimed(&mut self, now: BootTime, taken: CallOutcome<Option<Assignment>>, at_least: Duration, random: f64) {
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
                let lasts = lasting(refusal.code);
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
            // Whoever gives us another lease knows that we do not have this one.
            self.settle(known.held, None, &Answer::Refused(stale()));
        }
        // The end of this lease was accepted, and is lost: the store was rolled back. It is sent again, and no program is run.
        let finish = self.kept.last.as_ref().filter(|last| last.held == held).and_then(|last| last.outcome.clone());
        let words = if finish.is_some() { "the agent gets an item again that it has finished:" } else { "the agent holds" };
        self.news.push(WorkAction::Say(format!("{words} {} of queue {} (epoch {})", assignment.name, assignment.queue, held.epoch)));
        let (assignment, untouched) = (Some(Box::new(assignment)), finish.is_some());
        self.kept.item = Some(KeptItem { held, assignment, said: None, finish, untouched, lost: false, advance: None });
    }

    /// Progress was taken, or not.
    pub fn advanced(
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
            // What is refused for a while is tried again; what cannot be carried out must not hold the end up.
            CallOutcome::Refused(refusal) => lasting(refusal.code) || matches!(refusal.code, Code::Internal | Code::Unknown),
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

    /// The end of the item was taken, or not.
    pub fn delivered(&mut self, now: BootTime, held: &LeaseRef, taken: CallOutcome<()>, at_least: Duration, random: f64) {
        let answer = match taken {
            CallOutcome::Done(()) => Answer::Done,
            CallOutcome::Refused(refusal) if lasting(refusal.code) => Answer::Refused(refusal),
            CallOutcome::Refused(_) | CallOutcome::Silence => return self.calls.failed(now, at_least, random),
        };
        self.calls.passed(now);
        if let Some(item) = self.kept.item.take_if(|item| item.held == *held) {
            let mut taken = item.finish.clone();
            if let Answer::Refused(refusal) = &answer {
                self.news.push(WorkAction::Say(format!("the gateway refuses the end of {}, which is dropped: {refusal}", item.name())));
                taken = None;
            }
            self.settle(item.held, taken, &answer);
            self.kept.done -= u32::from(item.untouched);
        }
    }

    /// This item is behind us.
    fn settle(&mut self, held: LeaseRef, outcome: Option<Outcome>, answer: &Answer) {
        for talker in self.talkers.drain(..) {
            self.news.push(WorkAction::Answer(talker.number, answer.clone()));
        }
        self.settled.push(held.clone());
        self.kept.last = Some(LastItem { held, outcome });
        self.kept.done = self.kept.done.saturating_add(1);
        self.advanced = None;
        self.dirty = true;
    }

    /// The supervisor says what it holds.
    pub fn holds(&mut self, held: Option<&LeaseRef>) {
        let Some(held) = held.filter(|_| self.kept.item.is_none()) else { return };
        if self.kept.last.as_ref().is_none_or(|last| last.held != *held) {
            self.adopt(held.clone(), None);
        }
    }

    /// The supervisor says how an item ended.
    pub fn finished(&mut self, held: LeaseRef, outcome: Outcome) {
        match &mut self.kept.item {
            Some(item) if item.held == held && item.lost => self.lose(),
            Some(item) if item.held == held && self.paused.as_ref() == Some(&held) && item.said.is_none() && died(&outcome) => {}
            Some(item) if item.held == held => {
                self.dirty = true;
                let said = item.said.take();
                item.finish.get_or_insert(judged(said, outcome));
            }
            // Settled before, or of a time of which nothing is known.
            Some(_) => self.settled.push(held),
            None if self.kept.last.as_ref().is_some_and(|last| last.held == held) => self.settled.push(held),
            None => self.adopt(held, Some(outcome)),
        }
    }

    /// Our journal was lost; the lease may still be ours.
    fn adopt(&mut self, held: LeaseRef, finish: Option<Outcome>) {
        self.kept.item = Some(KeptItem { held, assignment: None, said: None, finish, untouched: false, lost: false, advance: None });
        self.dirty = true;
    }

    /// The program asks for an item. It is answered by [`WorkAction::Answer`], or at once.
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

    /// The program says how its item ended. It is answered by [`WorkAction::Answer`], or at once.
    pub fn say(&mut self, now: BootTime, number: u64, outcome: Outcome, run: Option<Run>) -> Option<Answer> {
        let Some(run) = run else { return Some(Answer::Refused(no_queues())) };
        let item = match &mut self.kept.item {
            Some(item) if item.lost => return Some(Answer::Refused(stale())),
            Some(item) => item,
            None => {
                return Some(match &self.kept.last {
                    Some(LastItem { outcome: None, .. }) => Answer::Refused(stale()),
                    Some(last) if last.outcome.as_ref() == Some(&outcome) => Answer::Done, // said again
                    Some(_) | None => Answer::Refused(Refusal::new(Code::NotHeld, "this agent holds no item")),
                });
            }
        };
        match (&item.finish, run) {
            (Some(finish), _) if *finish != outcome => {
                return Some(Answer::Refused(Refusal::new(Code::FinishedAlready, "another end of this item was reported already")));
            }
            // The supervisor uses it when the program ends: the last word counts.
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
        self.talkers.push(EndReporter { number, until: now.after(FINISH_TIMEOUT) });
        None
    }

    /// The program says how far it is.
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

/// The end of an item whose program said `said`, of which its supervisor may not have heard, by the supervisor's rules.
fn judged(said: Option<Outcome>, outcome: Outcome) -> Outcome {
    match (said, outcome) {
        (Some(Outcome::Complete { .. }), outcome @ Outcome::Complete { .. }) => outcome,
        (Some(said @ Outcome::Complete { .. }), _) => said,
        (Some(_), outcome @ Outcome::Release { .. }) if matches!(&outcome, Outcome::Release { reason, .. } if reason == "Cancelled") => {
            outcome
        }
        (Some(said), _) => said,
        (None, outcome) => outcome,
    }
}

/// It is how a program died, and not what anybody said.
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
