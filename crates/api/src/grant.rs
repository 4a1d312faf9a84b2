//! `Grant`: more tokens for one target, given by a person. An object of its own, so that a repeat is harmless.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::unchanged;

/// Tokens on top of a limit. Only its end may be changed: a ledger counts each grant once.
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
    doc = "Tokens that a person gives an Agent, a Budget or a ClusterBudget on top of its limit.",
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetRef.name"),
    printcolumn(name = "Tokens", type_ = "integer", json_path = ".spec.tokens"),
    printcolumn(name = "Until", type_ = "string", json_path = ".spec.untilTime"),
    printcolumn(name = "Applied", type_ = "string", json_path = r#".status.conditions[?(@.type=="Applied")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.targetRef.kind == 'Agent') == !has(self.limitName)")
        .message("limitName names the limit of a Budget or ClusterBudget and must be set for them; an Agent has only its lifetime: leave it out")
        .field_path(".limitName"),
    validation = unchanged(&["targetRef", "limitName", "tokens"])
        .message("targetRef, limitName and tokens cannot be changed: make another Grant"),
)]
pub struct GrantSpec {
    /// Who gets them.
    pub target_ref: GrantTarget,
    /// Which limit of a Budget or ClusterBudget is raised.
    #[schemars(length(min = 1, max = 63))]
    pub limit_name: Option<String>,
    /// How many.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: i64,
    /// Until when they may be spent; unset: to the end of the window, for an Agent of its life.
    pub until_time: Option<Time>,
}

/// The target of a Grant: in its own namespace, unless it is a ClusterBudget.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantTarget {
    /// Its kind.
    pub kind: GrantTargetKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What can be given tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum GrantTargetKind {
    /// An agent's lifetime.
    Agent,
    /// A limit of a Budget.
    Budget,
    /// A limit of a ClusterBudget.
    ClusterBudget,
}

/// What Spillway says of a grant.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// Applied, Expired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
