//! Calls of each dialect: any reader finds in the forwarded body what the gateway counted.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;
use spillway_dialect::Kind;

/// Paths, and their members for the output limit.
const PATHS: [(&str, &[&str]); 7] = [
    ("/v1/messages", &["max_tokens"]),
    ("/v1/messages/count_tokens", &[]),
    ("/v1/chat/completions", &["max_tokens", "max_completion_tokens"]),
    ("/v1/responses", &["max_output_tokens"]),
    ("/v1beta/models/m:generateContent", &["maxOutputTokens", "max_output_tokens"]),
    ("/v1beta/models/m:streamGenerateContent", &["maxOutputTokens", "max_output_tokens"]),
    ("/v1beta/models/m:countTokens", &[]),
];
/// The tokens that a hold may give to one answer.
const GIVEN: i64 = 1_000;

/// The output limits in a body. Gemini has them in its configuration.
fn limits(body: &Value, gemini: bool, names: &[&str]) -> Vec<i64> {
    let configuration = || ["generationConfig", "generation_config"].iter().find_map(|key| body.get(key)).unwrap_or(&Value::Null);
    let place = if gemini { configuration() } else { body };
    names.iter().filter_map(|key| place.get(key)?.as_i64()).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let (path, names) = PATHS[usize::from(*first) % PATHS.len()];
    let Some(route) = spillway_dialect::route("POST", path, None) else { panic!("{path} is no route") };
    let Ok(call) = spillway_dialect::parse(&route, None, None, body) else { return };
    // A lone surrogate, or a number that is too large for serde_json, is valid JSON.
    let Ok(before) = serde_json::from_slice::<Value>(body) else {
        assert!(serde_json::from_slice::<IgnoredAny>(body).is_ok(), "what is taken is JSON");
        return;
    };
    if let Some(model) = before.get("model").and_then(Value::as_str) {
        assert_eq!(call.model(), model.strip_prefix("models/").filter(|_| route.model.is_some()).unwrap_or(model));
    }
    let facts = call.facts();
    assert!(facts.bytes >= 0 && facts.other_tokens >= 0, "{facts:?}");
    let sent = call.upstream_body(GIVEN);
    let after: Value = serde_json::from_slice(&sent).expect("what is sent is JSON");
    if call.kind() != Kind::Generate {
        assert_eq!(sent, body, "what costs nothing is sent as it stands");
        return;
    }
    let limits = limits(&after, route.model.is_some(), names);
    assert!(!limits.is_empty(), "no limit of output is sent: {after}");
    assert!(limits.iter().all(|limit| *limit <= GIVEN), "more output may come than was given: {after}");
    assert!(sent.len() <= body.len() + 256, "what is sent is what was counted");
    // A second pass counts the same, and changes nothing.
    let again = spillway_dialect::parse(&route, None, None, sent.as_slice()).expect("what is sent is taken");
    assert_eq!(again.upstream_body(GIVEN), sent);
    assert_eq!((again.model(), again.stream()), (call.model(), call.stream()));
});
