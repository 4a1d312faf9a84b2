//! Checks the list of unsupported fields against the schemas and against CEL as the API server evaluates it.

mod table;

use kube::core::cel::{Validator, compile_schema};
use serde_json::{Value, json};
use spillway_api::unsupported::{Field, UNSUPPORTED_FIELDS, Values};

/// The schema of a kind.
fn schema(kind: &str) -> Value {
    let crds = spillway_api::crds::all();
    let crd = crds.into_iter().find(|crd| crd.spec.names.kind == kind).unwrap_or_else(|| panic!("there is no kind {kind}"));
    let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    serde_json::to_value(schema.expect("a schema")).expect("JSON")
}

/// The schema of a field.
fn at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(schema, |schema, part| match part.strip_suffix("[]") {
        Some(list) => schema["properties"].get(list)?.get("items"),
        None => schema["properties"].get(part),
    })
}

#[test]
fn every_field_of_the_list_is_one_and_its_values_are_its_own() {
    for field in UNSUPPORTED_FIELDS {
        let schema = schema(field.kind);
        let found = at(&schema, field.path).unwrap_or_else(|| panic!("{} has no field {}", field.kind, field.path));
        match field.values {
            Values::Any => {}
            Values::NotEmpty => assert_eq!(found["type"], "array", "{field:?}"),
            Values::True => assert_eq!(found["type"], "boolean", "{field:?}"),
            Values::These(these) => {
                let known: Vec<&str> = found["enum"].as_array().expect("an enumeration").iter().filter_map(Value::as_str).collect();
                assert!(these.iter().all(|value| known.contains(value)), "{field:?}: {known:?}");
            }
        }
    }
}

#[test]
fn descriptions_say_that_an_unsupported_field_is_not_supported() {
    for field in UNSUPPORTED_FIELDS {
        let schema = schema(field.kind);
        let parts: Vec<&str> = field.path.split('.').collect();
        let above = (0..=parts.len()).map(|count| parts[..count].join("."));
        let said: Vec<&str> = above
            .filter_map(|path| if path.is_empty() { Some(&schema) } else { at(&schema, path.trim_end_matches("[]")) })
            .filter_map(|schema| schema["description"].as_str())
            .collect();
        let told = said
            .iter()
            .any(|text| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase().contains("not supported by this version"));
        assert!(told, "no description on the path of {} {} says that it is not supported: {said:?}", field.kind, field.path);
    }
}

/// Returns a function that evaluates by CEL whether an object does not use a field.
fn cel(field: Field) -> impl Fn(&Value) -> bool {
    let mut schema = schema(field.kind);
    // There is one rule, at the root. The structure of the object is as in the schema.
    strip(&mut schema);
    schema["x-kubernetes-validations"] = json!([{"rule": field.expression("self"), "message": "asked"}]);
    let (compiled, validator) = (compile_schema(&schema), Validator::new());
    move |object| validator.validate_compiled(&compiled, object, None).is_ok()
}

fn strip(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("x-kubernetes-validations");
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(strip),
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An object that uses a field and no other field of the list.
fn asking(field: Field) -> Value {
    let value = match field.values {
        Values::Any | Values::True => json!(true),
        Values::NotEmpty => json!(["x"]),
        Values::These(these) => json!(these[0]),
    };
    let value = if field.values == Values::Any { json!({}) } else { value };
    let parts: Vec<&str> = field.path.split('.').collect();
    parts.iter().rev().fold(value, |value, part| match part.strip_suffix("[]") {
        Some(list) => json!({list: [value]}),
        None => json!({*part: value}),
    })
}

#[test]
fn cel_and_the_conditions_find_the_same() {
    let cases = table::cases(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")));
    let mut compared = 0;
    for field in UNSUPPORTED_FIELDS {
        let (object, passes) = (asking(field), cel(field));
        assert!(field.is_used_by(&object["spec"]), "{field:?}: {object}");
        assert!(!passes(&object), "{}: {object}", field.expression("self"));
        for case in cases.iter().filter(|case| case.kind == field.kind && case.error.is_none()) {
            for object in [Some(&case.object), case.old.as_ref()].into_iter().flatten().filter(|object| object["spec"].is_object()) {
                assert_eq!(passes(object), !field.is_used_by(&object["spec"]), "{} of `{}`: {object}", field.path, case.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "only {compared} objects were compared");
}
