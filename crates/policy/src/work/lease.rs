//! The calls of a holder about its item. Each returns the next record, or the reason why it does not apply.

use super::failure::{Action, Failure, Rule, judge, wait};
use super::item::{Holder, Phase, Policy, Record, Spec, UnixMillis, Verb, reasons};

/// The caller of a call about an item: the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence<'a> {
    /// The epoch of its claim.
    pub epoch: i64,
    /// Uid of its pod, as its token proves.
    pub pod: &'a str,
    /// Name of its Agent.
    pub agent: &'a str,
}

/// Why a call does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseRefusal {
    /// It was applied before: the caller gets the same answer again.
    Repeated,
    /// The caller does not hold the lease, or not any more.
    Stale,
    /// The caller's attempt has ended in another way.
    EndedAlready(Phase),
    /// The item is paused: try later.
    Paused,
    /// It cannot be claimed now.
    NotReady(Phase),
}

/// Whether it can be claimed now.
pub fn claimable(spec: &Spec, record: &Record, now: UnixMillis) -> bool {
    let late = record.redrives == 0 && spec.deadline.is_some_and(|deadline| now >= deadline);
    record.phase == Phase::Ready && record.holder.is_none() && !spec.cancel && !spec.suspend && !late
}

/// Gives a ready item to `holder`. Whether it is the next item for this holder is decided elsewhere.
pub fn claim(spec: &Spec, record: &Record, holder: Holder, now: UnixMillis) -> Result<Record, LeaseRefusal> {
    if !claimable(spec, record, now) {
        return Err(LeaseRefusal::NotReady(record.phase));
    }
    let mut next = record.clone();
    next.enter(Phase::Leased, None, now);
    next.epoch += 1;
    next.attempts = next.attempts.saturating_add(1);
    next.started.get_or_insert(holder.since);
    next.holder = Some(holder);
    Ok(next)
}

/// Whether the fence matches the holder of the item.
pub fn holds(record: &Record, fence: Fence) -> bool {
    record.phase.held() && record.epoch == fence.epoch && record.holder.as_ref().is_some_and(|holder| holder.pod == fence.pod)
}

fn check(record: &Record, fence: Fence, verbs: &[Verb]) -> Result<(), LeaseRefusal> {
    if holds(record, fence) {
        return if record.phase == Phase::Paused { Err(LeaseRefusal::Paused) } else { Ok(()) };
    }
    let own = record.history.iter().rev().find(|attempt| attempt.epoch == fence.epoch && attempt.agent == fence.agent);
    Err(match own {
        Some(attempt) if verbs.contains(&attempt.verb) => LeaseRefusal::Repeated,
        Some(attempt) if attempt.epoch == record.epoch && record.phase.ended() && attempt.verb == Verb::Complete => {
            LeaseRefusal::EndedAlready(record.phase)
        }
        Some(_) | None => LeaseRefusal::Stale,
    })
}

/// The holder has completed the item. That also applies to a holder that was told to give it back.
pub fn complete(record: &Record, fence: Fence, now: UnixMillis) -> Result<Record, LeaseRefusal> {
    check(record, fence, &[Verb::Complete])?;
    let mut next = record.clone();
    next.attempt_ended(Verb::Complete, now, None, None);
    next.enter(Phase::Succeeded, None, now);
    Ok(next)
}

/// The facts for the decision about a failure, besides the failure itself.
#[derive(Clone, Copy, Debug)]
pub struct FailureJudges<'a> {
    /// The item's policy.
    pub policy: &'a Policy,
    /// The queue's rules.
    pub rules: &'a [Rule],
    /// A failure of this agent is final: it is a drone.
    pub is_final: bool,
    /// Uniform in [0, 1).
    pub dice: f64,
}

/// The holder reports that the task failed.
pub fn fail(record: &Record, fence: Fence, failure: &Failure, judges: FailureJudges, now: UnixMillis) -> Result<Record, LeaseRefusal> {
    check(record, fence, &[Verb::Fail, Verb::CancelDone])?;
    if record.phase == Phase::Cancelling {
        return Ok(cancel_done(record, now));
    }
    Ok(failed(record, failure, judges, now))
}

/// The task failed.
pub(super) fn failed(record: &Record, failure: &Failure, judges: FailureJudges, now: UnixMillis) -> Record {
    let Failure { reason, message, exit_code: _ } = failure;
    let mut next = record.clone();
    let action = judge(judges.rules, failure);
    next.attempt_ended(Verb::Fail, now, Some(reason.clone()), Some(message.clone()).filter(|message| !message.is_empty()));
    if action != Action::Ignore {
        next.failures = next.failures.saturating_add(1);
    }
    let over = next.failures >= judges.policy.max_attempts;
    match action {
        Action::Fail => next.enter(Phase::Failed, Some(reasons::FAILURE_RULE), now),
        Action::DeadLetter => next.enter(Phase::DeadLettered, Some(reasons::FAILURE_RULE), now),
        Action::Retry | Action::RetryElsewhere | Action::Ignore if judges.is_final => {
            next.enter(Phase::Failed, Some(reasons::DRONE_FAILED), now);
        }
        Action::Retry | Action::RetryElsewhere if over => next.enter(Phase::DeadLettered, Some(reasons::TOO_MANY_FAILURES), now),
        Action::Retry => retry(&mut next, reasons::BACKOFF, judges, now),
        Action::RetryElsewhere => retry(&mut next, reasons::RETRY_ELSEWHERE, judges, now),
        // The failure is not counted, and there is no busy loop: each attempt makes the next wait longer.
        Action::Ignore => retry(&mut next, reasons::BACKOFF, judges, now),
    }
    next
}

fn retry(next: &mut Record, reason: &str, judges: FailureJudges, now: UnixMillis) {
    next.enter(Phase::Scheduled, Some(reason), now);
    next.next_attempt = Some(now.after(wait(judges.policy, next.attempts.max(1), judges.dice)));
}

/// The holder gives the item back. That counts as nothing, but repeated releases make the item wait. A holder of a
/// paused item may release it too, because it is being ended.
pub fn release(
    record: &Record,
    fence: Fence,
    reason: &str,
    message: &str,
    judges: FailureJudges,
    now: UnixMillis,
) -> Result<Record, LeaseRefusal> {
    match check(record, fence, &[Verb::Release, Verb::CancelDone]) {
        Ok(()) | Err(LeaseRefusal::Paused) => {}
        Err(no) => return Err(no),
    }
    if record.phase == Phase::Cancelling {
        return Ok(cancel_done(record, now));
    }
    Ok(released(record, reason, message, judges.policy, judges.dice, now))
}

/// An answer about a lease whose write the store has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAnswer<'a> {
    /// The lease was granted.
    Granted,
    /// The holder completed the item.
    Completed,
    /// The task failed.
    Failed(&'a Failure),
    /// The holder released the item.
    Released {
        /// As one word.
        reason: &'a str,
        /// For people.
        message: &'a str,
    },
}

/// Applies an answer that was lost with a rollback of the store. If the lease has a higher epoch than the record, it
/// was granted after the record was written: it is granted again, and then ended as the answer states. If the record
/// has that epoch or a higher one under another holder, only a completion is applied, so that finished work is not
/// repeated. An attempt that is in the history, and an item that has ended, are not changed. An item that is not
/// admitted yet has no queue, so its answer is sent again later.
pub fn replay(record: &Record, fence: Fence, lost: LostAnswer, judges: FailureJudges, now: UnixMillis) -> Result<Record, LeaseRefusal> {
    if record.history.iter().any(|attempt| attempt.epoch == fence.epoch && attempt.agent == fence.agent) {
        return Err(LeaseRefusal::Repeated);
    }
    if record.phase.ended() {
        return Err(LeaseRefusal::EndedAlready(record.phase));
    }
    if record.phase == Phase::Pending {
        return Err(LeaseRefusal::NotReady(record.phase));
    }
    let mut next = record.clone();
    if holds(record, fence) {
        if lost == LostAnswer::Granted {
            return Err(LeaseRefusal::Repeated);
        }
        if record.phase == Phase::Cancelling && lost != LostAnswer::Completed {
            return Ok(cancel_done(record, now));
        }
    } else {
        if lost != LostAnswer::Completed && record.epoch >= fence.epoch {
            return Err(LeaseRefusal::Stale);
        }
        if record.epoch < fence.epoch {
            next.attempts = next.attempts.saturating_add(1);
        }
        next.enter(Phase::Leased, None, now);
        next.epoch = fence.epoch;
        next.started.get_or_insert(now);
        next.holder = Some(Holder { pod: fence.pod.to_owned(), agent: fence.agent.to_owned(), since: now });
    }
    let mut next = match lost {
        LostAnswer::Granted => next,
        LostAnswer::Completed => {
            next.attempt_ended(Verb::Complete, now, None, None);
            next.enter(Phase::Succeeded, None, now);
            next
        }
        LostAnswer::Failed(failure) => failed(&next, failure, judges, now),
        LostAnswer::Released { reason, message } => released(&next, reason, message, judges.policy, judges.dice, now),
    };
    next.epoch = next.epoch.max(record.epoch);
    Ok(next)
}

/// The item was given back.
pub(super) fn released(record: &Record, reason: &str, message: &str, policy: &Policy, dice: f64, now: UnixMillis) -> Record {
    let mut next = record.clone();
    let message = Some(message.to_owned()).filter(|message| !message.is_empty());
    next.attempt_ended(Verb::Release, now, Some(reason.to_owned()), message);
    let again = next.history.iter().rev().take_while(|attempt| attempt.verb == Verb::Release).count();
    if again > 1 {
        next.enter(Phase::Scheduled, Some(reasons::RELEASED), now);
        let tries = u32::try_from(again - 1).unwrap_or(u32::MAX);
        next.next_attempt = Some(now.after(wait(policy, tries, dice)));
    } else {
        next.enter(Phase::Ready, Some(reasons::RELEASED), now);
    }
    next
}

/// A holder that was told to give the item back did so. The item ends for the reason that was recorded.
pub(super) fn cancel_done(record: &Record, now: UnixMillis) -> Record {
    let mut next = record.clone();
    let reason = next.reason.clone().unwrap_or_else(|| reasons::CANCEL_REQUESTED.to_owned());
    let end = if reason == reasons::DEADLINE_EXCEEDED { Phase::Expired } else { Phase::Cancelled };
    next.attempt_ended(Verb::CancelDone, now, Some(reason.clone()), None);
    next.enter(end, Some(&reason), now);
    next
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
