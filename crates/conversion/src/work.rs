//! From custom resources to what is decided on, and from a record back to a status. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, MicroTime, ObjectMeta, Time};
use serde_json::{Map, Value, json};

use crate::api::agent_pool::EmptyAction;
use crate::api::names;
use crate::api::work_item::{self, DependencyCondition, NotifyOn, OnDependencyFailure, WorkItemPhase};
use crate::api::work_queue::{FailureAction, ItemPolicy, QueueingStrategy, WorkQueueSpec};
use crate::api::{WorkItem, WorkItemSpec, WorkQueue, unsupported};
use crate::policy::work::admission::Queue;
use crate::policy::work::entry::Entry;
use crate::policy::work::failure::{Action, Rule};
use crate::policy::work::item::{self, Attempt, Dependency, Holder, Overrides, Phase, Policy, Record, Spec, UnixMillis, Verb};
use crate::policy::work::objectives::Objectives;
use crate::policy::work::requires::Requires;
use crate::policy::work::selector::{Operator, Requirement, Selector};

/// An item with an empty status that was submitted so long before it was made came back from a backup.
const RESTORED_AFTER: Duration = Duration::from_secs(60);
/// A time of submission further back than this before its creation does not count.
const SUBMITTED_BEFORE: Duration = Duration::from_secs(60);

fn at(time: Timestamp) -> UnixMillis {
    UnixMillis(time.as_millisecond())
}

fn timestamp(at: UnixMillis) -> Timestamp {
    Timestamp::from_millisecond(at.0).unwrap_or(Timestamp::MAX)
}

fn micro(at: UnixMillis) -> Value {
    json!(MicroTime(timestamp(at)))
}

fn time(at: UnixMillis) -> Value {
    json!(Time(timestamp(at)))
}

fn seconds(value: Option<i32>) -> Option<Duration> {
    value.and_then(|value| u64::try_from(value).ok()).map(Duration::from_secs)
}

fn number<T: TryFrom<i32>>(value: Option<i32>) -> Option<T> {
    value.and_then(|value| T::try_from(value).ok())
}

fn overrides(policy: Option<&ItemPolicy>) -> Overrides {
    let Some(policy) = policy else { return Overrides::default() };
    let ItemPolicy {
        lease_duration_seconds,
        stall_timeout_seconds,
        attempt_timeout_seconds,
        max_attempts,
        max_stalls,
        backoff,
        ttl_seconds_after_finished,
    } = policy;
    let (initial, factor, most) = Policy::default().backoff;
    Overrides {
        lease: seconds(*lease_duration_seconds),
        stall_timeout: seconds(*stall_timeout_seconds),
        attempt_timeout: seconds(*attempt_timeout_seconds),
        task_timeout: None,
        max_attempts: number(*max_attempts),
        max_stalls: number(*max_stalls),
        backoff: backoff.as_ref().map(|backoff| {
            let most = seconds(backoff.max_seconds).unwrap_or(most);
            (seconds(backoff.initial_seconds).unwrap_or(initial), number(backoff.factor).unwrap_or(factor), most)
        }),
        ttl: seconds(*ttl_seconds_after_finished),
    }
}

/// A queue, as it is decided on.
pub fn queue(queue: &WorkQueue) -> Queue {
    let WorkQueueSpec {
        queueing_strategy,
        priority,
        accepts,
        suspend,
        limits,
        item_defaults,
        failure_policy,
        dead_letters,
        concurrency,
        when_empty,
        objectives,
        cancel_groups: _,
    } = &queue.spec;
    let accepts = accepts.clone().unwrap_or_default();
    let limits = limits.clone().unwrap_or_default();
    let dead_letters = dead_letters.clone().unwrap_or_default();
    let policy = overrides(item_defaults.as_ref()).over(&Policy::default());
    let count = |value: Option<i32>, default: u64| number(value).unwrap_or(default);
    let rules = failure_policy.as_ref().and_then(|policy| policy.rules.as_ref());
    Queue {
        strict: *queueing_strategy == QueueingStrategy::StrictFIFO,
        priority: priority.unwrap_or(0),
        types: accepts.types.unwrap_or_default(),
        default: accepts.default.unwrap_or(false),
        suspend: suspend.unwrap_or(false),
        max_pending: count(limits.max_pending, 1000),
        max_finished: count(limits.max_finished, 500),
        max_dead_letters: count(dead_letters.max, 1000),
        max_item_bytes: count(limits.max_item_bytes, 16_384),
        policy: Policy { dead_letter_ttl: seconds(dead_letters.ttl_seconds).unwrap_or(policy.dead_letter_ttl), ..policy },
        rules: rules
            .into_iter()
            .flatten()
            .map(|rule| Rule {
                action: match rule.action {
                    FailureAction::Retry => Action::Retry,
                    FailureAction::RetryElsewhere => Action::RetryElsewhere,
                    FailureAction::Ignore => Action::Ignore,
                    FailureAction::DeadLetter => Action::DeadLetter,
                    FailureAction::Fail => Action::Fail,
                },
                reasons: rule.on_reasons.clone().unwrap_or_default(),
                exit_codes: rule.on_exit_codes.clone().unwrap_or_default(),
            })
            .collect(),
        cancel_group: failure_policy.as_ref().and_then(|policy| policy.cancel_group).unwrap_or(false),
        max_leased: concurrency.as_ref().and_then(|concurrency| number(concurrency.max_leased)),
        max_leased_per_key: concurrency.as_ref().and_then(|concurrency| number(concurrency.max_leased_per_key)),
        objectives: objectives.as_ref().map_or_else(Default::default, |objectives| Objectives {
            wait: seconds(objectives.wait_seconds),
            completion: seconds(objectives.completion_seconds),
        }),
        hibernates: when_empty.as_ref().is_some_and(|when| when.action == EmptyAction::Hibernate),
        empty_after: when_empty.as_ref().and_then(|when| seconds(Some(when.after_seconds))),
    }
}

/// The groups of a queue that are cancelled, by a person or by a member's failure.
pub fn cancelled_groups(queue: &WorkQueue) -> Vec<(String, UnixMillis)> {
    let stored = queue.status.iter().flat_map(|status| status.cancelled_groups.iter().flatten());
    let mut all: Vec<_> = queue.spec.cancel_groups.iter().flatten().chain(stored).map(|one| (one.group.clone(), at(one.time.0))).collect();
    // The later one of two for the same group covers more.
    all.sort_by(|one, other| (&one.0, std::cmp::Reverse(one.1)).cmp(&(&other.0, std::cmp::Reverse(other.1))));
    all.dedup_by(|later, first| later.0 == first.0);
    all
}

/// What was asked.
pub fn spec(item: &WorkItem) -> Spec {
    let created = item.metadata.creation_timestamp.as_ref().map_or(UnixMillis::default(), |time| at(time.0));
    let asked = item.spec.submit_time.as_ref().map(|time| at(time.0));
    let earliest = UnixMillis(created.0.saturating_sub(i64::try_from(SUBMITTED_BEFORE.as_millis()).unwrap_or(i64::MAX)));
    let blank = item.status.as_ref().is_none_or(|status| status.phase.is_none());
    let labels = item.metadata.labels.as_ref();
    let from_backup = labels.is_some_and(|labels| labels.contains_key("velero.io/restore-name"))
        || asked.is_some_and(|asked| created.since(asked) > RESTORED_AFTER);
    let spec = &item.spec;
    let mut overrides = overrides(spec.overrides.as_ref());
    overrides.task_timeout = seconds(spec.bulkhead.as_ref().and_then(|bulkhead| bulkhead.timeout_seconds));
    Spec {
        queue: spec.queue_ref.as_ref().map(|queue| queue.name.clone()),
        type_: spec.type_.clone(),
        priority: spec.priority,
        group: spec.group.clone(),
        concurrency_key: spec.concurrency_key.clone(),
        dedup_key: spec.dedup_key.clone(),
        plan: spec.plan.as_ref().map(|plan| (plan.id.clone(), u32::try_from(plan.size).unwrap_or(1))),
        payload_bytes: u64::try_from(spec.payload.len()).unwrap_or(u64::MAX),
        // Creation is told in whole seconds.
        submitted: asked.map_or(created, |asked| asked.max(earliest).min(UnixMillis(created.0.saturating_add(999)))),
        created,
        not_before: spec.not_before_time.as_ref().map(|time| at(time.0)),
        deadline: spec.deadline_time.as_ref().map(|time| at(time.0)),
        suspend: spec.suspend.unwrap_or(false),
        cancel: spec.cancel_requested.unwrap_or(false),
        redrives: spec.redrives.unwrap_or(0),
        resume_pause: spec.resume_pause.unwrap_or(0),
        freed_epoch: spec.released_epoch.unwrap_or(0),
        unsupported: unsupported(item),
        restored: blank && from_backup,
        after: spec
            .depends_on
            .iter()
            .flatten()
            .map(|on| Dependency { name: on.name.clone(), succeeded: on.condition == DependencyCondition::Succeeded })
            .collect(),
        on_dependency_failure: match spec.on_dependency_failure {
            OnDependencyFailure::Cancel => item::OnDependencyFailure::Cancel,
            OnDependencyFailure::Run => item::OnDependencyFailure::Run,
            OnDependencyFailure::Hold => item::OnDependencyFailure::Hold,
        },
        selector: selector(spec.agent_selector.as_ref()).unwrap_or_default(),
        requires: spec.requires.as_ref().map_or_else(Requires::default, requires),
        overrides,
        submitted_by: labels.and_then(|labels| labels.get(names::SUBMITTED_BY_LABEL)).cloned(),
        notify_on: spec
            .notify_on
            .iter()
            .flatten()
            .map(|end| match end {
                NotifyOn::Finished => item::NotifyOn::Finished,
                NotifyOn::Failed => item::NotifyOn::Failed,
                NotifyOn::DeadLettered => item::NotifyOn::DeadLettered,
            })
            .collect(),
    }
}

/// Which agents may take an item. None: it has an operator that is none of Kubernetes'.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    let Some(LabelSelector { match_labels, match_expressions }) = selector else { return Some(Selector::default()) };
    let equal = match_labels.iter().flatten().map(|(key, value)| Some(Requirement::equals(key, value)));
    let expressions = match_expressions.iter().flatten().map(|LabelSelectorRequirement { key, operator, values }| {
        let values = || values.iter().flatten().cloned().collect();
        let operator = match operator.as_str() {
            "In" => Operator::In(values()),
            "NotIn" => Operator::NotIn(values()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return None,
        };
        Some(Requirement { key: key.clone(), operator })
    });
    equal.chain(expressions).collect()
}

/// What an item needs of the pool that it is given to. What this version does not do of it is refused before.
fn requires(asked: &work_item::Requires) -> Requires {
    let work_item::Requires { tools, models, urls, accounts, volumes, repositories: _ } = asked;
    let names = |names: &Option<Vec<String>>| names.iter().flatten().cloned().collect();
    Requires { tools: names(tools), models: names(models), urls: names(urls), accounts: names(accounts), volumes: names(volumes) }
}

/// What this version does not do of what an item asks for: said, rather than left out.
fn unsupported(item: &WorkItem) -> Option<String> {
    let WorkItemSpec { agent_selector, requires, bulkhead, .. } = &item.spec;
    if selector(agent_selector.as_ref()).is_none() {
        return Some("an unknown operator in agentSelector.matchExpressions".to_owned());
    }
    // Almost every item sets neither, and there may be tens of thousands.
    if requires.is_none() && bulkhead.is_none() {
        return None;
    }
    let asked = unsupported::asked("WorkItem", &json!({"requires": requires, "bulkhead": bulkhead}));
    let fields: Vec<&str> = asked.iter().map(|field| field.path.trim_start_matches("spec.")).collect();
    (!fields.is_empty()).then(|| fields.join(" and "))
}

/// The queue that an item is in: the one it was admitted to, else the one it names.
pub fn queue_of(item: &WorkItem) -> Option<&str> {
    let admitted = item.status.as_ref().and_then(|status| status.queue.as_deref());
    admitted.or_else(|| item.spec.queue_ref.as_ref().map(|queue| queue.name.as_str()))
}

/// What is recorded.
pub fn record(item: &WorkItem) -> Record {
    let Some(status) = &item.status else { return Record::default() };
    let lease = status.lease.clone().unwrap_or_default();
    let count = |value: Option<i32>| number(value).unwrap_or(0);
    let holder = lease.holder.filter(|holder| !holder.is_empty()).map(|pod| Holder {
        pod,
        agent: lease.agent.unwrap_or_default(),
        since: lease.acquire_time.map_or(UnixMillis::default(), |time| at(time.0)),
    });
    let phase = status.phase.map_or(Phase::Pending, phase_of);
    Record {
        phase,
        reason: status.reason.clone(),
        queue: status.queue.clone(),
        epoch: lease.lease_transitions.unwrap_or(0),
        holder: holder.filter(|_| phase.held()),
        attempts: count(status.attempts),
        failures: count(status.failures),
        stalls: count(status.stalls),
        redrives: status.redrives.unwrap_or(0),
        pauses: status.pauses.unwrap_or(0),
        next_attempt: status.next_attempt_time.as_ref().map(|time| at(time.0)),
        started: status.start_time.as_ref().map(|time| at(time.0)),
        completed: status.completion_time.as_ref().map(|time| at(time.0)),
        history: status
            .attempt_history
            .iter()
            .flatten()
            .map(|attempt| Attempt {
                epoch: attempt.epoch,
                agent: attempt.agent.clone(),
                start: at(attempt.start_time.0),
                end: attempt.end_time.as_ref().map_or(UnixMillis::default(), |time| at(time.0)),
                verb: Verb::ALL.into_iter().find(|verb| verb.name() == attempt.verb).unwrap_or(Verb::LeaseExpired),
                reason: attempt.reason.clone(),
                message: attempt.message.clone(),
            })
            .collect(),
    }
}

/// What is known of an item.
pub fn entry(item: &WorkItem) -> Entry {
    Entry {
        uid: item.metadata.uid.clone().unwrap_or_default(),
        version: item.metadata.resource_version.clone().unwrap_or_default(),
        spec: spec(item),
        record: record(item),
        unsaved: None,
        ready_since: None,
        first_ready: item.status.as_ref().and_then(|status| status.ready_time.as_ref()).map(|time| at(time.0)),
        tracked: tracked(&item.metadata),
        generation: item.metadata.generation.unwrap_or(0),
    }
}

/// Whether the attempt that holds it got somewhere, or wrote down where to go on from. What an attempt before said has no
/// time any more.
pub fn has_worth(item: &WorkItem) -> bool {
    let progress = item.status.as_ref().and_then(|status| status.progress.as_ref()).filter(|said| said.update_time.is_some());
    progress.is_some_and(|said| said.percent.is_some_and(|percent| percent > 0) || said.checkpoint_ref.is_some())
}

/// Argo CD or Flux keeps it: an item that was removed would be made, and run, again.
fn tracked(meta: &ObjectMeta) -> bool {
    let has = |map: &Option<std::collections::BTreeMap<String, String>>, keys: &[&str]| {
        map.as_ref().is_some_and(|map| keys.iter().any(|key| map.contains_key(*key)))
    };
    let labels = ["argocd.argoproj.io/instance", "kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"];
    has(&meta.annotations, &[names::ARGO_TRACKING_ANNOTATION]) || has(&meta.labels, &labels)
}

fn phase_of(phase: WorkItemPhase) -> Phase {
    match phase {
        WorkItemPhase::Pending => Phase::Pending,
        WorkItemPhase::Rejected => Phase::Rejected,
        WorkItemPhase::Suspended => Phase::Suspended,
        WorkItemPhase::Blocked => Phase::Blocked,
        WorkItemPhase::Scheduled => Phase::Scheduled,
        WorkItemPhase::Ready => Phase::Ready,
        WorkItemPhase::Leased => Phase::Leased,
        WorkItemPhase::Paused => Phase::Paused,
        WorkItemPhase::Cancelling => Phase::Cancelling,
        WorkItemPhase::Succeeded => Phase::Succeeded,
        WorkItemPhase::Failed => Phase::Failed,
        WorkItemPhase::DeadLettered => Phase::DeadLettered,
        WorkItemPhase::Cancelled => Phase::Cancelled,
        WorkItemPhase::Expired => Phase::Expired,
    }
}

/// The phase, as the custom resource names it.
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

/// What a status says beside the record. Unset parts stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusExtras {
    /// In words, why it is in its phase.
    pub message: Option<String>,
    /// What came out.
    pub result: Option<String>,
    /// How far it is.
    pub progress: Option<Value>,
    /// Tokens that all attempts have used, where that is more than is stored.
    pub used: Option<i64>,
    /// What no pool has that it needs.
    pub unmet: Option<String>,
}

/// The status that says `record`, as a merge patch of the whole status: what is not said any more is removed.
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
        "acquireTime": holder.as_ref().map(|holder| micro(holder.since)),
        "leaseTransitions": transitions,
    });
    status.insert("lease".into(), if *transitions > 0 { lease } else { Value::Null });
    status.insert("attempts".into(), json!(attempts));
    status.insert("failures".into(), json!(failures));
    status.insert("stalls".into(), json!(stalls));
    status.insert("redrives".into(), json!(redrives));
    status.insert("pauses".into(), json!(pauses));
    status.insert("nextAttemptTime".into(), next_attempt.map_or(Value::Null, time));
    status.insert("readyTime".into(), first_ready(entry, record, now).map_or(Value::Null, time));
    status.insert("startTime".into(), started.map_or(Value::Null, time));
    status.insert("completionTime".into(), completed.map_or(Value::Null, time));
    status.insert("attemptHistory".into(), if history.is_empty() { Value::Null } else { history.iter().map(attempt).collect() });
    status.insert("conditions".into(), conditions(record, beside, generation, now));
    status.insert("governorEpoch".into(), json!(epoch));
    if let Some(result) = &beside.result {
        status.insert("result".into(), json!(result));
    } else if entry.record.redrives != *redrives {
        status.insert("result".into(), Value::Null);
    }
    if let Some(progress) = &beside.progress {
        status.insert("progress".into(), progress.clone());
    } else if *transitions > entry.record.epoch && *transitions > 1 {
        // How far an attempt before was says nothing of this one; where to go on from does.
        status.insert("progress".into(), json!({"percent": null, "message": null, "updateTime": null}));
    }
    if let Some(used) = beside.used {
        status.insert("tokens".into(), json!({"used": used}));
    }
    json!({"metadata": {"resourceVersion": entry.version}, "status": status})
}

/// When it was ready for the first time, as `record` is true from now on: it may just have become so, or been started again.
fn first_ready(entry: &Entry, record: &Record, now: UnixMillis) -> Option<UnixMillis> {
    let known = entry.first_ready.filter(|_| record.redrives == entry.record.redrives);
    known.or_else(|| (record.phase == Phase::Ready).then_some(now))
}

fn attempt(attempt: &Attempt) -> Value {
    let Attempt { epoch, agent, start, end, verb, reason, message } = attempt;
    let message = message.as_ref().map(|message| message.chars().take(1024).collect::<String>());
    let mut value = json!({"epoch": epoch, "agent": agent, "startTime": time(*start), "endTime": time(*end), "verb": verb.name()});
    if let Some(reason) = reason {
        value["reason"] = json!(reason);
    }
    if let Some(message) = message {
        value["message"] = json!(message);
    }
    value
}

/// Leased, Paused, Complete, Failed, CancelRequested, PreflightPassed: what `kubectl wait` waits for.
fn conditions(record: &Record, beside: &StatusExtras, generation: i64, now: UnixMillis) -> Value {
    let saying = |type_: &str, status: bool, reason: &str, message: Option<&str>, since: UnixMillis| {
        json!({
            "type": type_,
            "status": if status { "True" } else { "False" },
            "reason": reason,
            "message": message.unwrap_or_default(),
            "observedGeneration": generation,
            "lastTransitionTime": time(since),
        })
    };
    let condition =
        |type_: &str, status: bool, reason: &str, since: UnixMillis| saying(type_, status, reason, beside.message.as_deref(), since);
    let said = record.reason.as_deref().unwrap_or(match record.phase {
        Phase::Succeeded => "Completed",
        _ => "AsPhaseSays",
    });
    let mut all = Vec::new();
    match &record.holder {
        Some(holder) => all.push(condition("Leased", true, "Claimed", holder.since)),
        None if record.epoch > 0 => {
            let ended = record.history.last().map_or(now, |last| last.end);
            all.push(condition("Leased", false, record.history.last().map_or("Released", |last| last.verb.name()), ended));
        }
        None => {}
    }
    if record.phase == Phase::Ready && record.reason.as_deref() == Some(item::reasons::REQUIREMENTS_UNMET) {
        all.push(saying("PreflightPassed", false, item::reasons::REQUIREMENTS_UNMET, beside.unmet.as_deref(), now));
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

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
