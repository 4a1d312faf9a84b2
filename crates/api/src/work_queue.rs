//! `WorkQueue`: where items wait, in which order they are claimed, and how failed items are handled.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::WhenEmpty;

/// Maximum size in bytes of an item's payload in any queue: 16 KiB. Larger input belongs in a repository or a volume.
pub const MAX_PAYLOAD_BYTES: i32 = 16_384;

/// Desired state of a queue of work. Deleting the queue rejects its items and deletes nothing else.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "WorkQueue",
    plural = "workqueues",
    shortname = "wq",
    category = "spillway",
    namespaced,
    status = "WorkQueueStatus",
    derive = "PartialEq",
    doc = "A queue of work for AI coding agents: order, limits, retries, and actions without work.",
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.counts.ready"),
    printcolumn(name = "Leased", type_ = "integer", json_path = ".status.counts.leased"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.counts.waiting"),
    printcolumn(name = "Oldest", type_ = "date", json_path = ".status.oldestReadyTime"),
    printcolumn(name = "Dead", type_ = "integer", json_path = ".status.counts.deadLettered"),
    printcolumn(name = "Oldest-Dead", type_ = "date", json_path = ".status.oldestDeadLetterTime"),
    printcolumn(name = "Accepting", type_ = "string", json_path = r#".status.conditions[?(@.type=="Accepting")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct WorkQueueSpec {
    /// Order of items. With `StrictFIFO`, an item that no connected agent can take blocks those behind it; with `BestEffortFIFO` (default)
    /// it does not.
    #[serde(default)]
    #[schemars(default)]
    pub queueing_strategy: QueueingStrategy,
    /// Rank of the queue for items that name only their type. The queue with the highest number gets them. Defaults to 0.
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: Option<i32>,
    /// Items that are routed to this queue.
    pub accepts: Option<Accepts>,
    /// Whether no items are given out. Items are still accepted. Defaults to false.
    pub suspend: Option<bool>,
    /// How much the queue holds.
    pub limits: Option<QueueLimits>,
    /// Defaults for settings that `overrides` of an item leaves unset.
    pub item_defaults: Option<ItemPolicy>,
    /// How failures are handled. If unset, an item is retried up to maxAttempts and then becomes a dead letter.
    pub failure_policy: Option<FailurePolicy>,
    /// How dead letters are kept. Other finished items do not affect them.
    pub dead_letters: Option<DeadLetters>,
    /// How many items agents may hold at a time.
    pub concurrency: Option<Concurrency>,
    /// Action for agents without work in pools that name this queue first and have no `whenEmpty` of their own.
    pub when_empty: Option<WhenEmpty>,
    /// Service levels. An item that misses one is reported and counted, and raises the signal ObjectiveMissed for its holder.
    pub objectives: Option<Objectives>,
    /// Cancelled groups. Items of a group that were created up to the given time are cancelled, now and later. An entry may be removed once
    /// none of them is alive (`status.cancelledGroups`).
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group"]))]
    pub cancel_groups: Option<Vec<CancelledGroup>>,
}

/// Order of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum QueueingStrategy {
    /// An item that no connected agent can take does not block those behind it.
    #[default]
    BestEffortFIFO,
    /// An item that no connected agent can take blocks those behind it.
    StrictFIFO,
}

/// Items that are routed to a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accepts {
    /// Accepted types. If unset or empty, an item that names this queue may have any type, and none is routed here by its type.
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub types: Option<Vec<String>>,
    /// Whether the queue takes the items whose type no queue accepts. Defaults to false.
    pub default: Option<bool>,
}

/// How much a queue holds.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueLimits {
    /// Maximum number of unfinished items. More are refused (QueueFull). Defaults to 1000.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_pending: Option<i32>,
    /// Maximum number of finished items that are kept, without dead letters. The oldest are deleted first. Defaults to 500.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_finished: Option<i32>,
    /// Maximum size of a payload in bytes. Defaults to 16384, which is also the highest value.
    #[schemars(range(min = 1, max = MAX_PAYLOAD_BYTES))]
    pub max_item_bytes: Option<i32>,
}

/// How an item is leased, retried and kept.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemPolicy {
    /// Seconds for which a lease lasts without a report. Defaults to 60.
    #[schemars(range(min = 5, max = 3600))]
    pub lease_duration_seconds: Option<i32>,
    /// Seconds without progress after which the item is taken from its agent. Defaults to 1800.
    #[schemars(range(min = 1, max = 604_800))]
    pub stall_timeout_seconds: Option<i32>,
    /// Time limit in seconds of an attempt. Defaults to 7200.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub attempt_timeout_seconds: Option<i32>,
    /// Number of failures of the task after which it is not retried. Defaults to 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_attempts: Option<i32>,
    /// Number of losses of the agent or its node after which the item is not retried. Defaults to 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_stalls: Option<i32>,
    /// Wait between attempts.
    pub backoff: Option<Backoff>,
    /// Seconds for which a finished item is kept. Defaults to 3600. For dead letters, `deadLetters` of the queue applies.
    #[schemars(range(min = 0, max = 2_592_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Exponential backoff, always with full jitter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.initialSeconds) ? self.initialSeconds : 10) <= (has(self.maxSeconds) ? self.maxSeconds : 360)")
        .message("initialSeconds (10 when unset) must not be greater than maxSeconds (360 when unset)")
        .field_path(".initialSeconds"),
)]
pub struct Backoff {
    /// Maximum wait in seconds before the second attempt. Defaults to 10.
    #[schemars(range(min = 0, max = 86400))]
    pub initial_seconds: Option<i32>,
    /// Factor by which the maximum wait grows with each further attempt. Defaults to 2.
    #[schemars(range(min = 1, max = 10))]
    pub factor: Option<i32>,
    /// Upper limit in seconds of each wait. Defaults to 360.
    #[schemars(range(min = 0, max = 86400))]
    pub max_seconds: Option<i32>,
}

/// How failures are handled.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Rules for failures. The first rule that matches applies.
    #[schemars(length(max = 16))]
    pub rules: Option<Vec<FailureRule>>,
    /// Whether the final failure of an item cancels its group. Defaults to false.
    pub cancel_group: Option<bool>,
}

/// A rule for failures. It matches if it lists the failure's reason or exit code. If both lists are empty, it matches every failure.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// Action: retry after the backoff, up to maxAttempts (`Retry`), the same by another agent (`RetryElsewhere`), retry without counting
    /// (`Ignore`), make it a dead letter (`DeadLetter`), or fail permanently (`Fail`).
    pub action: FailureAction,
    /// Reasons, as agents and Spillway report them.
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 64), regex(pattern = "^[A-Za-z][A-Za-z0-9_]*$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub on_reasons: Option<Vec<String>>,
    /// Exit codes of the program. 0 is not a failure.
    #[schemars(length(max = 32), inner(range(min = 1, max = 255)), extend("x-kubernetes-list-type" = "set"))]
    pub on_exit_codes: Option<Vec<i32>>,
}

/// Action for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailureAction {
    /// The item is retried after the backoff, up to maxAttempts.
    Retry,
    /// The item is retried by another agent, after the backoff, up to maxAttempts.
    RetryElsewhere,
    /// The item is retried, and the failure is not counted.
    Ignore,
    /// The item becomes a dead letter at once and waits for a person.
    DeadLetter,
    /// The item fails permanently.
    Fail,
}

/// How dead letters are kept: until a person redrives or deletes them, within these limits.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetters {
    /// Seconds for which a dead letter is kept. Defaults to 2592000 (30 days).
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds: Option<i32>,
    /// Maximum number of dead letters. At that number each further one deletes the oldest, and the condition DeadLettersKept is False.
    /// Defaults to 1000.
    #[schemars(range(min = 0, max = 100_000))]
    pub max: Option<i32>,
}

/// How many items agents may hold at a time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.maxLeased) || !has(self.maxLeasedPerKey) || self.maxLeasedPerKey <= self.maxLeased")
        .message("maxLeasedPerKey must not be greater than maxLeased")
        .field_path(".maxLeasedPerKey"),
)]
pub struct Concurrency {
    /// Maximum number of leased items of the queue. If unset, there is no limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_leased: Option<i32>,
    /// Maximum number of leased items with the same concurrencyKey. If unset, there is no limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_leased_per_key: Option<i32>,
}

/// Service levels of a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.waitSeconds) || !has(self.completionSeconds) || self.waitSeconds <= self.completionSeconds")
        .message("waitSeconds must not be greater than completionSeconds, which includes the wait")
        .field_path(".waitSeconds"),
)]
pub struct Objectives {
    /// Seconds from when an item is first ready to its first lease.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub wait_seconds: Option<i32>,
    /// Seconds from when an item is first ready to its end.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub completion_seconds: Option<i32>,
}

/// Number of items of a queue by state.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Items that can be claimed now.
    pub ready: Option<i32>,
    /// Items that agents hold, including those that are being cancelled.
    pub leased: Option<i32>,
    /// Items that are Pending, Suspended, Blocked or Scheduled.
    pub waiting: Option<i32>,
    /// Items that are paused with their agents.
    pub paused: Option<i32>,
    /// Finished items other than dead letters.
    pub finished: Option<i32>,
    /// Dead letters, which wait for a person.
    pub dead_lettered: Option<i32>,
}

/// A cancelled group. Its items that were created up to this time are cancelled.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelledGroup {
    /// Name of the group.
    #[schemars(length(min = 1, max = 63))]
    pub group: String,
    /// When the group was cancelled.
    pub time: Time,
}

/// Observed state of a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkQueueStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Number of items by state.
    pub counts: Option<QueueCounts>,
    /// Since when the oldest ready item has been ready.
    pub oldest_ready_time: Option<Time>,
    /// Since when the oldest dead letter has waited for a person.
    pub oldest_dead_letter_time: Option<Time>,
    /// Groups that a person or the failure of an item cancelled and that still have unfinished items.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group"]))]
    pub cancelled_groups: Option<Vec<CancelledGroup>>,
    /// Conditions: Ready, Accepting, DeadLettersKept, and ObjectivesMet if the spec has objectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
