//! Tests of the sidecar: the real binary, a gateway over real TLS, the real socket and journal. Tests of its socket and its ports
//! are in `link/`.

mod common;

#[path = "link/egress.rs"]
mod egress;
#[path = "link/models.rs"]
mod models;
#[path = "link/socket.rs"]
mod socket;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use common::{FakeGateway, Folder, Line, ask, ports, spillway, start_link, start_link_with, state, text, until, until_registered, write};
use rustix::process::Signal;
use serde_json::json;

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
    assert!(text(&said.stderr).contains("cannot write it to its journal"), "{}", text(&said.stderr));
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

    // A gateway with a certificate of an unknown CA never gets the token.
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
    // The order to start is repeated: the supervisor knows that its program runs, and takes the settings.
    assert_eq!(supervisor.until("start")["wanted"]["directive"], "pause");
    assert_eq!(ask(&folder, &json!("notices"))["notices"][0]["id"], 4);
    assert_eq!(supervisor.until("activity"), json!({"action": null}));
}

#[test]
fn a_long_silence_of_the_gateway_is_told() {
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
