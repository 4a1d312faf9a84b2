//! The status of a pool: the one place where facts become counts and conditions. Pure, except for the current time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::observe::PoolObservation;
use crate::api::conditions::{reasons, types};
use crate::api::{AgentPool, AgentPoolStatus, names};
use crate::controller::conditions::{Builder, find, holds_for, with_stored_messages};
use crate::policy::pool::{CRASH_LOOP_THRESHOLD, Counters, MemberState};
use crate::policy::scaling::SizeReason;
use crate::policy::status_throttle::StatusChange;

/// The status to apply and what it changes. Only our own fields are in it.
pub fn next_status(pool: &AgentPool, observed: &PoolObservation, counters: Counters, epoch: i64) -> (AgentPoolStatus, StatusChange) {
    let stored = own_fields(pool.status.as_ref());
    let numbered = || observed.facts.agents.iter().filter(|agent| agent.sequence.is_some()).map(|agent| agent.state);
    let count =
        |wanted: fn(MemberState) -> bool| i32::try_from(numbered().filter(|standing| wanted(*standing)).count()).unwrap_or(i32::MAX);
    let agents = count(MemberState::counts);
    let conditions = conditions(pool, observed, agents, &stored, jiff::Timestamp::now());
    let mut next = AgentPoolStatus {
        observed_generation: pool.metadata.generation,
        desired: i32::try_from(observed.desired.count).ok(),
        agents: Some(agents),
        active: Some(count(|standing| standing == MemberState::Busy)),
        idle: Some(count(|standing| standing == MemberState::Idle)),
        hibernated: Some(count(|standing| matches!(standing, MemberState::Hibernated { .. }))),
        work_ready: observed.work.map(|(ready, _)| i64::try_from(ready).unwrap_or(i64::MAX)),
        work_leased: observed.work.map(|(_, leased)| i64::try_from(leased).unwrap_or(i64::MAX)),
        selector: Some(format!("{}={}", names::POOL_UID_LABEL, pool.metadata.uid.as_deref().unwrap_or_default())),
        spawned: Some(counters.spawned),
        // It is written only with other changes: a lower stored value only means that more numbers are checked.
        collected_below: stored.collected_below,
        reason: Some(display_reason(&conditions, observed)),
        conditions,
        governor_epoch: stored.governor_epoch,
    };
    let words = with_stored_messages(&next.conditions, &stored.conditions);
    let change = if next == stored {
        StatusChange::None
    } else if (AgentPoolStatus {
        agents: stored.agents,
        active: stored.active,
        idle: stored.idle,
        hibernated: stored.hibernated,
        work_ready: stored.work_ready,
        work_leased: stored.work_leased,
        conditions: words,
        ..next.clone()
    }) == stored
    {
        StatusChange::Counts
    } else {
        StatusChange::State
    };
    next.collected_below = Some(counters.collected_below);
    next.governor_epoch = Some(epoch);
    (next, change)
}

/// The condition types that this controller owns.
const OWNED_CONDITION_TYPES: [&str; 6] =
    [types::READY, types::RECONCILING, types::STALLED, types::SCALED_TO_ZERO, types::AT_MAX, types::BLOCKED];

/// The part of a status that this controller owns.
fn own_fields(status: Option<&AgentPoolStatus>) -> AgentPoolStatus {
    let mut own = status.cloned().unwrap_or_default();
    own.conditions.retain(|condition| OWNED_CONDITION_TYPES.contains(&condition.type_.as_str()));
    own
}

/// Number of crashes after which a pool is Blocked, and after which it is Stalled.
const CRASH_THRESHOLDS: (u32, u32) = (CRASH_LOOP_THRESHOLD, 5);

/// Ready means that all agents of this generation were ready once, and that the pool can still be served. A pool that
/// follows work need not reach its size.
fn conditions(pool: &AgentPool, observed: &PoolObservation, agents: i32, stored: &AgentPoolStatus, now: jiff::Timestamp) -> Vec<Condition> {
    let generation = pool.metadata.generation.unwrap_or(0);
    let to = Builder { stored: &stored.conditions, generation, now };
    let desired = observed.desired.count;
    let all_ready = observed.ready == desired && i64::from(agents) == i64::from(desired);
    let real =
        pool.spec.work_aware() && pool.spec.replicas.is_none() || holds_for(&stored.conditions, types::READY, generation) || all_ready;
    let progress = format!("{} of {desired} agents are ready", observed.ready);
    let stalled = stalled(observed);
    let blocked = blocked(observed, all_ready);
    let (ready, why, words) = match (&stalled, &blocked) {
        (Some((reason, message)), _) => (false, *reason, message.clone()),
        (None, Some((reasons::MISSING_REFERENCE, message))) => (false, reasons::MISSING_REFERENCE, message.clone()),
        (None, _) if real => (true, reasons::AS_DESIRED, size_message(observed)),
        (None, Some((reason, message))) => (false, *reason, format!("{progress}; {message}")),
        (None, None) => (false, reasons::SCALING, progress.clone()),
    };
    let reconciling = !real && stalled.is_none();
    let (is_stalled, stalled_reason, stalled_message) =
        stalled.map_or((false, reasons::OBSERVED, String::new()), |(reason, message)| (true, reason, message));
    let (is_blocked, blocked_reason, blocked_message) =
        blocked.map_or((false, reasons::NOT_BLOCKED, String::new()), |(reason, message)| (true, reason, message));
    let at_max = pool.spec.replicas.is_none() && desired > 0 && desired >= pool.spec.max();
    let doing = if reconciling { (reasons::SCALING, progress) } else { (reasons::OBSERVED, String::new()) };
    vec![
        to.build(types::READY, ready, why, words),
        to.build(types::RECONCILING, reconciling, doing.0, doing.1),
        to.build(types::STALLED, is_stalled, stalled_reason, stalled_message),
        to.build(types::SCALED_TO_ZERO, desired == 0, size_reason(observed.desired.why), size_message(observed)),
        to.build(types::AT_MAX, at_max, if at_max { reasons::MAX_REACHED } else { reasons::BELOW_MAX }, String::new()),
        to.build(types::BLOCKED, is_blocked, blocked_reason, blocked_message),
    ]
}

/// The problem that only a person can fix, if there is one.
fn stalled(observed: &PoolObservation) -> Option<(&'static str, String)> {
    if let Some(message) = &observed.unsupported {
        return Some((reasons::UNSUPPORTED, message.clone()));
    }
    let (crashes, last) = observed.crashes.as_ref()?;
    let helpless = *crashes >= CRASH_THRESHOLDS.1 && observed.ready == 0 && observed.desired.count > 0;
    helpless.then(|| (reasons::CRASH_LOOP, crash_message(last)))
}

/// The obstacle to desired agents, if there is one.
fn blocked(observed: &PoolObservation, all_ready: bool) -> Option<(&'static str, String)> {
    if !observed.missing.is_empty() {
        return Some((
            reasons::MISSING_REFERENCE,
            format!(
                "the spec names objects that this namespace does not have: {}. Create them, or remove their names from the spec",
                observed.missing.join(", ")
            ),
        ));
    }
    if let Some(blocked) = &observed.blocked {
        return Some((blocked.reason, blocked.message.clone()));
    }
    let (_, last) =
        observed.crashes.as_ref().filter(|(crashes, _)| *crashes >= CRASH_THRESHOLDS.0 && !all_ready && observed.desired.count > 0)?;
    Some((reasons::CRASH_LOOP, crash_message(last)))
}

fn crash_message(last: &str) -> String {
    format!(
        "agents end soon after their start, so each new agent is created later than the one before. The last one that ended: {last}. Its log says why (kubectl spillway logs)"
    )
}

/// The reason under which the size of a pool is shown.
fn size_reason(why: SizeReason) -> &'static str {
    match why {
        SizeReason::ReplicasSet => reasons::REPLICAS_SET,
        SizeReason::AtMinimum => reasons::AT_MINIMUM,
        SizeReason::AgentsWanted => reasons::AGENTS_WANTED,
        SizeReason::MaxReached => reasons::MAX_REACHED,
        SizeReason::Drained => reasons::DRAINED,
        SizeReason::NoWork => reasons::NO_WORK,
        SizeReason::WorkUnknown => reasons::WORK_UNKNOWN,
        SizeReason::CoolingDown => reasons::COOLING_DOWN,
        SizeReason::NoRoom => reasons::NO_ROOM,
    }
}

fn size_message(observed: &PoolObservation) -> String {
    let count = observed.desired.count;
    match observed.desired.why {
        SizeReason::ReplicasSet => format!("spec.replicas sets the size to {count}"),
        SizeReason::AtMinimum => format!("spec.scaling.min sets the size to {count}"),
        SizeReason::AgentsWanted => format!("the work in the queues sets the size to {count}"),
        SizeReason::MaxReached => format!("spec.scaling.max limits the size to {count}"),
        SizeReason::Drained => "spec.scaling.max is 0".into(),
        SizeReason::NoWork => "there is no eligible work in the queues".into(),
        SizeReason::WorkUnknown => "the queues are being listed, so the amount of work is not known yet".into(),
        SizeReason::CoolingDown => {
            "fewer agents are enough, but not for long enough yet (spec.scaling.cooldownSeconds, spec.whenEmpty.afterSeconds)".into()
        }
        SizeReason::NoRoom => format!("budgets limit the size to {count}"),
    }
}

/// The reason in the column REASON: the obstacle, or why the pool has its size.
fn display_reason(conditions: &[Condition], observed: &PoolObservation) -> String {
    let reason =
        |type_: &str| find(conditions, type_).filter(|condition| condition.status == "True").map(|condition| condition.reason.clone());
    reason(types::STALLED)
        .or_else(|| reason(types::BLOCKED))
        .or_else(|| reason(types::RECONCILING))
        .unwrap_or_else(|| size_reason(observed.desired.why).to_owned())
}

/// A change that is reported as an event.
pub struct StatusNews {
    /// Whether the event is a warning.
    pub warning: bool,
    /// Reason of the event.
    pub reason: String,
    /// Action of the event. Events with the same object, reason and action are counted as one, so the action names what
    /// differs.
    pub action: String,
    /// Note of the event.
    pub note: String,
}

/// The changes between two statuses that are reported as events.
pub fn status_events(before: Option<&AgentPoolStatus>, after: Option<&AgentPoolStatus>) -> Vec<StatusNews> {
    let Some(after) = after else { return Vec::new() };
    let none = Vec::new();
    let old = before.map_or(&none, |before| &before.conditions);
    let mut all = Vec::new();
    let from = before.and_then(|before| before.desired).unwrap_or(0);
    if after.desired.unwrap_or(0) != from {
        let why = find(&after.conditions, types::SCALED_TO_ZERO).map(|condition| condition.message.clone()).unwrap_or_default();
        all.push(StatusNews {
            warning: false,
            reason: "DesiredChanged".into(),
            action: format!("ScaleTo{}", after.desired.unwrap_or(0)),
            note: format!("the desired number of agents changes from {from} to {}: {why}", after.desired.unwrap_or(0)),
        });
    }
    for type_ in [types::BLOCKED, types::STALLED] {
        let Some(now) = find(&after.conditions, type_).filter(|now| now.status == "True") else { continue };
        let was = find(old, type_).filter(|was| was.status == "True").map(|was| was.reason.as_str());
        if was != Some(now.reason.as_str()) {
            all.push(StatusNews { warning: true, reason: now.reason.clone(), action: "Scale".into(), note: now.message.clone() });
        }
    }
    all
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
