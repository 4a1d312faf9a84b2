//! Counts the agents of each pool from the events of watches, for metrics. It decides nothing.
//!
//! A life of an agent begins and ends with its pod: an agent that hibernates and wakes has two lives. An earlier leader
//! has counted the agents of the first list. An agent that appears first in a later list began while the watch was
//! broken, and counts. So no life counts twice, and only agents that were created and deleted in between are not
//! counted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::conditions::find;
use super::stores::{AgentObject, PoolObject};
use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::tool_approval::ToolApprovalState;
use crate::api::{Agent, AgentPool};
use crate::cluster::ObjectKey;
use crate::telemetry::{FleetCounts, Metrics, PoolStanding};

/// The phase label of an agent that has no phase yet.
const NEW_PHASE: &str = "New";
/// The reason of an end by deletion of the object, by the pool or by a person.
const DELETED_REASON: &str = "Deleted";
/// The reason of an end that is none of the known reasons.
const OTHER_REASON: &str = "Other";
/// The reasons of an end. They are values of a metric's label, so the list is fixed.
const KNOWN_END_REASONS: [&str; 18] = [
    reasons::HEARTBEAT_LOST,
    reasons::PROGRAM_SILENT,
    reasons::START_TIMED_OUT,
    reasons::REAPED,
    reasons::LEASE_EXPIRED,
    reasons::ITEM_STALLED,
    reasons::ITEM_PAST_TIME,
    reasons::CANCEL_IGNORED,
    reasons::TOKENS_SPENT,
    reasons::TOKENS_EXHAUSTED,
    reasons::GANG_DIVERGENCE,
    reasons::SAID_GOODBYE,
    reasons::LIFETIME_SPENT,
    reasons::PARENT_ENDED,
    reasons::POD_SUCCEEDED,
    reasons::POD_FAILED,
    reasons::POD_GONE,
    reasons::HIBERNATED,
];

/// An agent, as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenAgent {
    uid: String,
    pool: String,
    phase: Option<AgentPhase>,
    /// Uid of the pod that it lives in.
    pod_uid: Option<String>,
    /// The state of its sandbox. Unset for an agent that has ended.
    sandbox: Option<&'static str>,
    /// Its calls of privileged programs that wait for approval.
    waiting_approvals: u64,
}

#[derive(Default)]
struct Pool {
    /// Its object exists, or existed.
    has_existed: bool,
    exists: bool,
    type_: Option<String>,
    desired: u64,
    /// Maximum number of agents.
    max_agents: u64,
    phases: BTreeMap<&'static str, u64>,
    sandboxes: BTreeMap<&'static str, u64>,
    waiting_approvals: u64,
}

impl Pool {
    fn live(&self) -> u64 {
        let ended = [AgentPhase::Stopped, AgentPhase::ForceStopped].map(AgentPhase::name);
        self.phases.iter().filter(|(phase, _)| !ended.contains(phase)).map(|(_, count)| count).sum()
    }
}

#[derive(Default)]
struct State {
    listed: bool,
    agents: HashMap<ObjectKey, SeenAgent>,
    pools: HashMap<ObjectKey, Pool>,
}

/// The counts. Cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    state: Arc<Mutex<State>>,
    metrics: Metrics,
}

impl Fleet {
    /// Counts without any agent or pool.
    pub fn new(metrics: Metrics) -> Self {
        Self { state: Arc::default(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new or changed Agent. One that does not fit its type changes nothing.
    pub fn agent(&self, agent: &AgentObject) {
        if let Ok(agent) = &agent.0 {
            self.lock().observe(agent, &self.metrics);
        }
    }

    /// Removes a deleted Agent, by its last state.
    pub fn agent_gone(&self, agent: &AgentObject) {
        let mut state = self.lock();
        let mut reason = DELETED_REASON;
        if let Ok(agent) = &agent.0 {
            state.observe(agent, &self.metrics);
            reason = Some(end_reason(agent)).filter(|why| *why != OTHER_REASON).unwrap_or(DELETED_REASON);
        }
        state.forget(&ObjectKey::of(agent), reason, &self.metrics);
    }

    /// Counts the Agents of a full list.
    pub fn agents(&self, all: &[Arc<AgentObject>]) {
        let mut state = self.lock();
        let there: HashSet<ObjectKey> = all.iter().map(|agent| ObjectKey::of(agent.as_ref())).collect();
        let gone: Vec<ObjectKey> = state.agents.keys().filter(|key| !there.contains(key)).cloned().collect();
        gone.iter().for_each(|key| state.forget(key, DELETED_REASON, &self.metrics));
        all.iter().filter_map(|agent| agent.0.as_ref().ok()).for_each(|agent| state.observe(agent, &self.metrics));
        state.listed = true;
    }

    /// Records a new or changed pool.
    pub fn pool(&self, pool: &PoolObject) {
        if let Ok(pool) = &pool.0 {
            self.lock().pool(pool, &self.metrics);
        }
    }

    /// Records that a pool was deleted.
    pub fn pool_gone(&self, pool: &PoolObject) {
        self.lock().pool_gone(&ObjectKey::of(pool), &self.metrics);
    }

    /// Records the pools of a full list.
    pub fn pools(&self, all: &[Arc<PoolObject>]) {
        let mut state = self.lock();
        let there: HashSet<ObjectKey> = all.iter().map(|pool| ObjectKey::of(pool.as_ref())).collect();
        let gone: Vec<ObjectKey> =
            state.pools.iter().filter(|(key, pool)| pool.exists && !there.contains(key)).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| state.pool_gone(key, &self.metrics));
        all.iter().filter_map(|pool| pool.0.as_ref().ok()).for_each(|pool| state.pool(pool, &self.metrics));
    }

    /// Every pool, with its living agents and how many it may have.
    pub fn pool_usage(&self) -> Vec<(ObjectKey, u64, u64)> {
        let state = self.lock();
        state.pools.iter().filter(|(_, pool)| pool.exists).map(|(key, pool)| (key.clone(), pool.live(), pool.max_agents)).collect()
    }

    /// Sets the metrics. `tripped` are the agents whose own command breaker is not closed, with its state. No other
    /// agent is looked up.
    pub fn measure(&self, tripped: impl IntoIterator<Item = (ObjectKey, &'static str)>) {
        let state = self.lock();
        let mut of_pools: HashMap<ObjectKey, BTreeMap<&'static str, u64>> = HashMap::new();
        for (key, breaker) in tripped {
            let Some(known) = state.agents.get(&key) else { continue };
            let pool = ObjectKey { namespace: key.namespace, name: known.pool.clone() };
            *of_pools.entry(pool).or_default().entry(breaker).or_default() += 1;
        }
        let mut standing = FleetCounts::default();
        for (key, pool) in &state.pools {
            let (series, type_) = pool.labels(key, &self.metrics);
            let tripped = of_pools.remove(key).unwrap_or_default();
            standing.add(
                series,
                type_,
                PoolStanding {
                    desired: pool.desired,
                    live: pool.live(),
                    waiting_approvals: pool.waiting_approvals,
                    phases: pool.phases.clone(),
                    tripped,
                    sandboxes: pool.sandboxes.clone(),
                },
            );
        }
        drop(state);
        self.metrics.fleet(standing);
    }
}

impl Pool {
    fn labels(&self, key: &ObjectKey, metrics: &Metrics) -> (crate::telemetry::Series, String) {
        let series = metrics.pool(&key.namespace, self.has_existed.then_some(key.name.as_str()));
        (series, metrics.agent_type(self.type_.as_deref()))
    }
}

impl State {
    fn pool(&mut self, pool: &AgentPool, metrics: &Metrics) {
        let key = ObjectKey::of(pool);
        let known = self.pools.entry(key).or_default();
        let type_ = Some(pool.spec.type_.clone());
        let before = if known.type_ == type_ { None } else { std::mem::replace(&mut known.type_, type_) };
        (known.has_existed, known.exists) = (true, true);
        known.desired = pool.status.as_ref().and_then(|status| status.desired).and_then(|desired| u64::try_from(desired).ok()).unwrap_or(0);
        known.max_agents = u64::from(pool.spec.fixed_replicas().unwrap_or_else(|| pool.spec.max()));
        self.type_gone(before, metrics);
    }

    fn pool_gone(&mut self, key: &ObjectKey, metrics: &Metrics) {
        if let Some(pool) = self.pools.get_mut(key) {
            (pool.exists, pool.desired) = (false, 0);
        }
        self.tidy(key, metrics);
    }

    /// Removes the series of a deleted pool that has no agents any more.
    fn tidy(&mut self, key: &ObjectKey, metrics: &Metrics) {
        if self.pools.get(key).is_none_or(|pool| pool.exists || !pool.phases.is_empty()) {
            return;
        }
        let type_ = self.pools.remove(key).and_then(|pool| pool.type_);
        metrics.pool_gone(&key.namespace, &key.name);
        if !self.pools.keys().any(|other| other.namespace == key.namespace) {
            metrics.fleet_gone(&key.namespace);
        }
        self.type_gone(type_, metrics);
    }

    /// Removes the series of this type if no pool has it any more.
    fn type_gone(&self, type_: Option<String>, metrics: &Metrics) {
        let has = |pool: &Pool| pool.type_ == type_;
        if let Some(gone) = type_.as_ref().filter(|_| !self.pools.values().any(has)) {
            metrics.agent_type_gone(gone);
        }
    }

    fn observe(&mut self, agent: &Agent, metrics: &Metrics) {
        let key = ObjectKey::of(agent);
        let uid = agent.metadata.uid.clone().unwrap_or_default();
        // A new Agent with the same name: the deletion of the old one was not seen.
        if self.agents.get(&key).is_some_and(|known| known.uid != uid) {
            self.forget(&key, DELETED_REASON, metrics);
        }
        let status = agent.status.as_ref();
        let phase = status.and_then(|status| status.phase);
        let caller = agent.caller_uid().map(str::to_owned);
        let over = phase.is_some_and(AgentPhase::ended);
        let now = SeenAgent {
            uid,
            pool: agent.spec.pool_ref.name.clone(),
            phase,
            pod_uid: caller.clone().filter(|_| !over),
            sandbox: (!over).then(|| sandbox_label(agent)),
            waiting_approvals: if over { 0 } else { waiting_approvals(agent) },
        };
        let before = self.agents.insert(key.clone(), now.clone());
        let of_pool = ObjectKey { namespace: key.namespace, name: now.pool };
        let pool = self.pools.entry(of_pool.clone()).or_default();
        if let Some(before) = &before {
            pool.remove_one(before);
        }
        *pool.phases.entry(phase_label(phase)).or_default() += 1;
        now.sandbox.into_iter().for_each(|state| *pool.sandboxes.entry(state).or_default() += 1);
        pool.waiting_approvals += now.waiting_approvals;
        let life = before.as_ref().and_then(|before| before.pod_uid.clone());
        // An earlier leader has counted the agents of the first list.
        if before.is_none() && !self.listed {
            return;
        }
        let (series, type_) = pool.labels(&of_pool, metrics);
        if life.is_some() && life != now.pod_uid {
            metrics.agent_ended(series.clone(), type_.clone(), end_reason(agent));
        }
        // An agent that began and ended unseen counts as started too.
        let began = if before.is_none() { caller.as_ref() } else { now.pod_uid.as_ref() };
        if began.is_some() && began != life.as_ref() {
            metrics.agent_started(series.clone(), type_.clone());
            if over {
                metrics.agent_ended(series, type_, end_reason(agent));
            }
        }
    }

    fn forget(&mut self, key: &ObjectKey, reason: &'static str, metrics: &Metrics) {
        let Some(known) = self.agents.remove(key) else { return };
        let of_pool = ObjectKey { namespace: key.namespace.clone(), name: known.pool.clone() };
        if let Some(pool) = self.pools.get_mut(&of_pool) {
            pool.remove_one(&known);
            if known.pod_uid.is_some() {
                let (series, type_) = pool.labels(&of_pool, metrics);
                metrics.agent_ended(series, type_, reason);
            }
        }
        self.tidy(&of_pool, metrics);
    }
}

impl Pool {
    /// Removes one agent from its phase, from the state of its sandbox, and its calls that wait.
    fn remove_one(&mut self, agent: &SeenAgent) {
        self.waiting_approvals = self.waiting_approvals.saturating_sub(agent.waiting_approvals);
        remove_one_of(&mut self.phases, phase_label(agent.phase));
        agent.sandbox.into_iter().for_each(|state| remove_one_of(&mut self.sandboxes, state));
    }
}

fn remove_one_of(counts: &mut BTreeMap<&'static str, u64>, label: &'static str) {
    if let Some(count) = counts.get_mut(label) {
        *count -= 1;
        if *count == 0 {
            counts.remove(label);
        }
    }
}

/// The state of the sandbox of a living agent, from its condition. The states are values of a metric's label, so the list is fixed.
fn sandbox_label(agent: &Agent) -> &'static str {
    let conditions = agent.status.as_ref().map_or(&[][..], |status| &status.conditions);
    match find(conditions, types::SANDBOX_ENFORCED) {
        Some(found) if found.status == "True" => "Enforced",
        Some(found) if found.status == "False" => match found.reason.as_str() {
            reasons::SANDBOX_DEGRADED => "Degraded",
            reasons::SANDBOX_OBSERVED => "Observed",
            reasons::POD_WALLS_ONLY => "PodOnly",
            reasons::WALLS_NOT_ENFORCED => "External",
            _ => "Unavailable",
        },
        _ => "Unknown",
    }
}

/// How many calls of privileged programs wait for approval.
fn waiting_approvals(agent: &Agent) -> u64 {
    let all = agent.status.iter().flat_map(|status| status.tool_approvals.iter().flatten());
    all.map(|approval| u64::from(approval.state == ToolApprovalState::Waiting)).sum()
}

fn phase_label(phase: Option<AgentPhase>) -> &'static str {
    phase.map_or(NEW_PHASE, AgentPhase::name)
}

/// Why a life of this agent ended.
fn end_reason(agent: &Agent) -> &'static str {
    let Some(status) = &agent.status else { return OTHER_REASON };
    let said = |type_: &str| find(&status.conditions, type_).filter(|said| said.status == "True").map(|said| said.reason.as_str());
    // A hibernated agent may also have been asked to end. Its hibernation counts.
    let ready = find(&status.conditions, types::READY).map(|ready| ready.reason.as_str());
    let deleted = agent.metadata.deletion_timestamp.is_some().then_some(DELETED_REASON);
    let asleep = ready.filter(|_| status.phase == Some(AgentPhase::Hibernated));
    let word = said(types::GIVEN_UP).or(asleep).or_else(|| said(types::GOODBYE_REQUESTED)).or(deleted).or(ready);
    word.and_then(|word| KNOWN_END_REASONS.into_iter().chain([DELETED_REASON]).find(|known| *known == word)).unwrap_or(OTHER_REASON)
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
