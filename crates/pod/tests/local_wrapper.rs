//! `config/laptop/spillway-wrap` with the real bubblewrap and the real bridge. Stand-ins have the names of the programs: they say
//! which arguments, variables and folders they got, and call the bridge at the address that they got.

mod common;

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::laptop::{Machine, error, folder_of_spillway, out};
use common::until;
use serde_json::Value;

const PROGRAMS: [&str; 6] = ["claude", "codex", "gemini", "mini", "opencode", "pi"];
/// Finds the address of the bridge as the program would: in an argument, a variable or a file that a variable names.
const STAND_IN: &str = r#"#!/usr/bin/env interpreter
import json, os, pathlib, re, sys, urllib.request
pathlib.Path("started").touch()
given = " ".join(sys.argv[1:]) + os.environ.get("OPENCODE_CONFIG_CONTENT", "")
if file := os.environ.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH"):
    given += open(file).read()
setting = re.search(r"http://[^\"\s]+/mcp", given)
url = setting.group() if setting else os.environ["SPILLWAY_BRIDGE_URL"] + "/mcp"
call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "execute", "arguments": {"program": "say", "args": {"word": "hello"}}}}
headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(call).encode(), headers)).read().decode()
def write(path):
    try:
        pathlib.Path(os.path.expanduser(path)).write_text("changed")
        return True
    except OSError:
        return False
names = [name for name in os.environ if name.endswith(("_HOME", "_DIR"))]
print(json.dumps({
    "arguments": sys.argv[1:], "setting": setting is not None, "answer": answer, "environment": dict(os.environ),
    "files": {path: os.path.exists(os.path.expanduser(path)) for path in ["~/.ssh/id", "~/notes", "~/.codex/login", "~/data"]},
    "written": [name for name in names if write(os.environ[name] + "/state")],
    "changed": [path for path in ["~/.config/spillway-wrap/x", "~/tools/bin/x", "~/.codex/x", "~/data/x"] if write(path)],
}))
"#;

fn make_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// A machine with stand-ins, whose interpreter is in another folder of the home folder.
fn machine() -> Machine {
    let machine = Machine::new();
    for program in PROGRAMS {
        make_program(&machine.path("home/tools/bin").join(program), STAND_IN);
    }
    make_program(&machine.path("home/.runtime/bin/interpreter"), "#!/bin/sh\nexec python3 \"$@\"\n");
    for folder in ["home/.codex", "home/data"] {
        fs::create_dir(machine.path(folder)).expect("a folder");
    }
    fs::write(machine.path("home/.codex/login"), "login").expect("written");
    machine
}

/// The wrapper in the project.
fn wrapper(machine: &Machine, arguments: &[&str]) -> Command {
    let mut wrapper = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/laptop/spillway-wrap"));
    let own = ["home/tools/bin", "home/.runtime/bin"].map(|folder| machine.path(folder));
    let system = ["/usr/bin", "/bin"].map(PathBuf::from);
    let folders = own.into_iter().chain([folder_of_spillway()]).chain(system);
    wrapper.args(arguments).current_dir(machine.path("home/project")).stdin(Stdio::null()).env_clear();
    wrapper.env("PATH", std::env::join_paths(folders).expect("a path")).env("HOME", machine.path("home"));
    wrapper.env("SECRET", "canary").env("OPENAI_API_KEY", "key").env("ANTHROPIC_API_KEY", "key").env("GEMINI_API_KEY", "key");
    wrapper
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address").port()
}

/// A real bridge, until the end of the test.
struct Bridge {
    child: Child,
    url: String,
}

impl Bridge {
    fn start(machine: &Machine) -> Self {
        let folder = machine.path("definitions");
        fs::create_dir(&folder).expect("a folder");
        let text = "---\nname: say\ndescription: d\ncommand: /usr/bin/printf\nargv: ['from the bridge: %s', '{word}']\nargs: [{name: word}]\n---\n";
        fs::write(folder.join("say.md"), text).expect("written");
        let port = free_port();
        let mut bridge = Command::new(folder_of_spillway().join("spillway"));
        bridge.arg("bridge").arg("--definitions").arg(&folder).arg("--listen").arg(format!("127.0.0.1:{port}"));
        bridge.arg("--audit-file").arg(machine.path("audit.log")).stdout(Stdio::null()).stderr(Stdio::null());
        let child = bridge.spawn().expect("it runs");
        until("the bridge answers", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Self { child, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// What the stand-in says.
fn said(command: &mut Command) -> Value {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", error(&output));
    serde_json::from_str(&out(&output)).unwrap_or_else(|_| panic!("{} {}", out(&output), error(&output)))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

#[test]
fn each_program_gets_its_arguments_the_bridge_and_settings_of_its_own() {
    let machine = machine();
    let bridge = Bridge::start(&machine);
    for (program, has_setting, folders) in [
        ("claude", true, &["CLAUDE_CONFIG_DIR"][..]),
        ("codex", true, &["CODEX_HOME"]),
        ("gemini", true, &["GEMINI_CLI_HOME"]),
        ("mini", false, &["MSWEA_GLOBAL_CONFIG_DIR"]),
        ("opencode", true, &["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"]),
        ("pi", false, &["PI_CODING_AGENT_DIR"]),
    ] {
        for network in ["host", "none"] {
            let arguments = ["--bridge-url", &bridge.url, "--network", network, program, "-p", "a 'task' of $HOME", ""];
            let said = said(&mut wrapper(&machine, &arguments));
            let name = format!("{program}, {network}: {said}");
            assert!(texts(&said["arguments"]).ends_with(&["-p", "a 'task' of $HOME", ""]), "{name}");
            assert_eq!(said["setting"], has_setting, "{name}");
            assert!(said["answer"].as_str().is_some_and(|answer| answer.contains("from the bridge: hello")), "{name}");
            let mut written = texts(&said["written"]);
            written.sort_by_key(|name| folders.iter().position(|folder| folder == name));
            assert_eq!(written, folders, "{name}");
            assert_eq!(said["environment"].get("SECRET"), None, "{name}");
            assert!(said["environment"].as_object().expect("variables").values().any(|value| value == "key"), "{name}");
            assert!(said["files"].as_object().expect("files").values().all(|exists| exists == false), "{name}");
            for path in [".config/spillway-wrap/x", "tools/bin/x", ".codex/x", "data/x"] {
                assert!(!machine.path("home").join(path).exists(), "{path} stays: {name}");
            }
        }
        let own = machine.path("home/.config/spillway-wrap").join(program);
        assert_eq!(fs::metadata(&own).expect("a folder").permissions().mode() & 0o777, 0o700, "{program}");
        let kept = Command::new("find").arg(&own).args(["-name", "state", "-type", "f"]).output().expect("it runs");
        assert_eq!(out(&kept).lines().count(), folders.len(), "{program}: {}", out(&kept));
    }
    let audit = fs::read_to_string(machine.path("audit.log")).expect("the log");
    assert_eq!(audit.matches("\"event\":\"End\"").count(), 2 * PROGRAMS.len(), "{audit}");
}

#[test]
fn settings_and_files_of_the_home_folder_are_shown_on_demand() {
    let machine = machine();
    let bridge = Bridge::start(&machine);
    let data = machine.path("home/data").display().to_string();
    let url = ["--bridge-url", bridge.url.as_str()];
    let shown = said(&mut wrapper(&machine, &[&url[..], &["--home-settings", "--read", &data, "--pass", "SECRET", "codex"]].concat()));
    assert_eq!(shown["files"]["~/.codex/login"], true, "{shown}");
    assert_eq!((&shown["files"]["~/data"], &shown["files"]["~/.ssh/id"]), (&Value::Bool(true), &Value::Bool(false)), "{shown}");
    assert_eq!((texts(&shown["changed"]), &shown["environment"]["SECRET"]), (vec!["~/.codex/x"], &Value::from("canary")), "{shown}");
    assert!(machine.path("home/.codex/x").exists() && machine.path("home/.codex/state").exists());
    assert!(!machine.path("home/.config/spillway-wrap").exists());
    let written = said(&mut wrapper(&machine, &[&url[..], &["--write", &data, "codex"]].concat()));
    assert!(texts(&written["changed"]).contains(&"~/data/x") && machine.path("home/data/x").exists(), "{written}");
    // Each part of the home folder that the program is in, however it is installed: here as packages of npm, and by a link.
    fs::create_dir_all(machine.path("home/.npm/bin")).expect("a folder");
    make_program(&machine.path("home/.npm/lib/node_modules/pi/bin/main.py"), STAND_IN);
    fs::remove_file(machine.path("home/tools/bin/pi")).expect("removed");
    symlink("../../.npm/lib/node_modules/pi/bin/main.py", machine.path("home/tools/bin/pi")).expect("a link");
    said(&mut wrapper(&machine, &[&url[..], &["pi"]].concat()));
}

/// The wrapper's `--start-bridge` is that of the launcher.
#[test]
fn a_bridge_is_started_for_the_program() {
    let machine = machine();
    let url = { Bridge::start(&machine).url.clone() };
    let definitions = machine.path("definitions").display().to_string();
    let said = said(&mut wrapper(&machine, &["--bridge-url", &url, "--start-bridge", &definitions, "codex"]));
    assert!(said["answer"].as_str().is_some_and(|answer| answer.contains("from the bridge: hello")), "{said}");
}

#[test]
fn without_the_bridge_no_program_is_started() {
    let machine = machine();
    let url = format!("http://localhost:{}", free_port());
    for program in PROGRAMS {
        let output = wrapper(&machine, &["--bridge-url", &url, program]).output().expect("it runs");
        assert!(error(&output).contains("the bridge is not running (start it with: spillway bridge)"), "{program}: {}", error(&output));
        assert_eq!(output.status.code(), Some(125), "{program}");
    }
    assert!(!machine.path("home/project/started").exists());
}

#[test]
fn errors_of_the_wrapper_name_the_mend() {
    let machine = machine();
    // What the wrapper itself uses, and nothing else.
    let bin = machine.path("bin");
    fs::create_dir(&bin).expect("a folder");
    for tool in ["sh", "sed", "head", "tr", "cut", "dirname", "basename", "readlink", "mkdir"] {
        symlink(Path::new("/usr/bin").join(tool), bin.join(tool)).expect("a link");
    }
    let failing = |arguments: &[&str], code: i32, text: &str| {
        let output = wrapper(&machine, arguments).env("PATH", &bin).output().expect("it runs");
        assert!(error(&output).contains(text), "{arguments:?}: {}", error(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    };
    failing(&[], 125, "name a program");
    failing(&["--strange", "codex"], 125, "there is no option --strange");
    failing(&["--pass"], 125, "--pass needs a value");
    failing(&["vim"], 125, "vim is not one of claude, codex, gemini, mini, opencode and pi");
    failing(&["codex"], 127, "codex is not installed: no folder of PATH has it (npm install -g @openai/codex)");
    assert!(!machine.path("home/.config/spillway-wrap").exists(), "nothing is made for a program that is missing");
    fs::copy(machine.path("home/tools/bin/codex"), bin.join("codex")).expect("copied");
    failing(&["codex"], 125, "spillway-agent is not installed");
    symlink(folder_of_spillway().join("spillway-agent"), bin.join("spillway-agent")).expect("a link");
    failing(&["codex"], 125, "bubblewrap is not installed (apt-get install bubblewrap)");
    failing(&["--network", "some", "codex"], 125, "some");
    failing(&["--pass", "A-B", "codex"], 125, "pass: \"A-B\" is no name of a variable");
    failing(&["--read", "/no/such", "codex"], 125, "mounts: the path does not exist: /no/such");
    // A program of the workspace, by a relative folder of PATH, is not taken for one of the machine.
    make_program(&machine.path("home/project/claude"), STAND_IN);
    let relative = wrapper(&machine, &["claude"]).env("PATH", format!(".:{}", bin.display())).output().expect("it runs");
    assert!(error(&relative).contains("claude is not installed"), "{}", error(&relative));
}
