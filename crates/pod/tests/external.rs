//! Tests of an agent outside the cluster: the real program with its sidecar and supervisor, and a gateway over real TLS.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{BINARY, FakeGateway, Folder, Process, text, until, write};
use rustix::process::Signal;
use serde_json::json;

/// A machine outside the cluster with an agent, and its gateway.
struct Laptop {
    gateway: FakeGateway,
    run: Process,
    folder: Folder,
}

fn gateway() -> (FakeGateway, Folder) {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("tmp")).expect("a folder");
    (FakeGateway::start(&folder), folder)
}

/// Runs a shell script as an agent; `$dir` is the test's folder, and the command `spillway` is on its path.
fn laptop((gateway, folder): (FakeGateway, Folder), script: &str) -> Laptop {
    let mut command = Command::new(BINARY);
    command.args(["run", "--namespace", "team", "--pool", "laptops", "--name", "alices laptop"]);
    command.args(["--gateway", &format!("https://{}", gateway.address())]);
    command.arg("--ca").arg(folder.path("ca.crt")).arg("--token").arg(folder.path("token"));
    command.args(["--", "sh", "-c", script]).env("dir", folder.path("")).env("TMPDIR", folder.path("tmp")).env("MINE", "kept");
    command.stdout(Stdio::from(fs::File::create(folder.path("output")).expect("a file")));
    let run = Process::start(&mut command, folder.path("run.log"));
    Laptop { gateway, run, folder }
}

impl Laptop {
    /// The content of a file that the program writes.
    fn file(&self, name: &str) -> String {
        until(&format!("there is {name}"), || fs::read_to_string(self.folder.path(name)).ok().filter(|text| text.ends_with('\n')))
    }

    fn goodbye(&self) -> String {
        let call = self.gateway.wait("/goodbye", 0, |call| call.status == 200);
        call.body["reason"].as_str().expect("a reason").to_owned()
    }

    /// Folders of agents that were not removed.
    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.folder.path("tmp")).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    }
}

const WHO: &str = "team/laptops/laptops-1/uid-1";

#[test]
fn it_registers_runs_the_program_and_says_goodbye_with_its_exit_code() {
    let script = "spillway progress at work && echo \"$SPILLWAY_AGENT_NAME $SPILLWAY_POOL $MINE\" > $dir/said; exit 3";
    let mut laptop = laptop(gateway(), script);
    assert_eq!(laptop.run.ended().code(), Some(3), "the program's own");
    assert_eq!(laptop.file("said"), "laptops-1 laptops kept\n", "{}", laptop.run.log());
    let enrol = &laptop.gateway.calls("/external")[0];
    assert_eq!((enrol.place.as_deref(), enrol.token.as_str()), (Some("team/laptops"), "token-1"));
    assert!(enrol.key.as_ref().is_some_and(|key| key.len() == 64), "{enrol:?}");
    assert_eq!(enrol.body["displayName"], "alices laptop");
    let register = &laptop.gateway.calls("/register")[0];
    assert_eq!((register.place.as_deref(), register.body.get("sandbox")), (Some(WHO), Some(&json!(null))), "it promises no walls");
    assert!(laptop.goodbye().contains("exit code 3"), "{}", laptop.goodbye());
    laptop.gateway.report(|report| report["program"] == "ended");
    assert!(laptop.gateway.calls("/agent").iter().skip(1).all(|call| call.place.as_deref() == Some(WHO)));
    assert!(laptop.left().is_empty(), "its folder is gone: {:?}", laptop.left());
}

#[test]
fn it_does_item_after_item_and_ends_in_order_when_it_is_asked_to() {
    let (gateway, folder) = gateway();
    gateway.work(json!({}));
    gateway.offer(1, "one\n");
    gateway.offer(2, "two\n");
    let mut laptop = laptop((gateway, folder), "read -r task; echo \"did $task\"");
    for (number, result) in [(1, "did one"), (2, "did two")] {
        let (verb, body) = laptop.gateway.ended(number);
        assert_eq!((verb.as_str(), body["result"].as_str()), ("complete", Some(result)), "{}", laptop.run.log());
    }
    // With an item in hand, the item is given back.
    laptop.gateway.offer(3, "three\n");
    laptop.gateway.wait("/work/claim", 0, |call| call.body["waitSeconds"].is_number() && call.status == 200);
    laptop.run.signal(Signal::INT);
    laptop.run.ended();
    assert!(laptop.goodbye().contains("a signal on its machine ended it"), "{}", laptop.goodbye());
    assert!(laptop.left().is_empty(), "{:?}", laptop.left());
}

#[test]
fn an_item_in_hand_is_given_back_when_it_is_asked_to_end() {
    let (gateway, folder) = gateway();
    gateway.work(json!({}));
    gateway.offer(1, "one\n");
    let mut laptop = laptop((gateway, folder), "echo begun > $dir/begun; sleep 1000");
    laptop.file("begun");
    laptop.run.signal(Signal::TERM);
    assert_eq!(laptop.gateway.ended(1).0, "release", "{}", laptop.run.log());
    laptop.run.ended();
    assert!(laptop.goodbye().contains("a signal on its machine ended it"));
}

/// A request of HTTP/1.1 to a loopback URL: the head of the answer.
fn post(url: &str) -> String {
    let rest = url.strip_prefix("http://").expect("http");
    let (host, path) = rest.split_once('/').expect("a path");
    let mut stream = TcpStream::connect(host).expect("somebody listens");
    let body = json!({"model": "m"}).to_string();
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: x\r\nspillway-external: team/other/a/b\r\nx-api-key: k\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn its_models_are_reached_behind_a_secret_and_by_nobody_else() {
    let laptop = laptop(gateway(), "echo $ANTHROPIC_BASE_URL > $dir/url; exec sleep 1000");
    let url = laptop.file("url").trim().to_owned();
    let (start, entry) = url.rsplit_once('/').expect("an entry");
    let (port, secret) = start.rsplit_once('/').expect("a secret");
    assert_eq!((entry, secret.len()), ("claude", 64), "{url}");
    for other in [format!("{port}/claude/v1/messages"), format!("{port}/{}/claude/v1/messages", "0".repeat(64)), format!("{port}/")] {
        assert!(post(&other).starts_with("HTTP/1.1 404"), "{other}");
    }
    assert!(laptop.gateway.calls("/models/").is_empty());
    let answer = post(&format!("{url}/v1/messages?beta=true"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let call = &laptop.gateway.calls("/models/")[0];
    assert_eq!(call.path, "/models/claude/v1/messages?beta=true", "the secret stays here");
    assert_eq!((call.place.as_deref(), call.shown.as_deref()), (Some(WHO), None), "and no program says that it is another agent");
}

#[test]
fn when_it_has_to_leave_all_that_it_started_goes_and_no_command_of_its_pool_is_run() {
    let (gateway, folder) = gateway();
    let hook = folder.path("hook").display().to_string();
    for name in ["drainHook", "warnHook", "checkpointHook", "preflightCommand"] {
        gateway.set(name, json!(["touch", hook]));
    }
    gateway.set("canaries", json!([gateway.address().to_string()]));
    gateway.set("goodbyeTimeoutSeconds", json!(3));
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > $dir/left; while :; do sleep 0.1; done' & exec sleep 1000";
    let mut laptop = laptop((gateway, folder), script);
    let left: i32 = laptop.file("left").trim().parse().expect("a pid");
    laptop.gateway.want(json!({"revision": "9", "directive": "drain", "notices": []}));
    laptop.run.ended();
    assert!(laptop.goodbye().contains("exit code 143"), "{}", laptop.goodbye());
    assert!(!std::path::Path::new(&format!("/proc/{left}")).exists(), "what ignores being asked is killed: {}", laptop.run.log());
    assert!(!laptop.folder.path("hook").exists(), "who may change a pool runs nothing here");
}

#[test]
fn when_it_is_killed_its_program_ends() {
    let mut laptop = laptop(gateway(), "echo $$ > $dir/pid; exec sleep 1000");
    let program: i32 = laptop.file("pid").trim().parse().expect("a pid");
    laptop.run.signal(Signal::KILL);
    laptop.run.ended();
    let gone = || fs::read_to_string(format!("/proc/{program}/stat")).map_or(true, |stat| stat.contains(") Z "));
    until("the program is gone", || gone().then_some(()));
}

#[test]
fn a_supervisor_that_is_killed_leaves_nothing_behind() {
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & echo $! $PPID > $dir/pids; exec sleep 1000";
    let mut laptop = laptop(gateway(), script);
    let pids: Vec<i32> = laptop.file("pids").split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
    let supervisor = rustix::process::Pid::from_raw(pids[1]).expect("a pid");
    rustix::process::kill_process(supervisor, Signal::KILL).expect("it is ours");
    assert_eq!(laptop.run.ended().code(), Some(137));
    assert!(!std::path::Path::new(&format!("/proc/{}", pids[0])).exists(), "{}", laptop.run.log());
    assert!(laptop.goodbye().contains("exit code 137"), "{}", laptop.goodbye());
}

#[test]
fn what_cannot_run_here_registers_nothing() {
    let (gateway, folder) = gateway();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let mut command = Command::new(BINARY);
    command.args(["run", "--namespace", "team", "--pool", "laptops", "--port", &port]);
    command.args(["--gateway", &format!("https://{}", gateway.address())]);
    command.arg("--ca").arg(folder.path("ca.crt")).arg("--token").arg(folder.path("token")).args(["--", "true"]);
    let done = command.env("TMPDIR", folder.path("tmp")).output().expect("it runs");
    assert!(!done.status.success() && gateway.calls("/external").is_empty(), "{}", text(&done.stderr));
}

#[test]
fn its_shells_are_the_machines_own() {
    let laptop = laptop(gateway(), "command -v sh > $dir/shell; exec sleep 1000");
    assert!(!laptop.file("shell").contains("shells"), "{}", laptop.run.log());
}

#[test]
fn who_may_not_register_is_told_why_and_nothing_is_run() {
    let (gateway, folder) = gateway();
    gateway.refuse("/external", Some((403, "not_allowed")));
    let mut laptop = laptop((gateway, folder), "touch $dir/ran");
    assert_eq!(laptop.run.ended().code(), Some(78));
    assert!(laptop.run.log().contains("as the test says (not_allowed)"), "{}", laptop.run.log());
    assert!(!laptop.folder.path("ran").exists() && laptop.gateway.calls("/register").is_empty());
}

#[test]
fn a_signal_during_the_registration_leaves_no_agent() {
    let (gateway, folder) = gateway();
    gateway.refuse("/external", Some((503, "governor_away")));
    let mut laptop = laptop((gateway, folder), "touch $dir/ran");
    laptop.gateway.wait("/external", 0, |call| call.status == 503);
    laptop.run.signal(Signal::TERM);
    laptop.gateway.refuse("/external", None);
    assert_eq!(laptop.run.ended().code(), Some(143), "{}", laptop.run.log());
    assert_eq!(laptop.goodbye(), "spillway-agent run got a signal to end before it started the program");
    assert!(!laptop.folder.path("ran").exists());
}

#[test]
fn an_agent_that_ended_before_it_ran_ends_here_too() {
    let (gateway, folder) = gateway();
    gateway.refuse("/register", Some((403, "agent_ended")));
    let mut laptop = laptop((gateway, folder), "touch $dir/ran");
    laptop.run.ended();
    assert!(!laptop.folder.path("ran").exists(), "{}", laptop.run.log());
}

#[test]
fn an_agent_whose_right_is_taken_away_ends() {
    let mut laptop = laptop(gateway(), "echo begun > $dir/begun; exec sleep 1000");
    laptop.file("begun");
    for path in ["/report", "/wanted"] {
        laptop.gateway.refuse(path, Some((403, "not_allowed")));
    }
    laptop.run.ended();
    assert!(laptop.run.log().contains("the agent's directive is stop"), "{}", laptop.run.log());
}

#[test]
fn a_renewed_token_is_used_and_an_outage_is_waited_for() {
    let laptop = laptop(gateway(), "echo begun > $dir/begun; exec sleep 1000");
    laptop.file("begun");
    laptop.gateway.take_only("token-2");
    laptop.gateway.wait("/report", 0, |call| call.status == 401);
    write(&laptop.folder.path("token"), "token-2\n");
    laptop.gateway.wait("/report", 0, |call| call.status == 200 && call.token == "token-2");
    laptop.gateway.away(true);
    let before = laptop.gateway.calls("/report").len();
    laptop.gateway.away(false);
    laptop.gateway.wait("/report", before, |call| call.status == 200);
    assert_eq!(laptop.gateway.calls("/external").len(), 1, "it is the same agent");
}

#[test]
fn what_names_no_gateway_or_pool_is_told() {
    for (flag, value, words) in [("--gateway", "http://gateway:8443", "https"), ("--pool", "a/b", "letters, digits and dashes")] {
        let mut command = Command::new(BINARY);
        command.args(["run", "--ca", "/none", "--token", "/none", "--namespace", "n"]);
        for (name, usual) in [("--gateway", "https://127.0.0.1:1"), ("--pool", "p")] {
            command.args([name, if name == flag { value } else { usual }]);
        }
        let done = command.args(["--", "true"]).output().expect("it runs");
        assert!(!done.status.success() && text(&done.stderr).contains(words), "{}", text(&done.stderr));
    }
}
