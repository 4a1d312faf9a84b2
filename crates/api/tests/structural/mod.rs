//! The checks of an API server before the CEL rules run, for the part of OpenAPI that Spillway's schemas use. They
//! apply to create and replace; server-side apply refuses more nulls. Formats other than date-time and the schemas of
//! other APIs are not checked.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;

/// Returns the errors, each as `path: error`.
pub fn check(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, value, "", &mut found);
    found
}

fn walk(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let mut say = |what: String| found.push(format!("{path}: {what}"));
    if value.is_null() {
        return; // stored where the field is nullable, else dropped before anything is checked
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("{path}: the schema has type {other}"),
        None if schema["x-kubernetes-int-or-string"] == true => value.is_i64() || value.is_string(),
        None => panic!("{path}: the schema has no type"),
    };
    if !fits {
        return say(format!("must be of type {}", schema["type"]));
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        say(format!("must be one of {values:?}"));
    }
    match value {
        Value::String(text) => string(schema, text, &mut say),
        Value::Number(number) => {
            let number = number.as_f64().expect("a number");
            if schema["minimum"].as_f64().is_some_and(|least| number < least)
                || schema["maximum"].as_f64().is_some_and(|most| number > most)
            {
                say("out of range".to_owned());
            }
        }
        Value::Array(items) => {
            if outside(schema, "minItems", "maxItems", items.len()) {
                say("wrong number of items".to_owned());
            }
            if let Some(key) = repeated(schema, items) {
                say(format!("Duplicate value {key}"));
            }
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), found);
            }
        }
        Value::Object(fields) => {
            if outside(schema, "minProperties", "maxProperties", fields.len()) {
                say("wrong number of fields".to_owned());
            }
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let dropped = |field: &Value| field.is_null() && schema["properties"][name]["nullable"] != true;
                if fields.get(name).is_none_or(dropped) {
                    found.push(format!("{}: required", join(path, name)));
                }
            }
            for (name, field) in fields {
                let inner = schema["properties"].get(name).or(schema.get("additionalProperties"));
                match inner {
                    Some(inner) => walk(inner, field, &join(path, name), found),
                    // The API server itself checks metadata, apiVersion and kind.
                    None if path.is_empty() || schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                    None => found.push(format!("{}: unknown field", join(path, name))),
                }
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}

fn string(schema: &Value, text: &str, say: &mut impl FnMut(String)) {
    if outside(schema, "minLength", "maxLength", text.chars().count()) {
        say("wrong length".to_owned());
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !Regex::new(pattern).expect("a pattern").is_match(text)
    {
        say(format!("must match {pattern}"));
    }
    if schema["format"] == "date-time" && !(text.len() >= 20 && text.as_bytes()[10] == b'T') {
        say("must be a date-time".to_owned());
    }
}

fn outside(schema: &Value, least: &str, most: &str, size: usize) -> bool {
    let size = u64::try_from(size).expect("a size");
    schema[least].as_u64().is_some_and(|least| size < least) || schema[most].as_u64().is_some_and(|most| size > most)
}

/// The key of the first item that a list map or set has twice.
fn repeated(schema: &Value, items: &[Value]) -> Option<String> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let mut seen = BTreeSet::new();
    if keys.is_none() && schema["x-kubernetes-list-type"] != "set" {
        return None;
    }
    items
        .iter()
        .map(|item| match keys {
            Some(keys) => keys.iter().filter_map(Value::as_str).map(|key| item[key].to_string()).collect::<Vec<_>>().join(","),
            None => item.to_string(),
        })
        .find(|key| !seen.insert(key.clone()))
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
