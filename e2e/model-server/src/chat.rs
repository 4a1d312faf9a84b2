//! OpenAI Chat Completions. `prompt_tokens` includes cached input. A stream reports usage only on request, in a chunk
//! of its own.

use serde_json::{Value, json};

use crate::ask::{Api, Ask, ContentPart, Input, Say, Tokens, Tool};
use crate::turn::{Event, Growing, ModelTurn, Stream, is_person_text, list, put, string};

/// Reads a call.
pub fn read(body: &Value, bytes: usize) -> Result<Ask, String> {
    let model = string(body, "model").ok_or("you must provide a model parameter")?.to_owned();
    let (mut task, mut results) = (String::new(), 0);
    for message in list(body, "messages") {
        match string(message, "role") {
            Some("tool") => results += 1,
            Some("user") => {
                let parts = list(message, "content").filter_map(|part| string(part, "text"));
                for words in string(message, "content").into_iter().chain(parts).filter(|words| is_person_text(words)) {
                    (task, results) = (words.to_owned(), 0);
                }
            }
            _ => {}
        }
    }
    let tools = list(body, "tools").filter_map(|tool| {
        let function = tool.get("function")?;
        let schema = function.get("parameters").cloned().unwrap_or_default();
        Some(Tool { name: string(function, "name")?.to_owned(), namespace: None, input: Input::Json, schema })
    });
    let tools = tools.collect();
    let number = |name: &str| body.get(name).and_then(Value::as_u64);
    let include_usage = body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or_default();
    let stream = body.get("stream").and_then(Value::as_bool).unwrap_or_default();
    let limit = number("max_completion_tokens").or_else(|| number("max_tokens"));
    let choices = number("n").unwrap_or(1).clamp(1, 16);
    Ok(Ask { api: Api::Chat, model, stream, include_usage, as_list: false, limit, choices, tools, task, results, bytes })
}

fn usage(told: &Tokens) -> Value {
    json!({
        "prompt_tokens": told.all_input(),
        "completion_tokens": told.output,
        "total_tokens": told.all_input() + told.output,
        "prompt_tokens_details": {"cached_tokens": told.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": told.reasoning, "audio_tokens": 0},
    })
}

fn finish_reason(say: &Say) -> &'static str {
    match say {
        Say::Call { .. } => "tool_calls",
        Say::Text { whole: true, .. } => "stop",
        Say::Text { whole: false, .. } => "length",
    }
}

fn tool_call(id: &str, tool: &Tool, input: &str) -> Value {
    json!({"index": 0, "id": id, "type": "function", "function": {"name": tool.name, "arguments": input}})
}

/// The answer in one piece.
pub fn complete_answer(turn: &ModelTurn) -> Value {
    let message = match turn.say {
        Say::Call { id, tool, input } => {
            json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [tool_call(id, tool, &input.to_string())]})
        }
        Say::Text { parts, .. } => {
            json!({"role": "assistant", "content": parts.iter().map(|part| part.text.as_str()).collect::<String>(), "refusal": null})
        }
    };
    let choice = |index| json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish_reason(turn.say)});
    let mut answer = json!({
        "id": format!("chatcmpl-{:08}", turn.number), "object": "chat.completion", "created": 1, "model": turn.ask.model,
        "choices": (0..turn.ask.choices).map(choice).collect::<Vec<_>>(),
    });
    put(&mut answer, "usage", turn.reported.as_ref().map(usage));
    answer
}

/// The answer as a stream.
pub fn stream(turn: &ModelTurn) -> Stream {
    let (ask, mut growing) = (turn.ask, Growing::default());
    let told = turn.reported.filter(|_| ask.include_usage);
    let chunk = |choices: Value, usage: Value| {
        let mut data = json!({
            "id": format!("chatcmpl-{:08}", turn.number), "object": "chat.completion.chunk", "created": 1, "model": ask.model,
            "choices": choices,
        });
        put(&mut data, "usage", Some(usage).filter(|_| told.is_some()));
        Event { data, ..Event::default() }
    };
    let delta =
        |index: u64, delta: Value, finish: Value| json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let role = |index| chunk(delta(index, json!({"role": "assistant", "content": ""}), Value::Null), Value::Null);
    let mut head: Vec<Event> = (0..ask.choices).map(role).collect();
    if let Some(first) = head.first_mut() {
        first.charged = turn.charged_before_content();
    }
    let mut pieces: Vec<(u64, Value, Tokens)> = Vec::new();
    match turn.say {
        Say::Call { id, tool, input } => {
            head.push(chunk(delta(0, json!({"tool_calls": [tool_call(id, tool, "")]}), Value::Null), Value::Null));
            pieces.push((0, json!({"tool_calls": [{"index": 0, "function": {"arguments": input.to_string()}}]}), turn.for_call()));
        }
        Say::Text { parts, .. } => {
            let all = |ContentPart { text, tokens }: &ContentPart| {
                let (text, tokens) = (text.clone(), *tokens);
                (0..ask.choices).map(move |index| (index, json!({"content": text}), Tokens::of_output(tokens))).collect::<Vec<_>>()
            };
            pieces.extend(parts.iter().flat_map(all));
        }
    }
    let (mut content, mut so_far) = (Vec::new(), turn.used.reasoning);
    for (index, piece, charged) in pieces {
        so_far += charged.output;
        let now = told.filter(|_| turn.cumulative).map(|told| Tokens { output: so_far.min(told.output), ..told });
        let said = now.map(|now| growing.take_increase(&now)).unwrap_or_default();
        let event = chunk(delta(index, piece, Value::Null), now.as_ref().map_or(Value::Null, usage));
        content.push(Event { charged, reported: said, content: true, ..event });
    }
    let end = |index| chunk(delta(index, json!({}), json!(finish_reason(turn.say))), Value::Null);
    let mut tail: Vec<Event> = (0..ask.choices).map(end).collect();
    if let Some(told) = told {
        tail.push(Event { reported: growing.take_increase(&told), ..chunk(json!([]), usage(&told)) });
    }
    tail.push(Event { raw: Some("[DONE]".to_owned()), ..Event::default() });
    let error = json!({"error": {"message": "The server had an error", "type": "server_error", "param": null, "code": null}});
    Stream { head, content, tail, error: Event { data: error, ..Event::default() } }
}
