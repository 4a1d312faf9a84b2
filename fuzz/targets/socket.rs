//! The first line of a connection to the pod's socket: accepted within its bounds, or refused with the name of the
//! wrong field.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use spillway_wire::body::read;
use spillway_wire::link::{Control, Hello};

fuzz_target!(|data: &[u8]| {
    for line in data.split(|byte| *byte == b'\n') {
        match read::<Hello>(line) {
            Ok(hello) => {
                // An accepted line can be written again, and is the same.
                let said = serde_json::to_vec(&hello).expect("JSON");
                assert_eq!(read::<Hello>(&said).expect("taken again"), hello);
            }
            Err(refusal) => assert!(refusal.field.is_some(), "{}", refusal.message),
        }
        // The supervisor's lines.
        let _ = serde_json::from_slice::<Control>(line);
    }
});
