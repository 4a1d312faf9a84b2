//! The status of a pool: the one place where what is known becomes counts and conditions. Pure, but for the time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::observe::Observed;
use crate::api::conditions::{reasons, types};
use crate::api::{AgentPool, AgentPoolStatus, names};
use crate::controller::conditions::{Builder, find, holds_for};
use crate::policy::pool::Standing;
use crate::policy::publish::Change;
use crate::policy::scaling::Why;

/// The status to store with what it changes, or `None` if the stored one says it all. `counters` are new values of
/// `spawned` and `collectedBelow`.
pub fn next(pool: &AgentPool, observed: &Observed, counters: Option<(i64, i64)>, epoch: i64) -> Option<(AgentPoolStatus, Change)> {
    let stored = pool.status.clone().unwrap_or_default();
    let numbered = || observed.facts.agents.iter().filter(|agent| agent.sequence.is_some()).map(|agent| agent.standing);
    let count = |wanted: fn(Standing) -> bool| i32::try_from(numbered().filter(|standing| wanted(*standing)).count()).unwrap_or(i32::MAX);
    let agents = count(Standing::counts);
    let (spawned, collected_below) = counters.unwrap_or((observed.facts.spawned, observed.facts.collected_below));
    let conditions = conditions(pool, observed, agents, jiff::Timestamp::now());
    let mut next = AgentPoolStatus {
        observed_generation: pool.metadata.generation,
        desired: i32::try_from(observed.desired.count).ok(),
        agents: Some(agents),
        active: Some(count(|standing| standing == Standing::Busy)),
        idle: Some(0), // registered and without work: nothing registers before agents have a supervisor
        selector: Some(format!("{}={}", names::POOL_UID_LABEL, pool.metadata.uid.as_deref().unwrap_or_default())),
        spawned: Some(spawned),
        collected_below: Some(collected_below),
        work_ready: None,
        work_leased: None,
        reason: Some(headline(&conditions, observed)),
        conditions,
        governor_epoch: stored.governor_epoch,
    };
    let change = if next == stored {
        Change::None
    } else if (AgentPoolStatus { agents: stored.agents, active: stored.active, idle: stored.idle, ..next.clone() }) == stored {
        Change::Counts
    } else {
        Change::State
    };
    next.governor_epoch = Some(epoch);
    (change != Change::None).then_some((next, change))
}

/// Ready: this generation was made real once, and can still be served. A pool that follows work is not waited for.
fn conditions(pool: &AgentPool, observed: &Observed, agents: i32, now: jiff::Timestamp) -> Vec<Condition> {
    let stored = pool.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or(0);
    let to = Builder { stored, generation, now };
    let desired = observed.desired.count;
    let real = pool.spec.work_aware() && pool.spec.replicas.is_none()
        || holds_for(stored, types::READY, generation)
        || (observed.ready == desired && i64::from(agents) == i64::from(desired));
    let progress = format!("{} of {desired} agents are ready", observed.ready);
    let blocked = blocked(observed);
    let (ready, why, words) = match (&observed.unsupported, &blocked) {
        (Some(message), _) => (false, reasons::UNSUPPORTED, message.clone()),
        (None, Some((reasons::MISSING_REFERENCE, message))) => (false, reasons::MISSING_REFERENCE, message.clone()),
        (None, _) if real => (true, reasons::AS_DESIRED, why_desired(observed)),
        (None, Some((reason, message))) => (false, *reason, format!("{progress}; {message}")),
        (None, None) => (false, reasons::SCALING, progress.clone()),
    };
    let (stuck, stuck_message) = match &observed.unsupported {
        Some(message) => (true, message.clone()),
        None => (false, String::new()),
    };
    let (is_blocked, blocked_reason, blocked_message) = match blocked {
        Some((reason, message)) => (true, reason, message),
        None => (false, reasons::NOT_BLOCKED, String::new()),
    };
    let at_max = pool.spec.replicas.is_none() && desired > 0 && desired >= pool.spec.max();
    vec![
        to.build(types::READY, ready, why, words),
        to.build(
            types::RECONCILING,
            !real && !stuck,
            if real { reasons::OBSERVED } else { reasons::SCALING },
            if real { String::new() } else { progress },
        ),
        to.build(types::STALLED, stuck, if stuck { reasons::UNSUPPORTED } else { reasons::OBSERVED }, stuck_message),
        to.build(types::SCALED_TO_ZERO, desired == 0, desired_reason(observed.desired.why), why_desired(observed)),
        to.build(types::AT_MAX, at_max, if at_max { reasons::MAX_REACHED } else { reasons::BELOW_MAX }, String::new()),
        to.build(types::BLOCKED, is_blocked, blocked_reason, blocked_message),
    ]
}

/// What stands in the way of agents that are wanted.
fn blocked(observed: &Observed) -> Option<(&'static str, String)> {
    if !observed.missing.is_empty() {
        return Some((reasons::MISSING_REFERENCE, format!("{} not found in this namespace", observed.missing.join(", "))));
    }
    let blocked = observed.blocked.as_ref()?;
    let reason = [
        reasons::QUOTA_EXCEEDED,
        reasons::NAMESPACE_TERMINATING,
        reasons::POD_REFUSED,
        reasons::IMAGE_PULL,
        reasons::CONTAINER_START,
        reasons::UNSCHEDULABLE,
    ]
    .into_iter()
    .find(|reason| *reason == blocked.reason)?;
    Some((reason, blocked.message.clone()))
}

/// The reason under which the size of a pool is shown.
fn desired_reason(why: Why) -> &'static str {
    match why {
        Why::ReplicasSet => reasons::REPLICAS_SET,
        Why::AtMinimum => reasons::AT_MINIMUM,
        Why::AgentsWanted => reasons::AGENTS_WANTED,
        Why::MaxReached => reasons::MAX_REACHED,
        Why::Drained => reasons::DRAINED,
        Why::NoWork | Why::WorkNotServed => reasons::NO_WORK,
        Why::NoRoom => reasons::NO_ROOM,
    }
}

fn why_desired(observed: &Observed) -> String {
    let count = observed.desired.count;
    match observed.desired.why {
        Why::ReplicasSet => format!("spec.replicas asks for {count}"),
        Why::AtMinimum => format!("scaling.min asks for {count}"),
        Why::AgentsWanted => format!("the work asks for {count}"),
        Why::MaxReached => format!("scaling.max allows {count}"),
        Why::Drained => "scaling.max is 0".into(),
        Why::NoWork => "there is no eligible work".into(),
        Why::WorkNotServed => "the pool follows its queues, and this version serves no queues yet: it stays at 0 (scaling.workAware: false runs scaling.min agents)".into(),
        Why::NoRoom => format!("budgets leave room for {count}"),
    }
}

/// The word in the Reason column: what is in the way, or why the size is what it is.
fn headline(conditions: &[Condition], observed: &Observed) -> String {
    let reason =
        |type_: &str| find(conditions, type_).filter(|condition| condition.status == "True").map(|condition| condition.reason.clone());
    reason(types::STALLED)
        .or_else(|| reason(types::BLOCKED))
        .or_else(|| reason(types::RECONCILING))
        .unwrap_or_else(|| desired_reason(observed.desired.why).to_owned())
}

/// Something worth an event.
pub struct News {
    /// Whether a person may have to look.
    pub warning: bool,
    /// One word.
    pub reason: String,
    /// And more.
    pub note: String,
}

/// What changed between two statuses that people want to be told.
pub fn news(before: Option<&AgentPoolStatus>, after: Option<&AgentPoolStatus>) -> Vec<News> {
    let Some(after) = after else { return Vec::new() };
    let none = Vec::new();
    let old = before.map_or(&none, |before| &before.conditions);
    let mut all = Vec::new();
    if before.and_then(|before| before.desired) != after.desired {
        let from = before.and_then(|before| before.desired).unwrap_or(0);
        let why = find(&after.conditions, types::SCALED_TO_ZERO).map(|condition| condition.message.clone()).unwrap_or_default();
        all.push(News {
            warning: false,
            reason: "DesiredChanged".into(),
            note: format!("from {from} to {} agents: {why}", after.desired.unwrap_or(0)),
        });
    }
    for type_ in [types::BLOCKED, types::STALLED] {
        let Some(now) = find(&after.conditions, type_).filter(|now| now.status == "True") else { continue };
        let was = find(old, type_).filter(|was| was.status == "True").map(|was| was.reason.as_str());
        if was != Some(now.reason.as_str()) {
            all.push(News { warning: true, reason: now.reason.clone(), note: now.message.clone() });
        }
    }
    all
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
