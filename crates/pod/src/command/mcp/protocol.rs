//! Messages of a client of MCP, and their answers: JSON-RPC 2.0, one message per line. Pure.
//!
//! The server supports the revisions that begin with `initialize`. A client of a later revision gets an error for
//! `server/discover`, and then begins with `initialize`.

use serde_json::{Map, Value, json};

use super::tool::{self, Call};
use crate::VERSION;

/// The supported revisions, the newest first.
const PROTOCOL_REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The message is no JSON.
const PARSE_ERROR: i32 = -32700;
/// The message is no request.
pub const INVALID_REQUEST: i32 = -32600;
/// There is no such method.
const METHOD_NOT_FOUND: i32 = -32601;
/// The method does not accept these parameters.
const INVALID_PARAMS: i32 = -32602;
/// The most characters of an id.
const MAX_ID_CHARS: usize = 256;

/// What follows from a message.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageKind {
    /// An answer.
    Answer(Value),
    /// A call of the tool, or an error about its arguments.
    Call(Value, Result<Call, String>),
    /// The client cancels the request with this id.
    Cancel(Value),
    /// The message needs no answer.
    Nothing,
}

/// The answer to a request.
pub fn answer(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// The answer to a request that cannot be served.
pub fn refused(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// Reads one message.
pub fn read(line: &[u8]) -> MessageKind {
    if line.trim_ascii().is_empty() {
        return MessageKind::Nothing;
    }
    let mut message = match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(message)) => message,
        Ok(_) => return MessageKind::Answer(refused(&Value::Null, INVALID_REQUEST, "a message must be one JSON object")),
        Err(error) => return MessageKind::Answer(refused(&Value::Null, PARSE_ERROR, &error.to_string())),
    };
    let id = message.remove("id");
    let known = match &id {
        None => true,
        Some(Value::String(id)) => id.len() <= MAX_ID_CHARS,
        Some(id) => id.is_i64() || id.is_u64(),
    };
    if !known || message.get("jsonrpc") != Some(&json!("2.0")) {
        let words = "a request must have \"jsonrpc\": \"2.0\" and an id that is an integer or a short string";
        return MessageKind::Answer(refused(&Value::Null, INVALID_REQUEST, words));
    }
    let params = match message.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => {
            return id.map_or(MessageKind::Nothing, |id| MessageKind::Answer(refused(&id, INVALID_PARAMS, "params: must be an object")));
        }
    };
    match (message.get("method").and_then(Value::as_str), id) {
        (Some(method), Some(id)) => request(method, id, params),
        (Some("notifications/cancelled"), None) => params.get("requestId").cloned().map_or(MessageKind::Nothing, MessageKind::Cancel),
        // The server makes no requests, so that an answer of the client is ignored.
        (Some(_), None) | (None, None) => MessageKind::Nothing,
        (None, Some(_)) if message.contains_key("result") || message.contains_key("error") => MessageKind::Nothing,
        (None, Some(id)) => MessageKind::Answer(refused(&id, INVALID_REQUEST, "a request must have a method")),
    }
}

fn request(method: &str, id: Value, mut params: Map<String, Value>) -> MessageKind {
    let result = match method {
        "initialize" => hello(params.get("protocolVersion").and_then(Value::as_str)),
        "ping" => json!({}),
        "tools/list" if params.contains_key("cursor") => {
            return MessageKind::Answer(refused(&id, INVALID_PARAMS, "cursor: the list has only one page"));
        }
        "tools/list" => json!({"tools": [tool::description()]}),
        "tools/call" if params.get("name").and_then(Value::as_str) != Some(tool::TOOL_NAME) => {
            return MessageKind::Answer(refused(&id, INVALID_PARAMS, &format!("name: the only tool is {}", tool::TOOL_NAME)));
        }
        "tools/call" => return MessageKind::Call(id, tool::read(params.remove("arguments").unwrap_or_else(|| json!({})))),
        _ => return MessageKind::Answer(refused(&id, METHOD_NOT_FOUND, "there is no such method")),
    };
    MessageKind::Answer(answer(&id, result))
}

/// The answer to `initialize`. For an unknown revision it offers our newest one.
fn hello(wanted: Option<&str>) -> Value {
    let [newest, ..] = PROTOCOL_REVISIONS;
    let revision = PROTOCOL_REVISIONS.into_iter().find(|revision| Some(*revision) == wanted).unwrap_or(newest);
    json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "spillway", "title": "Spillway", "version": VERSION},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(message: &Value) -> Value {
        match read(message.to_string().as_bytes()) {
            MessageKind::Answer(answer) => answer,
            other => panic!("{message}: {other:?}"),
        }
    }

    #[test]
    fn a_client_is_met_in_its_revision_or_in_our_newest() {
        for (wanted, spoken) in
            [("2024-11-05", "2024-11-05"), ("2025-11-25", "2025-11-25"), ("2026-07-28", "2025-11-25"), ("x", "2025-11-25")]
        {
            let answer = answered(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": wanted}}));
            assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(0), &json!(spoken)), "{wanted}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_and_nothing_else_is_answered() {
        let code = |message: &str| match read(message.as_bytes()) {
            MessageKind::Answer(answer) => answer["error"]["code"].as_i64(),
            MessageKind::Nothing => None,
            other => panic!("{message}: {other:?}"),
        };
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let long = format!(r#"{{"jsonrpc": "2.0", "id": "{}", "method": "ping"}}"#, "x".repeat(300));
        for (message, expected) in [
            ("{", Some(-32700)),
            ("\u{fffd}", Some(-32700)),
            (deep.as_str(), Some(-32700)),
            (long.as_str(), Some(-32600)),
            ("[]", Some(-32600)),
            ("7", Some(-32600)),
            (r#"{"id": 1, "method": "ping"}"#, Some(-32600)),
            (r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#, Some(-32600)),
            (r#"{"jsonrpc": "2.0", "id": {}, "method": "ping"}"#, Some(-32600)),
            (r#"{"jsonrpc": "2.0", "id": 1}"#, Some(-32600)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#, Some(-32600)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}"#, Some(-32602)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "server/discover"}"#, Some(-32601)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}"#, Some(-32602)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "x"}}"#, Some(-32602)),
            (r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#, None),
            (r#"{"jsonrpc": "2.0", "method": "no/such"}"#, None),
            (r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#, None),
            ("  \n", None),
        ] {
            assert_eq!(code(message), expected, "{message}");
        }
    }

    #[test]
    fn a_call_is_read_and_may_be_taken_back() {
        let call = json!({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "run_command", "arguments": {"command": ["ls"]}}});
        assert!(matches!(read(call.to_string().as_bytes()), MessageKind::Call(id, Ok(_)) if id == "a"));
        let empty = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "run_command"}});
        assert!(matches!(read(empty.to_string().as_bytes()), MessageKind::Call(id, Err(_)) if id == 7));
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a", "reason": "no"}});
        assert_eq!(read(cancel.to_string().as_bytes()), MessageKind::Cancel(json!("a")));
    }
}
