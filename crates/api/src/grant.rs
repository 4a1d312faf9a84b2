//! `Grant`: additional tokens that a person gives one target. It is an object of its own, so that a repeated create is harmless.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::immutable_fields_rule;

/// Tokens in addition to a limit. Only `untilTime` may be changed, because a ledger counts each grant once.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "Grant",
    plural = "grants",
    category = "spillway",
    namespaced,
    status = "GrantStatus",
    derive = "PartialEq",
    doc = "Tokens that a person gives an Agent, a Budget or a ClusterBudget in addition to its limit.",
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetRef.name"),
    printcolumn(name = "Tokens", type_ = "integer", json_path = ".spec.tokens"),
    printcolumn(name = "Until", type_ = "string", json_path = ".spec.untilTime"),
    printcolumn(name = "Applied", type_ = "string", json_path = r#".status.conditions[?(@.type=="Applied")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.targetRef.kind == 'Agent') == !has(self.limitName)")
        .message("limitName must be set for a Budget or ClusterBudget, and must be unset for an Agent, which has only its lifetime limit")
        .field_path(".limitName"),
    validation = immutable_fields_rule(&["targetRef", "limitName", "tokens"])
        .message("targetRef, limitName and tokens cannot be changed: create another Grant"),
)]
pub struct GrantSpec {
    /// Object that gets the tokens.
    pub target_ref: GrantTarget,
    /// Name of the limit of the Budget or ClusterBudget. It must be unset for an Agent.
    #[schemars(length(min = 1, max = 63))]
    pub limit_name: Option<String>,
    /// Number of tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: i64,
    /// Time until which the tokens may be spent. If unset, until the end of the window, or of the Agent's life.
    pub until_time: Option<Time>,
}

/// Target of a Grant. It is in the Grant's namespace, unless it is a ClusterBudget.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantTarget {
    /// Kind of the object.
    pub kind: GrantTargetKind,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kind of object that can get tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum GrantTargetKind {
    /// The lifetime tokens of an agent.
    Agent,
    /// A limit of a Budget.
    Budget,
    /// A limit of a ClusterBudget.
    ClusterBudget,
}

/// Observed state of a grant.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Conditions: Applied, Expired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
