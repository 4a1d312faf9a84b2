//! Gemini generateContent. `promptTokenCount` includes cached input. `candidatesTokenCount` excludes thoughts. Every
//! chunk reports usage, and only that of the last one is complete.

use serde_json::{Value, json};

use crate::ask::{Api, Ask, Input, Say, Tokens, Tool};
use crate::turn::{Event, Growing, ModelTurn, Stream, is_person_text, list, put, string};

/// Reads a call. Its path names the model and says whether it is streamed.
pub fn read(body: &Value, bytes: usize, model: &str, stream: bool, as_list: bool) -> Result<Ask, String> {
    let (mut task, mut results) = (String::new(), 0);
    for content in list(body, "contents") {
        for part in list(content, "parts") {
            if part.get("functionResponse").is_some() {
                results += 1;
            } else if let Some(words) =
                string(part, "text").filter(|words| string(content, "role") != Some("model") && is_person_text(words))
            {
                (task, results) = (words.to_owned(), 0);
            }
        }
    }
    let functions = list(body, "tools").flat_map(|tools| list(tools, "functionDeclarations"));
    let tools = functions.filter_map(|function| {
        let schema = function.get("parametersJsonSchema").or_else(|| function.get("parameters")).cloned().unwrap_or_default();
        Some(Tool { name: string(function, "name")?.to_owned(), namespace: None, input: Input::Json, schema })
    });
    let tools = tools.collect();
    if body.get("contents").is_none() {
        return Err("contents is not specified".to_owned());
    }
    let number = |name: &str| body.pointer(&format!("/generationConfig/{name}")).and_then(Value::as_u64);
    let (limit, choices) = (number("maxOutputTokens"), number("candidateCount").unwrap_or(1).clamp(1, 8));
    let model = model.to_owned();
    Ok(Ask { api: Api::Gemini, model, stream, include_usage: true, as_list, limit, choices, tools, task, results, bytes })
}

fn usage(told: &Tokens) -> Value {
    let candidates = told.output.saturating_sub(told.reasoning);
    let mut usage = json!({
        "promptTokenCount": told.all_input(), "candidatesTokenCount": candidates,
        "totalTokenCount": told.all_input() + told.output,
    });
    put(&mut usage, "cachedContentTokenCount", Some(json!(told.cache_read)).filter(|_| told.cache_read > 0));
    put(&mut usage, "thoughtsTokenCount", Some(json!(told.reasoning)).filter(|_| told.reasoning > 0));
    usage
}

fn chunk(turn: &ModelTurn, parts: &Value, finish: Option<&str>, told: Option<Tokens>) -> Value {
    let candidate = |index: u64| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": index});
        put(&mut candidate, "finishReason", finish.map(|reason| json!(reason)));
        candidate
    };
    let mut chunk = json!({
        "candidates": (0..turn.ask.choices).map(candidate).collect::<Vec<_>>(),
        "modelVersion": turn.ask.model, "responseId": format!("r{:08}", turn.number),
    });
    put(&mut chunk, "usageMetadata", told.as_ref().map(usage));
    chunk
}

fn parts(say: &Say) -> Vec<(Value, u64)> {
    match say {
        Say::Call { tool, input, .. } => vec![(json!([{"functionCall": {"name": tool.name, "args": input}}]), 0)],
        Say::Text { parts, .. } => parts.iter().map(|part| (json!([{"text": part.text}]), part.tokens)).collect(),
    }
}

fn finish_reason(say: &Say) -> &'static str {
    if matches!(say, Say::Text { whole: false, .. }) { "MAX_TOKENS" } else { "STOP" }
}

/// The answer in one piece.
pub fn complete_answer(turn: &ModelTurn) -> Value {
    let parts = match turn.say {
        Say::Call { .. } => parts(turn.say).into_iter().next().map(|(part, _)| part).unwrap_or_default(),
        Say::Text { parts, .. } => json!([{"text": parts.iter().map(|part| part.text.as_str()).collect::<String>()}]),
    };
    chunk(turn, &parts, Some(finish_reason(turn.say)), turn.reported)
}

/// The answer as a stream.
pub fn stream(turn: &ModelTurn) -> Stream {
    let (mut growing, mut so_far, mut content) = (Growing::default(), turn.used.reasoning, Vec::new());
    for (at, (part, tokens)) in parts(turn.say).into_iter().enumerate() {
        let mut charged = match turn.say {
            Say::Call { .. } => turn.for_call(),
            Say::Text { .. } => Tokens::of_output(tokens * turn.ask.choices),
        };
        so_far += charged.output;
        if at == 0 {
            charged.add(&turn.charged_before_content());
        }
        // Before the end it reports a part of the output, or all so far.
        let now = turn
            .reported
            .map(|told| if turn.cumulative { Tokens { output: so_far.min(told.output), ..told } } else { told.without_output() });
        let said = now.map(|now| growing.take_increase(&now)).unwrap_or_default();
        content.push(Event { data: chunk(turn, &part, None, now), charged, reported: said, content: true, ..Event::default() });
    }
    let said = turn.reported.map(|told| growing.take_increase(&told)).unwrap_or_default();
    let end = chunk(turn, &json!([{"text": ""}]), Some(finish_reason(turn.say)), turn.reported);
    let error = json!({"error": {"code": 503, "message": "The model is overloaded. Please try again later.", "status": "UNAVAILABLE"}});
    Stream {
        head: vec![],
        content,
        tail: vec![Event { data: end, reported: said, ..Event::default() }],
        error: Event { data: error, ..Event::default() },
    }
}
