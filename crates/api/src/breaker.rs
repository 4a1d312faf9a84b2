//! `Breaker`: guards (work, project, commands, models) that stop what keeps failing. The machine itself is not here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::never_falls;
use crate::shared::Mode;

/// The guards of a namespace or of some of its pools.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "Breaker",
    plural = "breakers",
    shortname = "brk",
    category = "spillway",
    namespaced,
    status = "BreakerStatus",
    derive = "PartialEq",
    doc = "Circuit breakers of a project: for runaway retries, hanging commands and failing model providers.",
    printcolumn(name = "Work", type_ = "string", json_path = ".status.summary.work"),
    printcolumn(name = "Commands", type_ = "string", json_path = ".status.summary.commands"),
    printcolumn(name = "Models", type_ = "string", json_path = ".status.summary.models"),
    printcolumn(name = "Opens", type_ = "integer", json_path = ".status.summary.opens"),
    printcolumn(name = "Until", type_ = "string", json_path = ".status.summary.openUntil"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Tripped")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.project) || !has(self.pools) || self.pools.size() == 0")
        .message("project counts the work of all pools: set it in a Breaker without pools")
        .field_path(".project"),
)]
pub struct BreakerSpec {
    /// Refuse, only count, or neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// Pools it guards; unset or empty: all of the namespace. The most specific Breaker wins, then the first by name.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub pools: Option<Vec<String>>,
    /// Guards each pool against runaway retries.
    pub work: Option<WorkGuard>,
    /// Guards the whole project: time-outs of all its pools together stop all of them. Only in a Breaker without `pools`.
    pub project: Option<WorkGuard>,
    /// Guards pod and node against hanging commands.
    pub commands: Option<CommandsGuard>,
    /// Guards the provider and the bill.
    pub models: Option<ModelsGuard>,
    /// Holds all circuits in one state, whatever happens. Unset: they decide themselves.
    pub force: Option<Force>,
    /// A person has approved all openings up to the one with this epoch. Needed with `review: Required`.
    #[schemars(range(min = 0))]
    pub approved_epoch: Option<i64>,
}

/// The state in which a person holds all circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Force {
    /// Everything is refused.
    Open,
    /// Everything passes.
    Closed,
}

/// Guards a pool, or all pools of a project together, against runaway retries.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 60) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (60 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct WorkGuard {
    /// Failures within the window that open it. Default 3; of `project` as many as of `work`, if those are more.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds a failure counts. Default 300; of `work` at least failureThreshold times the pool's model turn time-out.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds it stays open. Default 60.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close it. Default 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Whether it closes itself or a person must approve. Default Auto.
    pub review: Option<Review>,
    /// What each opening in a row multiplies openSeconds by. Default 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Seconds it stays open at most. Default 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Probes at once while it is half open. Default 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without an outcome is a failure. Unset: the guarded operation's own limit.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// Who closes a work circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Review {
    /// A successful probe.
    Auto,
    /// A person, by `approvedEpoch`.
    Required,
}

/// Guards pod and node against hanging commands.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 30) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (30 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct CommandsGuard {
    /// The circuit of each agent.
    pub session: Option<SessionGuard>,
    /// Failures of all agents within the window that open the circuit of the namespace. Default 50.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds a failure counts. Default 120; for a session at least failureThreshold times the pool's command time-out.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds it stays open. Default 30.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close it. Default 2.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Exit codes that count as failures; all others do not.
    #[schemars(length(max = 32), inner(range(min = 1, max = 255)), extend("x-kubernetes-list-type" = "set"))]
    pub failure_exit_codes: Option<Vec<i32>>,
    /// What each opening in a row multiplies openSeconds by. Default 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Seconds it stays open at most. Default 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Probes at once while it is half open. Default 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without an outcome is a failure. Unset: the guarded operation's own limit.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// The circuit of one agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionGuard {
    /// Failures of one agent within the window that open its circuit. Default 10.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
}

/// Guards the provider and the bill.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 60) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (60 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct ModelsGuard {
    /// Failures within the window that open it. Default 5.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds a failure counts. Default 60.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds it stays open. Default 60.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close it. Default 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Seconds to the first token after which a call is a failure. Default 60.
    #[schemars(range(min = 1, max = 86400))]
    pub first_token_seconds: Option<i32>,
    /// What each opening in a row multiplies openSeconds by. Default 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Seconds it stays open at most. Default 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Probes at once while it is half open. Default 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without an outcome is a failure. Unset: the guarded operation's own limit.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// The state of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum CircuitState {
    /// Everything passes.
    Closed,
    /// Everything is refused.
    Open,
    /// Probes pass.
    HalfOpen,
}

/// One circuit. What is durable: a trip survives a fail-over, counts do not.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.epoch >= oldSelf.epoch").message("epoch of a circuit must not fall").field_path(".epoch"),
)]
pub struct Circuit {
    /// What it guards: `work/POOL`, `work` (all pools of the project), `commands`, or `models/HOST/CLASS` with the class of models.
    #[schemars(length(min = 1, max = 128))]
    pub key: String,
    /// Its state.
    pub state: CircuitState,
    /// Rises with each opening and each half-opening, never falls.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Openings in a row.
    #[schemars(range(min = 0))]
    pub opens: Option<i32>,
    /// Until when it is open.
    pub open_until: Option<Time>,
    /// Failures that count now.
    #[schemars(range(min = 0))]
    pub failures: Option<i32>,
    /// The last failure, in words.
    #[schemars(length(max = 256))]
    pub last_failure: Option<String>,
}

/// The worst circuit of each guard, for columns and people.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CircuitSummary {
    /// Of the work circuits, of pools and of the project.
    pub work: Option<CircuitState>,
    /// Of the command circuits.
    pub commands: Option<CircuitState>,
    /// Of the model circuits.
    pub models: Option<CircuitState>,
    /// The most openings in a row.
    #[schemars(range(min = 0))]
    pub opens: Option<i32>,
    /// Until when the last of them is open.
    pub open_until: Option<Time>,
}

/// What Spillway says of a breaker.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct BreakerStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// Its circuits.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub circuits: Option<Vec<Circuit>>,
    /// The worst circuit of each guard.
    pub summary: Option<CircuitSummary>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Ready, Tripped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
