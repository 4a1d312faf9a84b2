//! Tests of commands of programs that do not know Spillway: real shells that hang, with the real sidecar and supervisor.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::supervised::Supervised;
use common::{BINARY, FakeGateway, Folder, MARK, Process, alive, ports, send, start_link_with, text, until, until_registered};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A pod's binaries, its sidecar, and a gateway.
struct Pod {
    folder: Folder,
    gateway: FakeGateway,
    port: u16,
    _link: Process,
}

impl Pod {
    /// `untimed`: the commands without a time limit. `mode`: of the breaker of commands, which opens after three failures. The time
    /// limit is one second.
    fn start(untimed: Value, mode: &str) -> Self {
        Self::start_with_time(untimed, mode, 1)
    }

    fn start_with_time(untimed: Value, mode: &str, seconds: u32) -> Self {
        let folder = Folder::new();
        assert!(Command::new(BINARY).arg("install").arg(folder.path("bin")).status().expect("installed").success());
        let gateway = FakeGateway::start(&folder);
        gateway.set("commands", json!({"timeoutSeconds": seconds, "maxTimeoutSeconds": 60}));
        gateway.set("untimed", untimed);
        let commands = json!({
            "mode": mode, "failureThreshold": 3, "windowMilliseconds": 120_000, "openMilliseconds": 600_000, "backoffFactor": 1,
            "maxOpenMilliseconds": 900_000, "successThreshold": 2, "halfOpenProbes": 1, "failureExitCodes": [42],
        });
        gateway.want(json!({"revision": "1", "directive": "run", "notices": [], "commands": commands}));
        let port = ports();
        let link = start_link_with(&folder, &gateway, &["--first-port", &port.to_string()]);
        until_registered(&folder);
        Self { folder, gateway, port, _link: link }
    }

    fn timed() -> Self {
        Self::start(json!({"names": [], "untilAnswer": false}), "enforce")
    }

    /// A pod with a time limit that is long enough for a busy machine.
    fn patient() -> Self {
        Self::start_with_time(json!({"names": [], "untilAnswer": false}), "enforce", 60)
    }

    fn shells(&self) -> PathBuf {
        self.folder.path("bin/shells")
    }

    /// A shell as a program finds it on its `PATH`.
    fn shell(&self, name: &str, arguments: &[&str]) -> Command {
        let mut shell = Command::new(self.shells().join(name));
        let path = format!("{}:{}", self.shells().display(), std::env::var("PATH").expect("a path"));
        shell.args(arguments).env("PATH", path).env(MARK, self.folder.path("")).stdin(Stdio::null());
        shell.env("SPILLWAY_DATA_DIR", self.folder.path("data")).env("SPILLWAY_SOCKET", self.folder.path("run/link.sock"));
        shell
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        self.shell(name, arguments).output().expect("it runs")
    }

    /// The exit code and the output.
    fn said(&self, name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let done = self.run(name, arguments);
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }
}

/// A command that takes longer than the time limit.
const LONG: &str = "sleep 1.6; exit 3";

#[test]
fn a_shell_has_the_pools_time_although_its_program_asked_for_none() {
    let pod = Pod::timed();
    for shell in ["sh", "bash"] {
        let (code, out, err) = pod.said(shell, &["-c", "echo began; setsid sleep 3000 & sleep 3000"]);
        assert_eq!((code, out.as_str()), (Some(124), "began\n"), "{err}");
        for words in [format!("{shell} timed out after 1 s").as_str(), "spec.agent.untimedCommands"] {
            assert!(err.contains(words), "{words}: {err}");
        }
        assert_eq!(alive(&pod.folder), [] as [i32; 0]);
    }
    pod.gateway.report(|report| report["commands"] == json!({"failed": 2, "opened": 0}));
    // A shell within it is found by the same path, and is not timed again.
    let nested = pod.said("sh", &["-c", "sh -c 'echo $SPILLWAY_TIMED $SPILLWAY_TIMED_BY.; exit 7'"]);
    assert_eq!(nested, (Some(7), "1 .\n".into(), String::new()));
    // Processes that it leaves behind stay.
    assert!(pod.run("sh", &["-c", "sleep 3000 > /dev/null 2>&1 & exit 0"]).status.success());
    let left = alive(&pod.folder);
    assert_eq!(left.len(), 1);
    left.iter().for_each(|pid| send(*pid, Signal::KILL));
}

#[test]
fn every_other_shell_is_the_real_one() {
    let pod = Pod::timed();
    let script = pod.folder.path("script");
    fs::write(&script, "echo [$SPILLWAY_TIMED] $0 $1; exit 8").expect("written");
    let script = script.display().to_string();
    let (code, out, err) = pod.said("sh", &[&script, "-c"]);
    assert_eq!((code, out, err.as_str()), (Some(8), format!("[] {script} -c\n"), ""));
    assert_eq!(pod.run("sh", &["-ic", LONG]).status.code(), Some(3), "one for a person");
    // A shell at a terminal that its program made.
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::grantpt(&master).expect("granted");
    rustix::pty::unlockpt(&master).expect("unlocked");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
    let terminal = fs::File::options().read(true).write(true).open(name).expect("the terminal");
    assert_eq!(pod.shell("sh", &["-c", LONG]).stdin(terminal).status().expect("it runs").code(), Some(3));
    // The control: a shell that is none of these.
    assert_eq!(pod.run("sh", &["-c", LONG]).status.code(), Some(124));
}

#[test]
fn what_is_meant_to_stay_has_no_time() {
    let pod = Pod::start(json!({"names": ["sleep"], "untilAnswer": false}), "enforce");
    assert_eq!(pod.said("bash", &["-c", LONG]), (Some(3), String::new(), String::new()));
    assert_eq!(pod.run("bash", &["-c", "while :; do :; done"]).status.code(), Some(124), "it is none of those");
    let all = Pod::start(json!({"names": ["*"], "untilAnswer": false}), "enforce");
    assert_eq!(all.run("bash", &["-c", LONG]).status.code(), Some(3));
}

#[test]
fn a_command_that_was_given_a_time_has_it_in_a_shell_too() {
    let pod = Pod::timed();
    let exec = |seconds: f32| format!("{} exec --timeout 30 -- sleep {seconds}", pod.folder.path("bin/spillway").display());
    assert_eq!(pod.said("sh", &["-c", &format!("{}; exit 6", exec(2.5))]), (Some(6), String::new(), String::new()));
    // After that command the shell has its own time limit once more.
    let (code, _, err) = pod.said("sh", &["-c", &format!("{}; sleep 3000", exec(1.5))]);
    assert!(code == Some(124) && err.contains("sh timed out after 1 s"), "{code:?} {err}");
    assert_eq!(alive(&pod.folder), [] as [i32; 0]);
}

#[test]
fn nothing_is_ended_while_breakers_only_observe() {
    for mode in ["observe", "off"] {
        let pod = Pod::start(json!({"names": [], "untilAnswer": false}), mode);
        assert_eq!(pod.run("sh", &["-c", LONG]).status.code(), Some(3), "{mode}");
    }
}

#[test]
fn what_began_before_a_model_answered_is_the_program_or_a_helper_of_it() {
    let pod = Pod::start(json!({"names": [], "untilAnswer": true}), "enforce");
    let call = |request: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", pod.port)).expect("the port of models");
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(pod.run("sh", &["-c", LONG]).status.code(), Some(3), "no model was called");
    // Neither a list of models nor a refusal is an answer of a model.
    assert!(call("GET /m/v1/models").contains("200"));
    pod.gateway.refuse("/models/m/v1/refused", Some((429, "budget_exceeded")));
    assert!(call("POST /m/v1/refused").contains("429"));
    assert_eq!(pod.run("sh", &["-c", LONG]).status.code(), Some(3));
    assert!(call("POST /m/v1/messages").contains("200"));
    assert_eq!(pod.run("sh", &["-c", LONG]).status.code(), Some(124));
}

#[test]
fn a_kill_of_the_timed_shell_kills_the_real_one() {
    let pod = Pod::patient();
    for signal in [Signal::KILL, Signal::TERM] {
        let mut shell = pod.shell("bash", &["-c", "sleep 3000"]).spawn().expect("started");
        // The timed shell, and the command that the real shell became.
        until("it sleeps", || (alive(&pod.folder).len() >= 2).then_some(()));
        until("it is the real one", || {
            let mut all = alive(&pod.folder).into_iter();
            all.any(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"sleep\x003000\x00")).then_some(())
        });
        send(i32::try_from(shell.id()).expect("a pid"), signal);
        shell.wait().expect("reaped");
        until("nothing is left", || alive(&pod.folder).is_empty().then_some(()));
    }
}

#[test]
fn too_many_that_fail_are_refused() {
    let pod = Pod::patient();
    for _ in 0..3 {
        assert_eq!(pod.run("sh", &["-c", "exit 42"]).status.code(), Some(42));
    }
    let (code, _, err) = pod.said("sh", &["-c", ": > started"]);
    assert!(code == Some(125) && err.contains("bash circuit breaker open for session"), "{code:?} {err}");
    assert!(!pod.folder.path("started").exists());
}

#[test]
fn an_absent_sidecar_stops_no_shell() {
    let pod = Pod::timed();
    let gone = pod.folder.path("run/none.sock");
    let mut shell = pod.shell("sh", &["-c", LONG]);
    assert_eq!(shell.env("SPILLWAY_SOCKET", gone).output().expect("it runs").status.code(), Some(3));
}

#[test]
fn a_program_that_knows_nothing_of_it_has_its_commands_ended() {
    let pod = Pod::timed();
    // The program is a script: its own processes are no commands, and the processes of its shells are.
    let script = "sleep 2.5; echo stepped
        sh -c 'sleep 3001; true'; echo \"path $?\"
        /bin/sh -c 'spillway exec --timeout 30 -- sleep 2.5; true'; echo \"given $?\"
        { /bin/sh -c 'sleep 3002; true'; echo \"absolute $?\"; } 2>&1 | cat
        echo over; exec sleep 3003";
    fs::write(pod.folder.path("program.sh"), script).expect("written");
    let program = pod.folder.path("program.sh").display().to_string();
    let agent = Supervised::start_from(&pod.folder.path("bin/spillway-agent"), &pod.folder, &[], &["sh", &program], |_| {});
    let output = agent.wait_output("over");
    for words in ["stepped\n", "path 124\n", "given 0\n", "absolute 143\n", "sh (sleep) ran longer than the time limit of commands"] {
        assert!(output.contains(words), "{words}: {output} {}", agent.log());
    }
    assert!(agent.log().contains("sh timed out after 1 s"), "{}", agent.log());
    pod.gateway.report(|report| report["commands"] == json!({"failed": 2, "opened": 0}));
    let notices = until("the program is told", || fs::read_to_string(pod.folder.path("data/notices.jsonl")).ok());
    assert!(notices.contains("CommandHung") && notices.matches('\n').count() == 1, "{notices}");
}

#[test]
fn a_shell_that_became_its_command_is_found_too() {
    // Some versions of dash wait for their only command instead of becoming it.
    for (shell, names) in [("/bin/sh", &["sleep", "sh (sleep)"][..]), ("/bin/bash", &["sleep"])] {
        let pod = Pod::timed();
        let bin = pod.folder.path("bin/spillway-agent");
        let mut agent = Supervised::start_from(&bin, &pod.folder, &[], &["timeout", "1000", shell, "-c", "sleep 3001"], |_| {});
        assert_eq!(agent.ended().code(), Some(143), "{}", agent.log());
        let said =
            |name: &&str| agent.log().lines().any(|line| line.starts_with(&format!("{name} ran longer than the time limit of commands")));
        assert!(names.iter().any(said), "{}", agent.log());
    }
}
