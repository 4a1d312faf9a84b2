//! Budgets in the agents' API: the tokens that are left, and requests for more.
//!
//! A request raises no limit. It is published, and a person grants it.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};

/// Maximum number of tokens in a request. It is the maximum of a Grant.
pub const MAX_TOKENS: i64 = 1_000_000_000_000_000;
/// Maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 256;

/// The answer to `GET /agent/v1/budget`: every limit that applies to a model call of the caller, the nearest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RemainingTokens {
    /// The limits. Empty: no limit applies to the caller's calls.
    pub limits: Vec<Limit>,
}

/// A token limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Owner of the limit, as text: the item's share, the agent's lifetime, a Budget, a ClusterBudget.
    pub budget: String,
    /// Name of the limit.
    pub name: String,
    /// Window of the limit: `Minute`, `Hour`, `Day`, `Week`, `Month` or `Lifetime`.
    pub window: String,
    /// Tokens of the limit, including grants.
    pub limit: i64,
    /// Tokens spent, including lost ones.
    pub used: i64,
    /// Tokens held for calls in flight.
    pub held: i64,
    /// Tokens left. It is never below 0.
    pub left: i64,
    /// When the window ends. Unset for a lifetime, which does not end.
    #[serde(default)]
    pub resets: Option<String>,
    /// Whether calls beyond the limit are refused. Otherwise they are only counted.
    pub enforced: bool,
    /// Whether a threshold has paused the limit: calls are refused although tokens are left.
    #[serde(default)]
    pub paused: bool,
}

/// The body of `POST /agent/v1/budget/request`: tokens that the caller needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskTokens {
    /// Tokens in addition to the current limit. 0 withdraws an earlier request.
    pub tokens: i64,
    /// Reason, for people; at most 256 characters. It is required unless the request is withdrawn.
    #[serde(default)]
    pub reason: String,
}

impl BoundedBody for AskTokens {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if !(0..=MAX_TOKENS).contains(&self.tokens) {
            return Err(("tokens", format!("must be from 0 to {MAX_TOKENS}, but is {}", self.tokens)));
        }
        if self.tokens > 0 && self.reason.trim().is_empty() {
            return Err(("reason", "must not be empty: a person decides on the request by its reason".into()));
        }
        at_most("reason", &self.reason, MAX_REASON_CHARS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body;

    #[test]
    fn what_is_asked_for_is_a_number_with_a_reason() {
        let field = |text: &str| body::read::<AskTokens>(text.as_bytes()).map(|asked| asked.tokens).map_err(|refusal| refusal.field);
        assert_eq!(field("{\"tokens\": 50000, \"reason\": \"the tests\"}"), Ok(50_000));
        assert_eq!(field("{\"tokens\": 0}"), Ok(0));
        let of = |name: &str| Err(Some(name.to_owned()));
        assert_eq!(field("{}"), of("tokens"));
        assert_eq!(field("{\"tokens\": -1, \"reason\": \"x\"}"), of("tokens"));
        assert_eq!(field("{\"tokens\": 1000000000000001, \"reason\": \"x\"}"), of("tokens"));
        assert_eq!(field("{\"tokens\": 1, \"reason\": \" \\n\"}"), of("reason"));
        assert_eq!(field("{\"tokens\": 1}"), of("reason"));
        assert_eq!(field(&format!("{{\"tokens\": 1, \"reason\": \"{}\"}}", "x".repeat(257))), of("reason"));
        assert_eq!(field("{\"tokens\": 1, \"reason\": \"x\", \"budget\": \"other\"}"), of("budget"));
    }
}
