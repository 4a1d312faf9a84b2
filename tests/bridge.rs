//! `spillway bridge` as people start it by hand: the real binary, real programs, and requests as MCP clients send them. The official
//! clients are in `tests/clients`.

#[path = "bridge/gateways.rs"]
mod gateways;
#[path = "bridge/needs.rs"]
mod needs;
#[path = "bridge/support.rs"]
mod support;
#[path = "bridge/upstream.rs"]
mod upstream;
#[path = "bridge/upstream_server.rs"]
mod upstream_server;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;

use serde_json::{Value, json};

use support::{Bridge, Reply};

const SAY: &str =
    "command: /usr/bin/printf\nargv: ['%s|', '{one}', '--two={two}']\nargs:\n  - {name: one, required: true}\n  - {name: two}\n";
/// `sh` is an interpreter, which the definition says.
const SHELL: &str =
    "command: /bin/sh\ninterpreter: true\nargv: ['-c', '{script}']\nargs: [{name: script, required: true, maxLength: 16384}]\n";

fn text_of(answer: &Value, name: &str) -> String {
    answer[name].as_str().unwrap_or_default().to_owned()
}

#[test]
fn both_revisions_of_the_protocol_list_three_tools() {
    let bridge = Bridge::start(&[("say", SAY)], &[]);
    let golden: Value = serde_json::from_str(include_str!("../src/bridge/golden/tools.json")).expect("JSON");
    let names: Vec<&str> = golden.as_array().expect("a list").iter().filter_map(|tool| tool["name"].as_str()).collect();
    let begun = bridge.request(
        &[],
        &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
    );
    assert_eq!((begun.status, &begun.body["result"]["protocolVersion"]), (200, &json!("2025-11-25")), "{begun:?}");
    assert_eq!(begun.body["result"]["serverInfo"]["name"], "spillway-bridge");
    for listed in [bridge.older("tools/list", &json!({})), bridge.newer("tools/list", &json!({}))] {
        let tools = listed.body["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed:?}")).clone();
        assert_eq!(tools.iter().filter_map(|tool| tool["name"].as_str()).collect::<Vec<_>>(), names);
        assert_eq!(tools[2]["inputSchema"], golden[2]["inputSchema"]);
    }
    let said = bridge.newer("tools/call", &json!({"name": "execute", "arguments": {"program": "say", "args": {"one": "x"}}}));
    assert_eq!(said.body["result"]["structuredContent"]["stdout"], "x|", "{said:?}");
}

#[test]
fn a_program_is_found_explained_and_run() {
    let bridge = Bridge::start(&[("say", SAY), ("shell", SHELL)], &[]);
    let listed = bridge.tool("list_programs", &json!({}));
    assert_eq!(listed["programs"].as_array().map(Vec::len), Some(2), "{listed}");
    let help = bridge.tool("help", &json!({"program": "say"}));
    assert_eq!((&help["text"], &help["argsSchema"]["required"]), (&json!("Help of say."), &json!(["one"])), "{help}");
    assert_eq!(bridge.tool("help", &json!({"program": "none"}))["rule"], "unknownProgram");
    let said = bridge.execute("say", &json!({"one": "$(id); `id` 'x' \u{e9}", "two": "-rf"}));
    assert_eq!(
        (&said["status"], &said["exitCode"], &said["stdout"]),
        (&json!("ok"), &json!(0), &json!("$(id); `id` 'x' \u{e9}|--two=-rf|"))
    );
    assert_eq!(said["revision"], listed["revision"]);
    let failed = bridge.execute("shell", &json!({"script": "echo out; echo err >&2; exit 3"}));
    assert_eq!((&failed["status"], &failed["exitCode"]), (&json!("nonzero"), &json!(3)));
    assert_eq!((&failed["stdout"], &failed["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(bridge.execute("shell", &json!({"script": "kill -9 $$"}))["exitCode"], json!(137));
}

#[test]
fn a_wrong_call_names_its_field_and_starts_nothing() {
    let pattern = "command: /usr/bin/printf\nargs: [{name: word, pattern: '(a+)+', required: true}]\n";
    let bridge = Bridge::start(&[("say", SAY), ("pattern", pattern)], &[]);
    let many: Value = (0..10_000).map(|number| (format!("a{number}"), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let cases = [
        ("say", json!({}), "one", "required"),
        ("say", json!({"one": "-rf"}), "one", "leadingDash"),
        ("say", json!({"one": "a\u{0}b"}), "one", "control"),
        ("say", json!({"one": "a\nb"}), "one", "control"),
        ("say", json!({"one": "a\u{202e}b"}), "one", "bidi"),
        ("say", json!({"one": "x".repeat(2000)}), "one", "maxLength"),
        ("say", json!({"one": 1}), "one", "type"),
        ("say", json!({"one": "x", "three": "y"}), "args", "unknown"),
        ("say", many, "args", "unknown"),
        ("pattern", json!({"word": format!("{}b", "a".repeat(1000))}), "word", "pattern"),
        ("none", json!({}), "", "unknownProgram"),
        ("../say", json!({}), "", "unknownProgram"),
    ];
    for (program, args, field, rule) in &cases {
        let answer = bridge.execute(program, args);
        assert_eq!((&answer["status"], text_of(&answer, "rule").as_str()), (&json!("rejected"), *rule), "{answer}");
        assert_eq!(text_of(&answer, "field"), *field, "{answer}");
    }
    let long = bridge.call("execute", &json!({"program": "say", "args": {"one": "x".repeat(1024 * 1024)}}));
    assert_eq!(long.status, 413, "{long:?}");
    assert_eq!(bridge.tool("execute", &json!({"program": "say", "arg": {}}))["rule"], "arguments");
    let unknown = bridge.call("run", &json!({}));
    assert_eq!(unknown.body["error"]["code"], -32602, "{unknown:?}");
    let events = bridge.events();
    assert_eq!(events.iter().filter(|event| event["event"] == "Refused").count(), cases.len() + 1);
    assert!(events.iter().all(|event| event["event"] != "Start"), "{events:?}");
    bridge.verify().expect("the log is whole");
}

#[test]
fn a_client_that_goes_away_ends_the_whole_tree() {
    let bridge = Bridge::start(&[("shell", SHELL)], &[]);
    // Its processes are found by their words.
    let mark = format!("{}", 60_000 + u64::from(std::process::id()) % 1000);
    let script = format!("(setsid sleep {mark} & sleep {mark}) & trap '' TERM; sleep {mark}; sleep {mark}");
    let stream = bridge.begin(&json!({"program": "shell", "args": {"script": script}}));
    support::wait_until("the program runs", || support::running(&["sleep", &mark]) >= 3);
    drop(stream);
    let gone = Instant::now();
    support::wait_until("the tree is dead", || support::running(&["sleep", &mark]) == 0);
    println!("the tree was dead {:.1} s after its client was gone", gone.elapsed().as_secs_f64());
    support::wait_until("the end is written", || bridge.events().iter().any(|event| event["status"] == "cancelled"));
    assert_eq!(bridge.execute("shell", &json!({"script": "echo again"}))["stdout"], "again\n");
}

#[test]
fn the_end_of_the_bridge_is_the_end_of_its_programs() {
    let mut bridge = Bridge::start(&[("shell", SHELL)], &[]);
    let mark = format!("{}", 61_000 + u64::from(std::process::id()) % 1000);
    let script = format!("trap '' TERM; sleep {mark}");
    let _stream = bridge.begin(&json!({"program": "shell", "args": {"script": script}}));
    support::wait_until("the program runs", || support::running(&["sleep", &mark]) == 1);
    bridge.kill();
    support::wait_until("the tree is dead", || support::running(&["sleep", &mark]) == 0);
    let opened = bridge.start_again();
    bridge.verify().expect("the log is whole");
    assert_eq!(opened, 2, "a call without an end is known by its start");
}

#[test]
fn a_bridge_that_is_asked_to_end_ends_its_programs_and_writes_their_ends() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut bridge = Bridge::start(&[("shell", SHELL)], &[]);
        let mark = format!("{}", 62_000 + u64::from(std::process::id()) % 1000);
        let calling = bridge.begin(&json!({"program": "shell", "args": {"script": format!("(setsid sleep {mark} &) ; sleep {mark}")}}));
        // A client that sends half a request holds up nobody.
        let mut half = bridge.connect();
        half.write_all(b"POST /mcp HTTP/1.1\r\nHost:").expect("sent");
        support::wait_until("the program runs", || support::running(&["sleep", &mark]) == 2);
        assert!(bridge.end(signal), "it ends well");
        assert_eq!(support::running(&["sleep", &mark]), 0, "its programs ended before it");
        let answer = support::answer(calling);
        assert_eq!(answer.body["result"]["structuredContent"]["status"], "cancelled", "{answer:?}");
        assert_eq!(bridge.events().iter().filter(|event| event["event"] == "End" && event["status"] == "cancelled").count(), 1);
        assert!(!bridge.has_work_folder(), "it leaves nothing");
    }
}

#[test]
fn a_long_chain_of_processes_ends_in_time() {
    let bridge = Bridge::start(&[("chain", &format!("{SHELL}timeoutSeconds: 20\n"))], &[]);
    let mark = format!("{}", 63_000 + u64::from(std::process::id()) % 1000);
    // Each starts the next one, and ignores SIGTERM.
    let script = format!("trap '' TERM; n=$1; [ \"${{n:-0}}\" -ge 600 ] || sh -c \"$0\" \"$0\" $((n+1)) & sleep {mark}; wait");
    let script = format!("s='{}'; sh -c \"$s\" \"$s\" 0", script.replace('\'', "'\\''"));
    let calling = bridge.begin(&json!({"program": "chain", "args": {"script": script}}));
    support::wait_until("the chain is there", || support::running(&["sleep", &mark]) > 500);
    let ended = support::answer(calling);
    assert_eq!(ended.body["result"]["structuredContent"]["status"], "timeout", "{ended:?}");
    assert_eq!(support::running(&["sleep", &mark]), 0);
}

#[test]
fn no_part_of_a_credential_is_in_an_answer_that_was_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("key");
    fs::write(&secret, "ghp_0123456789ABCDEF").expect("a file");
    let with = format!("{SHELL}limits: {{stdoutBytes: 200, perAgentPerMinute: 100}}\nenv: {{credentials: [key]}}\n");
    let bridge = Bridge::start(&[("with", &with)], &["--credential", &format!("key={}", secret.display())]);
    for before in 82..=100 {
        let script = format!("printf '%{before}s' ''; printf %s $KEY; printf '%{}s' ''", 200 - before - 20 + 1);
        let cut = text_of(&bridge.execute("with", &json!({"script": script})), "stdout");
        assert!(cut.contains("1 bytes left out"), "{cut}");
        assert!(!cut.contains("ghp") && !cut.contains("ABC") && !cut.contains("CDEF"), "{before}: {cut}");
    }
}

#[test]
fn limits_of_time_output_and_number_hold() {
    let limited =
        format!("{SHELL}timeoutSeconds: 1\nlimits: {{stdoutBytes: 1000, stderrBytes: 10, concurrency: 1, perAgentPerMinute: 4}}\n");
    let bridge = Bridge::start(&[("limited", &limited)], &[]);
    let long = bridge.execute("limited", &json!({"script": "seq 1 100000; seq 1 100000 >&2"}));
    assert_eq!((&long["status"], &long["truncated"]), (&json!("ok"), &json!(true)));
    let stdout = text_of(&long, "stdout");
    assert!(stdout.len() < 1100 && stdout.starts_with("1\n2\n") && stdout.ends_with("100000\n") && stdout.contains("bytes left out"));
    assert!(text_of(&long, "stderr").len() < 100);
    let _running = bridge.begin(&json!({"program": "limited", "args": {"script": "sleep 0.9"}}));
    support::wait_until("the first runs", || bridge.events().iter().filter(|event| event["event"] == "Start").count() == 2);
    let busy = bridge.execute("limited", &json!({"script": "true"}));
    assert_eq!((&busy["status"], &busy["rule"]), (&json!("busy"), &json!("concurrency")), "{busy}");
    assert!(busy["retryAfterMilliseconds"].as_u64().is_some_and(|wait| wait > 0));
    support::wait_until("the first has ended", || bridge.events().iter().filter(|event| event["event"] == "End").count() == 2);
    let late = bridge.execute("limited", &json!({"script": "sleep 30"}));
    assert_eq!(late["status"], "timeout", "{late}");
    bridge.execute("limited", &json!({"script": "true"}));
    let often = bridge.execute("limited", &json!({"script": "true"}));
    assert_eq!((&often["status"], &often["rule"]), (&json!("busy"), &json!("perAgentPerMinute")), "{often}");
}

#[test]
fn programs_that_hang_are_stopped_for_a_while() {
    let hangs =
        "command: /usr/bin/sleep\nargs: [{name: seconds, type: integer, required: true}]\ntimeoutSeconds: 1\nlimits: {concurrency: 10}\n";
    let bridge = Bridge::start(&[("hangs", hangs), ("say", SAY)], &[]);
    let calls: Vec<_> = (0..10).map(|_| bridge.begin(&json!({"program": "hangs", "args": {"seconds": 60}}))).collect();
    for call in calls {
        assert_eq!(support::answer(call).body["result"]["structuredContent"]["status"], "timeout");
    }
    let stopped = bridge.execute("say", &json!({"one": "x"}));
    assert_eq!((&stopped["status"], &stopped["rule"]), (&json!("breaker_open"), &json!("breaker")), "{stopped}");
    assert!(
        text_of(&stopped, "message")
            .starts_with("the circuit breaker of this agent's programs is open: too many failures; do not retry within ")
    );
    assert!(stopped["retryAfterMilliseconds"].as_u64().is_some_and(|wait| wait > 1000), "{stopped}");
    // Wrong calls are judged before it, and calls with an answer do not start anything.
    assert_eq!(bridge.execute("say", &json!({}))["rule"], "required");
}

#[test]
fn a_call_with_a_key_runs_once() {
    let bridge = Bridge::start(&[("shell", SHELL)], &[]);
    let call =
        |key: &str, script: &str| bridge.tool("execute", &json!({"program": "shell", "args": {"script": script}, "idempotencyKey": key}));
    let first = call("k", "cat /proc/sys/kernel/random/uuid");
    assert_eq!(call("k", "cat /proc/sys/kernel/random/uuid"), first);
    assert_eq!(call("k", "true")["rule"], "idempotencyKey");
    assert_ne!(call("l", "cat /proc/sys/kernel/random/uuid")["stdout"], first["stdout"]);
    assert_eq!(bridge.events().iter().filter(|event| event["event"] == "Start").count(), 2);
    assert_eq!(call("", "true")["rule"], "arguments");
    // A repeat is known although the definition is gone.
    assert_eq!(call("k", "cat /proc/sys/kernel/random/uuid"), first);
}

#[test]
fn a_program_gets_its_credential_and_the_agent_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("key");
    fs::write(&secret, "s3cret-canary-value\n").expect("a file");
    let with = format!("{SHELL}env: {{set: {{GREETING: hello}}, credentials: [deploy-key]}}\n");
    let credential = format!("deploy-key={}", secret.display());
    let bridge = Bridge::start(&[("with", &with), ("without", SHELL)], &["--credential", &credential]);
    let has = json!({"script": "echo $GREETING ${#DEPLOY_KEY}; env | cut -d= -f1 | sort | tr '\\n' ' '"});
    assert_eq!(text_of(&bridge.execute("with", &has), "stdout"), "hello 19\nDEPLOY_KEY GREETING HOME LANG PATH PWD TMPDIR ");
    assert!(text_of(&bridge.execute("without", &has), "stdout").starts_with("0\n"));
    let printed = bridge.execute("with", &json!({"script": "echo $DEPLOY_KEY; echo $DEPLOY_KEY >&2"}));
    assert_eq!((&printed["stdout"], &printed["stderr"]), (&json!("[credential deploy-key]\n"), &json!("[credential deploy-key]\n")));
    // A guessed one is in no record.
    bridge.execute("with", &json!({"script": "true s3cret-canary-value"}));
    // Another call has it in its variables while this one looks for it.
    let _holder = bridge.begin(&json!({"program": "with", "args": {"script": "sleep 60"}}));
    support::wait_until("it runs", || bridge.events().iter().filter(|event| event["event"] == "Start").count() == 5);
    let others = format!("cat {0}/*/* {0}/*; cat {1} {2}", bridge.work_folder().display(), bridge.audit_file().display(), secret.display());
    let denied = bridge.execute("without", &json!({"script": others}));
    assert_eq!((&denied["status"], &denied["stdout"]), (&json!("nonzero"), &json!("")), "{denied}");
    let look = "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline; done 2>&1 | tr '\\0' '\\n' | grep -ac \"s3cret-canary-val[u]e\"";
    for (script, found) in [(format!("cat {}", secret.display()), ""), (look.into(), "0\n"), ("cat /proc/$PPID/environ".into(), "")] {
        let denied = bridge.execute("without", &json!({"script": script}));
        assert_eq!((&denied["status"], &denied["stdout"]), (&json!("nonzero"), &json!(found)), "{denied}");
    }
    let log = fs::read_to_string(bridge.audit_file()).expect("the log");
    assert!(!log.contains("s3cret-canary-value") && log.contains("[credential deploy-key]"));
    fs::remove_file(&secret).expect("removed");
    let missing = bridge.execute("with", &has);
    assert_eq!((&missing["status"], &missing["rule"]), (&json!("spawn_failed"), &json!("credentials")));
}

#[test]
fn a_program_reads_the_token_of_a_service_account_and_no_answer_shows_it() {
    // Sandboxes close this folder, as they do that of the token in a pod.
    let folder = tempfile::Builder::new().prefix("account").tempdir_in("/tmp").expect("a folder");
    fs::write(folder.path().join("token"), "token-of-the-account").expect("a file");
    let path = folder.path().display().to_string();
    let cat = format!("command: /usr/bin/cat\nargv: ['{path}/token']\n");
    let without = Bridge::start(&[("cat", &cat)], &[]);
    assert_eq!(without.execute("cat", &json!({}))["status"], "nonzero");
    let with = Bridge::start(&[("cat", &cat)], &["--service-account", &path]);
    let answer = with.execute("cat", &json!({}));
    assert_eq!((&answer["status"], &answer["stdout"]), (&json!("ok"), &json!("[credential ServiceAccount token]")), "{answer}");
}

#[test]
fn a_program_writes_only_to_its_private_folder() {
    let bridge = Bridge::start(&[("shell", SHELL)], &[]);
    let outside = tempfile::tempdir().expect("a folder");
    let path = outside.path().join("x");
    let script = format!("echo x > {0}; echo x > /usr/x; echo kept > kept && cat $HOME/kept; pwd", path.display());
    let answer = bridge.execute("shell", &json!({"script": script}));
    let stdout = text_of(&answer, "stdout");
    assert!(!path.exists() && !Path::new("/usr/x").exists() && stdout.starts_with("kept\n"), "{answer}");
    assert!(!Path::new(stdout.lines().last().expect("a folder")).exists(), "the folder goes with the call");
}

/// A script with `#!` is no interpreter: what an agent gives reaches it as words.
#[test]
fn a_script_is_a_program_and_its_arguments_are_words() {
    let tools = tempfile::Builder::new().prefix("tools").tempdir_in("/var/tmp").expect("a folder");
    let script = tools.path().join("show");
    support::write_program(&script, "#!/bin/sh\nprintf '%s|' \"$@\"\n");
    let definition = format!("command: {}\nargs: [{{name: one, required: true}}, {{name: two, required: true}}]\n", script.display());
    let bridge = Bridge::start(&[("show", &definition)], &[]);
    let said = bridge.execute("show", &json!({"one": "$(id); `id`", "two": "' ; exit 1 #"}));
    assert_eq!((&said["status"], &said["stdout"]), (&json!("ok"), &json!("$(id); `id`|' ; exit 1 #|")), "{said}");
}

#[test]
fn a_changed_program_is_not_run_and_changed_definitions_are_served_if_they_are_right() {
    // A program is not run from a folder that others may change, as a checkout may be, nor from /tmp, which sandboxes close.
    let tools = tempfile::Builder::new().prefix("tools").tempdir_in("/var/tmp").expect("a folder");
    let tool = tools.path().join("tool");
    support::write_program(&tool, "#!/bin/sh\necho one\n");
    let definition = format!("command: {}\n", tool.display());
    let bridge = Bridge::start(&[("tool", &definition)], &[]);
    assert_eq!(bridge.execute("tool", &json!({}))["stdout"], "one\n");
    support::write_program(&tool, "#!/bin/sh\necho two\n");
    let changed = bridge.execute("tool", &json!({}));
    assert_eq!((&changed["status"], &changed["rule"]), (&json!("rejected"), &json!("commandChanged")), "{changed}");
    // A change of the definitions pins the program that is there now. Calls go on all the time, and none fails.
    let revision = bridge.tool("list_programs", &json!({}))["revision"].clone();
    bridge.define("say", SAY);
    support::wait_until("the new definitions are served", || bridge.tool("list_programs", &json!({}))["revision"] != revision);
    let revision = bridge.tool("list_programs", &json!({}))["revision"].clone();
    assert_eq!(bridge.execute("tool", &json!({}))["stdout"], "two\n");
    bridge.define("say", "command: relative\n");
    support::wait_until("the fault is said", || {
        assert_eq!(bridge.execute("say", &json!({"one": "x"}))["stdout"], "x|");
        bridge.log().contains("say.md: line 4: command: ")
    });
    assert_eq!(bridge.tool("list_programs", &json!({}))["revision"], revision, "the last right ones are served");
}

#[test]
fn only_who_may_call_gets_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    fs::write(&file, "let-me-in\n").expect("a file");
    let bridge = Bridge::start(&[("say", SAY)], &["--token-file", &file.display().to_string()]);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let status = |headers: &[(&str, &str)]| bridge.request(headers, &list).status;
    let token = ("Authorization", "Bearer let-me-in");
    assert_eq!(status(&[token]), 200);
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", "Bearer let-me-ix")]), 401);
    assert_eq!(status(&[token, ("Origin", "http://evil.example")]), 403);
    assert_eq!(status(&[token, ("Origin", "null")]), 403);
    let Reply { status, .. } = bridge.request_to("evil.example", &[token], &list);
    assert_eq!(status, 403, "a name that a page resolved to us");
    let refused = support::spillway(&["bridge", "--definitions", &bridge.definitions().display().to_string(), "--listen", "0.0.0.0:0"]);
    assert!(refused.contains("--token-file is needed"), "{refused}");
    for (method, path) in [("GET", "/mcp"), ("DELETE", "/mcp"), ("POST", "/"), ("GET", "/metrics")] {
        let mut stream = bridge.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer let-me-in\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 4"), "{method} {path}: {answer}");
    }
}

#[test]
fn a_client_that_stops_in_the_middle_of_its_request_keeps_no_place() {
    let bridge = Bridge::start(&[("say", SAY)], &[]);
    let mut stopped = bridge.connect();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    write!(stopped, "{head}Content-Length: 100\r\nConnection: close\r\n\r\n{{").expect("sent");
    assert_eq!(bridge.execute("say", &json!({"one": "x"}))["status"], "ok");
    assert_eq!(support::answer(stopped).status, 408);
}

#[test]
fn an_edited_audit_log_is_found() {
    let bridge = Bridge::start(&[("say", SAY)], &[]);
    (0..3).for_each(|number| assert_eq!(bridge.execute("say", &json!({"one": number.to_string()}))["status"], "ok"));
    let said = bridge.verify().expect("the log is whole");
    assert!(said.starts_with("7 records are whole and in order"), "{said}");
    let good = fs::read_to_string(bridge.audit_file()).expect("the log");
    let lines: Vec<&str> = good.lines().collect();
    let copy = bridge.folder().join("copy.log");
    let verify = |lines: &[&str]| {
        fs::write(&copy, lines.join("\n") + "\n").expect("a file");
        support::spillway(&["bridge", "audit", "verify", &copy.display().to_string()])
    };
    let edited = lines[3].replace(r#""one":"1""#, r#""one":"2""#);
    let with = |at: usize, line: &str| verify(&[&lines[..at], &[line], &lines[at + 1..]].concat());
    assert!(edited != lines[3] && with(3, &edited).contains("line 4: it was changed"));
    assert!(verify(&[&lines[..2], &lines[3..]].concat()).contains("line 3: a line before it was removed"));
    assert!(
        verify(&[&lines[..2], &[lines[3], lines[2]][..], &lines[4..]].concat())
            .contains("line 3: a line before it was removed, added or moved")
    );
    // A removed end is found with the hash that was told.
    let last = said.split_whitespace().last().expect("a hash").to_owned();
    assert!(verify(&lines[..5]).starts_with("5 records are whole"));
    let missing = support::spillway(&["bridge", "audit", "verify", &copy.display().to_string(), "--last", &last]);
    assert!(missing.contains("records are missing at the end"), "{missing}");
}

#[test]
fn a_program_that_is_slow_holds_up_no_other() {
    let bridge = Bridge::start(&[("shell", SHELL)], &[]);
    let _slow = bridge.begin(&json!({"program": "shell", "args": {"script": "sleep 30"}}));
    support::wait_until("it runs", || bridge.events().iter().any(|event| event["event"] == "Start"));
    assert_eq!(bridge.execute("shell", &json!({"script": "echo quick"}))["stdout"], "quick\n");
}
