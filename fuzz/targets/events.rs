//! Streams of events and pieces of JSON, cut once at every place, and into single bytes: the same bytes pass with the
//! same usage.
#![cfg_attr(fuzzing, no_main)]

#[path = "shared/answer.rs"]
mod answer;

use answer::{call, metered};
use libfuzzer_sys::fuzz_target;

/// Longer inputs take too long to cut at every place.
const MOST: usize = 600;

fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    let bytes = &bytes[..bytes.len().min(MOST)];
    let (events, complete) = (kind & 0x40 == 0, kind & 0x80 == 0);
    let call = call(kind & 0x3f);
    let whole = metered(&call, events, complete, &[bytes]);
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(metered(&call, events, complete, &[first, second]), whole, "cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(metered(&call, events, complete, &single), whole, "cut into bytes");
});
