//! How a pool's agents are monitored, and which actions follow from the signals of the monitors.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::shared::Mode;

/// How the agents are monitored.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.heartbeatTimeoutSeconds) ? self.heartbeatTimeoutSeconds : 1800) >= 3 * (has(self.heartbeatPeriodSeconds) ? self.heartbeatPeriodSeconds : 20)")
        .message("heartbeatTimeoutSeconds (1800 when unset) must be at least three times heartbeatPeriodSeconds (20 when unset)")
        .field_path(".heartbeatTimeoutSeconds"),
)]
pub struct Supervision {
    /// `Enforce` (default): the supervisor acts. `Observe`: it only reports what it would do. `Disabled`: it does neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// Seconds between heartbeats. Defaults to 20.
    #[schemars(range(min = 1, max = 3600))]
    pub heartbeat_period_seconds: Option<i32>,
    /// Seconds of silence after which the signal HeartbeatLost (of the pod) or ProgramSilent (of the program) is raised. By default the
    /// supervisor then ends the agent by force, and the pool replaces it. Defaults to 1800.
    #[schemars(range(min = 3, max = 86400))]
    pub heartbeat_timeout_seconds: Option<i32>,
    /// Seconds from the request to stop until the agent is killed. Defaults to 15.
    #[schemars(range(min = 1, max = 3600))]
    pub goodbye_timeout_seconds: Option<i32>,
    /// Seconds in which a new agent must register and start its program. Defaults to 300.
    #[schemars(range(min = 1, max = 86400))]
    pub startup_timeout_seconds: Option<i32>,
    /// Seconds for which the object of a stopped Agent is kept. Defaults to 3600.
    #[serde(rename = "stoppedTTLSeconds")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub stopped_ttl_seconds: Option<i32>,
    /// When agents that hold items of one group (`spec.group` of the WorkItem) count as failing together. If unset, this is not
    /// monitored.
    pub gang: Option<Gang>,
    /// Actions that replace the default actions for signals.
    #[schemars(length(max = 32))]
    pub rules: Option<Vec<SupervisionRule>>,
}

/// When the agents of one group count as failing together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// Minimum percentage of failed members.
    #[schemars(range(min = 1, max = 100))]
    pub failed_percent: i32,
    /// Minimum number of failed members.
    #[schemars(range(min = 1, max = 1000))]
    pub min_failed: i32,
    /// Seconds in which the failures count.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: i32,
}

/// An action for a signal.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.signal == 'RuleViolated') == has(self.rule)")
        .message("rule must be set with signal: RuleViolated, and only with it")
        .field_path(".rule"),
    validation = Rule::new("has(self.count) == has(self.windowSeconds)")
        .message("count and windowSeconds must be set together: the rule applies after count signals within windowSeconds")
        .field_path(".count"),
)]
pub struct SupervisionRule {
    /// Signal to which the rule applies. Silence: HeartbeatLost (the pod), ProgramSilent (the program). Failures: CrashLoop, OOMKilled,
    /// GangDivergence (the agents of one group). Tokens: BudgetNearLimit, TokenBudgetExceeded. Time: OperationTimeout (one operation),
    /// ChronicTimeout (several), ItemStalled (no progress), ItemPastTime, ObjectiveMissed. Limits: RuleViolated (see `rule`),
    /// BadChangeset (the changes of an item were refused).
    pub signal: Signal,
    /// Violated rule, for `signal: RuleViolated`: a host that is denied (NetworkDenied), a call that a Toolset rejected (ToolRejected),
    /// too many child agents (TooManyChildren), a changed path that is protected (ForbiddenPath) or a system call that the sandbox refused
    /// (SandboxViolation).
    pub rule: Option<ViolatedRule>,
    /// Number of signals within `windowSeconds` from which the rule applies. If unset, it applies to each signal.
    #[schemars(range(min = 1, max = 256))]
    pub count: Option<i32>,
    /// Seconds in which `count` signals must occur.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// Action: `Log`, `Warn` (tell the program), `Notify` (tell people), `Escalate` (tell a scheduler too) or `Pause`. `Requeue`, `Restart`,
    /// `RestartGang` and `Reap` end the agent by force. Its item goes back to its queue, and the pool creates another agent if it needs one.
    #[serde(rename = "do")]
    pub do_: Intervention,
}

/// A signal that a monitor can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the documentation; docs/reference lists when each is raised")]
pub enum Signal {
    HeartbeatLost,
    ProgramSilent,
    CrashLoop,
    OOMKilled,
    TokenBudgetExceeded,
    BudgetNearLimit,
    OperationTimeout,
    ChronicTimeout,
    ItemStalled,
    ItemPastTime,
    ObjectiveMissed,
    BadChangeset,
    RuleViolated,
    GangDivergence,
}

/// A rule that an agent can violate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum ViolatedRule {
    /// The program asked for a host that is denied.
    NetworkDenied,
    /// Nothing raises it.
    ToolRejected,
    /// The agent asked for more child agents than it may have.
    TooManyChildren,
    /// The agent changed a path that is protected.
    ForbiddenPath,
    /// The sandbox refused a system call.
    SandboxViolation,
}

/// An action of the supervisor, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Intervention {
    Log,
    Warn,
    Notify,
    Escalate,
    Pause,
    Requeue,
    Restart,
    RestartGang,
    Reap,
}
