//! Answers of a provider, metered in parts.

use spillway_dialect::{Call, Meter, parse, route};
use spillway_wire::meter::{Quality, Usage};

/// Calls of each dialect, with and without a usage chunk that the client did not request.
const CALLS: [(&str, &str); 5] = [
    ("/v1/messages", r#"{"model":"m","max_tokens":9,"messages":[]}"#),
    ("/v1/chat/completions", r#"{"model":"m","messages":[],"stream":true}"#),
    ("/v1/chat/completions", r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#),
    ("/v1/responses", r#"{"model":"m","input":"a"}"#),
    ("/v1beta/models/m:generateContent", r#"{"contents":[]}"#),
];

/// The call with this number.
pub fn call(number: u8) -> Call {
    let (path, body) = CALLS[usize::from(number) % CALLS.len()];
    let route = route("POST", path, None).expect("a route");
    parse(&route, None, None, body).expect("a call")
}

/// For an answer in these parts: the bytes that pass, the usage, its quality, and the output before the end.
pub fn metered(call: &Call, events: bool, complete: bool, parts: &[&[u8]]) -> (Vec<u8>, Usage, Quality, i64) {
    let media = if events { "text/event-stream" } else { "application/json" };
    let (mut meter, mut out) = (Meter::new(call, 200, Some(media)), Vec::new());
    parts.iter().for_each(|part| meter.feed(part, &mut out));
    let so_far = meter.output_so_far();
    let (usage, quality) = meter.end(complete, &mut out);
    (out, usage, quality, so_far)
}
