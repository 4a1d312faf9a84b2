//! The limit that refuses a model call, and the tokens that it has left.
//!
//! [`Refusal`](crate::Refusal) contains it, and any body can be refused. Therefore this file imports no other file of
//! the crate.

use serde::{Deserialize, Serialize};

/// State of a token limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LimitRoom {
    /// The budget, as text: `Budget/default in team`, `the agent's lifetime`.
    pub budget: String,
    /// Name of the limit.
    pub name: String,
    /// The limit, including grants, in weighted tokens.
    pub limit: i64,
    /// Tokens spent, including lost ones.
    pub used: i64,
    /// Tokens held for calls in flight.
    pub held: i64,
    /// Tokens left. It is never below 0.
    pub left: i64,
    /// When the window ends, in milliseconds since 1970. Unset: it never ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<i64>,
}

/// Why a model call gets no tokens. A refusal with [`Code::BudgetHeld`](crate::Code::BudgetHeld) or
/// [`Code::BudgetExhausted`](crate::Code::BudgetExhausted) contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// The limit that refuses the call, if it is a limit of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<LimitRoom>,
    /// Reason, as one word: `used`, `held`, `guaranteed`, `recovering`, `too_large`, `paused`, `in_flight` and so on.
    pub because: String,
    /// Field that a person must raise, with its object: `spec.tokens.limits[hourly].tokens of Budget/default`.
    pub field: String,
    /// Whether the lifetime tokens of the agent or the share of its item are spent.
    pub own: bool,
}
