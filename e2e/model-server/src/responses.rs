//! OpenAI Responses. Only `response.completed` or `response.incomplete` has usage.

use serde_json::{Value, json};

use crate::ask::{Api, Ask, Input, Say, Tokens, Tool};
use crate::turn::{Event, ModelTurn, Stream, is_person_text, list, put, string};

/// Reads a call.
pub fn read(body: &Value, bytes: usize) -> Result<Ask, String> {
    let model = string(body, "model").ok_or("you must provide a model parameter")?.to_owned();
    let (mut task, mut results) = (string(body, "input").unwrap_or_default().to_owned(), 0);
    for item in list(body, "input") {
        match (string(item, "type"), string(item, "role")) {
            (Some("function_call_output" | "custom_tool_call_output" | "local_shell_call_output" | "shell_call_output"), _) => results += 1,
            (Some("message") | None, Some("user")) => {
                let parts = list(item, "content").filter_map(|part| string(part, "text"));
                for words in string(item, "content").into_iter().chain(parts).filter(|words| is_person_text(words)) {
                    (task, results) = (words.to_owned(), 0);
                }
            }
            _ => {}
        }
    }
    // For its newer models Codex lists its tools in the input.
    let told = list(body, "input").filter(|item| string(item, "type") == Some("additional_tools"));
    let mut tools = Vec::new();
    for one in list(body, "tools").chain(told.flat_map(|item| list(item, "tools"))) {
        match string(one, "type") {
            Some("namespace") => tools.extend(list(one, "tools").filter_map(|inner| tool(inner, string(one, "name")))),
            _ => tools.extend(tool(one, None)),
        }
    }
    let stream = body.get("stream").and_then(Value::as_bool).unwrap_or_default();
    let limit = body.get("max_output_tokens").and_then(Value::as_u64);
    Ok(Ask { api: Api::Responses, model, stream, include_usage: true, as_list: false, limit, choices: 1, tools, task, results, bytes })
}

fn tool(tool: &Value, namespace: Option<&str>) -> Option<Tool> {
    let kind = string(tool, "type")?;
    let name = if kind == "local_shell" { kind } else { string(tool, "name")? };
    let script = string(tool, "description").is_some_and(|words| words.contains("JavaScript"));
    let input = match kind {
        "function" => Input::Json,
        "custom" if script => Input::Script,
        "custom" => Input::Text,
        "local_shell" => Input::Command,
        _ => return None, // the provider runs it
    };
    let schema = tool.get("parameters").cloned().unwrap_or_default();
    Some(Tool { name: name.to_owned(), namespace: namespace.map(str::to_owned), input, schema })
}

fn usage(told: &Tokens) -> Value {
    json!({
        "input_tokens": told.all_input(),
        "input_tokens_details": {"cached_tokens": told.cache_read},
        "output_tokens": told.output,
        "output_tokens_details": {"reasoning_tokens": told.reasoning},
        "total_tokens": told.all_input() + told.output,
    })
}

/// The output of the answer: one item, with or without its content.
fn item(turn: &ModelTurn, status: &str) -> Value {
    let done = status == "completed";
    let mut item = bare_item(turn, status, done);
    if let Say::Call { tool, .. } = turn.say {
        put(&mut item, "namespace", tool.namespace.as_ref().map(|name| json!(name)));
    }
    item
}

fn bare_item(turn: &ModelTurn, status: &str, done: bool) -> Value {
    match turn.say {
        Say::Call { id, tool, input } => match tool.input {
            Input::Json => {
                let arguments = if done { input.to_string() } else { String::new() };
                let own = format!("fc_{:08}", turn.number);
                json!({"id": own, "type": "function_call", "status": status, "call_id": id, "name": tool.name, "arguments": arguments})
            }
            Input::Text | Input::Script => {
                let text = input.as_str().filter(|_| done).unwrap_or_default();
                let own = format!("ctc_{:08}", turn.number);
                json!({"id": own, "type": "custom_tool_call", "status": status, "call_id": id, "name": tool.name, "input": text})
            }
            Input::Command => {
                let own = format!("lsh_{:08}", turn.number);
                json!({"id": own, "type": "local_shell_call", "status": status, "call_id": id, "action": input})
            }
        },
        Say::Text { parts, .. } => {
            let text = parts.iter().map(|part| part.text.as_str()).collect::<String>();
            let content = if done { json!([part(&text)]) } else { json!([]) };
            json!({"id": format!("msg_{:08}", turn.number), "type": "message", "status": status, "role": "assistant", "content": content})
        }
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn response(turn: &ModelTurn, status: &str, output: Value) -> Value {
    let ask = turn.ask;
    let incomplete = if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
    json!({
        "id": format!("resp_{:08}", turn.number), "object": "response", "created_at": 1, "status": status, "error": null,
        "incomplete_details": incomplete, "instructions": null, "max_output_tokens": ask.limit, "model": ask.model, "output": output,
        "parallel_tool_calls": false, "previous_response_id": null, "store": false, "temperature": 1.0, "tool_choice": "auto", "tools": [],
        "top_p": 1.0, "metadata": {},
    })
}

fn end(turn: &ModelTurn) -> Value {
    let whole = !matches!(turn.say, Say::Text { whole: false, .. });
    let mut response = response(turn, if whole { "completed" } else { "incomplete" }, json!([item(turn, "completed")]));
    put(&mut response, "usage", turn.reported.as_ref().map(usage));
    response
}

/// The answer in one piece.
pub fn complete_answer(turn: &ModelTurn) -> Value {
    end(turn)
}

fn event(name: &'static str, mut data: Value) -> Event {
    put(&mut data, "type", Some(json!(name)));
    Event { name: Some(name), data, ..Event::default() }
}

/// The answer as a stream.
pub fn stream(turn: &ModelTurn) -> Stream {
    let begun = response(turn, "in_progress", json!([]));
    let mut created = event("response.created", json!({"response": begun}));
    created.charged = turn.charged_before_content();
    let id = item(turn, "in_progress")["id"].clone();
    let mut head = vec![
        created,
        event("response.in_progress", json!({"response": begun})),
        event("response.output_item.added", json!({"output_index": 0, "item": item(turn, "in_progress")})),
    ];
    let (mut content, mut tail) = (Vec::new(), Vec::new());
    match turn.say {
        Say::Call { tool, input, .. } => {
            let charged = turn.for_call();
            let (delta, done, text) = match tool.input {
                Input::Json => {
                    let text = json!(input.to_string());
                    (
                        "response.function_call_arguments.delta",
                        event("response.function_call_arguments.done", json!({"item_id": id, "output_index": 0, "arguments": text})),
                        text,
                    )
                }
                Input::Text | Input::Script => (
                    "response.custom_tool_call_input.delta",
                    event("response.custom_tool_call_input.done", json!({"item_id": id, "output_index": 0, "input": input})),
                    input.clone(),
                ),
                Input::Command => ("response.in_progress", event("response.in_progress", json!({"response": begun})), Value::Null),
            };
            content.push(Event { charged, content: true, ..event(delta, json!({"item_id": id, "output_index": 0, "delta": text})) });
            tail.push(done);
        }
        Say::Text { parts, .. } => {
            let text = parts.iter().map(|part| part.text.as_str()).collect::<String>();
            let at = json!({"item_id": id, "output_index": 0, "content_index": 0});
            let with = |name: &'static str, field: &str, value: Value| {
                let mut data = at.clone();
                put(&mut data, field, Some(value));
                event(name, data)
            };
            head.push(with("response.content_part.added", "part", part("")));
            content.extend(parts.iter().map(|one| Event {
                charged: Tokens::of_output(one.tokens),
                content: true,
                ..with("response.output_text.delta", "delta", json!(one.text))
            }));
            tail.push(with("response.output_text.done", "text", json!(text)));
            tail.push(with("response.content_part.done", "part", part(&text)));
        }
    }
    tail.push(event("response.output_item.done", json!({"output_index": 0, "item": item(turn, "completed")})));
    let last = if matches!(turn.say, Say::Text { whole: false, .. }) { "response.incomplete" } else { "response.completed" };
    tail.push(Event { reported: turn.reported.unwrap_or_default(), ..event(last, json!({"response": end(turn)})) });
    let mut failed = response(turn, "failed", json!([]));
    put(&mut failed, "error", Some(json!({"code": "rate_limit_exceeded", "message": "Rate limit reached. Please try again in 5s."})));
    let error = event("response.failed", json!({"response": failed}));
    for (number, event) in head.iter_mut().chain(&mut content).chain(&mut tail).enumerate() {
        put(&mut event.data, "sequence_number", Some(json!(number)));
    }
    Stream { head, content, tail, error }
}
