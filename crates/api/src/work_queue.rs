//! `WorkQueue`: where items wait, in which order they are given out, and what becomes of those that fail.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::WhenEmpty;

/// The most bytes an item's payload may have anywhere: 16 KiB. Larger input belongs in a repository or a volume.
pub const MAX_PAYLOAD_BYTES: i32 = 16_384;

/// A queue of work. Deleting it rejects its items; nothing else goes with it.
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
    doc = "A queue of work for AI coding agents: order, limits, retries, and what happens without work.",
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
    /// Which item comes next.
    #[serde(default)]
    #[schemars(default)]
    pub queueing_strategy: QueueingStrategy,
    /// Rank among queues when an item names only its type; the higher wins. Default 0.
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: Option<i32>,
    /// Which items are routed here.
    pub accepts: Option<Accepts>,
    /// Give out nothing; items are still accepted. Default false.
    pub suspend: Option<bool>,
    /// How much it holds.
    pub limits: Option<QueueLimits>,
    /// What its items do when they say nothing else.
    pub item_defaults: Option<ItemPolicy>,
    /// What becomes of failures; unset: retried up to maxAttempts, then dead-lettered.
    pub failure_policy: Option<FailurePolicy>,
    /// How dead letters are kept: apart from all other finished items.
    pub dead_letters: Option<DeadLetters>,
    /// How many items may be worked on at once.
    pub concurrency: Option<Concurrency>,
    /// What pools do when it is empty, unless they say themselves.
    pub when_empty: Option<WhenEmpty>,
    /// Service levels: items that miss one are told of and counted, and raise the signal ObjectiveMissed on who holds them.
    pub objectives: Option<Objectives>,
    /// Groups that are cancelled: their items made up to that time are, now and later. An entry may be removed once none
    /// of them lives (`status.cancelledGroups`).
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group"]))]
    pub cancel_groups: Option<Vec<CancelledGroup>>,
}

/// Which item comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum QueueingStrategy {
    /// An item that no connected agent can take does not block those behind it.
    #[default]
    BestEffortFIFO,
    /// It does.
    StrictFIFO,
}

/// Which items are routed to a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accepts {
    /// Types that are accepted; unset or empty: every type of an item that names this queue, none by routing.
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub types: Option<Vec<String>>,
    /// Takes the items whose type no queue accepts. Default false.
    pub default: Option<bool>,
}

/// How much a queue holds.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueLimits {
    /// Items that are not finished; more are refused (QueueFull). Default 1000.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_pending: Option<i32>,
    /// Finished items kept for reading, dead letters not among them; the oldest go first. Default 500.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_finished: Option<i32>,
    /// Bytes of one payload. Default 16384, which is also the most.
    #[schemars(range(min = 1, max = MAX_PAYLOAD_BYTES))]
    pub max_item_bytes: Option<i32>,
}

/// How an item is leased, retried and kept.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemPolicy {
    /// Seconds a lease lasts without a report. Default 60.
    #[schemars(range(min = 5, max = 3600))]
    pub lease_duration_seconds: Option<i32>,
    /// Seconds without progress after which the item is taken back. Default 1800.
    #[schemars(range(min = 1, max = 604_800))]
    pub stall_timeout_seconds: Option<i32>,
    /// Seconds one attempt may take. Default 7200.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub attempt_timeout_seconds: Option<i32>,
    /// Failures of the task after which it is not tried again. Default 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_attempts: Option<i32>,
    /// Losses of agent or node after which it is not tried again. Default 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_stalls: Option<i32>,
    /// Waiting between attempts.
    pub backoff: Option<Backoff>,
    /// Seconds a finished item is kept, unless it is a dead letter (`deadLetters` of its queue). Default 3600.
    #[schemars(range(min = 0, max = 2_592_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Exponential waiting, always with full jitter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.initialSeconds) ? self.initialSeconds : 10) <= (has(self.maxSeconds) ? self.maxSeconds : 360)")
        .message("initialSeconds (10 when unset) must not be greater than maxSeconds (360 when unset)")
        .field_path(".initialSeconds"),
)]
pub struct Backoff {
    /// Seconds before the second attempt at most. Default 10.
    #[schemars(range(min = 0, max = 86400))]
    pub initial_seconds: Option<i32>,
    /// What each further attempt multiplies it by. Default 2.
    #[schemars(range(min = 1, max = 10))]
    pub factor: Option<i32>,
    /// Seconds it never exceeds. Default 360.
    #[schemars(range(min = 0, max = 86400))]
    pub max_seconds: Option<i32>,
}

/// What becomes of failures.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// The first rule that matches decides.
    #[schemars(length(max = 16))]
    pub rules: Option<Vec<FailureRule>>,
    /// A member's final failure cancels its group. Default false.
    pub cancel_group: Option<bool>,
}

/// One rule. It matches when the failure's reason or exit code is listed; with both lists empty it matches every failure.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// What to do.
    pub action: FailureAction,
    /// Reasons, as agents and Spillway give them.
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 64), regex(pattern = "^[A-Za-z][A-Za-z0-9_]*$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub on_reasons: Option<Vec<String>>,
    /// Exit codes of the program. 0 is no failure.
    #[schemars(length(max = 32), inner(range(min = 1, max = 255)), extend("x-kubernetes-list-type" = "set"))]
    pub on_exit_codes: Option<Vec<i32>>,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailureAction {
    /// Try again after the backoff, up to maxAttempts.
    Retry,
    /// The same, by another agent.
    RetryElsewhere,
    /// Try again without counting it.
    Ignore,
    /// Set it aside at once, for a person.
    DeadLetter,
    /// It failed for good.
    Fail,
}

/// How dead letters are kept: until a person redrives or deletes them, at most so long and so many.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetters {
    /// Seconds a dead letter is kept. Default 2592000, which is 30 days.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds: Option<i32>,
    /// Dead letters kept; for each one more the oldest is deleted, and the condition DeadLettersKept is False. Default 1000.
    #[schemars(range(min = 0, max = 100_000))]
    pub max: Option<i32>,
}

/// How many items may be worked on at once.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.maxLeased) || !has(self.maxLeasedPerKey) || self.maxLeasedPerKey <= self.maxLeased")
        .message("maxLeasedPerKey must not be greater than maxLeased")
        .field_path(".maxLeasedPerKey"),
)]
pub struct Concurrency {
    /// In the queue. Unset: no limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_leased: Option<i32>,
    /// Of one concurrencyKey. Unset: no limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_leased_per_key: Option<i32>,
}

/// Service levels of a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.waitSeconds) || !has(self.completionSeconds) || self.waitSeconds <= self.completionSeconds")
        .message("waitSeconds must not be greater than completionSeconds, which includes it")
        .field_path(".waitSeconds"),
)]
pub struct Objectives {
    /// Seconds from an item's being ready for the first time to its first lease.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub wait_seconds: Option<i32>,
    /// Seconds from an item's being ready for the first time to its end.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub completion_seconds: Option<i32>,
}

/// Items of a queue by what they do.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Could be claimed now.
    pub ready: Option<i32>,
    /// Held by agents, cancelling ones among them.
    pub leased: Option<i32>,
    /// Pending, Suspended, Blocked or Scheduled.
    pub waiting: Option<i32>,
    /// Paused with their agents.
    pub paused: Option<i32>,
    /// Finished in any way but DeadLettered.
    pub finished: Option<i32>,
    /// Set aside for a person.
    pub dead_lettered: Option<i32>,
}

/// A tombstone: members of the group made up to this time are cancelled.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelledGroup {
    /// The group.
    #[schemars(length(min = 1, max = 63))]
    pub group: String,
    /// When it was cancelled.
    pub time: Time,
}

/// What Spillway says of a queue.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkQueueStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// How many items it has.
    pub counts: Option<QueueCounts>,
    /// Since when the oldest ready item has been ready.
    pub oldest_ready_time: Option<Time>,
    /// Since when the oldest dead letter has waited for a person.
    pub oldest_dead_letter_time: Option<Time>,
    /// Groups that are cancelled, by a person or by a member's failure, and still have members that are not over.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group"]))]
    pub cancelled_groups: Option<Vec<CancelledGroup>>,
    /// Ready, Accepting, DeadLettersKept, Stalled; ObjectivesMet where the spec has objectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
