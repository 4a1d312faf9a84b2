//! Bodies of the agents' API: each is accepted within its bounds, or refused with the name of the wrong field.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use spillway_wire::agent::{Goodbye, Register, Report, Spawn};
use spillway_wire::body::{BoundedBody, read};
use spillway_wire::budget::AskTokens;
use spillway_wire::follow::{InboxQuery, ListWork};
use spillway_wire::plan::Plan;
use spillway_wire::work::{Claim, Complete, Fail, ProgressUpdate, Release, Submit};

fn tried<T: BoundedBody>(bytes: &[u8]) {
    if let Err(refusal) = read::<T>(bytes) {
        assert!(refusal.field.is_some_and(|field| !field.is_empty()), "{}", refusal.message);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    match first % 13 {
        0 => tried::<Register>(bytes),
        1 => tried::<Report>(bytes),
        2 => tried::<Goodbye>(bytes),
        3 => tried::<Spawn>(bytes),
        4 => tried::<Claim>(bytes),
        5 => tried::<Complete>(bytes),
        6 => tried::<Fail>(bytes),
        7 => tried::<Release>(bytes),
        8 => tried::<ProgressUpdate>(bytes),
        9 => tried::<Submit>(bytes),
        10 => tried::<Plan>(bytes),
        11 => tried::<AskTokens>(bytes),
        _ => {
            tried::<ListWork>(bytes);
            tried::<InboxQuery>(bytes);
        }
    }
});
