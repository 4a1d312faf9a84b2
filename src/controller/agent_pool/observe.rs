//! Collects the facts about a pool and its Agents: from the caches to decide whether to act, and live to act.

mod blockers;

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
use crate::controller::agent::hindrance_of;
use crate::controller::capacity;
use crate::controller::conditions::find;
use crate::controller::namespace_setup;
use crate::controller::stores::{AgentObject, Stores};
use crate::governor::breaker::{PoolCircuits as Circuits, work as breaker};
use crate::governor::budget::availability;
use crate::governor::{egress, git, preflight};
use crate::policy::pool::{AgentFacts, CRASH_TTL, Facts, MIN_HEALTHY_LIFETIME, MemberState, counted_agents, crashes};
use crate::policy::scaling::{self, DesiredSize, Work};
use blockers::{agent_blocker, all_fail_preflight, circuit_blocker, most_serious_blocker, token_blocker};
use spillway_conversion::pool::{pool_intake, queues_of};

pub use blockers::PoolBlockers;

/// How long a pool without work waits when neither it nor its queue sets a time.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The facts about one pool.
pub struct PoolObservation {
    /// The facts that the plan is based on.
    pub facts: Facts,
    /// The desired number of Agents, and why.
    pub desired: DesiredSize,
    /// Time until fewer Agents are desired, if nothing changes.
    pub shrinks_after: Option<Duration>,
    /// Number of items that its agents could take now, and of items that they hold; unknown until all are listed.
    pub work: Option<(u64, u64)>,
    /// Objects that the spec names and that do not exist.
    pub missing: Vec<String>,
    /// Fields of the spec that this version does not support, as a message.
    pub unsupported: Option<String>,
    /// What keeps Agents from running.
    pub blocked: Option<PoolBlockers>,
    /// Agents whose pod is Ready.
    pub ready: u32,
    /// Number of Agents that recently ended soon after their start, with the message of the last one.
    pub crashes: Option<(u32, String)>,
    /// The Agents, by name.
    pub members: BTreeMap<String, Member>,
}

/// The version of an Agent that a write is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its uid.
    pub uid: String,
    /// The version that was read.
    pub version: String,
    /// The uid that identifies its calls.
    pub caller_uid: Option<String>,
}

/// The facts that the caches show.
pub fn from_cache(pool: &AgentPool, key: &ObjectKey, context: &Context) -> PoolObservation {
    let agents = context.stores.agents_of(&key.namespace, &key.name);
    observe(pool, agents.iter().map(Arc::as_ref), context)
}

/// The facts that the API server shows. The Agents are read after `pool`.
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
    let mine: Vec<(&AgentObject, Option<i64>)> =
        agents.filter_map(|agent| id.membership(agent, spawned).map(|number| (agent, number))).collect();
    let namespace = pool.namespace().unwrap_or_default();
    let work = work_for(pool, &namespace, &mine, context);
    let target = scaling::desired(&scaling::Facts {
        replicas: spec.fixed_replicas(),
        min: spec.min(),
        max: spec.max(),
        work: scaling_work(pool, work),
        room: None,
    });
    let now = jiff::Timestamp::now();
    let all: Vec<AgentFacts> = mine.iter().map(|(agent, number)| agent_facts(agent, *number, now, spec.mode, context)).collect();
    let collected_below = status.and_then(|status| status.collected_below).unwrap_or(0);
    let there = counted_agents(spawned, collected_below, &all);
    let follows = spec.work_aware() && spec.replicas.is_none();
    let (desired, settles) = if follows {
        context.scale_downs.current_size(pool, target, there, empty_after(pool, &namespace, context))
    } else {
        (target, None)
    };
    if !follows {
        context.scale_downs.forget(&ObjectKey { namespace: namespace.clone(), name: pool.name_any() });
    }
    let missing = missing_references(spec, &namespace, &context.stores);
    let unsupported = unsupported(spec);
    let not_a_project =
        capacity::project_refusal(&namespace, &context.stores).map(|message| PoolBlockers { reason: reasons::PROJECT_LIMIT, message });
    let short = token_blocker(pool, &availability::of_pool(pool, context));
    let circuits = breaker::standing(context, &ObjectKey::of(pool));
    let stopped = circuit_blocker(pool, circuits.as_ref());
    let unmeetable = preflight::unmeetable_reason(spec).map(|message| PoolBlockers { reason: reasons::PREFLIGHT_FAILED, message });
    let invalid_git = git::invalid(spec, &context.git).map(|message| PoolBlockers { reason: reasons::INVALID_GIT, message });
    let invalid_egress = egress::invalid(spec, &context.egress).map(|message| PoolBlockers { reason: reasons::INVALID_EGRESS, message });
    let removal = context.ends_agents.then(|| PoolBlockers {
        reason: reasons::OPERATOR_REMOVAL,
        message: "Spillway is being removed from the cluster: all agents end, and no new ones are made. The pool continues when Spillway is installed again".into(),
    });
    // While a circuit tests whether the pool's work succeeds again, no more Agents are created than may take part in
    // the test.
    let tries = circuits.as_ref().and_then(Circuits::probes);
    let numbered: Vec<&Agent> = mine.iter().filter(|(_, number)| number.is_some()).filter_map(|(agent, _)| agent.0.as_ref().ok()).collect();
    let keeps_volumes = removal.is_none() && hibernates(pool, &namespace, context);
    let facts = Facts {
        desired: if removal.is_some() { 0 } else { tries.map_or(desired.count, |tries| desired.count.min(tries.max(there))) },
        may_grow: removal.is_none()
            && missing.is_empty()
            && unsupported.is_none()
            && not_a_project.is_none()
            && short.is_none()
            && stopped.is_none()
            && unmeetable.is_none()
            && invalid_egress.is_none()
            && invalid_git.is_none()
            && !all_fail_preflight(&all, &numbered)
            && namespace_setup::is_ready(&namespace, context),
        spawned,
        collected_below,
        agents: all,
        stopped_ttl: Duration::from_secs(spec.stopped_ttl_seconds().into()),
        hibernate: keeps_volumes && follows,
        max_with_hibernated: if keeps_volumes { spec.max() } else { 0 },
    };
    let ready = facts
        .agents
        .iter()
        .filter(|agent| agent.sequence.is_some() && matches!(agent.state, MemberState::Idle | MemberState::Busy | MemberState::Held));
    PoolObservation {
        ready: u32::try_from(ready.count()).unwrap_or(u32::MAX),
        crashes: Some(crashes(&facts.agents)).filter(|crashes| *crashes > 0).map(|crashes| (crashes, last_crash_message(&numbered))),
        blocked: removal
            .or_else(|| most_serious_blocker(agent_blocker(&numbered), stopped.or(short).filter(|_| desired.count > 0)))
            .or(not_a_project)
            .or(unmeetable)
            .or(invalid_egress)
            .or(invalid_git),
        facts,
        desired,
        shrinks_after: settles,
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
        caller_uid: agent.0.as_ref().ok().and_then(Agent::caller_uid).map(str::to_owned),
    }
}

/// Name and uid of a pool.
struct PoolId {
    name: String,
    uid: String,
}

impl PoolId {
    /// Whether an Agent belongs to the pool: `Some(Some(number))` if the pool made it, `Some(None)` if it was made by
    /// hand. Only the name proves the first; labels and owner references do not. For an object that does not fit its
    /// type, the name is compared with all numbers used so far.
    fn membership(&self, agent: &AgentObject, spawned: i64) -> Option<Option<i64>> {
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
    let taking = pool_intake(pool);
    if taking.queues.is_empty() {
        return None;
    }
    // Items of agents outside the cluster require no pods.
    let pods: HashSet<&str> = mine.iter().filter_map(|(agent, _)| pod_uid(agent.0.as_ref().ok()?)).collect();
    context.work_index.work_for(namespace, &taking, &pods)
}

fn pod_uid(agent: &Agent) -> Option<&str> {
    agent.status.as_ref()?.pod_ref.as_ref().map(|pod| pod.uid.as_str())
}

fn scaling_work(pool: &AgentPool, work: Option<(u64, u64)>) -> Work {
    let spec = &pool.spec;
    if !spec.work_aware() {
        return Work::Ignored;
    }
    let known = |ready, leased| Work::Known { ready, leased, items_per_agent: spec.items_per_agent(), idle_buffer: spec.idle_buffer() };
    match work {
        Some((ready, leased)) => known(ready, leased),
        // Without queues there is never any work.
        None if queues_of(pool).is_empty() => known(0, 0),
        None => {
            let so_far = pool.status.as_ref().and_then(|status| status.desired).unwrap_or(0);
            Work::Unknown { current: u32::try_from(so_far).unwrap_or(0) }
        }
    }
}

/// How long a pool without work waits before it scales to zero: its own setting, else that of its first queue.
fn empty_after(pool: &AgentPool, namespace: &str, context: &Context) -> Duration {
    let own = pool.spec.when_empty.as_ref().map(|when| when.after_seconds);
    let first = pool.spec.queues.as_ref().and_then(|queues| queues.first());
    let of_queue = || first.and_then(|queue| context.work_index.queue(namespace, &queue.name)).and_then(|queue| queue.empty_after);
    let own = own.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    own.or_else(of_queue).unwrap_or(DEFAULT_IDLE_TIMEOUT)
}

/// Whether agents without work hibernate: the pool's own setting, else that of its first queue. Without a volume that
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
        // An Agent that does not fit its type holds its place, and is not touched.
        state: agent.0.as_ref().map_or(MemberState::Leaving, |agent| busy_if_holding(member_state(agent, since, mode), agent, context)),
        age: agent.creation_timestamp().map(|time| since(time.0)).unwrap_or_default(),
        can_hibernate: agent.0.as_ref().is_ok_and(|agent| agent.status.as_ref().is_some_and(|status| status.claim_ref.is_some())),
    }
}

/// The status of an agent shows its item late. The work index, which grants items, knows it at once.
fn busy_if_holding(standing: MemberState, agent: &Agent, context: &Context) -> MemberState {
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

fn member_state(agent: &Agent, since: impl Fn(jiff::Timestamp) -> Duration, mode: PoolMode) -> MemberState {
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
        // A deleted agent that hibernated has no pod, so its place is free at once. Else another hibernated agent would
        // count as one too many.
        let asleep = to_sleep && phase == Some(AgentPhase::Hibernated);
        return if asleep { MemberState::Hibernated { paused: true } } else { MemberState::Leaving };
    }
    match phase {
        Some(AgentPhase::Hibernated) if to_sleep => MemberState::Hibernated { paused: is_paused(agent) },
        Some(AgentPhase::Hibernated) => MemberState::Spawning, // it is being woken
        Some(AgentPhase::Goodbye | AgentPhase::Stale | AgentPhase::Stopped | AgentPhase::ForceStopped) => MemberState::Leaving,
        Some(AgentPhase::Active) => MemberState::Busy,
        Some(AgentPhase::Paused) => MemberState::Held,
        // The agent is hibernating: it holds its place until its pod is gone.
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
    // An agent that did not start in time has crashed, however long it took.
    by_itself && (reason_of(agent) == Some(reasons::START_TIMED_OUT) || lived.is_none_or(|lived| lived < MIN_HEALTHY_LIFETIME))
}

/// How long ago an ended Agent crashed, if that was within `CRASH_TTL`.
pub fn crashed_ago(agent: &Agent, mode: PoolMode, now: jiff::Timestamp) -> Option<Duration> {
    let since = |time: jiff::Timestamp| Duration::try_from(now.duration_since(time)).unwrap_or_default();
    let MemberState::Ended { ago, crashed: true } = member_state(agent, since, mode) else { return None };
    (ago < CRASH_TTL).then_some(ago)
}

/// The message of the Agent that crashed last.
fn last_crash_message(agents: &[&Agent]) -> String {
    let stop = |agent: &&&Agent| agent.status.as_ref().and_then(|status| status.stop_time.as_ref()).map(|time| time.0);
    let last = agents.iter().filter(|agent| crashed(agent)).max_by_key(stop);
    let ready = last.and_then(|agent| find(&agent.status.as_ref()?.conditions, types::READY));
    last.zip(ready).map(|(agent, ready)| format!("{}: {}", agent.name_any(), ready.message)).unwrap_or_default()
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
    for toolset in spec.toolsets.iter().flatten() {
        if stores.toolsets.get(&ObjectRef::new(&toolset.name).within(namespace)).is_none() {
            missing.push(format!("{}/{}", crate::api::Toolset::kind(&()), toolset.name));
        }
    }
    missing
}

/// The message about fields of the spec that this version does not support. Such a pool gets no Agents: isolation that
/// the spec requires and that is missing would be worse than none.
pub fn unsupported(spec: &AgentPoolSpec) -> Option<String> {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let asked = unsupported::used_fields("AgentPool", &spec);
    let messages: Vec<String> = asked.iter().map(unsupported::Field::message).collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
