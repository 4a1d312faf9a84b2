//! Tests of the sidecar's loopback ports for models and for tools.

use super::*;

#[test]
fn the_port_for_tools_serves_toolsets_of_this_pod_alone() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let first = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &first.to_string()]);
    let ask = |path: &str, host: &str| {
        let mut stream = until("the port is open", || TcpStream::connect(("127.0.0.1", first + 3)).ok());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer mine\r\nConnection: close");
        stream.write_all(format!("{head}\r\nContent-Length: 2\r\n\r\n{{}}").as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    assert!(ask("/other", "127.0.0.1").starts_with("HTTP/1.1 404 "), "another path");
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    supervisor.say(&state("running"));
    let page = ask("/mcp/deploy", "evil.example");
    assert!(page.starts_with("HTTP/1.1 403 ") && page.contains("127.0.0.1 or localhost"), "{page}");
    ask("/mcp/deploy", "localhost");
    let call = gateway.wait("/mcp/", 0, |_| true);
    supervisor.until("activity");
    assert_eq!((call.path.as_str(), call.token.as_str()), ("/mcp/deploy", "token-1"), "with the pod's token, and not with the program's");
}

/// A request to the models port.
fn ask_model(port: u16, path: &str) -> TcpStream {
    let mut stream = until("the port is open", || TcpStream::connect(("127.0.0.1", port)).ok());
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a time-out");
    let body = "{\"model\":\"m\"}";
    let head = "Host: x\r\nAuthorization: Bearer mine\r\nx-api-key: mine\r\nspillway-item: forged/1\r\nContent-Type: application/json";
    let request = format!("POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("asked");
    stream
}

fn until_says(stream: &mut TcpStream, words: &str) -> String {
    let mut read = String::new();
    while !read.contains(words) {
        let mut part = [0; 1024];
        let count = stream.read(&mut part).expect("an answer");
        assert!(count > 0, "it ended: {read}");
        read.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    read
}

#[test]
fn a_call_of_a_model_is_carried_as_it_comes() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.work(json!({}));
    gateway.offer(1, "task");
    let port = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &port.to_string()]);
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    supervisor.say(&state("waiting"));
    supervisor.until("item");
    let parts = gateway.stream();
    let mut stream = ask_model(port, "/claude/v1/messages?beta=true");
    supervisor.until("activity");
    parts.send("data: one\n\n".into()).expect("sent");
    let head = until_says(&mut stream, "data: one");
    assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("spillway-"), "{head}");
    let call = gateway.wait("/models/", 0, |_| true);
    assert_eq!((call.path.as_str(), call.token.as_str()), ("/models/claude/v1/messages?beta=true", "token-1"));
    assert_eq!((call.item.as_deref(), call.shown, &call.body), (Some("u-1/1"), None, &json!({"model": "m"})));
    parts.send("data: two\n\n".into()).expect("sent");
    drop(parts);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("data: two"), "{rest}");
    // The supervisor gets the conversation of the call, and the end of its answer.
    let called = std::iter::from_fn(|| Some(supervisor.until("activity")["called"].clone()));
    let ended = called.into_iter().find(|called| called["conversations"][0]["ended"].is_u64()).expect("it is told");
    assert!(ended["unknown"].is_null() && ended["conversations"][0]["begun"] == ended["begun"], "{ended}");

    // When the client closes its connection, the call ends.
    let parts = gateway.stream();
    let mut stream = ask_model(port, "/claude/v1/messages");
    parts.send("data: one\n\n".into()).expect("sent");
    until_says(&mut stream, "data: one");
    drop(stream);
    until("the gateway knows", || parts.send("data: more\n\n".into()).is_err().then_some(()));
}

#[test]
fn http2_without_tls_is_no_call_that_hangs() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let first = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &first.to_string()]);
    for offset in 0..4 {
        let mut stream = until("the port is open", || TcpStream::connect(("127.0.0.1", first + offset)).ok());
        stream.set_read_timeout(Some(common::PATIENCE)).expect("a time-out");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("asked");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("ended");
        assert!(text(&answer).ends_with("this port speaks HTTP/1.1"), "port {offset}: {answer:?}");
    }
    // A client that only offers an upgrade to HTTP/2 is answered in HTTP/1.1.
    let mut stream = TcpStream::connect(("127.0.0.1", first)).expect("a connection");
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk";
    stream.write_all(format!("GET /claude/v1/models HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n\r\n").as_bytes()).expect("asked");
    assert!(until_says(&mut stream, "whole").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_gateway_that_is_away_is_waited_for() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let port = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &port.to_string()]);
    gateway.away(true);
    for (path, status) in [("/claude/v1/messages", "503"), ("/gpt/v1/responses", "429")] {
        let mut answer = String::new();
        ask_model(port, path).read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains("retry-after: 5"), "{answer}");
    }
    gateway.away(false);
    let answer = until_says(&mut ask_model(port, "/gpt/v1/responses"), "whole");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
