//! A bridge in front of an MCP server: another bridge, which is a real one, and servers by hand that break what can be broken. The official
//! servers and clients are in `tests/clients`.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{self, Bridge, Reply, wait_until};
use super::upstream_server::{self, UpstreamServer, begin_events, reply, result, text};

const CREDENTIAL: &str = "s3cret-upstream-token";

/// The fields of an upstream with one open tool, one with rules, one that needs an approval, and one that does not exist.
fn fields(url: &str, more: &str) -> String {
    format!(
        "url: {url}\ncredentialsRef: {{name: tracker}}\ntools:\n  - {{name: search, timeoutSeconds: 2, limits: {{perAgentPerMinute: 1000, answerBytes: 65536}}{more}}}\n  \
         - name: update\n    timeoutSeconds: 2\n    arguments:\n      - {{name: query, pattern: '[a-z]+', required: true}}\n      \
         - {{name: count, type: integer, min: 1, max: 5}}\n  - {{name: guarded, requiresApproval: true}}\n"
    )
}

/// A bridge in front of this server, with the credential.
fn front(url: &str, more: &str) -> Bridge {
    let file = tempfile::Builder::new().prefix("token").tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    let (_, path) = file.keep().expect("it is kept");
    fs::write(&path, format!("{CREDENTIAL}\n")).expect("written");
    Bridge::start_upstream(&fields(url, more), &["--credential", &format!("tracker={}", path.display())])
}

fn call(bridge: &Bridge, tool: &str, arguments: &Value) -> Value {
    let reply = bridge.call(tool, arguments);
    assert!(reply.body["result"].is_object(), "{reply:?}");
    reply.body["result"].clone()
}

/// The status, the rule and the message of a call that the bridge answered itself.
fn refusal(result: &Value) -> (String, String, String) {
    let text = |name: &str| result["structuredContent"][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(result["isError"], true, "{result}");
    (text("status"), text("rule"), text("message"))
}

fn names(listed: &Reply) -> Vec<String> {
    let tools = listed.body["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed:?}"));
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_bridge_in_front_of_a_bridge_offers_what_is_allowed_in_both_revisions() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, CREDENTIAL).expect("a file");
    let token = token.display().to_string();
    let behind = Bridge::start(&[("say", super::SAY)], &["--token-file", &token]);
    let fields = format!(
        "url: {}\ncredentialsRef: {{name: key}}\ntools:\n  - name: execute\n  - {{name: help, arguments: [{{name: program, type: enum, values: [say], required: true}}]}}\n",
        behind.url()
    );
    let bridge = Bridge::start_upstream(&fields, &["--credential", &format!("key={token}")]);
    for listed in [bridge.older("tools/list", &json!({})), bridge.newer("tools/list", &json!({}))] {
        assert_eq!(names(&listed), ["execute", "help"], "list_programs is not allowed");
        let tools = &listed.body["result"]["tools"];
        assert_eq!(tools[1]["inputSchema"]["properties"]["program"]["enum"], json!(["say"]));
        assert!(tools[0]["description"].as_str().is_some_and(|text| text.starts_with("Run a program")), "{tools}");
    }
    let arguments = json!({"program": "say", "args": {"one": "x"}});
    let params = json!({"name": "execute", "arguments": arguments});
    for said in [bridge.older("tools/call", &params), bridge.newer("tools/call", &params)] {
        assert_eq!(said.body["result"]["structuredContent"]["stdout"], "x|", "{said:?}");
        assert_eq!(said.body["result"]["isError"], false, "{said:?}");
        assert!(said.body["result"]["_meta"]["spillway.dev/auditId"].is_string(), "{said:?}");
    }
    assert_eq!(call(&bridge, "help", &json!({"program": "say"}))["structuredContent"]["text"], "Help of say.");
    let (status, rule, _) = refusal(&call(&bridge, "help", &json!({"program": "other"})));
    assert_eq!((status.as_str(), rule.as_str()), ("rejected", "enum"));
    for tool in ["list_programs", "none", ""] {
        let (status, rule, _) = refusal(&call(&bridge, tool, &json!({})));
        assert_eq!((status.as_str(), rule.as_str()), ("rejected", "notAllowed"), "{tool}");
    }
    // A program that fails is a result of the tool, and not of the bridge.
    let failed = call(&bridge, "execute", &json!({"program": "none"}));
    assert_eq!((&failed["isError"], &failed["structuredContent"]["rule"]), (&json!(true), &json!("unknownProgram")));
    let events = bridge.events();
    let of = |event: &str| events.iter().filter(|one| one["event"] == event).count();
    assert_eq!((of("Start"), of("End"), of("Refused")), (4, 4, 4), "{events:?}");
    let start = events.iter().find(|event| event["event"] == "Start").expect("a start");
    assert_eq!((&start["program"], &start["arguments"], &start["caller"]["name"]), (&json!("execute"), &arguments, &json!("local")));
    bridge.verify().expect("the log is whole");
    assert_eq!(behind.events().iter().filter(|event| event["event"] == "Start").count(), 2);
    // Nothing of the upstream but its tools.
    let resources = bridge.older("resources/list", &json!({}));
    assert!(resources.body["error"].is_object() || resources.body["result"]["resources"] == json!([]), "{resources:?}");
}

#[test]
fn rules_are_checked_before_anything_is_sent_and_the_credential_is_sent_to_the_upstream_alone() {
    let server = UpstreamServer::start(|request, stream| {
        let echo = format!("you sent {CREDENTIAL}, {}", request["params"]["arguments"]);
        result(stream, request, &json!({"content": [{"type": "text", "text": echo}], "structuredContent": {CREDENTIAL: [CREDENTIAL]}}));
    });
    server.describe(&format!("The token is {CREDENTIAL}."));
    let bridge = front(&server.url(), "");
    let listed = bridge.older("tools/list", &json!({}));
    assert_eq!(names(&listed), ["guarded", "search", "update"]);
    assert!(!listed.body.to_string().contains(CREDENTIAL) && listed.body.to_string().contains("[credential tracker]"), "{listed:?}");
    for (arguments, rule) in [
        (json!({}), "required"),
        (json!({"query": "A"}), "pattern"),
        (json!({"query": "a", "count": 9}), "range"),
        (json!({"query": "a", "force": true}), "unknown"),
    ] {
        assert_eq!(refusal(&call(&bridge, "update", &arguments)).1, rule, "{arguments}");
    }
    assert_eq!(refusal(&call(&bridge, "secret", &json!({}))).1, "notAllowed");
    assert_eq!(refusal(&call(&bridge, "guarded", &json!({}))).1, "approval");
    assert_eq!(server.calls(), [] as [Value; 0], "nothing was sent");
    let answer = call(&bridge, "update", &json!({"query": "a", "count": 5}));
    let echo = answer["content"][0]["text"].as_str().expect("a text");
    assert!(echo.starts_with("you sent [credential tracker], "), "{echo}");
    assert!(!answer.to_string().contains(CREDENTIAL), "{answer}");
    // Without rules any arguments go to the upstream, but not the credential, if an agent guesses it, into the log.
    call(&bridge, "search", &json!({"query": [1, {"deep": CREDENTIAL}]}));
    let calls = server.calls();
    assert_eq!(calls.iter().map(|call| call["name"].as_str().unwrap_or_default()).collect::<Vec<_>>(), ["update", "search"]);
    assert_eq!(calls[1]["arguments"]["query"][1]["deep"], CREDENTIAL);
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some(&format!("Bearer {CREDENTIAL}"))), "{seen:?}");
    let of_calls = seen.iter().filter(|seen| seen.body["method"] == "tools/call");
    assert!(of_calls.into_iter().all(|seen| seen.session.as_deref() == Some("s1")), "{seen:?}");
    wait_until("each session is deleted", || server.seen().iter().filter(|seen| seen.method == "DELETE").count() >= 3);
    assert!(!fs::read_to_string(bridge.audit_file()).expect("the log").contains(CREDENTIAL));
    assert!(!bridge.log().contains(CREDENTIAL));
}

/// How an upstream answers a call.
type Answer = fn(&Value, &mut TcpStream);
/// How a hostile upstream answers a call, and how the bridge tells it.
type Case = (&'static str, Answer, &'static str, &'static str, &'static str);

static BLOCK: [u8; 65536] = [b' '; 65536];

const CASES: [Case; 15] = [
    ("silence", |_, _| std::thread::sleep(Duration::from_secs(20)), "timeout", "upstream", "within 2 s"),
    (
        "bytes",
        |_, stream| reply(stream, "200 OK", "Content-Type: application/json\r\n", "\u{0}\u{1}x"),
        "unknown",
        "upstream",
        "not one of MCP",
    ),
    ("no type", |_, stream| reply(stream, "200 OK", "", "{}"), "unknown", "upstream", "no Content-Type"),
    ("a page", |_, stream| reply(stream, "200 OK", "Content-Type: text/html\r\n", "<p>"), "unknown", "upstream", "text/html"),
    ("no HTTP", |_, stream| drop(stream.write_all(b"SSH-2.0\r\n\r\n")), "unknown", "upstream", "broke the connection"),
    ("an end", |_, stream| drop(stream.shutdown(std::net::Shutdown::Both)), "unknown", "upstream", "broke the connection"),
    ("another id", |_, stream| result(stream, &json!({"id": 999}), &json!({"content": []})), "unknown", "upstream", "another request"),
    ("a refusal", |_, stream| reply(stream, "401 Unauthorized", "", "no"), "spawn_failed", "upstream", "HTTP 401"),
    ("a failure", |_, stream| reply(stream, "500 Oops", "", "no"), "unknown", "upstream", "HTTP 500"),
    ("accepted", |_, stream| reply(stream, "202 Accepted", "", ""), "unknown", "upstream", "no Content-Type"),
    (
        "compressed",
        |_, stream| reply(stream, "200 OK", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "x"),
        "unknown",
        "upstream",
        "compressed",
    ),
    ("ten gigabytes", ten_gigabytes, "unknown", "answerBytes", "more than 65536 bytes"),
    ("a stream that never ends", endless_events, "timeout", "upstream", "within 2 s"),
    ("one event that never ends", endless_event, "unknown", "answerBytes", "more than 65536 bytes"),
    ("a long answer", |request, stream| text(stream, request, &"x".repeat(70_000)), "unknown", "answerBytes", "more than 65536 bytes"),
];

fn ten_gigabytes(_: &Value, stream: &mut TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n");
    while stream.write_all(&BLOCK).is_ok() {}
}

fn endless_events(_: &Value, stream: &mut TcpStream) {
    begin_events(stream);
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
    let ask = json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}});
    while stream.write_all(format!(": comment\n\ndata: {notice}\n\ndata: {ask}\n\n").as_bytes()).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn endless_event(_: &Value, stream: &mut TcpStream) {
    begin_events(stream);
    let _ = stream.write_all(b"data: {\"x\": \"");
    while stream.write_all(&BLOCK).is_ok() {}
}

#[test]
fn whatever_an_upstream_answers_is_bounded_and_told() {
    let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(|_, _| {}));
    let answers = answer.clone();
    let server = UpstreamServer::start(move |request, stream| {
        let answer = *answers.lock().expect("whole");
        answer(request, stream);
        // The connection is as the case left it.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    for (index, (name, case, status, rule, message)) in CASES.into_iter().enumerate() {
        *answer.lock().expect("whole") = case;
        // The breaker would open after some.
        let bridge = front(&server.url(), "");
        let began = Instant::now();
        assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3, "{name}");
        let result = call(&bridge, "search", &json!({}));
        let seen = refusal(&result);
        assert_eq!((seen.0.as_str(), seen.1.as_str()), (status, rule), "{name}: {result}");
        assert!(seen.2.contains(message), "{name}: {result}");
        assert!(began.elapsed() < Duration::from_secs(15), "{name} took {:?}", began.elapsed());
        assert_eq!(server.calls().len(), index + 1, "{name}: a call is sent once");
        let events = bridge.events();
        let ends: Vec<&Value> = events.iter().filter(|event| event["event"] == "End").map(|event| &event["status"]).collect();
        assert_eq!(ends, [&json!(status)], "{name}");
    }
}

#[test]
fn an_answer_in_a_stream_and_an_error_of_the_protocol_are_passed_on() {
    let server = UpstreamServer::start(|request, stream| match request["params"]["arguments"]["query"].as_str() {
        Some("stream") => {
            begin_events(stream);
            let body = json!({"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": "streamed"}]}});
            let notice = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}});
            let _ = stream.write_all(format!("event: message\r\ndata: {notice}\r\n\r\nid: 1\r\ndata: {body}\r\n\r\n").as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        Some("failed") => result(stream, request, &json!({"content": [{"type": "text", "text": "no such issue"}], "isError": true})),
        Some("wrong") => {
            let error = json!({"code": -32602, "message": format!("bad query {CREDENTIAL}")});
            let body = json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string();
            reply(stream, "200 OK", "Content-Type: application/json; charset=utf-8\r\n", &body);
        }
        Some(_) | None => {
            let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
            result(stream, request, &json!({"content": [image], "structuredContent": {"found": [1, 2]}, "_meta": {"trace": "x"}}));
        }
    });
    let bridge = front(&server.url(), "");
    assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3);
    assert_eq!(call(&bridge, "search", &json!({"query": "stream"}))["content"][0]["text"], "streamed");
    let failed = call(&bridge, "search", &json!({"query": "failed"}));
    assert_eq!((&failed["isError"], &failed["content"][0]["text"]), (&json!(true), &json!("no such issue")));
    let (status, rule, message) = refusal(&call(&bridge, "search", &json!({"query": "wrong"})));
    assert_eq!((status.as_str(), rule.as_str()), ("nonzero", "upstream"));
    assert_eq!(message, "the upstream: bad query [credential tracker]");
    let found = call(&bridge, "search", &json!({}));
    assert_eq!((&found["structuredContent"], &found["content"][0]["data"]), (&json!({"found": [1, 2]}), &json!("aGk=")));
    assert_eq!(found["_meta"]["trace"], Value::Null, "only the result is passed on: {found}");
    // A call with a key is sent once.
    let params = json!({"name": "search", "arguments": {}, "_meta": {"spillway.dev/idempotencyKey": "k"}});
    let before = server.calls().len();
    let (first, second) = (bridge.older("tools/call", &params), bridge.older("tools/call", &params));
    assert_eq!((first.body["result"].clone(), server.calls().len()), (second.body["result"].clone(), before + 1), "{first:?}");
}

#[test]
fn a_redirect_is_not_followed() {
    let thief = UpstreamServer::start(|request, stream| text(stream, request, "stolen"));
    let url = thief.url();
    let server = UpstreamServer::start(move |_, stream| reply(stream, "307 Temporary Redirect", &format!("Location: {url}\r\n"), ""));
    let bridge = front(&server.url(), "");
    assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3);
    let (status, _, message) = refusal(&call(&bridge, "search", &json!({})));
    assert!(status == "spawn_failed" && message.contains("redirects are not followed"), "{message}");
    assert!(thief.seen().is_empty(), "{:?}", thief.seen());
}

#[test]
fn a_client_that_goes_away_cancels_the_call_at_the_upstream() {
    let closed = Arc::new(Mutex::new(false));
    let ended = closed.clone();
    let server = UpstreamServer::start(move |_, stream| {
        use std::io::Read as _;
        // The bridge sends nothing more on this connection: it ends.
        let _ = stream.read(&mut [0; 1]);
        *ended.lock().expect("whole") = true;
    });
    let bridge = front(&server.url(), "");
    let fields = fields(&server.url(), "").replace("timeoutSeconds: 2", "timeoutSeconds: 60");
    drop(bridge);
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, CREDENTIAL).expect("a file");
    let bridge = Bridge::start_upstream(&fields, &["--credential", &format!("tracker={}", token.display())]);
    assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3);
    let stream = bridge.begin_tool("search", &json!({}));
    wait_until("the call is sent", || server.calls().len() == 1);
    drop(stream);
    wait_until("its connection is closed", || *closed.lock().expect("whole"));
    wait_until("it is told", || server.seen().iter().any(|seen| seen.body["method"] == "notifications/cancelled"));
    wait_until("the end is written", || bridge.events().iter().any(|event| event["status"] == "cancelled"));
    // The end of the bridge is the end of its calls.
    let calling = bridge.begin_tool("search", &json!({}));
    wait_until("the call is sent", || server.calls().len() == 2);
    let mut bridge = bridge;
    assert!(bridge.end(rustix::process::Signal::TERM), "it ends well");
    let answer = support::answer(calling);
    assert_eq!(answer.body["result"]["structuredContent"]["status"], "cancelled", "{answer:?}");
}

#[test]
fn an_upstream_that_is_down_ends_no_bridge_and_is_found_when_it_is_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let bridge = front(&format!("http://{address}/mcp"), "");
    let (status, rule, message) = refusal(&call(&bridge, "search", &json!({})));
    assert_eq!((status.as_str(), rule.as_str()), ("spawn_failed", "upstream"), "{message}");
    let listed = bridge.older("tools/list", &json!({}));
    assert!(listed.body["error"]["message"].as_str().is_some_and(|text| text.contains("Connection refused")), "{listed:?}");
    let listener = TcpListener::bind(address).expect("the same port");
    let server = UpstreamServer::on(listener, |request, stream| upstream_server::text(stream, request, "up"));
    wait_until("the tools are there", || bridge.older("tools/list", &json!({})).body["result"]["tools"].is_array());
    assert_eq!(call(&bridge, "search", &json!({}))["content"][0]["text"], "up");
    assert_eq!(server.port(), address.port());
}

#[test]
fn an_upstream_that_keeps_failing_is_not_asked_for_a_while() {
    let server = UpstreamServer::start(|_, stream| reply(stream, "503 Service Unavailable", "", ""));
    let bridge = front(&server.url(), "");
    assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3);
    for _ in 0..10 {
        assert_eq!(refusal(&call(&bridge, "search", &json!({}))).0, "unknown");
    }
    let stopped = call(&bridge, "search", &json!({}));
    assert_eq!(refusal(&stopped).0, "breaker_open", "{stopped}");
    assert!(stopped["structuredContent"]["retryAfterMilliseconds"].as_u64().is_some_and(|wait| wait > 1000), "{stopped}");
    assert_eq!(server.calls().len(), 10);
}

#[test]
fn a_changed_credential_is_used_and_a_wrong_file_is_refused_at_the_start() {
    let server = UpstreamServer::start(|request, stream| text(stream, request, "ok"));
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, CREDENTIAL).expect("a file");
    let bridge = Bridge::start_upstream(&fields(&server.url(), ""), &["--credential", &format!("tracker={}", token.display())]);
    assert_eq!(names(&bridge.older("tools/list", &json!({}))).len(), 3);
    fs::write(&token, "another-token\n").expect("a file");
    call(&bridge, "search", &json!({}));
    assert_eq!(server.seen().last().and_then(|seen| seen.authorization.clone()).as_deref(), Some("Bearer another-token"));
    let file = folder.path().join("upstream.yaml");
    let start = |fields: &str, more: &[&str]| {
        fs::write(&file, fields).expect("a file");
        support::spillway(&[&["bridge", "--upstream", &file.display().to_string(), "--listen", "127.0.0.1:0"], more].concat())
    };
    let said = start("url: http://mcp.example.com\ntools: [{name: a}]\n", &[]);
    assert!(said.contains("line 1: url: http:// is for a Service"), "{said}");
    assert!(start(&fields(&server.url(), ""), &[]).contains("--credential tracker=FILE is missing"));
    assert!(start("url: https://a.example\ncaBundle: nonsense\ntools: [{name: a}]\n", &["--allow", "/bin/id"]).contains("--allow"));
}
