//! Tests of the body that is sent upstream: the client's body with its output limit. Tests of refusals are not here.

use super::*;

#[test]
fn the_limit_is_lowered_or_written_and_the_rest_is_the_clients_own() {
    for (path, body, want) in [
        // A limit that is low enough is unchanged.
        (MESSAGES, r#"{ "model":"m" , "max_tokens": 50}"#, r#"{ "model":"m" , "max_tokens": 50}"#),
        (MESSAGES, r#"{ "model":"m" , "max_tokens": 500 }"#, r#"{ "model":"m" , "max_tokens": 100 }"#),
        (MESSAGES, r#"{"max_tokens":null,"model":"m"}"#, r#"{"max_tokens":100,"model":"m"}"#),
        (MESSAGES, r#"{"model":"m"}"#, r#"{"max_tokens":100,"model":"m"}"#),
        (CHAT, r#"{"model":"m"}"#, r#"{"max_completion_tokens":100,"model":"m"}"#),
        (CHAT, r#"{"model":"m","max_tokens":null}"#, r#"{"model":"m","max_tokens":100}"#),
        (CHAT, r#"{"model":"m","max_tokens":101}"#, r#"{"model":"m","max_tokens":100}"#),
        (
            CHAT,
            r#"{"max_completion_tokens":7,"model":"m","max_tokens":101}"#,
            r#"{"max_completion_tokens":7,"model":"m","max_tokens":100}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9}"#,
            r#"{"stream_options":{"include_usage":true},"model":"m","stream":true,"max_tokens":9}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{}}"#,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"x":1}}"#,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true,"x":1}}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":false}}"#,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
            r#"{"model":"m","stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
        ),
        (RESPONSES, r#"{"model":"m","x":[1 , 2]}"#, r#"{"max_output_tokens":100,"model":"m","x":[1 , 2]}"#),
        (
            RESPONSES,
            r#"{"model":"m","max_output_tokens":100,"tools":[{"type":"web_search"}, {"type":"function" },{"type":"image_generation"}]}"#,
            r#"{"model":"m","max_output_tokens":100,"tools":[{"type":"function" }]}"#,
        ),
        (GEMINI, "{}", r#"{"generationConfig":{"maxOutputTokens":100}}"#),
        (GEMINI, r#"{"contents":[]}"#, r#"{"generationConfig":{"maxOutputTokens":100},"contents":[]}"#),
        (GEMINI, r#"{"generationConfig":null}"#, r#"{"generationConfig":{"maxOutputTokens":100}}"#),
        (GEMINI, r#"{"generationConfig":{}}"#, r#"{"generationConfig":{"maxOutputTokens":100}}"#),
        (GEMINI, r#"{"generation_config":{"topK":1}}"#, r#"{"generation_config":{"maxOutputTokens":100,"topK":1}}"#),
        (GEMINI, r#"{"generation_config":{"max_output_tokens":1000}}"#, r#"{"generation_config":{"max_output_tokens":100}}"#),
        (GEMINI, r#"{"generationConfig":{"max_output_tokens":null}}"#, r#"{"generationConfig":{"max_output_tokens":100}}"#),
    ] {
        let call = call(path, body).unwrap_or_else(|fault| panic!("{fault}: {body}"));
        assert_eq!(String::from_utf8(call.upstream_body(100)).expect("UTF-8"), want, "{body}");
        assert!(sent(&call, 0).is_object(), "a limit below 1 is 1");
    }
}

#[test]
fn what_was_sent_asks_for_what_was_held() {
    for (path, body) in [(MESSAGES, messages()), (CHAT, with(chat(), "stream", json!(true))), (RESPONSES, responses()), (GEMINI, gemini())]
    {
        let again = call(path, &sent(&good(path, &body), 1234).to_string()).expect("what is sent is read again");
        assert_eq!(again.facts().output, Some(1234), "{path}");
        assert_eq!(again.upstream_body(1234), again.upstream_body(9999), "nothing is left to change");
    }
}

proptest::proptest! {
    /// For any body: no panic, and the sent body is JSON with a limit that is not above the given one.
    #[test]
    fn a_changed_body_is_refused_or_sent_with_its_limit(
        which in 0..8usize, at in proptest::prelude::any::<proptest::sample::Index>(), put in "[ -~]{0,6}", cut in 0..4usize,
    ) {
        let bodies = [
            (MESSAGES, messages()), (CHAT, with(chat(), "stream", json!(true))), (RESPONSES, responses()), (GEMINI, gemini()),
            (CHAT, with(with(chat(), "max_tokens", json!(90_000)), "stream_options", json!({"include_usage": false}))),
            (RESPONSES, with(responses(), "tools", json!([{"type": "web_search"}, {"type": "custom", "name": "x"}]))),
            (GEMINI, with(gemini(), "generationConfig", json!({"maxOutputTokens": 90_000, "candidateCount": 2}))),
            (MESSAGES, with(messages(), "tools", json!([{"name": "x", "input_schema": {"type": "object"}}]))),
        ];
        let (path, body) = &bodies[which];
        let mut body = body.to_string();
        let at = at.index(body.len());
        body.replace_range(at..(at + cut).min(body.len()), &put);
        if let Ok(read) = call(path, &body) {
            let sent = read.upstream_body(1234);
            let again = call(path, std::str::from_utf8(&sent).expect("UTF-8")).expect("what is sent is read again");
            proptest::prop_assert!(again.facts().output.is_some_and(|output| output <= 1234));
            proptest::prop_assert_eq!(again.model(), read.model());
            proptest::prop_assert_eq!(again.stream(), read.stream());
            proptest::prop_assert_eq!(again.upstream_body(1234), sent);
        }
    }
}
