//! Checks of every CustomResourceDefinition, and of the round trip of each kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::cel::{apply_defaults, compile_schema};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use spillway_api::{Agent, AgentPool, Breaker, Budget, ClusterBudget, Grant, Toolset, WorkItem, WorkQueue, crds};

use crate::cases;
use crate::table::Case;

fn schema(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).expect("a schema");
    serde_json::to_value(schema).expect("JSON")
}

/// Calls `see` with each node of a schema and its path.
fn nodes(schema: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    see(path, schema);
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        nodes(inner, &format!("{path}.{name}"), see);
    }
    for (key, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            nodes(&schema[key], &format!("{path}{sign}"), see);
        }
    }
}

#[test]
fn there_are_nine_kinds_under_the_names_people_type() {
    let kinds: Vec<_> = crds::all()
        .into_iter()
        .map(|crd| (crd.spec.names.kind, crd.spec.names.short_names.unwrap_or_default().join(","), crd.spec.scope))
        .collect();
    let kinds: Vec<_> = kinds.iter().map(|(kind, short, scope)| (kind.as_str(), short.as_str(), scope.as_str())).collect();
    assert_eq!(
        kinds,
        [
            ("AgentPool", "apool", "Namespaced"),
            ("Agent", "ag", "Namespaced"),
            ("Breaker", "brk", "Namespaced"),
            ("Budget", "bud", "Namespaced"),
            ("ClusterBudget", "cbud", "Cluster"),
            ("Grant", "", "Namespaced"),
            ("Toolset", "ts", "Namespaced"),
            ("WorkItem", "wi", "Namespaced"),
            ("WorkQueue", "wq", "Namespaced"),
        ]
    );
}

#[test]
fn the_names_alone_are_those_of_all() {
    let names: Vec<_> = crds::all().into_iter().map(|crd| crd.spec.names.plural).collect();
    assert_eq!(crds::plurals().as_slice(), names);
}

#[test]
fn every_kind_keeps_the_conventions() {
    for crd in crds::all() {
        let kind = &crd.spec.names.kind;
        let schema = schema(&crd);
        assert_eq!(crd.spec.group, spillway_api::GROUP, "{kind}");
        assert_eq!(crd.spec.names.categories, Some(vec!["spillway".to_owned()]), "{kind}");
        let version = &crd.spec.versions[0];
        assert!(version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some()), "{kind}");
        assert!(version.additional_printer_columns.iter().flatten().any(|column| column.name == "Age"), "{kind}");
        assert_eq!(schema["required"], json!(["spec"]), "{kind}: without it the transition rules could be bypassed");
        let status = &schema["properties"]["status"];
        assert_eq!(status["default"], json!({"observedGeneration": -1}), "{kind}");
        assert_eq!(status["properties"]["observedGeneration"]["type"], "integer", "{kind}");
        let conditions = &status["properties"]["conditions"];
        assert_eq!(conditions["x-kubernetes-list-type"], "map", "{kind}");
        assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]), "{kind}");
    }
}

#[test]
fn every_kind_that_a_governor_owns_is_fenced_by_its_epoch() {
    for crd in crds::all() {
        let kind = &crd.spec.names.kind;
        let status = &schema(&crd)["properties"]["status"];
        let fenced = status["x-kubernetes-validations"].as_array().is_some_and(|rules| {
            rules.iter().any(|rule| rule["rule"].as_str().is_some_and(|rule| rule.contains("self.governorEpoch >= oldSelf.governorEpoch")))
        });
        assert_eq!(fenced, status["properties"]["governorEpoch"].is_object(), "{kind}");
        if ["WorkItem", "Agent", "AgentPool", "Budget", "ClusterBudget", "Breaker"].contains(&kind.as_str()) {
            assert!(fenced, "{kind}");
        }
    }
}

#[test]
fn every_schema_is_structural_and_bounded() {
    let mut wrong = Vec::new();
    for crd in crds::all() {
        nodes(&schema(&crd), &crd.spec.names.kind, &mut |path, node| {
            let mut say = |what: &str| wrong.push(format!("{path}: {what}"));
            let whole = node["x-kubernetes-int-or-string"] == true;
            match node["type"].as_str() {
                Some("array") if node["maxItems"].is_null() => say("an array without maxItems"),
                Some("string") if node["maxLength"].is_null() && node["enum"].is_null() && node["format"] != "date-time" => {
                    say("a string without maxLength");
                }
                Some("object") if node["additionalProperties"].is_object() => {
                    if node["maxProperties"].is_null() {
                        say("a map without maxProperties");
                    }
                    // A schema cannot bound the keys.
                    let keys = |rule: &Value| rule["rule"].as_str().is_some_and(|rule| rule.starts_with("self.all(key, key.size() <= "));
                    if !node["x-kubernetes-validations"].as_array().is_some_and(|rules| rules.iter().any(keys)) {
                        say("a map whose keys are not bounded");
                    }
                }
                Some("number") => say("a fraction"),
                None if !whole => say("no type"),
                None if node["maxLength"].is_null() => say("an int-or-string without maxLength"),
                _ => {}
            }
            if node["format"].as_str().is_some_and(|format| !["int32", "int64", "date-time"].contains(&format)) {
                say("a format that the API server does not know or would warn of");
            }
            if node["additionalProperties"] == true || node["type"] == "array" && !node["items"].is_object() {
                say("anything is allowed inside");
            }
            for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
                if !node[key].is_null() {
                    say(key);
                }
            }
            for key in ["$ref", "allOf", "anyOf", "oneOf", "not", "definitions"] {
                if !node[key].is_null() {
                    say(key);
                }
            }
            if node["nullable"] == true && node["enum"].is_array() {
                say("an enum that may be null, which the API server refuses");
            }
            if node["description"].as_str().is_none_or(str::is_empty)
                && !path.ends_with("[]")
                && !path.ends_with("{}")
                && path.contains(".spec.")
            {
                say("no description");
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_compiles_and_says_what_is_wrong() {
    for crd in crds::all() {
        let schema = schema(&crd);
        let compiled = compile_schema(&schema);
        assert!(!compiled.has_errors(), "{}: {:?}", crd.spec.names.kind, compiled.compilation_errors());
        nodes(&schema, &crd.spec.names.kind, &mut |path, node| {
            for rule in node["x-kubernetes-validations"].as_array().into_iter().flatten() {
                assert!(rule["message"].is_string(), "{path}: a rule without a message");
                let text = rule["rule"].as_str().expect("a rule");
                // Comparing optionals compiles here, but a real API server cannot bound its cost and refuses the CRD.
                assert!(!text.contains(".?"), "{path}: {text}");
            }
        });
    }
}

/// Maximum number of characters of JSON that a schema accepts, without its rules, if no character is escaped. Keys of
/// maps are as long as those of labels.
fn longest(schema: &Value) -> u64 {
    let most = |key: &str| schema[key].as_u64().unwrap_or_default();
    let whole = |most: u64| most.saturating_add(2);
    match schema["type"].as_str() {
        Some("object") if schema["additionalProperties"].is_object() => {
            whole(most("maxProperties").saturating_mul(longest(&schema["additionalProperties"]).saturating_add(317 + 4)))
        }
        Some("object") => {
            let fields = schema["properties"].as_object();
            whole(
                fields
                    .into_iter()
                    .flatten()
                    .map(|(name, field)| longest(field).saturating_add(u64::try_from(name.len()).expect("a length") + 4))
                    .sum(),
            )
        }
        Some("array") => whole(most("maxItems").saturating_mul(longest(&schema["items"]).saturating_add(1))),
        Some("string") if schema["enum"].is_array() || schema["format"] == "date-time" => 40,
        Some("string") | None => whole(most("maxLength")),
        Some("integer") => 20,
        Some("boolean") => 5,
        other => panic!("{other:?}"),
    }
}

#[test]
fn specs_have_a_known_maximum_length() {
    // With the rules about commands and environments, no spec of a user is much longer than 256 KiB, above which the
    // operator reads none. The first two numbers below are higher, because they count each field at its maximum length.
    let expected = [
        ("AgentPool", 2_600_000),
        ("WorkItem", 800_000),
        ("Agent", 32_000),
        ("Breaker", 16_000),
        ("Budget", 64_000),
        ("ClusterBudget", 128_000),
        ("Grant", 16_000),
        // One is read at a time, and none is served whose upstream has more than 120 KiB.
        ("Toolset", 12_000_000),
        ("WorkQueue", 64_000),
    ];
    let expected: std::collections::BTreeMap<_, _> = expected.into();
    for crd in crds::all() {
        let length = longest(&schema(&crd)["properties"]["spec"]);
        let most = expected[crd.spec.names.kind.as_str()];
        assert!(length <= most, "{}: {length} characters", crd.spec.names.kind);
    }
}

/// Decodes and encodes every accepted case of the kind. The result must be the case with the defaults of the schema.
fn comes_back<K: CustomResourceExt + DeserializeOwned + Serialize>(cases: &[Case]) {
    let crd = K::crd();
    let (kind, schema) = (&crd.spec.names.kind, schema(&crd));
    let mut seen = 0;
    for case in cases.iter().filter(|case| case.kind == *kind && case.error.is_none()) {
        let written = without_nulls(&apply_defaults(&schema, &case.object));
        let decoded: K = serde_json::from_value(written.clone()).unwrap_or_else(|error| panic!("{kind}: {}: {error}", case.name));
        let encoded = serde_json::to_value(&decoded).expect("JSON");
        assert_eq!(as_text(&encoded), as_text(&written), "{kind}: {}", case.name);
        seen += 1;
    }
    assert!(seen >= 3, "{kind}: {seen} cases");
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        other => other.clone(),
    }
}

/// The value with each number of a quantity as a string, because a decoded quantity is encoded as a string.
fn as_text(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let quantity = ["cpu", "memory", "pods", "storage"].contains(&key.as_str()) && value.is_number();
                (key.clone(), if quantity { Value::String(value.to_string()) } else { as_text(value) })
            })
            .collect(),
        Value::Array(items) => items.iter().map(as_text).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_kind_comes_back_as_it_was_written() {
    let cases = cases();
    comes_back::<Agent>(&cases);
    comes_back::<AgentPool>(&cases);
    comes_back::<Breaker>(&cases);
    comes_back::<Budget>(&cases);
    comes_back::<ClusterBudget>(&cases);
    comes_back::<Grant>(&cases);
    comes_back::<Toolset>(&cases);
    comes_back::<WorkItem>(&cases);
    comes_back::<WorkQueue>(&cases);
}
