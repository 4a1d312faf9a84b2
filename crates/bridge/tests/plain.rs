//! A definition as people write it first: a name, a description, a command, and arguments with types and patterns. It has no `argv` and
//! nothing else, and it is loaded as it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spillway_bridge::call::CheckedCall;
use spillway_bridge::definition::{Allowed, Definition, load};

/// The patterns have anchors, as in most other programs. They change nothing, because the whole text is matched anyway.
const PLAIN: &str = r#"---
name: deploy
description: Deploy a version of a service
command: /opt/tools/deploy
args:
  - name: environment
    type: enum
    values: [staging, production]
    required: true
  - name: service
    type: string
    pattern: "^[a-z][a-z0-9-]{0,39}$"
    required: true
    description: name of the service
  - name: version
    type: string
    pattern: "v[0-9]+\\.[0-9]+\\.[0-9]+"
    required: true
  - name: replicas
    type: integer
    min: 1
    max: 20
  - name: wait
    type: boolean
---
Deploys a version of a service, and prints its URL.
"#;

fn loaded(text: &str) -> Definition {
    load(text.as_bytes(), &Allowed { commands: None, credentials: Vec::new(), max_seconds: 300 }).expect("it is valid")
}

/// The words of a call, or the argument that is refused and the rule.
fn words(definition: &Definition, arguments: &Value) -> Result<Vec<String>, (String, &'static str)> {
    let call = CheckedCall::check(definition, arguments.as_object().expect("an object"));
    let words = call.and_then(|call| call.words(definition, &BTreeMap::new()));
    words.map_err(|refused| (refused.field, refused.rule))
}

#[test]
fn a_definition_without_argv_is_loaded_and_gives_each_argument_in_order() {
    let definition = loaded(PLAIN);
    assert_eq!((definition.name.as_str(), definition.help.as_str()), ("deploy", "Deploys a version of a service, and prints its URL."));
    // The order is that of the definition, whatever the order of a call is.
    let all = json!({"wait": true, "version": "v1.2.3", "replicas": 3, "service": "web", "environment": "staging"});
    assert_eq!(words(&definition, &all), Ok(["staging", "web", "v1.2.3", "3", "true"].map(str::to_owned).to_vec()));
    let least = json!({"environment": "production", "service": "web", "version": "v1.2.3"});
    assert_eq!(words(&definition, &least), Ok(["production", "web", "v1.2.3"].map(str::to_owned).to_vec()));
}

#[test]
fn its_types_and_patterns_are_enforced() {
    let definition = loaded(PLAIN);
    for (name, value, rule) in [
        ("environment", json!("test"), "enum"),
        ("service", json!("web; id"), "pattern"),
        ("service", json!("--help"), "leadingDash"),
        ("service", json!("web\n"), "control"),
        ("version", json!("v1.2.3.4"), "pattern"),
        ("version", json!("v1.2"), "pattern"),
        ("replicas", json!(21), "range"),
        ("replicas", json!("3"), "type"),
        ("wait", json!("yes"), "type"),
    ] {
        let mut arguments = json!({"environment": "staging", "service": "web", "version": "v1.2.3"});
        arguments[name] = value;
        assert_eq!(words(&definition, &arguments), Err((name.to_owned(), rule)), "{arguments}");
    }
}

/// The least of all: no argument has a type.
#[test]
fn a_type_that_is_left_out_is_a_text() {
    let definition = loaded("---\nname: say\ndescription: d\ncommand: /bin/echo\nargs:\n  - name: word\n    pattern: '[a-z ]+'\n---\n");
    assert_eq!(words(&definition, &json!({"word": "a b; id"})), Err(("word".to_owned(), "pattern")));
    assert_eq!(words(&definition, &json!({"word": "a b"})), Ok(vec!["a b".to_owned()]));
}
