//! Calls to the API server, reconciles, supervision, and leadership.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, Timed, registered};

/// Seconds that a write waited for its permit: from no wait to the time after which it is not sent.
const WRITE_WAIT_BUCKETS: [f64; 9] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Seconds of a reconcile: from a read of the cache to many requests.
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
struct ApprovalLabels {
    outcome: &'static str,
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
    approvals: Family<ApprovalLabels, Counter>,
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
                "Requests to the API server by verb, resource and status code (0: no answer)",
                Family::default(),
            ),
            turns: registered(
                registry,
                "api_write_wait_seconds",
                "Time that a write waited for other writes of its namespace",
                Histogram::new(WRITE_WAIT_BUCKETS),
            ),
            at_once: registered(
                registry,
                "api_writes_at_once",
                "Limit of the writes of one namespace that are in flight to the API server",
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
                "Reconciles that were delayed because the cache did not have the controller's own last write",
                Family::default(),
            ),
            interventions: registered(
                registry,
                "interventions",
                "Interventions of the supervision by signal and action; done is false in mode Observe",
                Family::default(),
            ),
            notifications: registered(registry, "notifications", "Requests to webhooks by outcome, and lost notices", Family::default()),
            approvals: registered(
                registry,
                "tool_approvals",
                "Calls of privileged programs that need a person's approval, by what became of them",
                Family::default(),
            ),
            nodes: registered(registry, "nodes", "Nodes by state: heard, silent or unreachable", Family::default()),
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

    /// A write waited for `time` until it was sent, or refused for its wait.
    pub fn write_waited(&self, time: Duration) {
        self.0.controllers.turns.observe(time.as_secs_f64());
    }

    /// Sets the limit of writes in flight of one namespace.
    pub fn writes_at_once(&self, many: usize) {
        self.0.controllers.at_once.set(i64::try_from(many).unwrap_or(i64::MAX));
    }

    /// One reconcile ended.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.0.controllers.reconciles.get_or_create(&ReconcileLabels { controller, outcome }).inc();
        self.0.controllers.seconds.get_or_create(&KindLabels { controller }).observe(took.as_secs_f64());
    }

    /// The gate delayed one reconcile.
    pub fn gated(&self, controller: &'static str) {
        self.0.controllers.gated.get_or_create(&KindLabels { controller }).inc();
    }

    /// The supervisor decided on an intervention.
    pub fn intervention(&self, signal: &'static str, action: &'static str, done: bool) {
        let done = if done { "true" } else { "false" };
        self.0.controllers.interventions.get_or_create(&InterventionLabels { signal, action, done }).inc();
    }

    /// A request to a webhook ended, or a notice was lost.
    pub fn notification(&self, webhook: &str, outcome: &'static str) {
        self.0.controllers.notifications.get_or_create(&NotificationLabels { outcome, webhook: webhook.to_owned() }).inc();
    }

    /// A call of a privileged program was put to a person, answered, let through, or given up.
    pub fn tool_approval(&self, outcome: &'static str) {
        self.0.controllers.approvals.get_or_create(&ApprovalLabels { outcome }).inc();
    }

    /// Sets the number of nodes in each state.
    pub fn nodes(&self, by_state: &[(&'static str, i64)]) {
        for (state, many) in by_state {
            self.0.controllers.nodes.get_or_create(&StateLabels { state }).set(*many);
        }
    }

    /// This process leads now, with this owner epoch.
    pub fn leading(&self, epoch: i64) {
        self.0.controllers.leader.set(1);
        #[expect(clippy::cast_precision_loss, reason = "a gauge for people: epochs stay far below 2^52")]
        self.0.controllers.epoch.set(epoch as f64);
    }
}
