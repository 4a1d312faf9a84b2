//! How a pool's agents are watched, and what is done about what the monitors report.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::shared::Mode;

/// How agents are watched.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.heartbeatTimeoutSeconds) ? self.heartbeatTimeoutSeconds : 1800) >= 3 * (has(self.heartbeatPeriodSeconds) ? self.heartbeatPeriodSeconds : 20)")
        .message("heartbeatTimeoutSeconds (1800 when unset) must be at least three times heartbeatPeriodSeconds (20 when unset)")
        .field_path(".heartbeatTimeoutSeconds"),
)]
pub struct Supervision {
    /// Act, only watch, or neither.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,
    /// Seconds between heartbeats. Default 20.
    #[schemars(range(min = 1, max = 3600))]
    pub heartbeat_period_seconds: Option<i32>,
    /// Seconds of silence after which an agent is stale. Default 1800.
    #[schemars(range(min = 3, max = 86400))]
    pub heartbeat_timeout_seconds: Option<i32>,
    /// Seconds between being asked to stop and being killed. Default 15.
    #[schemars(range(min = 1, max = 3600))]
    pub goodbye_timeout_seconds: Option<i32>,
    /// Seconds a new agent may take to register and to start its program. Default 300.
    #[schemars(range(min = 1, max = 86400))]
    pub startup_timeout_seconds: Option<i32>,
    /// Seconds a stopped Agent is kept for reading. Default 3600.
    #[serde(rename = "stoppedTTLSeconds")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub stopped_ttl_seconds: Option<i32>,
    /// When the agents of one group fail together.
    pub gang: Option<Gang>,
    /// Other answers than the default ones.
    #[schemars(length(max = 32))]
    pub rules: Option<Vec<SupervisionRule>>,
}

/// When the agents of one group fail together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// Percentage of failed members.
    #[schemars(range(min = 1, max = 100))]
    pub failed_percent: i32,
    /// And at least so many.
    #[schemars(range(min = 1, max = 1000))]
    pub min_failed: i32,
    /// Within so many seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: i32,
}

/// An answer to a signal.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.signal == 'RuleViolated') == has(self.rule)")
        .message("rule must be set with signal: RuleViolated, and only with it")
        .field_path(".rule"),
    validation = Rule::new("has(self.count) == has(self.windowSeconds)")
        .message("count and windowSeconds must be set together: so many times within so many seconds")
        .field_path(".count"),
)]
pub struct SupervisionRule {
    /// The signal. BadChangeset is not supported by this version: nothing raises it.
    pub signal: Signal,
    /// Which rule was violated, with `signal: RuleViolated`. NetworkDenied, ToolRejected and ForbiddenPath are not supported by this
    /// version: nothing raises them.
    pub rule: Option<ViolatedRule>,
    /// How many times, within `windowSeconds`.
    #[schemars(range(min = 1, max = 256))]
    pub count: Option<i32>,
    /// The window, in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub window_seconds: Option<i32>,
    /// What to do.
    #[serde(rename = "do")]
    pub do_: Intervention,
}

/// What a monitor can report.
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

/// A rule of the sandbox that an agent can violate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::described_where_it_is_used)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum ViolatedRule {
    NetworkDenied,
    ToolRejected,
    TooManyChildren,
    ForbiddenPath,
}

/// What the supervisor can do, weakest first.
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
