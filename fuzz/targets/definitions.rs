//! Definitions of programs: a file is loaded or refused, never both, and what a call may give ends up in one word.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use spillway_bridge::call::CheckedCall;
use spillway_bridge::definition::{Allowed, load};

fuzz_target!(|input: (&[u8], BTreeMap<String, String>)| {
    let (file, given) = input;
    let allowed = Allowed { commands: None, credentials: vec!["key".to_owned()], max_seconds: 300 };
    let Ok(definition) = load(file, &allowed) else { return };
    assert!(definition.command.is_absolute() && !definition.name.is_empty());
    assert!((1..=300).contains(&definition.timeout_seconds));
    let declared = |name: &str| definition.arguments.iter().any(|argument| argument.name == name);
    assert!(definition.words.iter().flat_map(|word| word.arguments()).all(declared));
    let arguments: Map<String, Value> = given.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    if let Ok(call) = CheckedCall::check(&definition, &arguments) {
        let files = call.artifacts().map(|(name, id)| (name.to_owned(), format!("/files/{id}"))).collect();
        if let Ok(words) = call.words(&definition, &files) {
            assert!(words.len() <= definition.words.len());
            assert!(words.iter().all(|word| !word.contains('\0')));
        }
    }
});
