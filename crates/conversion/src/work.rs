//! Conversion of items: from a WorkItem to its spec and its record. Submodule `queue` reads queues, and `status`,
//! `changeset` and `artifacts` write statuses. All functions are pure.

mod artifacts;
mod changeset;
mod queue;
mod status;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, MicroTime, ObjectMeta, Time};
use serde_json::{Value, json};

use super::sandbox::{self, item_egress, item_sandbox};
use crate::api::names;
use crate::api::work_item::{self, DependencyCondition, NotifyOn, OnDependencyFailure, WorkItemPhase};
use crate::api::work_queue::ItemPolicy;
use crate::api::{WorkItem, WorkItemSpec, unsupported};
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{self, Attempt, Dependency, Holder, Overrides, Phase, Policy, Record, Spec, UnixMillis, Verb};
use crate::policy::work::requires::Requires;
use crate::policy::work::selector::{Operator, Requirement, Selector};

pub use artifacts::artifacts;
pub use changeset::CONFLICT_REASON;
pub use queue::{cancelled_groups, queue};
pub use status::{StatusExtras, patch, phase};

/// An item with an empty status was restored from a backup if it was submitted this long before it was created.
const RESTORED_AGE_THRESHOLD: Duration = Duration::from_secs(60);
/// A time of submission counts at most this long before the creation of the item.
const MAX_SUBMISSION_LEAD: Duration = Duration::from_secs(60);

fn unix_millis(time: Timestamp) -> UnixMillis {
    UnixMillis(time.as_millisecond())
}

fn timestamp(at: UnixMillis) -> Timestamp {
    Timestamp::from_millisecond(at.0).unwrap_or(Timestamp::MAX)
}

fn micro_time_json(at: UnixMillis) -> Value {
    json!(MicroTime(timestamp(at)))
}

fn time_json(at: UnixMillis) -> Value {
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

/// The spec of an item.
pub fn spec(item: &WorkItem) -> Spec {
    let created = item.metadata.creation_timestamp.as_ref().map_or(UnixMillis::default(), |time| unix_millis(time.0));
    let asked = item.spec.submit_time.as_ref().map(|time| unix_millis(time.0));
    let earliest = UnixMillis(created.0.saturating_sub(i64::try_from(MAX_SUBMISSION_LEAD.as_millis()).unwrap_or(i64::MAX)));
    let blank = item.status.as_ref().is_none_or(|status| status.phase.is_none());
    let labels = item.metadata.labels.as_ref();
    let from_backup = labels.is_some_and(|labels| labels.contains_key("velero.io/restore-name"))
        || asked.is_some_and(|asked| created.since(asked) > RESTORED_AGE_THRESHOLD);
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
        // The time of creation has whole seconds only.
        submitted: asked.map_or(created, |asked| asked.max(earliest).min(UnixMillis(created.0.saturating_add(999)))),
        created,
        not_before: spec.not_before_time.as_ref().map(|time| unix_millis(time.0)),
        deadline: spec.deadline_time.as_ref().map(|time| unix_millis(time.0)),
        suspend: spec.suspend.unwrap_or(false),
        cancel: spec.cancel_requested.unwrap_or(false),
        redrives: spec.redrives.unwrap_or(0),
        resume_pause: spec.resume_pause.unwrap_or(0),
        released_epoch: spec.released_epoch.unwrap_or(0),
        unsupported: unsupported_fields(item),
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
        requires: requires(spec),
        egress: item_egress(spec),
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

/// The agents that may take an item. None: the selector has an operator that Kubernetes does not have.
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

/// The requirements of an item. Requirements that this version does not support are refused before.
fn requires(spec: &WorkItemSpec) -> Requires {
    let sandbox = item_sandbox(spec).map(sandbox::required).unwrap_or_default();
    let Some(work_item::Requires { tools, models, urls, accounts, volumes, repositories }) = &spec.requires else {
        return Requires { sandbox, ..Requires::default() };
    };
    let names = |names: &Option<Vec<String>>| names.iter().flatten().cloned().collect();
    Requires {
        tools: names(tools),
        models: names(models),
        urls: names(urls),
        accounts: names(accounts),
        volumes: names(volumes),
        repositories: names(repositories),
        sandbox,
    }
}

/// Unsupported fields that an item uses, as text. None: it uses none.
fn unsupported_fields(item: &WorkItem) -> Option<String> {
    let WorkItemSpec { agent_selector, bulkhead, .. } = &item.spec;
    if selector(agent_selector.as_ref()).is_none() {
        return Some("an unknown operator in agentSelector.matchExpressions".to_owned());
    }
    // Most items set none, and there may be tens of thousands of items.
    let bulkhead = bulkhead.as_ref()?;
    let asked = unsupported::used_fields("WorkItem", &json!({"bulkhead": bulkhead}));
    let fields: Vec<&str> = asked.iter().map(|field| field.path.trim_start_matches("spec.")).collect();
    (!fields.is_empty()).then(|| fields.join(" and "))
}

/// Queue of an item: the queue that admitted it, or else the queue that its spec names.
pub fn queue_of(item: &WorkItem) -> Option<&str> {
    let admitted = item.status.as_ref().and_then(|status| status.queue.as_deref());
    admitted.or_else(|| item.spec.queue_ref.as_ref().map(|queue| queue.name.as_str()))
}

/// The record of an item, from its status.
pub fn record(item: &WorkItem) -> Record {
    let Some(status) = &item.status else { return Record::default() };
    let lease = status.lease.clone().unwrap_or_default();
    let count = |value: Option<i32>| number(value).unwrap_or(0);
    let holder = lease.holder.filter(|holder| !holder.is_empty()).map(|pod| Holder {
        pod,
        agent: lease.agent.unwrap_or_default(),
        since: lease.acquire_time.map_or(UnixMillis::default(), |time| unix_millis(time.0)),
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
        next_attempt: status.next_attempt_time.as_ref().map(|time| unix_millis(time.0)),
        started: status.start_time.as_ref().map(|time| unix_millis(time.0)),
        completed: status.completion_time.as_ref().map(|time| unix_millis(time.0)),
        history: status
            .attempt_history
            .iter()
            .flatten()
            .map(|attempt| Attempt {
                epoch: attempt.epoch,
                agent: attempt.agent.clone(),
                start: unix_millis(attempt.start_time.0),
                end: attempt.end_time.as_ref().map_or(UnixMillis::default(), |time| unix_millis(time.0)),
                verb: Verb::ALL.into_iter().find(|verb| verb.name() == attempt.verb).unwrap_or(Verb::LeaseExpired),
                reason: attempt.reason.clone(),
                message: attempt.message.clone(),
            })
            .collect(),
    }
}

/// The entry of an item in the item index.
pub fn entry(item: &WorkItem) -> Entry {
    Entry {
        uid: item.metadata.uid.clone().unwrap_or_default(),
        version: item.metadata.resource_version.clone().unwrap_or_default(),
        spec: spec(item),
        record: record(item),
        unsaved: None,
        ready_since: None,
        first_ready: item.status.as_ref().and_then(|status| status.ready_time.as_ref()).map(|time| unix_millis(time.0)),
        tracked: is_gitops_managed(&item.metadata),
        generation: item.metadata.generation.unwrap_or(0),
        open_changeset: changeset::open_branch(item),
    }
}

/// Whether the current attempt has progress, or has written a checkpoint. Progress of an earlier attempt has no time
/// any more.
pub fn has_progress(item: &WorkItem) -> bool {
    let progress = item.status.as_ref().and_then(|status| status.progress.as_ref()).filter(|said| said.update_time.is_some());
    progress.is_some_and(|said| said.percent.is_some_and(|percent| percent > 0) || said.checkpoint_ref.is_some())
}

/// Whether Argo CD or Flux manages the item. If such an item is deleted, it is created and run again.
fn is_gitops_managed(meta: &ObjectMeta) -> bool {
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

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
