//! `WorkItem`: one task. Written once by whoever wants it done; its life is in its status.
//!
//! What always holds, by the schema alone: the task cannot change under the agent that holds it, a cancel is not taken
//! back, a redrive count and a released epoch never fall, and neither the lease's epoch nor the writer's falls.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::budget::Ledger;
use crate::sandbox::{Changeset, Sandbox};
use crate::schema::{never_falls, unchanged};
use crate::shared::LocalRef;
use crate::work_queue::ItemPolicy;

/// One task. Immutable but for suspend, priority, cancelRequested, redrives, resumePause and releasedEpoch.
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
    doc = "One task for an AI coding agent: what to do, before which deadline, after which other items.",
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
    validation = unchanged(&["queueRef", "type", "group", "concurrencyKey", "dedupKey", "plan"])
        .message("queueRef, type, group, concurrencyKey, dedupKey and plan cannot be changed: submit another item"),
    validation = unchanged(&["payload", "submitTime", "notBeforeTime", "deadlineTime"])
        .message("payload, submitTime, notBeforeTime and deadlineTime cannot be changed: submit another item"),
    validation = unchanged(&["dependsOn", "onDependencyFailure", "requires", "bulkhead", "agentSelector", "notifyOn", "overrides"])
        .message("dependsOn, onDependencyFailure, requires, bulkhead, agentSelector, notifyOn and overrides cannot be changed: submit another item"),
    validation = Rule::new("!has(oldSelf.cancelRequested) || !oldSelf.cancelRequested || (has(self.cancelRequested) && self.cancelRequested)")
        .message("cancelRequested cannot be taken back: redrive the item instead")
        .field_path(".cancelRequested"),
    validation = never_falls("redrives")
        .message("redrives must not fall: it counts how often the item was started again"),
    validation = never_falls("releasedEpoch")
        .message("releasedEpoch must not fall: it says which leases will not come back"),
    validation = Rule::new("!has(self.notBeforeTime) || !has(self.deadlineTime) || self.notBeforeTime < self.deadlineTime")
        .message("notBeforeTime must be before deadlineTime")
        .field_path(".notBeforeTime"),
)]
pub struct WorkItemSpec {
    /// The queue it waits in; unset: the one that accepts its type, else the default queue.
    pub queue_ref: Option<LocalRef>,
    /// What kind of work it is.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub type_: Option<String>,
    /// The higher the sooner, within its queue.
    #[serde(default)]
    #[schemars(default, range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Items that are cancelled together.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub group: Option<String>,
    /// Items of one key are worked on up to the queue's maxLeasedPerKey at once.
    #[schemars(length(min = 1, max = 253))]
    pub concurrency_key: Option<String>,
    /// At most one item of one key exists in the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub dedup_key: Option<String>,
    /// The plan it belongs to: its items wait until all of them exist.
    pub plan: Option<Plan>,
    /// The task, JSON or text, at most 16 KiB.
    #[serde(default)]
    #[schemars(default, length(max = 16384))]
    #[x_kube(validation = Rule::new("bytes(self).size() <= 16384").message("payload must be at most 16384 bytes"))]
    pub payload: String,
    /// When it was submitted: the order within one priority. Times over a minute before its creation do not count.
    pub submit_time: Option<MicroTime>,
    /// Not given out before.
    pub not_before_time: Option<Time>,
    /// Not given out after; work in progress is cancelled then.
    pub deadline_time: Option<Time>,
    /// Do not give it out. Default false.
    pub suspend: Option<bool>,
    /// End it; cannot be taken back. Default false.
    pub cancel_requested: Option<bool>,
    /// How often it shall have been started again after it ended; never falls. Default 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub redrives: Option<i64>,
    /// Resume the pause of this number (`status.pauses`).
    #[schemars(range(min = 0))]
    pub resume_pause: Option<i64>,
    /// The node of whoever holds, or held, the lease of this epoch (`status.lease.leaseTransitions`) is dead and will not
    /// come back: give the item to another agent without waiting for proof. If the node does come back, two work on it for
    /// a while, and only the second one's finish counts.
    #[schemars(range(min = 0))]
    pub released_epoch: Option<i64>,
    /// Items that must have ended before, at most 32.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub depends_on: Option<Vec<Dependency>>,
    /// What becomes of it when one of them cannot be satisfied.
    #[serde(default)]
    #[schemars(default)]
    pub on_dependency_failure: OnDependencyFailure,
    /// What an agent must have before the item is given to it. Of its fields `repositories` is not supported by this version.
    pub requires: Option<Requires>,
    /// Level 3: walls around this task, only narrower than the agent's.
    pub bulkhead: Option<ItemBulkhead>,
    /// Labels of the agents that may take it; unset: any.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub agent_selector: Option<LabelSelector>,
    /// What its submitter is told of.
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub notify_on: Option<Vec<NotifyOn>>,
    /// Where it differs from its queue's itemDefaults.
    pub overrides: Option<ItemPolicy>,
}

/// The plan an item belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the plan, the same in all its items.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub id: String,
    /// How many items it has.
    #[schemars(range(min = 1, max = 1000))]
    pub size: i32,
}

/// An item that must have ended before.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Name of the item.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its queue, where that is another one; for people.
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// How it must have ended.
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

/// What becomes of an item whose dependency cannot be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnDependencyFailure {
    /// Cancelled too.
    #[default]
    Cancel,
    /// Run anyway.
    Run,
    /// Wait for a person.
    Hold,
}

/// What must be there before an item is given out.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requires {
    /// Programs that the pool's agents are checked for: those of its preflight.tools.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128)))]
    pub tools: Option<Vec<String>>,
    /// Models that the pool's agents may call: each fits an entry of allow of its models.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128)))]
    pub models: Option<Vec<String>>,
    /// https URLs that the pool's agents reach: in this version those of the origins of its models.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub urls: Option<Vec<String>>,
    /// Credentials that the pool's agents work with, by name: in this version those of its models (credentialsRef).
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub accounts: Option<Vec<String>>,
    /// PersistentVolumeClaims that the pool's agents work on, by name: its workspace.claimName.
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub volumes: Option<Vec<String>>,
    /// Git repositories, by URL. Not supported by this version: there is no way to git.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub repositories: Option<Vec<String>>,
}

/// Level 3: walls around one task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.changeset) || !has(self.sandbox) || !has(self.sandbox.changeset)")
        .message("changeset is set twice: here and in sandbox")
        .field_path(".changeset"),
)]
pub struct ItemBulkhead {
    /// Tokens the task may spend; unset: what the agent has left.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: Option<i64>,
    /// Seconds an attempt may take; the lesser of it and attemptTimeoutSeconds holds.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub timeout_seconds: Option<i32>,
    /// How its changes are kept apart. Not supported by this version.
    pub changeset: Option<Changeset>,
    /// Its sandbox, where it is narrower than the pool's. Not supported by this version.
    pub sandbox: Option<Sandbox>,
}

/// What a submitter is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum NotifyOn {
    /// Any end.
    Finished,
    /// It failed for good.
    Failed,
    /// It was set aside.
    DeadLettered,
}

/// Where an item is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum WorkItemPhase {
    /// Not admitted yet.
    Pending,
    /// Not admitted: no queue, a full one, a duplicate, a cycle, too large.
    Rejected,
    /// Held by a person.
    Suspended,
    /// Waits for other items.
    Blocked,
    /// Waits for a time.
    Scheduled,
    /// Can be claimed.
    Ready,
    /// An agent holds it.
    Leased,
    /// An agent holds it and is paused; the lease's clock stands still.
    Paused,
    /// An agent holds it and was told to stop.
    Cancelling,
    /// Done.
    Succeeded,
    /// Failed for good.
    Failed,
    /// Set aside for a person.
    DeadLettered,
    /// Ended by a person, a group or a policy.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

/// Who holds an item. Never removed: a release clears holder, agent and times, so that the epoch stays.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemLease {
    /// Uid of the holder's pod.
    #[schemars(length(max = 64))]
    pub holder: Option<String>,
    /// Name of the Agent.
    #[schemars(length(max = 63))]
    pub agent: Option<String>,
    /// Seconds it lasts without a report.
    #[schemars(range(min = 1, max = 3600))]
    pub lease_duration_seconds: Option<i32>,
    /// When it was taken.
    pub acquire_time: Option<MicroTime>,
    /// The epoch: rises at each claim, never falls.
    #[schemars(range(min = 0))]
    pub lease_transitions: Option<i64>,
}

/// How far a task is.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// 0 to 100, as the agent says.
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
    /// In words.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When it was said.
    pub update_time: Option<Time>,
    /// Where to go on from; means something to the agent alone.
    #[schemars(length(max = 1024))]
    pub checkpoint_ref: Option<String>,
}

/// Tokens spent on an item.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemTokens {
    /// By all attempts.
    #[serde(default)]
    pub used: i64,
    /// What the last attempt that called a model has used of `spec.bulkhead.tokens`.
    pub share: Option<ShareUsage>,
}

/// What one attempt has used of its item's share.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShareUsage {
    /// The lease epoch of the attempt.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// The limit.
    pub limit: Option<i64>,
    /// Spent.
    #[serde(default)]
    pub used: i64,
    /// Held for calls in flight.
    pub held: Option<i64>,
    /// Charged for gateways that went away.
    pub lost: Option<i64>,
    /// Holds are given from memory below this; raised before they are passed.
    pub high_water: Option<i64>,
    /// What makes the ledger exactly once.
    pub ledger: Option<Ledger>,
}

/// One attempt that ended.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The lease epoch it ran under.
    pub epoch: i64,
    /// Name of the Agent.
    #[schemars(length(max = 63))]
    pub agent: String,
    /// When it began.
    pub start_time: Time,
    /// When it ended.
    pub end_time: Option<Time>,
    /// How it ended, as the transition is called: Complete, Fail, Release, LeaseExpired, Stalled, CancelDone.
    #[schemars(length(max = 32))]
    pub verb: String,
    /// Why, as one word.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Why, in words.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// What Spillway says of an item.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
    validation = Rule::new("!has(oldSelf.lease) || !has(oldSelf.lease.leaseTransitions) || (has(self.lease) && has(self.lease.leaseTransitions) && self.lease.leaseTransitions >= oldSelf.lease.leaseTransitions)")
        .message("lease.leaseTransitions must not fall and lease must not be removed: it is the fence against agents that lost the item")
        .field_path(".lease"),
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Succeeded', 'Cancelled']) || (has(self.phase) && self.phase == oldSelf.phase)")
        .message("phase Succeeded and phase Cancelled are final: nothing finishes an item twice")
        .field_path(".phase"),
)]
pub struct WorkItemStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// Where it is in its life.
    pub phase: Option<WorkItemPhase>,
    /// Why, as one word.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// The queue it was routed to, where its spec names none.
    #[schemars(length(max = 253))]
    pub queue: Option<String>,
    /// Who holds it.
    pub lease: Option<ItemLease>,
    /// Claims since the last redrive, for information.
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Failures of the task since the last redrive.
    #[schemars(range(min = 0))]
    pub failures: Option<i32>,
    /// Losses of agent or node since the last redrive.
    #[schemars(range(min = 0))]
    pub stalls: Option<i32>,
    /// Redrives done.
    #[schemars(range(min = 0))]
    pub redrives: Option<i64>,
    /// Pauses so far.
    #[schemars(range(min = 0))]
    pub pauses: Option<i64>,
    /// When it can be claimed again.
    pub next_attempt_time: Option<Time>,
    /// When it was ready for the first time since the last redrive: what its queue's objectives are measured from.
    pub ready_time: Option<Time>,
    /// When it was first claimed.
    pub start_time: Option<Time>,
    /// When it ended.
    pub completion_time: Option<Time>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// What came out, at most 4 KiB.
    #[schemars(length(max = 4096))]
    pub result: Option<String>,
    /// Tokens spent on it.
    pub tokens: Option<ItemTokens>,
    /// The last attempts, the newest last, at most 5.
    #[schemars(length(max = 5))]
    pub attempt_history: Option<Vec<Attempt>>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Leased, Paused, Complete, Failed, CancelRequested, PreflightPassed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
