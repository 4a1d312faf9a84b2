//! Tests of `spillway mcp`: the real server and real commands, with the breaker of a real sidecar.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{BINARY, FakeGateway, Folder, send, start_link, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The variable in the environment of all processes of a test, with the test's folder.
const MARK: &str = "SPILLWAY_TEST_MARK";

/// A server, and the test as its client.
struct Client {
    server: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(folder: &Folder) -> Self {
        let mut command = Command::new(BINARY);
        command.arg("--ask-socket").arg(folder.path("run/link.sock")).arg("--ask-data").arg(folder.path("data")).arg("mcp");
        command.env(MARK, folder.path("")).current_dir(folder.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn().expect("started");
        let (to, from) = (server.stdin.take(), BufReader::new(server.stdout.take().expect("its output")));
        Self { server, to, from }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.to.as_mut().expect("open"), "{line}").expect("said");
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
    }

    fn run(&mut self, id: u64, arguments: &Value) {
        self.ask(id, "tools/call", &json!({"name": "run_command", "arguments": arguments}));
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Runs one command; returns its result.
    fn told(&mut self, arguments: &Value) -> Value {
        self.run(7, arguments);
        self.next()["result"].clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The living processes that the test's commands started, without our own programs.
fn alive(folder: &Folder) -> Vec<i32> {
    let mark = format!("{MARK}={}", folder.path("").display());
    let pids = fs::read_dir("/proc").expect("processes").filter_map(|one| one.ok()?.file_name().to_str()?.parse().ok());
    let ours = fs::canonicalize(BINARY).expect("the binary");
    let marked = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()))
            && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe != ours)
    };
    pids.filter(marked).collect()
}

fn running(folder: &Folder, count: usize) {
    until("the commands run", || (alive(folder).len() == count).then_some(()));
}

#[test]
fn a_client_is_greeted_and_shown_one_tool_that_runs_commands() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    until("the sidecar listens", || std::os::unix::net::UnixStream::connect(folder.path("run/link.sock")).ok());
    let mut client = Client::start(&folder);
    client.ask(1, "initialize", &json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}));
    assert_eq!(client.next()["result"]["protocolVersion"], "2025-06-18");
    client.say(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#);
    client.ask(2, "tools/list", &json!({}));
    let listed = client.next();
    let names: Vec<&Value> = listed["result"]["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["run_command"]);

    let told = client.told(&json!({"command": ["sh", "-c", "cat; echo err >&2; exit 3"], "stdin": "hello"}));
    let structured = &told["structuredContent"];
    assert_eq!((&structured["exitCode"], &structured["stdout"], &structured["stderr"]), (&json!(3), &json!("hello"), &json!("err\n")));
    assert_eq!((&told["isError"], structured.get("notices")), (&json!(false), None), "{told}");
    fs::create_dir(folder.path("below")).expect("a folder");
    let told = client.told(&json!({"command": "pwd; read line || echo nothing to read", "cwd": folder.path("below")}));
    let said = told["structuredContent"]["stdout"].as_str().expect("its output");
    assert!(said.ends_with("/below\nnothing to read\n"), "{said}");
    let told = client.told(&json!({"command": "sleep 3000 & echo done"}));
    assert_eq!(told["structuredContent"]["killedSurvivors"], 1, "{told}");
    let told = client.told(&json!({"command": "sleep 3000 & setsid sleep 3000 & sleep 3000", "timeoutSeconds": 0.3}));
    assert_eq!((&told["structuredContent"]["timedOut"], &told["isError"]), (&json!(true), &json!(true)), "{told}");
    let told = client.told(&json!({"command": ["no-such-program"]}));
    assert_eq!((&told["structuredContent"]["spawnFailed"], &told["isError"]), (&json!(true), &json!(true)), "{told}");
    assert_eq!(alive(&folder), [] as [i32; 0]);
}

#[test]
fn its_commands_count_at_the_breaker_of_the_session() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    until("the sidecar listens", || std::os::unix::net::UnixStream::connect(folder.path("run/link.sock")).ok());
    let mut client = Client::start(&folder);
    for _ in 0..10 {
        assert_eq!(client.told(&json!({"command": ["no-such-program"]}))["structuredContent"]["spawnFailed"], true);
    }
    let told = client.told(&json!({"command": ": > started"}));
    let refused = &told["structuredContent"];
    assert!(refused["refused"].as_str().is_some_and(|words| words.starts_with("bash circuit breaker open for session")), "{told}");
    assert!(refused["retryAfterMilliseconds"].as_u64().is_some_and(|wait| wait > 0) && told["isError"] == true, "{told}");
    assert!(!folder.path("started").exists());
}

#[test]
fn a_call_that_is_taken_back_ends_with_all_that_it_started() {
    let folder = Folder::new();
    let mut client = Client::start(&folder);
    client.run(1, &json!({"command": "setsid sh -c 'sleep 3000' & sleep 3000"}));
    // `sh` also lives, while it waits.
    until("the command runs", || (alive(&folder).len() >= 2).then_some(()));
    client.say(r#"{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}"#);
    running(&folder, 0);
    client.ask(2, "ping", &json!({}));
    assert_eq!(client.next(), json!({"jsonrpc": "2.0", "id": 2, "result": {}}), "of the other one nothing is told");
}

#[test]
fn eight_run_at_once_and_the_ninth_is_told_to_wait() {
    let folder = Folder::new();
    let mut client = Client::start(&folder);
    for id in 0..8 {
        client.run(id, &json!({"command": ["sleep", "3000"]}));
    }
    running(&folder, 8);
    client.run(3, &json!({"command": ["true"]}));
    assert_eq!(client.next()["error"]["code"], -32600, "this id is taken");
    client.run(8, &json!({"command": ["true"]}));
    let told = client.next();
    assert!(told["id"] == 8 && told["result"]["isError"] == true, "{told}");
    client.say(r#"{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}"#);
    running(&folder, 7);
    let mut id = 100;
    until("there is room again", || {
        id += 1;
        client.run(id, &json!({"command": ["true"]}));
        (client.next()["result"]["isError"] == false).then_some(())
    });
    // When the client closes its connection, its commands and the server end.
    drop(client.to.take());
    running(&folder, 0);
    assert!(client.server.wait().expect("ended").success());
}

#[test]
fn commands_end_with_the_server_whatever_ends_that() {
    let folder = Folder::new();
    let mut client = Client::start(&folder);
    client.run(1, &json!({"command": "setsid sh -c 'trap \"\" TERM; sleep 3000' & sleep 3000"}));
    until("the command runs", || (alive(&folder).len() >= 2).then_some(()));
    send(i32::try_from(client.server.id()).expect("a pid"), Signal::KILL);
    running(&folder, 0);
}

#[test]
fn hostile_lines_are_refused_and_it_goes_on() {
    let folder = Folder::new();
    let mut client = Client::start(&folder);
    client.say(&format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "{}"}}"#, "x".repeat(2 * 1024 * 1024)));
    assert_eq!(client.next()["error"]["code"], -32600);
    for (line, code) in [("{", -32700), ("[1]", -32600), (r#"{"jsonrpc": "2.0", "id": 1, "method": "no/such"}"#, -32601)] {
        client.say(line);
        assert_eq!(client.next()["error"]["code"], code, "{line}");
    }
    for arguments in [json!({"command": 7}), json!({"command": ["a\0b"]}), json!({"command": "ls", "shell": "x"}), json!("ls")] {
        let told = client.told(&arguments);
        assert_eq!((&told["isError"], told.get("structuredContent")), (&json!(true), None), "{arguments}");
    }
    assert_eq!(client.told(&json!({"command": ["true"]}))["isError"], false);
}
