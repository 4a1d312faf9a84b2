//! The table of cases in `tests/cases`, one file for each kind: objects that the API server accepts or refuses.
//!
//! The cases are data, so that the unit test and a test against a real API server use the same table.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: String,
    base: Value,
    cases: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    object: Value,
    old: Option<Value>,
    error: Option<String>,
}

/// One case, complete.
pub struct Case {
    /// Kind of the object.
    pub kind: String,
    /// Name of the case.
    pub name: String,
    /// The object that is written.
    pub object: Value,
    /// The object that is stored before. None: the object is created.
    pub old: Option<Value>,
    /// A part of the expected error. None: the object is accepted.
    pub error: Option<String>,
}

/// All cases of a folder, in the order of files and lines.
pub fn cases(folder: &Path) -> Vec<Case> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("tests/cases").map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let file: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut base = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": file.kind});
        merge(&mut base, &file.base);
        for Entry { name, object, old, error } in file.cases {
            all.push(Case {
                kind: file.kind.clone(),
                object: patched(&base, &object),
                old: old.map(|old| patched(&base, &old)),
                name,
                error,
            });
        }
    }
    all
}

fn patched(base: &Value, patch: &Value) -> Value {
    let mut object = base.clone();
    merge(&mut object, patch);
    expand(&mut object);
    object
}

/// Applies a JSON merge patch. Null removes a field.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Expands `{repeat: [text, times]}` to a long string and `{setNull: true}` to null, which a merge patch cannot
/// express.
fn expand(value: &mut Value) {
    if *value == json!({"setNull": true}) {
        *value = Value::Null;
        return;
    }
    if let Some([Value::String(text), Value::Number(times)]) = value.get("repeat").and_then(Value::as_array).map(Vec::as_slice) {
        let times = times.as_u64().and_then(|times| usize::try_from(times).ok()).expect("times");
        *value = Value::String(text.repeat(times));
        return;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(expand),
        Value::Array(items) => items.iter_mut().for_each(expand),
        _ => {}
    }
}
