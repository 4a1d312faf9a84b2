//! The status of an Agent, from its state: the one place where states become phases and conditions. Pure.

mod conditions;
mod phase;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::supervise::{self, Pause};
use crate::api::agent::{AgentPhase, ClaimRef, CurrentItem, Goodbye, InterventionRecord, PodRef, SandboxReport, UnavailableSandbox};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentStatus};
use crate::controller::conditions::{Builder, find, with_stored_messages};
use crate::governor::budget::availability::TokenAvailability;
use crate::governor::live::{HumanRequest, View};
use crate::governor::work::namespace_work::AgentHolding;
use crate::policy::agent::State;
use crate::policy::interventions::Decision;
use crate::policy::status_throttle::StatusChange;
use crate::wire::sandbox::SandboxUnavailable;
use conditions::{budget_available, checkpointed, external_sandbox, heartbeating, paused, sandbox, tokens_requested};
use phase::{describe, describe_external};

pub use phase::{hindrance_of, hindrance_reason};

/// The facts that a status is built from.
pub struct StatusFacts<'a> {
    /// The state.
    pub state: &'a State,
    /// The recorded pod, if it is there.
    pub pod: Option<&'a Pod>,
    /// The pod that was just created.
    pub created_pod: Option<&'a PodRef>,
    /// The claim that it mounts.
    pub claim: Option<&'a ClaimRef>,
    /// What the agent reported.
    pub view: Option<&'a View>,
    /// What its supervisor decided, if that is new.
    pub decision: Option<&'a Decision>,
    /// The item that it holds.
    pub holding: Option<&'a AgentHolding>,
    /// Why the agent is paused, if it is.
    pub paused: Option<Pause>,
    /// Whether there are tokens for the agent's calls.
    pub tokens: TokenAvailability,
    /// Whether the agent spent its lifetime tokens and holds no item.
    pub lifetime_spent: bool,
    /// Number of living agents that this agent requested.
    pub children: u32,
    /// Whether the parent agent ended.
    pub parent_ended: bool,
    /// Whether the agent runs outside the cluster and its pool no longer accepts such agents.
    pub external_not_allowed: bool,
    /// Our owner epoch.
    pub epoch: i64,
    /// Now.
    pub now: jiff::Timestamp,
}

/// The status to apply and the kind of its change, or `None` if nothing changed. It contains only our own fields:
/// fields of other writers are neither compared nor written.
pub fn next_status(agent: &Agent, told: &StatusFacts<'_>) -> Option<(AgentStatus, StatusChange)> {
    let stored = own_fields(agent.status.as_ref());
    // A new goodbye and the phase that follows from it are one write.
    let leaves =
        told.parent_ended || told.lifetime_spent || told.external_not_allowed || told.view.is_some_and(|view| view.goodbye.is_some());
    let state = if leaves && matches!(told.state, State::Running(_)) { &State::Stopping } else { told.state };
    let outside = agent.spec.external.is_some();
    let (phase, ready, reason, message) = outside.then(|| describe_external(state)).flatten().or_else(|| describe(state, &stored))?;
    let generation = agent.metadata.generation.unwrap_or(0);
    let conditions = Builder { stored: &stored.conditions, generation, now: told.now };
    let mut next = AgentStatus { observed_generation: Some(generation), phase: Some(phase), ..stored.clone() };
    next.pod_ref = told.created_pod.cloned().or(next.pod_ref);
    next.claim_ref = told.claim.cloned().or(next.claim_ref);
    if let Some(pod) = told.pod {
        place(pod, &mut next);
    }
    if phase.ended() && next.stop_time.is_none() {
        next.stop_time = Some(Time(told.now));
    }
    set_reported_fields(agent, told, &mut next);
    if *state == State::Hibernated {
        forget_pod(&mut next);
    }
    next.conditions = vec![conditions.build(types::READY, ready, &reason, message)];
    next.conditions.extend(heartbeating(told, &conditions, phase));
    next.conditions.extend(next.goodbye.as_ref().map(|goodbye| {
        let said = goodbye.reason.clone().unwrap_or_default();
        let was = |reason: &str| find(&stored.conditions, types::GOODBYE_REQUESTED).is_some_and(|said| said.reason == reason);
        let first = stored.goodbye.is_none();
        let reason = if told.parent_ended {
            reasons::PARENT_ENDED
        } else if was(reasons::EXTERNAL_NOT_ALLOWED) || (told.external_not_allowed && first) {
            reasons::EXTERNAL_NOT_ALLOWED
        } else if was(reasons::LIFETIME_SPENT) || (told.lifetime_spent && first) {
            reasons::LIFETIME_SPENT
        } else {
            reasons::SAID_GOODBYE
        };
        conditions.build(types::GOODBYE_REQUESTED, true, reason, said)
    }));
    let given_up = if let State::Condemned(Some((why, words))) = told.state {
        Some(conditions.build(types::GIVEN_UP, true, supervise::reason(*why), words.clone()))
    } else {
        find(&stored.conditions, types::GIVEN_UP).cloned()
    };
    next.conditions.extend(given_up);
    next.conditions.push(if outside { external_sandbox(&conditions) } else { sandbox(told, &next, &conditions) });
    next.conditions.push(paused(told, next.paused_at_limit, &conditions));
    next.conditions.extend(checkpointed(told, &conditions).filter(|_| !phase.ended()));
    next.conditions.extend(tokens_requested(told, &conditions).filter(|_| !phase.ended()));
    let available = budget_available(told, &conditions, phase);
    // A first `BudgetAvailable` with True is no reason for a write: it is written with the next change.
    let (rides, counts) =
        available.into_iter().partition::<Vec<_>, _>(|is| is.status == "True" && find(&stored.conditions, &is.type_).is_none());
    next.conditions.extend(counts);
    let quiet = AgentStatus {
        conditions: with_stored_messages(&next.conditions, &stored.conditions),
        phase: if both_at_work(stored.phase, next.phase) { stored.phase } else { next.phase },
        current_action: stored.current_action.clone(),
        current_item: stored.current_item.clone(),
        children: stored.children,
        ..next.clone()
    };
    let change = if next == stored {
        return None;
    } else if quiet == stored || (still_starting(&next) && still_starting(&stored) && next.pod_ref == stored.pod_ref) {
        StatusChange::Counts // only words or counts changed: a quota's message, a back-off that goes on, what an agent does
    } else {
        StatusChange::State
    };
    next.conditions.extend(rides);
    // Times alone cause no write: they are written with other changes. Times of an earlier leader stay until there are
    // newer ones.
    next.last_heartbeat_time = agent.status.as_ref().and_then(|status| status.last_heartbeat_time.clone());
    next.last_activity_time = agent.status.as_ref().and_then(|status| status.last_activity_time.clone());
    if *state == State::Hibernated {
        (next.last_heartbeat_time, next.last_activity_time) = (None, None);
    } else if let Some((report, at)) = told.view.and_then(|view| view.report.as_ref()) {
        next.last_heartbeat_time = Some(Time(*at));
        let silent = jiff::SignedDuration::from_millis(i64::try_from(report.silent_ms).unwrap_or(i64::MAX));
        next.last_activity_time = at.checked_sub(silent).ok().map(Time);
    }
    next.governor_epoch = Some(told.epoch);
    Some((next, change))
}

/// Clears all fields of a pod that is gone, so that the next pod starts without them.
fn forget_pod(next: &mut AgentStatus) {
    let AgentStatus { pod_ref, node, container_id, start_time, current_action, current_item, sandbox, .. } = next;
    (*pod_ref, *node, *container_id, *start_time) = (None, None, None, None);
    (*current_action, *current_item, *sandbox) = (None, None, None);
}

/// Active and Idle alternate with each item, so a change between them may wait like a count.
fn both_at_work(before: Option<AgentPhase>, after: Option<AgentPhase>) -> bool {
    let at_work = |phase| matches!(phase, Some(AgentPhase::Active | AgentPhase::Idle));
    at_work(before) && at_work(after)
}

/// Whether a pod is starting and has not registered yet. The steps of a start are written together with its result, if
/// that comes soon: else 1,000 starting agents would cause 3,000 writes.
fn still_starting(status: &AgentStatus) -> bool {
    let on_its_way = [reasons::POD_PENDING, reasons::POD_NOT_READY, reasons::PROCESS_NOT_READY, reasons::NOT_REGISTERED];
    find(&status.conditions, types::READY).is_some_and(|ready| on_its_way.contains(&ready.reason.as_str()))
}

/// Copies node, container id and start time of the pod.
fn place(pod: &Pod, next: &mut AgentStatus) {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let container = containers.and_then(|all| all.iter().find(|one| one.name == super::build::AGENT_CONTAINER));
    next.node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).or(next.node.take());
    next.container_id =
        container.and_then(|container| container.container_id.clone()).filter(|id| !id.is_empty()).or(next.container_id.take());
    next.start_time = container.and_then(started).or(next.start_time.take());
}

/// Sets the fields that follow from the agent's reports, and from decisions about it.
fn set_reported_fields(agent: &Agent, told: &StatusFacts<'_>, next: &mut AgentStatus) {
    if let Some(view) = told.view {
        if let Some((report, _)) = &view.report {
            next.current_action = report.action.clone();
        }
        let unavailable = |unavailable: &SandboxUnavailable| UnavailableSandbox {
            reason: unavailable.reason.condition_reason().to_owned(),
            message: unavailable.message.clone(),
        };
        if let Some(found) = &view.sandbox {
            let unavailable = found.unavailable.as_ref().map(unavailable);
            let missing = Some(found.missing.clone()).filter(|all| !all.is_empty());
            let refused = next.sandbox.take().and_then(|stored| stored.refused);
            next.sandbox = Some(SandboxReport { tier: found.tier.clone(), missing, unavailable, refused });
        }
        if let Some((sandbox, (report, _))) = next.sandbox.as_mut().zip(view.report.as_ref()) {
            // The sidecar, which registered, does not know what went wrong in the agent's container.
            sandbox.unavailable = sandbox.unavailable.take().or(report.unavailable.as_ref().map(unavailable));
            sandbox.refused = Some(report.refused.uses.clone()).filter(|uses| !uses.is_empty()).or(sandbox.refused.take());
        }
        // A hibernating agent comes back, so a goodbye of its program, which is asked to end, is ignored.
        if next.goodbye.is_none()
            && !matches!(told.state, State::Hibernating | State::Hibernated)
            && let Some((reason, at)) = &view.goodbye
        {
            next.goodbye = Some(Goodbye { time: Time(*at), reason: Some(reason.clone()) });
        }
    }
    next.current_item =
        told.holding.map(|holding| CurrentItem { name: holding.name.clone(), uid: holding.held.uid.clone(), epoch: holding.held.epoch });
    if told.parent_ended && next.goodbye.is_none() {
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some("the parent agent (spec.parentRef) ended".into()) });
    }
    if told.external_not_allowed && next.goodbye.is_none() {
        let words = "the agent's pool no longer accepts agents outside the cluster (spec.external is not set)";
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some(words.into()) });
    }
    if told.lifetime_spent && next.goodbye.is_none() {
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some("the agent has spent its lifetime tokens".into()) });
    }
    let timeouts = supervise::stored_timeouts(agent).saturating_add(told.view.map_or(0, |view| view.timeouts));
    next.timeouts = (timeouts > 0).then(|| i32::try_from(timeouts).unwrap_or(i32::MAX));
    next.paused_at_limit = match told.paused {
        Some(Pause::Tokens) => next.paused_at_limit.or_else(|| told.view?.refused_at_limit),
        Some(Pause::Spec | Pause::Supervisor) | None => None,
    };
    let children = i32::try_from(told.children).unwrap_or(i32::MAX);
    next.children = (children > 0 || next.children.is_some()).then_some(children);
    let was_paused =
        agent.status.as_ref().and_then(|status| find(&status.conditions, types::PAUSED)).is_some_and(|was| was.status == "True");
    if told.paused.is_some() && !was_paused {
        next.pauses = Some(next.pauses.unwrap_or(0) + 1);
    }
    if let Some(decision) = told.decision {
        let words = if decision.enforced { decision.message.clone() } else { format!("{} (observed only)", decision.message) };
        let record = InterventionRecord {
            time: Time(told.now),
            signal: decision.signal.name().to_owned(),
            action: decision.action.name().to_owned(),
            // Bounded as in the schema, because a program may have written the text.
            message: words.chars().take(1024).collect(),
            overruled: (!decision.overruled.is_empty()).then(|| {
                let all = decision.overruled.iter().take(MAX_OVERRULED);
                all.map(|(signal, action)| format!("{}: {}", signal.name(), action.name())).collect()
            }),
        };
        let all = next.interventions.get_or_insert_default();
        all.push(record);
        let surplus = all.len().saturating_sub(MAX_INTERVENTIONS);
        all.drain(..surplus);
    }
}

/// The request to people that the status contains.
pub fn stored_request(status: &AgentStatus) -> HumanRequest {
    let asked = find(&status.conditions, types::TOKENS_REQUESTED).filter(|asked| asked.status == "True");
    asked.map_or(HumanRequest::Nothing, |asked| HumanRequest::Tokens(asked.message.clone()))
}

/// When the program of a pod started, also if it has ended since.
pub fn started_at(pod: &Pod) -> Option<Time> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.iter().find(|one| one.name == super::build::AGENT_CONTAINER).and_then(started)
}

fn started(container: &ContainerStatus) -> Option<Time> {
    let state = container.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.clone());
    running.or_else(|| state.terminated.as_ref().and_then(|terminated| terminated.started_at.clone()))
}

/// The fields of a status that this controller owns, without the times: they alone cause no write.
fn own_fields(status: Option<&AgentStatus>) -> AgentStatus {
    let Some(status) = status else { return AgentStatus::default() };
    let ours = |condition: &&Condition| OWNED_CONDITION_TYPES.contains(&condition.type_.as_str());
    AgentStatus {
        observed_generation: status.observed_generation,
        phase: status.phase,
        pod_ref: status.pod_ref.clone(),
        claim_ref: status.claim_ref.clone(),
        node: status.node.clone(),
        container_id: status.container_id.clone(),
        start_time: status.start_time.clone(),
        stop_time: status.stop_time.clone(),
        goodbye: status.goodbye.clone(),
        current_action: status.current_action.clone(),
        current_item: status.current_item.clone(),
        pauses: status.pauses,
        paused_at_limit: status.paused_at_limit,
        timeouts: status.timeouts,
        children: status.children,
        sandbox: status.sandbox.clone(),
        interventions: status.interventions.clone(),
        governor_epoch: status.governor_epoch,
        conditions: status.conditions.iter().filter(ours).cloned().collect(),
        ..AgentStatus::default()
    }
}

/// The condition types that this controller owns.
const OWNED_CONDITION_TYPES: [&str; 9] = [
    types::READY,
    types::HEARTBEATING,
    types::GOODBYE_REQUESTED,
    types::GIVEN_UP,
    types::SANDBOX_ENFORCED,
    types::PAUSED,
    types::CHECKPOINTED,
    types::TOKENS_REQUESTED,
    types::BUDGET_AVAILABLE,
];
/// Message while the agent has not registered.
const NOT_REGISTERED_MESSAGE: &str = "the agent has not registered with the gateway yet";
/// Maximum number of interventions in the status.
const MAX_INTERVENTIONS: usize = 5;
/// Maximum number of overruled interventions in one record.
const MAX_OVERRULED: usize = 16;
/// Seconds after which a checkpoint without a reported result counts as not taken. The pod gives its hook less time.
const CHECKPOINT_TIMEOUT_SECONDS: i64 = 180;

/// A change that is reported as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNews {
    /// Whether the event is a warning.
    pub warning: bool,
    /// Reason of the event.
    pub reason: String,
    /// Note of the event.
    pub note: String,
}

/// Changes that are reported as events: an Agent that failed or cannot start, a goodbye, a pause. Interventions have
/// events of their own.
pub fn status_events(stored: Option<&AgentStatus>, next: &AgentStatus) -> Vec<StatusNews> {
    let none = Vec::new();
    let before = stored.map_or(&none, |stored| &stored.conditions);
    let began = |type_: &str| {
        let now = find(&next.conditions, type_)?;
        let was = find(before, type_);
        (was.map(|was| (&was.status, &was.reason)) != Some((&now.status, &now.reason))).then_some(now)
    };
    let told = |now: &Condition, warning| StatusNews { warning, reason: now.reason.clone(), note: now.message.clone() };
    let mut all = Vec::new();
    if let Some(now) = began(types::READY) {
        let trouble = [
            reasons::POD_FAILED,
            reasons::NODE_UNREACHABLE,
            reasons::POD_MISSING,
            reasons::EGRESS_NOT_ENFORCED,
            reasons::PREFLIGHT_FAILED,
            reasons::START_TIMED_OUT,
        ];
        let waits = hindrance_of(&now.reason).is_some();
        if waits || (trouble.contains(&now.reason.as_str()) && next.phase != Some(AgentPhase::ForceStopped)) {
            all.push(told(now, true));
        }
        if now.reason == reasons::HIBERNATED {
            all.push(told(now, false));
        } else if find(before, types::READY).is_some_and(|was| was.reason == reasons::HIBERNATED) {
            all.push(StatusNews {
                warning: false,
                reason: reasons::WOKEN.to_owned(),
                note: "there is work for the agent again".to_owned(),
            });
        }
    }
    all.extend(began(types::GOODBYE_REQUESTED).map(|now| told(now, false)));
    all.extend(began(types::TOKENS_REQUESTED).filter(|now| now.status == "True").map(|now| told(now, true)));
    let was_paused = find(before, types::PAUSED).is_some_and(|was| was.status == "True");
    all.extend(
        began(types::CHECKPOINTED).filter(|now| now.status != "Unknown").map(|now| told(now, now.reason == reasons::CHECKPOINT_FAILED)),
    );
    all.extend(began(types::PAUSED).filter(|now| now.status == "True" || was_paused).map(|now| told(now, false)));
    all
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
