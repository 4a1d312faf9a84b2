//! Which limit refuses a model call, and how many tokens it has left.
//!
//! [`Refusal`](crate::Refusal) carries it, and every body can be refused. So this file imports no other file of the crate.

use serde::{Deserialize, Serialize};

/// How a limit stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LimitRoom {
    /// The budget, in words: `Budget/default in team`, `the agent's lifetime`.
    pub budget: String,
    /// Name of the limit.
    pub name: String,
    /// The limit, grants among it, in weighed tokens.
    pub limit: i64,
    /// Spent, and lost.
    pub used: i64,
    /// Held for calls in flight.
    pub held: i64,
    /// What is left; never below 0.
    pub left: i64,
    /// When its window ends, in milliseconds since 1970; unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<i64>,
}

/// Why a model call is not given tokens: what a refusal with [`Code::BudgetHeld`](crate::Code::BudgetHeld) or
/// [`Code::BudgetExhausted`](crate::Code::BudgetExhausted) says beside its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// The limit that stands in the way, where it is one of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<LimitRoom>,
    /// One word: `used`, `held`, `guaranteed`, `recovering`, `too_large`, `paused`, `in_flight` and so on.
    pub because: String,
    /// The field to raise, with its object: `spec.tokens.limits[hourly].tokens of Budget/default`.
    pub field: String,
    /// It is the agent's own life or its item's share that ran out.
    pub own: bool,
}
