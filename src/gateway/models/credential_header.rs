//! The header in which a provider expects the team's credential. Pure.

use http::{HeaderName, HeaderValue, header};

use crate::wire::meter::Dialect;
use crate::wire::{Code, Refusal};

/// Headers that a credential may be sent in, besides `Authorization: Bearer`.
const CREDENTIAL_HEADERS: [&str; 3] = ["x-api-key", "x-goog-api-key", "api-key"];

/// The header for a credential: from `credential_type`, else the usual one of the dialect.
pub fn credential_header(
    dialect: Dialect,
    credential_type: Option<&str>,
    token: &HeaderValue,
) -> Result<(HeaderName, HeaderValue), Refusal> {
    let usual = match dialect {
        Dialect::Anthropic => "x-api-key",
        Dialect::OpenAIChat | Dialect::OpenAIResponses => "Bearer",
        Dialect::Gemini => "x-goog-api-key",
    };
    let kind = credential_type.unwrap_or(usual);
    if kind.eq_ignore_ascii_case("bearer") {
        let bearer = [b"Bearer ", token.as_bytes()].concat();
        let mut value = HeaderValue::from_bytes(&bearer)
            .map_err(|_| permanent_refusal("the credential has characters that a header cannot have".into()))?;
        value.set_sensitive(true);
        return Ok((header::AUTHORIZATION, value));
    }
    let name = HeaderName::try_from(kind).ok().filter(|name| CREDENTIAL_HEADERS.contains(&name.as_str()));
    let name = name.ok_or_else(|| {
        let known = CREDENTIAL_HEADERS.join(", ");
        permanent_refusal(format!("spec.models[].credentialType of the pool is {kind:?}; allowed values are Bearer, {known}"))
    })?;
    Ok((name, token.clone()))
}

/// A refusal that a retry does not solve. Its status is 400, which clients show and do not retry.
fn permanent_refusal(message: String) -> Refusal {
    Refusal::new(Code::ModelNotAllowed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_sends_it_in_its_own_way() {
        let token = HeaderValue::from_static("t");
        let sent = |dialect, kind| {
            credential_header(dialect, kind, &token).map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("")))
        };
        for (dialect, kind, expected) in [
            (Dialect::Anthropic, None, "x-api-key: t"),
            (Dialect::Anthropic, Some("Bearer"), "authorization: Bearer t"),
            (Dialect::OpenAIChat, None, "authorization: Bearer t"),
            (Dialect::OpenAIResponses, None, "authorization: Bearer t"),
            (Dialect::OpenAIChat, Some("api-key"), "api-key: t"),
            (Dialect::Gemini, None, "x-goog-api-key: t"),
            (Dialect::Gemini, Some("X-API-Key"), "x-api-key: t"),
        ] {
            assert_eq!(sent(dialect, kind).as_deref(), Ok(expected));
        }
        assert!(sent(Dialect::Gemini, Some("cookie")).is_err());
    }
}
