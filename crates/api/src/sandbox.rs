//! The sandbox as people write it: five primitives, each a field, any combination legal or refused with a reason.
//!
//! A pool sets it; an item may only narrow it. What the fields become on a node is not decided here.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::short_command;

/// The sandbox of each agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// How changes are kept apart until they are accepted.
    pub changeset: Option<Changeset>,
    /// What isolates the agent from the node.
    pub isolation: Option<Isolation>,
    /// What may leave the pod. Not supported by this version: agents reach the models of their pool alone.
    pub outputs: Option<Outputs>,
    /// Which software may run.
    pub software: Option<Software>,
}

/// How changes are kept apart.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = short_command("verify", 16_384))]
pub struct Changeset {
    /// The means. Default None. Git and Copy are not supported by this version.
    pub driver: Option<ChangesetDriver>,
    /// Paths that may not change. Not supported by this version.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub protect: Option<Vec<String>>,
    /// The most bytes a changeset may hold. Not supported by this version.
    #[schemars(range(min = 1))]
    pub max_bytes: Option<i64>,
    /// Command that must exit 0 before a changeset is accepted. Not supported by this version.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub verify: Option<Vec<String>>,
}

/// The means of a changeset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::described_where_it_is_used)]
pub enum ChangesetDriver {
    /// A fresh clone per item.
    Git,
    /// A copy of the workspace.
    Copy,
    /// None.
    None,
}

/// What isolates the agent from the node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// Landlock. Unset: taken where it can be had. Required is not supported by this version.
    pub landlock: Option<Requirement>,
    /// The seccomp profile of the pod and its commands. Default RuntimeDefault. AgentStrict and Localhost are not supported by this
    /// version.
    pub seccomp: Option<SeccompProfile>,
    /// A user namespace of the pod's own (hostUsers: false). Default Preferred: where every node that can take the pod supports it.
    pub user_namespace: Option<Requirement>,
}

/// How much a guarantee is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::described_where_it_is_used)]
pub enum Requirement {
    /// Without it the agent does not run.
    Required,
    /// Taken where it can be had.
    Preferred,
    /// Not taken.
    Disabled,
}

/// A seccomp profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::described_where_it_is_used)]
pub enum SeccompProfile {
    /// Spillway's own filter around the agent's commands.
    AgentStrict,
    /// The container runtime's.
    RuntimeDefault,
    /// A profile installed on the node.
    Localhost,
}

/// What may leave the pod.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.allow) || self.allow.size() == 0 || (has(self.egress) && self.egress == 'AllowList')")
        .message("allow needs egress: AllowList")
        .field_path(".allow"),
)]
pub struct Outputs {
    /// Other hosts than models, git remote and tools. Default None.
    pub egress: Option<Egress>,
    /// Hosts, as `host:port` or `*.domain:port`, with egress AllowList.
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 260), regex(pattern = "^(\\*\\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?:[0-9]{1,5}$"))
    )]
    pub allow: Option<Vec<String>>,
    /// Loopback ports of the pod. Default Open.
    pub loopback: Option<Loopback>,
}

/// Which hosts can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Egress {
    /// None.
    None,
    /// Those listed.
    AllowList,
    /// All public ones.
    Open,
}

/// Which loopback ports can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Loopback {
    /// All of the pod's own.
    Open,
    /// Only those of Spillway's sidecar.
    LinkOnly,
}

/// Which software may run.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Software {
    /// Refuse an image that is not named by digest. Default false.
    pub require_digest: Option<bool>,
    /// More folders with programs. Not supported by this version.
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    pub path: Option<Vec<String>>,
}
