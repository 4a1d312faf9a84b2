//! Over the agents' API: what is left of the budgets over an agent, and asking for more.
//!
//! Asking raises nothing: it is written where people see it, and a person grants.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};

/// The most tokens that can be asked for: what a Grant can give.
pub const MAX_TOKENS: i64 = 1_000_000_000_000_000;
/// The most characters of a reason.
const MAX_REASON_CHARS: usize = 256;

/// The answer to `GET /agent/v1/budget`: every limit that a model call of the caller passes, the nearest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RemainingTokens {
    /// The limits. None: nothing limits its calls.
    pub limits: Vec<Limit>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Whose, in words: the item's share, the agent's lifetime, a Budget, a ClusterBudget.
    pub budget: String,
    /// Its name.
    pub name: String,
    /// What it holds for: `Minute`, `Hour`, `Day`, `Week`, `Month` or `Lifetime`.
    pub window: String,
    /// Its tokens, with what was granted.
    pub limit: i64,
    /// Tokens that are spent, or count as spent.
    pub used: i64,
    /// Tokens that are held for calls in flight.
    pub held: i64,
    /// Tokens that are left; never below 0.
    pub left: i64,
    /// When its window ends; a lifetime does not.
    #[serde(default)]
    pub resets: Option<String>,
    /// Whether calls beyond it are refused; else they are only counted.
    pub enforced: bool,
    /// Whether a threshold pauses it: calls are refused though something is left.
    #[serde(default)]
    pub paused: bool,
}

/// The body of `POST /agent/v1/budget/request`: what the caller would need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskTokens {
    /// Tokens on top of what it may spend; 0: it needs no more, what it asked for before is taken back.
    pub tokens: i64,
    /// Why, for people; at most 256 characters. Needed but to take back.
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
