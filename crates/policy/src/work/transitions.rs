//! The transitions of an item without a call: from its spec, its record and the facts around it.
//!
//! The input is the whole state, and the output is the next record, or nothing if the record is right. So no event can
//! be missed, however late the look. What always holds: a held item leaves its holder only by the holder's own call, or
//! when the holder is *gone*. A cancelled item is never ready again.

use super::admission::Admission;
use super::failure::{Failure, Rule, wait};
use super::item::{OnDependencyFailure, Phase, Policy, Record, Spec, UnixMillis, Verb, reasons};
use super::lease::{FailureJudges, cancel_done, failed, released};

/// The state of an item's dependencies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dependencies {
    /// All are satisfied.
    Satisfied,
    /// Some have not ended.
    Waiting,
    /// One ended without success, and had to succeed.
    Failed,
    /// One does not exist.
    Missing,
    /// Other items of its plan do not exist yet.
    PlanIncomplete,
    /// Other items of its plan do not exist, and their time is over.
    PlanAbandoned,
}

/// The state of an item's holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HolderState {
    /// It is there, or nothing else is known.
    There,
    /// It is there and paused by the supervision, for this reason, and that is stored. Its item waits with it.
    Paused(String),
    /// It is gone: no process of its pod exists. With the verb that ends the attempt, the reason and the message.
    Gone(Verb, String, String),
    /// It is gone, because the task failed.
    Failed {
        /// The reason, as one word.
        reason: String,
        /// The message, for people.
        message: String,
        /// The failure is final, because the agent was a drone.
        is_final: bool,
    },
}

/// The facts around an item.
#[derive(Clone, Debug)]
pub struct TransitionFacts<'a> {
    /// Whether it may enter a queue; used while it is Pending.
    pub admission: Admission,
    /// Used until it was first ready.
    pub dependencies: Dependencies,
    /// The queue that it was admitted to is gone.
    pub queue_gone: bool,
    /// Its group was cancelled after it was submitted.
    pub group_cancelled: bool,
    /// Whether pools take from its queue, and none of them meets its requirements. `None`: not known yet.
    pub unmet: Option<bool>,
    /// Used while it is held.
    pub holder: HolderState,
    /// Its policy.
    pub policy: &'a Policy,
    /// Its queue's rules for failures.
    pub rules: &'a [Rule],
    /// Uniform in [0, 1).
    pub dice: f64,
}

/// The next record, if it differs.
pub fn settle(spec: &Spec, record: &Record, facts: &TransitionFacts, now: UnixMillis) -> Option<Record> {
    let mut current = record.clone();
    // Each round is a step forward in the item's life; a redrive is one of them. The bound only shows that the loop
    // ends.
    for _ in 0..6 {
        match step(spec, &current, facts, now) {
            Some(next) => current = next,
            None => break,
        }
    }
    (current != *record).then_some(current)
}

fn step(spec: &Spec, record: &Record, facts: &TransitionFacts, now: UnixMillis) -> Option<Record> {
    if record.phase.ended() {
        ended(spec, record)
    } else if record.phase.held() {
        held(spec, record, facts, now)
    } else {
        waiting(spec, record, facts, now)
    }
}

/// Whether its deadline applies, and has passed. After a redrive it does not apply, because a person wants the item
/// done.
fn is_past_deadline(spec: &Spec, record: &Record, now: UnixMillis) -> bool {
    record.redrives == 0 && spec.deadline.is_some_and(|deadline| now >= deadline)
}

/// The reason to end it, in any phase.
fn end_reason(spec: &Spec, record: &Record, facts: &TransitionFacts, now: UnixMillis) -> Option<&'static str> {
    if spec.cancel {
        Some(reasons::CANCEL_REQUESTED)
    } else if facts.group_cancelled {
        Some(reasons::GROUP_CANCELLED)
    } else if is_past_deadline(spec, record, now) {
        Some(reasons::DEADLINE_EXCEEDED)
    } else {
        None
    }
}

fn end_of(reason: &str) -> Phase {
    if reason == reasons::DEADLINE_EXCEEDED { Phase::Expired } else { Phase::Cancelled }
}

fn ended(spec: &Spec, record: &Record) -> Option<Record> {
    (record.phase.redrivable() && spec.redrives > record.redrives).then(|| redriven(spec, record))
}

/// A new start. The epoch stays, because it is the fence against earlier holders.
fn redriven(spec: &Spec, record: &Record) -> Record {
    let Record { epoch, pauses, history, queue, .. } = record.clone();
    Record { epoch, pauses, history, queue, redrives: spec.redrives, ..Record::default() }
}

fn held(spec: &Spec, record: &Record, facts: &TransitionFacts, now: UnixMillis) -> Option<Record> {
    // A person's statement about this lease, or proof.
    let freed = spec.released_epoch == record.epoch;
    let gone = match &facts.holder {
        HolderState::Gone(verb, reason, message) => Some(lost(record, facts, *verb, reason.clone(), message.clone(), now)),
        HolderState::Failed { reason, message, is_final } => {
            let failure = Failure { reason: reason.clone(), message: message.clone(), exit_code: None };
            let judges = FailureJudges { policy: facts.policy, rules: facts.rules, is_final: *is_final, dice: facts.dice };
            Some(failed(record, &failure, judges, now))
        }
        HolderState::There | HolderState::Paused(_) if freed => {
            let message = "a person stated that the node of its holder is dead".to_owned();
            Some(lost(record, facts, Verb::LeaseExpired, reasons::NODE_IS_DEAD.to_owned(), message, now))
        }
        HolderState::There | HolderState::Paused(_) => None,
    };
    if record.phase == Phase::Cancelling {
        return gone.map(|_| cancel_done(record, now));
    }
    if gone.is_some() {
        return gone;
    }
    if let Some(reason) = end_reason(spec, record, facts, now) {
        let mut next = record.clone();
        next.enter(Phase::Cancelling, Some(reason), now);
        return Some(next);
    }
    // The item is paused and resumed with its agent. The stored state of the agent decides, so that every leader
    // decides the same. A resume of the item resumes the agent.
    let mut next = record.clone();
    match &facts.holder {
        HolderState::Paused(reason) if record.phase == Phase::Leased => {
            next.enter(Phase::Paused, Some(reason), now);
            next.pauses += 1;
        }
        HolderState::There if record.phase == Phase::Paused => next.enter(Phase::Leased, None, now),
        HolderState::There | HolderState::Paused(_) | HolderState::Gone(..) | HolderState::Failed { .. } => return None,
    }
    Some(next)
}

/// Its holder is gone. That is not the task's fault, and is counted apart from its failures.
fn lost(record: &Record, facts: &TransitionFacts, verb: Verb, reason: String, message: String, now: UnixMillis) -> Record {
    if verb == Verb::Release {
        return released(record, &reason, &message, facts.policy, facts.dice, now);
    }
    let mut next = record.clone();
    next.attempt_ended(verb, now, Some(reason), Some(message));
    next.stalls = next.stalls.saturating_add(1);
    if next.stalls >= facts.policy.max_stalls {
        next.enter(Phase::DeadLettered, Some(reasons::TOO_MANY_STALLS), now);
    } else {
        next.enter(Phase::Scheduled, Some(reasons::AGENT_LOST), now);
        next.next_attempt = Some(now.after(wait(facts.policy, next.stalls, facts.dice)));
    }
    next
}

fn waiting(spec: &Spec, record: &Record, facts: &TransitionFacts, now: UnixMillis) -> Option<Record> {
    let to = |phase: Phase, reason: Option<&str>| {
        let same = record.phase == phase && record.reason.as_deref() == reason;
        let mut next = record.clone();
        next.enter(phase, reason, now);
        (!same).then_some(next)
    };
    if let Some(reason) = end_reason(spec, record, facts, now) {
        return to(end_of(reason), Some(reason));
    }
    let restored = record.reason.as_deref() == Some(reasons::RESTORED);
    if restored && record.phase == Phase::Suspended {
        return (spec.redrives > record.redrives).then(|| redriven(spec, record));
    }
    if record.phase == Phase::Pending && spec.restored && record.redrives == 0 && record.epoch == 0 {
        return to(Phase::Suspended, Some(reasons::RESTORED));
    }
    if record.phase == Phase::Pending {
        match &facts.admission {
            Admission::Unknown => return None,
            Admission::Refused(refusal) => return to(Phase::Rejected, Some(refusal.reason())),
            Admission::To(queue) if record.queue.as_ref() != Some(queue) => {
                return Some(Record { queue: Some(queue.clone()), ..record.clone() });
            }
            Admission::To(_) => {}
        }
    }
    if record.phase != Phase::Pending && facts.queue_gone {
        return to(Phase::Rejected, Some(reasons::QUEUE_MISSING));
    }
    if spec.suspend {
        return to(Phase::Suspended, Some(reasons::SUSPENDED));
    }
    if matches!(record.phase, Phase::Pending | Phase::Suspended | Phase::Blocked) {
        match (&facts.dependencies, spec.on_dependency_failure) {
            (Dependencies::Satisfied, _) | (Dependencies::Failed | Dependencies::Missing, OnDependencyFailure::Run) => {}
            (Dependencies::PlanIncomplete, _) => return to(Phase::Blocked, Some(reasons::PLAN_INCOMPLETE)),
            (Dependencies::PlanAbandoned, _) => return to(Phase::Cancelled, Some(reasons::PLAN_INCOMPLETE)),
            (Dependencies::Waiting, _) => return to(Phase::Blocked, Some(reasons::DEPENDENCIES)),
            (Dependencies::Failed, OnDependencyFailure::Cancel) => return to(Phase::Cancelled, Some(reasons::DEPENDENCY_FAILED)),
            (Dependencies::Missing, OnDependencyFailure::Cancel) => return to(Phase::Cancelled, Some(reasons::DEPENDENCY_MISSING)),
            (Dependencies::Failed, OnDependencyFailure::Hold) => return to(Phase::Blocked, Some(reasons::DEPENDENCY_FAILED)),
            (Dependencies::Missing, OnDependencyFailure::Hold) => return to(Phase::Blocked, Some(reasons::DEPENDENCY_MISSING)),
        }
    }
    let (time, reason) = match (record.next_attempt.filter(|_| record.phase == Phase::Scheduled), spec.not_before) {
        (Some(again), before) if before.is_none_or(|before| before <= again) => {
            (Some(again), record.reason.as_deref().unwrap_or(reasons::BACKOFF))
        }
        (_, before) => (before, reasons::NOT_BEFORE),
    };
    if let Some(time) = time.filter(|time| now < *time) {
        let reason = if record.phase == Phase::Scheduled { record.reason.as_deref().unwrap_or(reason) } else { reason };
        if record.phase == Phase::Scheduled && record.next_attempt == Some(time) {
            return None;
        }
        let mut next = record.clone();
        next.enter(Phase::Scheduled, Some(reason), now);
        next.next_attempt = Some(time);
        return Some(next);
    }
    if record.phase == Phase::Ready {
        return match record.reason.as_deref() {
            // The agent to avoid is kept, even if requirements are not met.
            Some(reasons::RETRY_ELSEWHERE) => None,
            Some(reasons::REQUIREMENTS_UNMET) if facts.unmet == Some(false) => to(Phase::Ready, None),
            Some(_) | None if facts.unmet == Some(true) => to(Phase::Ready, Some(reasons::REQUIREMENTS_UNMET)),
            Some(_) | None => None,
        };
    }
    // The agent to avoid is kept until an agent holds the item.
    let reason = record.reason.as_deref().filter(|reason| *reason == reasons::RETRY_ELSEWHERE);
    to(Phase::Ready, reason)
}

/// When to look again if nothing happens.
pub fn look_at(spec: &Spec, record: &Record, policy: &Policy) -> Option<UnixMillis> {
    if record.phase.ended() {
        return record.completed.map(|completed| completed.after(policy.retention(record.phase)));
    }
    let deadline = spec.deadline.filter(|_| record.redrives == 0 && record.phase != Phase::Cancelling);
    let due = record.next_attempt.filter(|_| record.phase == Phase::Scheduled);
    deadline.into_iter().chain(due).min()
}

/// Whether an ended item was kept long enough.
pub fn retention_over(record: &Record, policy: &Policy, now: UnixMillis) -> bool {
    record.phase.ended() && record.completed.is_some_and(|completed| now >= completed.after(policy.retention(record.phase)))
}

#[cfg(test)]
#[path = "transitions_tests.rs"]
mod tests;
