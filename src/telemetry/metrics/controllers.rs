//! Calls to the API server, reconciles, supervision, and who leads.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, Timed, registered};

/// Seconds that a write waited for its turn: from not at all to when it is not sent any more.
const WRITE_WAIT_BUCKETS: [f64; 9] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Seconds of a reconcile: from a look into memory to a burst of calls.
const RECONCILE_BUCKETS: [f64; 10] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InterventionLabels {
    signal: &'static str,
    action: &'static str,
    done: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NotificationLabels {
    outcome: &'static str,
    webhook: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// The metrics of this subject.
pub(super) struct Controllers {
    requests: Family<RequestLabels, Counter>,
    turns: Histogram,
    at_once: Gauge,
    reconciles: Family<ReconcileLabels, Counter>,
    seconds: Timed<KindLabels>,
    gated: Family<KindLabels, Counter>,
    interventions: Family<InterventionLabels, Counter>,
    notifications: Family<NotificationLabels, Counter>,
    nodes: Family<StateLabels, Gauge>,
    leader: Gauge,
    epoch: Gauge<f64, AtomicU64>,
}

impl Controllers {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: registered(
                registry,
                "api_requests",
                "Requests to the API server by verb, resource and answer (0: none came)",
                Family::default(),
            ),
            turns: registered(
                registry,
                "api_write_wait_seconds",
                "Time that a write waited for its namespace's others",
                Histogram::new(WRITE_WAIT_BUCKETS),
            ),
            at_once: registered(
                registry,
                "api_writes_at_once",
                "Writes of one namespace that may be on their way to the API server",
                Gauge::default(),
            ),
            reconciles: registered(registry, "reconciles", "Reconciles by controller and outcome", Family::default()),
            seconds: registered(
                registry,
                "reconcile_seconds",
                "Duration of a reconcile",
                Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            ),
            gated: registered(
                registry,
                "cache_behind_own_write",
                "Reconciles put off because the cache had not seen our own last write",
                Family::default(),
            ),
            interventions: registered(
                registry,
                "interventions",
                "What the supervisor decided, by signal and action; done is false with mode Observe",
                Family::default(),
            ),
            notifications: registered(
                registry,
                "notifications",
                "Tries to tell a webhook, by outcome, and notices that were lost",
                Family::default(),
            ),
            nodes: registered(registry, "nodes", "Nodes by whether they are heard of", Family::default()),
            leader: registered(registry, "leader", "1 while this process leads", Gauge::default()),
            epoch: registered(registry, "owner_epoch", "Owner epoch of this process while it leads", Gauge::default()),
        }
    }
}

impl Metrics {
    /// One request to the API server was answered.
    pub fn api_request(&self, verb: &'static str, resource: &str, code: u16) {
        self.0.controllers.requests.get_or_create(&RequestLabels { verb, resource: resource.to_owned(), code }).inc();
    }

    /// A write waited for so long until it might be sent, or was not sent any more.
    pub fn write_waited(&self, time: Duration) {
        self.0.controllers.turns.observe(time.as_secs_f64());
    }

    /// So many writes of one namespace may be on their way.
    pub fn writes_at_once(&self, many: usize) {
        self.0.controllers.at_once.set(i64::try_from(many).unwrap_or(i64::MAX));
    }

    /// One reconcile ended.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.0.controllers.reconciles.get_or_create(&ReconcileLabels { controller, outcome }).inc();
        self.0.controllers.seconds.get_or_create(&KindLabels { controller }).observe(took.as_secs_f64());
    }

    /// One reconcile was put off by the gate.
    pub fn gated(&self, controller: &'static str) {
        self.0.controllers.gated.get_or_create(&KindLabels { controller }).inc();
    }

    /// The supervisor decided.
    pub fn intervention(&self, signal: &'static str, action: &'static str, done: bool) {
        let done = if done { "true" } else { "false" };
        self.0.controllers.interventions.get_or_create(&InterventionLabels { signal, action, done }).inc();
    }

    /// A webhook was told, or not.
    pub fn notification(&self, webhook: &str, outcome: &'static str) {
        self.0.controllers.notifications.get_or_create(&NotificationLabels { outcome, webhook: webhook.to_owned() }).inc();
    }

    /// So many nodes are in each state.
    pub fn nodes(&self, by_state: &[(&'static str, i64)]) {
        for (state, many) in by_state {
            self.0.controllers.nodes.get_or_create(&StateLabels { state }).set(*many);
        }
    }

    /// We lead now, under this owner epoch.
    pub fn leading(&self, epoch: i64) {
        self.0.controllers.leader.set(1);
        #[expect(clippy::cast_precision_loss, reason = "a gauge for people: epochs stay far below 2^52")]
        self.0.controllers.epoch.set(epoch as f64);
    }
}
