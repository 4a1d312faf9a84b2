//! Parsing of calls: refused calls, accepted calls, and their facts.

use super::*;
use crate::route::route;
use serde_json::{Value, json};
use spillway_wire::{Code, Refusal};

#[path = "call/clients_tests.rs"]
mod clients_tests;
#[path = "call/upstream_tests.rs"]
mod upstream_tests;

const JSON: Option<&str> = Some("application/json");
const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const GEMINI: &str = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";

fn call(path: &str, body: &str) -> Result<Call, Fault> {
    parse(&route("POST", path, None).expect(path), JSON, None, body.as_bytes())
}

fn good(path: &str, body: &Value) -> Call {
    call(path, &body.to_string()).unwrap_or_else(|fault| panic!("{fault}: {body}"))
}

fn sent(call: &Call, output: i64) -> Value {
    serde_json::from_slice(&call.upstream_body(output)).expect("JSON is sent")
}

/// Base64 of `bytes` bytes that begins as an image.
fn png(bytes: usize) -> String {
    let start = "iVBORw0KGgoAAAAN";
    format!("{start}{}", "A".repeat(bytes - start.len()))
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn messages() -> Value {
    json!({"model": "claude-opus-4-8", "max_tokens": 64_000, "stream": true, "messages": [{"role": "user", "content": "hi"}]})
}

fn chat() -> Value {
    json!({"model": "gpt-5.5", "messages": [{"role": "user", "content": "hi"}]})
}

fn responses() -> Value {
    json!({"model": "gpt-5.5", "store": false, "stream": true, "input": [{"type": "message", "role": "user",
        "content": [{"type": "input_text", "text": "hi"}]}]})
}

fn gemini() -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})
}

#[test]
fn bodies_that_two_could_read_in_two_ways_are_refused() {
    let route = route("POST", MESSAGES, None).expect("known");
    let body = messages().to_string();
    for (content_type, encoding, field) in [
        (Some("text/plain"), None, "content-type"),
        (Some("application/x-www-form-urlencoded"), None, "content-type"),
        (Some("application/json; charset=utf-16"), None, "content-type"),
        (Some("application/json; charset = utf-7"), None, "content-type"),
        (Some("application/json; charset="), None, "content-type"),
        (Some("application/json; charset*=utf-7''x"), None, "content-type"),
        (Some("application/json; charset=utf-8; charset=utf-7"), None, "content-type"),
        (Some("application/x-protobuf+json"), None, "content-type"),
        (JSON, Some("gzip"), "content-encoding"),
        (JSON, Some("zstd"), "content-encoding"),
        (JSON, Some("identity, br"), "content-encoding"),
    ] {
        let fault = parse(&route, content_type, encoding, body.as_bytes()).expect_err(field);
        assert_eq!(fault.field.as_deref(), Some(field));
    }
    for (content_type, encoding) in [(None, None), (Some("Application/JSON; Charset=\"UTF-8\""), Some("identity")), (JSON, Some(""))] {
        assert!(parse(&route, content_type, encoding, body.as_bytes()).is_ok(), "{content_type:?} {encoding:?}");
    }
    for body in [&b"\xff\xfe{\0}\0"[..], b"{\"model\":\"a\xff\"}", b"", b"[]", b"\"x\"", b"null"] {
        assert!(parse(&route, JSON, None, body).is_err(), "{body:?}");
    }
}

#[test]
fn faults_name_their_fields() {
    let cases = [
        (MESSAGES, "{}", "model"),
        (MESSAGES, r#"{"model":""}"#, "model"),
        (MESSAGES, r#"{"model":null}"#, "model"),
        (MESSAGES, r#"{"model":7}"#, "model"),
        (MESSAGES, r#"{"model":"a b"}"#, "model"),
        (MESSAGES, r#"{"model":"a","model":"b"}"#, "model"),
        (MESSAGES, r#"{"model":"a","max_tokens":"5"}"#, "max_tokens"),
        (MESSAGES, r#"{"model":"a","max_tokens":1.5}"#, "max_tokens"),
        (MESSAGES, r#"{"model":"a","max_tokens":-1}"#, "max_tokens"),
        (MESSAGES, r#"{"model":"a","max_tokens":99999999999999999999}"#, "max_tokens"),
        (MESSAGES, r#"{"model":"a","stream":"true"}"#, "stream"),
        (MESSAGES, r#"{"model":"a","messages":{}}"#, "messages"),
        (MESSAGES, r#"{"model":"a","messages":["x"]}"#, "messages[0]"),
        (MESSAGES, r#"{"model":"a","messages":[{"content":{}}]}"#, "messages[0].content"),
        (MESSAGES, r#"{"model":"a","messages":[{"content":[7]}]}"#, "messages[0].content[0]"),
        (
            MESSAGES,
            r#"{"model":"a","messages":[{"content":[{"type":"image","source":{"type":"base64","data":7}}]}]}"#,
            "messages[0].content[0].source.data",
        ),
        (MESSAGES, r#"{"model":"a","thinking":{"budget_tokens":"x"}}"#, "thinking.budget_tokens"),
        (MESSAGES, r#"{"model":"a","tools":[{"x":{"y":1,"y":1}}]}"#, "tools[0].x.y"),
        (CHAT, r#"{"model":"a","Model":"b"}"#, "Model"),
        (CHAT, r#"{"model":"a","MAX_TOKENS":9}"#, "MAX_TOKENS"),
        (CHAT, r#"{"model":"a","\u017ftream":true}"#, "\u{17f}tream"),
        (RESPONSES, r#"{"model":"a","Previous_Response_ID":"r"}"#, "Previous_Response_ID"),
        (CHAT, r#"{"model":"a","n":0}"#, "n"),
        (CHAT, r#"{"model":"a","best_of":129}"#, "best_of"),
        (CHAT, r#"{"model":"a","max_completion_tokens":[]}"#, "max_completion_tokens"),
        (CHAT, r#"{"model":"a","stream":true,"stream_options":true}"#, "stream_options"),
        (CHAT, r#"{"model":"a","stream":true,"stream_options":{"include_usage":1}}"#, "stream_options.include_usage"),
        (RESPONSES, r#"{"model":"a","max_output_tokens":{}}"#, "max_output_tokens"),
        (RESPONSES, r#"{"model":"a","input":7}"#, "input"),
        (RESPONSES, r#"{"model":"a","instructions":[{"type":"item_reference","id":"i"}]}"#, "instructions"),
        (GEMINI, r#"{"generationConfig":7}"#, "generationConfig"),
        (GEMINI, r#"{"generationConfig":{"maxOutputTokens":"5"}}"#, "generationConfig.maxOutputTokens"),
        (GEMINI, r#"{"generationConfig":{"maxOutputTokens":5,"max_output_tokens":6}}"#, "generationConfig.maxOutputTokens"),
        (GEMINI, r#"{"generationConfig":{},"generation_config":{}}"#, "generationConfig"),
        (GEMINI, r#"{"model":"models/gemini-9-ultra"}"#, "model"),
        (GEMINI, r#"{"contents":["x"]}"#, "contents[0]"),
    ];
    for (path, body, field) in cases {
        let fault = call(path, body).expect_err(body);
        assert_eq!(fault.field.as_deref(), Some(field), "{fault}");
        let refusal = Refusal::from(fault);
        assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidBody, Some(field)));
    }
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(129));
    assert_eq!(call(CHAT, &long).expect_err("long").field.as_deref(), Some("model"));
}

#[test]
fn what_brings_input_that_is_not_in_the_body_is_refused() {
    let block = |block: Value| with(messages(), "messages", json!([{"role": "user", "content": [block]}]));
    let part = |part: Value| with(chat(), "messages", json!([{"role": "user", "content": [part]}]));
    let item = |item: Value| with(responses(), "input", json!([item]));
    let inline = |part: Value| json!({"contents": [{"parts": [part]}]});
    let cases = [
        (MESSAGES, with(messages(), "mcp_servers", json!([{"type": "url"}])), "mcp_servers"),
        (MESSAGES, with(messages(), "container", json!("c_1")), "container"),
        (MESSAGES, with(messages(), "tools", json!([{"type": "web_search_20250305", "name": "web_search"}])), "tools[0].type"),
        (MESSAGES, with(messages(), "tools", json!([{"name": "x"}, {"type": "code_execution_20250825"}])), "tools[1].type"),
        (
            MESSAGES,
            with(messages(), "context_management", json!({"edits": [{"type": "compact_20260112"}]})),
            "context_management.edits[0].type",
        ),
        (
            MESSAGES,
            block(json!({"type": "image", "source": {"type": "url", "url": "https://x/?secret"}})),
            "messages[0].content[0].source.type",
        ),
        (MESSAGES, block(json!({"type": "document", "source": {"type": "file", "file_id": "f"}})), "messages[0].content[0].source.type"),
        (
            MESSAGES,
            block(json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "file"}}]})),
            "messages[0].content[0].content[0].source.type",
        ),
        (MESSAGES, block(json!({"type": "container_upload", "file_id": "f"})), "messages[0].content[0]"),
        (
            MESSAGES,
            block(json!({"type": "web_fetch_tool_result", "content": {"type": "web_fetch_result", "url": "https://x",
                "content": {"type": "document", "source": {"type": "url", "url": "https://x"}}}})),
            "messages[0].content[0].content.content.source.type",
        ),
        (
            MESSAGES,
            block(json!({"type": "yet_to_come", "parts": [[{"source": {"type": "file", "file_id": "f"}}]]})),
            "messages[0].content[0].parts[0][0].source.type",
        ),
        (
            MESSAGES,
            block(json!({"type": "code_execution_tool_result", "content": {"content": [{"file_id": "f"}]}})),
            "messages[0].content[0].content.content[0].file_id",
        ),
        (MESSAGES, with(messages(), "tools", json!([{"type": "bash_code_execution_20250825"}])), "tools[0].type"),
        (
            CHAT,
            with(chat(), "messages", json!([{"role": "user", "content": "x", "images": [{"image_url": {"url": "https://x"}}]}])),
            "messages[0].images[0].image_url.url",
        ),
        (CHAT, part(json!({"type": "document_url", "document_url": "https://x"})), "messages[0].content[0].document_url"),
        (CHAT, part(json!({"type": "image", "source": {"type": "url", "url": "https://x"}})), "messages[0].content[0].source.type"),
        (CHAT, part(json!({"type": "yet_to_come", "inner": [{"file_id": "f"}]})), "messages[0].content[0].inner[0].file_id"),
        (RESPONSES, item(json!({"type": "input_file", "file_url": "https://x"})), "input[0].file_url"),
        (RESPONSES, item(json!({"type": "input_image", "image_url": "https://x"})), "input[0].image_url"),
        (RESPONSES, item(json!({"type": "yet_to_come", "inner": {"parts": [{"file_id": "f"}]}})), "input[0].inner.parts[0].file_id"),
        (
            GEMINI,
            inline(json!({"toolResponse": {"parts": [{"file_data": {"file_uri": "https://x"}}]}})),
            "contents[0].parts[0].toolResponse.parts[0].fileData",
        ),
        (GEMINI, with(gemini(), "generationConfig", json!({"routingConfig": {}})), "generationConfig.routingConfig"),
        (CHAT, with(chat(), "web_search_options", json!({})), "web_search_options"),
        (CHAT, with(chat(), "models", json!(["other"])), "models"),
        (CHAT, with(chat(), "prediction", json!({"type": "content", "content": "x"})), "prediction"),
        (CHAT, with(chat(), "modalities", json!(["text", "audio"])), "modalities[1]"),
        (CHAT, with(chat(), "tools", json!([{"type": "web_search"}])), "tools[0].type"),
        (CHAT, with(chat(), "messages", json!([{"role": "assistant", "audio": {"id": "a"}}])), "messages[0].audio"),
        (CHAT, part(json!({"type": "image_url", "image_url": {"url": "https://x/a.png"}})), "messages[0].content[0].image_url.url"),
        (CHAT, part(json!({"image_url": "https://x/a.png"})), "messages[0].content[0].image_url.url"),
        (CHAT, part(json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}})), "messages[0].content[0].video_url"),
        (CHAT, part(json!({"type": "file", "file": {"file_id": "f"}})), "messages[0].content[0].file.file_id"),
        (RESPONSES, with(responses(), "previous_response_id", json!("resp_1")), "previous_response_id"),
        (RESPONSES, with(responses(), "conversation", json!({"id": "c"})), "conversation"),
        (RESPONSES, with(responses(), "prompt", json!({"id": "p"})), "prompt"),
        (RESPONSES, with(responses(), "background", json!(true)), "background"),
        (RESPONSES, with(responses(), "tools", json!([{"type": "file_search"}])), "tools[0].type"),
        (RESPONSES, with(responses(), "tools", json!([{"type": "mcp"}])), "tools[0].type"),
        (RESPONSES, with(responses(), "tools", json!([{"type": "shell", "environment": {"type": "container_auto"}}])), "tools[0].type"),
        (
            RESPONSES,
            with(responses(), "tools", json!([{"type": "namespace", "tools": [{"type": "web_search"}]}])),
            "tools[0].tools[0].type",
        ),
        (RESPONSES, item(json!({"type": "additional_tools", "tools": [{"type": "mcp"}]})), "input[0].tools[0].type"),
        (RESPONSES, with(responses(), "tool_choice", json!({"type": "web_search"})), "tool_choice.type"),
        (RESPONSES, item(json!({"type": "item_reference", "id": "msg_1"})), "input[0]"),
        (RESPONSES, item(json!({"id": "msg_1"})), "input[0]"),
        (RESPONSES, item(json!({"type": "image_generation_call", "id": "ig_1"})), "input[0]"),
        (RESPONSES, with(item(json!({"type": "reasoning", "id": "rs_1", "summary": []})), "store", json!(true)), "input[0]"),
        (
            RESPONSES,
            item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]})),
            "input[0].content[0].image_url",
        ),
        (RESPONSES, item(json!({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]})), "input[0].content[0].file_id"),
        (
            RESPONSES,
            item(json!({"type": "function_call_output", "output": [{"type": "input_file", "file_url": "https://x"}]})),
            "input[0].output[0].file_url",
        ),
        (
            RESPONSES,
            item(json!({"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}})),
            "input[0].output.file_id",
        ),
        (GEMINI, with(gemini(), "cachedContent", json!("cachedContents/1")), "cachedContent"),
        (GEMINI, with(gemini(), "cached_content", json!("cachedContents/1")), "cachedContent"),
        (GEMINI, with(gemini(), "tools", json!([{"googleSearch": {}}])), "tools[0].googleSearch"),
        (GEMINI, with(gemini(), "tools", json!({"url_context": {}})), "tools[0].url_context"),
        (GEMINI, inline(json!({"fileData": {"fileUri": "https://x"}})), "contents[0].parts[0].fileData"),
        (
            GEMINI,
            inline(json!({"functionResponse": {"parts": [{"file_data": {}}]}})),
            "contents[0].parts[0].functionResponse.parts[0].fileData",
        ),
        (GEMINI, with(gemini(), "generationConfig", json!({"responseModalities": ["IMAGE"]})), "generationConfig.responseModalities[0]"),
    ];
    for (path, body, field) in cases {
        let fault = call(path, &body.to_string()).expect_err(field);
        assert_eq!(fault.field.as_deref(), Some(field), "{fault}");
    }
}

#[test]
fn what_asks_for_nothing_passes() {
    for (path, body) in [
        (MESSAGES, with(messages(), "container", Value::Null)),
        (MESSAGES, with(messages(), "mcp_servers", json!([]))),
        (CHAT, with(chat(), "chatId", json!("x"))),
        (CHAT, with(chat(), "audio", Value::Null)),
        (CHAT, with(chat(), "modalities", json!(["text"]))),
        (RESPONSES, with(responses(), "background", json!(false))),
        (RESPONSES, with(responses(), "previous_response_id", Value::Null)),
        (RESPONSES, with(responses(), "input", json!("hi"))),
        (GEMINI, with(gemini(), "cachedContent", json!(""))),
        (GEMINI, with(gemini(), "tools", json!([{"googleSearch": null, "functionDeclarations": []}]))),
    ] {
        good(path, &body);
    }
}

#[test]
fn what_tools_are_called_with_and_what_is_quoted_is_text() {
    let like = json!({"file_id": "f", "image_url": "https://x", "source": {"type": "url"}});
    let function = json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": like}}}]);
    for (path, body) in [
        (
            MESSAGES,
            with(
                messages(),
                "messages",
                json!([{"role": "assistant", "content": [{"type": "tool_use", "input": like},
            {"type": "text", "text": "x", "citations": [{"file_id": "f", "source": "https://x"}]},
            {"type": "search_result", "source": "https://x", "content": [{"type": "text", "text": "x"}]},
            {"type": "web_search_tool_result", "content": [{"type": "web_search_result", "url": "https://x"}]}]}]),
            ),
        ),
        (MESSAGES, with(messages(), "tools", json!([{"name": "f", "input_schema": {"properties": like}}]))),
        (CHAT, with(chat(), "tools", function)),
        (
            CHAT,
            with(
                chat(),
                "messages",
                json!([{"role": "assistant", "content": "x", "annotations": [{"file_id": "f"}],
            "tool_calls": [{"function": {"arguments": like}}]}]),
            ),
        ),
        (
            RESPONSES,
            with(
                responses(),
                "input",
                json!([{"type": "message", "role": "assistant", "content": [{"type": "output_text",
            "text": "x", "annotations": [{"file_id": "f", "url": "https://x"}]}]}, {"type": "function_call", "arguments": like},
            {"type": "tool_search_output", "tools": [{"type": "function", "parameters": {"properties": like}}]}]),
            ),
        ),
    ] {
        good(path, &body);
    }
}

#[test]
fn a_file_counts_by_what_it_is_and_not_by_what_it_is_called() {
    let window = crate::media::MAX_CONTEXT_TOKENS;
    let base64 = |kind: &str, mime: &str, data: &str| {
        let source = json!({"type": "base64", "media_type": mime, "data": data});
        with(messages(), "messages", json!([{"role": "user", "content": [{"type": kind, "source": source}]}]))
    };
    let (pdf, text, image) = ("JVBERi0xLjcK", "aGVsbG8=", png(20));
    let fetched = json!({"type": "web_fetch_tool_result", "content": {"content": {"type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": pdf}}}});
    let file = |mime: &str, name: &str, data: &str| {
        let file = json!({"filename": name, "file_data": format!("data:{mime};base64,{data}")});
        with(chat(), "messages", json!([{"role": "user", "content": [{"type": "file", "file": file}]}]))
    };
    let top = |file: Value| with(responses(), "input", json!([file]));
    let inline = |mime: &str, data: &str| json!({"contents": [{"parts": [{"inlineData": {"mimeType": mime, "data": data}}]}]});
    for (path, body, tokens) in [
        (MESSAGES, base64("image", "image/png", &image), 5_000),
        (MESSAGES, base64("image", "image/png", pdf), window),
        (MESSAGES, base64("image", "application/pdf", &image), window),
        (MESSAGES, base64("document", "image/png", &image), window),
        (MESSAGES, base64("document", "text/plain", text), window),
        (MESSAGES, base64("document", "application/pdf", pdf), window),
        (MESSAGES, with(messages(), "messages", json!([{"role": "user", "content": [fetched]}])), window),
        (CHAT, file("text/plain", "a.txt", text), 0),
        (CHAT, file("text/plain", "a.pdf", text), window),
        (CHAT, file("text/plain", "a.txt", pdf), window),
        (CHAT, file("image/png", "a.png", &image), window),
        (RESPONSES, top(json!({"type": "input_file", "filename": "a.txt", "file_data": format!("data:text/plain;base64,{pdf}")})), window),
        (RESPONSES, top(json!({"type": "input_image", "detail": "low", "image_url": format!("data:image/png;base64,{image}")})), 3_000),
        (GEMINI, inline("image/png", pdf), window),
        (GEMINI, inline("text/plain", pdf), window),
        (GEMINI, inline("text/plain", text), 0),
        (GEMINI, inline("audio/wav", pdf), window),
        (
            GEMINI,
            json!({"contents": [{"parts": [{"toolResponse": {"inline_data": {"mime_type": "application/pdf", "data": pdf}}}]}]}),
            window,
        ),
        // Base64 that contains a slash.
        (GEMINI, inline("image/jpeg", "/9j/4AAQSkZJRg=="), 4_500),
    ] {
        assert_eq!(good(path, &body).facts().other_tokens, tokens, "{body}");
    }
    let escaped = r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"image\/jpeg","data":"\/9j\/4AAQSkZJRg=="}}]}]}"#;
    assert_eq!(call(GEMINI, escaped).expect("a call").facts().other_tokens, 4_500);
}

#[test]
fn an_item_that_stands_for_what_was_kept_goes_without_its_id() {
    let items = json!([{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"}, {"type": "message", "id": "msg_1", "role": "user",
        "content": "x"}, {"id": "cc", "type": "code_interpreter_call", "k\u{e4}y\"": 1}]);
    let sent = sent(&good(RESPONSES, &with(responses(), "input", items)), 9);
    assert_eq!(
        sent["input"],
        json!([{"type": "reasoning", "summary": []}, {"type": "web_search_call", "status": "completed"},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"}, {"type": "message", "id": "msg_1",
            "role": "user", "content": "x"}, {"type": "code_interpreter_call", "k\u{e4}y\"": 1}])
    );
}

#[test]
fn facts_are_all_bytes_but_those_of_images() {
    let data = png(4000);
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let body = with(messages(), "messages", json!([{"role": "user", "content": [image, {"type": "tool_result", "content": [image]}]}]));
    let facts = good(MESSAGES, &body).facts();
    assert_eq!(facts.bytes, i64::try_from(body.to_string().len() - 8000).expect("small"));
    assert_eq!((facts.other_tokens, facts.output, facts.thinking, facts.choices), (10_000, Some(64_000), 0, 1));
    // An argument of a tool that looks like an image is text.
    let body = with(messages(), "messages", json!([{"role": "assistant", "content": [{"type": "tool_use", "input": image}]}]));
    assert_eq!(good(MESSAGES, &body).facts().bytes, i64::try_from(body.to_string().len()).expect("small"));

    let body = with(messages(), "thinking", json!({"type": "enabled", "budget_tokens": 32_000}));
    assert_eq!(good(MESSAGES, &body).facts().thinking, 32_000);
    let body = with(with(messages(), "thinking", json!({"type": "adaptive"})), "tools", json!([{"name": "x"}, {"type": "bash_20250124"}]));
    assert_eq!((good(MESSAGES, &body).facts().thinking, good(MESSAGES, &body).facts().other_tokens), (0, 3_000));

    let url = format!("data:image/png;base64,{data}");
    let parts = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]);
    let body = with(with(chat(), "n", json!(3)), "messages", json!([{"role": "user", "content": parts}]));
    let facts = good(CHAT, &body).facts();
    assert_eq!((facts.other_tokens, facts.choices, facts.output), (25_000 + 3_000 + 8, 3, None));
    assert_eq!(facts.bytes, i64::try_from(body.to_string().len() - 8004).expect("small"));

    let body = with(
        responses(),
        "input",
        json!([{"role": "user", "content": [{"type": "input_image", "image_url": url},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}]}]),
    );
    assert_eq!(good(RESPONSES, &body).facts().other_tokens, crate::media::MAX_CONTEXT_TOKENS);

    let body = json!({"contents": {"parts": {"inline_data": {"mime_type": "image/png", "data": png(20)}}},
        "generation_config": {"max_output_tokens": 9, "candidateCount": 2, "thinkingConfig": {"thinkingBudget": -1}}});
    let facts = good(GEMINI, &body).facts();
    assert_eq!((facts.other_tokens, facts.output, facts.choices, facts.thinking), (4_500, Some(9), 2, 0));
    let body = with(gemini(), "generationConfig", json!({"thinkingConfig": {"thinkingBudget": 512}}));
    assert_eq!(good(GEMINI, &body).facts().thinking, 512);
}

/// Much white space would teach the ratio that a byte costs nearly no token.
#[test]
fn white_space_between_values_is_no_text() {
    for (path, body) in [(MESSAGES, messages()), (CHAT, chat()), (RESPONSES, responses()), (GEMINI, gemini())] {
        let plain = body.to_string();
        let padded = plain.replacen('{', &format!("{{{}", " \n\t\r".repeat(250_000)), 1);
        let facts = call(path, &padded).expect("a call").facts();
        assert_eq!(facts.bytes, call(path, &plain).expect("a call").facts().bytes, "{path}");
    }
    let text = with(chat(), "messages", json!([{"role": "user", "content": " ".repeat(1000)}]));
    assert_eq!(good(CHAT, &text).facts().bytes, i64::try_from(text.to_string().len()).expect("small"), "in a text it is text");
}

#[test]
fn counts_and_lists_pass_as_they_are() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]}).to_string();
    let count = call("/v1/messages/count_tokens", &body).expect("a count");
    assert_eq!((count.kind(), count.model(), count.upstream_body(1)), (Kind::CountTokens, "m", body.into_bytes()));
    let inner = json!({"generateContentRequest": {"model": "models/g", "contents": [{"parts": [{"text": "x"}]}]}}).to_string();
    let count = call("/v1beta/models/g:countTokens", &inner).expect("a count");
    assert_eq!((count.model(), count.upstream_body(1)), ("g", inner.into_bytes()));
    let other = json!({"generateContentRequest": {"model": "models/h"}}).to_string();
    assert!(call("/v1beta/models/g:countTokens", &other).is_err());
    let list = route("GET", "/v1/models", None).expect("known");
    assert_eq!(parse(&list, None, None, b"").expect("a list").upstream_body(1), b"");
    assert!(parse(&list, None, None, b"{}").is_err());
}
