//! The obstacles that keep a pool's agents from running or from work, and which of them is shown. Reads no store.

use kube::ResourceExt;

use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPool};
use crate::cluster::ObjectKey;
use crate::controller::agent::{hindrance_of, hindrance_reason};
use crate::controller::conditions::find;
use crate::governor::breaker::{PoolCircuits as Circuits, work as breaker};
use crate::governor::budget::availability::TokenAvailability;
use crate::policy::pool::{AgentFacts, MemberState};

/// An obstacle that keeps Agents from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlockers {
    /// The most serious reason.
    pub reason: &'static str,
    /// The message, with the name of the object that it is from.
    pub message: String,
}

/// The most serious hindrance among Agents: the message of one of them, and how many more share it.
pub(super) fn agent_blocker(agents: &[&Agent]) -> Option<PoolBlockers> {
    let mut waiting: Vec<_> = agents
        .iter()
        .filter(|agent| agent.metadata.deletion_timestamp.is_none())
        .filter_map(|agent| {
            let ready = find(&agent.status.as_ref()?.conditions, types::READY)?;
            Some((hindrance_of(&ready.reason)?, agent.name_any(), &ready.message))
        })
        .collect();
    waiting.sort();
    let Some((kind, name, message)) = waiting.first() else { return unfit_agent_blocker(agents) };
    let others = match waiting.iter().filter(|(other, ..)| other == kind).count() - 1 {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    Some(PoolBlockers { reason: hindrance_reason(*kind), message: format!("{name}: {message}{others}") })
}

/// The obstacle that a circuit refuses work to the pool. While that is unknown, the stored obstacle stays, as with
/// tokens.
pub(super) fn circuit_blocker(pool: &AgentPool, circuits: Option<&Circuits>) -> Option<PoolBlockers> {
    let Some(circuits) = circuits else { return stored_blocker(pool, reasons::BREAKER_OPEN) };
    breaker::blocked_reason(circuits, &ObjectKey::of(pool)).map(|(reason, message)| PoolBlockers { reason, message })
}

/// The obstacle in the stored status of the pool, if it has this reason.
pub(super) fn stored_blocker(pool: &AgentPool, reason: &'static str) -> Option<PoolBlockers> {
    let stored = pool.status.as_ref().and_then(|status| find(&status.conditions, types::BLOCKED));
    let stored = stored.filter(|blocked| blocked.status == "True" && blocked.reason == reason);
    stored.map(|blocked| PoolBlockers { reason, message: blocked.message.clone() })
}

/// The obstacle that there are no tokens for the pool's agents. While that is unknown, the stored obstacle stays: a new
/// leader that has not read the records yet must not create agents that the earlier leader did not create.
pub(super) fn token_blocker(pool: &AgentPool, tokens: &TokenAvailability) -> Option<PoolBlockers> {
    match tokens {
        TokenAvailability::Available => None,
        TokenAvailability::Blocked(obstacle) => Some(PoolBlockers { reason: reasons::BUDGET_EXHAUSTED, message: obstacle.to_string() }),
        TokenAvailability::Unknown => stored_blocker(pool, reasons::BUDGET_EXHAUSTED),
    }
}

/// Which obstacle is shown: that of the agents, or the missing tokens. An exceeded quota is shown first, because more
/// tokens do not help without quota.
pub(super) fn most_serious_blocker(agents: Option<PoolBlockers>, tokens: Option<PoolBlockers>) -> Option<PoolBlockers> {
    match (agents, tokens) {
        (Some(agents), Some(_)) if agents.reason == reasons::QUOTA_EXCEEDED => Some(agents),
        (_, Some(tokens)) => Some(tokens),
        (agents, None) => agents,
    }
}

/// Whether agents fail their preflight and no agent of the pool passes it: another agent would fail too. The existing
/// ones try again.
pub(super) fn all_fail_preflight(facts: &[AgentFacts], agents: &[&Agent]) -> bool {
    let serves = |agent: &AgentFacts| matches!(agent.state, MemberState::Idle | MemberState::Busy | MemberState::Held);
    unfit_agent_blocker(agents).is_some_and(|held| held.reason == reasons::PREFLIGHT_FAILED) && !facts.iter().any(serves)
}

/// The obstacle of agents that run and get no work: their NetworkPolicy is not enforced, or they fail their preflight.
/// They are kept, and try again.
pub(super) fn unfit_agent_blocker(agents: &[&Agent]) -> Option<PoolBlockers> {
    [reasons::EGRESS_NOT_ENFORCED, reasons::PREFLIGHT_FAILED].into_iter().find_map(|reason| {
        let words = |agent: &&&Agent| {
            let ready = find(&agent.status.as_ref()?.conditions, types::READY)?;
            let counts = ready.reason == reason && agent.metadata.deletion_timestamp.is_none();
            counts.then(|| (agent.name_any(), ready.message.clone()))
        };
        // The first by name, so that the words do not change with the order in which they were read.
        let mut all: Vec<_> = agents.iter().filter_map(|agent| words(&agent)).collect();
        all.sort();
        let others = if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
        all.into_iter().next().map(|(name, message)| PoolBlockers { reason, message: format!("{name}: {message}{others}") })
    })
}
