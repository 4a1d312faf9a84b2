//! `ClusterBudget`: level 0, above all projects. The team never owns the limit that binds it, so what each namespace
//! has used is kept here, in the status.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::Bulkhead;
use crate::breaker::{CommandsGuard, ModelsGuard, WorkGuard};
use crate::budget::{
    AgentLimits, AgentUsage, Ledger, RequestLimits, ReservationUsage, Threshold, Tightest, TokenPolicy, WindowStatus, WorkLimits,
};
use crate::schema::never_falls;

/// Limits over all projects it selects.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "ClusterBudget",
    plural = "clusterbudgets",
    shortname = "cbud",
    category = "spillway",
    status = "ClusterBudgetStatus",
    derive = "PartialEq",
    doc = "Limits over many projects: the token rate that protects the API keys, what each namespace may use, and defaults.",
    printcolumn(name = "Window", type_ = "string", json_path = ".status.tightest.name"),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".status.tightest.limit"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.tightest.used"),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.tightest.held"),
    printcolumn(name = "Left", type_ = "integer", json_path = ".status.tightest.left"),
    printcolumn(name = "Resets", type_ = "string", json_path = ".status.tightest.resetTime"),
    printcolumn(name = "Blocked", type_ = "string", json_path = r#".status.conditions[?(@.type=="Blocked")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.agents) || !has(self.agents.maxTotal) || !has(self.perNamespace) || !has(self.perNamespace.agents) || !has(self.perNamespace.agents.maxConcurrent) || self.perNamespace.agents.maxConcurrent <= self.agents.maxTotal")
        .message("perNamespace.agents.maxConcurrent must not be greater than agents.maxTotal")
        .field_path(".perNamespace"),
)]
pub struct ClusterBudgetSpec {
    /// The namespaces it binds; `{}` is all. Two that match one namespace are Stalled.
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub namespace_selector: LabelSelector,
    /// Tokens of all of them together: the rate that protects the API keys.
    pub tokens: Option<TokenPolicy>,
    /// What each of them may use.
    pub per_namespace: Option<PerNamespace>,
    /// Agents of all of them together.
    pub agents: Option<TotalAgents>,
    /// Pools of all of them together.
    pub projects: Option<Projects>,
    /// Compute of all agent pods together.
    pub compute: Option<TotalCompute>,
    /// What a namespace or a pool leaves unset.
    pub defaults: Option<Defaults>,
}

/// What each namespace may use.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerNamespace {
    /// Tokens of model calls.
    pub tokens: Option<TokenPolicy>,
    /// Agents at once.
    pub agents: Option<AgentLimits>,
    /// Work that waits.
    pub work: Option<WorkLimits>,
}

/// Agents of all namespaces.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TotalAgents {
    /// Agents with a pod. Unset: no limit.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_total: Option<i32>,
}

/// Projects: namespaces with a pool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Projects {
    /// How many. Unset: no limit.
    #[schemars(range(min = 0, max = 200))]
    pub max: Option<i32>,
}

/// Compute of all agent pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TotalCompute {
    /// Memory limits together. Unset: no limit.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub memory: Option<Quantity>,
    /// Volumes together. Unset: no limit.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub storage: Option<Quantity>,
}

/// What a namespace or a pool leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Defaults {
    /// For pools.
    pub bulkhead: Option<Bulkhead>,
    /// For Budgets.
    pub budget: Option<BudgetDefaults>,
    /// For Breakers.
    pub breaker: Option<BreakerDefaults>,
}

/// What a Budget leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetDefaults {
    /// Tokens of model calls.
    pub tokens: Option<TokenPolicy>,
    /// Agents at once.
    pub agents: Option<AgentLimits>,
    /// Work that waits.
    pub work: Option<WorkLimits>,
    /// Model requests.
    pub requests: Option<RequestLimits>,
    /// What happens near a limit.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["percent", "action"])
    )]
    pub thresholds: Option<Vec<Threshold>>,
}

/// What a Breaker leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerDefaults {
    /// Runaway retries.
    pub work: Option<WorkGuard>,
    /// Runaway retries of all pools of a project together.
    pub project: Option<WorkGuard>,
    /// Hanging commands.
    pub commands: Option<CommandsGuard>,
    /// Failing providers.
    pub models: Option<ModelsGuard>,
}

/// What one namespace has used of `perNamespace`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceUsage {
    /// The namespace.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its windows.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// The windows of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// Its agents.
    pub agents: Option<AgentUsage>,
}

/// What Spillway says of a cluster budget.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct ClusterBudgetStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// The windows over all namespaces.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// The windows of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// What each namespace has used.
    #[schemars(length(max = 400), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub namespaces: Option<Vec<NamespaceUsage>>,
    /// The window nearest to its limit.
    pub tightest: Option<Tightest>,
    /// What makes the ledger exactly once.
    pub ledger: Option<Ledger>,
    /// Agents that are counted.
    pub agents: Option<AgentUsage>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Ready, NearLimit, Blocked, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
