//! `AgentPool`: how many agents of which type run, from which queues they take items, and under which limits and isolation.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub use crate::agent_program::{
    AgentProgram, ConfigMapKeyRef, Continue, Dialect, EnvVar, Hooks, InputMode, ModelApi, ProgramFile, RunMode,
};
pub use crate::preflight::{Preflight, PreflightToolset};
pub use crate::sandbox::{
    Changeset, ChangesetDriver, Egress, Isolation, IsolationMode, Loopback, Outputs, Requirement, Sandbox, SeccompProfile, Software,
};
use crate::schema::never_decreases_rule;
use crate::shared::LocalRef;
pub use crate::supervision::{Gang, Intervention, Signal, Supervision, SupervisionRule, ViolatedRule};

/// Desired state of a pool of agents of one type. Permission to edit a pool is as powerful as permission to create pods in its namespace.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "AgentPool",
    plural = "agentpools",
    shortname = "apool",
    category = "spillway",
    namespaced,
    status = "AgentPoolStatus",
    derive = "PartialEq",
    doc = "A fleet of AI coding agents of one type: their program, their number, their queues and their limits.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.agents", label_selector_path = ".status.selector"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be a DNS label of at most 63 characters: it is the prefix of its agents' names and a label value"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.active"),
    printcolumn(name = "Idle", type_ = "integer", json_path = ".status.idle"),
    printcolumn(name = "Work", type_ = "integer", json_path = ".status.workReady"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.workspace) || !has(self.workspace.claimName) || ((has(self.replicas) ? self.replicas : ((has(self.scaling) && has(self.scaling.max)) ? self.scaling.max : 1)) <= 1)")
        .message("workspace.claimName is one volume for one agent: set scaling.max (or replicas) to at most 1, or use workspace.volumeClaimTemplate")
        .field_path(".workspace"),
    validation = Rule::new("!has(self.mode) || self.mode != 'Chat' || !has(self.scaling) || !has(self.scaling.workAware) || !self.scaling.workAware")
        .message("scaling.workAware must be false or unset in a Chat pool: its agents take no items from queues")
        .field_path(".scaling"),
    validation = Rule::new("self.type != 'drone' || !has(self.agent.maxItems) || self.agent.maxItems == 1")
        .message("agent.maxItems must be 1 or unset in a pool of type drone: each drone works on one item")
        .field_path(".agent.maxItems"),
    validation = Rule::new("!has(self.whenEmpty) || self.whenEmpty.action != 'Hibernate' || (has(self.workspace) && has(self.workspace.volumeClaimTemplate))")
        .message("whenEmpty.action Hibernate needs workspace.volumeClaimTemplate: a hibernated agent has no pod and keeps only its own volume")
        .field_path(".whenEmpty"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.software) || !has(self.sandbox.software.requireDigest) || !self.sandbox.software.requireDigest || self.agent.image.matches('@sha256:[0-9a-f]{64}$')")
        .message("agent.image must name a digest (@sha256:...) while sandbox.software.requireDigest is true")
        .field_path(".agent.image"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.changeset) || !has(self.sandbox.changeset.driver) || self.sandbox.changeset.driver != 'Git' || (has(self.workspace) && has(self.workspace.git))")
        .message("sandbox.changeset.driver Git needs workspace.git, which names the repository to clone")
        .field_path(".sandbox.changeset"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.changeset) || !has(self.sandbox.changeset.driver) || self.sandbox.changeset.driver != 'Git' || !has(self.workspace) || !has(self.workspace.git) || !has(self.workspace.git.push)")
        .message("workspace.git.push must be unset with sandbox.changeset.driver Git: Spillway pushes the branch of each item, and agents push nothing")
        .field_path(".workspace"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.changeset) || !has(self.sandbox.changeset.driver) || self.sandbox.changeset.driver != 'Copy' || (has(self.workspace) && has(self.workspace.folder))")
        .message("sandbox.changeset.driver Copy needs workspace.folder, which names the folder to copy")
        .field_path(".sandbox.changeset"),
    validation = Rule::new("!has(self.workspace) || !has(self.workspace.folder) || (has(self.sandbox) && has(self.sandbox.changeset) && has(self.sandbox.changeset.driver) && self.sandbox.changeset.driver == 'Copy')")
        .message("workspace.folder needs sandbox.changeset.driver Copy: each item works in a copy of the folder")
        .field_path(".workspace"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.changeset) || !has(self.sandbox.changeset.driver) || self.sandbox.changeset.driver == 'None' || ((!has(self.mode) || self.mode != 'Chat') && (!has(self.agent.run) || self.agent.run == 'PerItem'))")
        .message("sandbox.changeset.driver needs agent.run PerItem and a pool that is not Chat: each item has a workspace of its own")
        .field_path(".sandbox.changeset"),
    validation = Rule::new("!has(self.models) || !has(self.sandbox) || !has(self.sandbox.outputs) || !has(self.sandbox.outputs.allow) || !self.models.exists(model, self.sandbox.outputs.allow.exists(entry, entry.startsWith(model.origin.lowerAscii().substring(8))))")
        .message("sandbox.outputs.allow must not hold the host of a model: calls that bypass the gateway would not be counted")
        .field_path(".sandbox.outputs"),
    validation = Rule::new("self.type != 'scheduler' || !has(self.supervision) || !has(self.supervision.rules) || !self.supervision.rules.exists(rule, rule.signal in ['TokenBudgetExceeded', 'BudgetNearLimit'] && rule.do == 'Reap')")
        .message("supervision.rules must not use do: Reap with TokenBudgetExceeded or BudgetNearLimit in a pool of type scheduler: use do: Pause")
        .field_path(".supervision.rules"),
    validation = Rule::new("!has(self.external) || !has(self.mode) || self.mode != 'Chat'")
        .message("external must be unset in a Chat pool: people cannot attach to a process outside the cluster")
        .field_path(".external"),
    validation = Rule::new("!has(self.external) || !has(self.preflight) || !has(self.preflight.requireSandbox) || !self.preflight.requireSandbox")
        .message("preflight.requireSandbox must not be true in a pool with external: nothing isolates a program outside the cluster")
        .field_path(".external"),
)]
pub struct AgentPoolSpec {
    /// Type of the agents. Known types are worker, drone, scheduler, prd, buddy and free; any other DNS label is allowed. The type decides
    /// the defaults of `scaling.min`, `scaling.workAware` and `agent.maxItems`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub type_: String,
    /// How the agents get their tasks: from queues (`Perseverance`, the default), or from a person who attaches to the agent (`Chat`).
    #[serde(default)]
    #[schemars(default)]
    pub mode: PoolMode,
    /// Number of agents. The defaults of some fields depend on `type`.
    pub scaling: Option<Scaling>,
    /// Exact number of agents, as `kubectl scale` sets it. While it is set, `scaling` and `whenEmpty` are ignored. If unset, the pool
    /// scales automatically.
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,
    /// WorkQueues from which the agents take items, in order of priority. An edit takes effect at the next claim.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub queues: Option<Vec<QueueRef>>,
    /// Action for agents without work in a work-aware pool. Defaults to `whenEmpty` of the first queue.
    pub when_empty: Option<WhenEmpty>,
    /// Limits of each agent: its tokens, its time limits and its child agents.
    pub bulkhead: Option<Bulkhead>,
    /// Budget that limits the pool. If unset, the Budget `default` applies if it exists. A named Budget that does not exist blocks the
    /// pool.
    pub budget_ref: Option<LocalRef>,
    /// Queues to which the agents may submit items, and pools in which they may spawn agents. If unset, the agents may do neither.
    pub may: Option<AgentPermissions>,
    /// Program that each agent runs.
    pub agent: AgentProgram,
    /// Model APIs that the agents may call. Spillway's gateway forwards the calls, adds the credential and counts the tokens.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub models: Option<Vec<ModelApi>>,
    /// Working directory of each agent (`/workspace`). If unset, it is an empty directory.
    pub workspace: Option<Workspace>,
    /// Isolation of each agent's program, and the hosts that it can reach.
    pub sandbox: Option<Sandbox>,
    /// Toolsets: privileged programs outside the sandbox that the agents may call.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub toolsets: Option<Vec<LocalRef>>,
    /// How the agents are monitored, and which actions the supervisor takes.
    pub supervision: Option<Supervision>,
    /// Checks that an agent must pass before it gets work.
    pub preflight: Option<Preflight>,
    /// Scheduling and other settings of the pods.
    pub scheduling: Option<Scheduling>,
    /// Agents outside the cluster (`spillway-agent run`), in addition to those that the pool creates. If unset, none are allowed, and
    /// running ones must leave. Their user chooses the program: image, command, hooks, preflight, workspace and sandbox of the pool do not
    /// apply. Queues, models, tokens, time-outs and `may` apply.
    pub external: Option<ExternalAgents>,
}

/// Agents outside the cluster. Nothing isolates their programs, and the payloads of the queues' items leave the cluster. A user who
/// registers an agent needs the RBAC verb `create` on `agentpools/external`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAgents {
    /// Maximum number of these agents at a time. `scaling`, `replicas` and the agent limits of Budgets do not count them. A lower number
    /// does not end running agents.
    #[schemars(range(min = 1, max = 100))]
    pub max_agents: i32,
}

/// How the agents of a pool get their tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PoolMode {
    /// The agents take items from queues.
    #[default]
    Perseverance,
    /// A person attaches to an agent.
    Chat,
}

/// Number of agents.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.min) || self.min <= (has(self.max) ? self.max : 1)")
        .message("min must not be greater than max (an unset max is 1)")
        .field_path(".min"),
)]
pub struct Scaling {
    /// Minimum number of agents. A work-aware pool still scales to 0 without work. Defaults to 0, for type scheduler to 1.
    #[schemars(range(min = 0, max = 10000))]
    pub min: Option<i32>,
    /// Maximum number of agents. 0 drains the pool. Defaults to 1.
    #[schemars(range(min = 0, max = 10000))]
    pub max: Option<i32>,
    /// Whether the number of agents follows the work in the queues. Defaults to true for types worker and drone, else to false.
    pub work_aware: Option<bool>,
    /// Number of items for which the pool runs one agent. Defaults to 1.
    #[schemars(range(min = 1, max = 1000))]
    pub items_per_agent: Option<i32>,
    /// Number of agents in addition to those that the work needs. Defaults to 0.
    #[schemars(range(min = 0, max = 1000))]
    pub idle_buffer: Option<i32>,
    /// Seconds for which a lower target must hold before the pool removes agents. Defaults to 30.
    #[schemars(range(min = 0, max = 86400))]
    pub cooldown_seconds: Option<i32>,
}

/// A queue from which the pool takes items.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueRef {
    /// Name of the WorkQueue.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Types of items that the pool takes from the queue. If unset or empty, it takes all types.
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub types: Option<Vec<String>>,
}

/// Action for agents without work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhenEmpty {
    /// Action. `Hibernate` deletes the pod and keeps the volume until there is work. `Idle` (default) and `Terminate` both end the agents
    /// of a work-aware pool.
    #[serde(default)]
    #[schemars(default)]
    pub action: EmptyAction,
    /// Seconds without work before the action is taken. Defaults to 60.
    #[serde(default = "sixty")]
    #[schemars(default = "sixty", range(min = 0, max = 86400))]
    pub after_seconds: i32,
}

fn sixty() -> i32 {
    60
}

/// Action for an agent whose queues are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum EmptyAction {
    /// The agent stays without work. In a work-aware pool it ends, as with `Terminate`.
    #[default]
    Idle,
    /// The agent gives up its pod, keeps its volume and identity, and returns when there is work. It needs `workspace.volumeClaimTemplate`;
    /// in a pool without one it acts as `Terminate`.
    Hibernate,
    /// The agent ends.
    Terminate,
}

/// Limits of each agent (level 2 of the bulkheads).
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.commandTimeoutSeconds) || self.commandTimeoutSeconds <= (has(self.maxCommandTimeoutSeconds) ? self.maxCommandTimeoutSeconds : 3600)")
        .message("commandTimeoutSeconds must not be greater than maxCommandTimeoutSeconds (3600 when unset)")
        .field_path(".commandTimeoutSeconds"),
)]
pub struct Bulkhead {
    /// Tokens that the model calls of an agent may spend in its life. Defaults to the value of the ClusterBudget, else to 10000.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub lifetime_tokens: Option<i64>,
    /// Tokens that an agent gets automatically when its lifetime tokens are spent, if the pool's budget has as many. Defaults to the value
    /// of the ClusterBudget, else to none.
    pub top_up: Option<TopUp>,
    /// Time limit in seconds of a command that sets none itself. Defaults to 120. It also applies to shells that a program starts;
    /// agent.untimedCommands lists exceptions.
    #[schemars(range(min = 1, max = 86400))]
    pub command_timeout_seconds: Option<i32>,
    /// Maximum time limit in seconds that a command may set. Defaults to 3600.
    #[schemars(range(min = 1, max = 86400))]
    pub max_command_timeout_seconds: Option<i32>,
    /// Time limit in seconds of a model turn, which is one model call with its answer. Defaults to 600.
    #[schemars(range(min = 1, max = 86400))]
    pub model_turn_timeout_seconds: Option<i32>,
    /// Number of time-outs (signal OperationTimeout) in an agent's life that raise the signal ChronicTimeout. By default the supervisor then
    /// ends the agent by force. Defaults to 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_timeouts: Option<i32>,
    /// Maximum number of running agents that an agent may have spawned in the pools of `may.spawnIn`. Defaults to 0.
    #[schemars(range(min = 0, max = 1000))]
    pub max_child_agents: Option<i32>,
}

/// Additional tokens for an agent whose lifetime tokens are spent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopUp {
    /// Tokens of each top-up.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: i64,
    /// Maximum number of top-ups.
    #[schemars(range(min = 0, max = 1000))]
    pub max: i32,
}

/// Queues and pools in which the agents may create items and agents.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentPermissions {
    /// Queues to which the agents may submit items.
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub submit_to: Option<Vec<String>>,
    /// Pools in which the agents may spawn agents.
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub spawn_in: Option<Vec<String>>,
}

/// Working directory of each agent. Exactly one field must be set.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.empty), has(self.git), has(self.folder), has(self.volumeClaimTemplate), has(self.claimName)].filter(x, x).size() == 1")
        .message("workspace must set exactly one of empty, git, folder, volumeClaimTemplate and claimName"),
)]
pub struct Workspace {
    /// An empty directory that is deleted with the pod.
    pub empty: Option<EmptyWorkspace>,
    /// A git repository that the agents work on. Each agent has a clone in an empty directory before its program starts. With
    /// `sandbox.changeset`, each item has one. The image must contain git.
    pub git: Option<GitWorkspace>,
    /// A folder of a volume that the agents of the pool change. Each item has a copy of it in an empty directory, and its changes are
    /// made in the folder together or not at all. It needs `sandbox.changeset.driver: Copy`.
    pub folder: Option<FolderWorkspace>,
    /// Spec of a PersistentVolumeClaim. Each agent gets a volume of its own.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::claim_spec")]
    pub volume_claim_template: Option<PersistentVolumeClaimSpec>,
    /// Name of an existing PersistentVolumeClaim. The pool may then have at most one agent.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
}

/// An empty directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyWorkspace {}

/// A folder of a volume. Only the sidecars of the agents mount the volume.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FolderWorkspace {
    /// Name of an existing PersistentVolumeClaim. Agents on several nodes need the access mode ReadWriteMany. The group 10001 must be
    /// able to write the volume: Kubernetes sets this for volumes that support it.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Path of the folder in the volume, without `.` and `..`. It is created if it is missing. Defaults to the whole volume.
    #[schemars(
        length(min = 1, max = 1024),
        regex(
            pattern = "^([A-Za-z0-9_-][A-Za-z0-9._-]*|[.][A-Za-z0-9_-][A-Za-z0-9._-]*)(/([A-Za-z0-9_-][A-Za-z0-9._-]*|[.][A-Za-z0-9_-][A-Za-z0-9._-]*))*$"
        )
    )]
    pub path: Option<String>,
}

/// A git repository. The agents reach it through the gateway, and no other repository with its credential.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.allowOverwrite) && self.allowOverwrite) || has(self.push)")
        .message("allowOverwrite needs push, which names the refs that may be pushed")
        .field_path(".allowOverwrite"),
    validation = Rule::new("!(has(self.allowDelete) && self.allowDelete) || has(self.push)")
        .message("allowDelete needs push, which names the refs that may be deleted")
        .field_path(".allowDelete"),
)]
pub struct GitWorkspace {
    /// URL of the repository: https, a full host name, and a path, without user, password and query. The platform lists the servers
    /// that can be used (`git.origins` in the values of the chart).
    #[schemars(
        length(min = 9, max = 1024),
        regex(
            pattern = "^https://([a-z0-9]([-a-z0-9]*[a-z0-9])?\\.)+[a-z]([-a-z0-9]*[a-z0-9])?(:[1-9][0-9]{0,4})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)+$"
        )
    )]
    pub remote: String,
    /// Branch, tag or commit. Defaults to the default branch.
    #[serde(rename = "ref")]
    #[schemars(length(min = 1, max = 200), regex(pattern = "^[A-Za-z0-9_][A-Za-z0-9._/@+-]*$"))]
    pub ref_: Option<String>,
    /// Number of commits of the branch to fetch. If unset, all commits of all branches are fetched.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub depth: Option<i32>,
    /// Pattern of the refs that may be pushed. If unset, none may be pushed. A branch such as `agents/*`, or full names such as
    /// `refs/tags/agents-*`. `*` stands for any characters, and `{agent}`, `{pool}` and `{item}` for names. A pattern that matches
    /// all branches is refused.
    #[schemars(length(min = 1, max = 200), regex(pattern = "^[A-Za-z0-9_{][A-Za-z0-9._/@+{}*-]*$"))]
    pub push: Option<String>,
    /// Whether pushes may move refs that exist, also backwards: a forced push cannot be told from another one. Defaults to false:
    /// pushes make new refs only.
    pub allow_overwrite: Option<bool>,
    /// Whether pushes may delete refs. Defaults to false.
    pub allow_delete: Option<bool>,
    /// Secret with the credential, of type `spillway.dev/git-credential` with the keys `origin`, `token` and optionally `username`.
    /// Only the gateway reads it.
    pub credentials_ref: Option<LocalRef>,
}

/// Scheduling and other settings of the pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::labels")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that the pods tolerate, as in a pod.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::tolerations")]
    pub tolerations: Option<Vec<Toleration>>,
    /// PriorityClass of the pods.
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// RuntimeClass of the pods.
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// ServiceAccount of the pods. Its token is never mounted.
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets with which the kubelet pulls the image. They are never mounted.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Option<Vec<LocalRef>>,
}

/// Observed state of a pool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
    validation = never_decreases_rule("spawned")
        .message("spawned must not fall: a sequence number is never used twice"),
    validation = never_decreases_rule("collectedBelow")
        .message("collectedBelow must not fall: sequence numbers below it are never used again"),
)]
pub struct AgentPoolStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Desired number of agents.
    pub desired: Option<i32>,
    /// Number of agents that the pool created and that have not ended.
    pub agents: Option<i32>,
    /// Number of these agents that hold an item.
    pub active: Option<i32>,
    /// Number of these agents that are registered and hold no item.
    pub idle: Option<i32>,
    /// Number of hibernated agents. They have no pod, and `agents` does not count them.
    pub hibernated: Option<i32>,
    /// Label selector of the pods, for the scale subresource.
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// Number of sequence numbers allocated so far. It is the sequence number of the next Agent.
    pub spawned: Option<i64>,
    /// Each sequence number below this one was seen in use once and is never used again.
    pub collected_below: Option<i64>,
    /// Number of ready items that the pool would take.
    pub work_ready: Option<i64>,
    /// Number of items that the pool's agents hold.
    pub work_leased: Option<i64>,
    /// Reason for the desired number of agents, or for not reaching it.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Ready, Reconciling, Stalled, ScaledToZero, AtMax, Blocked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
