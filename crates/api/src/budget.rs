//! `Budget`: how many tokens, agents and how much compute a namespace may use, and the pieces it shares with
//! `ClusterBudget`. The arithmetic of the ledger is not here.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::never_falls;
use crate::shared::{LocalRef, Mode};

/// The most tokens any number here can be: far above any real limit, far below what an i64 sum could overflow with.
pub const MAX_TOKENS: i64 = 1_000_000_000_000_000;

/// Rules of whatever has `reservations`.
const SHARES_FIT: &str = "!has(self.reservations) || self.reservations.map(share, share.percent).sum() <= 100";
const SHARES_APART: &str = "!has(self.reservations) || self.reservations.all(share, share.poolTypes.all(poolType, self.reservations.exists_one(other, poolType in other.poolTypes)))";

/// Limits of a namespace or a part of it.
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
    doc = "Limits of a project: tokens a window, agents at once, requests, compute, and what happens near a limit.",
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
    /// Refuse, only count, or neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// A Budget of this namespace that must have room as well.
    pub parent_ref: Option<LocalRef>,
    /// Tokens of model calls.
    pub tokens: Option<TokenPolicy>,
    /// Agents at once.
    pub agents: Option<AgentLimits>,
    /// Work that waits.
    pub work: Option<WorkLimits>,
    /// Model requests.
    pub requests: Option<RequestLimits>,
    /// Compute, as a ResourceQuota and a LimitRange. On one Budget of a namespace at most.
    pub compute: Option<Compute>,
    /// What happens near a limit.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["percent", "action"])
    )]
    pub thresholds: Option<Vec<Threshold>>,
}

/// Tokens of model calls.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(SHARES_FIT)
        .message("the percents of reservations must not add up to more than 100")
        .field_path(".reservations"),
    validation = Rule::new(SHARES_APART)
        .message("a pool type must not stand in two reservations")
        .field_path(".reservations"),
    validation = Rule::new("(has(self.minOutputTokens) ? self.minOutputTokens : 1024) <= (has(self.maxOutputTokensPerRequest) ? self.maxOutputTokensPerRequest : 16000)")
        .message("minOutputTokens (1024 when unset) must not be greater than maxOutputTokensPerRequest (16000 when unset)")
        .field_path(".minOutputTokens"),
)]
pub struct TokenPolicy {
    /// Limits, each in its window; all must have room.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub limits: Option<Vec<TokenLimit>>,
    /// Shares kept for types of pools.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<Reservation>>,
    /// What a token of each sort counts.
    pub weights_permille: Option<Weights>,
    /// Output tokens one request may ask for. Default 16000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_output_tokens_per_request: Option<i32>,
    /// Output tokens below which a request is refused instead of cut. Default 1024.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub min_output_tokens: Option<i32>,
    /// How a request's input is estimated. Default Ratio.
    pub estimate: Option<Estimate>,
    /// What becomes of a request that asks for more output than is left. Default ClampOutput.
    pub on_insufficient: Option<OnInsufficient>,
    /// What becomes of tokens spent beyond a limit. Default Next.
    pub debt: Option<Debt>,
}

/// Tokens a window.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.guaranteed) || self.guaranteed <= self.tokens")
        .message("guaranteed must not be greater than tokens")
        .field_path(".guaranteed"),
)]
pub struct TokenLimit {
    /// Name of the limit: refusals and grants say it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// How many. 0 refuses every call.
    #[schemars(range(min = 0, max = MAX_TOKENS))]
    pub tokens: i64,
    /// How many of them siblings can never take, also while they are not used. Default: none.
    #[schemars(range(min = 0, max = MAX_TOKENS))]
    pub guaranteed: Option<i64>,
    /// The window, aligned in UTC; weeks begin on Monday.
    pub window: Window,
}

/// A span of time that a limit holds for.
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

/// A share of a limit, kept for types of pools.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Name of the share.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The types it is kept for.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub pool_types: Vec<String>,
    /// How large it is.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,
    /// They may use no more than it. Default false.
    pub cap: Option<bool>,
}

/// What a token of each sort counts, in thousandths.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Weights {
    /// Input that no cache had. Default 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub input: Option<i32>,
    /// Output, reasoning among it. Default 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub output: Option<i32>,
    /// Input that a cache had. Default 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cache_read: Option<i32>,
    /// Input written to a cache. Default 1000.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cache_write: Option<i32>,
}

/// How a request's input is estimated before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Estimate {
    /// By the learned ratio of tokens to bytes: close, may be exceeded.
    Ratio,
    /// A token a byte: never exceeded.
    Bytes,
}

/// What becomes of a request that asks for more output than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnInsufficient {
    /// It may write less.
    ClampOutput,
    /// It is refused.
    Reject,
}

/// What becomes of tokens spent beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Debt {
    /// The next window begins with them.
    Next,
    /// They are forgotten with their window.
    Forgive,
}

/// Agents at once.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(SHARES_FIT)
        .message("the percents of reservations must not add up to more than 100")
        .field_path(".reservations"),
    validation = Rule::new(SHARES_APART)
        .message("a pool type must not stand in two reservations")
        .field_path(".reservations"),
)]
pub struct AgentLimits {
    /// Agents with a pod. Unset: no limit but the defaults'.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_concurrent: Option<i32>,
    /// Shares of maxConcurrent kept for types of pools, in whole agents, rounded up; less than 100 percent leaves others one.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<Reservation>>,
}

/// Work that waits.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkLimits {
    /// Items that are not finished, over all queues of the namespace; more are refused (ProjectFull). Of a Budget without a parent,
    /// and of a ClusterBudget, whoever makes them; of a Budget below another one, what agents under it make. Unset: no limit but
    /// those of the queues.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_pending: Option<i32>,
}

/// Model requests.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestLimits {
    /// At once. Default 64.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_in_flight: Option<i32>,
    /// By one agent in a second. Default 20.
    #[schemars(range(min = 1, max = 10_000))]
    pub per_agent_per_second: Option<i32>,
}

/// Compute of the namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compute {
    /// What the namespace may use, by the names of a ResourceQuota (`requests.cpu`).
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub hard: Option<BTreeMap<String, Quantity>>,
    /// What one agent's container may use.
    pub per_agent: Option<PerAgentCompute>,
}

/// What one agent's container may use, by the names of a LimitRange (`cpu`, `memory`).
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
    /// The least.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub min: Option<BTreeMap<String, Quantity>>,
    /// The most.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub max: Option<BTreeMap<String, Quantity>>,
}

/// What happens at a share of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// The share.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,
    /// What happens, once a window.
    pub action: ThresholdAction,
}

/// What can happen at a threshold, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum ThresholdAction {
    /// A line in the log.
    Log,
    /// The agents are told.
    Warn,
    /// People are told.
    Notify,
    /// No new holds; agents keep their items and wait.
    Pause,
    /// Agents are ended.
    Reap,
}

/// One window of one limit, as it is counted.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowStatus {
    /// Name of the limit.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The window: its start in UTC, `lifetime` where it has none.
    #[schemars(length(min = 1, max = 40))]
    pub id: String,
    /// The highest that the limit was in this window, grants among it: what is spent beyond it is debt.
    pub limit: Option<i64>,
    /// Spent.
    #[serde(default)]
    pub used: i64,
    /// Held for calls in flight.
    pub held: Option<i64>,
    /// Charged for gateways that went away.
    pub lost: Option<i64>,
    /// Debt of the windows before.
    pub carried: Option<i64>,
    /// Holds are given from memory below this; raised before they are passed.
    pub high_water: Option<i64>,
}

/// What one reservation has used.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationUsage {
    /// The reservation.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its windows.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
}

/// The window nearest to its limit, for columns and people.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tightest {
    /// Name of the limit.
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// The limit with grants.
    pub limit: Option<i64>,
    /// Spent, lost tokens among it.
    pub used: Option<i64>,
    /// Held for calls in flight.
    pub held: Option<i64>,
    /// What is left; never below 0.
    pub left: Option<i64>,
    /// When the window ends; unset: never, or nothing is counted in it yet.
    pub reset_time: Option<Time>,
}

/// What makes the ledger exactly once over crashes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// How far the settles of each gateway session are contained in this status.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["session"]))]
    pub acked: Option<Vec<Acked>>,
    /// Thresholds that have acted in a window that lives.
    #[schemars(length(max = 256))]
    pub latched: Option<Vec<Latched>>,
}

/// How far a session's settles are contained.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Acked {
    /// The session: uid of the gateway's pod.
    #[schemars(length(min = 1, max = 128))]
    pub session: String,
    /// Number of its last settle that is contained.
    #[schemars(range(min = 0))]
    pub seq: i64,
}

/// A threshold that has acted: it does so once a window and generation of the limit.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Latched {
    /// The namespace, in a ClusterBudget's limits by namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Name of the limit.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The window.
    #[schemars(length(min = 1, max = 40))]
    pub id: String,
    /// The share.
    pub percent: i32,
    /// What was done.
    pub action: ThresholdAction,
    /// The generation of the limit: how high it was, grants among it. A higher one arms the threshold again.
    pub generation: i64,
}

/// Agents that are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentUsage {
    /// Agents with a pod.
    #[serde(default)]
    pub used: i32,
}

/// What Spillway says of a budget.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct BudgetStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// The windows that are counted, and a few old ones for late settles.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// The windows of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// The window nearest to its limit.
    pub tightest: Option<Tightest>,
    /// What makes the ledger exactly once.
    pub ledger: Option<Ledger>,
    /// Agents that are counted.
    pub agents: Option<AgentUsage>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Ready, NearLimit, Blocked, QuotaApplied, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
