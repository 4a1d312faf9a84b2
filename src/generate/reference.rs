//! `docs/reference/api.md`: every field of every kind, from the same schemas that the API server enforces.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::unsupported;

/// The whole page.
pub fn page(crds: &[CustomResourceDefinition]) -> String {
    let mut page = String::from(
        "<!-- Generated from crates/api by `make generate`. Do not edit. -->\n# The fields of every kind\n\n\
         Group `spillway.dev`, version `v1alpha1`. A field in **bold** is required. Rules are checked by the API server when an \
         object is written; their messages are the ones you see.\n",
    );
    for crd in crds {
        kind(&mut page, crd);
    }
    page
}

fn kind(page: &mut String, crd: &CustomResourceDefinition) {
    let names = &crd.spec.names;
    let short = names.short_names.iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let version = crd.spec.versions.first();
    let schema = version.and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
    let Some(schema) = schema else { return };
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "\n## {} ({}, short {short})\n\n{}\n",
        names.kind,
        crd.spec.scope.to_lowercase(),
        words(schema.description.as_deref())
    );
    let columns = version.into_iter().flat_map(|version| version.additional_printer_columns.iter().flatten());
    let columns =
        columns.map(|column| if column.priority.unwrap_or(0) > 0 { format!("{} (wide)", column.name) } else { column.name.clone() });
    let mark = unsupported::mark(&names.kind, "spec");
    if !mark.is_empty() {
        let _ = write!(page, "\n{}\n", mark.trim_start());
    }
    let _ = write!(page, "\nColumns: {}.\n\n| field | type | meaning |\n|---|---|---|\n", columns.collect::<Vec<_>>().join(", "));
    for part in ["spec", "status"] {
        if let Some(properties) = schema.properties.as_ref().and_then(|all| all.get(part)) {
            fields(page, &names.kind, part, properties);
        }
    }
    let mut rules = Vec::new();
    collect_rules("", schema, &mut rules);
    if !rules.is_empty() {
        page.push_str("\nRules:\n");
    }
    for (path, message) in rules {
        let place = if path.is_empty() { String::new() } else { format!("`{path}`: ") };
        let _ = writeln!(page, "- {place}{message}");
    }
}

/// Writes one row for each field, with nested fields below it. Conditions are the same everywhere and are described on
/// another page.
fn fields(page: &mut String, kind: &str, path: &str, schema: &JSONSchemaProps) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let full = format!("{path}.{name}");
        let shown = if required.contains(name) { format!("**`{full}`**") } else { format!("`{full}`") };
        let mut meaning = words(field.description.as_deref());
        if let Some(default) = &field.default {
            let _ = write!(meaning, " Default `{}`.", default.0);
        }
        meaning.push_str(&unsupported::mark(kind, &full));
        let _ = writeln!(page, "| {shown} | {} | {meaning} |", type_of(field));
        if full == "status.conditions" {
            continue;
        }
        fields(page, kind, &full, field);
        if let Some(items) = items(field) {
            fields(page, kind, &format!("{full}[]"), items);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &field.additional_properties {
            fields(page, kind, &format!("{full}.*"), values);
        }
    }
}

fn items(field: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match field.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn type_of(field: &JSONSchemaProps) -> String {
    if let Some(values) = field.enum_.as_ref().filter(|values| !values.is_empty()) {
        return values.iter().map(|value| format!("`{}`", value.0.as_str().unwrap_or_default())).collect::<Vec<_>>().join(" \\| ");
    }
    let bounds = |least: Option<String>, most: Option<String>| match (least, most) {
        (None, None) => String::new(),
        (least, most) => format!(" {}..{}", least.unwrap_or_default(), most.unwrap_or_default()),
    };
    match field.type_.as_deref() {
        Some("array") => {
            let of = items(field).map(type_of).unwrap_or_default();
            format!("list of {of}{}", field.max_items.map(|most| format!(", at most {most}")).unwrap_or_default())
        }
        Some("string") => format!("string{}", field.max_length.map(|most| format!(", at most {most}")).unwrap_or_default()),
        Some(number @ ("integer" | "number")) => {
            format!("{number}{}", bounds(field.minimum.map(|least| least.to_string()), field.maximum.map(|most| most.to_string())))
        }
        Some(other) => other.to_owned(),
        None => "integer or string".to_owned(),
    }
}

fn collect_rules(path: &str, schema: &JSONSchemaProps, into: &mut Vec<(String, String)>) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let at = format!("{path}{}", rule.field_path.as_deref().unwrap_or_default());
        let message = rule.message.clone().unwrap_or_else(|| format!("`{}`", rule.rule));
        into.push((at.trim_start_matches('.').to_owned(), words(Some(&message))));
    }
    for (name, field) in schema.properties.iter().flatten() {
        collect_rules(&format!("{path}.{name}"), field, into);
        if let Some(items) = items(field) {
            collect_rules(&format!("{path}.{name}[]"), items, into);
        }
    }
}

/// The text on one line, without characters that would end a table's cell.
fn words(text: Option<&str>) -> String {
    text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_its_rules_are_on_the_page() {
        let crds = crate::api::crds::all();
        let page = page(&crds);
        for crd in &crds {
            assert!(page.contains(&format!("## {} (", crd.spec.names.kind)), "{}", crd.spec.names.kind);
        }
        assert!(page.contains("| **`spec.agent.image`** | string, at most 512 |"));
        assert!(page.contains("- `spec.scaling.min`: min must not be greater than max"));
        let changeset = page.lines().find(|line| line.starts_with("| `spec.bulkhead.changeset` |")).expect("a row");
        assert!(changeset.contains("**[Unsupported](unsupported.md)**"), "{changeset}");
    }
}
