//! Answers of each dialect, cut at any places: the same passes, the same was used, and never less than was written.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use spillway_dialect::{Call, Meter, parse, route};

#[derive(Arbitrary, Debug)]
struct Answer<'a> {
    dialect: u8,
    events: bool,
    complete: bool,
    cuts: [u16; 4],
    bytes: &'a [u8],
}

const CALLS: [(&str, &str); 5] = [
    ("/v1/messages", r#"{"model":"m","max_tokens":9,"messages":[]}"#),
    ("/v1/chat/completions", r#"{"model":"m","messages":[],"stream":true}"#),
    ("/v1/chat/completions", r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#),
    ("/v1/responses", r#"{"model":"m","input":"a"}"#),
    ("/v1beta/models/m:generateContent", r#"{"contents":[]}"#),
];

fn call(number: u8) -> Call {
    let (path, body) = CALLS[usize::from(number) % CALLS.len()];
    let route = route("POST", path, None).expect("a route");
    parse(&route, None, None, body.as_bytes()).expect("a call")
}

fuzz_target!(|answer: Answer<'_>| {
    let Answer { dialect, events, complete, cuts, bytes } = answer;
    let call = call(dialect);
    let media = if events { "text/event-stream" } else { "application/json" };
    let metered = |parts: &[&[u8]]| {
        let (mut meter, mut out) = (Meter::new(&call, 200, Some(media)), Vec::new());
        parts.iter().for_each(|part| meter.feed(part, &mut out));
        let so_far = meter.output_so_far();
        let (usage, quality) = meter.end(complete, &mut out);
        (out, usage, quality, so_far)
    };
    let whole = metered(&[bytes]);
    let mut places: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let parts: Vec<&[u8]> = places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
    let cut = metered(&parts);
    assert_eq!((&cut.0, cut.1, cut.2), (&whole.0, whole.1, whole.2), "cut at {places:?}");
    assert!(whole.0.len() <= bytes.len(), "nothing is added");
    let usage = whole.1;
    assert!([usage.input, usage.cache_read, usage.cache_write, usage.output].iter().all(|tokens| *tokens >= 0), "{usage:?}");
    assert!(whole.3 >= 0);
});
