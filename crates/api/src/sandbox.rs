//! The sandbox settings that people write. Each combination of fields is legal or is refused with a reason.
//!
//! A pool sets the sandbox; an item may only narrow it. This module does not decide how a node enforces the fields.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::command_length_rule;

/// Sandbox of each agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.outputs) || !has(self.outputs.loopback) || self.outputs.loopback != 'LinkOnly' || !has(self.isolation) || !has(self.isolation.landlock) || self.isolation.landlock != 'Disabled'")
        .message("loopback: LinkOnly needs Landlock: set isolation.landlock to Preferred or Required")
        .field_path(".outputs"),
    validation = Rule::new("!has(self.outputs) || !has(self.outputs.loopback) || self.outputs.loopback != 'LinkOnly' || !has(self.isolation) || !has(self.isolation.seccomp) || self.isolation.seccomp != 'RuntimeDefault'")
        .message("loopback: LinkOnly needs the filter of system calls: set isolation.seccomp to AgentStrict or Localhost, or leave it unset")
        .field_path(".outputs"),
)]
pub struct Sandbox {
    /// How an agent's changes to the workspace are isolated until they are accepted.
    pub changeset: Option<Changeset>,
    /// Isolation of the agent from the node.
    pub isolation: Option<Isolation>,
    /// Destinations that the pod may reach in addition to the models of its pool.
    pub outputs: Option<Outputs>,
    /// Software that may run.
    pub software: Option<Software>,
}

/// How changes are isolated.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = command_length_rule("verify", 16_384),
    validation = Rule::new("(has(self.driver) && self.driver != 'None') || !(has(self.branch) || has(self.maxBytes) || has(self.verifySeconds) || (has(self.protect) && self.protect.size() > 0) || (has(self.verify) && self.verify.size() > 0))")
        .message("branch, protect, maxBytes, verify and verifySeconds need a driver: Git or Copy")
        .field_path(".driver"),
    validation = Rule::new("!has(self.branch) || !has(self.driver) || self.driver != 'Copy'")
        .message("branch must be unset with driver: Copy, whose changes go to a folder")
        .field_path(".branch"),
)]
pub struct Changeset {
    /// Method: `Git` (a fresh clone of `workspace.git` for each item, and a pushed branch as the result), `Copy` (a fresh copy of
    /// `workspace.folder` for each item, whose changes are made in the folder) or `None` (the default).
    pub driver: Option<ChangesetDriver>,
    /// Branch to which the changes of an item are pushed, with `{agent}`, `{pool}` and `{item}` for names. Defaults to
    /// `spillway/{item}`. With a fixed name, items that began from the same commit conflict.
    #[schemars(length(min = 1, max = 200), regex(pattern = "^[A-Za-z0-9_{][A-Za-z0-9._/@+{}-]*$"))]
    pub branch: Option<String>,
    /// Paths that must not change, relative to the repository or the folder. A path stands for all below it, and `*` for any characters of a name.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256), regex(pattern = "^[^/].*$")))]
    pub protect: Option<Vec<String>>,
    /// Maximum number of bytes of the added and changed files together. If unset, only the platform's limit of a push, or the size of the
    /// volumes, applies.
    #[schemars(range(min = 1))]
    pub max_bytes: Option<i64>,
    /// Command that must exit 0 before the changes of an item are accepted. It runs in the workspace, after the program.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub verify: Option<Vec<String>>,
    /// Time limit in seconds of `verify`. Defaults to 600.
    #[schemars(range(min = 1, max = 86400))]
    pub verify_seconds: Option<i32>,
}

/// Method that isolates changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum ChangesetDriver {
    /// A fresh clone for each item.
    Git,
    /// A fresh copy of a folder for each item.
    Copy,
    /// No isolation.
    None,
}

/// Isolation of the agent from the node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// Whether Landlock, an access control of the Linux kernel, restricts the program and all that it starts. It may then read and
    /// execute its image, write to its own folders, and signal its own processes alone. Defaults to Preferred. With Required, the program does
    /// not start on a node without Landlock (Linux 6.2 or newer has it).
    pub landlock: Option<Requirement>,
    /// Limits on the system calls of the program and all that it starts. If unset, Spillway's own filter applies where the node can.
    /// With AgentStrict, the program does not start without that filter; with RuntimeDefault it has none. With Localhost, the program does
    /// not start without the filter, and the node applies the same policy to the whole container: pods run only on nodes on which the
    /// platform has installed it. In all other cases the container has the profile RuntimeDefault.
    pub seccomp: Option<SeccompProfile>,
    /// Whether the pod has its own user namespace (`hostUsers: false`). Defaults to Preferred: only if each node that can run the pod
    /// supports it. With Required, the program does not start in a pod that got none.
    pub user_namespace: Option<Requirement>,
    /// Whether the sandbox refuses (`Enforce`, the default) or refuses nothing and counts what it would refuse (`Observe`): system calls and
    /// uses of files. With Observe, `landlock` and `seccomp` say what would be refused, and no node profile is used.
    pub mode: Option<IsolationMode>,
}

/// Whether the sandbox refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum IsolationMode {
    /// It refuses.
    Enforce,
    /// It counts what it would refuse.
    Observe,
}

/// How strongly a guarantee is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Requirement {
    /// The agent does not run without it.
    Required,
    /// It is used where it is available.
    Preferred,
    /// It is not used.
    Disabled,
}

/// A seccomp profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum SeccompProfile {
    /// Spillway's own filter around the agent's commands.
    AgentStrict,
    /// The profile of the container runtime.
    RuntimeDefault,
    /// Spillway's own filter, and the same policy as a profile that is installed on the node.
    Localhost,
}

/// Destinations that the pod may reach.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.allow) || self.allow.size() == 0 || (has(self.egress) && self.egress == 'AllowList')")
        .message("allow needs egress: AllowList")
        .field_path(".allow"),
    validation = Rule::new("!has(self.allowSets) || self.allowSets.size() == 0 || (has(self.egress) && self.egress == 'AllowList')")
        .message("allowSets needs egress: AllowList")
        .field_path(".allowSets"),
    validation = Rule::new("!has(self.egress) || self.egress != 'AllowList' || (has(self.allow) && self.allow.size() > 0) || (has(self.allowSets) && self.allowSets.size() > 0)")
        .message("egress: AllowList needs an entry in allow or allowSets; use egress: None to open no destination")
        .field_path(".egress"),
)]
pub struct Outputs {
    /// Hosts that can be reached: none (`None`, the default), those in `allow` and `allowSets` (`AllowList`), or port 443 of all public
    /// hosts (`Open`). The platform may deny some of them to every pool.
    pub egress: Option<Egress>,
    /// Hosts that can be reached with egress AllowList, as `host:port` or `*.domain:port`. The wildcard is one label. A host is a full
    /// name and not an address, and its addresses must be public unless the platform allows private ones.
    #[schemars(
        length(max = 64),
        inner(
            length(min = 3, max = 260),
            regex(pattern = "^(\\*\\.)?([a-z0-9]([-a-z0-9]*[a-z0-9])?\\.)+[a-z]([-a-z0-9]*[a-z0-9])?:[1-9][0-9]{0,4}$")
        )
    )]
    pub allow: Option<Vec<String>>,
    /// Names of lists of hosts that the platform defines (`egress.allowSets` in the values of the chart).
    #[schemars(length(max = 16), inner(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")))]
    pub allow_sets: Option<Vec<String>>,
    /// Loopback ports of the pod that can be reached: all (`Open`, the default), or only those of Spillway's sidecar
    /// (`LinkOnly`, which needs Landlock of Linux 6.7 or newer). With LinkOnly the program cannot bind a TCP port either.
    pub loopback: Option<Loopback>,
}

/// Hosts that can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Egress {
    /// No host.
    None,
    /// The listed hosts.
    AllowList,
    /// All public hosts.
    Open,
}

/// Loopback ports that can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum Loopback {
    /// All ports of the pod.
    Open,
    /// Only the ports of Spillway's sidecar.
    LinkOnly,
}

/// Software that may run.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Software {
    /// Whether an image without a digest is refused. Defaults to false.
    pub require_digest: Option<bool>,
    /// Absolute paths whose files the program may read and execute, in addition to its image: what something else mounts into the pod is
    /// denied otherwise.
    #[schemars(length(max = 16), inner(length(min = 2, max = 256), regex(pattern = "^(/([^/.\\s][^/\\s]*|\\.[^/.\\s][^/\\s]*))+$")))]
    pub path: Option<Vec<String>>,
}
