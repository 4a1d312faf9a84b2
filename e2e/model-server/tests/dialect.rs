//! Compares the usage that the gateway reads from an answer (the crate spillway-dialect) with the usage that the
//! provider reported: to the token, in each protocol, streamed and not, in every mode, for any split of the body.

use std::collections::BTreeMap;

use hyper::Request;
use serde_json::{Value, json};
use spillway_dialect::{Call, Meter, parse, route};
use spillway_model_server::Provider;
use spillway_model_server::ask::Tokens;
use spillway_model_server::chunks::End;
use spillway_wire::meter::{Quality, Usage};

/// The metered usage, the provider's reported and charged usage, and the bytes that were sent and that the client
/// received.
struct Metered {
    usage: Usage,
    quality: Quality,
    told: Tokens,
    charged: Tokens,
    sent: Vec<u8>,
    passed: Vec<u8>,
}

fn body(api: usize, model: &str, stream: bool) -> (String, Option<&'static str>, Value) {
    match api {
        0 => (
            "/v1/messages".into(),
            None,
            json!({"model": model, "max_tokens": 900, "stream": stream, "messages": [{"role": "user", "content": "Write é"}]}),
        ),
        1 => (
            "/v1/chat/completions".into(),
            None,
            json!({"model": model, "stream": stream, "n": 2, "messages": [{"role": "user", "content": "Write é"}]}),
        ),
        2 => ("/v1/responses".into(), None, json!({"model": model, "stream": stream, "store": false, "input": "Write é"})),
        _ => {
            let verb = if stream { "streamGenerateContent" } else { "generateContent" };
            let contents = json!({"contents": [{"role": "user", "parts": [{"text": "Write é"}]}]});
            (format!("/v1beta/models/{model}:{verb}"), (api == 3).then_some("alt=sse"), contents)
        }
    }
}

fn call(api: usize, path: &str, query: Option<&str>, body: &Value) -> Call {
    let route = route("POST", path, query).unwrap_or_else(|| panic!("{api}: {path} is no way"));
    parse(&route, Some("application/json"), None, body.to_string().as_bytes()).unwrap_or_else(|fault| panic!("{api}: {}", fault.message))
}

/// One call, through the meter and to the provider and back, in pieces of `size` bytes.
fn metered(api: usize, model: &str, stream: bool, size: usize) -> Metered {
    let provider = Provider::new(BTreeMap::from([("team".to_owned(), "secret".to_owned())]), vec![]);
    let (path, query, body) = body(api, model, stream);
    let call = call(api, &path, query, &body);
    let uri = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    let request =
        Request::post(uri).header("x-api-key", "secret").header("authorization", "Bearer secret").header("x-goog-api-key", "secret");
    let (head, ()) = request.body(()).expect("a request").into_parts();
    let answer = provider.answer(&head, &call.upstream_body(500));
    let mut meter = Meter::new(&call, answer.status.as_u16(), Some(answer.body.content_type));
    let (mut told, mut charged, mut sent, mut passed) = (Tokens::default(), Tokens::default(), Vec::new(), Vec::new());
    for piece in &answer.body.pieces {
        told.add(&piece.said);
        charged.add(&piece.charged);
        sent.extend_from_slice(&piece.bytes);
    }
    for chunk in sent.chunks(size) {
        meter.feed(chunk, &mut passed);
    }
    let (usage, quality) = meter.end(answer.body.end == End::Proper, &mut passed);
    Metered { usage, quality, told, charged, sent, passed }
}

fn as_usage(tokens: &Tokens) -> Usage {
    let signed = |number: u64| i64::try_from(number).expect("a small number");
    Usage {
        input: signed(tokens.input),
        cache_read: signed(tokens.cache_read),
        cache_write: signed(tokens.cache_write),
        output: signed(tokens.output),
    }
}

/// Each protocol, Gemini twice: as SSE, and as a list.
fn all() -> impl Iterator<Item = (usize, bool)> {
    (0..5).flat_map(|api| [(api, false), (api, true)])
}

#[test]
fn what_is_told_is_what_is_metered() {
    for mode in
        ["", "--cache--think-5", "--cumulative--comments--crlf", "--cumulative--cache--think-3", "--events-3--output-40", "--line-300000"]
    {
        for ((api, stream), size) in all().flat_map(|one| [(one, 1 << 20), (one, 7), (one, 1)]) {
            if size < 100 && mode.contains("line") {
                continue;
            }
            let got = metered(api, &format!("m{mode}"), stream, size);
            let what = format!("{api} {stream} {mode} by {size}: {}", String::from_utf8_lossy(&got.sent[..got.sent.len().min(2000)]));
            assert_eq!((got.usage, got.quality), (as_usage(&got.told), Quality::Exact), "{what}");
            assert_eq!(got.told, got.charged, "{what}");
            // The client of a Chat stream did not ask for usage: one chunk less, and no other byte.
            assert_eq!(got.passed == got.sent, !(api == 1 && stream), "{what}");
        }
    }
}

#[test]
fn what_is_cut_is_never_exact_and_never_more_than_was_told() {
    for mode in ["--output-20--cut-3", "--output-20--cut-0", "--output-20--cumulative--cut-5", "--output-20--silent-4"] {
        for (api, stream) in all() {
            let got = metered(api, &format!("m{mode}"), stream, 5);
            let told = as_usage(&got.told);
            assert_ne!(got.quality, Quality::Exact, "{api} {stream} {mode}");
            assert!(got.usage.input >= told.input && got.usage.output >= told.output, "{api} {stream} {mode}: {:?} {told:?}", got.usage);
        }
    }
}

#[test]
fn usage_that_is_missing_or_odd_is_never_exact() {
    for mode in ["--nousage", "--odd", "--nousage--broken", "--odd--crlf"] {
        for (api, stream) in all() {
            let got = metered(api, &format!("m{mode}"), stream, 64);
            assert_ne!(got.quality, Quality::Exact, "{api} {stream} {mode}: {}", String::from_utf8_lossy(&got.sent));
            let Usage { input, cache_read, cache_write, output } = got.usage;
            assert!([input, cache_read, cache_write, output].iter().all(|number| *number >= 0), "{api} {stream} {mode}");
        }
    }
}

#[test]
fn a_refusal_used_nothing() {
    for (api, stream) in all() {
        for mode in ["--status-429", "--status-500", "--status-529", "--redirect"] {
            let got = metered(api, &format!("m{mode}"), stream, 64);
            assert_eq!((got.usage, got.quality, got.sent == got.passed), (Usage::default(), Quality::Exact, true), "{api} {stream} {mode}");
        }
    }
}
