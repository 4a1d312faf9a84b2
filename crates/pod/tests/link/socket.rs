//! Tests of the sidecar's socket: one supervisor, bounded questions and connections, refusals that name the field.

use super::*;

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
    // A connection with the key is the supervisor's, and its old connection is closed.
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
            // Almost a whole line, without its end. The connection may be closed for newer ones during the write.
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
