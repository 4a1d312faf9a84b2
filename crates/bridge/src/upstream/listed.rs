//! What an upstream says about one of its tools. It is foreign text, which models read as instructions: its size is bounded, and characters
//! that people do not see are taken out.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use spillway_wire::text::hex;

use super::AllowedTool;
use crate::catalog::arguments_schema;
use crate::definition::argument::is_deceptive;

/// The most characters of a description. The rest is left out.
const MAX_DESCRIPTION_CHARS: usize = 4096;
/// The most characters of a title.
const MAX_TITLE_CHARS: usize = 128;
/// The most characters of the description of an argument, where the rules have none.
const MAX_ARGUMENT_DESCRIPTION_CHARS: usize = 1024;
/// The most bytes of a schema. A tool with a longer one is not offered.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Name of the member by which a schema asks clients for headers. Agents send none to the upstream.
const HEADER_MEMBER: &str = "x-mcp-header";

/// A tool, as the upstream lists it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTool {
    /// Its name.
    pub name: String,
    /// Its title.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// Its arguments, as JSON Schema.
    pub schema: Map<String, Value>,
    /// Whether it says that it changes nothing.
    pub read_only: Option<bool>,
    /// The bytes of a schema or of texts that are too long, and were not kept.
    pub too_long: Option<usize>,
}

/// A tool, as agents see it.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// Its title.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// Its arguments, as JSON Schema.
    pub schema: Map<String, Value>,
    /// Whether it says that it changes nothing.
    pub read_only: Option<bool>,
}

impl RawTool {
    /// A hash of all that a model may read. It does not depend on the order of members.
    pub fn digest(&self) -> String {
        let Self { name, title, description, schema, read_only, too_long: _ } = self;
        let all = json!({"name": name, "title": title, "description": description, "inputSchema": schema, "readOnly": read_only});
        let mut text = String::new();
        write_sorted(&all, &mut text);
        hex(&Sha256::digest(text))
    }

    /// The bytes of the schema.
    pub fn schema_bytes(&self) -> usize {
        self.too_long.unwrap_or_else(|| serde_json::to_string(&self.schema).map_or(usize::MAX, |text| text.len()))
    }

    /// The same without what is too long to be offered: an upstream may list much of that.
    #[must_use]
    pub fn bounded(self) -> Self {
        let bytes = self.schema_bytes();
        let texts = [&self.title, &self.description].into_iter().flatten().map(String::len).sum::<usize>();
        if bytes.max(texts) <= MAX_SCHEMA_BYTES {
            return self;
        }
        Self { name: self.name, too_long: Some(bytes.max(texts)), ..Self::default() }
    }

    /// Whether clients of the upstream are asked for headers with arguments.
    pub fn asks_for_headers(&self) -> bool {
        fn has_header(value: &Value) -> bool {
            match value {
                Value::Object(members) => members.contains_key(HEADER_MEMBER) || members.values().any(has_header),
                Value::Array(values) => values.iter().any(has_header),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
            }
        }
        self.schema.values().any(has_header)
    }

    /// The tool as agents see it.
    pub fn offered(&self, allowed: &AllowedTool) -> OfferedTool {
        let cleaned = |text: &String, chars: usize| visible(text).chars().take(chars).collect::<String>();
        let own = clean_schema(Value::Object(self.schema.clone()));
        let schema = if allowed.definition.takes_any_arguments { own } else { narrowed(allowed, &own) };
        OfferedTool {
            name: self.name.clone(),
            title: self.title.as_ref().map(|title| cleaned(title, MAX_TITLE_CHARS)),
            description: self.description.as_ref().map(|description| cleaned(description, MAX_DESCRIPTION_CHARS)),
            schema: match schema {
                Value::Object(schema) => schema,
                _ => Map::new(),
            },
            read_only: self.read_only,
        }
    }
}

/// The schema of the rules. An argument that they do not describe has the description of the upstream.
fn narrowed(allowed: &AllowedTool, own: &Value) -> Value {
    let mut schema = arguments_schema(&allowed.definition);
    for argument in allowed.definition.arguments.iter().filter(|argument| argument.description.is_empty()) {
        let described = own.get("properties").and_then(|all| all.get(&argument.name)?.get("description")?.as_str());
        if let Some(description) = described {
            let description: String = description.chars().take(MAX_ARGUMENT_DESCRIPTION_CHARS).collect();
            schema["properties"][&argument.name]["description"] = json!(description);
        }
    }
    schema
}

/// The schema without characters that people do not see, and without requests for headers.
fn clean_schema(schema: Value) -> Value {
    match schema {
        Value::String(text) => Value::String(visible(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(clean_schema).collect()),
        Value::Object(members) => Value::Object(
            members.into_iter().filter(|(name, _)| name != HEADER_MEMBER).map(|(name, value)| (name, clean_schema(value))).collect(),
        ),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    }
}

/// The text without control characters, marks of direction, and the invisible letters of tags.
pub fn visible(text: &str) -> String {
    let is_hidden = |character: char| {
        (character.is_control() && !matches!(character, '\n' | '\t'))
            || is_deceptive(character)
            || matches!(character, '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().filter(|character| !is_hidden(*character)).collect()
}

/// Writes a value with its members in order.
fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in sorted {
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(values) => {
            out.push('[');
            for value in values {
                write_sorted(value, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
    }
}
