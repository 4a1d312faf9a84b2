//! No field of a spec is silently ignored: the code reads each field of the schemas at the place in `tests/fields.txt`,
//! or the field is in the list of unsupported ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use spillway::api::crds;
use spillway::api::unsupported::{UNSUPPORTED_FIELDS, Values};

/// Fields of all specs, each as kind and path.
fn schema_fields() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for crd in crds::all() {
        let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).expect("a schema");
        let schema = serde_json::to_value(schema).expect("JSON");
        walk(&crd.spec.names.kind, "spec", &schema["properties"]["spec"], &mut found);
    }
    found
}

fn walk(kind: &str, path: &str, schema: &Value, found: &mut BTreeSet<(String, String)>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        walk(kind, &path, field, found);
        walk(kind, &format!("{path}[]"), &field["items"], found);
        walk(kind, &format!("{path}.*"), &field["additionalProperties"], found);
        found.insert((kind.to_owned(), path));
    }
}

/// One line of the table, for one kind.
struct Row {
    line: usize,
    kind: String,
    pattern: String,
    file: String,
    text: String,
}

fn rows() -> Vec<Row> {
    let mut places: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut rows = Vec::new();
    for (number, line) in include_str!("fields.txt").lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, all)) = line.split_once(" = ") {
            let place =
                |one: &str| one.trim().split_once(' ').map(|(kind, path)| (kind.to_owned(), path.to_owned())).expect("a kind and a path");
            places.insert(name.to_owned(), all.split(',').map(place).collect());
            continue;
        }
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        let [kind, path, file, text] = parts[..] else { panic!("line {}: {line}", number + 1) };
        let places = places.get(kind).cloned().unwrap_or_else(|| vec![(kind.to_owned(), String::new())]);
        for (kind, base) in places {
            let pattern = format!("{base}{}", if path == "." { "" } else { path });
            rows.push(Row { line: number + 1, kind, pattern, file: file.to_owned(), text: text.to_owned() });
        }
    }
    rows
}

/// Whether a pattern matches a path.
fn matches_path(pattern: &str, path: &str) -> bool {
    let (pattern, below) = pattern.strip_suffix("**").map_or((pattern, false), |pattern| (pattern, true));
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), path.split('.').collect());
    let same = |(wanted, part): (&&str, &&str)| *wanted == "*" || wanted == part || (below && part.strip_suffix("[]") == Some(wanted));
    (path.len() == pattern.len() || (below && path.len() > pattern.len())) && pattern.iter().zip(&path).all(same)
}

/// The code of a file without comments and spaces, because line breaks do not matter.
fn code(file: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let text = text.split_once("#[cfg(test)]\nmod tests").map_or(text.as_str(), |(code, _)| code).to_owned();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(str::chars).filter(|character| !character.is_whitespace()).collect()
}

#[test]
fn every_field_is_read_or_is_said_to_be_unsupported() {
    let (fields, rows) = (schema_fields(), rows());
    assert!(fields.len() > 400, "only {} fields were found", fields.len());
    let whole: Vec<_> =
        UNSUPPORTED_FIELDS.iter().filter(|field| matches!(field.values, Values::Any | Values::NotEmpty | Values::True)).collect();
    let unsupported = |kind: &str, path: &str| {
        whole.iter().any(|field| {
            let below = path.strip_prefix(field.path);
            field.kind == kind && below.is_some_and(|below| below.is_empty() || below.starts_with('.') || below.starts_with("[]"))
        })
    };
    let partly = |kind: &str, path: &str| UNSUPPORTED_FIELDS.iter().any(|field| field.kind == kind && field.path == path);
    let mut wrong = Vec::new();
    for (kind, path) in &fields {
        let read: Vec<usize> =
            rows.iter().filter(|row| row.kind == *kind && matches_path(&row.pattern, path)).map(|row| row.line).collect();
        match (unsupported(kind, path), read.is_empty()) {
            (true, false) => {
                wrong.push(format!("{kind} {path} is unsupported, and read by line {read:?}: take it out of one of the lists"))
            }
            (false, true) if !partly(kind, path) => {
                wrong.push(format!(
                    "{kind} {path} is in no list: say in tests/fields.txt where it is read, or in crates/api/src/unsupported.rs"
                ));
            }
            (true, true) | (false, _) => {}
        }
    }
    for row in &rows {
        if !fields.iter().any(|(kind, path)| *kind == row.kind && matches_path(&row.pattern, path)) {
            wrong.push(format!("line {}: {} has no field {}", row.line, row.kind, row.pattern));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_said_to_be_read_is_read_there() {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| row.file != "-") {
        let only_shown = row.file.contains("/kubectl-plugin/") && row.pattern != "spec.displayName";
        assert!(!only_shown, "line {}: what is only shown has no effect", row.line);
        let code = files.entry(row.file.clone()).or_insert_with(|| code(&row.file));
        let text: String = row.text.chars().filter(|character| !character.is_whitespace()).collect();
        if !code.contains(&text) {
            wrong.push(format!("line {}: {} does not have {}", row.line, row.file, row.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_pattern_means_its_own_paths_alone() {
    for (pattern, path) in [
        ("spec.a", "spec.a"),
        ("spec.a[].b", "spec.a[].b"),
        ("spec.*.b", "spec.x.b"),
        ("spec.a**", "spec.a"),
        ("spec.a**", "spec.a.b.c"),
        ("spec.a**", "spec.a[].b"),
    ] {
        assert!(matches_path(pattern, path), "{pattern} {path}");
    }
    for (pattern, path) in
        [("spec.a", "spec.a.b"), ("spec.a", "spec.ab"), ("spec.*.b", "spec.x.y.b"), ("spec.a**", "spec.ab"), ("spec.a", "spec.a[].b")]
    {
        assert!(!matches_path(pattern, path), "{pattern} {path}");
    }
}
