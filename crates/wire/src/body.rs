//! Reads the body of a call. Every error names the field that is wrong.

use serde::de::DeserializeOwned;

use crate::error::{Code, Refusal};

/// Maximum number of bytes of a body of the agents' API.
pub const MAX_BODY_BYTES: usize = 256 * 1024;

/// A body with limits that its types do not express.
pub trait BoundedBody: DeserializeOwned {
    /// Returns the first field that is over its limit: its path and what is wrong with it.
    fn check(&self) -> Result<(), (&'static str, String)>;
}

/// Reads `bytes` as JSON. An empty body is read as `{}`, so that a call without arguments needs no body.
pub fn read<T: BoundedBody>(bytes: &[u8]) -> Result<T, Refusal> {
    if bytes.len() > MAX_BODY_BYTES {
        let message = format!("the body must have at most {MAX_BODY_BYTES} bytes, but has {}", bytes.len());
        return Err(Refusal::new(Code::BodyTooLarge, message).field("(body)"));
    }
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // serde reads a list as the fields in order.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::new(Code::InvalidBody, "(body): a JSON object is expected").field("(body)"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { serde_field_name(error.inner()) } else { Some(path) };
        // A member with an empty name cannot be named as a field.
        let field = field.filter(|field| !field.is_empty()).unwrap_or_else(|| "(body)".to_owned());
        Refusal::new(Code::InvalidBody, format!("{field}: {}", error.inner())).field(field)
    })?;
    deserializer.end().map_err(|error| {
        Refusal::new(Code::InvalidBody, format!("(body): there is data after the end of the JSON object: {error}")).field("(body)")
    })?;
    value.check().map_err(|(field, trouble)| Refusal::new(Code::InvalidBody, format!("{field}: {trouble}")).field(field))?;
    Ok(value)
}

/// The field that serde names in its message (unknown, missing, duplicate), if the field is one of the outermost
/// object.
fn serde_field_name(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    if !["unknown field", "missing field", "duplicate field"].iter().any(|words| text.starts_with(words)) {
        return None;
    }
    text.split('`').nth(1).map(str::to_owned)
}

/// Returns an error if the text is longer than `most` characters.
pub fn at_most(field: &'static str, text: &str, most: usize) -> Result<(), (&'static str, String)> {
    let length = text.chars().count();
    if length <= most { Ok(()) } else { Err((field, format!("must have at most {most} characters, but has {length}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Goodbye;

    fn refusal(body: &str) -> Refusal {
        read::<Goodbye>(body.as_bytes()).expect_err(body)
    }

    #[test]
    fn every_error_names_its_field() {
        let cases = [
            ("{\"reason\": 7}", "reason"),
            ("{\"raeson\": \"x\"}", "raeson"),
            ("{}", "reason"),
            ("", "reason"),
            ("[]", "(body)"),
            ("{\"reason\": \"x\"} tail", "(body)"),
            ("{\"reason\": ", "reason"),
            ("{\"reason\": \"a\", \"reason\": \"b\"}", "reason"),
            ("{\"\": 1}", "(body)"),
        ];
        for (body, field) in cases {
            let refusal = refusal(body);
            assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidBody, Some(field)), "{body}: {refusal}");
        }
        assert_eq!(refusal(&format!("{{\"reason\": \"{}\"}}", "x".repeat(1025))).field.as_deref(), Some("reason"));
    }

    #[test]
    fn a_list_is_no_body_though_every_field_may_be_left_out() {
        let refusal = read::<crate::work::Claim>(b" []").expect_err("a list");
        assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidBody, Some("(body)")));
    }

    #[test]
    fn a_body_over_the_limit_is_refused_unread() {
        let huge = vec![b' '; MAX_BODY_BYTES + 1];
        assert_eq!(read::<Goodbye>(&huge).expect_err("too large").code, Code::BodyTooLarge);
    }
}
