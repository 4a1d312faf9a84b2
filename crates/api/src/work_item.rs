//! `WorkItem`: one task. A person or an agent writes its spec once; Spillway records its progress in its status.
//!
//! The schema alone ensures the following. The task does not change while an agent holds it. A cancellation is not undone. The redrive
//! count, the released epoch, the epoch of the lease and the epoch of the writer never fall.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::artifact::{ItemArtifact, MAX_ARTIFACTS};
use crate::budget::Ledger;
use crate::item_changeset::ItemChangeset;
use crate::sandbox::{Changeset, Sandbox};
use crate::schema::{immutable_fields_rule, never_decreases_rule};
use crate::shared::LocalRef;
use crate::work_queue::ItemPolicy;

/// Desired state of one task. It is immutable except for suspend, priority, cancelRequested, redrives, resumePause and releasedEpoch.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "WorkItem",
    plural = "workitems",
    shortname = "wi",
    category = "spillway",
    namespaced,
    status = "WorkItemStatus",
    derive = "PartialEq",
    doc = "One task for an AI coding agent: its payload, its deadline, and the items that must end before it.",
    selectable = ".status.phase",
    selectable = ".spec.queueRef.name",
    selectable = ".spec.group",
    validation = Rule::new("!has(self.spec.dependsOn) || !self.spec.dependsOn.exists(item, item.name == self.metadata.name)")
        .message("dependsOn must not name the item itself")
        .field_path(".spec.dependsOn"),
    printcolumn(name = "Queue", type_ = "string", json_path = ".status.queue"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.lease.agent"),
    printcolumn(name = "Attempts", type_ = "integer", json_path = ".status.attempts"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.queueRef) || has(self.type)")
        .message("queueRef or type must be set: an item goes to the queue it names, or is routed by its type"),
    validation = immutable_fields_rule(&["queueRef", "type", "group", "concurrencyKey", "dedupKey", "plan"])
        .message("queueRef, type, group, concurrencyKey, dedupKey and plan cannot be changed: submit another item"),
    validation = immutable_fields_rule(&["payload", "submitTime", "notBeforeTime", "deadlineTime"])
        .message("payload, submitTime, notBeforeTime and deadlineTime cannot be changed: submit another item"),
    validation = immutable_fields_rule(&["dependsOn", "onDependencyFailure", "requires", "bulkhead", "agentSelector", "notifyOn", "overrides"])
        .message("dependsOn, onDependencyFailure, requires, bulkhead, agentSelector, notifyOn and overrides cannot be changed: submit another item"),
    validation = Rule::new("!has(oldSelf.cancelRequested) || !oldSelf.cancelRequested || (has(self.cancelRequested) && self.cancelRequested)")
        .message("cancelRequested cannot be undone: submit another item")
        .field_path(".cancelRequested"),
    validation = never_decreases_rule("redrives")
        .message("redrives must not fall: it counts how many times the item is started again"),
    validation = never_decreases_rule("releasedEpoch")
        .message("releasedEpoch must not fall: a lease that was released stays released"),
    validation = Rule::new("!has(self.notBeforeTime) || !has(self.deadlineTime) || self.notBeforeTime < self.deadlineTime")
        .message("notBeforeTime must be before deadlineTime")
        .field_path(".notBeforeTime"),
)]
pub struct WorkItemSpec {
    /// WorkQueue of the item. If unset, the queue that accepts its type, else the default queue.
    pub queue_ref: Option<LocalRef>,
    /// Type of the work.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub type_: Option<String>,
    /// Priority within the queue. Items with a higher number are claimed first. Defaults to 0.
    #[serde(default)]
    #[schemars(default, range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Group of items that are cancelled together.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub group: Option<String>,
    /// Key that limits concurrency: agents hold at most `maxLeasedPerKey` items of the queue with the same key at a time.
    #[schemars(length(min = 1, max = 253))]
    pub concurrency_key: Option<String>,
    /// Deduplication key: at most one item with the same key exists in the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub dedup_key: Option<String>,
    /// Plan of the item. The items of a plan wait until all of them exist.
    pub plan: Option<Plan>,
    /// The task, as JSON or text, at most 16 KiB.
    #[serde(default)]
    #[schemars(default, length(max = 16384))]
    #[x_kube(validation = Rule::new("bytes(self).size() <= 16384").message("payload must be at most 16384 bytes"))]
    pub payload: String,
    /// When the item was submitted. It decides the order within one priority. A time more than a minute before the creation is ignored.
    pub submit_time: Option<MicroTime>,
    /// Time before which the item cannot be claimed.
    pub not_before_time: Option<Time>,
    /// Time after which the item cannot be claimed. Work in progress is cancelled at that time.
    pub deadline_time: Option<Time>,
    /// Whether the item is held back from agents. Defaults to false.
    pub suspend: Option<bool>,
    /// Whether the item is to be cancelled. This cannot be undone. Defaults to false.
    pub cancel_requested: Option<bool>,
    /// How many times in total the item is to be started again after it ended. It never falls. Defaults to 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub redrives: Option<i64>,
    /// Number of the pause to resume from (`status.pauses`).
    #[schemars(range(min = 0))]
    pub resume_pause: Option<i64>,
    /// Epoch of a lease (`status.lease.leaseTransitions`) whose node is dead and will not return. The item is given to another agent
    /// without proof that the first one ended. If the node does return, two agents work on the item for a while, and only the second one's
    /// finish counts.
    #[schemars(range(min = 0))]
    pub released_epoch: Option<i64>,
    /// Items that must have ended before this one starts, at most 32.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub depends_on: Option<Vec<Dependency>>,
    /// Action if a dependency cannot be satisfied: cancel the item (`Cancel`, the default), run it anyway (`Run`), or wait for a person
    /// (`Hold`).
    #[serde(default)]
    #[schemars(default)]
    pub on_dependency_failure: OnDependencyFailure,
    /// Requirements that an agent must meet before it gets the item.
    pub requires: Option<Requires>,
    /// Limits of this task. They can only be narrower than those of the agent.
    pub bulkhead: Option<ItemBulkhead>,
    /// Label selector for the agents that may take the item. If unset, any agent may.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub agent_selector: Option<LabelSelector>,
    /// Results that are reported to the submitter: any end (`Finished`), a final failure (`Failed`) or a dead letter (`DeadLettered`).
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub notify_on: Option<Vec<NotifyOn>>,
    /// Settings that replace the queue's itemDefaults.
    pub overrides: Option<ItemPolicy>,
}

/// The plan of an item.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the plan. It is the same in all its items.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub id: String,
    /// Number of items in the plan.
    #[schemars(range(min = 1, max = 1000))]
    pub size: i32,
}

/// An item that must have ended first.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Name of the WorkItem.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Queue of that item if it is another one. For information only.
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// How that item must have ended: with success (`Succeeded`, the default) or in any way (`Finished`).
    #[serde(default)]
    #[schemars(default)]
    pub condition: DependencyCondition,
}

/// How a dependency must have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DependencyCondition {
    /// With success.
    #[default]
    Succeeded,
    /// In any way.
    Finished,
}

/// Action if a dependency cannot be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnDependencyFailure {
    /// The item is cancelled too.
    #[default]
    Cancel,
    /// The item runs anyway.
    Run,
    /// The item waits for a person.
    Hold,
}

/// Requirements that an agent must meet before it gets the item.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requires {
    /// Programs that are in `preflight.tools` of the agent's pool, or that its `preflight.toolsets` name.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128)))]
    pub tools: Option<Vec<String>>,
    /// Models that the agent's pool may call: each matches an entry of `allow` of its models.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128)))]
    pub models: Option<Vec<String>>,
    /// https URLs that the agent's pool can reach. In this version, these are the URLs at the origins of its models.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub urls: Option<Vec<String>>,
    /// Names of credentials of the agent's pool. In this version, these are the credentials of its models (credentialsRef).
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub accounts: Option<Vec<String>>,
    /// Names of PersistentVolumeClaims of the agent's pool: its workspace.claimName.
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub volumes: Option<Vec<String>>,
    /// https URLs of git repositories: the workspace.git of the agent's pool, with or without `.git` at the end.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub repositories: Option<Vec<String>>,
}

/// Limits of one task (level 3 of the bulkheads).
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.changeset) || !has(self.sandbox) || !has(self.sandbox.changeset)")
        .message("changeset must not be set both in bulkhead and in bulkhead.sandbox")
        .field_path(".changeset"),
)]
pub struct ItemBulkhead {
    /// Tokens that each attempt may spend. If unset, the limit is the rest of the agent's tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: Option<i64>,
    /// Time limit in seconds of an attempt. The lesser of this and attemptTimeoutSeconds applies.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub timeout_seconds: Option<i32>,
    /// How the changes are isolated. Not supported by this version.
    pub changeset: Option<Changeset>,
    /// Sandbox of the task, where it is narrower than the pool's: an item never opens what its pool closes, and a field that is unset narrows
    /// nothing. The program is started in this sandbox, so the item is given to pools with `run: PerItem`, or with a sandbox that requires
    /// the same `landlock` and `seccomp`. `outputs.egress` holds while an agent has the item. `changeset`, `software`, `isolation.mode:
    /// Observe`, `isolation.seccomp: Localhost` and `isolation.userNamespace: Required` are not supported by this version.
    pub sandbox: Option<Sandbox>,
}

/// Results that are reported to a submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum NotifyOn {
    /// The item ended in any way.
    Finished,
    /// The item failed permanently.
    Failed,
    /// The item became a dead letter.
    DeadLettered,
}

/// Phase of an item. Succeeded and Cancelled are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum WorkItemPhase {
    /// It is not admitted yet.
    Pending,
    /// It was not admitted: no queue, a full queue, a duplicate, a cycle, or too large.
    Rejected,
    /// A person holds it back.
    Suspended,
    /// It waits for other items.
    Blocked,
    /// It waits for a time.
    Scheduled,
    /// It can be claimed.
    Ready,
    /// An agent holds it.
    Leased,
    /// An agent holds it and is paused. The time of the lease does not run.
    Paused,
    /// An agent holds it and was told to stop.
    Cancelling,
    /// It succeeded.
    Succeeded,
    /// It failed permanently.
    Failed,
    /// It failed or stalled too often and waits for a person.
    DeadLettered,
    /// A person, a group or a policy ended it.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

/// The lease of an item. It is never removed: a release clears holder, agent and times, and keeps the epoch.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemLease {
    /// Uid of the holder's pod.
    #[schemars(length(max = 64))]
    pub holder: Option<String>,
    /// Name of the Agent that holds the item.
    #[schemars(length(max = 63))]
    pub agent: Option<String>,
    /// Seconds for which the lease lasts without a report.
    #[schemars(range(min = 1, max = 3600))]
    pub lease_duration_seconds: Option<i32>,
    /// When the lease was acquired.
    pub acquire_time: Option<MicroTime>,
    /// Epoch of the lease. It rises with each claim and never falls.
    #[schemars(range(min = 0))]
    pub lease_transitions: Option<i64>,
}

/// Progress of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Progress from 0 to 100, as the agent reports it.
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
    /// Progress as text.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When the agent reported it.
    pub update_time: Option<Time>,
    /// Where another attempt can continue. Only the agent interprets this text.
    #[schemars(length(max = 1024))]
    pub checkpoint_ref: Option<String>,
}

/// Tokens spent on an item.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemTokens {
    /// Tokens spent by all attempts.
    #[serde(default)]
    pub used: i64,
    /// Use of `spec.bulkhead.tokens` by the last attempt that called a model.
    pub share: Option<ShareUsage>,
}

/// Use of an item's token limit by one attempt.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShareUsage {
    /// Epoch of the attempt's lease.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Token limit of the attempt.
    pub limit: Option<i64>,
    /// Tokens spent.
    #[serde(default)]
    pub used: i64,
    /// Tokens held for calls in flight.
    pub held: Option<i64>,
    /// Tokens charged for gateways that disappeared.
    pub lost: Option<i64>,
    /// Total up to which tokens are given without a write. It is raised before it is reached.
    pub high_water: Option<i64>,
    /// Records with which the ledger counts each call exactly once.
    pub ledger: Option<Ledger>,
}

/// An attempt that ended.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Epoch of the attempt's lease.
    pub epoch: i64,
    /// Name of the Agent.
    #[schemars(length(max = 63))]
    pub agent: String,
    /// When the attempt began.
    pub start_time: Time,
    /// When the attempt ended.
    pub end_time: Option<Time>,
    /// How the attempt ended, as the name of the transition: Complete, Fail, Release, LeaseExpired, Stalled, CancelDone.
    #[schemars(length(max = 32))]
    pub verb: String,
    /// Reason, as one word.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Reason, as text.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Observed state of an item.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
    validation = Rule::new("!has(oldSelf.lease) || !has(oldSelf.lease.leaseTransitions) || (has(self.lease) && has(self.lease.leaseTransitions) && self.lease.leaseTransitions >= oldSelf.lease.leaseTransitions)")
        .message("lease.leaseTransitions must not fall and lease must not be removed: leaseTransitions keeps out agents that lost the item")
        .field_path(".lease"),
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Succeeded', 'Cancelled']) || (has(self.phase) && self.phase == oldSelf.phase)")
        .message("phase Succeeded and phase Cancelled are final: an item ends only once")
        .field_path(".phase"),
)]
pub struct WorkItemStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Phase of the item. It waits: `Pending` (for admission), `Suspended` (held back by a person), `Blocked` (for
    /// other items), `Scheduled` (for a time) or `Ready` (for an agent). An agent holds it: `Leased`, `Paused` or
    /// `Cancelling` (told to stop). It has ended: `Rejected`, `Succeeded`, `Failed`, `DeadLettered` (waits for a
    /// person), `Cancelled` or `Expired`. Succeeded and Cancelled are final.
    pub phase: Option<WorkItemPhase>,
    /// Reason for the phase, as one word.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Queue to which the item was admitted.
    #[schemars(length(max = 253))]
    pub queue: Option<String>,
    /// Lease of the item.
    pub lease: Option<ItemLease>,
    /// Number of claims since the last redrive, for information.
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Number of failures of the task since the last redrive.
    #[schemars(range(min = 0))]
    pub failures: Option<i32>,
    /// Number of losses of the agent or its node since the last redrive.
    #[schemars(range(min = 0))]
    pub stalls: Option<i32>,
    /// Number of redrives done.
    #[schemars(range(min = 0))]
    pub redrives: Option<i64>,
    /// Number of pauses so far.
    #[schemars(range(min = 0))]
    pub pauses: Option<i64>,
    /// When the item can be claimed again.
    pub next_attempt_time: Option<Time>,
    /// When the item was first ready since the last redrive. The queue's objectives are measured from this time.
    pub ready_time: Option<Time>,
    /// When the item was first claimed.
    pub start_time: Option<Time>,
    /// When the item ended.
    pub completion_time: Option<Time>,
    /// Progress of the task.
    pub progress: Option<Progress>,
    /// Result of the task, at most 4 KiB.
    #[schemars(length(max = 4096))]
    pub result: Option<String>,
    /// Changes of the last attempt, in a pool with `sandbox.changeset`.
    pub changeset: Option<ItemChangeset>,
    /// Files that agents have kept with the item.
    #[schemars(length(max = MAX_ARTIFACTS), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub artifacts: Option<Vec<ItemArtifact>>,
    /// Tokens spent on the item.
    pub tokens: Option<ItemTokens>,
    /// The last 5 attempts, the newest last.
    #[schemars(length(max = 5))]
    pub attempt_history: Option<Vec<Attempt>>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Leased, Paused, Complete, Failed, CancelRequested, PreflightPassed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
