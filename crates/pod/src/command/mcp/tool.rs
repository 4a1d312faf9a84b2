//! The tool: its arguments and its result. Pure, except for the check whether a folder exists.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The name of the tool.
pub const TOOL_NAME: &str = "run_command";
/// The most bytes of an argument. The kernel accepts a little more.
const MAX_ARGUMENT_BYTES: usize = 120 * 1024;
/// The most arguments of a command.
const MAX_ARGUMENTS: usize = 4096;
/// The most seconds that can be asked for, as with `exec`.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;
/// The most characters of a folder's name.
const MAX_FOLDER_CHARS: usize = 4096;

/// The description of the tool for clients.
pub fn description() -> Value {
    json!({
        "name": TOOL_NAME,
        "title": "Run a command",
        "description": "Runs a command with a time limit and returns when it has ended. When its time is over, the command is ended with all \
            processes that it started. Processes that it leaves behind in the background are ended too. A string is run by a shell, an array \
            is run as it is. The first and the last 64 KiB of each stream are returned. A refusal says after how many milliseconds the \
            command may be tried again: do not retry before.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "command": {
                    "description": "A command line for sh, or a program and its arguments",
                    "anyOf": [
                        {"type": "string", "minLength": 1},
                        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_ARGUMENTS},
                    ],
                },
                "timeoutSeconds": {
                    "description": "Time limit, at most the longest that the agent's pool allows; unset: the pool's time limit for commands",
                    "type": "number", "minimum": 0.001, "maximum": MAX_TIMEOUT_SECONDS,
                },
                "cwd": {"description": "The folder to run it in", "type": "string", "minLength": 1, "maxLength": MAX_FOLDER_CHARS},
                "stdin": {"description": "Standard input of the command; unset: empty", "type": "string"},
            },
            "required": ["command"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "exitCode": {"description": "Unset: a signal ended it, or it was not started", "type": "integer"},
                "signal": {"description": "The signal that ended it", "type": "integer"},
                "timedOut": {"type": "boolean"},
                "spawnFailed": {"type": "boolean"},
                "stdout": {"type": "string"},
                "stderr": {"type": "string"},
                "truncated": {"description": "A part of the output is missing", "type": "boolean"},
                "durationMilliseconds": {"type": "integer"},
                "killedSurvivors": {"description": "Processes that it left behind, or that did not end when asked, and were killed", "type": "integer"},
                "unkillable": {"description": "Processes that cannot be killed", "type": "integer"},
                "notices": {"description": "Notices for you", "type": "array", "items": {"type": "string"}},
            },
            "required": ["timedOut", "spawnFailed", "stdout", "stderr", "truncated", "durationMilliseconds", "killedSurvivors"],
        },
        "annotations": {"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": false},
    })
}

/// A call that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The time limit.
    pub timeout_seconds: Option<f64>,
    /// The working directory.
    pub cwd: Option<PathBuf>,
    /// The standard input.
    pub stdin: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Shell(String),
    Program(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arguments {
    command: Value,
    #[serde(default)]
    timeout_seconds: Option<f64>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    stdin: Option<String>,
}

/// Reads the arguments of a call. The error says what is wrong with them.
pub fn read(arguments: Value) -> Result<Call, String> {
    if !arguments.is_object() {
        return Err("arguments: must be an object".to_owned());
    }
    let Arguments { command, timeout_seconds, cwd, stdin } = serde_json::from_value(arguments).map_err(|error| error.to_string())?;
    let line = serde_json::from_value(command).map_err(|_| "command: must be a string for a shell, or an array of strings".to_owned())?;
    let empty = match &line {
        Line::Shell(line) => line.is_empty(),
        Line::Program(command) => command.first().is_none_or(String::is_empty),
    };
    if empty {
        return Err("command: must not be empty".to_owned());
    }
    let command = match line {
        Line::Shell(line) => vec!["sh".to_owned(), "-c".to_owned(), line],
        Line::Program(command) => command,
    };
    if command.len() > MAX_ARGUMENTS || command.iter().any(|argument| argument.len() > MAX_ARGUMENT_BYTES) {
        return Err(format!("command: at most {MAX_ARGUMENTS} arguments of {MAX_ARGUMENT_BYTES} bytes; pass longer text in stdin"));
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return Err("command: an argument must not contain NUL".to_owned());
    }
    if timeout_seconds.is_some_and(|seconds| !(0.001..=MAX_TIMEOUT_SECONDS).contains(&seconds)) {
        return Err(format!("timeoutSeconds: must be a number of seconds from 0.001 to {MAX_TIMEOUT_SECONDS}"));
    }
    let folder = |name: &String| name.len() <= MAX_FOLDER_CHARS && !name.contains('\0') && PathBuf::from(name).is_dir();
    if cwd.as_ref().is_some_and(|name| !folder(name)) {
        return Err("cwd: there is no such folder".to_owned());
    }
    Ok(Call { command, timeout_seconds, cwd: cwd.map(PathBuf::from), stdin: stdin.unwrap_or_default() })
}

/// The result of the process that ran the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Its exit code; -1 if it has none.
    pub status: i32,
    /// Its standard output: a JSON object, unless something went wrong.
    pub output: String,
    /// Its standard error: lines for the model.
    pub errors: String,
}

/// The result of a call that was not carried out.
pub fn error_result(words: &str) -> Value {
    json!({"content": [{"type": "text", "text": words}], "isError": true})
}

/// The result of a call.
pub fn result(ran: &CommandResult) -> Value {
    let notices: Vec<&str> = ran.errors.lines().collect();
    let Ok(mut told) = serde_json::from_str::<Map<String, Value>>(&ran.output) else {
        return error_result(&format!("the result of the command is unknown (exit code {}): {}", ran.status, notices.join("; ")));
    };
    if !notices.is_empty() {
        told.insert("notices".to_owned(), json!(notices));
    }
    let is = |name: &str| told.get(name) == Some(&Value::Bool(true));
    let failed = told.contains_key("refused") || is("timedOut") || is("spawnFailed");
    let told = Value::Object(told);
    json!({"content": [{"type": "text", "text": told.to_string()}], "structuredContent": told, "isError": failed})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_a_shells_and_an_array_is_run_as_it_is() {
        let call = |arguments: Value| read(arguments).expect("a call");
        assert_eq!(call(json!({"command": "echo $HOME"})).command, ["sh", "-c", "echo $HOME"]);
        let all = call(json!({"command": ["printf", "", "a b"], "timeoutSeconds": 2, "cwd": "/", "stdin": "x"}));
        assert_eq!(all.command, ["printf", "", "a b"]);
        assert_eq!((all.timeout_seconds, all.cwd, all.stdin.as_str()), (Some(2.0), Some(PathBuf::from("/")), "x"));
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        let long = "x".repeat(MAX_ARGUMENT_BYTES + 1);
        for (arguments, field) in [
            (json!({}), "command"),
            (json!(["ls", 5, "/", ""]), "arguments"),
            (json!({"command": 7}), "command"),
            (json!({"command": ""}), "command"),
            (json!({"command": []}), "command"),
            (json!({"command": [""]}), "command"),
            (json!({"command": ["ls", 7]}), "command"),
            (json!({"command": ["ls", "a\0b"]}), "command"),
            (json!({"command": "ls \0"}), "command"),
            (json!({"command": ["ls", long]}), "command"),
            (json!({"command": vec!["x"; MAX_ARGUMENTS + 1]}), "command"),
            (json!({"command": "ls", "timeoutSeconds": 0}), "timeoutSeconds"),
            (json!({"command": "ls", "timeoutSeconds": 1e9}), "timeoutSeconds"),
            (json!({"command": "ls", "timeoutSeconds": "5"}), "invalid type"),
            (json!({"command": "ls", "cwd": "/no/such/folder"}), "cwd"),
            (json!({"command": "ls", "cwd": "a\0"}), "cwd"),
            (json!({"command": "ls", "env": {}}), "env"),
        ] {
            let words = read(arguments.clone()).expect_err("refused");
            assert!(words.contains(field), "{arguments}: {words}");
        }
    }

    #[test]
    fn what_came_of_it_is_told_with_what_the_model_should_know() {
        let ran =
            |status, output: &str, errors: &str| result(&CommandResult { status, output: output.to_owned(), errors: errors.to_owned() });
        let fine = ran(1, r#"{"exitCode": 1, "timedOut": false, "spawnFailed": false}"#, "");
        assert_eq!((&fine["isError"], &fine["structuredContent"]["exitCode"]), (&json!(false), &json!(1)), "a command may say no");
        let late = ran(124, r#"{"timedOut": true}"#, "notice: one\nnotice: two\n");
        assert_eq!((&late["isError"], &late["structuredContent"]["notices"]), (&json!(true), &json!(["notice: one", "notice: two"])));
        let text = late["content"][0]["text"].as_str().expect("text");
        assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), late["structuredContent"]);
        let refused = ran(125, r#"{"refused": "bash circuit breaker open for session", "retryAfterMilliseconds": 5}"#, "");
        assert_eq!((&refused["isError"], &refused["structuredContent"]["retryAfterMilliseconds"]), (&json!(true), &json!(5)));
        let lost = ran(-1, "", "error: no");
        assert!(lost["isError"] == true && lost["content"][0]["text"].as_str().is_some_and(|words| words.contains("error: no")), "{lost}");
    }
}
