//! The provider over real connections: each protocol, each failure, and its counts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use spillway_model_server::{Provider, serve};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const PATHS: [(&str, &str); 4] = [
    ("/v1/messages", "x-api-key"),
    ("/v1/chat/completions", "authorization"),
    ("/v1/responses", "authorization"),
    ("/v1beta/models/MODEL:VERB", "x-goog-api-key"),
];

struct Server {
    address: SocketAddr,
    provider: Arc<Provider>,
}

/// An answer, and whether its body ended as it should.
struct Got {
    status: StatusCode,
    headers: hyper::HeaderMap,
    text: String,
    ended: bool,
}

fn provider() -> Arc<Provider> {
    Provider::new(BTreeMap::from([("team".to_owned(), "secret".to_owned())]), vec!["small".to_owned()])
}

async fn server() -> Server {
    let (listener, provider) = (TcpListener::bind("127.0.0.1:0").await.expect("a port"), provider());
    let address = listener.local_addr().expect("an address");
    tokio::spawn(serve(listener, None, provider.clone()));
    Server { address, provider }
}

async fn read(response: Response<hyper::body::Incoming>) -> Got {
    let (head, mut body) = response.into_parts();
    let (mut bytes, mut ended) = (Vec::new(), true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            Err(_) => {
                ended = false;
                break;
            }
        }
    }
    Got { status: head.status, headers: head.headers, text: String::from_utf8(bytes).expect("text"), ended }
}

impl Server {
    async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        tokio::spawn(connection);
        read(sender.send_request(request).await.expect("an answer")).await
    }

    async fn post(&self, path: &str, header: &str, body: &Value) -> Got {
        let secret = if header == "authorization" { "Bearer secret" } else { "secret" };
        let request = Request::post(path).header(header, secret).header("x-caller", "test").header("host", "x");
        self.send(request.body(Full::from(body.to_string())).expect("a request")).await
    }

    /// A call of the protocol with this number.
    async fn call(&self, api: usize, model: &str, stream: bool, more: Value) -> Got {
        let (path, header) = PATHS[api];
        let verb = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let path = path.replace("MODEL", model).replace("VERB", verb);
        let mut body = match api {
            0 => json!({"model": model, "max_tokens": 1000, "stream": stream, "messages": [{"role": "user", "content": "Write it"}]}),
            1 => json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "Write it"}],
                        "stream_options": {"include_usage": true}}),
            2 => json!({"model": model, "stream": stream, "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Write it"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]}]}),
            _ => json!({"contents": [{"role": "user", "parts": [{"text": "Write it"}]}]}),
        };
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        self.post(&path, header, &body).await
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).header("authorization", "Bearer secret").header("host", "x");
        let got = self.send(request.body(Full::default()).expect("a request")).await;
        serde_json::from_str(&got.text).expect("JSON")
    }

    fn all(&self) -> Value {
        self.provider.counts.count()["all"].clone()
    }
}

/// The data of each event that is JSON.
fn events(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| line.strip_prefix("data: ")).filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// The usage in an answer: all input, and all output.
fn used(api: usize, text: &str) -> (u64, u64) {
    let values = if text.starts_with('{') { vec![serde_json::from_str(text).expect("JSON")] } else { events(text) };
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64);
    let (mut input, mut output) = (0, 0);
    for value in &values {
        for usage in ["/usage", "/message/usage", "/response/usage", "/usageMetadata"].iter().filter_map(|path| value.pointer(path)) {
            let all = match api {
                0 => number(usage, "input_tokens").map(|own| {
                    own + number(usage, "cache_read_input_tokens").unwrap_or(0) + number(usage, "cache_creation_input_tokens").unwrap_or(0)
                }),
                1 => number(usage, "prompt_tokens"),
                2 => number(usage, "input_tokens"),
                _ => number(usage, "promptTokenCount"),
            };
            let said = match api {
                0 | 2 => number(usage, "output_tokens"),
                1 => number(usage, "completion_tokens"),
                _ => number(usage, "candidatesTokenCount").map(|own| own + number(usage, "thoughtsTokenCount").unwrap_or(0)),
            };
            (input, output) = (all.unwrap_or(input), said.unwrap_or(output));
        }
    }
    (input, output)
}

#[tokio::test]
async fn what_an_answer_says_was_used_is_what_is_counted() {
    for mode in ["", "--cache--think-5", "--cumulative--comments--crlf", "--split", "--events-3--output-40", "--lies-7"] {
        for (api, stream) in (0..4).flat_map(|api| [(api, false), (api, true)]) {
            let server = server().await;
            let got = server.call(api, &format!("m{mode}"), stream, json!({})).await;
            assert_eq!((got.status, got.ended), (StatusCode::OK, true), "{api} {stream} {mode}: {}", got.text);
            let (text, all) = (got.text.replace("\r\n", "\n"), server.all());
            let told = &all["told"];
            let input = ["input", "cacheRead", "cacheWrite"].iter().filter_map(|name| told[name].as_u64()).sum::<u64>();
            assert_eq!(used(api, &text), (input, told["output"].as_u64().unwrap_or(0)), "{api} {stream} {mode}: {text}");
            assert_eq!(told == &all["charged"], mode != "--lies-7", "{api} {stream} {mode}: {all}");
            assert_eq!((&all["calls"], &all["finished"]), (&json!(1), &json!(1)));
            assert_eq!(got.text.contains("\r\n"), stream && mode.contains("crlf"), "{api} {mode}");
        }
    }
}

#[tokio::test]
async fn what_waits_is_let_go_for_good() {
    let server = server().await;
    let waiting = server.call(0, "m--wait", true, json!({}));
    tokio::pin!(waiting);
    let others = async {
        while server.all()["calls"] != 1 {
            tokio::task::yield_now().await;
        }
        let other = server.call(1, "m", false, json!({})).await;
        assert_eq!((other.status, &server.all()["finished"]), (StatusCode::OK, &json!(1)), "a call without the mode wait is answered");
    };
    tokio::select! {
        got = &mut waiting => panic!("answered before it may go: {}", got.text),
        () = others => {}
    }
    server.post("/go", "authorization", &json!({})).await;
    assert_eq!(waiting.await.status, StatusCode::OK);
    assert_eq!(server.call(0, "m--wait--status-500", false, json!({})).await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_coding_agent_gets_a_call_of_its_tool_and_then_an_end() {
    let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let tools = [
        json!({"tools": [{"name": "Bash", "input_schema": schema}]}),
        json!({"tools": [{"type": "function", "function": {"name": "bash", "parameters": schema}}]}),
        json!({"tools": [{"type": "function", "name": "shell_command", "parameters": schema}]}),
        json!({"tools": [{"functionDeclarations": [{"name": "run_shell_command", "parameters": schema}]}]}),
    ];
    let done = [
        json!({"messages": [{"role": "user", "content": "Write it"},
                            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1"}]}]}),
        json!({"messages": [{"role": "user", "content": "Write it"}, {"role": "tool", "tool_call_id": "call_1", "content": ""}]}),
        json!({"input": [{"role": "user", "content": "Write it"}, {"type": "function_call_output", "call_id": "call_1", "output": ""}]}),
        json!({"contents": [{"role": "user", "parts": [{"text": "Write it"}]},
                            {"role": "user", "parts": [{"functionResponse": {"name": "x"}}]}]}),
    ];
    let server = server().await;
    for (api, stream) in (0..4).flat_map(|api| [(api, false), (api, true)]) {
        let first = server.call(api, "m", stream, tools[api].clone()).await;
        assert!(first.text.contains("> 'write-it.txt'"), "{api} {stream}: {}", first.text);
        let mut second = tools[api].clone();
        second.as_object_mut().expect("fields").extend(done[api].as_object().expect("fields").clone());
        let last = server.call(api, "m", stream, second).await;
        assert!(last.text.contains("Done: ") && !last.text.contains("printf"), "{api} {stream}: {}", last.text);
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_has_told_what_went_out_and_no_more() {
    for api in 0..4 {
        let server = server().await;
        let got = server.call(api, "m--output-9--cut-4", true, json!({})).await;
        assert!(!got.ended, "{api}");
        let all = server.all();
        assert_eq!((&all["charged"]["output"], &all["finished"]), (&json!(4), &json!(0)), "{api}: {all}");
        // Only Anthropic reports output before the end: the first token, at the start. Gemini reports input with each
        // chunk.
        assert_eq!(all["told"]["output"], json!(u64::from(api == 0)), "{api}: {all}");
        assert_eq!(all["told"]["input"].as_u64() > Some(0), matches!(api, 0 | 3), "{api}: {all}");
    }
}

#[tokio::test]
async fn errors_are_in_the_protocols_own_words() {
    let server = server().await;
    for (api, code) in (0..4).flat_map(|api| [400_u16, 401, 429, 500, 529].map(|code| (api, code))) {
        let got = server.call(api, &format!("m--status-{code}--retry-5"), true, json!({})).await;
        assert_eq!((got.status.as_u16(), got.headers["retry-after"].to_str().ok()), (code, Some("5")), "{api}");
        let value: Value = serde_json::from_str(&got.text).expect("JSON");
        assert!(value["error"]["message"].is_string(), "{api} {code}: {value}");
    }
    assert_eq!(server.all()["refused"], json!(20));
    assert_eq!(server.call(1, "m--redirect", false, json!({})).await.headers["location"], "https://127.0.0.1:9/elsewhere");
    assert_eq!(server.call(1, "m--slwo-5", false, json!({})).await.status, 400);
}

#[tokio::test]
async fn the_first_calls_fail_where_the_script_says_so() {
    let server = server().await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(server.call(2, "m--status-500--times-2", true, json!({})).await.status.as_u16());
    }
    assert_eq!(statuses, [500, 500, 200]);
}

#[tokio::test]
async fn a_spent_budget_is_refused_as_each_protocols_programs_understand_it() {
    let server = server().await;
    for (api, status) in [402_u16, 402, 429, 402].into_iter().enumerate() {
        let got = server.call(api, "m--final", true, json!({})).await;
        assert_eq!((got.status.as_u16(), got.headers["x-should-retry"].to_str().ok()), (status, Some("false")), "{api}");
        assert!(!got.headers.contains_key("retry-after") && got.text.contains("Budget/codex in demo is spent"), "{api}: {}", got.text);
    }
    let codex = server.call(2, "m--final", true, json!({})).await;
    assert!(codex.headers["x-codex-promo-message"].to_str().is_ok_and(|words| words.starts_with("Budget/codex in demo")));
    let waiting = server.call(0, "m--window-3600", false, json!({})).await;
    assert_eq!((waiting.status.as_u16(), waiting.headers.contains_key("retry-after")), (429, true));
}

#[tokio::test]
async fn a_call_without_the_credential_is_refused_and_not_counted() {
    let server = server().await;
    for (path, header) in PATHS {
        let path = path.replace("MODEL", "m").replace("VERB", "generateContent");
        for (header, value) in [(header, "wrong"), (header, "Bearer wrong"), ("x-other", "secret")] {
            let request = Request::post(&path).header(header, value).header("host", "x").body(Full::from("{}")).expect("a request");
            assert_eq!(server.send(request).await.status, 401, "{path} {header}");
        }
    }
    assert_eq!(server.all()["calls"], json!(0));
    assert_eq!(server.provider.counts.requests().as_array().map(Vec::len), Some(12));
    assert!(!server.provider.counts.requests().to_string().contains("wrong"), "no credential is shown, not even a wrong one");
}

#[tokio::test]
async fn hostile_streams_are_what_their_names_say() {
    let server = server().await;
    let line = server.call(2, "m--line-100000", true, json!({})).await;
    assert!(line.text.lines().any(|line| line.len() > 100_000));
    let broken = server.call(2, "m--broken", true, json!({})).await;
    assert!(broken.text.contains("data: {\"broken\": \n"));
    let odd = server.call(1, "m--odd", true, json!({})).await;
    assert!(odd.text.contains("\"completion_tokens\":-5"), "{}", odd.text);
    let nothing = server.call(0, "m--nousage", true, json!({})).await;
    assert!(!nothing.text.contains("\"usage\""));
    let failed = server.call(2, "m--error-2", true, json!({})).await;
    assert!(failed.ended && failed.text.contains("response.failed") && !failed.text.contains("response.completed"));
    let quiet = server.call(1, "m", true, json!({"stream_options": null})).await;
    assert!(!quiet.text.contains("usage") && quiet.text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_list_of_json_is_what_gemini_streams_without_sse() {
    let server = server().await;
    let body = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let got = server.post("/v1beta/models/m--comments--split:streamGenerateContent", "x-goog-api-key", &body).await;
    let all: Vec<Value> = serde_json::from_str(&got.text).expect("a list");
    assert!(all.len() > 2 && all.last().is_some_and(|last| last["candidates"][0]["finishReason"] == "STOP"), "{}", got.text);
}

#[tokio::test]
async fn lists_and_counts_are_served_and_nothing_else() {
    let server = server().await;
    assert_eq!(server.get("/v1/models").await["data"][0]["id"], "small");
    assert_eq!(server.get("/count").await["all"]["calls"], 0);
    let counted = server.post("/v1/messages/count_tokens", "x-api-key", &json!({"model": "m", "messages": []})).await;
    assert!(counted.text.contains("input_tokens"));
    assert_eq!(server.post("/v1/batches", "authorization", &json!({})).await.status, 404);
}

#[tokio::test]
async fn who_leaves_a_stream_that_never_ends_is_charged_no_further() {
    let server = server().await;
    let stream = TcpStream::connect(server.address).await.expect("a connection");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let connection = tokio::spawn(connection);
    let body = json!({"model": "m--endless", "input": "x", "stream": true}).to_string();
    let request =
        Request::post("/v1/responses").header("authorization", "Bearer secret").header("host", "x").body(Full::<Bytes>::from(body));
    let mut body = sender.send_request(request.expect("a request")).await.expect("an answer").into_body();
    for _ in 0..50 {
        body.frame().await.expect("more").expect("bytes");
    }
    connection.abort();
    drop((sender, body));
    // The count stops growing when the server sees that the client is gone.
    let mut before = server.all();
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let now = server.all();
        if now == before {
            break;
        }
        before = now;
    }
    assert_eq!((&before["finished"], &before["told"]["all"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn it_serves_with_the_certificate_that_it_is_given() {
    let made = rcgen::generate_simple_self_signed(vec!["models.test".to_owned()]).expect("a certificate");
    let chain: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![chain.clone()], key).expect("a configuration");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(serve(listener, Some(config), provider()));

    let mut roots = RootCertStore::empty();
    roots.add(chain).expect("a root");
    let connector = TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()));
    let stream = TcpStream::connect(address).await.expect("a connection");
    let stream = connector.connect(ServerName::try_from("models.test").expect("a name"), stream).await.expect("TLS");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let request = Request::get("/v1/models").header("authorization", "Bearer secret").header("host", "models.test");
    let got = read(sender.send_request(request.body(Full::<Bytes>::default()).expect("a request")).await.expect("an answer")).await;
    assert_eq!(got.status, 200);
}
