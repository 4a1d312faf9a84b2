//! The one shape of a refusal, from gateway and governor alike.

use serde::{Deserialize, Serialize};

use crate::shortage::Shortage;

/// Why a call was refused: for programs to act on. Public API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No bearer token came with the call.
    NoToken,
    /// The API server does not vouch for the token: forged, expired, or its pod is gone.
    InvalidToken,
    /// The token is for somebody else than the gateway.
    WrongAudience,
    /// The token is not bound to a pod, and the call does not say which agent outside the cluster it is of.
    NotAPod,
    /// The pod is no agent's: its uid is not the one that was recorded when its agent's pod was made. Or the caller is not the
    /// agent outside the cluster that it says it is.
    NotAnAgent,
    /// The agent ended; nothing that is left of it may act.
    AgentEnded,
    /// This caller may not make this call.
    NotAllowed,
    /// There is no such call.
    NoSuchCall,
    /// The call is part of the API and this version does not serve it.
    NotBuilt,
    /// The path is served, with another method.
    WrongMethod,
    /// The body is not what the call takes; `field` says where.
    InvalidBody,
    /// The body is larger than any call takes.
    BodyTooLarge,
    /// A limit of the pool or the agent is reached.
    LimitReached,
    /// The same idempotency key came with another body.
    KeyReused,
    /// The lease is not the caller's any more: another one holds the item, or it was freed.
    StaleLease,
    /// The item is gone: it was deleted.
    LeaseLost,
    /// The item ended already, otherwise.
    FinishedAlready,
    /// The caller holds no item.
    NotHeld,
    /// The caller's pool works from no queue.
    NoQueues,
    /// The caller's preflight has not passed: it gets no work before.
    PreflightNotPassed,
    /// The queue does not exist, or no queue takes the type.
    QueueMissing,
    /// The queue holds as much as it may; `limit` and `current` say how much.
    QueueFull,
    /// The queue does not take items of this type.
    TypeNotAccepted,
    /// The payload is larger than the queue takes.
    ItemTooLarge,
    /// The item would wait for itself.
    Cycle,
    /// An item of the same dedupKey exists.
    Duplicate,
    /// Others hold what is left, or the window ends soon: the call is given tokens later. `budget` says of what.
    BudgetHeld,
    /// A budget is spent: trying again does not help before its window ends or somebody raises it. `budget` says which.
    BudgetExhausted,
    /// The pool has no such model API, or it may not be called for this model.
    ModelNotAllowed,
    /// The agent is paused, or it does not hold the item any more that the call is for.
    NotWorking,
    /// The gateway's session is not known to this leader: it must begin.
    SessionUnknown,
    /// The number of the hold was used before, or closed: nothing is held under it.
    HoldClosed,
    /// The governor cannot be reached now; the call was not carried out, or nobody knows. Try again.
    GovernorAway,
    /// A circuit breaker is open: what keeps failing is not tried for a while; `retryAfterSeconds` says for how long, if time alone helps.
    CircuitOpen,
    /// The model turn took longer than its pool allows.
    TurnTimedOut,
    /// Too many calls; try again after `retryAfterSeconds`.
    TooManyCalls,
    /// Something of ours is wrong; the log of the process says what.
    Internal,
    /// A code that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Code {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::NoToken | Self::InvalidToken | Self::WrongAudience => 401,
            Self::NotAPod | Self::NotAnAgent | Self::AgentEnded | Self::NotAllowed | Self::LimitReached | Self::NoQueues => 403,
            Self::NoSuchCall => 404,
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
            Self::GovernorAway | Self::CircuitOpen => 503,
            Self::TurnTimedOut => 504,
            Self::Internal | Self::Unknown => 500,
        }
    }

    /// The word for metrics, as it is in JSON.
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

    /// Whether the same call may succeed later, so that a caller keeps it and tries again.
    pub fn passes(self) -> bool {
        match self {
            Self::GovernorAway
            | Self::TooManyCalls
            | Self::PreflightNotPassed
            | Self::BudgetHeld
            | Self::CircuitOpen
            | Self::TurnTimedOut
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
            | Self::NotWorking
            | Self::SessionUnknown
            | Self::HoldClosed => false,
        }
    }
}

/// A refusal, as every 4xx and 5xx answer carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people: what is wrong, and what to do.
    pub message: String,
    /// The field of the body that is wrong, as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// When to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// The limit that is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What there is, or what was asked for, against the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// The budget that stands in the way of a model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<Shortage>>,
}

impl Refusal {
    /// A refusal without a field.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), field: None, retry_after_seconds: None, limit: None, current: None, budget: None }
    }

    /// Whoever could answer is away, or does not know yet: come again in a second.
    pub fn away(message: impl Into<String>) -> Self {
        Self::new(Code::GovernorAway, message).retry_after(1)
    }

    /// Names the field that is wrong.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says which limit is reached, and by what.
    pub fn limit(mut self, limit: u64, current: u64) -> Self {
        (self.limit, self.current) = (Some(limit), Some(current));
        self
    }

    /// Says which budget stands in the way.
    pub fn budget(mut self, shortage: Shortage) -> Self {
        self.budget = Some(Box::new(shortage));
        self
    }

    /// Says when to try again.
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
