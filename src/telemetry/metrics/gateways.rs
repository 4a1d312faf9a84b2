//! Calls of agents, model calls, and connections.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, Timed, registered};

/// Seconds of a model call: from a refusal to an hour of streaming.
const MODEL_CALL_BUCKETS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3600.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelCallLabels {
    dialect: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DialectLabels {
    dialect: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnswerLabels {
    call: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusedCallLabels {
    call: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabels {
    listener: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectionLabels {
    listener: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    decision: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GitLabels {
    service: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// Transfers between programs and servers that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Connections to destinations other than models.
    Egress,
    /// Git requests.
    Git,
    /// Artifacts on their way to the store or from it.
    Artifact,
    /// Calls of Toolsets.
    Tools,
}

impl TransferKind {
    /// The word in logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Git => "git",
            Self::Artifact => "artifact",
            Self::Tools => "tools",
        }
    }
}

/// The metrics of this subject.
pub(super) struct Gateways {
    calls: Family<AnswerLabels, Counter>,
    refused: Family<RefusedCallLabels, Counter>,
    model_calls: Timed<ModelCallLabels>,
    first_bytes: Timed<DialectLabels>,
    open: Family<ClassLabels, Gauge>,
    turned_away: Family<RejectionLabels, Counter>,
    egress_decisions: Family<DecisionLabels, Counter>,
    egress_bytes: Family<DirectionLabels, Counter>,
    egress_open: Gauge,
    git_requests: Family<GitLabels, Counter>,
    git_bytes: Family<DirectionLabels, Counter>,
    git_open: Gauge,
    artifact_bytes: Family<DirectionLabels, Counter>,
    artifacts_open: Gauge,
    tool_calls: Family<OutcomeLabels, Counter>,
    tool_bytes: Family<DirectionLabels, Counter>,
    tools_open: Gauge,
}

impl Gateways {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            calls: registered(registry, "agent_calls", "Calls of agents by path and answer", Family::default()),
            refused: registered(registry, "agent_calls_refused", "Refused calls of agents by path and reason", Family::default()),
            model_calls: registered(
                registry,
                "gateway_request_seconds",
                "Duration of a model call, by dialect and outcome",
                Family::new_with_constructor(|| Histogram::new(MODEL_CALL_BUCKETS)),
            ),
            first_bytes: registered(
                registry,
                "gateway_ttft_seconds",
                "Time from a model call to the first part of its answer",
                Family::new_with_constructor(|| Histogram::new(MODEL_CALL_BUCKETS)),
            ),
            open: registered(
                registry,
                "connections",
                "Open connections by listener and class: strange (no token accepted yet) or known",
                Family::default(),
            ),
            turned_away: registered(
                registry,
                "connections_refused",
                "Connections that were refused or ended, by listener and reason",
                Family::default(),
            ),
            egress_decisions: registered(
                registry,
                "egress_decisions",
                "Requests for connections to destinations other than models, by decision",
                Family::default(),
            ),
            egress_bytes: registered(registry, "egress_bytes", "Bytes of these connections, by direction", Family::default()),
            egress_open: registered(registry, "egress_connections", "Open connections to destinations other than models", Gauge::default()),
            git_requests: registered(
                registry,
                "git_requests",
                "Requests of programs' git clients, by service and outcome",
                Family::default(),
            ),
            git_bytes: registered(registry, "git_bytes", "Bytes of these requests and of their answers, by direction", Family::default()),
            git_open: registered(registry, "git_transfers", "Git requests under way between gateways and servers", Gauge::default()),
            artifact_bytes: registered(
                registry,
                "artifact_bytes",
                "Bytes of artifacts to the store and from it, by direction",
                Family::default(),
            ),
            tool_calls: registered(registry, "tool_calls", "Requests of programs' MCP clients for Toolsets, by outcome", Family::default()),
            tool_bytes: registered(registry, "tool_bytes", "Bytes of these requests and of their answers, by direction", Family::default()),
            tools_open: registered(
                registry,
                "tool_calls_open",
                "Requests for Toolsets under way between gateways and bridges",
                Gauge::default(),
            ),
            artifacts_open: registered(registry, "artifact_transfers", "Uploads and downloads of artifacts under way", Gauge::default()),
        }
    }
}

impl Metrics {
    /// A call of an agent was answered.
    pub fn call_answered(&self, call: &'static str, code: u16) {
        self.0.gateways.calls.get_or_create(&AnswerLabels { call, code }).inc();
    }

    /// A call of an agent was refused.
    pub fn call_refused(&self, call: &'static str, reason: &'static str) {
        self.0.gateways.refused.get_or_create(&RefusedCallLabels { call, reason }).inc();
    }

    /// A model call ended.
    pub fn model_call(&self, dialect: &'static str, outcome: &'static str, took: Duration) {
        self.0.gateways.model_calls.get_or_create(&ModelCallLabels { dialect, outcome }).observe(took.as_secs_f64());
    }

    /// The first part of the response to a model call arrived.
    pub fn model_first_byte(&self, dialect: &'static str, took: Duration) {
        self.0.gateways.first_bytes.get_or_create(&DialectLabels { dialect }).observe(took.as_secs_f64());
    }

    /// Sets the number of connections of a listener.
    pub fn connections(&self, listener: &'static str, strange: usize, known: usize) {
        for (class, count) in [("strange", strange), ("known", known)] {
            self.0.gateways.open.get_or_create(&ClassLabels { listener, class }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A listener refused or ended a connection, or kept it from becoming known.
    pub fn connection_refused(&self, listener: &'static str, reason: &'static str) {
        self.0.gateways.turned_away.get_or_create(&RejectionLabels { listener, reason }).inc();
    }

    /// A request for a connection to a destination other than models was decided.
    pub fn egress_decided(&self, decision: &'static str) {
        self.0.gateways.egress_decisions.get_or_create(&DecisionLabels { decision }).inc();
    }

    /// A git request was answered or denied.
    pub fn git_request(&self, service: &'static str, outcome: &'static str) {
        self.0.gateways.git_requests.get_or_create(&GitLabels { service, outcome }).inc();
    }

    /// A request for a Toolset was answered or refused.
    pub fn tool_call(&self, outcome: &'static str) {
        self.0.gateways.tool_calls.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A transfer carried bytes.
    pub fn transfer_bytes(&self, kind: TransferKind, direction: &'static str, bytes: u64) {
        let gateways = &self.0.gateways;
        let family = match kind {
            TransferKind::Egress => &gateways.egress_bytes,
            TransferKind::Git => &gateways.git_bytes,
            TransferKind::Artifact => &gateways.artifact_bytes,
            TransferKind::Tools => &gateways.tool_bytes,
        };
        family.get_or_create(&DirectionLabels { direction }).inc_by(bytes);
    }

    /// A transfer begins.
    pub fn transfer_began(&self, kind: TransferKind) {
        self.open_transfers(kind).inc();
    }

    /// A transfer ended.
    pub fn transfer_ended(&self, kind: TransferKind) {
        self.open_transfers(kind).dec();
    }

    fn open_transfers(&self, kind: TransferKind) -> &Gauge {
        match kind {
            TransferKind::Egress => &self.0.gateways.egress_open,
            TransferKind::Git => &self.0.gateways.git_open,
            TransferKind::Artifact => &self.0.gateways.artifacts_open,
            TransferKind::Tools => &self.0.gateways.tools_open,
        }
    }
}
