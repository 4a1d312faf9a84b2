//! Which Agents a pool makes, keeps and ends: from one consistent look at the pool and its Agents to actions.
//!
//! Sequence numbers make this safe against a crash, an old cache and a second leader: a number is given out by
//! compare-and-swap on `spawned` before its Agent is made, an Agent's name follows from its number, and a number is never
//! reused once `collected_below` passed it. What always holds, after a crash at any point:
//! * at most `desired` Agents that count exist, unless a person lowered `desired`;
//! * a number below `spawned` that was never seen is made, under the same name, before a new one is given out;
//! * no Agent is deleted before `collected_below` is above its number, durably;
//! * crashed Agents are replaced with growing pauses, and do not pile up;
//! * no new Agent is made while a hibernated one can be woken, and hibernated ones do not pile up either.

use std::collections::BTreeSet;
use std::time::Duration;

/// One Agent as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its name.
    pub name: String,
    /// Its number, or `None` if it was made by hand (outside min and max).
    pub sequence: Option<i64>,
    /// Its state.
    pub state: MemberState,
    /// How long ago it was made, to order those that leave.
    pub age: Duration,
    /// It has a volume that outlives its pod: it can hibernate.
    pub can_hibernate: bool,
}

/// The state of an Agent, as far as its pool needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
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
    /// It is paused, with or without an item: never ended to scale down.
    Held,
    /// It is being deleted, or its pod is; its pod may still run.
    Leaving,
    /// It gave up its pod, and keeps its identity and its volume. It does not count, and is woken before a new Agent is
    /// made.
    Hibernated {
        /// A person or the supervisor holds it: it is neither woken nor deleted.
        paused: bool,
    },
    /// Its node is unreachable: it does not count, and its replacement may come.
    Unreachable,
    /// It ended; it is kept for reading.
    Ended {
        /// This long ago.
        ago: Duration,
        /// It ended by itself, within [`MIN_HEALTHY_LIFETIME`] of its start.
        crashed: bool,
    },
    /// An object of another owner has its name: its number is used up.
    Foreign,
}

impl MemberState {
    /// Whether it counts as an Agent of the pool. A leaving Agent counts until its pod is gone, so that there are never
    /// more running pods than the pool may have.
    pub fn counts(self) -> bool {
        match self {
            Self::Spawning | Self::Refused | Self::Starting | Self::Idle | Self::Busy | Self::Held | Self::Leaving => true,
            Self::Hibernated { .. } | Self::Unreachable | Self::Ended { .. } | Self::Foreign => false,
        }
    }

    /// Whether it has a pod that was made for it and was not asked to leave.
    fn has_pod(self) -> bool {
        match self {
            Self::Starting | Self::Idle | Self::Busy | Self::Held => true,
            Self::Spawning
            | Self::Refused
            | Self::Leaving
            | Self::Hibernated { .. }
            | Self::Unreachable
            | Self::Ended { .. }
            | Self::Foreign => false,
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
    /// Agents that leave because there is no work for them hibernate, if they can.
    pub hibernate: bool,
    /// The most Agents, hibernated ones included. If there are more, hibernated ones are deleted. 0: no Agent may
    /// hibernate.
    pub max_with_hibernated: u32,
}

/// What to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// `spawned` and `collected_below` as they should be stored.
    pub counters: Counters,
    /// The counters must be stored, by compare-and-swap, before anything else is done. Otherwise they may wait for the
    /// next write.
    pub counters_first: bool,
    /// Numbers whose Agents are made now.
    pub create: Vec<i64>,
    /// Agents to wake.
    pub wake: Vec<String>,
    /// Agents to hibernate.
    pub hibernate: Vec<String>,
    /// Agents to delete, with why.
    pub delete: Vec<(String, RemovalReason)>,
    /// When to look again if nothing happens.
    pub look_again: Option<Duration>,
}

/// The two counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Numbers given out so far.
    pub spawned: i64,
    /// Every number below was seen to exist once.
    pub collected_below: i64,
}

/// Why an Agent is deleted by its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// The pool wants fewer.
    ScaledDown,
    /// It ended, and was kept long enough.
    Collected,
    /// It hibernates, and the pool may have fewer hibernated Agents, or none.
    NotKept,
}

/// An Agent that ends by itself sooner than this after its start has crashed, however it ended.
pub const MIN_HEALTHY_LIFETIME: Duration = Duration::from_secs(600);
/// From this number of remembered crashes on a pool is in a crash loop.
pub const CRASH_LOOP_THRESHOLD: u32 = 2;
/// Crashes are remembered this long.
pub const CRASH_TTL: Duration = Duration::from_secs(600);
/// The longest pause before the next Agent is made.
const MAX_CREATE_BACKOFF: Duration = Duration::from_secs(300);

impl Plan {
    /// No Agent is to be made, woken, hibernated or deleted.
    pub fn settled(&self) -> bool {
        self.create.is_empty() && self.wake.is_empty() && self.hibernate.is_empty() && self.delete.is_empty()
    }
}

/// Allocated numbers of which no Agent was seen yet. Each is being made, or will be.
fn unseen(spawned: i64, collected_below: i64, agents: &[AgentFacts]) -> Vec<i64> {
    let existing: BTreeSet<i64> = agents.iter().filter_map(|agent| agent.sequence).collect();
    (collected_below..spawned).filter(|number| !existing.contains(number)).collect()
}

fn count(unseen: &[i64], agents: &[AgentFacts]) -> u32 {
    let seen = agents.iter().filter(|agent| agent.sequence.is_some() && agent.state.counts()).count();
    u32::try_from(seen + unseen.len()).unwrap_or(u32::MAX)
}

/// The number of Agents that count towards the desired size, with those that are being made.
pub fn counted_agents(spawned: i64, collected_below: i64, agents: &[AgentFacts]) -> u32 {
    count(&unseen(spawned, collected_below, agents), agents)
}

/// Decide.
pub fn plan(facts: &Facts) -> Plan {
    let Facts { desired, may_grow, spawned, collected_below, agents, stopped_ttl: _, hibernate, max_with_hibernated: with_hibernated } =
        facts;
    let unseen = unseen(*spawned, *collected_below, agents);
    let seen_below = unseen.first().copied().unwrap_or(*spawned).max(*collected_below);
    let counted = count(&unseen, agents);

    let mut plan = Plan { counters: Counters { spawned: *spawned, collected_below: seen_below }, ..Plan::default() };
    if !unseen.is_empty() {
        // We or an earlier leader allocated these numbers, and no Agent was seen. They are made, under the same names,
        // before a new number is allocated.
        plan.create = unseen;
    } else if counted < *desired && *may_grow {
        match crash_pause(*desired, agents) {
            Some(pause) => plan.look_again = Some(pause),
            None => {
                let grow = (*desired - counted).min(batch(agents));
                plan.wake = wakeable(agents).into_iter().take(usize::try_from(grow).unwrap_or(usize::MAX)).map(name).collect();
                plan.counters.spawned += i64::from(grow) - i64::try_from(plan.wake.len()).unwrap_or(i64::MAX);
                plan.create = (*spawned..plan.counters.spawned).collect();
            }
        }
    }
    // Only Agents whose number `collected_below` can pass. Others would look as if they were never made.
    let known = |agent: &&AgentFacts| agent.sequence.is_none_or(|number| number < seen_below);
    // Agents that wake now do not count as asleep.
    let asleep: Vec<&AgentFacts> = wakeable(agents).into_iter().filter(|agent| known(agent)).skip(plan.wake.len()).collect();
    let asleep_now = u32::try_from(asleep.len()).unwrap_or(u32::MAX);
    if counted > *desired {
        let leavers = leavers(agents.iter().filter(known), counted - *desired);
        let places = if *hibernate { with_hibernated.saturating_sub(*desired).saturating_sub(asleep_now) } else { 0 };
        for agent in leavers {
            if agent.can_hibernate && plan.hibernate.len() < usize::try_from(places).unwrap_or(usize::MAX) {
                plan.hibernate.push(name(agent));
            } else {
                plan.delete.push((name(agent), RemovalReason::ScaledDown));
            }
        }
    }
    let awake = counted.saturating_add(u32::try_from(plan.wake.len()).unwrap_or(u32::MAX));
    let surplus = awake.saturating_add(asleep_now).saturating_sub(*with_hibernated).min(asleep_now);
    let surplus = asleep.iter().rev().take(usize::try_from(surplus).unwrap_or(usize::MAX));
    plan.delete.extend(surplus.map(|agent| (name(agent), RemovalReason::NotKept)));
    let (collected, next) = collect(facts, agents.iter().filter(known));
    plan.delete.extend(collected);
    plan.look_again = plan.look_again.into_iter().chain(next).min();
    let below =
        |name: &str| agents.iter().any(|agent| agent.name == name && agent.sequence.is_some_and(|number| number >= *collected_below));
    plan.counters_first = plan.counters.spawned != *spawned || plan.delete.iter().any(|(name, _)| below(name));
    plan
}

fn name(agent: &AgentFacts) -> String {
    agent.name.clone()
}

/// Hibernated Agents that are not paused, in the order in which they are woken. The order is always the same.
fn wakeable(agents: &[AgentFacts]) -> Vec<&AgentFacts> {
    let asleep = |agent: &&AgentFacts| agent.sequence.is_some() && agent.state == MemberState::Hibernated { paused: false };
    let mut asleep: Vec<_> = agents.iter().filter(asleep).collect();
    asleep.sort_by_key(|agent| agent.sequence);
    asleep
}

/// Ended Agents that were kept long enough, and the time until the next one was. A crashed one is kept at least as long
/// as crashes are remembered. Not many more than the size of the pool are kept. Agents that the pool did not make
/// itself (children, processes outside the cluster) are counted apart.
fn collect<'a>(facts: &Facts, agents: impl Iterator<Item = &'a AgentFacts>) -> (Vec<(String, RemovalReason)>, Option<Duration>) {
    let mut ended: Vec<_> = agents
        .filter_map(|agent| match agent.state {
            MemberState::Ended { ago, crashed } => {
                Some((agent, if crashed { facts.stopped_ttl.max(CRASH_TTL) } else { facts.stopped_ttl }, ago))
            }
            MemberState::Spawning
            | MemberState::Refused
            | MemberState::Starting
            | MemberState::Idle
            | MemberState::Busy
            | MemberState::Held
            | MemberState::Leaving
            | MemberState::Hibernated { .. }
            | MemberState::Unreachable
            | MemberState::Foreign => None,
        })
        .collect();
    ended.sort_by_key(|(agent, _, ago)| (*ago, std::cmp::Reverse(agent.sequence)));
    let most = usize::try_from(facts.desired).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(10);
    let (mut collected, mut next) = (Vec::new(), None::<Duration>);
    let (mut own, mut others) = (0, 0);
    for (agent, keep, ago) in ended {
        let before = if agent.sequence.is_some() { &mut own } else { &mut others };
        let place = *before;
        *before += 1;
        if ago >= keep || place >= most {
            collected.push((agent.name.clone(), RemovalReason::Collected));
        } else {
            next = Some(next.map_or(keep - ago, |soonest| soonest.min(keep - ago)));
        }
    }
    (collected, next)
}

/// How many Agents crashed lately.
pub fn crashes(agents: &[AgentFacts]) -> u32 {
    u32::try_from(ages_of_crashes(agents).count()).unwrap_or(u32::MAX)
}

fn ages_of_crashes(agents: &[AgentFacts]) -> impl Iterator<Item = Duration> {
    agents.iter().filter(|agent| agent.sequence.is_some()).filter_map(|agent| match agent.state {
        MemberState::Ended { ago, crashed: true } if ago < CRASH_TTL => Some(ago),
        MemberState::Ended { .. }
        | MemberState::Spawning
        | MemberState::Refused
        | MemberState::Starting
        | MemberState::Idle
        | MemberState::Busy
        | MemberState::Held
        | MemberState::Leaving
        | MemberState::Hibernated { .. }
        | MemberState::Unreachable
        | MemberState::Foreign => None,
    })
}

/// How long a pool whose Agents crash still waits before it makes the next one: 2 s, doubled each time that as many as
/// the desired size have crashed.
fn crash_pause(desired: u32, agents: &[AgentFacts]) -> Option<Duration> {
    let last = ages_of_crashes(agents).min()?;
    let rounds = crashes(agents).div_ceil(desired.max(1)).min(16);
    let pause = Duration::from_secs(1 << rounds).min(MAX_CREATE_BACKOFF);
    pause.checked_sub(last).filter(|left| !left.is_zero())
}

/// How many Agents may be made at once: one more than have their pods (1, 2, 4, 8 ...), and none while one is refused:
/// a thousand Agents that wait for quota are of no use.
fn batch(agents: &[AgentFacts]) -> u32 {
    let numbered = || agents.iter().filter(|agent| agent.sequence.is_some()).map(|agent| agent.state);
    if numbered().any(|standing| standing == MemberState::Refused) {
        return 0;
    }
    let with_pod = numbered().filter(|standing| standing.has_pod()).count();
    let waiting = numbered().filter(|standing| *standing == MemberState::Spawning).count();
    u32::try_from((with_pod + 1).saturating_sub(waiting)).unwrap_or(u32::MAX)
}

/// The Agents to end: those that do nothing yet first, then idle ones, the oldest first. Busy ones are never ended.
/// Those that leave already count.
fn leavers<'a>(agents: impl Iterator<Item = &'a AgentFacts>, surplus: u32) -> Vec<&'a AgentFacts> {
    let agents: Vec<_> = agents.filter(|agent| agent.sequence.is_some()).collect();
    let rank = |standing: MemberState| match standing {
        MemberState::Refused => Some(0),
        MemberState::Spawning => Some(1),
        MemberState::Starting => Some(2),
        MemberState::Idle => Some(3),
        MemberState::Busy
        | MemberState::Held
        | MemberState::Leaving
        | MemberState::Hibernated { .. }
        | MemberState::Unreachable
        | MemberState::Ended { .. }
        | MemberState::Foreign => None,
    };
    let leaving = agents.iter().filter(|agent| agent.state == MemberState::Leaving).count();
    let mut candidates: Vec<(i32, std::cmp::Reverse<Duration>, &AgentFacts)> =
        agents.iter().filter_map(|agent| rank(agent.state).map(|rank| (rank, std::cmp::Reverse(agent.age), *agent))).collect();
    candidates.sort_by(|one, other| (one.0, one.1, &one.2.name).cmp(&(other.0, other.1, &other.2.name)));
    let wanted = usize::try_from(surplus).unwrap_or(usize::MAX).saturating_sub(leaving);
    candidates.into_iter().take(wanted).map(|(_, _, agent)| agent).collect()
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
