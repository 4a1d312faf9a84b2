//! Tests of the preflight: the real sidecar and supervisor, real commands, a gateway over real TLS.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use common::supervised::Supervised;
use common::{BINARY, FakeGateway, Folder, Process, start_link, text};
use rustix::process::Signal;
use serde_json::{Value, json};

struct Pod {
    gateway: FakeGateway,
    _link: Process,
    agent: Supervised,
    folder: Folder,
}

/// A pod whose preflight is the shell script `check`, and whose program is `script`. In both, `$dir` is the test's folder.
fn pod(work: Option<Value>, check: &str, script: &str) -> Pod {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    if let Some(work) = work {
        gateway.work(work);
    }
    let dir = format!("dir={}; spillway() {{ {BINARY} --ask-socket $dir/run/link.sock \"$@\"; }};", folder.path("").display());
    gateway.set("preflightCommand", json!(["sh", "-c", format!("{dir} {check}")]));
    let link = start_link(&folder, &gateway);
    let agent = Supervised::start(&folder, &[], &["sh", "-c", &format!("{dir} {script}"), "sh"]);
    Pod { gateway, _link: link, agent, folder }
}

fn state(report: &Value) -> &Value {
    &report["preflight"]["state"]
}

#[test]
fn an_item_comes_after_the_preflight_passed_and_not_before() {
    // The preflight has the user and the variables of the program, empty input, no terminal, and its own process group.
    let check = "read -r line && exit 4; [ -t 0 ] || [ -t 1 ] && exit 5; [ -n \"$SPILLWAY_DATA_DIR\" ] || exit 6; \
                 [ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] || exit 7; sleep 300 & while [ ! -e $dir/go-on ]; do sleep 0.02; done; echo checked";
    let pod = pod(Some(json!({})), check, "read -r task; cat /proc/[0-9]*/comm | grep -c sleep; echo \"did $task\"");
    pod.gateway.offer(1, "one");
    pod.gateway.report(|report| state(report) == "pending" && report["program"] == "waiting" && report["held"].is_null());
    assert_eq!(pod.gateway.calls("/work/claim").len(), 0);
    fs::write(pod.folder.path("go-on"), "").expect("written");
    let (verb, body) = pod.gateway.ended(1);
    assert_eq!((verb.as_str(), body["result"].as_str()), ("complete", Some("0\ndid one")), "and nothing of the preflight is left");
    pod.gateway.report(|report| state(report) == "passed");
    assert!(pod.agent.output().starts_with("checked\n"), "{}", pod.agent.output());
}

#[test]
fn what_fails_is_told_with_its_last_words_and_run_again() {
    let check =
        "echo \"run $(cat $dir/runs 2>/dev/null | wc -l)\"; echo >> $dir/runs; [ -e $dir/mended ] || { echo no login >&2; exit 3; }";
    let pod = pod(Some(json!({"run": "longRunning"})), check, "spillway work next --wait 20; spillway work done");
    pod.gateway.offer(1, "one");
    let report = pod.gateway.report(|report| state(report) == "failed").body;
    let message = report["preflight"]["message"].as_str().expect("words");
    assert!(message.starts_with("the preflight command ended with exit code 3: ") && message.contains("no login"), "{message}");
    // A program that asks anyway gets the reason.
    let asked = common::spillway(&pod.folder, &["work", "next"]);
    assert_eq!(asked.status.code(), Some(3));
    let words = text(&asked.stderr);
    assert!(words.contains("preflight_not_passed") && words.contains("no login"), "{words}");
    assert_eq!((pod.gateway.calls("/work/claim").len(), pod.agent.children()), (0, Vec::new()), "nor is its program started");
    fs::write(pod.folder.path("mended"), "").expect("written");
    assert_eq!(pod.gateway.ended(1).0, "complete");
    assert_eq!(fs::read_to_string(pod.folder.path("runs")).expect("a list").lines().count(), 2);
}

#[test]
fn a_program_without_queues_waits_for_it_too_and_an_end_does_not() {
    let mut pod = pod(None, "echo began; while [ ! -e $dir/go-on ]; do sleep 0.02; done", "echo runs; sleep 300");
    pod.gateway.report(|report| state(report) == "pending" && report["program"] == "waiting");
    pod.agent.wait_output("began");
    assert!(!pod.agent.output().contains("runs"));
    fs::write(pod.folder.path("go-on"), "").expect("written");
    pod.agent.wait_output("runs");
    pod.gateway.report(|report| state(report) == "passed" && report["program"] == "running");
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143));

    let mut pod = self::pod(None, "echo began; trap '' TERM; sleep 300", "echo runs");
    pod.agent.wait_output("began");
    pod.agent.signal(Signal::TERM);
    assert_eq!(pod.agent.ended().code(), Some(143), "at once, and not when the preflight has ended");
    assert!(!pod.agent.output().contains("runs"));
}

/// A fake models port, which answers `/NAME-STATUS/v1/models` with STATUS.
fn models_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let path = head.first().and_then(|line| line.strip_prefix("GET /")?.split_once("/v1/models HTTP"));
            let status = path.and_then(|(entry, _)| entry.rsplit('-').next());
            let body = json!({"error": {"message": "what it says"}}).to_string();
            let head = format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n\r\n", status.unwrap_or("404"), body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    port
}

#[test]
fn what_a_pool_names_is_looked_at_before_its_own_command_is_run() {
    let port = models_port().to_string();
    let look = |port: &str, words: &[&str]| {
        let words = [&["preflight", "--models-port", port], words, &["--", "sh", "-c", "exit 7"]].concat();
        let ended = Command::new(BINARY).args(words).output().expect("it runs");
        (ended.status.code(), text(&ended.stderr).trim().to_owned())
    };
    let all = ["--tool", "sh", "--model", "gpt-200=OpenAIChat", "--url", "gpt-401=Anthropic=https://a.example.org/x"];
    assert_eq!(look(&port, &all), (Some(7), String::new()));
    let cases: [(&[&str], &str); 4] = [
        (&["--tool", "no-such-tool"], "no-such-tool is not on the path (spec.preflight.tools)"),
        (&["--model", "gpt-401=OpenAIResponses"], "the model API gpt-401 answers 401: what it says (spec.preflight.models)"),
        (
            &["--url", "gpt-503=OpenAIChat=https://a.example.org"],
            "https://a.example.org does not answer: what it says (spec.preflight.urls)",
        ),
        (
            &["--tool", "no-such-tool", "--model", "gpt-400=OpenAIChat"],
            "no-such-tool is not on the path (spec.preflight.tools); the model API gpt-400 answers 400: what it says (spec.preflight.models)",
        ),
    ];
    for (words, said) in cases {
        assert_eq!(look(&port, words), (Some(1), said.to_owned()), "{words:?}");
    }
    let (code, said) = look("1", &["--model", "gpt=OpenAIChat"]);
    assert!(code == Some(1) && said.starts_with("the model API gpt does not answer: "), "{said}");
}

/// A fake tools port, at which the Toolset `deploy` serves one program, and `tracker` one tool of an MCP server. Other Toolsets are refused.
/// Returns the start of the URLs.
fn tools_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
            let head: Vec<String> = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let length = head.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).expect("a body");
            let asked: Value = serde_json::from_slice(&body).expect("JSON");
            let tools = |names: &[&str]| json!({"tools": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
            let toolset = head.first().and_then(|line| line.strip_prefix("POST /mcp/")?.split(' ').next()).unwrap_or_default();
            let result = match (toolset, asked["method"].as_str()) {
                ("deploy", Some("tools/list")) => Some(tools(&["list_programs", "help", "execute"])),
                ("deploy", Some("tools/call")) if asked["params"]["name"] == "list_programs" => {
                    Some(json!({"structuredContent": {"programs": [{"name": "deploy"}]}}))
                }
                ("tracker", Some("tools/list")) => Some(tools(&["search"])),
                _ => None,
            };
            let (status, body) = match result {
                Some(result) => (200, json!({"jsonrpc": "2.0", "id": 1, "result": result})),
                None => (403, json!({"error": {"message": "the pool does not list it"}})),
            };
            let body = body.to_string();
            let _ = stream.write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        }
    });
    url
}

#[test]
fn a_toolset_must_answer_and_serve_the_programs_that_are_named() {
    let url = tools_url();
    let look = |url: &str, words: &[&str]| {
        let words = [&["preflight", "--tools-url", url], words, &["--", "sh", "-c", "exit 7"]].concat();
        let ended = Command::new(BINARY).args(words).output().expect("it runs");
        (ended.status.code(), text(&ended.stderr).trim().to_owned())
    };
    assert_eq!(look(&url, &["--toolset", "deploy=deploy", "--toolset", "deploy="]), (Some(7), String::new()));
    assert_eq!(look(&url, &["--toolset", "tracker=search", "--toolset", "tracker="]), (Some(7), String::new()));
    let missing = "Toolset/deploy does not serve rollback (spec.preflight.toolsets). Add the definition to the Toolset";
    assert_eq!(look(&url, &["--toolset", "deploy=deploy,rollback"]), (Some(1), missing.to_owned()));
    let refused = "Toolset/data cannot be used: it answers 403: the pool does not list it (spec.preflight.toolsets)";
    assert_eq!(look(&url, &["--toolset", "data="]), (Some(1), refused.to_owned()));
    let (code, said) = look("http://127.0.0.1:1/mcp/", &["--toolset", "deploy="]);
    assert!(code == Some(1) && said.starts_with("Toolset/deploy cannot be used: no answer came: "), "{said}");
}

#[test]
fn a_preflight_takes_no_notice_from_the_program() {
    let folder = Folder::new();
    let notice = json!({"id": 1, "time": "T", "about": "Warn", "text": "slow down"});
    fs::write(folder.path("data/notices.jsonl"), format!("{notice}\n")).expect("written");
    let looked = common::spillway(&folder, &["preflight", "--tool", "no-such-tool"]);
    assert_eq!(text(&looked.stderr), "no-such-tool is not on the path (spec.preflight.tools)\n");
    assert!(text(&common::spillway(&folder, &["status"]).stderr).starts_with("notice: T Warn: slow down\n"));
}
