//! Checks a value against a JSON Schema, for the keywords that our documents use. An unknown keyword is a failure, so
//! that no part of a schema is ignored.

use serde_json::Value;

/// A schema, and the document for its references.
pub struct Schema<'a> {
    pub document: &'a Value,
    pub schema: &'a Value,
}

/// Keywords that are ignored: they do not restrict a value, or (formats of numbers) not more than `type` and bounds do.
const WORDS: [&str; 4] = ["description", "title", "default", "format"];

impl Schema<'_> {
    /// The parts that do not fit, each as `path: fault`.
    pub fn check(&self, value: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(self.schema, value, "", &mut found);
        found
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let mut found = Vec::new();
        self.walk(schema, value, "", &mut found);
        found.is_empty()
    }

    fn walk(&self, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
        let keywords = match schema {
            Value::Bool(true) => return,
            Value::Bool(false) => return found.push(format!("{path}: nothing fits here")),
            schema => schema.as_object().unwrap_or_else(|| panic!("{path}: {schema} is no schema")),
        };
        for (keyword, said) in keywords {
            let fits = match keyword.as_str() {
                word if WORDS.contains(&word) => true,
                "$ref" => {
                    let pointer = said.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference into the document");
                    let target = self.document.pointer(pointer).unwrap_or_else(|| panic!("{path}: {said} leads nowhere"));
                    self.walk(target, value, path, found);
                    true
                }
                "type" => match said {
                    Value::Array(any) => any.iter().any(|one| is(value, one)),
                    one => is(value, one),
                },
                "enum" => said.as_array().expect("a list").contains(value),
                "const" => said == value,
                "anyOf" => said.as_array().expect("a list").iter().any(|schema| self.fits(schema, value)),
                "oneOf" => said.as_array().expect("a list").iter().filter(|schema| self.fits(schema, value)).count() == 1,
                "minimum" => value.as_f64().is_none_or(|number| number >= said.as_f64().expect("a number")),
                "maximum" => value.as_f64().is_none_or(|number| number <= said.as_f64().expect("a number")),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.walk(said, item, &format!("{path}[{index}]"), found);
                    }
                    true
                }
                "properties" => {
                    for (name, schema) in said.as_object().expect("properties") {
                        if let Some(value) = value.get(name) {
                            self.walk(schema, value, &format!("{path}.{name}"), found);
                        }
                    }
                    true
                }
                "required" => said.as_array().expect("names").iter().all(|name| value.get(name.as_str().expect("a name")).is_some()),
                "additionalProperties" => {
                    assert_eq!(said, false, "{path}: only false is known here");
                    let known = |name: &String| schema["properties"].get(name).is_some();
                    value.as_object().is_none_or(|object| object.keys().all(known))
                }
                other => panic!("{path}: the keyword {other} is not known here"),
            };
            if !fits {
                found.push(format!("{path}: {value} does not fit {keyword}: {said}"));
            }
        }
    }
}

fn is(value: &Value, type_: &Value) -> bool {
    match type_.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other} is no type"),
    }
}
