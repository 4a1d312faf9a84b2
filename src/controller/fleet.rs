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
            standing.add(series, type_, PoolStanding { desired: pool.desired, live: pool.live(), phases: pool.phases.clone(), tripped });
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
        let now = SeenAgent { uid, pool: agent.spec.pool_ref.name.clone(), phase, pod_uid: caller.clone().filter(|_| !over) };
        let before = self.agents.insert(key.clone(), now.clone());
        let of_pool = ObjectKey { namespace: key.namespace, name: now.pool };
        let pool = self.pools.entry(of_pool.clone()).or_default();
        if let Some(before) = &before {
            pool.remove_one(before.phase);
        }
        *pool.phases.entry(phase_label(phase)).or_default() += 1;
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
        let of_pool = ObjectKey { namespace: key.namespace.clone(), name: known.pool };
        if let Some(pool) = self.pools.get_mut(&of_pool) {
            pool.remove_one(known.phase);
            if known.pod_uid.is_some() {
                let (series, type_) = pool.labels(&of_pool, metrics);
                metrics.agent_ended(series, type_, reason);
            }
        }
        self.tidy(&of_pool, metrics);
    }
}

impl Pool {
    /// Removes one agent from this phase.
    fn remove_one(&mut self, phase: Option<AgentPhase>) {
        if let Some(count) = self.phases.get_mut(phase_label(phase)) {
            *count -= 1;
            if *count == 0 {
                self.phases.remove(phase_label(phase));
            }
        }
    }
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
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::watch::Tolerant;

    const NAMESPACE: &str = "team";

    fn pool(name: &str, type_: &str, desired: i32) -> PoolObject {
        let pool = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"type": type_, "agent": {"image": "i", "command": ["c"]}}, "status": {"desired": desired}});
        Tolerant(Ok(serde_json::from_value(pool).expect("an AgentPool")))
    }

    fn agent(name: &str, phase: Option<&str>, pod: Option<&str>, conditions: &[(&str, &str)]) -> AgentObject {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, reason)| json!({"type": type_, "status": if *type_ == "Ready" { "False" } else { "True" }, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let pod = pod.map(|uid| json!({"name": name, "uid": uid}));
        let agent = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}")},
            "spec": {"poolRef": {"name": "p"}}, "status": {"phase": phase, "podRef": pod, "conditions": conditions}});
        Tolerant(Ok(serde_json::from_value(agent).expect("an Agent")))
    }

    /// The lines of a metric, without the labels that are always the same.
    fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
        let text = metrics.text().expect("encodes");
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.starts_with(metric)).map(|line| line.replace("namespace=\"team\",pool=\"p\"", "")).collect();
        lines.sort();
        lines
    }

    fn fleet() -> (Fleet, Metrics) {
        let metrics = Metrics::default();
        let fleet = Fleet::new(metrics.clone());
        fleet.pools(&[Arc::new(pool("p", "worker", 2))]);
        (fleet, metrics)
    }

    const STARTS: &str = "spillway_pool_agent_starts_total";
    const ENDS: &str = "spillway_pool_agent_ends_total";

    #[test]
    fn lives_count_once_however_often_agents_are_listed() {
        let (fleet, metrics) = fleet();
        let old = agent("old", Some("Idle"), Some("u0"), &[]);
        fleet.agents(&[Arc::new(old.clone())]);
        assert_eq!(lines(&metrics, STARTS), Vec::<String>::new(), "a leader before us counted it");
        let idle = agent("a", Some("Idle"), Some("u1"), &[]);
        fleet.agent(&agent("a", None, None, &[]));
        fleet.agent(&agent("a", Some("Spawning"), Some("u1"), &[]));
        for _ in 0..3 {
            fleet.agent(&idle);
            fleet.agents(&[Arc::new(idle.clone()), Arc::new(old.clone())]);
        }
        assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 1"]);
        assert_eq!(lines(&metrics, ENDS), Vec::<String>::new());
        let ended = agent("a", Some("Stopped"), Some("u1"), &[("Ready", "PodSucceeded")]);
        for _ in 0..3 {
            fleet.agent(&ended);
            fleet.agents(&[Arc::new(ended.clone()), Arc::new(old.clone())]);
        }
        assert_eq!(lines(&metrics, ENDS), [r#"spillway_pool_agent_ends_total{,reason="PodSucceeded"} 1"#]);
        fleet.agent_gone(&ended);
        fleet.measure([]);
        assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{,phase="Idle"} 1"#]);
        assert_eq!(lines(&metrics, ENDS).len(), 1, "that it is collected is no end");
        // An agent that began and ended while the watch was broken counts when it is listed. An agent that is not
        // listed any more ended.
        let late = agent("late", Some("ForceStopped"), Some("u2"), &[("GivenUp", "HeartbeatLost")]);
        fleet.agents(&[Arc::new(late)]);
        assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 2"]);
        assert_eq!(
            lines(&metrics, ENDS),
            [
                r#"spillway_pool_agent_ends_total{,reason="Deleted"} 1"#,
                r#"spillway_pool_agent_ends_total{,reason="HeartbeatLost"} 1"#,
                r#"spillway_pool_agent_ends_total{,reason="PodSucceeded"} 1"#,
            ]
        );
    }

    #[test]
    fn an_agent_that_hibernates_and_wakes_has_two_lives() {
        let (fleet, metrics) = fleet();
        fleet.agents(&[]);
        fleet.agent(&agent("a", Some("Idle"), Some("u1"), &[]));
        fleet.agent(&agent("a", Some("Hibernated"), None, &[("Ready", "Hibernated")]));
        fleet.agent(&agent("a", Some("Spawning"), Some("u2"), &[]));
        // One that is removed while it is ended by force ended for that.
        fleet.agent(&agent("c", Some("Active"), Some("u3"), &[]));
        fleet.agent_gone(&agent("c", Some("Stale"), Some("u3"), &[("GivenUp", "ItemStalled")]));
        // One that never had a pod neither began nor ended.
        fleet.agent(&agent("b", Some("Spawning"), None, &[("Ready", "QuotaExceeded")]));
        fleet.agent_gone(&agent("b", Some("Spawning"), None, &[("Ready", "QuotaExceeded")]));
        assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 3"]);
        assert_eq!(
            lines(&metrics, ENDS),
            [r#"spillway_pool_agent_ends_total{,reason="Hibernated"} 1"#, r#"spillway_pool_agent_ends_total{,reason="ItemStalled"} 1"#,]
        );
        assert_eq!(lines(&metrics, "spillway_agent_starts_total"), [r#"spillway_agent_starts_total{type="worker"} 3"#]);
    }

    #[test]
    fn an_end_has_one_of_the_known_reasons() {
        let of = |phase, conditions: &[(&str, &str)]| end_reason(agent("a", Some(phase), None, conditions).0.as_ref().expect("an Agent"));
        assert_eq!(of("ForceStopped", &[("GivenUp", "ItemStalled"), ("GoodbyeRequested", "SaidGoodbye")]), "ItemStalled");
        assert_eq!(of("Stopped", &[("GoodbyeRequested", "LifetimeSpent"), ("Ready", "SaidGoodbye")]), "LifetimeSpent");
        assert_eq!(of("Stopped", &[("Ready", "PodFailed")]), "PodFailed");
        assert_eq!(of("Stopped", &[("Ready", "SomebodysWord")]), OTHER_REASON, "what others write is no label");
        let mut leaving = agent("a", Some("Goodbye"), Some("u"), &[("Ready", "PodStopping")]);
        leaving.0.as_mut().expect("an Agent").metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(end_reason(leaving.0.as_ref().expect("an Agent")), DELETED_REASON);
    }

    #[test]
    fn series_show_desired_and_live_agents_and_go_with_their_pool() {
        let (fleet, metrics) = fleet();
        fleet.agents(&[]);
        fleet.agent(&agent("a", Some("Active"), Some("u1"), &[]));
        fleet.agent(&agent("b", None, None, &[]));
        fleet.agent(&agent("c", Some("Stopped"), Some("u3"), &[]));
        let key = |name: &str| ObjectKey { namespace: NAMESPACE.into(), name: name.into() };
        fleet.measure([(key("a"), "open"), (key("gone"), "open")]);
        assert_eq!(lines(&metrics, "spillway_pool_agents_desired"), ["spillway_pool_agents_desired{} 2"]);
        assert_eq!(lines(&metrics, "spillway_pool_agents_live"), ["spillway_pool_agents_live{} 2"], "one has ended");
        assert_eq!(
            lines(&metrics, "spillway_pool_agents{"),
            [
                r#"spillway_pool_agents{,phase="Active"} 1"#,
                r#"spillway_pool_agents{,phase="New"} 1"#,
                r#"spillway_pool_agents{,phase="Stopped"} 1"#,
            ]
        );
        assert_eq!(lines(&metrics, "spillway_pool_session_breakers"), [r#"spillway_pool_session_breakers{,state="open"} 1"#]);
        assert_eq!(fleet.pool_usage(), [(key("p"), 2, 1)]);
        // A pool that is gone is counted until its agents are, too.
        fleet.pool_gone(&pool("p", "worker", 2));
        ["a", "b"].into_iter().for_each(|name| fleet.agent_gone(&agent(name, Some("Goodbye"), Some("u1"), &[])));
        fleet.measure([]);
        assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{,phase="Stopped"} 1"#]);
        fleet.agent_gone(&agent("c", Some("Stopped"), Some("u3"), &[]));
        fleet.measure([]);
        assert_eq!(lines(&metrics, "spillway_pool_"), Vec::<String>::new());
        assert_eq!(lines(&metrics, "spillway_agent"), Vec::<String>::new());
        // An agent of a pool that never was takes no name.
        fleet.agent(&agent("d", Some("Spawning"), None, &[]));
        fleet.measure([]);
        assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{namespace="team",pool="_none",phase="Spawning"} 1"#]);
    }
}
