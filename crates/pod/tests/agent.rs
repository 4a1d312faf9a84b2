//! Tests of the supervisor: the real binary as PID 1 of its own PID namespace, with real programs.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::supervised::{FakeLink, Supervised, state_of};
use common::{BINARY, FakeGateway, Folder, Line, start_link, text, until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn settings(changes: Value) -> Value {
    let mut settings = common::gateway::settings();
    for (name, value) in changes.as_object().expect("an object") {
        settings[name] = value.clone();
    }
    json!({"start": settings})
}

/// A supervisor that got the order to start, and the sidecar's end of its connection.
fn started(folder: &Folder, flags: &[&str], command: &[&str], changes: Value) -> (Supervised, Line, FakeLink) {
    let link = FakeLink::new(folder);
    let agent = Supervised::start(folder, flags, command);
    let (mut line, key) = link.accept();
    assert_eq!(key, Value::Null);
    line.say(&settings(changes));
    (agent, line, link)
}

fn until_program(line: &mut Line, program: &str) -> Value {
    loop {
        let state = line.until("state");
        if state["program"] == program {
            return state;
        }
    }
}

#[test]
fn the_program_cannot_look_into_its_supervisor() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root can become another user");
    }
    let folder = Folder::new();
    let binary = folder.path("spillway-agent").display().to_string();
    fs::copy(BINARY, &binary).expect("copied where everybody can read it");
    let socket = folder.path("run/link.sock");
    let link = FakeLink::new(&folder);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("for everybody");
    // The program has the supervisor's uid, as in a pod. It may read its own files in /proc, and not those of the supervisor.
    let script = "cd /proc/$1 2>/dev/null; for f in environ mem maps fd/0 cwd root exe; do \
                  if [ -e $f ] && head -c 0 $f 2>/dev/null; then echo \"$1 $f open\"; else echo \"$1 $f closed\"; fi; done; echo done";
    let look = format!("look() {{ {script}; }}; look 1; look $$");
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--", "setpriv", "--reuid", "10001", "--regid", "10001"]);
    unshare.args(["--clear-groups", "--", &binary, "agent", "--data"]).arg(folder.path("data")).arg("--socket").arg(&socket);
    unshare.args(["--", "sh", "-c", &look]).stdin(Stdio::null()).stdout(Stdio::piped());
    let child = unshare.spawn().expect("started");
    let (mut line, _) = link.accept();
    line.say(&settings(json!({})));
    let output = text(&child.wait_with_output().expect("ended").stdout);
    let lines: Vec<&str> = output.lines().filter(|line| line.ends_with("open")).collect();
    assert!(output.matches("done").count() == 2, "{output}");
    assert!(!lines.iter().any(|line| line.starts_with("1 ")), "{output}");
    assert!(lines.iter().any(|line| line.ends_with("environ open")), "the other way round it can: {output}");
}

#[test]
fn it_refuses_to_supervise_what_is_not_its_own_container() {
    let folder = Folder::new();
    let done = Command::new(BINARY).args(["agent", "--socket"]).arg(folder.path("x")).args(["--", "true"]).output().expect("run");
    assert_eq!(done.status.code(), Some(78));
    assert!(text(&done.stderr).contains("PID 1"));
}

/// The variables of the container that identify a program.
const IDENTITY: [&str; 6] = [
    "SPILLWAY_AGENT_ID=uid-1",
    "SPILLWAY_AGENT_NAME=coders-1",
    "SPILLWAY_AGENT_TYPE=worker",
    "SPILLWAY_POOL=coders",
    "SPILLWAY_STORAGE_HASH=0123456789abcdef",
    "SPILLWAY_CONTAINER_MODE=true",
];

#[test]
fn the_program_starts_when_told_with_an_environment_of_its_own() {
    let folder = Folder::new();
    let link = FakeLink::new(&folder);
    let mut agent = Supervised::start_with(&folder, &["--pass", "LISTED"], &["sh", "-c", "env; echo to-stderr >&2; exit 7"], |command| {
        command
            .env("LISTED", "yes")
            .env("SECRET", "no")
            .envs(IDENTITY.map(|variable| variable.split_once('=').expect("a variable")))
            .env("ANTHROPIC_BASE_URL", "http://127.0.0.1:4101/a");
    });
    let (mut line, _) = link.accept();
    assert_eq!(line.until("state")["program"], "waiting");
    assert_eq!(agent.children(), [] as [i32; 0]);
    line.say(&settings(json!({})));
    until_program(&mut line, "ended");
    line.until("ended");
    assert_eq!(agent.ended().code(), Some(7));
    let output = agent.output();
    for expected in ["LISTED=yes", "ANTHROPIC_API_KEY=held-by-spillway", "HTTPS_PROXY=http://127.0.0.1:4102"].iter().chain(&IDENTITY) {
        assert!(output.lines().any(|line| line == *expected), "{expected} in {output}");
    }
    let data = format!("SPILLWAY_DATA_DIR={}", folder.path("data").display());
    assert!(output.contains(&data), "{data} in {output}");
    assert!(!output.contains("SECRET") && agent.log().contains("to-stderr"), "{output}");
}

#[test]
fn what_cannot_be_started_says_so() {
    let folder = Folder::new();
    fs::write(folder.path("plain"), "x").expect("written");
    let plain = folder.path("plain").display().to_string();
    for (command, code) in [("no-such-program", 127), (plain.as_str(), 126)] {
        let (mut agent, mut line, _link) = started(&folder, &[], &[command], json!({}));
        line.until("ended");
        assert_eq!(agent.ended().code(), Some(code), "{command}");
        assert!(agent.log().contains(&format!("cannot start {command}")), "{}", agent.log());
    }
}

#[test]
fn what_must_not_start_does_not_and_says_why() {
    let folder = Folder::new();
    let orders = [
        (json!("abandoned"), "no gateway has answered"),
        (json!({"wallsDown": ["10.0.0.1:443"]}), "10.0.0.1:443 can be reached"),
        (json!({"wanted": {"revision": "1", "directive": "stop"}}), "the agent's directive is stop"),
    ];
    for (order, why) in orders {
        let link = FakeLink::new(&folder);
        let mut agent = Supervised::start(&folder, &[], &["sh", "-c", "echo started"]);
        let (mut line, _) = link.accept();
        line.say(&order);
        assert_eq!(agent.ended().code(), Some(78), "{order}");
        assert!(agent.log().contains(why) && agent.output().is_empty(), "{}", agent.log());
    }
}

#[test]
fn a_thousand_orphans_leave_no_zombie() {
    let folder = Folder::new();
    let script = "pids=$(i=0; while [ $i -lt 1000 ]; do (sleep 1000 >/dev/null 2>&1 & echo $!); i=$((i+1)); done); \
                  kill -KILL $pids; echo killed; sleep 1000";
    let (agent, _line, _link) = started(&folder, &[], &["sh", "-c", script], json!({}));
    agent.wait_output("killed");
    until("all are reaped", || {
        let children = agent.children();
        let zombies = children.iter().filter(|pid| state_of(**pid) == Some('Z')).count();
        (children.len() == 1 && zombies == 0).then_some(())
    });
}

/// As in a pod with its own user namespace: a fork bomb reaches its limit, and disturbs neither the node nor the supervisor.
#[test]
fn a_fork_bomb_gets_no_further_than_its_limit_and_is_ended() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root can become another user");
    }
    let folder = Folder::new();
    let binary = folder.path("spillway-agent").display().to_string();
    fs::copy(BINARY, &binary).expect("copied where everybody can read it");
    let socket = folder.path("run/link.sock");
    let link = FakeLink::new(&folder);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("for everybody");
    // A shell that cannot fork ends, and the program continues without it.
    let bomb = "sh -c 'i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; echo none in the way >&2'; exec sleep 1000";
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--", "setpriv", "--reuid", "10001", "--regid", "10001"]);
    unshare.args(["--clear-groups", "--", "unshare", "--user", "--map-current-user", "--", &binary, "agent", "--max-processes", "64"]);
    unshare.args(["--data"]).arg(folder.path("data")).arg("--socket").arg(&socket).args(["--", "sh", "-c", bomb]);
    let mut bombed = common::Process::start(unshare.stdin(Stdio::null()).stdout(Stdio::null()), folder.path("agent.log"));
    let (mut line, _) = link.accept();
    line.say(&settings(json!({"goodbyeTimeoutSeconds": 1, "drainHook": ["sh", "-c", "echo hook-ran >&2"]})));
    until("it cannot fork any more", || bombed.log().contains("fork").then_some(()));
    let parent = bombed.pid();
    let supervisor = until("the supervisor is there", || common::supervised::children(parent).first().copied());
    // A list of children is exact only while none of them ends or changes its parent, so that it is read until it is right.
    // Without the limit three hundred processes stay.
    until("no more than its limit are there", || {
        let mut all = BTreeSet::new();
        let mut next = common::supervised::children(supervisor);
        while let Some(pid) = next.pop() {
            if all.insert(pid) {
                next.extend(common::supervised::children(pid));
            }
        }
        (all.len() <= 64).then_some(())
    });
    common::send(supervisor, Signal::TERM);
    bombed.ended();
    assert!(bombed.log().contains("hook-ran"), "a full container takes a hook: {}", bombed.log());
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_before_the_grace_is_over() {
    let folder = Folder::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let (mut agent, _line, _link) = started(&folder, &[], &["sh", "-c", script], json!({"goodbyeTimeoutSeconds": 2}));
    agent.wait_output("ready");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(137));
}

#[test]
fn a_program_that_takes_sigterm_ends_with_its_own_code() {
    let folder = Folder::new();
    for (script, code) in [("echo ready; sleep 1000", 143), ("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", 5)] {
        let (mut agent, mut line, _link) = started(&folder, &[], &["sh", "-c", script], json!({}));
        agent.wait_output("ready");
        agent.signal(Signal::TERM);
        line.until("ended");
        assert_eq!(agent.ended().code(), Some(code), "{script}");
    }
}

#[test]
fn children_that_left_their_session_are_asked_and_killed_too() {
    let folder = Folder::new();
    let asked = folder.path("asked").display().to_string();
    let go_on = folder.path("go-on").display().to_string();
    let script = format!(
        "setsid sh -c '(trap \"echo asked > {asked}\" TERM; echo one; while :; do sleep 0.01; done) & exit 0' & \
         setsid sh -c '(trap \"\" TERM; echo two; exec sleep 1000) & exit 0' & \
         while [ ! -e {go_on} ]; do sleep 0.01; done; exit 3"
    );
    let (mut agent, mut line, _link) = started(&folder, &[], &["sh", "-c", &script], json!({}));
    agent.wait_output("one");
    agent.wait_output("two");
    fs::write(go_on, "").expect("written");
    until_program(&mut line, "ended");
    line.until("ended");
    assert_eq!(agent.ended().code(), Some(3));
    assert_eq!(fs::read_to_string(asked).expect("asked to end"), "asked\n");
}

#[test]
fn the_drain_hook_runs_before_the_program_is_asked_to_end() {
    let folder = Folder::new();
    let log = folder.path("order").display().to_string();
    let script = format!("trap 'echo program >> {log}; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    let hook = json!(["sh", "-c", format!("echo hook >> {log}; exit 1")]);
    let (mut agent, _line, _link) = started(&folder, &[], &["sh", "-c", &script], json!({"drainHook": hook}));
    agent.wait_output("ready");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(fs::read_to_string(log).expect("both ran"), "hook\nprogram\n");
    // A hook that hangs has half of the grace period.
    let (mut agent, _line, _link) =
        started(&folder, &[], &["sh", "-c", "echo ready; sleep 1000"], json!({"drainHook": ["sleep", "1000"], "goodbyeTimeoutSeconds": 2}));
    agent.wait_output("ready");
    agent.signal(Signal::TERM);
    let code = agent.ended().code();
    assert!(code == Some(143) || code == Some(137), "{code:?}");
}

#[test]
fn output_that_nobody_reads_slows_the_program_and_not_its_supervisor() {
    let folder = Folder::new();
    let link = FakeLink::new(&folder);
    let mut agent =
        Supervised::start_with(&folder, &[], &["sh", "-c", "head -c 1000000 /dev/zero; echo written >&2; sleep 1000"], |command| {
            command.stdout(Stdio::piped());
        });
    let (mut line, _) = link.accept();
    line.say(&settings(json!({})));
    // The program's pipe and ours are full, so that the program cannot write and is silent.
    until("it is silent", || (until_program(&mut line, "running")["silentMs"].as_u64()? < 1_000).then_some(()));
    line.say(&json!({"activity": {"action": "asked"}}));
    while line.until("state")["action"] != "asked" {}
    assert!(!agent.log().contains("written"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(143));
}

#[test]
fn a_frozen_program_is_reported_and_can_be_ended() {
    let folder = Folder::new();
    let (mut agent, mut line, link) = started(&folder, &[], &["sh", "-c", "echo ready; exec sleep 1000"], json!({}));
    agent.wait_output("ready");
    let program = agent.program();
    common::send(program, Signal::STOP);
    let frozen = until_program(&mut line, "frozen");
    // On a new connection the frozen time continues, and does not begin again.
    drop(line);
    let (mut line, key) = link.accept();
    assert_eq!(key, "the-key");
    let still = line.until("state");
    assert_eq!(still["program"], "frozen");
    assert!(still["frozenMs"].as_u64() >= frozen["frozenMs"].as_u64());
    common::send(program, Signal::CONT);
    assert_eq!(until_program(&mut line, "running")["frozenMs"], 0);
    common::send(program, Signal::STOP);
    until_program(&mut line, "frozen");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(143), "a frozen program is woken to be asked");
}

#[test]
fn notices_are_written_and_given_to_the_hook() {
    let folder = Folder::new();
    let got = folder.path("got").display().to_string();
    let hook = json!(["sh", "-c", format!("cat >> {got}")]);
    let notice = |id| json!({"id": id, "time": "T", "about": "Warn", "text": "number"});
    let (_agent, mut line, _link) = started(&folder, &[], &["sleep", "1000"], json!({"warnHook": hook}));
    line.say(&json!({"wanted": {"revision": "1", "directive": "run", "notices": [notice(1)]}}));
    assert_eq!(line.until("noticesSeen"), 1);
    // A notice that is not acknowledged comes again with the next one.
    line.say(&json!({"wanted": {"revision": "2", "directive": "drain", "notices": [notice(1), notice(2)]}}));
    assert_eq!(line.until("noticesSeen"), 2);
    let expected = format!("{}\n{}\n", notice(1), notice(2));
    let same = |path: &str| {
        let lines = fs::read_to_string(path).unwrap_or_default();
        let values = |text: &str| text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>();
        (values(&lines) == values(&expected)).then_some(())
    };
    until("both are in the file", || same(&folder.path("data/notices.jsonl").display().to_string()));
    until("the hook got both", || same(&got));
}

#[test]
fn what_it_writes_and_asks_counts_as_activity() {
    let folder = Folder::new();
    let script = "echo ready; while read -r line; do :; done < /dev/null; sleep 1000";
    let (agent, mut line, _link) = started(&folder, &[], &["sh", "-c", script], json!({}));
    agent.wait_output("ready");
    until_program(&mut line, "running");
    line.say(&json!({"activity": {"action": "thinking"}}));
    loop {
        let state = line.until("state");
        if state["action"] == "thinking" {
            assert!(state["silentMs"].as_u64().is_some_and(|silent| silent < 1_000), "{state}");
            break;
        }
    }
}

#[test]
fn a_terminal_that_is_used_counts_as_attached() {
    let folder = Folder::new();
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::grantpt(&master).expect("granted");
    rustix::pty::unlockpt(&master).expect("unlocked");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
    let open = || fs::File::options().read(true).write(true).open(&name).expect("the terminal");
    let link = FakeLink::new(&folder);
    let command = ["sh", "-c", "echo term=$TERM; sleep 1000"];
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--", BINARY, "agent", "--tty", "--data"]);
    unshare.arg(folder.path("data")).arg("--socket").arg(folder.path("run/link.sock")).arg("--").args(command);
    let mut child = unshare.env("TERM", "vt100").stdin(open()).stdout(open()).stderr(open()).spawn().expect("started");
    let (mut line, _) = link.accept();
    line.say(&settings(json!({"chat": true})));
    let mut seen = Vec::new();
    until("the program has the terminal", || {
        let mut part = [0; 256];
        let read = rustix::io::read(&master, &mut part[..]).expect("output");
        seen.extend_from_slice(&part[..read]);
        String::from_utf8_lossy(&seen).contains("term=vt100").then_some(())
    });
    assert_eq!(until_program(&mut line, "running")["attached"], false);
    // The kernel keeps these times exact to about 8 s, so that the test sets them instead of waiting.
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 },
    };
    rustix::fs::utimensat(rustix::fs::CWD, &name, &times, rustix::fs::AtFlags::empty()).expect("set");
    loop {
        if line.until("state")["attached"] == true {
            break;
        }
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn the_program_goes_on_while_the_sidecar_is_killed_and_comes_again() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let mut link = start_link(&folder, &gateway);
    let agent = Supervised::start(&folder, &[], &["sh", "-c", "echo ready; exec sleep 1000"]);
    agent.wait_output("ready");
    let program = agent.program();
    gateway.report(|report| report["program"] == "running");
    for _ in 0..2 {
        link.signal(Signal::KILL);
        link.ended();
        let seen = gateway.calls("/report").len();
        link = start_link(&folder, &gateway);
        gateway.wait("/report", seen, |call| call.status == 200 && call.body["program"] == "running");
        assert_eq!(agent.children(), [program]);
        assert_eq!(agent.output(), "ready\n", "it was not started again");
    }
}

#[test]
fn the_program_goes_on_while_nobody_answers_and_ends_when_that_takes_too_long() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.set("heartbeatTimeoutSeconds", json!(2));
    let _link = start_link(&folder, &gateway);
    let mut agent = Supervised::start(&folder, &[], &["sh", "-c", "echo ready; exec sleep 1000"]);
    agent.wait_output("ready");
    gateway.away(true);
    let status = agent.ended();
    assert_eq!(status.code(), Some(78), "{status:?} {:?}", status.signal());
    assert!(agent.log().contains("no gateway has answered"), "{}", agent.log());
}

#[test]
fn an_agent_that_is_told_to_stop_stops() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = start_link(&folder, &gateway);
    let mut agent = Supervised::start(&folder, &[], &["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]);
    agent.wait_output("ready");
    gateway.want(json!({"revision": "2", "directive": "stop", "notices": []}));
    assert_eq!(agent.ended().code(), Some(137));
    gateway.report(|report| report["program"] == "ended");
}

#[test]
fn a_command_that_nobody_times_is_ended_and_what_was_there_before_lives() {
    let folder = Folder::new();
    // A launcher, the real program, its helper server, and then a command that ignores SIGTERM and forks.
    let program = "sleep 3001 & echo ready; until [ -e go ]; do sleep 0.05; done; \
                   sh -c 'trap \"\" TERM; setsid sleep 3002 & sh -c \"sleep 3003; exit 1\" & sleep 3004; wait'; echo went on; wait";
    fs::write(folder.path("program.sh"), program).expect("written");
    let launcher = format!("cd {}; sh program.sh; exit 0", folder.path("").display());
    let (agent, mut line, _link) =
        started(&folder, &[], &["sh", "-c", &launcher], json!({"commands": {"timeoutSeconds": 1, "maxTimeoutSeconds": 1}}));
    agent.wait_output("ready");
    let now = spillway_pod::clock::BootTime::now().millis();
    line.say(&json!({"activity": {"action": null, "called": {"begun": now, "seen": now}}}));
    until_program(&mut line, "running");
    // The kernel gives the start of a process in hundredths of a second: the command must not seem to be older than the call.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(folder.path("go"), "").expect("written");
    line.until("commandHung");
    agent.wait_output("went on");
    let slept = |seconds: &str| {
        let mut below = agent.children();
        let mut found = false;
        while let Some(pid) = below.pop() {
            below.extend(common::supervised::children(pid));
            found |= fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(seconds));
        }
        found
    };
    until("nothing of it is left", || (!["3002", "3003", "3004"].iter().any(|seconds| slept(seconds))).then_some(()));
    assert!(slept("3001"), "the helper lives");
    let notices = until("the program is told", || fs::read_to_string(folder.path("data/notices.jsonl")).ok().filter(|all| !all.is_empty()));
    assert!(notices.contains("CommandHung"), "{notices}");
}

#[test]
fn a_command_hangs_although_another_conversation_of_its_program_calls_on() {
    let folder = Folder::new();
    let program = "echo ready; until [ -e go ]; do sleep 0.05; done; echo begins; sh -c 'sleep 3004; exit 1'; echo went on; wait";
    fs::write(folder.path("program.sh"), program).expect("written");
    let launcher = format!("cd {}; sh program.sh; exit 0", folder.path("").display());
    let (agent, mut line, _link) =
        started(&folder, &[], &["sh", "-c", &launcher], json!({"commands": {"timeoutSeconds": 1, "maxTimeoutSeconds": 1}}));
    agent.wait_output("ready");
    until_program(&mut line, "running");
    let millis = || spillway_pod::clock::BootTime::now().millis();
    let begun = millis();
    // The kernel gives the start of a process in hundredths of a second: the command must not seem to be older than the call.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(folder.path("go"), "").expect("written");
    agent.wait_output("begins");
    let asked = json!({"first": begun, "begun": begun, "ended": millis()});
    // The other conversation makes a call later, whose answer lasts as long as the test.
    std::thread::sleep(Duration::from_millis(200));
    let later = millis();
    let called = json!({"begun": later, "seen": later + 3_600_000, "conversations": [asked, {"first": begun, "begun": later}]});
    line.say(&json!({"activity": {"action": null, "called": called}}));
    line.until("commandHung");
    agent.wait_output("went on");
}
