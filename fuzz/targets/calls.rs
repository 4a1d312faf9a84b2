//! Calls of each dialect: what is sent on says what was counted, whoever reads it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use spillway_dialect::Kind;

const PATHS: [&str; 8] = [
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1beta/models/m:generateContent",
    "/v1beta/models/m:streamGenerateContent",
    "/v1beta/models/m:countTokens",
];
/// What a hold may give one answer, in tokens.
const GIVEN: i64 = 1_000;
/// Members that say how much output there may be, in any dialect.
const LIMITS: [&str; 5] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "max_output_tokens"];

/// The limits of output that stand in a body, wherever they stand in it that a dialect reads.
fn limits(body: &Value) -> Vec<i64> {
    let configurations = ["generationConfig", "generation_config"].iter().filter_map(|key| body.get(key));
    let places = std::iter::once(body).chain(configurations);
    places.flat_map(|place| LIMITS.iter().filter_map(|key| place.get(key)?.as_i64())).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let path = PATHS[usize::from(*first) % PATHS.len()];
    let Some(route) = spillway_dialect::route("POST", path, None) else { panic!("{path} is no route") };
    let Ok(call) = spillway_dialect::parse(&route, None, None, body) else { return };
    let before: Value = serde_json::from_slice(body).expect("what is taken is JSON");
    if let Some(model) = before.get("model").and_then(Value::as_str) {
        assert_eq!(call.model(), model.strip_prefix("models/").filter(|_| route.model.is_some()).unwrap_or(model));
    }
    let facts = call.facts();
    assert!(facts.bytes >= 0 && facts.other_tokens >= 0, "{facts:?}");
    let sent = call.upstream(GIVEN);
    let after: Value = serde_json::from_slice(&sent).expect("what is sent is JSON");
    if call.kind() != Kind::Generate {
        assert_eq!(sent, body, "what costs nothing is sent as it stands");
        return;
    }
    assert!(!limits(&after).is_empty(), "no limit of output is sent: {after}");
    assert!(limits(&after).iter().all(|limit| *limit <= GIVEN), "more output may come than was given: {after}");
    assert!(sent.len() <= body.len() + 256, "what is sent is what was counted");
    // Whoever reads it again counts no more, and changes nothing more.
    let again = spillway_dialect::parse(&route, None, None, &sent).expect("what is sent is taken");
    assert_eq!(again.upstream(GIVEN), sent);
    assert_eq!((again.model(), again.stream()), (call.model(), call.stream()));
});
