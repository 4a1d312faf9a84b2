//! The report on an item: its state, why it waits, the agent that holds it, and its attempts. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::facts::{Facts, Work};
use super::failures;
use super::queue::{collect_hints, pool_causes};
use super::report::{AttemptReport, List, Report, condition_report};
use super::work::{Cause, build_item_index, pools_of, time_with_distance};
use super::{artifact, changeset};
use crate::api::agent::AgentPhase;
use crate::api::work_item::{DependencyCondition, WorkItemStatus};
use crate::api::{AgentPool, WorkItem, names};
use crate::find;
use crate::policy::work::admission::{Admission, Refusal};
use crate::policy::work::item::{UnixMillis, reasons};
use crate::policy::work::item_index::{ClaimObstacle, ClaimRequester, ItemIndex};
use crate::policy::work::requires::{self, PoolOffer};
use crate::policy::work::{Phase, Policy, Record, Spec};
use crate::work::life;
use crate::write::Decision;
use spillway_conversion::pool::pool_offer;
use spillway_conversion::work as convert;

/// An item with the objects related to it.
struct View<'a> {
    item: &'a WorkItem,
    name: String,
    namespace: &'a str,
    spec: Spec,
    record: Record,
    policy: Policy,
    item_index: ItemIndex,
    work: &'a Work,
}

/// The report on an item.
pub fn report(facts: &Facts, work: &Work, item: &WorkItem) -> Report {
    let book = build_item_index(work);
    let name = item.name_any();
    let policy = book.get(&name).map(|entry| book.policy(entry)).unwrap_or_default();
    let (spec, record) = (convert::spec(item), convert::record(item));
    let view = View { item, name, namespace: &facts.namespace, spec, record, policy, item_index: book, work };
    let causes = causes(&view);
    let status = item.status.clone().unwrap_or_default();
    let since = status
        .completion_time
        .clone()
        .or_else(|| status.lease.as_ref().and_then(|lease| lease.acquire_time.as_ref()).map(|time| Time(time.0)));
    Report {
        kind: "WorkItem".to_owned(),
        name: view.name.clone(),
        state: life::state(item),
        since: since.filter(|_| view.record.phase.ended() || view.record.phase.held()),
        facts: item_facts(&view, &status),
        conditions: status.conditions.iter().map(condition_report).collect(),
        why: causes.iter().map(|cause| cause.words.clone()).collect(),
        attempts: status.attempt_history.iter().flatten().map(attempt_report).collect(),
        advice: collect_hints(causes),
        ..Report::default()
    }
}

fn attempt_report(attempt: &crate::api::work_item::Attempt) -> AttemptReport {
    let crate::api::work_item::Attempt { epoch, agent, start_time, end_time, verb, reason, message } = attempt.clone();
    AttemptReport { epoch, agent, start_time, end_time, verb, reason, message }
}

fn item_facts(view: &View, status: &WorkItemStatus) -> Vec<super::report::Fact> {
    let View { item, spec, record, policy, work, .. } = view;
    let mut list = List::default();
    list.text("Queue", convert::queue_of(item));
    list.text("Type", spec.type_.as_ref());
    list.text("Priority", Some(spec.priority));
    list.text("Group", spec.group.as_ref());
    list.text("Key", spec.concurrency_key.as_ref());
    list.text("Dedup key", spec.dedup_key.as_ref());
    list.time("Created", item.metadata.creation_timestamp.as_ref(), "");
    list.time("Deletion", item.metadata.deletion_timestamp.as_ref(), "requested");
    list.text("Not before", item.spec.not_before_time.as_ref().map(|time| time_with_distance(time.0, work.now)));
    list.text("Deadline", item.spec.deadline_time.as_ref().map(|time| time_with_distance(time.0, work.now)));
    if record.epoch > 0 {
        list.text("Failures", Some(format!("{} of {} (maxAttempts)", record.failures, policy.max_attempts)));
        list.text("Losses", Some(format!("{} of {} (maxStalls), of agent or node", record.stalls, policy.max_stalls)));
        list.text("Epoch", Some(record.epoch));
    }
    if let (Phase::DeadLettered, Some(UnixMillis(since))) = (record.phase, record.completed) {
        let until = jiff::Timestamp::from_millisecond(UnixMillis(since).after(policy.dead_letter_ttl).0).ok();
        let until = until.map(|until| time_with_distance(until, work.now));
        list.text("Kept until", until.map(|until| format!("{until} (spec.deadLetters of its queue)")));
    }
    list.text("Redrives", Some(record.redrives).filter(|redrives| *redrives > 0));
    if let Some(progress) = &status.progress {
        let percent = progress.percent.map(|percent| format!("{percent} % ")).unwrap_or_default();
        list.time("Progress", progress.update_time.as_ref(), format!("{percent}{}", progress.message.clone().unwrap_or_default()));
    }
    list.text("Tokens", status.tokens.as_ref().map(|tokens| tokens.used));
    list.text("Result", status.result.as_ref());
    changeset::add_facts(&mut list, item);
    artifact::add_facts(&mut list, item);
    list.into_facts()
}

/// The causes of its state.
fn causes(view: &View) -> Vec<Cause> {
    let mut causes = Vec::new();
    if view.item.status.as_ref().is_none_or(|status| status.phase.is_none()) {
        causes.push(Cause::with_action(
            "the operator has not observed the item yet",
            "NotObserved",
            "check that the operator runs (`kubectl get pods -A -l app.kubernetes.io/name=spillway`) and serves this namespace",
        ));
    }
    if view.item.metadata.deletion_timestamp.is_some() {
        causes.push(Cause::without_advice("the item is being deleted"));
    }
    causes.extend(changeset::failure_cause(&view.record, only_pool(view).as_deref(), view.namespace));
    causes.extend(match view.record.phase {
        Phase::Pending => pending_causes(view),
        Phase::Rejected => rejected_causes(view),
        Phase::Suspended => suspended_causes(view),
        Phase::Blocked => blocked_causes(view),
        Phase::Scheduled => vec![scheduled_cause(view)],
        Phase::Ready => ready_causes(view),
        Phase::Leased | Phase::Paused | Phase::Cancelling => held_causes(view),
        Phase::Succeeded => Vec::new(),
        Phase::Failed | Phase::DeadLettered | Phase::Expired | Phase::Cancelled => ended_causes(view),
    });
    causes
}

fn pending_causes(view: &View) -> Vec<Cause> {
    if view.work.queues.is_none() {
        return Vec::new();
    }
    match view.item_index.admission(&view.name, &view.spec) {
        Admission::Unknown => Vec::new(),
        Admission::To(queue) => vec![Cause::without_advice(format!("no rule refuses the item: queue {queue} admits it in a moment"))],
        Admission::Refused(refusal) => vec![refusal_cause(view, &refusal, refusal.to_string())],
    }
}

fn rejected_causes(view: &View) -> Vec<Cause> {
    // The Budgets are not read, so it is not known whether the refusal still holds.
    if view.record.reason.as_deref() == Some(reasons::PROJECT_FULL) {
        let words = life::message(view.item).unwrap_or("the namespace had as many unfinished items as its Budgets allow").to_owned();
        return vec![Cause::with_action(words, reasons::PROJECT_FULL, project_full_advice(view))];
    }
    if view.work.queues.is_none() {
        return vec![redrive_cause(view, "the item was not admitted".to_owned())];
    }
    match view.item_index.admission(&view.name, &view.spec) {
        Admission::Unknown => Vec::new(),
        Admission::To(queue) => vec![redrive_cause(view, format!("queue {queue} would admit the item now"))],
        Admission::Refused(refusal) => vec![refusal_cause(view, &refusal, format!("the item would be refused again: {refusal}"))],
    }
}

/// The cause and the advice for a refusal.
fn refusal_cause(view: &View, refusal: &Refusal, words: String) -> Cause {
    let again = redrive_command(view);
    let advice = match refusal {
        Refusal::QueueMissing(Some(queue)) => format!("create queue {queue}, then run {again}; or submit another item"),
        Refusal::QueueMissing(None) => {
            format!("let a queue accept the item's type (spec.accepts.types), or be the default (spec.accepts.default), then run {again}")
        }
        Refusal::QueueFull { queue, .. } => {
            format!("raise spec.limits.maxPending of queue {queue}, or wait until some of its items are done, then run {again}")
        }
        Refusal::ProjectFull { .. } => project_full_advice(view),
        Refusal::TypeNotAccepted { queue, .. } => {
            format!(
                "add the item's type to spec.accepts.types of queue {queue}, then run {again}; or submit another item with another --type"
            )
        }
        Refusal::TooLarge { .. } => {
            "submit another item: put larger input into a repository or a volume, and name it in the payload".to_owned()
        }
        Refusal::Duplicate(name) => {
            format!("item {name} already does this work: `kubectl spillway explain item/{name} -n {}`", view.namespace)
        }
        Refusal::Cycle(_) => "submit another item without that dependency".to_owned(),
        Refusal::Unsupported(what) => format!("submit another item without {what}"),
    };
    Cause::with_action(words, refusal.reason(), advice)
}

fn project_full_advice(view: &View) -> String {
    let again = redrive_command(view);
    format!("raise the field that is named above, or wait until some items of namespace {} are done, then run {again}", view.namespace)
}

fn redrive_command(view: &View) -> String {
    format!("`kubectl spillway redrive {} -n {}`", view.name, view.namespace)
}

/// How to start the item again, or why that is not possible.
fn redrive_cause(view: &View, words: String) -> Cause {
    let reason = view.record.reason.clone().unwrap_or_else(|| view.record.phase.name().to_owned());
    match life::redrive(view.item, view.work.queues.as_deref().unwrap_or_default()) {
        Decision::Write(_) => {
            let again = format!("{} starts the item again, from the beginning", redrive_command(view));
            let advice = failures::before_redrive(view.item, &view.record, only_pool(view).as_deref(), view.namespace).followed_by(again);
            Cause::with_action(words, &reason, advice)
        }
        Decision::Leave(why) => Cause::without_action(words, &reason, why),
        Decision::Refuse(why) => Cause::without_action(words, &reason, format!("the item {why}")),
    }
}

/// The pool that works from the item's queue, if there is exactly one.
fn only_pool(view: &View) -> Option<String> {
    let pools = pools_of(view.work.pools.as_deref().unwrap_or_default(), convert::queue_of(view.item)?);
    match pools.as_slice() {
        [(pool, _)] => Some(pool.name_any()),
        _ => None,
    }
}

fn suspended_causes(view: &View) -> Vec<Cause> {
    vec![if view.record.reason.as_deref() == Some(reasons::RESTORED) {
        redrive_cause(view, "the item was restored from a backup, and restored items do not start automatically".to_owned())
    } else {
        let advice = format!("`kubectl spillway resume item/{} -n {}` resumes the item", view.name, view.namespace);
        Cause::with_action("the item is paused (spec.suspend)", "Suspended", advice)
    }]
}

fn blocked_causes(view: &View) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let (Some((plan, size)), Some(items)) = (&view.spec.plan, &view.work.items) {
        let there = items.iter().filter(|item| item.spec.plan.as_ref().is_some_and(|other| other.id == *plan)).count();
        if there < usize::try_from(*size).unwrap_or(usize::MAX) {
            let advice = "submit the other items; after ten minutes the item is cancelled";
            causes.push(Cause::with_action(
                format!("only {there} of the {size} items of plan {plan} exist"),
                reasons::PLAN_INCOMPLETE,
                advice,
            ));
        }
    }
    for on in view.item.spec.depends_on.iter().flatten() {
        causes.extend(dependency_cause(view, &on.name, on.condition == DependencyCondition::Succeeded));
    }
    if causes.is_empty() {
        causes.push(Cause::without_advice("the item does not wait for other items any more: it continues in a moment"));
    }
    causes
}

/// The cause, if a dependency is not fulfilled.
fn dependency_cause(view: &View, name: &str, succeeded: bool) -> Option<Cause> {
    let end = format!("`kubectl spillway cancel {} -n {}` ends this item", view.name, view.namespace);
    let Some(items) = &view.work.items else { return Some(Cause::without_advice(format!("the item waits for item {name}"))) };
    let Some(other) = items.iter().find(|item| item.name_any() == name) else {
        let advice = format!("submit an item with that name (--name {name}); or {end}");
        return Some(Cause::with_action(
            format!("the item waits for item {name}, which does not exist"),
            reasons::DEPENDENCY_MISSING,
            advice,
        ));
    };
    let (phase, state) = (life::phase(other), life::state(other));
    let how = if succeeded { "succeeded" } else { "ended" };
    match phase {
        Phase::Succeeded => None,
        phase if phase.ended() && !succeeded => None,
        phase if phase.ended() => {
            let advice =
                format!("`kubectl spillway redrive {name} -n {}` starts item {name} again, if that is possible; or {end}", view.namespace);
            Some(Cause::with_action(
                format!("the item waits until item {name} has succeeded, but item {name} has ended without success ({state})"),
                reasons::DEPENDENCY_FAILED,
                advice,
            ))
        }
        _ => {
            let advice = format!("`kubectl spillway explain item/{name} -n {}` shows what item {name} waits for", view.namespace);
            Some(Cause::without_action(format!("the item waits until item {name} has {how} ({state})"), reasons::DEPENDENCIES, advice))
        }
    }
}

fn scheduled_cause(view: &View) -> Cause {
    let status = view.item.status.as_ref();
    let due = status.and_then(|status| status.next_attempt_time.as_ref()).or(view.item.spec.not_before_time.as_ref()).map(|time| time.0);
    let why = match view.record.reason.as_deref() {
        Some(reasons::NOT_BEFORE) => "spec.notBeforeTime",
        Some(reasons::BACKOFF) => "delay after a failure",
        Some(reasons::RETRY_ELSEWHERE) => "delay after a failure, then another agent gets it",
        Some(reasons::AGENT_LOST) => "delay after the loss of its agent",
        Some(reasons::RELEASED) => "delay after agents gave it back more than once",
        _ => "its scheduled time",
    };
    match due {
        Some(due) if due > view.work.now => Cause::without_action(
            format!("agents can claim the item at {} ({why})", time_with_distance(due, view.work.now)),
            view.record.reason.as_deref().unwrap_or("Scheduled"),
            "the item continues automatically then; spec.itemDefaults.backoff of its queue sets such delays",
        ),
        _ => Cause::without_advice(format!("the time of the item has come: it is ready in a moment ({why})")),
    }
}

fn ready_causes(view: &View) -> Vec<Cause> {
    let Some(queue) = convert::queue_of(view.item).map(str::to_owned) else { return Vec::new() };
    let mut causes = Vec::new();
    if view.work.items.is_some() {
        causes.extend(queue_position_causes(view, &queue));
    }
    causes.extend(
        view.record
            .excluded_agent()
            .map(|agent| Cause::without_advice(format!("agent {agent} failed at the item, so another agent gets it"))),
    );
    let Some(all) = &view.work.pools else { return causes };
    let eligible = eligible(view, pools_of(all, &queue), &mut causes);
    if eligible.is_empty() && !pools_of(all, &queue).is_empty() {
        causes.push(Cause::with_action(
            format!("no pool that works from queue {queue} takes the item"),
            "NoPool",
            "let a pool take the item's type (spec.queues[].types), give its agents the labels that the item selects \
             (spec.agentSelector), and add what the item requires (spec.requires)",
        ));
    } else {
        let own = Work { pools: Some(eligible), ..view.work.clone() };
        causes.extend(pool_causes(&own, &queue, view.namespace));
    }
    causes
}

/// Limits of its queue that hold it back, and its position in the queue.
fn queue_position_causes(view: &View, queue: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    // An agent without labels, of a pool that takes every type. An obstacle for this agent is one for all agents, except the
    // selector and the requirements.
    let labels = BTreeMap::new();
    let (queues, offer) = ([(queue.to_owned(), Vec::new())], PoolOffer::default());
    let now = UnixMillis(view.work.now.as_millisecond());
    let anybody = ClaimRequester { agent: "", labels: &labels, queues: &queues, offer: &offer, now };
    let of_pools = |hindrance: &ClaimObstacle| matches!(hindrance, ClaimObstacle::Selector | ClaimObstacle::Requires(_));
    let hindrance = view.item_index.claim_obstacle(&view.name, &anybody).filter(|hindrance| !of_pools(hindrance));
    causes.extend(hindrance.map(|hindrance| obstacle_cause(view, queue, &hindrance)));
    causes.push(Cause::without_advice(match view.item_index.position(&view.name) {
        Some(0) | None => format!("the item is the next one in queue {queue}"),
        Some(1) => format!("1 ready item of queue {queue} is before it"),
        Some(before) => format!("{before} ready items of queue {queue} are before it"),
    }));
    if view.item_index.queue(queue).is_some_and(|queue| queue.strict) {
        causes.push(Cause::without_advice("the order of the queue is strict: agents must claim all items before this item first"));
    }
    causes
}

/// The pools that could take the item. Adds a cause for each other pool.
fn eligible(view: &View, pools: Vec<(&AgentPool, Vec<String>)>, causes: &mut Vec<Cause>) -> Vec<AgentPool> {
    let mut eligible = Vec::new();
    for (pool, types) in pools {
        let name = pool.name_any();
        let label_sets =
            view.work.agents.iter().flatten().filter(|agent| agent.spec.pool_ref.name == name).map(|agent| agent.labels().clone());
        let made = names::pool_labels(&name, &pool.uid().unwrap_or_default(), &pool.spec.type_);
        let fits = |labels: &BTreeMap<String, String>| view.spec.selector.matches(labels);
        if !types.is_empty() && !view.spec.type_.as_ref().is_some_and(|type_| types.contains(type_)) {
            causes.push(Cause::without_advice(format!(
                "pool {name} takes only the types {} from the queue (spec.queues[].types)",
                types.join(", ")
            )));
        } else if let Some(lacks) = Some(pool_offer(&pool.spec).lacks(&view.spec.requires)).filter(|lacks| !lacks.is_empty()) {
            causes.push(Cause::with_action(
                format!("pool {name} lacks what the item requires: {}", requires::unmet_summary(&lacks)),
                reasons::REQUIREMENTS_UNMET,
                format!("add the missing requirements to spec.models, spec.workspace or spec.preflight.tools of pool {name}; or submit another item"),
            ));
        } else if !label_sets.chain(Some(made)).any(|labels| fits(&labels)) {
            causes
                .push(Cause::without_advice(format!("no agent of pool {name} has the labels that the item selects (spec.agentSelector)")));
        } else {
            eligible.push(pool.clone());
        }
    }
    eligible
}

fn obstacle_cause(view: &View, queue: &str, hindrance: &ClaimObstacle) -> Cause {
    match hindrance {
        ClaimObstacle::QueueSuspended => Cause::with_action(
            format!("queue {queue} is paused (spec.suspend)"),
            "Suspended",
            format!("`kubectl spillway resume queue/{queue} -n {}`", view.namespace),
        ),
        ClaimObstacle::QueueBusy(most) => Cause::without_action(
            format!("agents hold as many items of queue {queue} as are allowed at once ({most})"),
            "ConcurrencyLimit",
            format!("the item continues when one of them is done; spec.concurrency.maxLeased of queue {queue} is the limit"),
        ),
        ClaimObstacle::KeyBusy(key, most) => Cause::without_action(
            format!("agents hold as many items with the concurrencyKey {key} as are allowed at once ({most})"),
            "ConcurrencyLimit",
            format!("the item continues when one of them is done; spec.concurrency.maxLeasedPerKey of queue {queue} is the limit"),
        ),
        ClaimObstacle::Type | ClaimObstacle::Selector | ClaimObstacle::Requires(_) | ClaimObstacle::Elsewhere => {
            Cause::without_advice("not every agent may take the item")
        }
    }
}

fn held_causes(view: &View) -> Vec<Cause> {
    let name = life::agent_of(view.item).unwrap_or("not known");
    let (item, namespace) = (&view.name, view.namespace);
    let release =
        format!("if its machine is off and does not come back, run `kubectl spillway release {item} --node-is-dead -n {namespace}`");
    let agent = view.work.agents.iter().flatten().find(|agent| agent.name_any() == name);
    let mut causes = vec![match agent {
        None if view.work.agents.is_none() => Cause::without_advice(format!("agent {name} holds the item")),
        None => Cause::with_action(
            format!(
                "agent {name}, which holds the item, has ended or was deleted: the item goes back to its queue when the agent's pod is proved gone"
            ),
            reasons::AGENT_LOST,
            format!("wait a minute or two; {release}"),
        ),
        Some(agent) => {
            let node =
                agent.status.as_ref().and_then(|status| status.node.clone()).map(|node| format!(", on node {node}")).unwrap_or_default();
            let stale = find::phase(agent) == Some(AgentPhase::Stale);
            let words = format!("agent {name} holds the item: {}{node}", find::state(agent));
            if stale {
                Cause::with_action(words, "NodeUnreachable", format!("repair the node; {release}"))
            } else {
                Cause::without_advice(words)
            }
        }
    }];
    match view.record.phase {
        Phase::Paused => causes.push(Cause::with_action(
            "the item is paused with its agent; the time of its lease does not run",
            "Paused",
            format!("`kubectl spillway explain {name} -n {namespace}` shows why; `kubectl spillway resume item/{item} -n {namespace}` resumes the item"),
        )),
        Phase::Cancelling => causes.push(Cause::without_action(
            "the agent was told to stop",
            view.record.reason.as_deref().unwrap_or(reasons::CANCEL_REQUESTED),
            "the item ends when the agent stops; an agent that does not stop is ended after its grace period",
        )),
        _ => {}
    }
    if view.spec.released_epoch >= view.record.epoch {
        causes.push(Cause::without_advice("the item was released (spec.releasedEpoch): it goes back to its queue in a moment"));
    }
    causes
}

fn ended_causes(view: &View) -> Vec<Cause> {
    let Record { phase, reason, failures, stalls, .. } = &view.record;
    let words = match reason.as_deref() {
        Some(reasons::TOO_MANY_FAILURES) => {
            format!("the item failed {failures} times, and the limit is {} (maxAttempts)", view.policy.max_attempts)
        }
        Some(reasons::TOO_MANY_STALLS) => {
            format!("the agent or node of the item was lost {stalls} times, and the limit is {} (maxStalls)", view.policy.max_stalls)
        }
        Some(reasons::FAILURE_RULE) => "a rule of its queue ended the item (spec.failurePolicy.rules)".to_owned(),
        Some(reasons::DRONE_FAILED) => "the item failed, and an item of a drone has only one attempt".to_owned(),
        Some(reasons::DEADLINE_EXCEEDED) => "the deadline of the item passed; after a redrive the item ignores it".to_owned(),
        Some(reasons::GROUP_CANCELLED) => format!("group {} of the item was cancelled", view.spec.group.as_deref().unwrap_or_default()),
        Some(reasons::CANCEL_REQUESTED) => "the item was cancelled (spec.cancelRequested)".to_owned(),
        Some(reasons::DEPENDENCY_FAILED) => "an item that it depends on did not succeed (spec.onDependencyFailure)".to_owned(),
        Some(reasons::DEPENDENCY_MISSING) => {
            "an item that it depends on did not exist half a minute after this item was created".to_owned()
        }
        Some(reasons::PLAN_INCOMPLETE) => "the other items of its plan were not created within ten minutes".to_owned(),
        Some(reason) if *phase == Phase::DeadLettered => {
            format!("the item was started again, but was not admitted: {}", life::message(view.item).unwrap_or(reason))
        }
        _ => format!("the item is {}", phase.name()),
    };
    vec![redrive_cause(view, words)]
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;
