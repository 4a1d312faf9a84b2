//! Tests of `spillway exec`: the real command with real trees of processes, and the breaker of the real sidecar.

mod common;

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use common::{BINARY, FakeGateway, Folder, MARK, Process, alive, send, start_link_with, text, until, until_registered};
use rustix::process::Signal;
use serde_json::{Value, json};

fn exec(folder: &Folder, flags: &[&str], command: &[&str]) -> Command {
    let mut exec = Command::new(BINARY);
    exec.arg("--ask-socket").arg(folder.path("run/link.sock")).arg("--ask-data").arg(folder.path("data"));
    exec.arg("exec").args(flags).arg("--").args(command).env(MARK, folder.path("")).current_dir(folder.path(""));
    exec.stdin(Stdio::null());
    exec
}

fn run(folder: &Folder, flags: &[&str], command: &[&str]) -> Output {
    exec(folder, flags, command).output().expect("it runs")
}

/// The printed result, without the duration.
fn told(folder: &Folder, flags: &[&str], command: &[&str]) -> Value {
    of(&run(folder, &[&["--output", "json"], flags].concat(), command))
}

fn of(output: &Output) -> Value {
    let mut told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let took = told.as_object_mut().and_then(|told| told.remove("durationMilliseconds"));
    assert!(took.is_some_and(|took| took.is_u64()), "{output:?}");
    told
}

/// A sidecar whose breaker stays open for this time.
fn sidecar(folder: &Folder, gateway: &FakeGateway, open: Option<&str>) -> Process {
    let mut flags = vec!["--first-port", "0"];
    flags.extend(open.iter().flat_map(|open| ["--commands-open-ms", open]));
    let link = start_link_with(folder, gateway, &flags);
    // The socket file of an earlier sidecar does not count.
    until("the sidecar listens", || std::os::unix::net::UnixStream::connect(folder.path("run/link.sock")).ok());
    link
}

#[test]
fn a_command_that_ends_by_itself_is_passed_through() {
    let folder = Folder::new();
    fs::write(folder.path("plain"), "x").expect("written");
    let plain = folder.path("plain").display().to_string();
    let cases: [(&[&str], i32); 6] = [
        (&["sh", "-c", "exit 0"], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["no-such-program"], 127),
        (&[&plain], 126),
        (&["sh", "-c", "echo a; echo b >&2; exit 9"], 9),
    ];
    for (command, code) in cases {
        let done = run(&folder, &[], command);
        assert_eq!(done.status.code(), Some(code), "{command:?} {}", text(&done.stderr));
        assert_eq!(text(&done.stderr).contains("cannot start"), code == 126 || code == 127, "{}", text(&done.stderr));
    }
    let mut cat =
        exec(&folder, &[], &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    cat.stdin.take().expect("its input").write_all(b"hello").expect("written");
    assert_eq!(text(&cat.wait_with_output().expect("ended").stdout), "hello");
}

#[test]
fn what_came_of_it_is_told_in_json() {
    let folder = Folder::new();
    let expected = json!({"exitCode": 3, "timedOut": false, "spawnFailed": false, "stdout": "out\n", "stderr": "err\n", "truncated": false, "killedSurvivors": 0});
    assert_eq!(told(&folder, &[], &["sh", "-c", "cat; echo out; echo err >&2; exit 3"]), expected);
    let killed = told(&folder, &[], &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!((&killed["signal"], &killed["exitCode"]), (&json!(11), &Value::Null));
    let missing = told(&folder, &[], &["no-such-program"]);
    assert_eq!((&missing["spawnFailed"], &missing["timedOut"]), (&json!(true), &json!(false)));
    assert!(missing["stderr"].as_str().is_some_and(|words| words.starts_with("cannot start no-such-program")), "{missing}");
    let long = told(&folder, &[], &["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo end"]);
    let length = long["stdout"].as_str().map_or(0, str::len);
    assert!(long["truncated"] == true && (128 * 1024..129 * 1024).contains(&length), "{length}");
    assert!(long["stdout"].as_str().is_some_and(|words| words.ends_with("xend\n")));
}

#[test]
fn it_returns_when_the_process_ends_and_not_when_its_pipes_close() {
    let folder = Folder::new();
    let done = told(&folder, &["--timeout", "3600"], &["sh", "-c", "sleep 3000 & echo done"]);
    assert_eq!((&done["stdout"], &done["killedSurvivors"], &done["exitCode"]), (&json!("done\n"), &json!(1), &json!(0)));
    assert_eq!(alive(&folder), [] as [i32; 0]);
    let kept = told(&folder, &["--keep"], &["sh", "-c", "sleep 3000 & echo done"]);
    assert_eq!((&kept["stdout"], &kept["killedSurvivors"]), (&json!("done\n"), &json!(0)));
    let left = alive(&folder);
    assert_eq!(left.len(), 1);
    left.iter().for_each(|pid| send(*pid, Signal::KILL));
}

#[test]
fn when_its_time_is_over_it_is_ended_with_all_that_it_started() {
    let folder = Folder::new();
    let done = run(&folder, &["--timeout", "0.3"], &["sh", "-c", "sleep 3000 & setsid sleep 3000 & sleep 3000"]);
    assert_eq!(done.status.code(), Some(124), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("sh timed out after 0.3 s"), "{}", text(&done.stderr));
    let done = told(&folder, &["--timeout", "0.3"], &["sh", "-c", "echo began; exec sleep 3000"]);
    assert_eq!((&done["timedOut"], &done["signal"]), (&json!(true), &json!(15)));
    assert_eq!(alive(&folder), [] as [i32; 0]);
}

/// Starts a tree, waits until it is ready, ends it by force, and returns the output of `exec`.
fn end(folder: &Folder, script: &str) -> Output {
    let _ = fs::remove_file(folder.path("ready"));
    fs::write(folder.path("tree.sh"), script).expect("written");
    let mut tree = exec(folder, &["--output", "json", "--timeout", "3600"], &["sh", "tree.sh"]);
    let tree: Child = tree.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    until("the tree stands", || folder.path("ready").exists().then_some(()));
    // The first signal asks, and the second skips the grace period. The rest is the same as at the end of the time.
    let pid = i32::try_from(tree.id()).expect("a pid");
    let began = fs::read_to_string(format!("/proc/{pid}/stat"));
    assert!(began.is_ok(), "it waits for its tree");
    send(pid, Signal::TERM);
    send(pid, Signal::INT);
    tree.wait_with_output().expect("ended")
}

#[test]
fn nothing_is_left_of_the_nastiest_trees() {
    let trees = [
        ("it ignores", "trap '' TERM HUP INT; : > ready; while :; do sleep 3000; done"),
        ("it is stopped", "(sh -c ': > ready; kill -STOP $$; sleep 3000') & wait"),
        ("it left its session and its parent", "setsid sh -c '(trap \"\" TERM; : > ready; exec sleep 3000) & exit 0' & exec sleep 3000"),
        ("it forks when it is asked to end", "trap 'sh tree.sh & sh tree.sh &' TERM; : > ready; while :; do sleep 0.01; done"),
        (
            "it forks and ends, forks and ends",
            "trap '' TERM; if [ -z \"$1\" ]; then : > ready; setsid sh tree.sh 1 & sleep 3000; fi; [ $1 -gt 20000 ] || setsid sh tree.sh $(($1+1)) & exit",
        ),
        (
            "it forks and forks",
            "trap '' TERM; i=0; while [ $i -lt 10 ]; do (j=0; while [ $j -lt 50 ]; do sh -c 'sleep 3000' & sleep 0.05; j=$((j+1)); done; wait) & i=$((i+1)); done; : > ready; wait",
        ),
    ];
    for (what, script) in trees {
        let folder = Folder::new();
        let done = end(&folder, script);
        let told = of(&done);
        assert_eq!(alive(&folder), [] as [i32; 0], "{what}: {told}");
        // The exit code depends on which of the two signals came first.
        assert!(matches!(done.status.code(), Some(143 | 130)) && told.get("unkillable").is_none(), "{what}: {told}");
    }
}

#[test]
fn ten_that_hang_open_the_breaker_and_the_eleventh_is_refused() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let link = sidecar(&folder, &gateway, None);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| assert_eq!(run(&folder, &["--timeout", "0.5"], &["sleep", "3000"]).status.code(), Some(124)));
        }
    });
    let refused = run(&folder, &[], &["sh", "-c", ": > started"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("bash circuit breaker open for session"), "{}", text(&refused.stderr));
    // The breaker stays open over a restart of the sidecar.
    drop(link);
    let _link = sidecar(&folder, &gateway, None);
    let refused = run(&folder, &["--output", "json"], &["sh", "-c", ": > started"]);
    let told: Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    assert!(told["refused"].as_str().is_some_and(|words| words.starts_with("bash circuit breaker open for session")), "{told}");
    assert!(
        told["retryAfterMilliseconds"].as_u64().is_some_and(|wait| (1..=33_000).contains(&wait)) && told["doNotRetry"] == true,
        "{told}"
    );
    assert!(!folder.path("started").exists());
}

#[test]
fn a_hundred_that_say_no_open_nothing() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = sidecar(&folder, &gateway, None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    assert_eq!(run(&folder, &[], &["false"]).status.code(), Some(1));
                }
            });
        }
    });
    assert_eq!(run(&folder, &[], &["true"]).status.code(), Some(0));
    assert!(!folder.path("journal/commands.json").exists(), "nothing changed");
}

#[test]
fn it_is_tried_again_fails_is_tried_again_and_closes_after_two_successes() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let _link = sidecar(&folder, &gateway, Some("2000"));
    let missing = || run(&folder, &[], &["no-such-program"]).status.code();
    let works = || (run(&folder, &[], &["true"]).status.code() == Some(0)).then_some(());
    for _ in 0..10 {
        assert_eq!(missing(), Some(127));
    }
    let state = || {
        fs::read_to_string(folder.path("journal/commands.json"))
            .ok()
            .and_then(|kept| serde_json::from_str(&kept).ok())
            .map(|kept: Value| kept["state"].clone())
    };
    assert_eq!(state(), Some(json!("Open")));
    until("a probe passes", works);
    assert_eq!(state(), Some(json!("HalfOpen")));
    assert_eq!(missing(), Some(127), "the second probe, which fails");
    assert_eq!(state(), Some(json!("Open")));
    until("a probe passes", works);
    assert_eq!(run(&folder, &[], &["true"]).status.code(), Some(0));
    assert_eq!(state(), Some(json!("Closed")));
    assert_eq!((missing(), missing()), (Some(127), Some(127)), "it counts anew");
}

/// A desired state with breakers of commands; `globally` is the breaker of the namespace.
fn wanted(revision: &str, globally: &Value) -> Value {
    let commands = json!({
        "mode": "enforce", "failureThreshold": 3, "windowMilliseconds": 120_000, "openMilliseconds": 600_000, "backoffFactor": 1,
        "maxOpenMilliseconds": 900_000, "successThreshold": 2, "halfOpenProbes": 1, "failureExitCodes": [42], "openGlobally": globally,
    });
    json!({"revision": revision, "directive": "run", "notices": [], "commands": commands})
}

#[test]
fn while_the_breaker_of_the_namespace_is_open_nothing_runs_until_the_governor_lets_one_be_tried() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.want(wanted("1", &json!({"retryAfterMilliseconds": 60_000})));
    let _link = sidecar(&folder, &gateway, None);
    until_registered(&folder);
    let refused = run(&folder, &["--output", "json"], &["sh", "-c", ": > started"]);
    let told: Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    assert!(told["refused"].as_str().is_some_and(|words| words.starts_with("bash circuit breaker open globally: ")), "{told}");
    let wait = told["retryAfterMilliseconds"].as_u64().expect("a time");
    assert!((1000..=60_000).contains(&wait) && told["doNotRetry"] == true && refused.status.code() == Some(125), "{told}");
    assert!(gateway.calls("/commands/").is_empty(), "nobody is asked before its time is over");
    // Its time is over: the governor is asked and refuses.
    gateway.try_says(json!({"rejected": {"message": "bash circuit breaker open globally: no", "retryAfterMilliseconds": 1}}));
    gateway.want(wanted("2", &json!({"retryAfterMilliseconds": 0})));
    until("the governor is asked", || {
        let tried = run(&folder, &[], &["sh", "-c", ": > started"]);
        assert_eq!(tried.status.code(), Some(125), "{}", text(&tried.stderr));
        text(&tried.stderr).contains("open globally: no").then_some(())
    });
    assert!(!folder.path("started").exists());
}

#[test]
fn what_is_tried_for_the_namespace_is_told_to_the_governor() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.want(wanted("1", &json!({"retryAfterMilliseconds": 0})));
    let _link = sidecar(&folder, &gateway, None);
    until_registered(&folder);
    for (command, outcome) in [("true", "success"), ("false", "neutral"), ("no-such-program", "failure")] {
        let before = gateway.calls("/commands/end").len();
        run(&folder, &["--timeout", "60"], &[command]);
        let told = gateway.wait("/commands/end", before, |call| call.status == 200).body;
        assert_eq!(told, json!({"permit": {"owner": 9, "epoch": 8, "id": 7}, "outcome": outcome}), "{command}");
    }
    let asked = gateway.calls("/commands/try");
    assert!(asked.len() == 3 && asked.iter().all(|call| call.body["timeoutMilliseconds"] == 60_000), "{asked:?}");
    // No answer comes: the command runs anyway.
    gateway.refuse("/commands/try", Some((503, "governor_away")));
    assert_eq!(run(&folder, &[], &["sh", "-c", "exit 5"]).status.code(), Some(5));
}

#[test]
fn what_fails_is_counted_for_the_governor_and_people_say_how_much_is_too_much() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.want(wanted("1", &Value::Null));
    let _link = sidecar(&folder, &gateway, None);
    until_registered(&folder);
    for (command, code) in [("exit 42", 42), ("exit 1", 1), ("exit 42", 42), ("exit 42", 42), ("exit 0", 125)] {
        assert_eq!(run(&folder, &[], &["sh", "-c", command]).status.code(), Some(code), "{command}");
    }
    gateway.report(|report| report["commands"] == json!({"failed": 3, "opened": 1}));
    gateway.want(json!({"revision": "2", "directive": "run", "notices": [], "commands": {
        "mode": "off", "failureThreshold": 3, "windowMilliseconds": 1000, "openMilliseconds": 1000, "backoffFactor": 1,
        "maxOpenMilliseconds": 1000, "successThreshold": 1, "halfOpenProbes": 1}}));
    until("it is off", || (run(&folder, &[], &["true"]).status.code() == Some(0)).then_some(()));
}

#[test]
fn a_sidecar_that_is_away_stops_no_command() {
    let folder = Folder::new();
    let done = run(&folder, &[], &["sh", "-c", "exit 5"]);
    assert_eq!(done.status.code(), Some(5));
    assert!(text(&done.stderr).contains("no breaker guards this command"), "{}", text(&done.stderr));
}

#[test]
fn to_kill_a_process_group_is_not_enough() {
    // The control of the trees above: with a kill of the process group only, one process stays alive.
    use std::os::unix::process::CommandExt as _;
    let folder = Folder::new();
    let script = "setsid sh -c '(: > ready; exec sleep 3000) & exit 0' & exec sleep 3000";
    let mut tree = Command::new("sh");
    let mut tree =
        tree.args(["-c", script]).env(MARK, folder.path("")).current_dir(folder.path("")).process_group(0).spawn().expect("started");
    until("the tree stands", || folder.path("ready").exists().then_some(()));
    let group = rustix::process::Pid::from_raw(i32::try_from(tree.id()).expect("a pid")).expect("a pid");
    rustix::process::kill_process_group(group, Signal::KILL).expect("killed");
    tree.wait().expect("reaped");
    let left = alive(&folder);
    assert_eq!(left.len(), 1);
    left.iter().for_each(|pid| send(*pid, Signal::KILL));
}
