//! Which Agents a pool makes, keeps and ends: from one consistent look at the pool and its Agents to actions.
//!
//! Sequence numbers make this safe against a crash, an old cache and a second leader: a number is given out by
//! compare-and-swap on `spawned` before its Agent is made, an Agent's name follows from its number, and a number is never
//! reused once `collected_below` passed it. What always holds, whatever crashed where:
//! * at most `desired` Agents that count exist, unless a person lowered `desired`;
//! * a number below `spawned` that was never seen is made, under the same name, before a new one is given out;
//! * no Agent is deleted before `collected_below` is above its number, durably.

use std::collections::BTreeSet;
use std::time::Duration;

/// One Agent as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its name.
    pub name: String,
    /// Its number, or `None` if it was made by hand (outside min and max).
    pub sequence: Option<i64>,
    /// Where it stands.
    pub standing: Standing,
    /// How long ago it was made, to order those that leave.
    pub age: Duration,
}

/// Where an Agent stands, as far as its pool cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No pod yet, and nothing refused one.
    Spawning,
    /// No pod: the API server refuses it (quota, admission).
    Refused,
    /// It has a pod that is not Ready.
    Starting,
    /// Its pod is Ready and it holds nothing.
    Idle,
    /// It holds an item: never ended to scale down.
    Busy,
    /// It is being deleted, or its pod is; its pod may still run.
    Leaving,
    /// Its node is unreachable: it does not count, and its replacement may come.
    Unreachable,
    /// It ended this long ago; it is kept for reading.
    Ended(Duration),
}

impl Standing {
    /// Whether it takes a place in the pool. One that is leaving does until its pod is gone, so that there are never more
    /// running pods than the pool may have.
    pub fn counts(self) -> bool {
        match self {
            Self::Spawning | Self::Refused | Self::Starting | Self::Idle | Self::Busy | Self::Leaving => true,
            Self::Unreachable | Self::Ended(_) => false,
        }
    }

    /// Whether it has a pod that was made for it and was not asked to leave.
    fn has_pod(self) -> bool {
        match self {
            Self::Starting | Self::Idle | Self::Busy => true,
            Self::Spawning | Self::Refused | Self::Leaving | Self::Unreachable | Self::Ended(_) => false,
        }
    }
}

/// The pool and its Agents, from one consistent look: the Agents were read after the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Agents wanted.
    pub desired: u32,
    /// New Agents may be made (nothing the spec names is missing).
    pub may_grow: bool,
    /// `status.spawned`.
    pub spawned: i64,
    /// `status.collectedBelow`.
    pub collected_below: i64,
    /// Every Agent of the pool that exists.
    pub agents: Vec<AgentFacts>,
    /// How long an ended Agent is kept.
    pub stopped_ttl: Duration,
}

/// What to do, in the order of the fields. A plan with nothing in it is the sign of a settled pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The new `(spawned, collected_below)`, to be written by compare-and-swap before anything else is done.
    pub counters: Option<(i64, i64)>,
    /// Numbers whose Agents are made now.
    pub create: Vec<i64>,
    /// Agents to delete, with why.
    pub delete: Vec<(String, Leaving)>,
    /// When to look again although nothing happens.
    pub look_again: Option<Duration>,
}

/// Why an Agent is deleted by its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The pool wants fewer.
    ScaledDown,
    /// It ended, and was kept long enough.
    Collected,
}

/// Whether a plan made from a cache would do anything: only then is a live look worth its cost.
pub fn settled(facts: &Facts) -> bool {
    let plan = plan(facts);
    plan.create.is_empty() && plan.delete.is_empty()
}

/// Decide.
pub fn plan(facts: &Facts) -> Plan {
    let Facts { desired, may_grow, spawned, collected_below, agents, stopped_ttl } = facts;
    let existing: BTreeSet<i64> = agents.iter().filter_map(|agent| agent.sequence).collect();
    let unseen: Vec<i64> = (*collected_below..*spawned).filter(|number| !existing.contains(number)).collect();
    let seen_below = unseen.first().copied().unwrap_or(*spawned);

    let counted = agents.iter().filter(|agent| agent.sequence.is_some() && agent.standing.counts()).count();
    let counted = u32::try_from(counted + unseen.len()).unwrap_or(u32::MAX);

    let mut plan = Plan::default();
    if !unseen.is_empty() {
        // Given out by us or by a leader before us, and lost: made first, under the same names.
        plan.create = unseen;
        return plan;
    }
    let mut next_spawned = *spawned;
    if counted < *desired && *may_grow {
        let grow = (*desired - counted).min(batch(agents));
        plan.create = (*spawned..*spawned + i64::from(grow)).collect();
        next_spawned += i64::from(grow);
    }
    if counted > *desired {
        plan.delete = leavers(agents, counted - *desired);
    }
    for agent in agents {
        let Standing::Ended(since) = agent.standing else { continue };
        if since >= *stopped_ttl {
            plan.delete.push((agent.name.clone(), Leaving::Collected));
        } else {
            let left = *stopped_ttl - since;
            plan.look_again = Some(plan.look_again.map_or(left, |soonest| soonest.min(left)));
        }
    }
    let deletes_numbered = agents.iter().any(|agent| {
        agent.sequence.is_some_and(|number| number >= *collected_below) && plan.delete.iter().any(|(name, _)| *name == agent.name)
    });
    let next_collected = if deletes_numbered || next_spawned != *spawned { seen_below } else { *collected_below };
    if (next_spawned, next_collected) != (*spawned, *collected_below) {
        plan.counters = Some((next_spawned, next_collected));
    }
    plan
}

/// How many Agents may be made at once: one more than have got their pods (1, 2, 4, 8 ...), and none while one is refused:
/// a thousand Agents that wait for quota help nobody.
fn batch(agents: &[AgentFacts]) -> u32 {
    let numbered = || agents.iter().filter(|agent| agent.sequence.is_some()).map(|agent| agent.standing);
    if numbered().any(|standing| standing == Standing::Refused) {
        return 0;
    }
    let with_pod = numbered().filter(|standing| standing.has_pod()).count();
    let waiting = numbered().filter(|standing| *standing == Standing::Spawning).count();
    u32::try_from((with_pod + 1).saturating_sub(waiting)).unwrap_or(u32::MAX)
}

/// Whom to end: those that do nothing yet first, then idle ones, the oldest first. Busy ones never; those already leaving
/// count as done.
fn leavers(agents: &[AgentFacts], surplus: u32) -> Vec<(String, Leaving)> {
    let rank = |standing: Standing| match standing {
        Standing::Refused => Some(0),
        Standing::Spawning => Some(1),
        Standing::Starting => Some(2),
        Standing::Idle => Some(3),
        Standing::Busy | Standing::Leaving | Standing::Unreachable | Standing::Ended(_) => None,
    };
    let leaving = agents.iter().filter(|agent| agent.sequence.is_some() && agent.standing == Standing::Leaving).count();
    let mut candidates: Vec<_> = agents
        .iter()
        .filter(|agent| agent.sequence.is_some())
        .filter_map(|agent| rank(agent.standing).map(|rank| (rank, std::cmp::Reverse(agent.age), &agent.name)))
        .collect();
    candidates.sort();
    let wanted = usize::try_from(surplus).unwrap_or(usize::MAX).saturating_sub(leaving);
    candidates.into_iter().take(wanted).map(|(_, _, name)| (name.clone(), Leaving::ScaledDown)).collect()
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
