//! The sidecar as it is: the real binary, a gateway over real TLS, its real socket and journal.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use common::{FakeGateway, Folder, Line, ask, ports, spillway, start_link, start_link_with, state, text, until, until_registered, write};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn the_program_is_held_back_while_a_canary_can_be_reached() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let open = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = open.local_addr().expect("bound").to_string();
    gateway.set("canaries", json!([target]));
    let _link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    assert!(supervisor.until("key").as_str().is_some_and(|key| key.len() == 64));
    supervisor.say(&state("waiting"));
    let registered = gateway.wait("/register", 0, |call| call.status == 200);
    assert_eq!((registered.token.as_str(), &registered.body["version"]), ("token-1", &json!(env!("CARGO_PKG_VERSION"))));
    let report = gateway.report(|report| report["reachable"] == json!([target]));
    assert_eq!(report.body["program"], "waiting");
    assert!(!folder.path("journal/started").exists());
    drop(open);
    let settings = supervisor.until("start");
    assert_eq!(settings["agent"], "fleet-abc");
    assert!(folder.path("journal/started").exists());
    gateway.report(|report| report["reachable"] == json!([]));
}

#[test]
fn walls_that_fall_end_the_program() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let address = SocketAddr::from(([127, 0, 0, 1], ports()));
    gateway.set("canaries", json!([address.to_string()]));
    let _link = start_link_with(&folder, &gateway, &["--first-port", "0", "--look-each-ms", "20"]);
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    supervisor.say(&state("running"));
    let _open = TcpListener::bind(address).expect("the same port");
    assert_eq!(supervisor.until("wallsDown"), json!([address.to_string()]));
    gateway.report(|report| report["reachable"] == json!([address.to_string()]) && report["program"] == "running");
}

#[test]
fn a_goodbye_survives_the_gateways_absence_and_the_sidecars_own_end() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    let key = supervisor.until("key").as_str().expect("a key").to_owned();
    supervisor.until("start");
    supervisor.say(&state("running"));
    assert_eq!(ask(&folder, &json!({"progress": {"action": "reading the code"}})), "done");
    gateway.report(|report| report["action"] == "reading the code");
    gateway.away(true);
    let said = spillway(&folder, &["goodbye", "all is done"]);
    assert_eq!(said.status.code(), Some(0));
    assert!(text(&said.stderr).contains("written down"), "{}", text(&said.stderr));
    link.signal(Signal::KILL);
    link.ended();
    assert!(supervisor.closed());

    let _link = start_link(&folder, &gateway);
    for other in [None, Some("guessed")] {
        assert_eq!(Line::control(&folder, other).until("refused")["code"], "not_allowed", "the key is known again: {other:?}");
    }
    let mut supervisor = Line::control(&folder, Some(&key));
    assert_eq!(supervisor.until("key"), key.as_str());
    supervisor.say(&state("running"));
    let before = gateway.calls("/report").len();
    gateway.away(false);
    let told = gateway.wait("/goodbye", 0, |call| call.status == 200);
    assert_eq!(told.body, json!({"reason": "all is done"}));
    let report = gateway.wait("/report", before, |call| call.status == 200);
    assert_eq!((&report.body["action"], &report.body["program"]), (&json!("reading the code"), &json!("running")));
    until("the goodbye is no longer kept", || (!folder.path("journal/goodbye.json").exists()).then_some(()));
    assert_eq!(gateway.calls("/goodbye").len(), 1);
}

#[test]
fn a_goodbye_that_is_answered_is_done() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    assert_eq!(ask(&folder, &json!({"goodbye": {"reason": "done"}})), "done");
    gateway.refuse("/goodbye", Some((403, "agent_ended")));
    let refused = spillway(&folder, &["goodbye", "again"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("agent_ended"));
    until("the goodbye is no longer kept", || (!folder.path("journal/goodbye.json").exists()).then_some(()));
}

#[test]
fn what_cannot_be_written_down_is_not_said_to_be_and_is_written_as_soon_as_it_can_be() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    until_registered(&folder);
    gateway.away(true);
    fs::rename(folder.path("journal"), folder.path("aside")).expect("the journal is out of reach");
    let said = spillway(&folder, &["goodbye", "all is done"]);
    assert_ne!(said.status.code(), Some(0), "nobody may rely on it");
    assert!(text(&said.stderr).contains("cannot be written down"), "{}", text(&said.stderr));
    fs::rename(folder.path("aside"), folder.path("journal")).expect("the journal is back");
    until("it is written after all", || folder.path("journal/goodbye.json").exists().then_some(()));
    link.signal(Signal::KILL);
    link.ended();
    let _link = start_link(&folder, &gateway);
    gateway.away(false);
    let told = gateway.wait("/goodbye", 0, |call| call.status == 200);
    assert_eq!(told.body, json!({"reason": "all is done"}));
}

#[test]
fn there_is_one_supervisor() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    let key = supervisor.until("key").as_str().expect("a key").to_owned();
    supervisor.until("start");
    for key in [None, Some("guessed"), Some("")] {
        let mut other = Line::control(&folder, key);
        assert_eq!(other.until("refused")["code"], "not_allowed", "{key:?}");
        assert!(other.closed());
    }
    supervisor.say(&state("running"));
    gateway.report(|report| report["program"] == "running");
    // With the key it is the supervisor, whose old connection is then closed.
    let mut again = Line::control(&folder, Some(&key));
    again.until("start");
    assert!(supervisor.closed());
    again.say(&state("frozen"));
    gateway.report(|report| report["program"] == "frozen");
    drop(again);
    let mut other = Line::control(&folder, None);
    assert_eq!(other.until("refused")["code"], "not_allowed", "not even when the supervisor is away");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    let cases: [(&str, &str, &str); 10] = [
        (r#"{"ask": {"fly": {}}}"#, "invalid_body", "fly"),
        (r#"{"order": {}}"#, "invalid_body", "order"),
        (r#"{"ask": {"goodbye": {"raeson": "x"}}}"#, "invalid_body", "raeson"),
        (r#"{"ask": {"goodbye": {"reason": 7}}}"#, "invalid_body", "reason"),
        (r#"{"ask": {"goodbye": {}}}"#, "invalid_body", "reason"),
        (r#"{"ask": {"spawn": {"key": "a b", "request": {"pool": "p"}}}}"#, "invalid_body", "key"),
        (r#"{"ask": {"spawn": {"key": "k", "request": {"pool": "p", "root": true}}}}"#, "invalid_body", "root"),
        (r#"{"ask": "status"} {"control": {}}"#, "invalid_body", "(body)"),
        ("\u{0}\u{1}nonsense", "invalid_body", "(body)"),
        ("", "invalid_body", "(body)"),
    ];
    for (line, code, named) in cases {
        let mut connection = Line::open(&folder);
        connection.raw(format!("{line}\n").as_bytes());
        let refusal = connection.until("refused");
        assert_eq!(refusal["code"], code, "{line}");
        assert!(refusal["field"] == named || refusal["message"].as_str().is_some_and(|text| text.contains(named)), "{line}: {refusal}");
        assert!(connection.closed());
    }
    let long = json!({"ask": {"progress": {"action": "x".repeat(257)}}}).to_string();
    let huge = format!("{{\"ask\": \"{}", "x".repeat(300 * 1024));
    for (line, code) in [(long, "invalid_body"), (huge, "body_too_large")] {
        let mut connection = Line::open(&folder);
        connection.raw(line.as_bytes());
        connection.raw(b"\n");
        assert_eq!(connection.until("refused")["code"], code);
    }
    assert_eq!(ask(&folder, &json!("status"))["status"]["registered"], true, "it still answers");
}

#[test]
fn idle_connections_keep_nobody_out() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let link = start_link(&folder, &gateway);
    drop(Line::open(&folder));
    let idle: Vec<UnixStream> = (0..300)
        .map(|_| {
            let mut stream = UnixStream::connect(folder.path("run/link.sock")).expect("connected");
            // Nearly a line, and no end; sent away for newer ones while it is written.
            let _ = stream.write_all("x".repeat(250 * 1024).as_bytes());
            stream
        })
        .collect();
    let status = fs::read_to_string(format!("/proc/{}/status", link.pid())).expect("its status");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(memory.is_some_and(|memory| memory < 40 * 1024), "{memory:?} kB");
    Line::control(&folder, None).until("start");
    assert_eq!(ask(&folder, &json!("notices")), json!({"notices": []}));
    drop(idle);
}

#[test]
fn questions_are_bounded() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.refuse("/agents", Some((503, "governor_away")));
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    let mut waiting: Vec<Line> = (0..64)
        .map(|number| {
            let mut line = Line::open(&folder);
            line.say(&json!({"ask": {"spawn": {"key": format!("k-{number}"), "request": {"pool": "p"}}}}));
            line
        })
        .collect();
    until("all are being answered", || (ask(&folder, &json!("status"))["refused"]["code"] == "too_many_calls").then_some(()));
    let keys = || gateway.calls("/agents").into_iter().filter_map(|call| call.key).collect::<std::collections::BTreeSet<_>>();
    until("a few at once go to the gateway", || (keys().len() == 4).then_some(()));
    waiting.truncate(8);
    gateway.refuse("/agents", None);
    for line in &mut waiting {
        assert_eq!(line.until("spawned")["agent"], "child-1");
    }
}

#[test]
fn connections_are_kept() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    for number in 0..4 {
        assert_eq!(ask(&folder, &json!({"goodbye": {"reason": number.to_string()}})), "done");
    }
    gateway.wait("/report", 2, |call| call.status == 200);
    let connections = gateway.connections();
    assert!(connections <= 3, "one for the long poll, one or two for the rest: {connections}");
}

#[test]
fn a_program_that_asks_without_end_does_not_cut_the_supervisor_off() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    for number in 0..2_000 {
        ask(&folder, &json!({"progress": {"action": number.to_string()}}));
    }
    supervisor.say(&state("frozen"));
    gateway.report(|report| report["program"] == "frozen" && report["action"] == "1999");
    while supervisor.until("activity")["action"] != "1999" {}
}

#[test]
fn a_child_is_asked_for_under_one_key() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.refuse("/agents", Some((503, "governor_away")));
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    let asking = std::thread::scope(|scope| {
        let asking = scope.spawn(|| spillway(&folder, &["spawn", "workers", "--name", "Bea"]));
        gateway.wait("/agents", 2, |call| call.status == 503);
        gateway.refuse("/agents", None);
        asking.join().expect("asked")
    });
    assert_eq!((asking.status.code(), text(&asking.stdout).as_str()), (Some(0), "child-1\n"));
    let calls = gateway.calls("/agents");
    assert_eq!(calls[0].body, json!({"pool": "workers", "displayName": "Bea"}));
    assert!(calls[0].key.is_some() && calls.iter().all(|call| call.key == calls[0].key));
    gateway.refuse("/agents", Some((403, "limit_reached")));
    let refused = spillway(&folder, &["spawn", "workers"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("limit_reached"), "{}", text(&refused.stderr));
}

#[test]
fn an_exchanged_token_and_an_exchanged_ca_are_taken_up() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    gateway.report(|_| true);
    gateway.take_only("token-2");
    gateway.wait("/report", 0, |call| call.status == 401);
    write(&folder.path("token"), "token-2");
    let seen = gateway.calls("/report").len();
    gateway.wait("/report", seen, |call| call.status == 200 && call.token == "token-2");

    // A gateway under a CA that is not in our file is nobody: it never sees the token.
    gateway.exchange_ca(&folder.path("new-ca.crt"));
    let seen = gateway.calls("/").len();
    until("a connection failed", || {
        let log = fs::read_to_string(folder.path("link.log")).expect("the log");
        log.contains("certificate").then_some(())
    });
    assert_eq!(gateway.calls("/").len(), seen);
    fs::copy(folder.path("new-ca.crt"), folder.path("ca.crt")).expect("copied");
    gateway.wait("/report", 0, |call| call.token == "token-2");
    until("it reports again", || gateway.calls("/").get(seen).cloned());
}

#[test]
fn a_restart_does_not_start_the_program_twice_and_brings_the_newest_wanted_state() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    let key = supervisor.until("key").as_str().expect("a key").to_owned();
    supervisor.until("start");
    let notice = json!({"id": 4, "time": "2026-01-01T00:00:00Z", "about": "BudgetNearLimit", "text": "80 % is spent"});
    gateway.want(json!({"revision": "r 2/?", "directive": "pause", "notices": [notice]}));
    let wanted = supervisor.until("wanted");
    assert_eq!((&wanted["directive"], &wanted["notices"][0]["id"]), (&json!("pause"), &json!(4)));
    supervisor.say(&state("running"));
    supervisor.say(&json!({"noticesSeen": 4}));
    gateway.report(|report| report["noticesSeen"] == 4);
    link.signal(Signal::KILL);
    link.ended();
    let _link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, Some(&key));
    // Said again: the supervisor knows that its program runs, and takes the settings.
    assert_eq!(supervisor.until("start")["wanted"]["directive"], "pause");
    assert_eq!(ask(&folder, &json!("notices"))["notices"][0]["id"], 4);
    assert_eq!(supervisor.until("activity"), json!({"action": null}));
}

#[test]
fn nobody_answering_for_too_long_is_told() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.set("heartbeatTimeoutSeconds", json!(1));
    let _link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    gateway.away(true);
    supervisor.until("abandoned");
}

#[test]
fn its_own_end_tells_what_was_not_told() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    let mut supervisor = Line::control(&folder, None);
    supervisor.until("start");
    supervisor.say(&state("running"));
    gateway.report(|report| report["program"] == "running");
    supervisor.say(&state("ended"));
    supervisor.say(&json!("ended"));
    drop(supervisor);
    link.signal(Signal::TERM);
    assert_eq!(link.ended().code(), Some(0));
    assert_eq!(gateway.calls("/report").last().expect("a report").body["program"], "ended");
}

#[test]
fn its_own_end_does_not_wait_for_a_gateway_for_ever() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    Line::control(&folder, None).until("start");
    gateway.away(true);
    let mut line = Line::open(&folder);
    line.say(&json!({"ask": {"goodbye": {"reason": "x"}}}));
    until("the goodbye is kept", || folder.path("journal/goodbye.json").exists().then_some(()));
    link.signal(Signal::TERM);
    assert_eq!(link.ended().code(), Some(0));
    assert!(folder.path("journal/goodbye.json").exists());
}

#[test]
fn the_loopback_ports_that_serve_nothing_say_so() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let first = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &first.to_string()]);
    let requests = ["CONNECT example.org:443 HTTP/1.1\r\n\r\n", "POST /git/x HTTP/1.0\r\n\r\n{}", "PUT / HTTP/1.1\r\n\r\n"];
    for ((offset, request), what) in (1..).zip(requests).zip(["egress", "git", "tools"]) {
        let mut stream = until("the port is open", || TcpStream::connect(("127.0.0.1", first + offset)).ok());
        stream.write_all(request.as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert!(body["code"] == "not_built" && body["message"].as_str().is_some_and(|text| text.contains(what)), "{body}");
    }
}

/// A request to the port of models.
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
    // The supervisor is told which conversation it was of, and that its answer has ended.
    let called = std::iter::from_fn(|| Some(supervisor.until("activity")["called"].clone()));
    let ended = called.into_iter().find(|called| called["conversations"][0]["ended"].is_u64()).expect("it is told");
    assert!(ended["unknown"].is_null() && ended["conversations"][0]["begun"] == ended["begun"], "{ended}");

    // The client goes: so does the call.
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
    // One who asks whether the port would rather speak HTTP/2 is answered as it asked.
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

#[test]
fn the_commands_say_how_it_ended() {
    let folder = Folder::new();
    for (arguments, code) in [(&["status"][..], 4), (&["goodbye"], 2), (&["work"], 2), (&["notices"], 4)] {
        assert_eq!(spillway(&folder, arguments).status.code(), Some(code), "{arguments:?}");
    }
    let gateway = FakeGateway::start(&folder);
    let notice = |id| json!({"id": id, "time": "T", "about": "Warn", "text": format!("number {id}")});
    gateway.want(json!({"revision": "1", "directive": "run", "notices": [notice(1)]}));
    let _link = start_link(&folder, &gateway);
    until_registered(&folder);
    fs::write(folder.path("data/notices.jsonl"), format!("{}\n", notice(2))).expect("written");
    let status = spillway(&folder, &["status"]);
    assert_eq!(text(&status.stdout), "registered: yes\nwanted: run: work\nnotices: 1\n");
    assert_eq!(text(&status.stderr), "notice: T Warn: number 1\nnotice: T Warn: number 2\n");
    let again = spillway(&folder, &["progress", "still", "on", "it"]);
    assert_eq!((again.status.code(), text(&again.stderr).as_str()), (Some(0), ""), "printed once");
    assert_eq!(text(&spillway(&folder, &["notices"]).stdout), "T Warn: number 1\nT Warn: number 2\n");
}

#[test]
fn installing_is_whole_and_repeatable() {
    let folder = Folder::new();
    let bin = folder.path("bin");
    for _ in 0..2 {
        let done = std::process::Command::new(common::BINARY).arg("install").arg(&bin).status().expect("run");
        assert!(done.success());
        assert_eq!(fs::metadata(bin.join("spillway-agent")).expect("the binary").permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read_link(bin.join("spillway")).expect("a link"), Path::new("spillway-agent"));
        for shell in ["sh", "bash"] {
            assert_eq!(fs::read_link(bin.join("shells").join(shell)).expect("a link"), Path::new("../spillway-agent"));
        }
        assert_eq!(fs::read_link(bin.join("shells/only-sh/sh")).expect("a link"), Path::new("../../spillway-agent"));
        assert_eq!(fs::read_dir(bin.join("shells/only-sh")).expect("the folder").count(), 1, "for an image without bash");
        assert_eq!(fs::read_dir(&bin).expect("the folder").count(), 3);
    }
    let help = std::process::Command::new(bin.join("spillway")).arg("--help").output().expect("run");
    let help = text(&help.stdout);
    assert!(help.contains("goodbye") && help.contains("Exit codes") && !help.contains("install"), "{help}");
}
