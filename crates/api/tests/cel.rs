//! Checks every case of the table against the schema and the CEL rules of its kind, without an API server.

mod crds;
mod structural;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use kube::core::cel::{CompiledSchema, ValidationErrors, Validator, apply_defaults, compile_schema};
use serde_json::Value;
use table::Case;

/// All cases of the table.
fn cases() -> Vec<Case> {
    table::cases(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")))
}

/// The schema of a kind, with its rules compiled once.
struct Kind {
    schema: Value,
    compiled: CompiledSchema,
    validator: Validator,
}

impl Kind {
    /// Structural errors of an object.
    fn structure(&self, object: &Value) -> Vec<String> {
        structural::check(&self.schema, &apply_defaults(&self.schema, object))
    }

    /// The CEL rules that an object breaks.
    fn rules(&self, object: &Value, old: Option<&Value>) -> Result<(), ValidationErrors> {
        self.validator.validate_compiled(&self.compiled, object, old)
    }

    /// All errors of an object. As on the API server, the rules run only on an object without structural errors.
    fn errors(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let found = self.structure(object);
        if !found.is_empty() {
            return found;
        }
        self.rules(object, old).err().iter().flatten().map(ToString::to_string).collect()
    }
}

fn kinds() -> BTreeMap<String, Kind> {
    spillway_api::crds::all()
        .into_iter()
        .map(|crd| {
            let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).expect("a schema");
            let schema = serde_json::to_value(schema).expect("JSON");
            let compiled = compile_schema(&schema);
            (crd.spec.names.kind, Kind { schema, compiled, validator: Validator::new() })
        })
        .collect()
}

#[test]
fn each_case_is_accepted_or_refused_as_the_table_says() {
    let kinds = kinds();
    let mut wrong = Vec::new();
    let all = cases();
    for case in &all {
        let kind = &kinds[&case.kind];
        let place = format!("{}: {}", case.kind, case.name);
        if let Some(old) = &case.old {
            let old = kind.errors(old, None);
            assert!(old.is_empty(), "{place}: the old object is refused: {old:?}");
        }
        let found = kind.errors(&case.object, case.old.as_ref());
        match &case.error {
            None if found.is_empty() => {}
            Some(error) if found.iter().any(|found| found.contains(error)) => {}
            expected => wrong.push(format!("{place}: expected {expected:?}, found {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn each_rule_is_met_by_an_accepted_case_and_broken_by_a_refused_one() {
    let kinds = kinds();
    let mut rules = BTreeSet::new();
    for (name, kind) in &kinds {
        every_rule(&kind.schema, &mut |rule| {
            rules.insert((name.clone(), rule.to_owned()));
        });
    }
    let (mut met, mut broken) = (BTreeSet::new(), BTreeSet::new());
    for case in cases() {
        let kind = &kinds[&case.kind];
        if case.error.is_none() {
            let object = apply_defaults(&kind.schema, &case.object);
            let old = case.old.as_ref().map(|old| apply_defaults(&kind.schema, old));
            rules_run(&kind.schema, &object, old.as_ref(), &mut |rule| {
                met.insert((case.kind.clone(), rule.to_owned()));
            });
        } else if kind.structure(&case.object).is_empty()
            && let Err(errors) = kind.rules(&case.object, case.old.as_ref())
        {
            broken.extend(errors.iter().map(|error| (case.kind.clone(), error.rule.clone())));
        }
    }
    let never_met: Vec<_> = rules.difference(&met).collect();
    assert!(never_met.is_empty(), "no accepted case runs {never_met:#?}");
    // A rule that is also in a second kind needs no second refused case.
    let broken: BTreeSet<_> = broken.into_iter().map(|(_, rule)| rule).collect();
    let never_broken: Vec<_> = rules.iter().filter(|(_, rule)| !broken.contains(rule)).collect();
    assert!(never_broken.is_empty(), "no refused case breaks {never_broken:#?}");
}

/// Every rule of a schema.
fn every_rule(schema: &Value, see: &mut impl FnMut(&str)) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        see(rule["rule"].as_str().expect("a rule"));
    }
    for inner in schema["properties"].as_object().into_iter().flat_map(|properties| properties.values()) {
        every_rule(inner, see);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            every_rule(&schema[key], see);
        }
    }
}

/// Every rule that runs on a value: a rule on a field runs if the field exists, and a transition rule only if it also
/// existed before.
fn rules_run(schema: &Value, value: &Value, old: Option<&Value>, see: &mut impl FnMut(&str)) {
    if value.is_null() {
        return;
    }
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let rule = rule["rule"].as_str().expect("a rule");
        if old.is_some() || !rule.contains("oldSelf") {
            see(rule);
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let inner = schema["properties"].get(name).or(schema.get("additionalProperties"));
                if let Some(inner) = inner {
                    rules_run(inner, field, old.and_then(|old| old.get(name)), see);
                }
            }
        }
        Value::Array(items) => {
            let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for item in items {
                let old_items = old.and_then(Value::as_array).into_iter().flatten();
                let old = old_items.into_iter().find(|old| !keys.is_empty() && keys.iter().all(|key| old[key] == item[key]));
                rules_run(&schema["items"], item, old, see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
