//! Whether a Toolset of the pool answers, and serves the programs that the pool's preflight names.
//!
//! It must not start a program: it asks only for the list of tools, and for the list of programs, if there is a tool for that. A Toolset in
//! front of an MCP server has none, and its tools are its programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::think::model::{PostAnswer, post};

/// The tool that lists programs.
const LIST_PROGRAMS: &str = "list_programs";
/// The revision of MCP in which it asks.
const REVISION: &str = "2025-11-25";

/// A Toolset, and the programs that it must serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolsetCheck {
    /// Its name.
    pub name: String,
    /// The programs. None: it must only answer.
    pub programs: Vec<String>,
}

impl ToolsetCheck {
    /// What is wrong with the Toolset, if anything. `base` is the start of the URLs of Toolsets.
    pub fn error(&self, base: &str, within: Duration) -> Option<String> {
        let ask = |method: &str, params: Value| {
            let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            let headers = [("accept", "application/json, text/event-stream"), ("mcp-protocol-version", REVISION)];
            post(&format!("{base}{}", self.name), &headers, &request, within)
        };
        let tools = ask("tools/list", json!({}));
        if has_programs(&tools) {
            return self.judge(&ask("tools/call", json!({"name": LIST_PROGRAMS, "arguments": {}})), listed_programs);
        }
        self.judge(&tools, listed_tools)
    }

    /// `read`: the names in an answer.
    fn judge(&self, answered: &Result<PostAnswer, String>, read: fn(&Value) -> Option<Vec<&str>>) -> Option<String> {
        let Self { name, programs } = self;
        let listed = match answered {
            Ok(PostAnswer { status: 200..300, body, .. }) => read(body).ok_or("its answer is no list of programs".to_owned()),
            Ok(PostAnswer { status, words, .. }) => Err(format!("it answers {status}: {words}")),
            Err(why) => Err(format!("no answer came: {why}")),
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(why) => return Some(format!("Toolset/{name} cannot be used: {why} (spec.preflight.toolsets)")),
        };
        let missing: Vec<&str> = programs.iter().map(String::as_str).filter(|program| !listed.contains(program)).collect();
        (!missing.is_empty()).then(|| {
            let programs = missing.join(", ");
            format!("Toolset/{name} does not serve {programs} (spec.preflight.toolsets). Add the definition to the Toolset")
        })
    }
}

/// Whether this list of tools has the tool that lists programs.
fn has_programs(tools: &Result<PostAnswer, String>) -> bool {
    tools.as_ref().is_ok_and(|answer| listed_tools(&answer.body).is_some_and(|tools| tools.contains(&LIST_PROGRAMS)))
}

/// The names in a list of tools.
fn listed_tools(answer: &Value) -> Option<Vec<&str>> {
    let tools = answer.pointer("/result/tools")?.as_array()?;
    Some(tools.iter().filter_map(|tool| tool["name"].as_str()).collect())
}

/// The names in the answer to `list_programs`.
fn listed_programs(answer: &Value) -> Option<Vec<&str>> {
    let programs = answer.pointer("/result/structuredContent/programs")?.as_array()?;
    Some(programs.iter().filter_map(|program| program["name"].as_str()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(programs: &[&str]) -> ToolsetCheck {
        ToolsetCheck { name: "deploy".into(), programs: programs.iter().map(|&name| name.into()).collect() }
    }

    fn answer(status: u16, body: Value, words: &str) -> Result<PostAnswer, String> {
        Ok(PostAnswer { status, body, words: words.into() })
    }

    #[test]
    fn each_program_must_be_in_the_list() {
        let list = json!({"result": {"structuredContent": {"revision": "r", "programs": [{"name": "deploy"}, {"name": "git_push"}]}}});
        let listed = answer(200, list, "");
        for programs in [&[][..], &["deploy"], &["git_push", "deploy"]] {
            assert_eq!(check(programs).judge(&listed, listed_programs), None);
        }
        let words = "Toolset/deploy does not serve rollback, undo (spec.preflight.toolsets). Add the definition to the Toolset";
        assert_eq!(check(&["rollback", "deploy", "undo"]).judge(&listed, listed_programs).as_deref(), Some(words));
    }

    #[test]
    fn the_tools_of_an_mcp_server_are_its_programs() {
        let tools = |names: &[&str]| {
            let tools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            answer(200, json!({"result": {"tools": tools}}), "")
        };
        let of_server = tools(&["deploy", "search"]);
        assert!(!has_programs(&of_server) && has_programs(&tools(&["list_programs", "help", "execute"])));
        assert_eq!(check(&["search"]).judge(&of_server, listed_tools), None);
        assert!(check(&["undo"]).judge(&of_server, listed_tools).is_some_and(|words| words.contains("does not serve undo")));
        assert!(!has_programs(&Err("refused".into())) && !has_programs(&answer(403, json!({}), "no")));
    }

    #[test]
    fn a_refusal_and_silence_and_another_server_are_told() {
        for (answered, words) in [
            (answer(403, json!({}), "spec.toolsets does not list it"), "it answers 403: spec.toolsets does not list it"),
            (answer(503, json!({}), "Toolset/deploy is not served now"), "it answers 503: Toolset/deploy is not served now"),
            (answer(200, json!({"result": {}}), ""), "its answer is no list of programs"),
            (answer(200, Value::Null, ""), "its answer is no list of programs"),
            (Err("refused".into()), "no answer came: refused"),
        ] {
            let told = check(&[]).judge(&answered, listed_tools);
            assert_eq!(told, Some(format!("Toolset/deploy cannot be used: {words} (spec.preflight.toolsets)")));
        }
    }
}
