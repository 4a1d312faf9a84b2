//! Refusals: a provider's own ones, and the gateway's ones for a budget, in each protocol. Pure.

use serde_json::{Value, json};

use crate::ask::Api;

/// A refusal.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// `retry-after`, in seconds.
    pub retry: Option<u64>,
    /// `x-should-retry: false`.
    pub no_retry: bool,
    /// `location`.
    pub location: Option<String>,
    /// `x-codex-promo-message`: the only text of a 429 that Codex shows.
    pub shown: Option<String>,
}

impl Refusal {
    /// A refusal with the provider's own message.
    #[must_use]
    pub fn of(api: Api, status: u16, message: &str) -> Self {
        Self { status, body: body(api, status, message), retry: None, no_retry: false, location: None, shown: None }
    }
}

/// An error in the protocol's own form.
fn body(api: Api, status: u16, message: &str) -> Value {
    match api {
        Api::Anthropic => {
            let kind = match status {
                400 | 422 => "invalid_request_error",
                401 => "authentication_error",
                402 => "billing_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                529 => "overloaded_error",
                _ => "api_error",
            };
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
        }
        Api::Chat | Api::Responses => {
            let (kind, code) = match status {
                401 => ("invalid_request_error", json!("invalid_api_key")),
                404 => ("invalid_request_error", json!("model_not_found")),
                429 => ("requests", json!("rate_limit_exceeded")),
                400..=499 => ("invalid_request_error", Value::Null),
                _ => ("server_error", Value::Null),
            };
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
        Api::Gemini => {
            let name = match status {
                400 => "INVALID_ARGUMENT",
                401 => "UNAUTHENTICATED",
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                429 => "RESOURCE_EXHAUSTED",
                503 | 529 => "UNAVAILABLE",
                _ => "INTERNAL",
            };
            json!({"error": {"code": status, "message": message, "status": name}})
        }
    }
}

/// The message that a program must show: the budget, the tokens that are left, the time of the reset, and the field to
/// raise.
pub const SPENT: &str = "Budget/codex in demo is spent: 0 of 300000 tokens are left in the limit hourly until 2026-12-01T00:00:00Z. \
    To go on, raise spec.tokens.limits[hourly].tokens of Budget/codex, or ask whoever runs it for a Grant.";
/// The time of the reset, in seconds since 1970.
const RESETS_AT: i64 = 1_796_083_200;

/// The refusal of a budget that is spent for long, in the form that clients of the protocol were measured to
/// understand.
#[must_use]
pub fn spent(api: Api, by_400: bool) -> Refusal {
    let status = match api {
        _ if by_400 => 400,
        Api::Anthropic | Api::Chat | Api::Gemini => 402,
        Api::Responses => 429,
    };
    let mut refusal = Refusal { no_retry: true, ..Refusal::of(api, status, SPENT) };
    if api == Api::Responses && !by_400 {
        refusal.shown = Some(SPENT.trim_end_matches('.').to_owned());
        refusal.body =
            json!({"error": {"type": "usage_limit_reached", "message": SPENT, "resets_at": RESETS_AT, "code": null, "param": null}});
    }
    refusal
}

/// The refusal of a window that resets soon. Every client waits for the reset.
#[must_use]
pub fn window(api: Api, left: u64) -> Refusal {
    let message = format!("Budget/codex in demo has no tokens left in the limit minutely; it resets in {left} s");
    Refusal { retry: Some(left), ..Refusal::of(api, 429, &message) }
}
