//! Agents, by their pools and by their types.
//!
//! Counters count each event once. The numbers of agents are set for all pools together. The number of pools and types
//! with series of their own is bounded ([`Names`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::names::{Bounds, Names, Series};
use super::{Metrics, registered};

/// Pools that have series of their own. One has about thirty.
const POOL_SERIES_BOUNDS: Bounds = Bounds { all: 200, of_one: 20, namespaces: 100 };
/// Types of agents that have series of their own.
const MAX_TYPE_SERIES: usize = 32;
/// The kinds of what a sandbox refuses.
const SYSTEM_CALL: &str = "SystemCall";
const FILE: &str = "File";
/// Types belong to no namespace.
const TYPE_SERIES_BOUNDS: Bounds = Bounds { all: MAX_TYPE_SERIES, of_one: MAX_TYPE_SERIES, namespaces: 1 };

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabels {
    namespace: String,
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolPhase {
    namespace: String,
    pool: String,
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolReason {
    namespace: String,
    pool: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolRefusals {
    namespace: String,
    pool: String,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolState {
    namespace: String,
    pool: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeLabels {
    r#type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypePhase {
    r#type: String,
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeReason {
    r#type: String,
    reason: &'static str,
}

/// The number of agents in each phase.
pub type Phases = BTreeMap<&'static str, u64>;

/// The agents of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Desired agents.
    pub desired: u64,
    /// Agents that have not ended.
    pub live: u64,
    /// Calls of privileged programs that wait for approval.
    pub waiting_approvals: u64,
    /// Its agents by phase, including ended ones that are kept.
    pub phases: Phases,
    /// Agents whose command breaker is not closed, by its state.
    pub tripped: BTreeMap<&'static str, u64>,
    /// Agents that have not ended, by the state of their sandbox.
    pub sandboxes: BTreeMap<&'static str, u64>,
}

impl Pool {
    fn add(&mut self, other: Self) {
        let Self { desired, live, waiting_approvals, phases, tripped, sandboxes } = other;
        self.desired += desired;
        self.live += live;
        self.waiting_approvals += waiting_approvals;
        phases.into_iter().for_each(|(phase, count)| *self.phases.entry(phase).or_default() += count);
        tripped.into_iter().for_each(|(state, count)| *self.tripped.entry(state).or_default() += count);
        sandboxes.into_iter().for_each(|(state, count)| *self.sandboxes.entry(state).or_default() += count);
    }
}

/// The agents of all pools and types.
#[derive(Debug, Default)]
pub struct FleetCounts {
    pools: BTreeMap<Series, Pool>,
    types: BTreeMap<String, Phases>,
}

impl FleetCounts {
    /// Adds a pool.
    pub fn add(&mut self, series: Series, type_: String, pool: Pool) {
        let of_type = self.types.entry(type_).or_default();
        pool.phases.iter().for_each(|(phase, count)| *of_type.entry(phase).or_default() += count);
        self.pools.entry(series).or_default().add(pool);
    }
}

/// The labels of the series that exist now.
#[derive(Default)]
struct ShownLabels {
    pools: HashSet<PoolLabels>,
    phases: HashSet<PoolPhase>,
    states: HashSet<PoolState>,
    sandboxes: HashSet<PoolState>,
    types: HashSet<TypePhase>,
}

/// The metrics of this subject.
pub(super) struct Fleet {
    names: Mutex<Names>,
    types: Mutex<Names>,
    shown: Mutex<ShownLabels>,
    desired: Family<PoolLabels, Gauge>,
    live: Family<PoolLabels, Gauge>,
    waiting_approvals: Family<PoolLabels, Gauge>,
    phases: Family<PoolPhase, Gauge>,
    tripped: Family<PoolState, Gauge>,
    sandboxes: Family<PoolState, Gauge>,
    refusals: Family<PoolRefusals, Counter>,
    starts: Family<PoolLabels, Counter>,
    ends: Family<PoolReason, Counter>,
    type_phases: Family<TypePhase, Gauge>,
    type_starts: Family<TypeLabels, Counter>,
    type_ends: Family<TypeReason, Counter>,
    /// The counted reasons of ends.
    reasons: Mutex<HashSet<&'static str>>,
}

impl Fleet {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            names: Mutex::new(Names::new(POOL_SERIES_BOUNDS)),
            types: Mutex::new(Names::new(TYPE_SERIES_BOUNDS)),
            shown: Mutex::default(),
            desired: registered(registry, "pool_agents_desired", "Desired agents of a pool", Family::default()),
            live: registered(registry, "pool_agents_live", "Agents of a pool that have not ended", Family::default()),
            waiting_approvals: registered(
                registry,
                "pool_approvals_waiting",
                "Calls of privileged programs of a pool's agents that wait for a person's approval",
                Family::default(),
            ),
            phases: registered(
                registry,
                "pool_agents",
                "Agents of a pool by phase, including ended agents that are kept",
                Family::default(),
            ),
            tripped: registered(
                registry,
                "pool_session_breakers",
                "Agents of a pool whose own command breaker is not closed, by its state",
                Family::default(),
            ),
            sandboxes: registered(
                registry,
                "pool_agents_sandbox",
                "Agents of a pool that have not ended, by the state of their sandbox",
                Family::default(),
            ),
            refusals: registered(
                registry,
                "pool_sandbox_refusals",
                "What the sandboxes of a pool's agents refused, or would refuse in mode Observe, by kind",
                Family::default(),
            ),
            starts: registered(registry, "pool_agent_starts", "Pods that were created for agents of a pool", Family::default()),
            ends: registered(registry, "pool_agent_ends", "Agents of a pool that ended or hibernated, by reason", Family::default()),
            type_phases: registered(registry, "agents", "Agents by type and phase", Family::default()),
            type_starts: registered(registry, "agent_starts", "Pods that were created for agents of a type", Family::default()),
            type_ends: registered(registry, "agent_ends", "Agents of a type that ended or hibernated, by reason", Family::default()),
            reasons: Mutex::default(),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn types(&self) -> MutexGuard<'_, Names> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Removes the counters with these labels. The gauges are removed with the next update.
    fn remove(&self, Series { namespace, name }: &Series) {
        self.starts.remove(&PoolLabels { namespace: namespace.clone(), pool: name.clone() });
        for kind in [SYSTEM_CALL, FILE] {
            self.refusals.remove(&PoolRefusals { namespace: namespace.clone(), pool: name.clone(), kind });
        }
        for reason in self.reasons() {
            self.ends.remove(&PoolReason { namespace: namespace.clone(), pool: name.clone(), reason });
        }
    }
}

fn amount(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Metrics {
    /// The series of an existing pool. `None`: for agents whose pool never existed.
    pub fn pool(&self, namespace: &str, pool: Option<&str>) -> Series {
        self.0.fleet.names().series(namespace, pool)
    }

    /// The label of an agent type. `None`: the type is not known.
    pub fn agent_type(&self, type_: Option<&str>) -> String {
        self.0.fleet.types().series("", type_).name
    }

    /// A pod was created for an agent of this pool and type.
    pub fn agent_started(&self, Series { namespace, name }: Series, r#type: String) {
        let fleet = &self.0.fleet;
        fleet.starts.get_or_create(&PoolLabels { namespace, pool: name }).inc();
        fleet.type_starts.get_or_create(&TypeLabels { r#type }).inc();
    }

    /// The sandboxes of a pool's agents refused so many more system calls and uses of files, or would have refused them.
    pub fn sandbox_refused(&self, namespace: &str, pool: Option<&str>, calls: u64, files: u64) {
        let Series { namespace, name } = self.pool(namespace, pool);
        for (kind, count) in [(SYSTEM_CALL, calls), (FILE, files)].into_iter().filter(|(_, count)| *count > 0) {
            let labels = PoolRefusals { namespace: namespace.clone(), pool: name.clone(), kind };
            self.0.fleet.refusals.get_or_create(&labels).inc_by(count);
        }
    }

    /// An agent of this pool and type ended or hibernated.
    pub fn agent_ended(&self, Series { namespace, name }: Series, r#type: String, reason: &'static str) {
        let fleet = &self.0.fleet;
        fleet.reasons.lock().unwrap_or_else(PoisonError::into_inner).insert(reason);
        fleet.ends.get_or_create(&PoolReason { namespace, pool: name, reason }).inc();
        fleet.type_ends.get_or_create(&TypeReason { r#type, reason }).inc();
    }

    /// Sets the gauges of all pools. The series of other pools are removed.
    pub fn fleet(&self, standing: FleetCounts) {
        let fleet = &self.0.fleet;
        let mut now = ShownLabels::default();
        for (Series { namespace, name }, pool) in standing.pools {
            let labels = PoolLabels { namespace: namespace.clone(), pool: name.clone() };
            fleet.desired.get_or_create(&labels).set(amount(pool.desired));
            fleet.live.get_or_create(&labels).set(amount(pool.live));
            fleet.waiting_approvals.get_or_create(&labels).set(amount(pool.waiting_approvals));
            now.pools.insert(labels);
            for (phase, count) in pool.phases {
                let labels = PoolPhase { namespace: namespace.clone(), pool: name.clone(), phase };
                fleet.phases.get_or_create(&labels).set(amount(count));
                now.phases.insert(labels);
            }
            for (state, count) in pool.tripped {
                let labels = PoolState { namespace: namespace.clone(), pool: name.clone(), state };
                fleet.tripped.get_or_create(&labels).set(amount(count));
                now.states.insert(labels);
            }
            for (state, count) in pool.sandboxes {
                let labels = PoolState { namespace: namespace.clone(), pool: name.clone(), state };
                fleet.sandboxes.get_or_create(&labels).set(amount(count));
                now.sandboxes.insert(labels);
            }
        }
        for (r#type, counts) in standing.types {
            for (phase, count) in counts {
                let labels = TypePhase { r#type: r#type.clone(), phase };
                fleet.type_phases.get_or_create(&labels).set(amount(count));
                now.types.insert(labels);
            }
        }
        let mut shown = fleet.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let ShownLabels { pools, phases, states, sandboxes, types } = &*shown;
        for gone in pools.difference(&now.pools) {
            fleet.desired.remove(gone);
            fleet.live.remove(gone);
            fleet.waiting_approvals.remove(gone);
        }
        for gone in phases.difference(&now.phases) {
            fleet.phases.remove(gone);
        }
        for gone in states.difference(&now.states) {
            fleet.tripped.remove(gone);
        }
        for gone in sandboxes.difference(&now.sandboxes) {
            fleet.sandboxes.remove(gone);
        }
        for gone in types.difference(&now.types) {
            fleet.type_phases.remove(gone);
        }
        *shown = now;
    }

    /// A pool and its agents are gone: removes its series.
    pub fn pool_gone(&self, namespace: &str, pool: &str) {
        let gone = self.0.fleet.names().forget(namespace, pool);
        gone.iter().for_each(|series| self.0.fleet.remove(series));
    }

    /// A namespace has no pools and no agents any more: removes its series.
    pub fn fleet_gone(&self, namespace: &str) {
        let gone = self.0.fleet.names().forget_namespace(namespace);
        gone.iter().for_each(|series| self.0.fleet.remove(series));
    }

    /// No pool has this type any more: removes its series.
    pub fn agent_type_gone(&self, type_: &str) {
        let fleet = &self.0.fleet;
        let Some(Series { namespace: _, name }) = fleet.types().forget("", type_) else { return };
        fleet.type_starts.remove(&TypeLabels { r#type: name.clone() });
        for reason in fleet.reasons() {
            fleet.type_ends.remove(&TypeReason { r#type: name.clone(), reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::names::{NO_OBJECT_LABEL, OTHER_LABEL};

    fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
        let text = metrics.text().expect("encodes");
        let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with(metric)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn pool(live: u64) -> Pool {
        let phases = Phases::from([("Idle", live)]);
        Pool { desired: 3, live, waiting_approvals: live, phases, tripped: BTreeMap::new(), sandboxes: [("Enforced", live)].into() }
    }

    #[test]
    fn pools_and_types_show_how_they_stand_and_what_happened() {
        let metrics = Metrics::default();
        let look = |tripped: &[(&'static str, u64)]| {
            let mut standing = FleetCounts::default();
            let tripped = tripped.iter().copied().collect();
            standing.add(metrics.pool("n", Some("p")), metrics.agent_type(Some("worker")), Pool { tripped, ..pool(2) });
            standing.add(metrics.pool("n", Some("o")), metrics.agent_type(Some("worker")), pool(1));
            metrics.fleet(standing);
        };
        look(&[("open", 1)]);
        let (series, type_) = (metrics.pool("n", Some("p")), metrics.agent_type(Some("worker")));
        metrics.agent_started(series.clone(), type_.clone());
        metrics.agent_ended(series, type_, "Reaped");
        assert_eq!(
            lines(&metrics, "spillway_pool_agents_desired{namespace=\"n\",pool=\"p\"}"),
            ["spillway_pool_agents_desired{namespace=\"n\",pool=\"p\"} 3"]
        );
        assert_eq!(
            lines(&metrics, "spillway_pool_agents_live{namespace=\"n\",pool=\"p\"}"),
            ["spillway_pool_agents_live{namespace=\"n\",pool=\"p\"} 2"]
        );
        assert_eq!(
            lines(&metrics, "spillway_pool_approvals_waiting{namespace=\"n\",pool=\"p\"}"),
            ["spillway_pool_approvals_waiting{namespace=\"n\",pool=\"p\"} 2"]
        );
        assert_eq!(
            lines(&metrics, "spillway_pool_agents_sandbox{"),
            [
                r#"spillway_pool_agents_sandbox{namespace="n",pool="o",state="Enforced"} 1"#,
                r#"spillway_pool_agents_sandbox{namespace="n",pool="p",state="Enforced"} 2"#,
            ]
        );
        assert_eq!(
            lines(&metrics, "spillway_pool_agents{"),
            [
                r#"spillway_pool_agents{namespace="n",pool="o",phase="Idle"} 1"#,
                r#"spillway_pool_agents{namespace="n",pool="p",phase="Idle"} 2"#,
            ]
        );
        assert_eq!(lines(&metrics, "spillway_agents{"), [r#"spillway_agents{type="worker",phase="Idle"} 3"#]);
        assert_eq!(lines(&metrics, "spillway_pool_agent_starts_total"), [r#"spillway_pool_agent_starts_total{namespace="n",pool="p"} 1"#]);
        assert_eq!(
            lines(&metrics, "spillway_pool_agent_ends_total"),
            [r#"spillway_pool_agent_ends_total{namespace="n",pool="p",reason="Reaped"} 1"#]
        );
        assert_eq!(lines(&metrics, "spillway_agent_starts_total"), [r#"spillway_agent_starts_total{type="worker"} 1"#]);
        assert_eq!(lines(&metrics, "spillway_agent_ends_total"), [r#"spillway_agent_ends_total{type="worker",reason="Reaped"} 1"#]);
        assert_eq!(
            lines(&metrics, "spillway_pool_session_breakers"),
            [r#"spillway_pool_session_breakers{namespace="n",pool="p",state="open"} 1"#]
        );
        look(&[]);
        assert_eq!(lines(&metrics, "spillway_pool_session_breakers"), Vec::<String>::new(), "it is closed again");
        metrics.pool_gone("n", "p");
        metrics.fleet_gone("n");
        metrics.agent_type_gone("worker");
        metrics.fleet(FleetCounts::default());
        assert_eq!(lines(&metrics, "spillway_pool_"), Vec::<String>::new());
        assert_eq!(lines(&metrics, "spillway_agent"), Vec::<String>::new());
    }

    #[test]
    fn pools_and_types_beyond_the_bound_share_series_and_add_up_there() {
        let metrics = Metrics::default();
        let mut standing = FleetCounts::default();
        for namespace in 0..POOL_SERIES_BOUNDS.namespaces + 10 {
            for name in 0..POOL_SERIES_BOUNDS.of_one + 2 {
                let series = metrics.pool(&format!("n{namespace}"), Some(&format!("p{name}")));
                let type_ = metrics.agent_type(Some(&format!("t{namespace}-{name}")));
                metrics.agent_started(series.clone(), type_.clone());
                metrics.agent_ended(series.clone(), type_.clone(), "Reaped");
                standing.add(series, type_, pool(1));
            }
        }
        metrics.fleet(standing);
        let most = POOL_SERIES_BOUNDS.all + POOL_SERIES_BOUNDS.namespaces + 1;
        for metric in ["pool_agents_desired", "pool_agents_live", "pool_agents{", "pool_agent_starts_total", "pool_agent_ends_total"] {
            assert!((most / 2..=most).contains(&lines(&metrics, &format!("spillway_{metric}")).len()), "{metric}");
        }
        for metric in ["agents{", "agent_starts_total", "agent_ends_total"] {
            assert_eq!(lines(&metrics, &format!("spillway_{metric}")).len(), MAX_TYPE_SERIES + 1, "{metric}");
        }
        let beyond = format!("spillway_pool_agents_live{{namespace=\"{OTHER_LABEL}\",pool=\"{OTHER_LABEL}\"}}");
        assert_eq!(lines(&metrics, &beyond), [format!("{beyond} {}", 10 * (POOL_SERIES_BOUNDS.of_one + 2))]);
        let all = (POOL_SERIES_BOUNDS.namespaces + 10) * (POOL_SERIES_BOUNDS.of_one + 2) - MAX_TYPE_SERIES;
        let beyond = format!("spillway_agents{{type=\"{OTHER_LABEL}\",phase=\"Idle\"}}");
        assert_eq!(lines(&metrics, &beyond), [format!("{beyond} {all}")]);
    }

    #[test]
    fn agents_of_no_pool_and_no_type_are_counted_so() {
        let metrics = Metrics::default();
        metrics.agent_started(metrics.pool("n", None), metrics.agent_type(None));
        assert_eq!(
            lines(&metrics, "spillway_pool_agent_starts_total"),
            [format!("spillway_pool_agent_starts_total{{namespace=\"n\",pool=\"{NO_OBJECT_LABEL}\"}} 1")]
        );
        assert_eq!(
            lines(&metrics, "spillway_agent_starts_total"),
            [format!("spillway_agent_starts_total{{type=\"{NO_OBJECT_LABEL}\"}} 1")]
        );
    }
}
