//! What is known of a pool and its Agents: from the caches, to see whether anything is to be done; live, to do it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::api::agent::AgentPhase;
use crate::api::agent_pool::{EmptyAction, PoolMode};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPool, AgentPoolSpec, names, unsupported};
use crate::cluster::{Error, ObjectKey};
use crate::controller::Context;
use crate::controller::agent::{hindrance_of, hindrance_reason};
use crate::controller::capacity;
use crate::controller::conditions::find;
use crate::controller::namespace_setup;
use crate::controller::stores::{AgentObject, Stores};
use crate::governor::breaker::{PoolCircuits as Circuits, work as breaker};
use crate::governor::budget::availability::{self, TokenAvailability};
use crate::governor::preflight;
use crate::policy::pool::{AgentFacts, CRASH_TTL, Facts, MIN_HEALTHY_LIFETIME, MemberState, crashes, there};
use crate::policy::scaling::{self, DesiredSize, Work};
use spillway_conversion::pool::{queues_of, taking};

/// How long a pool without work waits when neither it nor its queue says.
const EMPTY_AFTER: Duration = Duration::from_secs(60);

/// What is known.
pub struct PoolObservation {
    /// What decides.
    pub facts: Facts,
    /// How many are wanted, and why.
    pub desired: DesiredSize,
    /// When fewer are wanted, if nothing changes.
    pub settles: Option<Duration>,
    /// Items that its agents could take now, and that they hold; unknown until all were listed.
    pub work: Option<(u64, u64)>,
    /// Objects that the spec names and that do not exist.
    pub missing: Vec<String>,
    /// What the spec asks for and this version cannot do.
    pub unsupported: Option<String>,
    /// What keeps Agents from running.
    pub blocked: Option<PoolBlockers>,
    /// Agents whose pod is Ready.
    pub ready: u32,
    /// Agents that ended soon after their start, lately; with what the last of them said.
    pub crashes: Option<(u32, String)>,
    /// The Agents, by name.
    pub members: BTreeMap<String, Member>,
}

/// What a write of an Agent is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its uid.
    pub uid: String,
    /// The version that was read.
    pub version: String,
    /// The uid under which it calls.
    pub caller: Option<String>,
}

/// What keeps Agents from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlockers {
    /// The gravest reason among them.
    pub reason: &'static str,
    /// Whose words, and which.
    pub message: String,
}

/// What the caches show.
pub fn from_cache(pool: &AgentPool, key: &ObjectKey, context: &Context) -> PoolObservation {
    let agents = context.stores.agents_of(&key.namespace, &key.name);
    observe(pool, agents.iter().map(Arc::as_ref), context)
}

/// What the API server shows: the Agents as they are after `pool` was read.
pub async fn live(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<PoolObservation, Error> {
    let params = ListParams::default().fields(&format!("spec.poolRef.name={}", key.name));
    let agents = context.api::<AgentObject>(&key.namespace).list(&params).await.map_err(Error::of("listing a pool's Agents"))?;
    Ok(observe(pool, agents.items.iter(), context))
}

fn observe<'a>(pool: &AgentPool, agents: impl Iterator<Item = &'a AgentObject>, context: &Context) -> PoolObservation {
    let spec = &pool.spec;
    let id = PoolId { name: pool.name_any(), uid: pool.metadata.uid.clone().unwrap_or_default() };
    let status = pool.status.as_ref();
    let spawned = status.and_then(|status| status.spawned).unwrap_or(0);
    let mine: Vec<(&AgentObject, Option<i64>)> = agents.filter_map(|agent| id.own(agent, spawned).map(|number| (agent, number))).collect();
    let namespace = pool.namespace().unwrap_or_default();
    let work = work_for(pool, &namespace, &mine, context);
    let target = scaling::desired(&scaling::Facts {
        replicas: spec.fixed_replicas(),
        min: spec.min(),
        max: spec.max(),
        work: wanted_work(pool, work),
        room: None,
    });
    let now = jiff::Timestamp::now();
    let all: Vec<AgentFacts> = mine.iter().map(|(agent, number)| agent_facts(agent, *number, now, spec.mode, context)).collect();
    let collected_below = status.and_then(|status| status.collected_below).unwrap_or(0);
    let there = there(spawned, collected_below, &all);
    let follows = spec.work_aware() && spec.replicas.is_none();
    let (desired, settles) =
        if follows { context.descent.step(pool, target, there, empty_after(pool, &namespace, context)) } else { (target, None) };
    if !follows {
        context.descent.forget(&ObjectKey { namespace: namespace.clone(), name: pool.name_any() });
    }
    let missing = missing_references(spec, &namespace, &context.stores);
    let unsupported = unsupported(spec);
    let not_a_project =
        capacity::not_a_project(&namespace, &context.stores).map(|message| PoolBlockers { reason: reasons::PROJECT_LIMIT, message });
    let short = without_tokens(pool, &availability::of_pool(pool, context));
    let circuits = breaker::standing(context, &ObjectKey::of(pool));
    let stopped = stopped(pool, circuits.as_ref());
    let unmeetable = preflight::unmeetable(spec).map(|message| PoolBlockers { reason: reasons::PREFLIGHT_FAILED, message });
    // While it is being tried whether its work succeeds again no more agents are made than may try.
    let tries = circuits.as_ref().and_then(Circuits::probes);
    let numbered: Vec<&Agent> = mine.iter().filter(|(_, number)| number.is_some()).filter_map(|(agent, _)| agent.0.as_ref().ok()).collect();
    let facts = Facts {
        desired: tries.map_or(desired.count, |tries| desired.count.min(tries.max(there))),
        may_grow: missing.is_empty()
            && unsupported.is_none()
            && not_a_project.is_none()
            && short.is_none()
            && stopped.is_none()
            && unmeetable.is_none()
            && !all_unfit(&all, &numbered)
            && namespace_setup::stand(&namespace, context),
        spawned,
        collected_below,
        agents: all,
        stopped_ttl: Duration::from_secs(spec.stopped_ttl_seconds().into()),
        hibernate: follows && hibernates(pool, &namespace, context),
        with_hibernated: if hibernates(pool, &namespace, context) { spec.max() } else { 0 },
    };
    let ready = facts
        .agents
        .iter()
        .filter(|agent| agent.sequence.is_some() && matches!(agent.standing, MemberState::Idle | MemberState::Busy | MemberState::Held));
    PoolObservation {
        ready: u32::try_from(ready.count()).unwrap_or(u32::MAX),
        crashes: Some(crashes(&facts.agents)).filter(|crashes| *crashes > 0).map(|crashes| (crashes, last_words(&numbered))),
        blocked: gravest(blocked(&numbered), stopped.or(short).filter(|_| desired.count > 0)).or(not_a_project).or(unmeetable),
        facts,
        desired,
        settles,
        work,
        missing,
        unsupported,
        members: mine.iter().map(|(agent, _)| (agent.name_any(), member(agent))).collect(),
    }
}

fn member(agent: &AgentObject) -> Member {
    Member {
        uid: agent.uid().unwrap_or_default(),
        version: agent.resource_version().unwrap_or_default(),
        caller: agent.0.as_ref().ok().and_then(Agent::caller_uid).map(str::to_owned),
    }
}

/// Which pool it is.
struct PoolId {
    name: String,
    uid: String,
}

impl PoolId {
    /// Whether an Agent is the pool's: `Some(Some(number))` for one that the pool made, `Some(None)` for one made by hand.
    /// The name proves the first; labels and owner references prove nothing. Of an object that does not fit its type only
    /// the name is left: then all numbers given out are tried.
    fn own(&self, agent: &AgentObject, spawned: i64) -> Option<Option<i64>> {
        let name = agent.name_any();
        let number = match &agent.0 {
            Ok(agent) => agent.spec.sequence.filter(|number| names::is_agent_of(&name, *number, &self.name, &self.uid)),
            Err(_) => (0..spawned).find(|number| names::is_agent_of(&name, *number, &self.name, &self.uid)),
        };
        let owned = || agent.meta().owner_references.iter().flatten().any(|owner| owner.uid == self.uid);
        if number.is_some() { Some(number) } else { owned().then_some(None) }
    }
}

/// How much work there is for the pool: what its agents could take, and what they hold.
fn work_for(pool: &AgentPool, namespace: &str, mine: &[(&AgentObject, Option<i64>)], context: &Context) -> Option<(u64, u64)> {
    let taking = taking(pool);
    if taking.queues.is_empty() {
        return None;
    }
    // What agents outside the cluster hold calls for none inside.
    let pods: HashSet<&str> = mine.iter().filter_map(|(agent, _)| pod_uid(agent.0.as_ref().ok()?)).collect();
    context.work_index.work_for(namespace, &taking, &pods)
}

fn pod_uid(agent: &Agent) -> Option<&str> {
    agent.status.as_ref()?.pod_ref.as_ref().map(|pod| pod.uid.as_str())
}

fn wanted_work(pool: &AgentPool, work: Option<(u64, u64)>) -> Work {
    let spec = &pool.spec;
    if !spec.work_aware() {
        return Work::Ignored;
    }
    let known = |ready, leased| Work::Known { ready, leased, items_per_agent: spec.items_per_agent(), idle_buffer: spec.idle_buffer() };
    match work {
        Some((ready, leased)) => known(ready, leased),
        // Without queues there is never any.
        None if queues_of(pool).is_empty() => known(0, 0),
        None => {
            let so_far = pool.status.as_ref().and_then(|status| status.desired).unwrap_or(0);
            Work::Unknown { so_far: u32::try_from(so_far).unwrap_or(0) }
        }
    }
}

/// How long a pool without work waits before it goes to nothing: what it says itself, else what its first queue says.
fn empty_after(pool: &AgentPool, namespace: &str, context: &Context) -> Duration {
    let own = pool.spec.when_empty.as_ref().map(|when| when.after_seconds);
    let first = pool.spec.queues.as_ref().and_then(|queues| queues.first());
    let of_queue = || first.and_then(|queue| context.work_index.queue(namespace, &queue.name)).and_then(|queue| queue.empty_after);
    let own = own.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    own.or_else(of_queue).unwrap_or(EMPTY_AFTER)
}

/// Whether agents without work hibernate: as the pool says itself, else as its first queue says. Without a volume that
/// outlives a pod there is nothing to keep.
fn hibernates(pool: &AgentPool, namespace: &str, context: &Context) -> bool {
    let kept = pool.spec.workspace.as_ref().is_some_and(|workspace| workspace.volume_claim_template.is_some());
    let first = pool.spec.queues.as_ref().and_then(|queues| queues.first());
    let of_queue = || first.and_then(|queue| context.work_index.queue(namespace, &queue.name)).is_some_and(|queue| queue.hibernates);
    kept && pool.spec.when_empty.as_ref().map_or_else(of_queue, |when| when.action == EmptyAction::Hibernate)
}

fn agent_facts(agent: &AgentObject, sequence: Option<i64>, now: jiff::Timestamp, mode: PoolMode, context: &Context) -> AgentFacts {
    let since = |time: jiff::Timestamp| Duration::try_from(now.duration_since(time)).unwrap_or_default();
    AgentFacts {
        name: agent.name_any(),
        sequence,
        // What does not fit its type holds its place, and is not touched.
        standing: agent.0.as_ref().map_or(MemberState::Leaving, |agent| at_work(standing(agent, since, mode), agent, context)),
        age: agent.creation_timestamp().map(|time| since(time.0)).unwrap_or_default(),
        keeps: agent.0.as_ref().is_ok_and(|agent| agent.status.as_ref().is_some_and(|status| status.claim_ref.is_some())),
    }
}

/// A status tells late of what an agent holds: whoever gives it out knows.
fn at_work(standing: MemberState, agent: &Agent, context: &Context) -> MemberState {
    let namespace = agent.namespace().unwrap_or_default();
    match standing {
        MemberState::Idle | MemberState::Starting
            if agent.caller_uid().is_some_and(|uid| context.work_index.holding(&namespace, uid).is_some()) =>
        {
            MemberState::Busy
        }
        standing => standing,
    }
}

fn standing(agent: &Agent, since: impl Fn(jiff::Timestamp) -> Duration, mode: PoolMode) -> MemberState {
    let status = agent.status.as_ref();
    let reason = reason_of(agent);
    let with_pod = status.is_some_and(|status| status.pod_ref.is_some());
    let phase = status.and_then(|status| status.phase);
    if let Some(AgentPhase::Stopped | AgentPhase::ForceStopped) = phase {
        let ago = status.and_then(|status| status.stop_time.as_ref()).map(|time| since(time.0)).unwrap_or_default();
        // A person who leaves the terminal ends the program: that is no crash.
        let left = mode == PoolMode::Chat && reason == Some(reasons::POD_SUCCEEDED);
        return MemberState::Ended { ago, crashed: crashed(agent) && !left };
    }
    if reason == Some(reasons::NODE_UNREACHABLE) {
        return MemberState::Unreachable;
    }
    let to_sleep = agent.spec.hibernated == Some(true);
    if agent.metadata.deletion_timestamp.is_some() {
        // One that sleeps has no pod: its place is free at once, or another one that sleeps would be taken for too many.
        let asleep = to_sleep && phase == Some(AgentPhase::Hibernated);
        return if asleep { MemberState::Hibernated { paused: true } } else { MemberState::Leaving };
    }
    match phase {
        Some(AgentPhase::Hibernated) if to_sleep => MemberState::Hibernated { paused: is_paused(agent) },
        Some(AgentPhase::Hibernated) => MemberState::Spawning, // it is being woken
        Some(AgentPhase::Goodbye | AgentPhase::Stale | AgentPhase::Stopped | AgentPhase::ForceStopped) => MemberState::Leaving,
        Some(AgentPhase::Active) => MemberState::Busy,
        Some(AgentPhase::Paused) => MemberState::Held,
        // On its way to sleep: it holds its place until its pod is gone.
        None | Some(AgentPhase::Idle | AgentPhase::Running | AgentPhase::Spawning) if to_sleep => MemberState::Leaving,
        Some(AgentPhase::Idle) => MemberState::Idle,
        Some(AgentPhase::Running) => MemberState::Starting,
        None | Some(AgentPhase::Spawning) if with_pod => MemberState::Starting,
        None | Some(AgentPhase::Spawning) if reason.is_some_and(|reason| hindrance_of(reason).is_some()) => MemberState::Refused,
        None | Some(AgentPhase::Spawning) => MemberState::Spawning,
    }
}

fn is_paused(agent: &Agent) -> bool {
    let paused = agent.status.as_ref().and_then(|status| find(&status.conditions, types::PAUSED));
    agent.spec.paused == Some(true) || paused.is_some_and(|paused| paused.status == "True")
}

fn reason_of(agent: &Agent) -> Option<&str> {
    agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY)).map(|ready| ready.reason.as_str())
}

/// Whether an ended Agent ended by itself, and soon after its program started, or before.
fn crashed(agent: &Agent) -> bool {
    let by_itself = matches!(reason_of(agent), Some(reasons::POD_FAILED | reasons::POD_SUCCEEDED | reasons::START_TIMED_OUT));
    let status = agent.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let stopped = status.and_then(|status| status.stop_time.as_ref()).map(|time| time.0);
    let lived = started.zip(stopped).and_then(|(started, stopped)| Duration::try_from(stopped.duration_since(started)).ok());
    // One that did not even start in time has crashed however long that was.
    by_itself && (reason_of(agent) == Some(reasons::START_TIMED_OUT) || lived.is_none_or(|lived| lived < MIN_HEALTHY_LIFETIME))
}

/// How long ago an ended Agent crashed, if it did and that is remembered.
pub fn crashed_ago(agent: &Agent, mode: PoolMode, now: jiff::Timestamp) -> Option<Duration> {
    let since = |time: jiff::Timestamp| Duration::try_from(now.duration_since(time)).unwrap_or_default();
    let MemberState::Ended { ago, crashed: true } = standing(agent, since, mode) else { return None };
    (ago < CRASH_TTL).then_some(ago)
}

/// What the Agent that crashed last said.
fn last_words(agents: &[&Agent]) -> String {
    let stop = |agent: &&&Agent| agent.status.as_ref().and_then(|status| status.stop_time.as_ref()).map(|time| time.0);
    let last = agents.iter().filter(|agent| crashed(agent)).max_by_key(stop);
    let ready = last.and_then(|agent| find(&agent.status.as_ref()?.conditions, types::READY));
    last.zip(ready).map(|(agent, ready)| format!("{}: {}", agent.name_any(), ready.message)).unwrap_or_default()
}

/// The gravest hindrance among Agents, in the words of one of them, and how many more share it.
fn blocked(agents: &[&Agent]) -> Option<PoolBlockers> {
    let mut waiting: Vec<_> = agents
        .iter()
        .filter(|agent| agent.metadata.deletion_timestamp.is_none())
        .filter_map(|agent| {
            let ready = find(&agent.status.as_ref()?.conditions, types::READY)?;
            Some((hindrance_of(&ready.reason)?, agent.name_any(), &ready.message))
        })
        .collect();
    waiting.sort();
    let Some((kind, name, message)) = waiting.first() else { return held_back(agents) };
    let others = match waiting.iter().filter(|(other, ..)| other == kind).count() - 1 {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    Some(PoolBlockers { reason: hindrance_reason(*kind), message: format!("{name}: {message}{others}") })
}

/// That a circuit refuses the pool any work. While that is not known it says what it said, as with tokens.
fn stopped(pool: &AgentPool, circuits: Option<&Circuits>) -> Option<PoolBlockers> {
    let Some(circuits) = circuits else { return said(pool, reasons::BREAKER_OPEN) };
    breaker::in_the_way(circuits, &ObjectKey::of(pool)).map(|(reason, message)| PoolBlockers { reason, message })
}

/// What the pool says it is blocked by, if it is for this reason.
fn said(pool: &AgentPool, reason: &'static str) -> Option<PoolBlockers> {
    let stored = pool.status.as_ref().and_then(|status| find(&status.conditions, types::BLOCKED));
    let stored = stored.filter(|blocked| blocked.status == "True" && blocked.reason == reason);
    stored.map(|blocked| PoolBlockers { reason, message: blocked.message.clone() })
}

/// That there are no tokens for the pool's agents. While that is not known it says what it said: a leader that has not read the
/// records yet must not make agents that the one before it did not make.
fn without_tokens(pool: &AgentPool, tokens: &TokenAvailability) -> Option<PoolBlockers> {
    match tokens {
        TokenAvailability::There => None,
        TokenAvailability::Short(obstacle) => Some(PoolBlockers { reason: reasons::BUDGET_EXHAUSTED, message: obstacle.to_string() }),
        TokenAvailability::Unknown => said(pool, reasons::BUDGET_EXHAUSTED),
    }
}

/// Of what keeps its agents from running and that there are no tokens for them, what is told. Who has no quota, or cannot make
/// agents for want of one, gets nothing done with more tokens.
fn gravest(agents: Option<PoolBlockers>, tokens: Option<PoolBlockers>) -> Option<PoolBlockers> {
    match (agents, tokens) {
        (Some(agents), Some(_)) if agents.reason == reasons::QUOTA_EXCEEDED => Some(agents),
        (_, Some(tokens)) => Some(tokens),
        (agents, None) => agents,
    }
}

/// Agents fail their preflight, and none of the pool passes it: one more would fail as they do. Those that are there try again.
fn all_unfit(facts: &[AgentFacts], agents: &[&Agent]) -> bool {
    let serves = |agent: &AgentFacts| matches!(agent.standing, MemberState::Idle | MemberState::Busy | MemberState::Held);
    held_back(agents).is_some_and(|held| held.reason == reasons::PREFLIGHT_FAILED) && !facts.iter().any(serves)
}

/// Agents that are there and get no work: their walls do not stand, or they fail their preflight. They are kept, and try again.
fn held_back(agents: &[&Agent]) -> Option<PoolBlockers> {
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

/// Objects that the spec names and that the namespace does not have, as `Kind/name`.
pub fn missing_references(spec: &AgentPoolSpec, namespace: &str, stores: &Stores) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(budget) = spec.budget_ref.as_ref()
        && stores.budgets.get(&ObjectRef::new(&budget.name).within(namespace)).is_none()
    {
        missing.push(format!("{}/{}", crate::api::Budget::kind(&()), budget.name));
    }
    for queue in spec.queues.iter().flatten() {
        if stores.queues.get(&ObjectRef::new(&queue.name).within(namespace)).is_none() {
            missing.push(format!("{}/{}", crate::api::WorkQueue::kind(&()), queue.name));
        }
    }
    missing
}

/// What the spec asks for and this version cannot give: said, and not done half. A wall that somebody asked for by name and that
/// is not there is worse than none.
pub fn unsupported(spec: &AgentPoolSpec) -> Option<String> {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let asked = unsupported::asked("AgentPool", &spec);
    let messages: Vec<String> = asked.iter().map(unsupported::Field::message).collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::blocker::ExhaustedLimit;
    use crate::policy::budget::refusal::RefusalCause;
    use crate::policy::budget::{Blocker, Holders, Key as TokenKey, Window};
    use serde_json::json;

    fn agent(status: serde_json::Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    }
    fn ready(status: &str, reason: &str) -> serde_json::Value {
        json!([{"type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }
    fn stands(status: serde_json::Value) -> MemberState {
        standing(&agent(status), |_| Duration::ZERO, PoolMode::Perseverance)
    }

    #[test]
    fn where_an_agent_stands_follows_from_its_status() {
        let pod = json!({"name": "a", "uid": "u"});
        assert_eq!(stands(json!({})), MemberState::Spawning);
        assert_eq!(stands(json!({"phase": "Spawning", "conditions": ready("False", "QuotaExceeded")})), MemberState::Refused);
        assert_eq!(stands(json!({"phase": "Spawning", "podRef": pod, "conditions": ready("False", "ImagePull")})), MemberState::Starting);
        assert_eq!(stands(json!({"phase": "Idle", "podRef": pod, "conditions": ready("True", "Registered")})), MemberState::Idle);
        assert_eq!(stands(json!({"phase": "Paused", "podRef": pod, "conditions": ready("True", "Registered")})), MemberState::Held);
        assert_eq!(
            stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("False", "NotRegistered")})),
            MemberState::Starting
        );
        assert_eq!(stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("False", "PodNotReady")})), MemberState::Starting);
        assert_eq!(stands(json!({"phase": "Goodbye", "podRef": pod})), MemberState::Leaving);
        assert_eq!(
            stands(json!({"phase": "Stale", "podRef": pod, "conditions": ready("False", "NodeUnreachable")})),
            MemberState::Unreachable
        );
        assert_eq!(stands(json!({"phase": "Stopped", "podRef": pod})), MemberState::Ended { ago: Duration::ZERO, crashed: false });
    }

    #[test]
    fn where_an_agent_stands_that_sleeps_or_is_to() {
        let sleepy = |hibernated: bool, status: serde_json::Value| {
            let mut agent = agent(status);
            agent.spec.hibernated = Some(hibernated);
            standing(&agent, |_| Duration::ZERO, PoolMode::Perseverance)
        };
        let (pod, asleep) = (json!({"name": "a", "uid": "u"}), json!({"phase": "Hibernated", "conditions": ready("False", "Hibernated")}));
        assert_eq!(sleepy(true, json!({"phase": "Idle", "podRef": pod})), MemberState::Leaving, "it holds its place until its pod is gone");
        assert_eq!(sleepy(true, json!({"phase": "Goodbye", "podRef": pod})), MemberState::Leaving);
        assert_eq!(sleepy(true, json!({"phase": "Active", "podRef": pod})), MemberState::Busy);
        assert_eq!(sleepy(true, asleep.clone()), MemberState::Hibernated { paused: false });
        assert_eq!(sleepy(false, asleep), MemberState::Spawning, "it is being woken");
        let paused = json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(sleepy(true, json!({"phase": "Hibernated", "conditions": paused})), MemberState::Hibernated { paused: true });
    }

    #[test]
    fn who_is_deleted_asleep_holds_no_place() {
        let mut agent = agent(json!({"phase": "Hibernated"}));
        agent.spec.hibernated = Some(true);
        agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        let standing = standing(&agent, |_| Duration::ZERO, PoolMode::Perseverance);
        assert!(!standing.counts() && standing == MemberState::Hibernated { paused: true }, "nor is it woken, or deleted again");
    }

    #[test]
    fn an_agent_under_deletion_is_leaving_until_it_is_gone() {
        let mut agent = agent(json!({"phase": "Running", "conditions": ready("True", "Registered")}));
        agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(standing(&agent, |_| Duration::ZERO, PoolMode::Perseverance), MemberState::Leaving);
        agent.status.as_mut().expect("a status").phase = Some(AgentPhase::Stopped);
        assert!(
            matches!(standing(&agent, |_| Duration::ZERO, PoolMode::Perseverance), MemberState::Ended { .. }),
            "one that ended holds no place while it goes"
        );
    }

    #[test]
    fn a_short_life_that_ended_by_itself_is_a_crash() {
        let ended = |reason: &str, stop: &str| {
            crashed(&agent(
                json!({"phase": "Stopped", "startTime": "2026-01-01T00:00:00Z", "stopTime": stop, "conditions": ready("False", reason)}),
            ))
        };
        assert!(ended("PodFailed", "2026-01-01T00:09:59Z") && ended("PodSucceeded", "2026-01-01T00:00:01Z"));
        assert!(!ended("PodFailed", "2026-01-01T00:10:00Z"), "it lived long enough");
        assert!(!ended("PodGone", "2026-01-01T00:00:01Z"), "somebody ended it");
        let unstarted = json!({"phase": "Stopped", "stopTime": "2026-01-01T09:00:00Z", "conditions": ready("False", "PodFailed")});
        assert!(crashed(&agent(unstarted)), "its program did not even start, however old the Agent is");
    }

    #[test]
    fn membership_is_proved_by_the_name_whatever_labels_and_owners_say() {
        let pool = PoolId { name: "p".into(), uid: "u".into() };
        let object = |name: &str, extra: serde_json::Value| -> AgentObject {
            let mut value = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}, "spec": {"poolRef": {"name": "p"}}});
            value.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            serde_json::from_value(value).expect("an object that may not fit")
        };
        let name = names::agent_name("p", "u", 3);
        let numbered = |number: i64| json!({"spec": {"poolRef": {"name": "p"}, "sequence": number}});
        assert_eq!(pool.own(&object(&name, numbered(3)), 9), Some(Some(3)), "no owner, no labels");
        assert_eq!(pool.own(&object(&name, numbered(4)), 9), None, "another number");
        assert_eq!(pool.own(&object("mine", json!({})), 9), None, "nobody's, or not adopted yet");
        let owned =
            json!({"metadata": {"name": "mine", "ownerReferences": [{"apiVersion": "v", "kind": "AgentPool", "name": "p", "uid": "u"}]}});
        assert_eq!(pool.own(&object("mine", owned), 9), Some(None), "made by hand");
        let malformed = object(&name, json!({"spec": 7}));
        assert!(malformed.0.is_err());
        assert_eq!(pool.own(&malformed, 9), Some(Some(3)), "what does not fit its type still holds its number");
    }

    #[test]
    fn the_gravest_hindrance_is_told_with_its_count() {
        let (quota, image) =
            (agent(json!({"conditions": ready("False", "QuotaExceeded")})), agent(json!({"conditions": ready("False", "ImagePull")})));
        let got = blocked(&[&image, &quota, &quota]).expect("blocked");
        assert_eq!((got.reason, got.message.as_str()), ("QuotaExceeded", "a: m (and 1 more)"));
        assert_eq!(blocked(&[&agent(json!({"conditions": ready("True", "Registered")}))]), None);
    }

    #[test]
    fn agents_that_get_no_work_are_told_of_with_their_count() {
        let said = |name: &str, reason: &str| {
            let mut agent = agent(json!({"phase": "Running", "conditions": ready("False", reason)}));
            agent.metadata.name = Some(name.to_owned());
            agent
        };
        let (first, second) = (said("b", "PreflightFailed"), said("a", "PreflightFailed"));
        let got = blocked(&[&first, &second]).expect("blocked");
        assert_eq!((got.reason, got.message.as_str()), ("PreflightFailed", "a: m (and 1 more)"));
        let facts = |standing: MemberState| AgentFacts { name: "a".into(), sequence: Some(1), standing, age: Duration::ZERO, keeps: false };
        assert!(all_unfit(&[facts(MemberState::Starting)], &[&first, &second]), "one more would fail too");
        assert!(!all_unfit(&[facts(MemberState::Starting), facts(MemberState::Busy)], &[&first]), "some pass");
        assert!(!all_unfit(&[facts(MemberState::Starting)], &[]), "that is not known yet");
        let open = said("c", "EgressNotEnforced");
        assert_eq!(blocked(&[&first, &open]).map(|blocked| blocked.reason), Some("EgressNotEnforced"), "the graver one");
        let mut gone = first.clone();
        gone.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(blocked(&[&gone]), None);
        // It holds its place: its pool makes no other for it, and does not end it for having nothing to do.
        assert_eq!(
            stands(json!({"phase": "Running", "podRef": {"name": "a", "uid": "u"}, "conditions": ready("False", "PreflightFailed")})),
            MemberState::Starting
        );
    }

    #[test]
    fn a_pool_without_tokens_says_so_and_goes_on_saying_so_while_that_is_not_known() {
        let pool = |status: serde_json::Value| -> AgentPool {
            let spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
            let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec, "status": status});
            serde_json::from_value(object).expect("a pool")
        };
        let limit = Some(ExhaustedLimit { name: "hourly".into(), span: Window::Hour.at(0), height: 100 });
        let field = "spec.tokens.limits[hourly].tokens".to_owned();
        let short = TokenAvailability::Short(Blocker {
            key: TokenKey::budget("n", "b"),
            because: RefusalCause::Used,
            limit,
            field,
            guaranteed: Holders::default(),
        });
        let blocked = without_tokens(&pool(json!({})), &short).expect("blocked");
        assert!(blocked.reason == "BudgetExhausted" && blocked.message.contains("Budget/b"), "{}", blocked.message);
        let says = |status: &str, reason: &str| {
            let blocked = json!([{"type": "Blocked", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            pool(json!({"conditions": blocked}))
        };
        let was = says("True", "BudgetExhausted");
        assert_eq!(without_tokens(&was, &TokenAvailability::Unknown).map(|blocked| blocked.message).as_deref(), Some("m"));
        assert_eq!(without_tokens(&was, &TokenAvailability::There), None);
        for other in [pool(json!({})), says("True", "QuotaExceeded"), says("False", "NotBlocked")] {
            assert_eq!(without_tokens(&other, &TokenAvailability::Unknown), None);
        }
        let of = |reason| Some(PoolBlockers { reason, message: "of agents".into() });
        let reason = |agents| gravest(agents, Some(blocked.clone())).map(|blocked| blocked.reason);
        assert_eq!(reason(of(reasons::QUOTA_EXCEEDED)), Some("QuotaExceeded"));
        assert_eq!((reason(of(reasons::IMAGE_PULL)), reason(None)), (Some("BudgetExhausted"), Some("BudgetExhausted")));
        assert_eq!(gravest(of(reasons::IMAGE_PULL), None).map(|blocked| blocked.reason), Some("ImagePull"));
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let spec = |extra: serde_json::Value| -> AgentPoolSpec {
            let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
            spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            serde_json::from_value(spec).expect("a spec")
        };
        assert_eq!(unsupported(&spec(json!({}))), None);
        assert_eq!(
            unsupported(&spec(json!({"preflight": {"requireSandbox": true, "models": true, "urls": ["https://example.org"]}}))),
            None
        );
        let both = json!({"workspace": {"git": {"remote": "https://example.org/r"}}, "toolsets": [{"name": "t"}]});
        let both = unsupported(&spec(both)).expect("two fields");
        assert!(both.contains("spec.workspace.git is not supported") && both.contains("; spec.toolsets is not supported"), "{both}");
        for sandbox in [
            json!({"isolation": {"landlock": "Required"}}),
            json!({"outputs": {"egress": "None"}}),
            json!({"changeset": {"driver": "Copy"}}),
        ] {
            assert!(
                unsupported(&spec(json!({"sandbox": sandbox}))).is_some_and(|message| message.contains("not supported by this version")),
                "{sandbox}"
            );
        }
        assert_eq!(unsupported(&spec(json!({"sandbox": {"isolation": {"landlock": "Preferred", "seccomp": "RuntimeDefault"}}}))), None);
    }
}
