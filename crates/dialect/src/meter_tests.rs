//! Whole answers of each dialect, in the form of the providers.

use super::*;
use crate::call::parse;
use crate::route::route;

pub(super) const SSE: Option<&str> = Some("text/event-stream; charset=utf-8");
pub(super) const JSON: Option<&str> = Some("application/json");

pub(super) const MESSAGES: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4-8","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,"cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Grüße 🌊"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"Bash","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"ls\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":null,"stop_sequence":null},"usage":{"output_tokens":40}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":25,"cache_creation_input_tokens":null,"cache_read_input_tokens":4000,"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;
const MESSAGES_USED: Usage = Usage { input: 25, cache_read: 4000, cache_write: 300, output: 89 };

pub(super) const CHAT: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

: OPENROUTER PROCESSING

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,"delta":{"content":"Hällo"},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"bash","arguments":"{}"}}]},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}

"#;
pub(super) const CHAT_EXTRA: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":70,"total_tokens":1070,"prompt_tokens_details":{"cached_tokens":900,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":64}}}

"#;
pub(super) const DONE: &str = "data: [DONE]\n\n";
const CHAT_USED: Usage = Usage { input: 100, cache_read: 900, cache_write: 0, output: 70 };

pub(super) const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","usage":null,"output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"gAAAABBBB"}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"Hi — 🌊"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":2,"delta":"{\"a\":1}"}

event: response.completed
data: {"type":"response.completed","sequence_number":9,"response":{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"Hi — 🌊"}]}],"usage":{"input_tokens":500,"input_tokens_details":{"cached_tokens":448},"output_tokens":120,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":620}}}

"#;
const RESPONSES_USED: Usage = Usage { input: 52, cache_read: 448, cache_write: 0, output: 120 };

pub(super) const GEMINI: [&str; 3] = [
    r#"{"candidates": [{"content": {"parts": [{"text": "Denke","thought": true}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 200,"totalTokenCount": 230,"thoughtsTokenCount": 30,"cachedContentTokenCount": 50},"modelVersion": "gemini-2.5-pro"}"#,
    r#"{"candidates": [{"content": {"parts": [{"text": "Grüße \"}]{[ 🌊"}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 200,"candidatesTokenCount": 4,"totalTokenCount": 234,"thoughtsTokenCount": 30,"cachedContentTokenCount": 50}}"#,
    r#"{"candidates": [{"content": {"parts": [{"functionCall": {"name": "ls","args": {"path": "."}}}],"role": "model"},"finishReason": "STOP","index": 0}],"usageMetadata": {"promptTokenCount": 200,"candidatesTokenCount": 14,"toolUsePromptTokenCount": 7,"totalTokenCount": 251,"thoughtsTokenCount": 30,"cachedContentTokenCount": 50}}"#,
];
const GEMINI_USED: Usage = Usage { input: 157, cache_read: 50, cache_write: 0, output: 44 };

pub(super) fn gemini_sse() -> String {
    GEMINI.map(|piece| format!("data: {piece}\r\n\r\n")).concat()
}

pub(super) fn gemini_list() -> String {
    format!("[{}]\n", GEMINI.join(",\r\n"))
}

/// A streamed call of the dialect.
pub(super) fn call(dialect: Dialect) -> Call {
    let (path, body) = match dialect {
        Dialect::Anthropic => ("/v1/messages", r#"{"model":"m","stream":true}"#),
        Dialect::OpenAIChat => ("/v1/chat/completions", r#"{"model":"m","stream":true}"#),
        Dialect::OpenAIResponses => ("/v1/responses", r#"{"model":"m","stream":true}"#),
        Dialect::Gemini => ("/v1beta/models/m:streamGenerateContent", "{}"),
    };
    parse(&route("POST", path, None).expect(path), JSON, None, body.as_bytes()).expect(path)
}

/// A Chat call that asks for usage itself.
pub(super) fn asking() -> Call {
    let route = route("POST", "/v1/chat/completions", None).expect("known");
    parse(&route, JSON, None, br#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#).expect("a call")
}

pub(super) fn metered(call: &Call, media: Option<&str>, answer: &[u8], complete: bool) -> (Vec<u8>, Usage, Quality) {
    let (mut meter, mut out) = (Meter::new(call, 200, media), Vec::new());
    meter.feed(answer, &mut out);
    let (usage, quality) = meter.end(complete, &mut out);
    (out, usage, quality)
}

/// Usage of an answer. The client gets the whole answer.
fn used(call: &Call, media: Option<&str>, answer: &str, complete: bool) -> (Usage, Quality) {
    let (out, usage, quality) = metered(call, media, answer.as_bytes(), complete);
    assert_eq!(String::from_utf8_lossy(&out), answer);
    (usage, quality)
}

#[test]
fn streams_say_what_they_used() {
    assert_eq!(used(&call(Dialect::Anthropic), SSE, MESSAGES, true), (MESSAGES_USED, Quality::Exact));
    assert_eq!(used(&call(Dialect::OpenAIResponses), SSE, RESPONSES, true), (RESPONSES_USED, Quality::Exact));
    assert_eq!(used(&call(Dialect::Gemini), SSE, &gemini_sse(), true), (GEMINI_USED, Quality::Exact));
    assert_eq!(used(&call(Dialect::Gemini), JSON, &gemini_list(), true), (GEMINI_USED, Quality::Exact));
    let whole = [CHAT, CHAT_EXTRA, DONE].concat();
    assert_eq!(used(&asking(), SSE, &whole, true), (CHAT_USED, Quality::Exact));
}

#[test]
fn the_usage_chunk_goes_only_to_clients_that_asked_for_it() {
    let (out, usage, quality) = metered(&call(Dialect::OpenAIChat), SSE, [CHAT, CHAT_EXTRA, DONE].concat().as_bytes(), true);
    assert_eq!((String::from_utf8_lossy(&out).as_ref(), usage, quality), ([CHAT, DONE].concat().as_str(), CHAT_USED, Quality::Exact));
    // Usage beside the last choice is not an extra chunk.
    let beside = CHAT_EXTRA.replace("\"choices\":[]", "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]");
    assert_eq!(used(&call(Dialect::OpenAIChat), SSE, &[CHAT, &beside, DONE].concat(), true), (CHAT_USED, Quality::Exact));
    assert_eq!(used(&call(Dialect::OpenAIChat), SSE, &[CHAT, &beside].concat(), false).1, Quality::Partial, "more may have followed");
    assert_eq!(used(&call(Dialect::OpenAIChat), SSE, &[CHAT, &beside, DONE].concat(), false).1, Quality::Exact);
    let wrong = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1},\"error\":{\"message\":\"no\"}}\n\n";
    used(&call(Dialect::OpenAIChat), SSE, wrong, true);
}

#[test]
fn signs_of_life_do_not_wait() {
    let (mut meter, mut out) = (Meter::new(&call(Dialect::OpenAIChat), 200, SSE), Vec::new());
    meter.feed(b": alive\n", &mut out);
    assert_eq!(out, b": alive\n");
    meter.feed(b"data: {\"choices\":[]", &mut out);
    assert_eq!(out, b": alive\n", "an event waits for its end");
    meter.end(false, &mut out);
    assert_eq!(out, b": alive\ndata: {\"choices\":[]", "what was held back is given at the end");
}

#[test]
fn whole_answers_say_what_they_used() {
    for (dialect, answer, want) in [
        (
            Dialect::Anthropic,
            r#"{"id":"m","type":"message","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":{"input_tokens":25,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,"output_tokens":89}}"#,
            MESSAGES_USED,
        ),
        (
            Dialect::OpenAIChat,
            r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":70,"total_tokens":1070,"prompt_tokens_details":{"cached_tokens":900}}}"#,
            CHAT_USED,
        ),
        (
            Dialect::OpenAIResponses,
            r#"{"id":"r","object":"response","status":"completed","output":[],"usage":{"input_tokens":500,"input_tokens_details":{"cached_tokens":448},"output_tokens":120,"total_tokens":620}}"#,
            RESPONSES_USED,
        ),
        (Dialect::Gemini, GEMINI[2], GEMINI_USED),
    ] {
        assert_eq!(used(&call(dialect), JSON, answer, true), (want, Quality::Exact), "{dialect:?}");
        assert_eq!(used(&call(dialect), None, &format!("\n {answer}\n"), true), (want, Quality::Exact), "{dialect:?}");
        assert_eq!(used(&call(dialect), JSON, &answer[..answer.len() - 3], false), (Usage::default(), Quality::Estimated), "{dialect:?}");
        assert_eq!(used(&call(dialect), JSON, "<html>oh</html>", true), (Usage::default(), Quality::Estimated));
        assert_eq!(used(&call(dialect), JSON, "", true), (Usage::default(), Quality::Estimated));
        assert_eq!(used(&call(dialect), JSON, &format!("{answer}x"), true).1, Quality::Partial);
    }
}

#[test]
fn numbers_are_taken_as_each_dialect_means_them() {
    let chat = |usage: &str| format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
    let cases = [
        // Reasoning that is only in the total.
        (Dialect::OpenAIChat, chat(r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":45}"#), [10, 0, 0, 35], Quality::Exact),
        (
            Dialect::OpenAIChat,
            chat(r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#),
            [6, 4, 0, 5],
            Quality::Exact,
        ),
        (
            Dialect::OpenAIChat,
            chat(r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":3}}"#),
            [3, 4, 3, 5],
            Quality::Exact,
        ),
        (Dialect::OpenAIChat, chat(r#"{"prompt_tokens":10.0,"completion_tokens":5e0}"#), [10, 0, 0, 5], Quality::Exact),
        // Wrong and missing numbers.
        (Dialect::OpenAIChat, chat(r#"{"prompt_tokens":-10,"completion_tokens":5}"#), [0, 0, 0, 5], Quality::Partial),
        (
            Dialect::OpenAIChat,
            chat(r#"{"prompt_tokens":10,"completion_tokens":99999999999999999999}"#),
            [10, 0, 0, 10_000_000],
            Quality::Partial,
        ),
        (Dialect::OpenAIChat, chat(r#"{"prompt_tokens":10,"completion_tokens":"5"}"#), [10, 0, 0, 0], Quality::Partial),
        (Dialect::OpenAIChat, chat(r#"{"prompt_tokens":10}"#), [10, 0, 0, 0], Quality::Partial),
        (Dialect::OpenAIChat, chat(r#"{"completion_tokens":5}"#), [0, 0, 0, 5], Quality::Partial),
        (
            Dialect::OpenAIChat,
            chat(r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11}}"#),
            [0, 10, 0, 5],
            Quality::Partial,
        ),
        (Dialect::OpenAIChat, chat("7"), [0; 4], Quality::Estimated),
        (Dialect::OpenAIChat, chat("null"), [0; 4], Quality::Estimated),
        (
            Dialect::OpenAIResponses,
            "data: {\"type\":\"response.failed\",\"response\":{\"usage\":null}}\n\n".into(),
            [0; 4],
            Quality::Estimated,
        ),
        (
            Dialect::OpenAIResponses,
            "data: {\"type\":\"response.incomplete\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n".into(),
            [3, 0, 0, 4],
            Quality::Exact,
        ),
        // A blocked call has no candidates, and zeros are left out.
        (
            Dialect::Gemini,
            "data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"},\"usageMetadata\":{\"promptTokenCount\":9,\"totalTokenCount\":9}}\n\n"
                .into(),
            [9, 0, 0, 0],
            Quality::Exact,
        ),
        (Dialect::Gemini, "data: {\"usageMetadata\":{\"candidatesTokenCount\":9}}\n\n".into(), [0, 0, 0, 9], Quality::Partial),
        (
            Dialect::Anthropic,
            "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n".into(),
            [9, 0, 0, 1],
            Quality::Partial,
        ),
        (Dialect::Anthropic, "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n".into(), [0; 4], Quality::Estimated),
    ];
    for (dialect, answer, [input, cache_read, cache_write, output], quality) in cases {
        let (_, usage, found) = metered(&call(dialect), SSE, answer.as_bytes(), true);
        assert_eq!((usage, found), (Usage { input, cache_read, cache_write, output }, quality), "{answer}");
    }
}

#[test]
fn a_stream_without_usage_is_estimated_and_a_cut_one_is_partial() {
    assert_eq!(used(&call(Dialect::OpenAIChat), SSE, &[CHAT, DONE].concat(), true), (Usage::default(), Quality::Estimated));
    let cut = &MESSAGES[..MESSAGES.find("event: message_delta").expect("there")];
    assert_eq!(used(&call(Dialect::Anthropic), SSE, cut, false), (Usage { output: 1, ..MESSAGES_USED }, Quality::Partial));
    let late = &MESSAGES[..MESSAGES.find("event: message_stop").expect("there")];
    assert_eq!(used(&call(Dialect::Anthropic), SSE, late, false), (MESSAGES_USED, Quality::Exact), "it said that it ended");
    let early = &MESSAGES[..MESSAGES.rfind("event: message_delta").expect("there")];
    assert_eq!(used(&call(Dialect::Anthropic), SSE, early, false), (Usage { output: 40, ..MESSAGES_USED }, Quality::Partial));
}

#[test]
fn what_is_broken_passes_and_is_not_believed() {
    let broken = MESSAGES.replace("{\"type\": \"ping\"}", "{\"type\": \"pi");
    assert_eq!(used(&call(Dialect::Anthropic), SSE, &broken, true), (MESSAGES_USED, Quality::Partial));
    let broken = format!("{CHAT}data: {{\"choices\":[}}\n\n{DONE}");
    assert_eq!(used(&call(Dialect::OpenAIChat), SSE, &broken, true), (Usage::default(), Quality::Estimated));
}

#[test]
fn an_endless_line_passes_and_is_understood() {
    for call in [call(Dialect::OpenAIChat), asking()] {
        let (mut meter, mut out) = (Meter::new(&call, 200, SSE), Vec::new());
        meter.feed(b"data: \"", &mut out);
        let part = vec![b'x'; 1 << 20];
        for _ in 0..18 {
            meter.feed(&part, &mut out);
        }
        assert!(out.len() >= 18 << 20, "it passes while it comes");
        meter.feed(b"\"\n\n", &mut out);
        meter.feed([CHAT_EXTRA, DONE].concat().as_bytes(), &mut out);
        let (usage, quality) = meter.end(true, &mut out);
        assert_eq!((usage, quality), (CHAT_USED, Quality::Exact));
        assert_eq!(out.len(), 7 + (18 << 20) + 3 + if call.strips_usage_chunk() { 0 } else { CHAT_EXTRA.len() } + DONE.len());
    }
}

/// `X-Goog-FieldMask` of Gemini leaves out the fields that it does not name.
#[test]
fn an_answer_without_its_total_or_with_less_output_than_was_written_is_not_exact() {
    let text = "word ".repeat(2_000);
    let gemini = |usage: &str| {
        format!(
            "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}},\"finishReason\":\"STOP\"}}],\"usageMetadata\":{usage}}}\n\n"
        )
    };
    let least = (text.len() as i64) / 32;
    let masked = [
        (Dialect::Gemini, gemini(r#"{"promptTokenCount":3}"#), least),
        (Dialect::Gemini, gemini(r#"{"promptTokenCount":3,"candidatesTokenCount":2000}"#), 2000),
        (Dialect::Gemini, gemini(r#"{"promptTokenCount":3,"totalTokenCount":3}"#), least),
        (
            Dialect::OpenAIChat,
            format!(
                "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":0,\"total_tokens\":3}}}}\n\n"
            ),
            least,
        ),
        (
            Dialect::Anthropic,
            format!(
                "data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{text}\"}}}}\n\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{{\"input_tokens\":3,\"output_tokens\":0}}}}\n\n"
            ),
            least,
        ),
        (
            Dialect::OpenAIResponses,
            format!(
                "data: {{\"type\":\"\",\"output\":[{{\"content\":[{{\"text\":\"{text}\"}}]}}],\"usage\":{{\"input_tokens\":3,\"output_tokens\":1}}}}\n\n"
            ),
            least,
        ),
    ];
    for (dialect, answer, output) in masked {
        let (_, usage, quality) = metered(&call(dialect), SSE, answer.as_bytes(), true);
        assert_eq!(quality, Quality::Partial, "{dialect:?}");
        assert!(usage.output >= output, "{usage:?} is less than the {output} tokens that were written");
    }
    let whole = gemini(r#"{"promptTokenCount":3,"candidatesTokenCount":2000,"totalTokenCount":2053}"#);
    let (_, usage, quality) = metered(&call(Dialect::Gemini), SSE, whole.as_bytes(), true);
    assert_eq!((usage.output, quality), (2050, Quality::Exact), "what only the total has is output");
}

/// A server that leaves out the total may leave out more. Until the end it is unknown whether more follows.
#[test]
fn an_answer_of_chat_without_its_total_is_exact_only_when_it_has_ended() {
    let extra = CHAT_EXTRA.replace(",\"total_tokens\":1070", "");
    let ended = |rest: &[&str], complete| used(&asking(), SSE, &[&[CHAT], rest].concat().concat(), complete);
    assert_eq!(ended(&[&extra, DONE], true), (CHAT_USED, Quality::Exact));
    assert_eq!(ended(&[&extra, DONE], false), (CHAT_USED, Quality::Exact), "it said that it is over");
    assert_eq!(ended(&[&extra], false), (CHAT_USED, Quality::Partial));
    assert_eq!(ended(&[CHAT_EXTRA], false), (CHAT_USED, Quality::Exact), "with its total it is whole");
}

#[test]
fn a_count_that_falls_is_not_believed() {
    let delta = |tokens: i64, last: &str| {
        format!(
            "data: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":{last}}},\"usage\":{{\"input_tokens\":9,\"output_tokens\":{tokens}}}}}\n\n"
        )
    };
    let falling = delta(5_000, "null") + &delta(3, "\"end_turn\"");
    assert_eq!(metered(&call(Dialect::Anthropic), SSE, falling.as_bytes(), true).1.output, 5_000);
}

#[test]
fn refusals_and_counts_cost_nothing() {
    for status in [400, 402, 429, 500, 529] {
        let (mut meter, mut out) = (Meter::new(&call(Dialect::OpenAIChat), status, SSE), Vec::new());
        meter.feed(CHAT_EXTRA.as_bytes(), &mut out);
        assert_eq!(meter.end(false, &mut out), (Usage::default(), Quality::Exact));
        assert_eq!(out, CHAT_EXTRA.as_bytes(), "a refusal passes as it is");
    }
    let route = route("POST", "/v1/messages/count_tokens", None).expect("known");
    let count = parse(&route, JSON, None, br#"{"model":"m"}"#).expect("a count");
    assert_eq!(used(&count, JSON, r#"{"input_tokens":2095}"#, true), (Usage::default(), Quality::Exact));
}

#[test]
fn output_so_far_is_what_was_said_and_no_guess_beyond_it() {
    for (call, media, answer, said) in [
        (call(Dialect::Anthropic), SSE, MESSAGES.to_owned(), 89),
        (call(Dialect::OpenAIChat), SSE, [CHAT, CHAT_EXTRA].concat(), 70),
        (call(Dialect::OpenAIResponses), SSE, RESPONSES.to_owned(), 120),
        (call(Dialect::Gemini), SSE, gemini_sse(), 44),
    ] {
        let (mut meter, mut most, mut out) = (Meter::new(&call, 200, media), 0, Vec::new());
        for byte in answer.as_bytes() {
            meter.feed(std::slice::from_ref(byte), &mut out);
            most = most.max(meter.output_so_far());
        }
        assert_eq!((meter.output_so_far(), most), (said, said), "an answer within its limit never seems to have passed it");
    }
}

#[test]
fn a_provider_that_writes_on_and_says_nothing_is_noticed() {
    let (mut meter, mut out) = (Meter::new(&call(Dialect::OpenAIChat), 200, SSE), Vec::new());
    let chunk = format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}{}"#, "word ".repeat(64), "\n\n");
    for _ in 0..100 {
        meter.feed(chunk.as_bytes(), &mut out);
    }
    let so_far = meter.output_so_far();
    assert!((1000..6400).contains(&so_far), "6400 words: {so_far}");
    meter.feed(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":6500}}\n\n", &mut out);
    assert_eq!(meter.output_so_far(), 6500, "what the provider says is better");
}
