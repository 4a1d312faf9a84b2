//! Answers of each dialect, cut anywhere: the same bytes pass with the same usage, and the usage covers all written
//! output.
#![cfg_attr(fuzzing, no_main)]

#[path = "shared/answer.rs"]
mod answer;

use answer::{call, metered};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Answer<'a> {
    dialect: u8,
    events: bool,
    complete: bool,
    cuts: [u16; 4],
    bytes: &'a [u8],
}

fuzz_target!(|answer: Answer<'_>| {
    let Answer { dialect, events, complete, cuts, bytes } = answer;
    let call = call(dialect);
    let whole = metered(&call, events, complete, &[bytes]);
    let mut places: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let parts: Vec<&[u8]> = places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
    let cut = metered(&call, events, complete, &parts);
    assert_eq!((&cut.0, cut.1, cut.2), (&whole.0, whole.1, whole.2), "cut at {places:?}");
    assert!(whole.0.len() <= bytes.len(), "nothing is added");
    let usage = whole.1;
    assert!([usage.input, usage.cache_read, usage.cache_write, usage.output].iter().all(|tokens| *tokens >= 0), "{usage:?}");
    assert!(whole.3 >= 0);
});
