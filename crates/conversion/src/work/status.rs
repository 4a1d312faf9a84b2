//! Conversion of a record to a status: the phase, the merge patch, the conditions. It reads no custom resource.

use serde_json::{Map, Value, json};

use super::{artifacts, changeset, micro_time_json, time_json};
use crate::api::item_changeset::ItemChangeset;
use crate::api::work_item::WorkItemPhase;
use crate::policy::artifacts::Artifact;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Attempt, Phase, Policy, Record, UnixMillis, reasons};

/// The phase of the custom resource.
pub fn phase(phase: Phase) -> WorkItemPhase {
    match phase {
        Phase::Pending => WorkItemPhase::Pending,
        Phase::Rejected => WorkItemPhase::Rejected,
        Phase::Suspended => WorkItemPhase::Suspended,
        Phase::Blocked => WorkItemPhase::Blocked,
        Phase::Scheduled => WorkItemPhase::Scheduled,
        Phase::Ready => WorkItemPhase::Ready,
        Phase::Leased => WorkItemPhase::Leased,
        Phase::Paused => WorkItemPhase::Paused,
        Phase::Cancelling => WorkItemPhase::Cancelling,
        Phase::Succeeded => WorkItemPhase::Succeeded,
        Phase::Failed => WorkItemPhase::Failed,
        Phase::DeadLettered => WorkItemPhase::DeadLettered,
        Phase::Cancelled => WorkItemPhase::Cancelled,
        Phase::Expired => WorkItemPhase::Expired,
    }
}

/// Parts of a status that are not in the record. Unset parts stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusExtras {
    /// Reason for the phase, as text.
    pub message: Option<String>,
    /// Result of the task.
    pub result: Option<String>,
    /// Changeset of the attempt. It replaces every field of the stored one.
    pub changeset: Option<Box<ItemChangeset>>,
    /// All artifacts.
    pub artifacts: Option<Vec<Artifact>>,
    /// Progress of the task.
    pub progress: Option<Value>,
    /// Tokens spent by all attempts, if more than the stored number.
    pub tokens_used: Option<i64>,
    /// Requirements that no pool meets, as text.
    pub unmet_requirements: Option<String>,
}

/// The status of `record`, as a merge patch of the whole status. Fields that no longer apply are removed.
pub fn patch(entry: &Entry, record: &Record, policy: &Policy, beside: &StatusExtras, epoch: i64, now: UnixMillis) -> Value {
    let generation = entry.generation;
    let Record {
        phase: in_phase,
        reason,
        queue,
        epoch: transitions,
        holder,
        attempts,
        failures,
        stalls,
        redrives,
        pauses,
        next_attempt,
        started,
        completed,
        history,
    } = record;
    let mut status = Map::new();
    status.insert("observedGeneration".into(), json!(generation));
    status.insert("phase".into(), json!(phase(*in_phase)));
    status.insert("reason".into(), json!(reason));
    status.insert("queue".into(), json!(queue));
    let lease_seconds = holder.as_ref().map(|_| i32::try_from(policy.lease.as_secs()).unwrap_or(i32::MAX));
    let lease = json!({
        "holder": holder.as_ref().map(|holder| &holder.pod),
        "agent": holder.as_ref().map(|holder| &holder.agent),
        "leaseDurationSeconds": lease_seconds,
        "acquireTime": holder.as_ref().map(|holder| micro_time_json(holder.since)),
        "leaseTransitions": transitions,
    });
    status.insert("lease".into(), if *transitions > 0 { lease } else { Value::Null });
    status.insert("attempts".into(), json!(attempts));
    status.insert("failures".into(), json!(failures));
    status.insert("stalls".into(), json!(stalls));
    status.insert("redrives".into(), json!(redrives));
    status.insert("pauses".into(), json!(pauses));
    status.insert("nextAttemptTime".into(), next_attempt.map_or(Value::Null, time_json));
    status.insert("readyTime".into(), first_ready(entry, record, now).map_or(Value::Null, time_json));
    status.insert("startTime".into(), started.map_or(Value::Null, time_json));
    status.insert("completionTime".into(), completed.map_or(Value::Null, time_json));
    status.insert("attemptHistory".into(), if history.is_empty() { Value::Null } else { history.iter().map(attempt).collect() });
    status.insert("conditions".into(), conditions(record, policy, beside, generation, now));
    status.insert("governorEpoch".into(), json!(epoch));
    if let Some(result) = &beside.result {
        status.insert("result".into(), json!(result));
    } else if entry.record.redrives != *redrives {
        status.insert("result".into(), Value::Null);
    }
    if let Some(changeset) = changeset::patch(entry, record, beside.changeset.as_deref()) {
        status.insert("changeset".into(), changeset);
    }
    if let Some(all) = &beside.artifacts {
        status.insert("artifacts".into(), artifacts::patch(all));
    } else if entry.record.redrives != *redrives {
        status.insert("artifacts".into(), Value::Null);
    }
    if let Some(progress) = &beside.progress {
        status.insert("progress".into(), progress.clone());
    } else if *transitions > entry.record.epoch && *transitions > 1 {
        // The progress of an earlier attempt does not apply to this one. Its checkpoint does.
        status.insert("progress".into(), json!({"percent": null, "message": null, "updateTime": null}));
    }
    if let Some(used) = beside.tokens_used {
        status.insert("tokens".into(), json!({"used": used}));
    }
    json!({"metadata": {"resourceVersion": entry.version}, "status": status})
}

/// When the item was first ready, if its record is `record` from now on. The record may make it ready now, or start it
/// again.
fn first_ready(entry: &Entry, record: &Record, now: UnixMillis) -> Option<UnixMillis> {
    let known = entry.first_ready.filter(|_| record.redrives == entry.record.redrives);
    known.or_else(|| (record.phase == Phase::Ready).then_some(now))
}

fn attempt(attempt: &Attempt) -> Value {
    let Attempt { epoch, agent, start, end, verb, reason, message } = attempt;
    let message = message.as_ref().map(|message| message.chars().take(1024).collect::<String>());
    let mut value =
        json!({"epoch": epoch, "agent": agent, "startTime": time_json(*start), "endTime": time_json(*end), "verb": verb.name()});
    if let Some(reason) = reason {
        value["reason"] = json!(reason);
    }
    if let Some(message) = message {
        value["message"] = json!(message);
    }
    value
}

/// The most characters of an attempt's message that a condition quotes: the last ones, because a message ends with its
/// cause. `status.attemptHistory` has all of them.
const MAX_QUOTED_CHARS: usize = 512;

/// Why an item ended without success, and what a person can do. `None`: it did not, or the refusal of its admission says
/// it.
fn end_message(record: &Record, policy: &Policy) -> Option<String> {
    let why = match record.reason.as_deref()? {
        reasons::TOO_MANY_FAILURES => format!("the item failed {} times (maxAttempts: {})", record.failures, policy.max_attempts),
        reasons::TOO_MANY_STALLS => format!("the item lost its agent {} times (maxStalls: {})", record.stalls, policy.max_stalls),
        reasons::FAILURE_RULE => "a rule of the queue (spec.failurePolicy.rules) ends the item after this failure".to_owned(),
        reasons::DRONE_FAILED => "the item failed under an agent of type drone, so no other agent tries it".to_owned(),
        reasons::DEADLINE_EXCEEDED => "the deadline of the item (spec.deadlineTime) has passed".to_owned(),
        reasons::DEPENDENCY_FAILED => "an item in spec.dependsOn ended without the required success".to_owned(),
        reasons::DEPENDENCY_MISSING => "an item in spec.dependsOn does not exist".to_owned(),
        reasons::PLAN_INCOMPLETE => "other items of the plan (spec.plan) do not exist".to_owned(),
        reasons::CANCEL_REQUESTED => "spec.cancelRequested is true".to_owned(),
        reasons::GROUP_CANCELLED => "the group of the item (spec.group) was cancelled".to_owned(),
        _ => return None,
    };
    match record.phase {
        Phase::Failed | Phase::DeadLettered | Phase::Expired => {
            let last = record.history.last().and_then(|last| last.message.as_deref()).unwrap_or_default();
            let last = last.split_whitespace().collect::<Vec<_>>().join(" ");
            let last: String = last.chars().skip(last.chars().count().saturating_sub(MAX_QUOTED_CHARS)).collect();
            let last = if last.is_empty() { String::new() } else { format!(". The last attempt: {}", last.trim_end_matches('.')) };
            Some(format!("{why}{last}. Correct the cause, then start the item again (kubectl spillway redrive)"))
        }
        Phase::Cancelled => Some(why),
        Phase::Pending
        | Phase::Rejected
        | Phase::Suspended
        | Phase::Blocked
        | Phase::Scheduled
        | Phase::Ready
        | Phase::Leased
        | Phase::Paused
        | Phase::Cancelling
        | Phase::Succeeded => None,
    }
}

/// The conditions for `kubectl wait`: Leased, Paused, Complete, Failed, CancelRequested, PreflightPassed.
pub(super) fn conditions(record: &Record, policy: &Policy, beside: &StatusExtras, generation: i64, now: UnixMillis) -> Value {
    let end = end_message(record, policy);
    let message = beside.message.as_deref().or(end.as_deref());
    let saying = |type_: &str, status: bool, reason: &str, message: Option<&str>, since: UnixMillis| {
        json!({
            "type": type_,
            "status": if status { "True" } else { "False" },
            "reason": reason,
            "message": message.unwrap_or_default(),
            "observedGeneration": generation,
            "lastTransitionTime": time_json(since),
        })
    };
    let condition = |type_: &str, status: bool, reason: &str, since: UnixMillis| saying(type_, status, reason, message, since);
    let leased = |status: bool, reason: &str, since: UnixMillis| saying("Leased", status, reason, beside.message.as_deref(), since);
    let said = record.reason.as_deref().unwrap_or(match record.phase {
        Phase::Succeeded => "Completed",
        _ => "AsPhaseSays",
    });
    let mut all = Vec::new();
    match &record.holder {
        Some(holder) => all.push(leased(true, "Claimed", holder.since)),
        None if record.epoch > 0 => {
            let ended = record.history.last().map_or(now, |last| last.end);
            all.push(leased(false, record.history.last().map_or("Released", |last| last.verb.name()), ended));
        }
        None => {}
    }
    if record.phase == Phase::Ready && record.reason.as_deref() == Some(reasons::REQUIREMENTS_UNMET) {
        all.push(saying("PreflightPassed", false, reasons::REQUIREMENTS_UNMET, beside.unmet_requirements.as_deref(), now));
    }
    let ended = record.completed.unwrap_or(now);
    match record.phase {
        Phase::Paused => all.push(condition("Paused", true, said, now)),
        Phase::Cancelling => all.push(condition("CancelRequested", true, said, now)),
        Phase::Succeeded => all.push(condition("Complete", true, said, ended)),
        Phase::Cancelled => {
            all.push(condition("CancelRequested", true, said, ended));
            all.push(condition("Failed", true, said, ended));
        }
        Phase::Failed | Phase::DeadLettered | Phase::Expired | Phase::Rejected => all.push(condition("Failed", true, said, ended)),
        Phase::Pending | Phase::Suspended | Phase::Blocked | Phase::Scheduled | Phase::Ready | Phase::Leased => {}
    }
    Value::Array(all)
}
