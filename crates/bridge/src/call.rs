//! The words of one call: each value is checked again at each call, and becomes part of one word. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::definition::argument::Checked;

/// The most bytes of all words of a command. The kernel takes more.
pub const MAX_COMMAND_BYTES: usize = 96 * 1024;

/// Why a call is refused. No process was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message} ({rule})")]
pub struct CallRefused {
    /// The argument, or `args`.
    pub field: String,
    /// The rule, in one word.
    pub rule: &'static str,
    /// What is wrong.
    pub message: String,
}

fn refused(field: &str, rule: &'static str, message: impl Into<String>) -> CallRefused {
    CallRefused { field: field.to_owned(), rule, message: message.into() }
}

/// The checked arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedCall {
    values: BTreeMap<String, Checked>,
}

impl CheckedCall {
    /// Checks the arguments of a call.
    pub fn check(definition: &Definition, arguments: &Map<String, Value>) -> Result<Self, CallRefused> {
        if definition.takes_any_arguments {
            return Ok(Self { values: BTreeMap::new() });
        }
        if let Some(unknown) = arguments.keys().find(|name| !definition.arguments.iter().any(|argument| argument.name == **name)) {
            // A name may be as long and as hostile as a value.
            let name: String = unknown.chars().filter(|character| !character.is_control()).take(64).collect();
            return Err(refused("args", "unknown", format!("{} has no argument {name:?}", definition.name)));
        }
        let mut values = BTreeMap::new();
        for argument in &definition.arguments {
            match arguments.get(&argument.name) {
                None if argument.required => return Err(refused(&argument.name, "required", "is missing")),
                None => {}
                Some(value) => {
                    let checked = argument.check(value).map_err(|(rule, message)| refused(&argument.name, rule, message))?;
                    values.insert(argument.name.clone(), checked);
                }
            }
        }
        Ok(Self { values })
    }

    /// The names of artifacts, by the names of their arguments.
    pub fn artifacts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().filter_map(|(name, value)| match value {
            Checked::Artifact(file) => Some((name.as_str(), file.as_str())),
            Checked::Text(_) => None,
        })
    }

    /// The words after the program. `files`: the private copies of artifacts, by the names of their arguments.
    pub fn words(&self, definition: &Definition, files: &BTreeMap<String, String>) -> Result<Vec<String>, CallRefused> {
        let value = |name: &str| match self.values.get(name)? {
            Checked::Text(text) => Some(text.as_str()),
            Checked::Artifact(_) => files.get(name).map(String::as_str),
        };
        let words: Vec<String> = definition.words.iter().filter_map(|word| word.fill(value)).collect();
        let bytes: usize = words.iter().map(|word| word.len() + 1).sum();
        if bytes > MAX_COMMAND_BYTES {
            return Err(refused("args", "tooLong", format!("the command has {bytes} bytes, and may have {MAX_COMMAND_BYTES}")));
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::definition::{Allowed, load};

    const PUSH: &str = r#"---
name: push
description: d
command: /usr/bin/git
argv: ["push", "--force={force}", "origin", "{bundle}:refs/heads/{branch}", "{note}"]
args:
  - {name: bundle, type: artifact, required: true}
  - {name: branch, pattern: "agent/[a-z0-9._-]{1,20}", required: true}
  - {name: force, type: boolean}
  - {name: note, maxLength: 16384}
---
"#;

    fn push() -> Definition {
        let allowed = Allowed { commands: Some(vec!["/usr/bin/*".into()]), credentials: Vec::new(), max_seconds: 60 };
        load(PUSH.as_bytes(), &allowed).expect("it is valid")
    }

    fn words(arguments: &Value) -> Result<Vec<String>, CallRefused> {
        let definition = push();
        let call = CheckedCall::check(&definition, arguments.as_object().expect("an object"))?;
        let files = call.artifacts().map(|(name, id)| (name.to_owned(), format!("/files/{id}"))).collect();
        call.words(&definition, &files)
    }

    #[test]
    fn a_call_becomes_words_and_what_is_not_given_is_left_out() {
        let all = json!({"bundle": "b1", "branch": "agent/x", "force": true, "note": "$(id); rm -rf / \u{e9}"});
        let expected = ["push", "--force=true", "origin", "/files/b1:refs/heads/agent/x", "$(id); rm -rf / \u{e9}"];
        assert_eq!(words(&all), Ok(expected.map(str::to_owned).to_vec()));
        let least = json!({"bundle": "b1", "branch": "agent/x"});
        assert_eq!(words(&least), Ok(["push", "origin", "/files/b1:refs/heads/agent/x"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_call_that_is_wrong_names_its_argument_and_the_rule() {
        let good = json!({"bundle": "b1", "branch": "agent/x"});
        for (name, value, field, rule) in [
            ("branch", json!("main"), "branch", "pattern"),
            ("branch", json!("agent/x\u{0}"), "branch", "control"),
            ("branch", json!(1), "branch", "type"),
            ("bundle", json!("../b"), "bundle", "artifact"),
            ("note", json!("-rf"), "note", "leadingDash"),
            ("note", json!("x".repeat(16_385)), "note", "maxLength"),
            ("other", json!("x"), "args", "unknown"),
            ("--force", json!(true), "args", "unknown"),
        ] {
            let mut arguments = good.clone();
            arguments[name] = value;
            let refused = words(&arguments).expect_err(name);
            assert_eq!((refused.field.as_str(), refused.rule), (field, rule), "{refused}");
        }
        assert_eq!(words(&json!({"branch": "agent/x"})).expect_err("no bundle").rule, "required");
        let mut many = good;
        (0..10_000).for_each(|number| many[format!("x{number}")] = json!(1));
        assert_eq!(words(&many).expect_err("ten thousand").rule, "unknown");
    }

    proptest! {
        /// Whatever a value holds, it changes no other word, and adds none.
        #[test]
        fn a_value_is_part_of_one_word(note in "\\PC{0,40}", branch in "[a-z]{1,5}") {
            let given = json!({"bundle": "b", "branch": format!("agent/{branch}"), "note": note});
            if let Ok(words) = words(&given) {
                prop_assert_eq!(words.len(), 4);
                prop_assert_eq!(&words[2], &format!("/files/b:refs/heads/agent/{branch}"));
                prop_assert!(words[3] == note && !note.starts_with('-'));
            }
        }
    }
}
