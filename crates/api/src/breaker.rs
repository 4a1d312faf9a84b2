//! `Breaker`: guards (work, project, commands, models) that stop operations which keep failing. The state machine is not here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::never_decreases_rule;
use crate::shared::Mode;

/// Desired guards of a namespace or of some of its pools.
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
    doc = "Circuit breakers of a project against runaway retries, hanging commands and failing model providers.",
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
        .message("project must be unset in a Breaker with pools: it counts the failures of all pools of the namespace")
        .field_path(".project"),
)]
pub struct BreakerSpec {
    /// `Enforce` (default): refuse while a circuit is open. `Observe`: only count. `Disabled`: do neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// Pools that this Breaker guards. If unset or empty, it guards all pools of the namespace. The most specific Breaker of a pool
    /// applies, then the first by name.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub pools: Option<Vec<String>>,
    /// Guard of each pool against runaway retries.
    pub work: Option<WorkGuard>,
    /// Guard of the whole project: time-outs of all its pools together stop all of them. Only in a Breaker without `pools`.
    pub project: Option<WorkGuard>,
    /// Guard of pod and node against hanging commands.
    pub commands: Option<CommandsGuard>,
    /// Guard of the model provider and of the costs against failing calls.
    pub models: Option<ModelsGuard>,
    /// State in which a person holds all circuits: `Open` refuses everything, and `Closed` lets everything pass. If
    /// unset, the circuits change their state automatically.
    pub force: Option<Force>,
    /// Epoch up to which a person has approved the openings of circuits. It is needed with `review: Required`.
    #[schemars(range(min = 0))]
    pub approved_epoch: Option<i64>,
}

/// State in which a person holds all circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Force {
    /// Everything is refused.
    Open,
    /// Everything passes.
    Closed,
}

/// Guard of a pool, or of all pools of a project together, against runaway retries.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 60) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (60 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct WorkGuard {
    /// Failures within the window that open the circuit. Defaults to 3, for `project` to the value of `work` if that is higher.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds for which a failure counts. Defaults to 300. For `work` it is at least failureThreshold times the pool's model turn
    /// time-out.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds for which the circuit stays open. Defaults to 60.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close the circuit. Defaults to 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Whether an open circuit is probed after openSeconds (`Auto`, the default), or only after a person approves it
    /// with `approvedEpoch` (`Required`).
    pub review: Option<Review>,
    /// Factor by which each consecutive opening multiplies openSeconds. Defaults to 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Maximum seconds for which the circuit stays open. Defaults to 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Maximum number of probes at a time while the circuit is half open. Defaults to 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without a result is a failure. Defaults to the time limit of the guarded operation.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// How an open circuit gets to its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Review {
    /// The circuit is probed after openSeconds.
    Auto,
    /// The circuit is probed after a person approves it with `approvedEpoch`.
    Required,
}

/// Guard of pod and node against hanging commands.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 30) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (30 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct CommandsGuard {
    /// Circuit of each agent.
    pub session: Option<SessionGuard>,
    /// Failures of all agents within the window that open the circuit of the namespace. Defaults to 50.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds for which a failure counts. Defaults to 120. For a session it is at least failureThreshold times the pool's command
    /// time-out.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds for which the circuit stays open. Defaults to 30.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close the circuit. Defaults to 2.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Exit codes that count as failures. All others do not.
    #[schemars(length(max = 32), inner(range(min = 1, max = 255)), extend("x-kubernetes-list-type" = "set"))]
    pub failure_exit_codes: Option<Vec<i32>>,
    /// Factor by which each consecutive opening multiplies openSeconds. Defaults to 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Maximum seconds for which the circuit stays open. Defaults to 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Maximum number of probes at a time while the circuit is half open. Defaults to 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without a result is a failure. Defaults to the time limit of the guarded operation.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// Circuit of one agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionGuard {
    /// Failures of one agent within the window that open its circuit. Defaults to 10.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
}

/// Guard of the model provider and of the costs against failing calls.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.openSeconds) ? self.openSeconds : 60) <= (has(self.maxOpenSeconds) ? self.maxOpenSeconds : 900)")
        .message("openSeconds (60 when unset) must not be greater than maxOpenSeconds (900 when unset)")
        .field_path(".openSeconds"),
)]
pub struct ModelsGuard {
    /// Failures within the window that open the circuit. Defaults to 5.
    #[schemars(range(min = 1, max = 100_000))]
    pub failure_threshold: Option<i32>,
    /// Seconds for which a failure counts. Defaults to 60.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Seconds for which the circuit stays open. Defaults to 60.
    #[schemars(range(min = 1, max = 86400))]
    pub open_seconds: Option<i32>,
    /// Successful probes that close the circuit. Defaults to 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub success_threshold: Option<i32>,
    /// Seconds to the first token after which a call is a failure. Defaults to 60.
    #[schemars(range(min = 1, max = 86400))]
    pub first_token_seconds: Option<i32>,
    /// Factor by which each consecutive opening multiplies openSeconds. Defaults to 1.
    #[schemars(range(min = 1, max = 10))]
    pub backoff_factor: Option<i32>,
    /// Maximum seconds for which the circuit stays open. Defaults to 900.
    #[schemars(range(min = 1, max = 86400))]
    pub max_open_seconds: Option<i32>,
    /// Maximum number of probes at a time while the circuit is half open. Defaults to 1.
    #[schemars(range(min = 1, max = 1000))]
    pub half_open_probes: Option<i32>,
    /// Seconds after which a probe without a result is a failure. Defaults to the time limit of the guarded operation.
    #[schemars(range(min = 1, max = 86400))]
    pub probe_timeout_seconds: Option<i32>,
}

/// State of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum CircuitState {
    /// Everything passes.
    Closed,
    /// Everything is refused.
    Open,
    /// Probes pass.
    HalfOpen,
}

/// A circuit. A trip survives a change of leader; the counts do not.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.epoch >= oldSelf.epoch").message("epoch of a circuit must not fall").field_path(".epoch"),
)]
pub struct Circuit {
    /// Object that the circuit guards: `work/POOL`, `work` (all pools of the project), `commands`, or `models/HOST/CLASS` with the class of
    /// models.
    #[schemars(length(min = 1, max = 128))]
    pub key: String,
    /// State of the circuit: everything passes (`Closed`), everything is refused (`Open`), or probes pass (`HalfOpen`).
    pub state: CircuitState,
    /// Number that rises with each opening and each half-opening and never falls.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Number of consecutive openings.
    #[schemars(range(min = 0))]
    pub opens: Option<i32>,
    /// Time until which the circuit is open.
    pub open_until: Option<Time>,
    /// Number of failures that count now.
    #[schemars(range(min = 0))]
    pub failures: Option<i32>,
    /// The last failure, as text.
    #[schemars(length(max = 256))]
    pub last_failure: Option<String>,
}

/// The worst circuit of each guard, for columns and people.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CircuitSummary {
    /// Worst state of the work circuits, of pools and of the project: `Open`, `HalfOpen` or `Closed`.
    pub work: Option<CircuitState>,
    /// Worst state of the command circuits: `Open`, `HalfOpen` or `Closed`.
    pub commands: Option<CircuitState>,
    /// Worst state of the model circuits: `Open`, `HalfOpen` or `Closed`.
    pub models: Option<CircuitState>,
    /// Highest number of consecutive openings.
    #[schemars(range(min = 0))]
    pub opens: Option<i32>,
    /// Time until which the last of them is open.
    pub open_until: Option<Time>,
}

/// Observed state of a breaker.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct BreakerStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Circuits of the Breaker.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub circuits: Option<Vec<Circuit>>,
    /// The worst circuit of each guard.
    pub summary: Option<CircuitSummary>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Ready, Tripped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
