//! The status of an Agent, from its state: the one place where states become phases and conditions. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::supervise::{self, Pause};
use crate::api::agent::{AgentPhase, ClaimRef, CurrentItem, Goodbye, InterventionRecord, PodRef, SandboxReport};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentStatus};
use crate::controller::conditions::{Builder, find, with_old_words};
use crate::governor::budget::availability::{self, TokenAvailability};
use crate::governor::live::{HumanRequest, View};
use crate::governor::work::namespace_work::AgentHolding;
use crate::policy::agent::{Activity, AgentEnd, GiveUpReason, HindranceKind, State};
use crate::policy::health::Finding;
use crate::policy::interventions::Decision;
use crate::policy::pod_termination::Verdict;
use crate::policy::status_throttle::StatusChange;
use crate::policy::work::item::Phase;
use crate::wire::agent::{Checkpoint, CheckpointState};

/// What there is to tell.
pub struct StatusFacts<'a> {
    /// The state.
    pub state: &'a State,
    /// The recorded pod, if it is there.
    pub pod: Option<&'a Pod>,
    /// The pod that was just made.
    pub made: Option<&'a PodRef>,
    /// The claim that it mounts.
    pub claim: Option<&'a ClaimRef>,
    /// What it reported.
    pub view: Option<&'a View>,
    /// What its supervisor decided, if that is new.
    pub decision: Option<&'a Decision>,
    /// The item that it holds.
    pub holding: Option<&'a AgentHolding>,
    /// Who holds it.
    pub paused: Option<Pause>,
    /// Whether there are tokens for its calls.
    pub tokens: TokenAvailability,
    /// The tokens of its life are over between two items.
    pub spent: bool,
    /// Agents that it asked for and that live.
    pub children: u32,
    /// The agent that asked for it ended.
    pub parent_ended: bool,
    /// It runs outside the cluster, and its pool takes no such agents any more.
    pub expelled: bool,
    /// Our owner epoch.
    pub epoch: i64,
    /// Now.
    pub now: jiff::Timestamp,
}

/// The status to apply, with what it changes, or `None` if the stored one says it all. Only our own fields are in it: what
/// other writers own is neither compared nor written.
pub fn next(agent: &Agent, told: &StatusFacts<'_>) -> Option<(AgentStatus, StatusChange)> {
    let stored = own(agent.status.as_ref());
    // A goodbye that is written now is followed by its pod's end: told in one write.
    let leaves = told.parent_ended || told.spent || told.expelled || told.view.is_some_and(|view| view.goodbye.is_some());
    let state = if leaves && matches!(told.state, State::Running(_)) { &State::Stopping } else { told.state };
    let outside = agent.spec.external.is_some();
    let (phase, ready, reason, message) = outside.then(|| describe_external(state)).flatten().or_else(|| describe(state, &stored))?;
    let generation = agent.metadata.generation.unwrap_or(0);
    let conditions = Builder { stored: &stored.conditions, generation, now: told.now };
    let mut next = AgentStatus { observed_generation: Some(generation), phase: Some(phase), ..stored.clone() };
    next.pod_ref = told.made.cloned().or(next.pod_ref);
    next.claim_ref = told.claim.cloned().or(next.claim_ref);
    if let Some(pod) = told.pod {
        place(pod, &mut next);
    }
    if phase.ended() && next.stop_time.is_none() {
        next.stop_time = Some(Time(told.now));
    }
    life(agent, told, &mut next);
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
        } else if was(reasons::EXTERNAL_NOT_ALLOWED) || (told.expelled && first) {
            reasons::EXTERNAL_NOT_ALLOWED
        } else if was(reasons::LIFETIME_SPENT) || (told.spent && first) {
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
    next.conditions.push(if outside { no_walls(&conditions) } else { sandbox(told, &next, &conditions) });
    next.conditions.push(paused(told, next.paused_at_limit, &conditions));
    next.conditions.extend(checkpointed(told, &conditions).filter(|_| !phase.ended()));
    next.conditions.extend(asks(told, &conditions).filter(|_| !phase.ended()));
    let available = available(told, &conditions, phase);
    // That there are tokens goes without saying: said for the first time it is no news, and rides along.
    let (rides, counts) =
        available.into_iter().partition::<Vec<_>, _>(|is| is.status == "True" && find(&stored.conditions, &is.type_).is_none());
    next.conditions.extend(counts);
    let quiet = AgentStatus {
        conditions: with_old_words(&next.conditions, &stored.conditions),
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
    // Times alone are no change: they ride along. What a leader before us wrote stays until we know better.
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

/// Nothing is left of its pod: what was said of that is not of the next one, which begins as if there had been none.
fn forget_pod(next: &mut AgentStatus) {
    let AgentStatus { pod_ref, node, container_id, start_time, current_action, current_item, sandbox, .. } = next;
    (*pod_ref, *node, *container_id, *start_time) = (None, None, None, None);
    (*current_action, *current_item, *sandbox) = (None, None, None);
}

/// Active and Idle alternate with each piece of work: a count, not a state that others wait for.
fn both_at_work(before: Option<AgentPhase>, after: Option<AgentPhase>) -> bool {
    let at_work = |phase| matches!(phase, Some(AgentPhase::Active | AgentPhase::Idle));
    at_work(before) && at_work(after)
}

/// Whether a pod is on its way to register, with nothing in it: where it is meanwhile is told with what comes of it, if that
/// comes soon. A thousand agents that start would else be three thousand writes.
fn still_starting(status: &AgentStatus) -> bool {
    let on_its_way = [reasons::POD_PENDING, reasons::POD_NOT_READY, reasons::PROCESS_NOT_READY, reasons::NOT_REGISTERED];
    find(&status.conditions, types::READY).is_some_and(|ready| on_its_way.contains(&ready.reason.as_str()))
}

/// Where the pod is.
fn place(pod: &Pod, next: &mut AgentStatus) {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let container = containers.and_then(|all| all.iter().find(|one| one.name == super::build::CONTAINER));
    next.node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).or(next.node.take());
    next.container_id =
        container.and_then(|container| container.container_id.clone()).filter(|id| !id.is_empty()).or(next.container_id.take());
    next.start_time = container.and_then(started).or(next.start_time.take());
}

/// What it reported, and what was decided about it.
fn life(agent: &Agent, told: &StatusFacts<'_>, next: &mut AgentStatus) {
    if let Some(view) = told.view {
        if let Some((report, _)) = &view.report {
            next.current_action = report.action.clone();
        }
        if let Some(found) = &view.sandbox {
            next.sandbox =
                Some(SandboxReport { tier: found.tier.clone(), missing: Some(found.missing.clone()).filter(|all| !all.is_empty()) });
        }
        // One that is on its way to sleep comes back, whatever its program says when it is asked to end.
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
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some("the agent that asked for it ended".into()) });
    }
    if told.expelled && next.goodbye.is_none() {
        let words = "its pool takes no agents from outside the cluster any more (spec.external)";
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some(words.into()) });
    }
    if told.spent && next.goodbye.is_none() {
        next.goodbye = Some(Goodbye { time: Time(told.now), reason: Some("the tokens of its life are spent".into()) });
    }
    let timeouts = supervise::counted(agent).saturating_add(told.view.map_or(0, |view| view.timeouts));
    next.timeouts = (timeouts > 0).then(|| i32::try_from(timeouts).unwrap_or(i32::MAX));
    next.paused_at_limit = match told.paused {
        Some(Pause::Tokens) => next.paused_at_limit.or_else(|| told.view?.short_at),
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
            // As long as the schema lets it be: a program may have written it.
            message: words.chars().take(1024).collect(),
            overruled: (!decision.overruled.is_empty()).then(|| {
                let all = decision.overruled.iter().take(OVERRULED);
                all.map(|(signal, action)| format!("{}: {}", signal.name(), action.name())).collect()
            }),
        };
        let all = next.interventions.get_or_insert_default();
        all.push(record);
        let surplus = all.len().saturating_sub(INTERVENTIONS);
        all.drain(..surplus);
    }
}

/// Whether it is heard of. Nothing is said before its pod runs.
fn heartbeating(told: &StatusFacts<'_>, conditions: &Builder<'_>, phase: AgentPhase) -> Option<Condition> {
    let stored = find(conditions.stored, types::HEARTBEATING).cloned();
    let say = |status: &str, reason: &str, words: &str| Some(conditions.with_status(types::HEARTBEATING, status, reason, words));
    match told.state {
        State::Condemned(Some((GiveUpReason::HeartbeatLost, words))) => say("False", reasons::HEARTBEAT_LOST, words),
        State::Condemned(Some((GiveUpReason::ProgramSilent, words))) => say("False", reasons::PROGRAM_SILENT, words),
        // Not ready, and not heard of: that it runs is no sign of life.
        State::Running(Activity::Starting) if told.view.is_none_or(|view| !view.registered) => {
            stored.or_else(|| conditions.with_status(types::HEARTBEATING, "Unknown", reasons::NOT_REGISTERED, NOT_REGISTERED).into())
        }
        State::Running(Activity::Registering) => say("Unknown", reasons::NOT_REGISTERED, NOT_REGISTERED),
        State::Running(_) => match told.view.map(|view| view.finding) {
            Some(Finding::SilentWithMany) => say(
                "Unknown",
                reasons::SILENT_WITH_MANY,
                "it is silent, and so are many of its node's or gateway's agents: something of ours is down, and nobody is given up for it yet",
            ),
            // Only with supervision.mode Observe: else the agent is given up.
            Some(Finding::HeartbeatLost(_)) => say("False", reasons::HEARTBEAT_LOST, "it is silent"),
            Some(Finding::ProgramSilent(_)) => say("False", reasons::PROGRAM_SILENT, "its program is silent"),
            Some(
                Finding::Well
                | Finding::StartOverdue(_)
                | Finding::LeaseExpired(_)
                | Finding::ItemStalled(_)
                | Finding::ItemPastTime(_)
                | Finding::CancelIgnored(_),
            )
            | None => say("True", reasons::HEARTBEATING, "it reports"),
        },
        State::Ended(_) => stored.and_then(|_| say("False", reasons::POD_GONE, "the agent ended")),
        // Its next pod has not called yet.
        State::Hibernated => None,
        State::Keep
        | State::Creating
        | State::Replacing
        | State::Hindered(_)
        | State::PoolMissing
        | State::Pending(_)
        | State::Unreachable
        | State::Stopping
        | State::Hibernating
        | State::Condemned(_)
        | State::Missing(_) => stored.filter(|_| !phase.ended()),
    }
}

/// What isolates a program outside the cluster. Whatever its process says, nothing of it can be seen from here.
fn no_walls(conditions: &Builder<'_>) -> Condition {
    let words = "it runs outside the cluster: nothing isolates its program, and nothing limits what that reaches or uses but its tokens";
    conditions.with_status(types::SANDBOX_ENFORCED, "False", reasons::WALLS_NOT_ENFORCED, words)
}

/// What isolates it, as its pod found it.
fn sandbox(told: &StatusFacts<'_>, next: &AgentStatus, conditions: &Builder<'_>) -> Condition {
    let to = |status: &str, reason: &str, words: String| conditions.with_status(types::SANDBOX_ENFORCED, status, reason, words);
    if let State::Running(Activity::WallsDown(reachable)) = told.state {
        let words = format!("{reachable} can be reached from its pod: the NetworkPolicy is not enforced; its program is held back");
        return to("False", reasons::EGRESS_NOT_ENFORCED, words);
    }
    match &next.sandbox {
        Some(SandboxReport { tier, missing: Some(missing) }) => {
            to("False", reasons::POD_WALLS_ONLY, format!("tier {tier}: the pod's own walls stand; missing: {}", missing.join(", ")))
        }
        Some(SandboxReport { tier, missing: None }) => to("True", reasons::REGISTERED, format!("tier {tier}")),
        None => to("Unknown", reasons::NOT_REPORTED, "its pod has not reported its sandbox yet".to_owned()),
    }
}

/// `at`: the limit of its life at which its tokens were over; none: they are not what is short.
fn paused(told: &StatusFacts<'_>, at: Option<i64>, conditions: &Builder<'_>) -> Condition {
    let (status, reason, words) = match (told.paused, at) {
        (None, _) => (false, reasons::NOT_PAUSED, ""),
        (Some(Pause::Spec), _) => (true, reasons::PAUSED_BY_SPEC, "spec.paused holds it"),
        (Some(Pause::Supervisor), _) => {
            (true, reasons::PAUSED_BY_SUPERVISOR, "the supervisor holds it; spec.resumePause: status.pauses lets it go")
        }
        (Some(Pause::Tokens), None) => (
            true,
            reasons::TOKEN_BUDGET_EXCEEDED,
            "a threshold of a Budget above holds it and its work is kept; spec.resumePause: status.pauses lets it go",
        ),
        (Some(Pause::Tokens), Some(_)) => (
            true,
            reasons::TOKEN_BUDGET_EXCEEDED,
            "the tokens of its life are over and its work is kept; it goes on by itself when a Grant, or its pool, gives it more",
        ),
    };
    conditions.build(types::PAUSED, status, reason, words)
}

/// What came of the checkpoint that the pause of its item asked for.
fn checkpointed(told: &StatusFacts<'_>, conditions: &Builder<'_>) -> Option<Condition> {
    let say = |status: &str, reason: &str, words: String| Some(conditions.with_status(types::CHECKPOINTED, status, reason, words));
    let holding = told.holding.filter(|holding| holding.phase == Phase::Paused);
    let holding = holding.filter(|_| matches!(told.paused, Some(Pause::Supervisor | Pause::Tokens)))?;
    let said = told.view.and_then(|view| view.report.as_ref()?.0.checkpoint.as_ref());
    let since = find(conditions.stored, types::PAUSED).filter(|paused| paused.status == "True").map(|paused| paused.last_transition_time.0);
    match said.filter(|said| said.held == holding.held && said.pause == holding.pauses) {
        Some(Checkpoint { state: CheckpointState::Taken, .. }) => {
            say("True", reasons::CHECKPOINT_TAKEN, "hooks.checkpoint succeeded".to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Failed, message, .. }) => {
            say("False", reasons::CHECKPOINT_FAILED, format!("hooks.checkpoint {message}; everything is kept all the same"))
        }
        Some(Checkpoint { state: CheckpointState::NoHook, .. }) => {
            say("False", reasons::NO_CHECKPOINT_HOOK, "its pool has no agent.hooks.checkpoint; everything is kept all the same".to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Running, .. }) | None
            if since.is_some_and(|since| told.now.duration_since(since).as_secs() > UNANSWERED) =>
        {
            let words = "its pod has not said what came of hooks.checkpoint; everything is kept all the same";
            say("False", reasons::CHECKPOINT_UNANSWERED, words.to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Running, .. }) | None => {
            say("Unknown", reasons::CHECKPOINT_ORDERED, "its pod is told to take a checkpoint".to_owned())
        }
    }
}

/// What it asks people for. What a leader before us wrote stays until it says something else: that somebody granted it is not
/// seen here.
fn asks(told: &StatusFacts<'_>, conditions: &Builder<'_>) -> Option<Condition> {
    let stored = find(conditions.stored, types::TOKENS_REQUESTED);
    match told.view.and_then(|view| view.asks.as_ref()) {
        Some(HumanRequest::Tokens(words)) => {
            Some(conditions.build(types::TOKENS_REQUESTED, true, reasons::ASKED_FOR_TOKENS, words.clone()))
        }
        Some(HumanRequest::Nothing) => {
            stored.map(|_| conditions.build(types::TOKENS_REQUESTED, false, reasons::TAKEN_BACK, "it needs no more".to_owned()))
        }
        None => stored.cloned(),
    }
}

/// What is stored of what it asks people for.
pub fn asked(status: &AgentStatus) -> HumanRequest {
    let asked = find(&status.conditions, types::TOKENS_REQUESTED).filter(|asked| asked.status == "True");
    asked.map_or(HumanRequest::Nothing, |asked| HumanRequest::Tokens(asked.message.clone()))
}

/// Whether there are tokens for its calls. Of one that ended, and while it is not known, what was said stays.
fn available(told: &StatusFacts<'_>, conditions: &Builder<'_>, phase: AgentPhase) -> Option<Condition> {
    let stored = find(conditions.stored, types::BUDGET_AVAILABLE);
    if phase.ended() {
        return stored.cloned();
    }
    match &told.tokens {
        TokenAvailability::Unknown => stored.cloned(),
        TokenAvailability::There => {
            Some(conditions.build(types::BUDGET_AVAILABLE, true, reasons::TOKENS_LEFT, "there are tokens for its calls"))
        }
        TokenAvailability::Short(obstacle) => {
            Some(conditions.build(types::BUDGET_AVAILABLE, false, availability::reason(obstacle), obstacle.to_string()))
        }
    }
}

/// When the program of a pod started, also if it has ended since.
pub fn started_at(pod: &Pod) -> Option<Time> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.iter().find(|one| one.name == super::build::CONTAINER).and_then(started)
}

fn started(container: &ContainerStatus) -> Option<Time> {
    let state = container.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.clone());
    running.or_else(|| state.terminated.as_ref().and_then(|terminated| terminated.started_at.clone()))
}

/// What of a status this controller owns. Times that only ride along are left out: they never make a difference.
fn own(status: Option<&AgentStatus>) -> AgentStatus {
    let Some(status) = status else { return AgentStatus::default() };
    let ours = |condition: &&Condition| OWN.contains(&condition.type_.as_str());
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
const OWN: [&str; 9] = [
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
/// Of one that has not called.
const NOT_REGISTERED: &str = "it has not registered with the gateway yet";
/// Interventions that are kept.
const INTERVENTIONS: usize = 5;
/// What one overruled, of which so many are kept.
const OVERRULED: usize = 16;
/// Seconds after which a checkpoint of which nothing is heard is one that was not taken. The pod gives its hook less.
const UNANSWERED: i64 = 180;

/// Phase, readiness, reason and words of a state; `None`: what is stored stays.
fn describe(state: &State, stored: &AgentStatus) -> Option<(AgentPhase, bool, String, String)> {
    let (phase, ready, reason, message) = match state {
        State::Keep | State::Condemned(None) => return None,
        State::Condemned(Some((why, message))) => (AgentPhase::Stale, false, supervise::reason(*why), message.clone()),
        // Why is stored since it was decided.
        State::Ended(AgentEnd::Forced) => {
            let given_up = find(&stored.conditions, types::GIVEN_UP)?;
            return Some((AgentPhase::ForceStopped, false, given_up.reason.clone(), given_up.message.clone()));
        }
        State::Creating => (AgentPhase::Spawning, false, reasons::POD_CREATING, "the pod is about to be made".to_owned()),
        State::Replacing => (
            AgentPhase::Spawning,
            false,
            reasons::FOREIGN_POD,
            "a pod of this name that we have no record of is being removed first".to_owned(),
        ),
        State::Hindered(hindrance) | State::Pending(Some(hindrance)) => {
            (AgentPhase::Spawning, false, hindrance_reason(hindrance.kind), hindrance.message.clone())
        }
        State::PoolMissing => (AgentPhase::Spawning, false, reasons::POOL_MISSING, "its pool does not exist any more".to_owned()),
        State::Pending(None) => (AgentPhase::Spawning, false, reasons::POD_PENDING, "the pod has not started yet".to_owned()),
        State::Running(doing) => running(doing),
        State::Unreachable | State::Missing(Verdict::Unknown) => (
            AgentPhase::Stale,
            false,
            reasons::NODE_UNREACHABLE,
            "its node is not heard of: whether its processes run is not known".to_owned(),
        ),
        State::Stopping => (AgentPhase::Goodbye, false, reasons::POD_STOPPING, "the pod is being ended".to_owned()),
        State::Hibernating => (
            AgentPhase::Goodbye,
            false,
            reasons::HIBERNATING,
            "there is no work for it: its pod is given back, its volume is kept".to_owned(),
        ),
        State::Hibernated => (
            AgentPhase::Hibernated,
            false,
            reasons::HIBERNATED,
            "there is no work for it: it has no pod, and keeps its name and its volume until there is".to_owned(),
        ),
        State::Missing(Verdict::NotYet(_) | Verdict::Gone) => (
            AgentPhase::Goodbye,
            false,
            reasons::POD_MISSING,
            "the pod's object disappeared without a report that its processes ended; its healthy node proves that in a minute".to_owned(),
        ),
        State::Ended(AgentEnd::Succeeded) => {
            (AgentPhase::Stopped, false, reasons::POD_SUCCEEDED, "the program ended with success".to_owned())
        }
        State::Ended(AgentEnd::Failed(message)) => (AgentPhase::Stopped, false, reasons::POD_FAILED, message.clone()),
        State::Ended(AgentEnd::PodGone) => (AgentPhase::Stopped, false, reasons::POD_GONE, "the pod was deleted".to_owned()),
        State::Ended(AgentEnd::Goodbye) => {
            let said = stored.goodbye.as_ref().and_then(|goodbye| goodbye.reason.clone()).unwrap_or_default();
            (AgentPhase::Stopped, false, reasons::SAID_GOODBYE, said)
        }
    };
    Some((phase, ready, reason.to_owned(), message))
}

/// The same of an agent outside the cluster, where it differs: it has no pod of which anything could be said.
fn describe_external(state: &State) -> Option<(AgentPhase, bool, String, String)> {
    let said = |phase, reason: &str, words: &str| Some((phase, false, reason.to_owned(), words.to_owned()));
    match state {
        State::Running(Activity::Registering) => {
            said(AgentPhase::Running, reasons::NOT_REGISTERED, "its process has its Agent and has not registered with the gateway yet")
        }
        State::Running(Activity::Starting) => {
            said(AgentPhase::Running, reasons::PROCESS_NOT_READY, "its process is registered and its program is not ready to work")
        }
        State::Stopping => said(AgentPhase::Goodbye, reasons::PROCESS_LEAVING, "its process is told to leave"),
        State::Running(Activity::WallsDown(_) | Activity::PreflightFailed(_) | Activity::Idle | Activity::Active | Activity::Paused)
        | State::Keep
        | State::Creating
        | State::Replacing
        | State::Hindered(_)
        | State::PoolMissing
        | State::Pending(_)
        | State::Unreachable
        | State::Hibernating
        | State::Hibernated
        | State::Condemned(_)
        | State::Missing(_)
        | State::Ended(_) => None,
    }
}

fn running(doing: &Activity) -> (AgentPhase, bool, &'static str, String) {
    let registered = |phase, words: &str| (phase, true, reasons::REGISTERED, words.to_owned());
    match doing {
        Activity::Starting => {
            (AgentPhase::Running, false, reasons::POD_NOT_READY, "the pod runs and its program is not ready to work".to_owned())
        }
        Activity::Registering => {
            (AgentPhase::Running, false, reasons::NOT_REGISTERED, "the pod runs and has not registered with the gateway yet".to_owned())
        }
        Activity::WallsDown(reachable) => {
            let words =
                format!("{reachable} can be reached from the pod: its NetworkPolicy is not enforced (yet), so its program is held back");
            (AgentPhase::Running, false, reasons::EGRESS_NOT_ENFORCED, words)
        }
        Activity::PreflightFailed(why) => (AgentPhase::Running, false, reasons::PREFLIGHT_FAILED, why.clone()),
        Activity::Idle => registered(AgentPhase::Idle, "it is registered and waits for work"),
        Activity::Active => registered(AgentPhase::Active, "it works"),
        Activity::Paused => registered(AgentPhase::Paused, "it is held"),
    }
}

/// Every kind of hindrance with the reason under which it is shown, on the Agent and as Blocked on its pool.
const HINDRANCES: [(HindranceKind, &str); 11] = [
    (HindranceKind::QuotaExceeded, reasons::QUOTA_EXCEEDED),
    (HindranceKind::BudgetExhausted, reasons::BUDGET_EXHAUSTED),
    (HindranceKind::ProjectLimit, reasons::PROJECT_LIMIT),
    (HindranceKind::NamespaceTerminating, reasons::NAMESPACE_TERMINATING),
    (HindranceKind::PodRefused, reasons::POD_REFUSED),
    (HindranceKind::VolumeRefused, reasons::VOLUME_REFUSED),
    (HindranceKind::MissingReference, reasons::MISSING_REFERENCE),
    (HindranceKind::Unsupported, reasons::UNSUPPORTED),
    (HindranceKind::Unschedulable, reasons::UNSCHEDULABLE),
    (HindranceKind::ImagePull, reasons::IMAGE_PULL),
    (HindranceKind::ContainerStart, reasons::CONTAINER_START),
];

/// The reason under which a hindrance is shown.
pub fn hindrance_reason(kind: HindranceKind) -> &'static str {
    HINDRANCES.iter().find(|(known, _)| *known == kind).map_or(reasons::POD_REFUSED, |(_, reason)| reason)
}

/// The hindrance that is shown under a reason.
pub fn hindrance_of(reason: &str) -> Option<HindranceKind> {
    HINDRANCES.iter().find(|(_, known)| *known == reason).map(|(kind, _)| *kind)
}

/// Something worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNews {
    /// Whether a person may have to look.
    pub warning: bool,
    /// One word.
    pub reason: String,
    /// And more.
    pub note: String,
}

/// What is worth an event, when it begins: an Agent that failed or cannot start, a goodbye, a pause. What the supervisor
/// decided is told with its decision.
pub fn news(stored: Option<&AgentStatus>, next: &AgentStatus) -> Vec<StatusNews> {
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
            all.push(StatusNews { warning: false, reason: reasons::WOKEN.to_owned(), note: "there is work for it again".to_owned() });
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
