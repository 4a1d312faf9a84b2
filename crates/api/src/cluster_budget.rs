//! `ClusterBudget`: limits above all projects (level 0). A team never owns the limit that binds it. Therefore the use of each namespace is
//! recorded here, in the status.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::Bulkhead;
use crate::artifact::ArtifactLimits;
use crate::breaker::{CommandsGuard, ModelsGuard, WorkGuard};
use crate::budget::{
    AgentLimits, AgentUsage, Ledger, RequestLimits, ReservationUsage, Threshold, Tightest, TokenPolicy, WindowStatus, WorkLimits,
};
use crate::schema::never_decreases_rule;

/// Desired limits of all selected namespaces.
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
    doc = "Limits of many projects: the token rate that protects the API keys, limits of each namespace, and defaults.",
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
    /// Label selector for the namespaces; `{}` selects all. If two ClusterBudgets select one namespace, the newer one is Stalled, and the
    /// older one limits its tokens.
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub namespace_selector: LabelSelector,
    /// Token limits of all these namespaces together. They protect the API keys.
    pub tokens: Option<TokenPolicy>,
    /// Limits of each of these namespaces.
    pub per_namespace: Option<PerNamespace>,
    /// Limit on the agents of all these namespaces together.
    pub agents: Option<TotalAgents>,
    /// Limit on the number of these namespaces that have pools.
    pub projects: Option<Projects>,
    /// Limits on the compute of all agent pods together.
    pub compute: Option<TotalCompute>,
    /// Defaults for fields that a namespace or a pool leaves unset.
    pub defaults: Option<Defaults>,
}

/// Limits of each namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerNamespace {
    /// Limits on the tokens of model calls.
    pub tokens: Option<TokenPolicy>,
    /// Limits on the number of agents at a time.
    pub agents: Option<AgentLimits>,
    /// Limits on unfinished items.
    pub work: Option<WorkLimits>,
    /// Limits on the artifacts of items.
    pub artifacts: Option<ArtifactLimits>,
}

/// Limit on the agents of all namespaces.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TotalAgents {
    /// Maximum number of agents with a pod. If unset, there is no limit.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_total: Option<i32>,
}

/// Limit on projects, which are namespaces with a pool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Projects {
    /// Maximum number of namespaces with a pool. If unset, there is no limit.
    #[schemars(range(min = 0, max = 200))]
    pub max: Option<i32>,
}

/// Limits on the compute of all agent pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TotalCompute {
    /// Maximum sum of the memory limits. If unset, there is no limit.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub memory: Option<Quantity>,
    /// Maximum sum of the volumes. If unset, there is no limit.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub storage: Option<Quantity>,
}

/// Defaults for fields that a namespace or a pool leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Defaults {
    /// Defaults for pools.
    pub bulkhead: Option<Bulkhead>,
    /// Defaults for Budgets.
    pub budget: Option<BudgetDefaults>,
    /// Defaults for Breakers.
    pub breaker: Option<BreakerDefaults>,
}

/// Defaults for fields that a Budget leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetDefaults {
    /// Limits on the tokens of model calls.
    pub tokens: Option<TokenPolicy>,
    /// Limits on the number of agents at a time.
    pub agents: Option<AgentLimits>,
    /// Limits on unfinished items.
    pub work: Option<WorkLimits>,
    /// Limits on model requests.
    pub requests: Option<RequestLimits>,
    /// Limits on the artifacts of items.
    pub artifacts: Option<ArtifactLimits>,
    /// Actions at percentages of a limit. Defaults to 80 Warn, 90 Notify and 100 Pause.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["percent", "action"])
    )]
    pub thresholds: Option<Vec<Threshold>>,
}

/// Defaults for fields that a Breaker leaves unset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerDefaults {
    /// Guard of each pool against runaway retries.
    pub work: Option<WorkGuard>,
    /// Guard of all pools of a project together against runaway retries.
    pub project: Option<WorkGuard>,
    /// Guard against hanging commands.
    pub commands: Option<CommandsGuard>,
    /// Guard against failing model providers.
    pub models: Option<ModelsGuard>,
}

/// Use of `perNamespace` by one namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceUsage {
    /// Name of the namespace.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Use of its limits in each window.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// Use of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// Agents of the namespace that are counted.
    pub agents: Option<AgentUsage>,
}

/// Observed state of a cluster budget.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct ClusterBudgetStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Windows of all namespaces together.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "id"])
    )]
    pub windows: Option<Vec<WindowStatus>>,
    /// Use of its reservations.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub reservations: Option<Vec<ReservationUsage>>,
    /// Use by each namespace.
    #[schemars(length(max = 400), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub namespaces: Option<Vec<NamespaceUsage>>,
    /// The window that is nearest to its limit.
    pub tightest: Option<Tightest>,
    /// Records with which the ledger counts each call exactly once.
    pub ledger: Option<Ledger>,
    /// Agents that are counted.
    pub agents: Option<AgentUsage>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Ready, NearLimit, Blocked, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
