//! `Budget`: how many tokens, agents and how much compute a namespace may use, and the types it shares with `ClusterBudget`. The arithmetic
//! of the ledger is not here.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::artifact::ArtifactLimits;
use crate::schema::never_decreases_rule;
use crate::shared::{LocalRef, Mode};

/// Highest number of tokens in any field: far above any real limit, and far below what could overflow an i64 sum.
pub const MAX_TOKENS: i64 = 1_000_000_000_000_000;

/// CEL rules for types with `reservations`.
const SHARES_FIT_RULE: &str = "!has(self.reservations) || self.reservations.map(share, share.percent).sum() <= 100";
const SHARES_DISJOINT_RULE: &str = "!has(self.reservations) || self.reservations.all(share, share.poolTypes.all(poolType, self.reservations.exists_one(other, poolType in other.poolTypes)))";

/// Desired limits of a namespace or of some of its pools.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "Budget",
    plural = "budgets",
    shortname = "bud",
    category = "spillway",
    namespaced,
    status = "BudgetStatus",
    derive = "PartialEq",
    doc = "Limits of a project: tokens in a window, agents at a time, requests, compute, and actions near a limit.",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must have at most 63 characters: it is written with every call that the Budget counts"),
    validation = Rule::new("!has(self.spec.parentRef) || self.spec.parentRef.name != self.metadata.name")
        .message("parentRef must not name the Budget itself")
        .field_path(".spec.parentRef"),
    printcolumn(name = "Window", type_ = "string", json_path = ".status.tightest.name"),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".status.tightest.limit"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.tightest.used"),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.tightest.held"),
    printcolumn(name = "Left", type_ = "integer", json_path = ".status.tightest.left"),
    printcolumn(name = "Resets", type_ = "string", json_path = ".status.tightest.resetTime"),
    printcolumn(name = "Blocked", type_ = "string", json_path = r#".status.conditions[?(@.type=="Blocked")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSpec {
    /// `Enforce` (default): refuse beyond a limit. `Observe`: only count. `Disabled`: do neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// Budget of this namespace whose limits apply as well.
    pub parent_ref: Option<LocalRef>,
    /// Limits on the tokens of model calls. Unset fields have the values of the ClusterBudget. If it has no `limits` either, the limit is
    /// 100000 tokens in an hour.
    pub tokens: Option<TokenPolicy>,
    /// Limits on the number of agents at a time.
    pub agents: Option<AgentLimits>,
    /// Limits on unfinished items.
    pub work: Option<WorkLimits>,
    /// Limits on model requests.
    pub requests: Option<RequestLimits>,
    /// Limits on the artifacts of items.
    pub artifacts: Option<ArtifactLimits>,
    /// Compute of the namespace, applied as a ResourceQuota and a LimitRange. Only one Budget of a namespace may set it.
    pub compute: Option<Compute>,
    /// Actions at percentages of a limit. Defaults to those of the ClusterBudget, else to 80 Warn, 90 Notify and 100 Pause.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["percent", "action"])
    )]
    pub thresholds: Option<Vec<Threshold>>,
}

/// Limits on the tokens of model calls.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(SHARES_FIT_RULE)
        .message("the percents of reservations must not add up to more than 100")
        .field_path(".reservations"),
    validation = Rule::new(SHARES_DISJOINT_RULE)
        .message("a pool type must not be in two reservations")
        .field_path(".reservations"),
    validation = Rule::new("(has(self.minOutputTokens) ? self.minOutputTokens : 1024) <= (has(self.maxOutputTokensPerRequest) ? self.maxOutputTokensPerRequest : 16000)")
        .message("minOutputTokens (1024 when unset) must not be greater than maxOutputTokensPerRequest (16000 when unset)")
        .field_path(".minOutputTokens"),
)]
pub struct TokenPolicy {
    /// Token limits, each for a window. A call must fit in all of them.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub limits: Option<Vec<TokenLimit>>,
    /// Shares of the limits that are kept for types of pools.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<Reservation>>,
    /// Weight of a token of each kind, in thousandths.
    pub weights_permille: Option<Weights>,
    /// Maximum number of output tokens that a request may ask for. Defaults to 16000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_output_tokens_per_request: Option<i32>,
    /// If fewer output tokens are left, a request is refused instead of shortened. Defaults to 1024.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub min_output_tokens: Option<i32>,
    /// How the input of a request is estimated before it is sent. `Ratio` (default): by the learned ratio of tokens to
    /// bytes, which is close and may be exceeded. `Bytes`: one token a byte, which is never exceeded.
    pub estimate: Option<Estimate>,
    /// Handling of a request that asks for more output than is left. `ClampOutput` (default): its output is limited.
    /// `Reject`: it is refused.
    pub on_insufficient: Option<OnInsufficient>,
    /// Handling of tokens spent beyond a limit. `Next` (default): the next window begins with them. `Forgive`: they are
    /// not counted after their window.
    pub debt: Option<Debt>,
}

/// A token limit for a window.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.guaranteed) || self.guaranteed <= self.tokens")
        .message("guaranteed must not be greater than tokens")
        .field_path(".guaranteed"),
)]
pub struct TokenLimit {
    /// Name of the limit. Refusals and Grants refer to it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Number of tokens. 0 refuses every call.
    #[schemars(range(min = 0, max = MAX_TOKENS))]
    pub tokens: i64,
    /// Number of these tokens that sibling Budgets can never take, even while they are not used. Defaults to none.
    #[schemars(range(min = 0, max = MAX_TOKENS))]
    pub guaranteed: Option<i64>,
    /// Window of the limit, aligned in UTC. Weeks begin on Monday.
    pub window: Window,
}

/// Period of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Window {
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Lifetime,
}

/// A share of a limit that is kept for types of pools.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Name of the reservation.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Types of pools for which the share is kept.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub pool_types: Vec<String>,
    /// Size of the share, in percent of the limit.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,
    /// Whether these pools may use no more than the share. Defaults to false.
    pub cap: Option<bool>,
}

/// Weight of a token of each kind, in thousandths.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Weights {
    /// Weight of input that was not read from a cache. Defaults to 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub input: Option<i32>,
    /// Weight of output, including reasoning. Defaults to 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub output: Option<i32>,
    /// Weight of input that was read from a cache. Defaults to 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cache_read: Option<i32>,
    /// Weight of input that was written to a cache. Defaults to 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cache_write: Option<i32>,
}

/// How the input of a request is estimated before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Estimate {
    /// By the learned ratio of tokens to bytes. It is close and may be exceeded.
    Ratio,
    /// One token a byte. It is never exceeded.
    Bytes,
}

/// Handling of a request that asks for more output than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum OnInsufficient {
    /// The output of the request is limited to what is left.
    ClampOutput,
    /// The request is refused.
    Reject,
}

/// Handling of tokens spent beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Debt {
    /// The next window begins with them.
    Next,
    /// They are not counted after their window.
    Forgive,
}

/// Limits on the number of agents at a time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(SHARES_FIT_RULE)
        .message("the percents of reservations must not add up to more than 100")
        .field_path(".reservations"),
    validation = Rule::new(SHARES_DISJOINT_RULE)
        .message("a pool type must not be in two reservations")
        .field_path(".reservations"),
)]
pub struct AgentLimits {
    /// Maximum number of agents with a pod. If unset, only the limits of the defaults apply.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_concurrent: Option<i32>,
    /// Shares of maxConcurrent that are kept for types of pools, in whole agents, rounded up. Shares of less than 100 percent leave others
    /// at least one agent.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<Reservation>>,
}

/// Limits on unfinished items.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkLimits {
    /// Maximum number of unfinished items in all queues of the namespace. More are refused (ProjectFull). If the Budget has a parent, only
    /// items that its agents create are refused; else, and in a ClusterBudget, all items. If unset, only the limits of the queues apply.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_pending: Option<i32>,
}

/// Limits on model requests.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestLimits {
    /// Maximum number of requests at a time. Defaults to 64.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_in_flight: Option<i32>,
    /// Maximum number of requests of one agent in a second. Defaults to 20.
    #[schemars(range(min = 1, max = 10_000))]
    pub per_agent_per_second: Option<i32>,
}

/// Compute of the namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compute {
    /// Limits of the namespace, by the resource names of a ResourceQuota (`requests.cpu`).
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub hard: Option<BTreeMap<String, Quantity>>,
    /// Limits of each container of the namespace.
    pub per_agent: Option<PerAgentCompute>,
}

/// Limits of each container of the namespace, by the resource names of a LimitRange (`cpu`, `memory`).
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.min) || !has(self.max) || self.min.all(name, !(name in self.max) || !quantity(string(self.min[name])).isGreaterThan(quantity(string(self.max[name]))))")
        .message("min must not be greater than max")
        .field_path(".min"),
    validation = Rule::new("!has(self.default) || !has(self.max) || self.default.all(name, !(name in self.max) || !quantity(string(self.default[name])).isGreaterThan(quantity(string(self.max[name]))))")
        .message("default must not be greater than max")
        .field_path(".default"),
    validation = Rule::new("!has(self.defaultRequest) || !has(self.default) || self.defaultRequest.all(name, !(name in self.default) || !quantity(string(self.defaultRequest[name])).isGreaterThan(quantity(string(self.default[name]))))")
        .message("defaultRequest must not be greater than default")
        .field_path(".defaultRequest"),
)]
pub struct PerAgentCompute {
    /// Limits of a container that sets none.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub default: Option<BTreeMap<String, Quantity>>,
    /// Requests of a container that sets none.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub default_request: Option<BTreeMap<String, Quantity>>,
    /// Minimum of a container.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub min: Option<BTreeMap<String, Quantity>>,
    /// Maximum of a container.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub max: Option<BTreeMap<String, Quantity>>,
}

/// An action at a percentage of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// Percentage of the limit.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,
    /// Action, taken once in a window: `Log`, `Warn` (tell the agents), `Notify` (tell people), `Pause` (refuse new calls) or `Reap` (end
    /// or pause the agents).
    pub action: ThresholdAction,
}

/// An action at a threshold, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum ThresholdAction {
    /// Writes a line to the log.
    Log,
    /// Tells the agents.
    Warn,
    /// Tells people.
    Notify,
    /// Refuses new holds. Agents keep their items and wait.
    Pause,
    /// Raises the signal TokenBudgetExceeded for each agent, which ends or pauses it.
    Reap,
}

/// Use of a limit in one window.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowStatus {
    /// Name of the limit.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Start of the window in UTC, or `lifetime` if it has none.
    #[schemars(length(min = 1, max = 40))]
    pub id: String,
    /// Highest value of the limit in this window, including grants. Tokens spent beyond it are debt.
    pub limit: Option<i64>,
    /// Tokens spent.
    #[serde(default)]
    pub used: i64,
    /// Tokens held for calls in flight.
    pub held: Option<i64>,
    /// Tokens charged for gateways that disappeared.
    pub lost: Option<i64>,
    /// Debt of earlier windows.
    pub carried: Option<i64>,
    /// Total up to which tokens are given without a write. It is raised before it is reached.
    pub high_water: Option<i64>,
}

/// Use of one reservation.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationUsage {
    /// Name of the reservation.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Use of the reservation in each window.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
}

/// The window that is nearest to its limit, for columns and people.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tightest {
    /// Name of the limit.
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// Limit, including grants.
    pub limit: Option<i64>,
    /// Tokens spent, including lost ones.
    pub used: Option<i64>,
    /// Tokens held for calls in flight.
    pub held: Option<i64>,
    /// Tokens left. It is never below 0.
    pub left: Option<i64>,
    /// When the window ends. It is unset if the window never ends or nothing is counted in it yet.
    pub reset_time: Option<Time>,
}

/// Records with which the ledger counts each call exactly once, also after a crash.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// For each gateway session, the settles that this status includes.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["session"]))]
    pub acked: Option<Vec<Acked>>,
    /// Thresholds that have acted in a current window.
    #[schemars(length(max = 256))]
    pub latched: Option<Vec<Latched>>,
}

/// The settles of a gateway session that the status includes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Acked {
    /// The session: uid of the gateway's pod.
    #[schemars(length(min = 1, max = 128))]
    pub session: String,
    /// Number of the last settle that is included.
    #[schemars(range(min = 0))]
    pub seq: i64,
}

/// A threshold that has acted. It acts once for each window and generation of the limit.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Latched {
    /// Namespace, for limits by namespace of a ClusterBudget.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Name of the limit.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Window of the limit.
    #[schemars(length(min = 1, max = 40))]
    pub id: String,
    /// Percentage of the threshold.
    pub percent: i32,
    /// Action that was taken.
    pub action: ThresholdAction,
    /// Value of the limit at that time, including grants. If the limit is higher, the threshold can act again.
    pub generation: i64,
}

/// Agents that are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentUsage {
    /// Number of agents with a pod.
    #[serde(default)]
    pub used: i32,
}

/// Observed state of a budget.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct BudgetStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Current windows, and a few earlier ones for late settles.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// Use of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// The window that is nearest to its limit.
    pub tightest: Option<Tightest>,
    /// Records with which the ledger counts each call exactly once.
    pub ledger: Option<Ledger>,
    /// Agents that are counted.
    pub agents: Option<AgentUsage>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Ready, NearLimit, Blocked, QuotaApplied, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
