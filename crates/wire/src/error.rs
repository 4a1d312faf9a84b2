//! The common form of a refusal, from the gateway and from the governor.

use serde::{Deserialize, Serialize};

use crate::shortage::Shortage;

/// Reason of a refusal, for programs. Public API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The call has no bearer token.
    NoToken,
    /// The API server does not accept the token: it is forged or expired, or its pod is gone.
    InvalidToken,
    /// The token has another audience than the gateway.
    WrongAudience,
    /// The token is not bound to a pod, and the call names no agent outside the cluster.
    NotAPod,
    /// No Agent has recorded the uid of this pod. Or the caller is not the agent outside the cluster that the call
    /// names.
    NotAnAgent,
    /// The agent has ended. No remaining process of it may act.
    AgentEnded,
    /// This caller may not make this call.
    NotAllowed,
    /// The path does not exist.
    NoSuchCall,
    /// The artifact does not exist, or its time is over.
    NoSuchArtifact,
    /// The call is part of the API, but this version does not serve it.
    NotBuilt,
    /// The path is served with another method.
    WrongMethod,
    /// The body does not fit the call. `field` names the wrong field.
    InvalidBody,
    /// The body is larger than the maximum of the call.
    BodyTooLarge,
    /// A limit of the pool or the agent is reached.
    LimitReached,
    /// The idempotency key was used for a call with another body.
    KeyReused,
    /// The lease is no longer the caller's: another agent holds the item, or the item was released.
    StaleLease,
    /// The item was deleted.
    LeaseLost,
    /// The item has already ended with another result.
    FinishedAlready,
    /// The caller holds no item.
    NotHeld,
    /// The caller's pool works from no queue.
    NoQueues,
    /// The caller's preflight has not passed. The caller gets no work before.
    PreflightNotPassed,
    /// The queue does not exist, or no queue accepts the type.
    QueueMissing,
    /// The queue is full. `limit` and `current` contain the numbers.
    QueueFull,
    /// The queue does not accept items of this type.
    TypeNotAccepted,
    /// The payload is larger than the maximum of the queue.
    ItemTooLarge,
    /// The item depends on itself, directly or through other items.
    Cycle,
    /// An item with the same dedupKey exists.
    Duplicate,
    /// Other calls hold the tokens that are left, or the window ends soon. The call can get tokens later. `budget`
    /// names the budget.
    BudgetHeld,
    /// A budget is spent. A retry fails until its window ends or a person raises the limit. `budget` names the budget.
    BudgetExhausted,
    /// The pool has no such model API, or does not allow this model for it.
    ModelNotAllowed,
    /// The destination is denied. `reason` says why.
    EgressDenied,
    /// The git request is denied. `reason` says why.
    GitDenied,
    /// The call of a Toolset is denied. `reason` says why.
    ToolsDenied,
    /// The destination is allowed, but cannot be reached now.
    DestinationUnreachable,
    /// The agent is paused, or it no longer holds the item of the call.
    NotWorking,
    /// The leader does not know the gateway's session. The gateway must begin it again.
    SessionUnknown,
    /// The number of the hold was used before, or the hold is closed. No tokens are held under it.
    HoldClosed,
    /// The governor cannot be reached now. The call was not carried out, or its outcome is unknown. Try again.
    GovernorAway,
    /// A circuit breaker is open because calls kept failing. `retryAfterSeconds` says how long to wait, if waiting
    /// alone helps.
    CircuitOpen,
    /// The model turn took longer than its pool allows.
    TurnTimedOut,
    /// There are too many calls. Try again after `retryAfterSeconds`.
    TooManyCalls,
    /// An internal error of Spillway. The log of the process has the details.
    Internal,
    /// A code that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Code {
    /// The HTTP status of the code.
    pub fn status(self) -> u16 {
        match self {
            Self::NoToken | Self::InvalidToken | Self::WrongAudience => 401,
            Self::NotAPod
            | Self::NotAnAgent
            | Self::AgentEnded
            | Self::NotAllowed
            | Self::LimitReached
            | Self::NoQueues
            | Self::EgressDenied
            | Self::GitDenied
            | Self::ToolsDenied => 403,
            Self::NoSuchCall | Self::NoSuchArtifact => 404,
            Self::WrongMethod => 405,
            Self::InvalidBody | Self::BodyTooLarge | Self::ModelNotAllowed => 400,
            Self::KeyReused
            | Self::StaleLease
            | Self::FinishedAlready
            | Self::NotHeld
            | Self::QueueFull
            | Self::Duplicate
            | Self::PreflightNotPassed
            | Self::SessionUnknown
            | Self::HoldClosed => 409,
            Self::LeaseLost => 410,
            Self::ItemTooLarge => 413,
            Self::QueueMissing | Self::TypeNotAccepted | Self::Cycle => 422,
            Self::TooManyCalls | Self::BudgetHeld => 429,
            Self::BudgetExhausted | Self::NotWorking => 402,
            Self::NotBuilt => 501,
            Self::DestinationUnreachable => 502,
            Self::GovernorAway | Self::CircuitOpen => 503,
            Self::TurnTimedOut => 504,
            Self::Internal | Self::Unknown => 500,
        }
    }

    /// The code as it is in JSON and in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::InvalidToken => "invalid_token",
            Self::WrongAudience => "wrong_audience",
            Self::NotAPod => "not_a_pod",
            Self::NotAnAgent => "not_an_agent",
            Self::AgentEnded => "agent_ended",
            Self::NotAllowed => "not_allowed",
            Self::NoSuchCall => "no_such_call",
            Self::NoSuchArtifact => "no_such_artifact",
            Self::NotBuilt => "not_built",
            Self::WrongMethod => "wrong_method",
            Self::InvalidBody => "invalid_body",
            Self::BodyTooLarge => "body_too_large",
            Self::LimitReached => "limit_reached",
            Self::KeyReused => "key_reused",
            Self::StaleLease => "stale_lease",
            Self::LeaseLost => "lease_lost",
            Self::FinishedAlready => "finished_already",
            Self::NotHeld => "not_held",
            Self::NoQueues => "no_queues",
            Self::PreflightNotPassed => "preflight_not_passed",
            Self::QueueMissing => "queue_missing",
            Self::QueueFull => "queue_full",
            Self::TypeNotAccepted => "type_not_accepted",
            Self::ItemTooLarge => "item_too_large",
            Self::Cycle => "cycle",
            Self::Duplicate => "duplicate",
            Self::BudgetHeld => "budget_held",
            Self::BudgetExhausted => "budget_exhausted",
            Self::ModelNotAllowed => "model_not_allowed",
            Self::EgressDenied => "egress_denied",
            Self::GitDenied => "git_denied",
            Self::ToolsDenied => "tools_denied",
            Self::DestinationUnreachable => "destination_unreachable",
            Self::NotWorking => "not_working",
            Self::SessionUnknown => "session_unknown",
            Self::HoldClosed => "hold_closed",
            Self::GovernorAway => "governor_away",
            Self::CircuitOpen => "circuit_open",
            Self::TurnTimedOut => "turn_timed_out",
            Self::TooManyCalls => "too_many_calls",
            Self::Internal => "internal",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the same call may succeed later. The caller then keeps the call and retries it.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::GovernorAway
            | Self::TooManyCalls
            | Self::PreflightNotPassed
            | Self::BudgetHeld
            | Self::CircuitOpen
            | Self::TurnTimedOut
            | Self::DestinationUnreachable
            | Self::Internal
            | Self::Unknown => true,
            Self::NoToken
            | Self::InvalidToken
            | Self::WrongAudience
            | Self::NotAPod
            | Self::NotAnAgent
            | Self::AgentEnded
            | Self::NotAllowed
            | Self::NoSuchCall
            | Self::NoSuchArtifact
            | Self::NotBuilt
            | Self::WrongMethod
            | Self::InvalidBody
            | Self::BodyTooLarge
            | Self::LimitReached
            | Self::KeyReused
            | Self::StaleLease
            | Self::LeaseLost
            | Self::FinishedAlready
            | Self::NotHeld
            | Self::NoQueues
            | Self::QueueMissing
            | Self::QueueFull
            | Self::TypeNotAccepted
            | Self::ItemTooLarge
            | Self::Cycle
            | Self::Duplicate
            | Self::BudgetExhausted
            | Self::ModelNotAllowed
            | Self::EgressDenied
            | Self::GitDenied
            | Self::ToolsDenied
            | Self::NotWorking
            | Self::SessionUnknown
            | Self::HoldClosed => false,
        }
    }
}

/// A refusal: the body of every 4xx and 5xx answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Reason, for programs.
    pub code: Code,
    /// What is wrong and what to do, for people.
    pub message: String,
    /// Reason of a denied destination, git request or call of a Toolset, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// Path of the field that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Seconds after which to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// The limit that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The current or requested amount that is compared with the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// The budget that refuses a model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<Shortage>>,
}

impl Refusal {
    /// A refusal without a field.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason: None,
            field: None,
            retry_after_seconds: None,
            limit: None,
            current: None,
            budget: None,
        }
    }

    /// A refusal because the governor cannot answer now: try again after one second.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::GovernorAway, message).retry_after(1)
    }

    /// Sets the reason.
    pub fn reason(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets the field that is wrong.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Sets the limit that was reached and the current amount.
    pub fn limit(mut self, limit: u64, current: u64) -> Self {
        (self.limit, self.current) = (Some(limit), Some(current));
        self
    }

    /// Sets the budget that refuses the call.
    pub fn budget(mut self, shortage: Shortage) -> Self {
        self.budget = Some(Box::new(shortage));
        self
    }

    /// Sets the seconds after which to try again.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} ({})", self.message, self.code.label())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_the_word_in_json_and_an_unknown_one_is_read() {
        for code in [Code::NoToken, Code::NotAnAgent, Code::BodyTooLarge, Code::GovernorAway, Code::WrongMethod] {
            assert_eq!(serde_json::to_value(code).expect("JSON"), code.label());
        }
        assert_eq!(serde_json::from_str::<Code>("\"of_next_year\"").expect("a code"), Code::Unknown);
    }
}
