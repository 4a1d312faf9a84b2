//! Any text as the value of a member that no dialect reads: a forwarded body is valid JSON for serde_json too, and
//! valid JSON is forwarded, except bodies that are refused on purpose.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Reasons to refuse a body that serde_json can read.
const ON_PURPOSE: [&str; 6] =
    ["occurs twice", "unpaired surrogate", "nested deeper", "more than", "some servers read it as", "data after the end"];

fuzz_target!(|data: &[u8]| {
    let Some(route) = spillway_dialect::route("POST", "/v1/chat/completions", None) else { return };
    let mut body = br#"{"model":"m","messages":[],"unread":"#.to_vec();
    body.extend_from_slice(data);
    body.push(b'}');
    let theirs: Result<Value, _> = serde_json::from_slice(&body);
    match (spillway_dialect::parse(&route, Some("application/json"), None, body.as_slice()), theirs) {
        (Ok(_), Ok(value)) => assert!(value.is_object()),
        // A lone surrogate in a text, or a number that is too large for serde_json, is valid JSON.
        (Ok(_), Err(error)) => assert!(serde_json::from_slice::<IgnoredAny>(&body).is_ok(), "taken, and serde_json says {error}"),
        (Err(_), Err(_)) => {}
        (Err(fault), Ok(value)) => {
            // Text that closes the object can add members that dialects read, and these may be refused for their
            // values.
            let known = value.as_object().is_some_and(|members| members.len() == 3 && members.contains_key("unread"));
            // serde_json reads numbers beyond f64 only as errors, and a number of any length as a number.
            assert!(!known || ON_PURPOSE.iter().any(|why| fault.message.contains(why)), "refused: {fault}: {value}");
        }
    }
});
