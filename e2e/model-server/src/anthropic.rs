//! Anthropic Messages. `input_tokens` excludes cached input. A stream reports input at its start and output at its end.

use serde_json::{Value, json};

use crate::ask::{Api, Ask, Input, Say, Tokens, Tool};
use crate::turn::{Event, Growing, ModelTurn, Stream, is_person_text, list, put, string};

/// Reads a call.
pub fn read(body: &Value, bytes: usize) -> Result<Ask, String> {
    let model = string(body, "model").ok_or("model: field required")?.to_owned();
    let limit = body.get("max_tokens").and_then(Value::as_u64).ok_or("max_tokens: field required")?;
    let (mut task, mut results) = (String::new(), 0);
    for message in list(body, "messages").filter(|message| string(message, "role") == Some("user")) {
        if let Some(words) = string(message, "content").filter(|words| is_person_text(words)) {
            (task, results) = (words.to_owned(), 0);
        }
        for block in list(message, "content") {
            match (string(block, "type"), string(block, "text")) {
                (Some("tool_result"), _) => results += 1,
                (Some("text"), Some(words)) if is_person_text(words) => (task, results) = (words.to_owned(), 0),
                _ => {}
            }
        }
    }
    let tools = list(body, "tools").filter_map(|tool| {
        let schema = tool.get("input_schema").cloned()?; // a tool without a schema is the provider's own
        Some(Tool { name: string(tool, "name")?.to_owned(), namespace: None, input: Input::Json, schema })
    });
    let stream = body.get("stream").and_then(Value::as_bool).unwrap_or_default();
    let tools = tools.collect();
    Ok(Ask {
        api: Api::Anthropic,
        model,
        stream,
        include_usage: true,
        as_list: false,
        limit: Some(limit),
        choices: 1,
        tools,
        task,
        results,
        bytes,
    })
}

fn usage(told: &Tokens) -> Value {
    json!({
        "input_tokens": told.input,
        "cache_creation_input_tokens": told.cache_write,
        "cache_read_input_tokens": told.cache_read,
        "output_tokens": told.output,
    })
}

fn stop_reason(say: &Say) -> &'static str {
    match say {
        Say::Call { .. } => "tool_use",
        Say::Text { whole: true, .. } => "end_turn",
        Say::Text { whole: false, .. } => "max_tokens",
    }
}

fn message(turn: &ModelTurn, content: Value) -> Value {
    json!({
        "id": format!("msg_{:08}", turn.number), "type": "message", "role": "assistant", "model": turn.ask.model,
        "content": content, "stop_reason": null, "stop_sequence": null,
    })
}

/// The answer in one piece.
pub fn complete_answer(turn: &ModelTurn) -> Value {
    let content = match turn.say {
        Say::Call { id, tool, input } => json!([{"type": "tool_use", "id": id, "name": tool.name, "input": input}]),
        Say::Text { parts, .. } => json!([{"type": "text", "text": parts.iter().map(|part| part.text.as_str()).collect::<String>()}]),
    };
    let mut message = message(turn, content);
    put(&mut message, "stop_reason", Some(json!(stop_reason(turn.say))));
    put(&mut message, "usage", turn.reported.as_ref().map(usage));
    message
}

fn event(name: &'static str, mut data: Value) -> Event {
    put(&mut data, "type", Some(json!(name)));
    Event { name: Some(name), data, ..Event::default() }
}

/// The answer as a stream.
pub fn stream(turn: &ModelTurn) -> Stream {
    let mut growing = Growing::default();
    // The start of a stream reports the first token already.
    let at_start = turn.reported.map(|told| Tokens { output: told.output.min(1), reasoning: 0, ..told });
    let mut started = message(turn, json!([]));
    put(&mut started, "usage", at_start.as_ref().map(usage));
    let mut start = event("message_start", json!({"message": started}));
    start.charged = turn.charged_before_content();
    start.reported = at_start.map(|told| growing.take_increase(&told)).unwrap_or_default();

    let (block, deltas): (Value, Vec<(Value, Tokens)>) = match turn.say {
        Say::Call { id, tool, input } => (
            json!({"type": "tool_use", "id": id, "name": tool.name, "input": {}}),
            vec![(json!({"type": "input_json_delta", "partial_json": input.to_string()}), turn.for_call())],
        ),
        Say::Text { parts, .. } => (
            json!({"type": "text", "text": ""}),
            parts.iter().map(|part| (json!({"type": "text_delta", "text": part.text}), Tokens::of_output(part.tokens))).collect(),
        ),
    };
    let (mut content, mut so_far) = (Vec::new(), turn.used.reasoning);
    for (delta, charged) in deltas {
        so_far += charged.output;
        content.push(Event { charged, content: true, ..event("content_block_delta", json!({"index": 0, "delta": delta})) });
        if let Some(told) = turn.reported.filter(|_| turn.cumulative) {
            let now = Tokens { output: so_far.min(told.output), ..told };
            let said = growing.take_increase(&now);
            content.push(Event { reported: said, ..event("message_delta", json!({"delta": {"stop_reason": null}, "usage": usage(&now)})) });
        }
    }
    let mut end = event("message_delta", json!({"delta": {"stop_reason": stop_reason(turn.say), "stop_sequence": null}}));
    if let Some(told) = turn.reported {
        let fields = if turn.cumulative { usage(&told) } else { json!({"output_tokens": told.output}) };
        put(&mut end.data, "usage", Some(fields));
        end.reported = growing.take_increase(&told);
    }
    Stream {
        head: vec![start, event("content_block_start", json!({"index": 0, "content_block": block}))],
        content,
        tail: vec![event("content_block_stop", json!({"index": 0})), end, event("message_stop", json!({}))],
        error: event("error", json!({"error": {"type": "overloaded_error", "message": "Overloaded"}})),
    }
}
