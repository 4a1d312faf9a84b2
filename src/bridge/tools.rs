//! The three tools, as MCP describes them. Their names, their order and their schemas never depend on the definitions, so that a client
//! that lists them once knows them. Pure.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use spillway_bridge::catalog::{Catalog, arguments_schema};
use spillway_bridge::definition::Definition;
use spillway_bridge::idempotency::MAX_KEY_CHARS;

/// Name of the tool that lists programs.
pub const LIST_PROGRAMS: &str = "list_programs";
/// Name of the tool that explains a program.
pub const HELP: &str = "help";
/// Name of the tool that runs a program.
pub const EXECUTE: &str = "execute";

/// A tool.
#[derive(Clone, Debug)]
pub struct ToolDescription {
    /// Its name.
    pub name: &'static str,
    /// What it does, for models.
    pub description: &'static str,
    /// Its arguments, as JSON Schema.
    pub schema: Value,
    /// Whether it changes nothing.
    pub read_only: bool,
}

/// The three tools, in order.
pub fn tools() -> [ToolDescription; 3] {
    let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let program = json!({"type": "string", "maxLength": 63, "description": "name of a program, from list_programs"});
    [
        ToolDescription {
            name: LIST_PROGRAMS,
            description: "List the programs that can be run outside of your sandbox, each with what it does.",
            schema: object(json!({}), &[]),
            read_only: true,
        },
        ToolDescription {
            name: HELP,
            description: "Get the help of a program and the JSON Schema of its arguments. Read it before you run the program.",
            schema: object(json!({"program": program}), &["program"]),
            read_only: true,
        },
        ToolDescription {
            name: EXECUTE,
            description: "Run a program and get its exit code and output. There is no shell: each argument is passed as it is. \
                          Repeat a call that got no answer with the same idempotencyKey: the program then runs once.",
            schema: object(
                json!({
                    "program": program,
                    "args": {"type": "object", "description": "the arguments, by name, as the schema in help says"},
                    "idempotencyKey": {"type": "string", "minLength": 1, "maxLength": 128, "description": "a text that no other call has"},
                }),
                &["program"],
            ),
            read_only: false,
        },
    ]
}

/// The arguments of [`HELP`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelpArguments {
    /// Name of the program.
    pub program: String,
}

/// The arguments of [`EXECUTE`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExecuteArguments {
    /// Name of the program.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// See [`spillway_bridge::idempotency`].
    #[serde(default)]
    pub idempotency_key: Option<String>,
}

impl ExecuteArguments {
    /// Reads them, or says what is wrong.
    pub fn read(arguments: Value) -> Result<Self, String> {
        let read: Self = serde_json::from_value(arguments).map_err(|error| error.to_string())?;
        match &read.idempotency_key {
            Some(key) if key.is_empty() || key.chars().count() > MAX_KEY_CHARS => {
                Err(format!("idempotencyKey must have 1 to {MAX_KEY_CHARS} characters"))
            }
            Some(_) | None => Ok(read),
        }
    }
}

/// The answer of [`LIST_PROGRAMS`].
pub fn list(catalog: &Catalog) -> Value {
    let program = |definition: &Definition| {
        let mut entry = json!({"name": definition.name, "description": definition.description});
        if definition.requires_approval {
            entry["requiresApproval"] = json!(true);
        }
        entry
    };
    json!({"revision": catalog.revision(), "programs": catalog.programs().map(program).collect::<Vec<_>>()})
}

/// The answer of [`HELP`].
pub fn help(catalog: &Catalog, name: &str) -> Option<Value> {
    let definition = catalog.program(name)?;
    Some(json!({
        "name": definition.name,
        "description": definition.description,
        "text": definition.help,
        "argsSchema": arguments_schema(definition),
        "timeoutSeconds": definition.timeout_seconds,
        "revision": catalog.revision(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients and prompts know the tools by heart: a change of this file is a change of a public interface.
    #[test]
    fn the_tools_are_those_of_the_golden_file() {
        let all: Vec<Value> = tools()
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "inputSchema": tool.schema, "readOnly": tool.read_only}))
            .collect();
        let text = serde_json::to_string_pretty(&all).expect("JSON") + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bridge/golden/tools.json");
        if std::env::var_os("SPILLWAY_WRITE").is_some() {
            std::fs::write(path, &text).expect("written");
        }
        assert_eq!(text, std::fs::read_to_string(path).expect("the golden file"));
    }
}
