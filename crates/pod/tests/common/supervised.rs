//! A supervisor in its own PID namespace, so that it kills only its own processes, and a fake sidecar.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{BINARY, Folder, Line, Process, send, until};

/// A supervisor and its program.
pub struct Supervised {
    pub process: Process,
    /// The pid of the supervisor, outside its namespace.
    pub pid: i32,
    output: PathBuf,
}

impl Supervised {
    /// Starts a supervisor of `command`.
    pub fn start(folder: &Folder, flags: &[&str], command: &[&str]) -> Self {
        Self::start_with(folder, flags, command, |_| {})
    }

    pub fn start_with(folder: &Folder, flags: &[&str], command: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        Self::start_from(Path::new(BINARY), folder, flags, command, prepare)
    }

    /// Starts the supervisor that is installed at `binary`.
    pub fn start_from(binary: &Path, folder: &Folder, flags: &[&str], command: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.arg("--").arg(binary).args(["agent", "--data"]).arg(folder.path("data"));
        unshare.arg("--socket").arg(folder.path("run/link.sock")).args(flags).arg("--").args(command);
        let output = folder.path("output");
        unshare.stdout(Stdio::from(fs::File::create(&output).expect("a file")));
        prepare(&mut unshare);
        let process = Process::start(&mut unshare, folder.path("agent.log"));
        let parent = process.pid();
        let pid = until("the supervisor is there", || children(parent).first().copied());
        Self { process, pid, output }
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid, signal);
    }

    /// The output of the program.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    pub fn wait_output(&self, text: &str) -> String {
        until(&format!("the program writes {text}"), || Some(self.output()).filter(|output| output.contains(text)))
    }

    /// Pids of the supervisor's children, outside its namespace.
    pub fn children(&self) -> Vec<i32> {
        children(self.pid)
    }

    /// The program's pid, outside its namespace.
    pub fn program(&self) -> i32 {
        until("the program is there", || self.children().first().copied())
    }

    pub fn ended(&mut self) -> ExitStatus {
        self.process.ended()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }
}

pub fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The letter of a process's state.
pub fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// A fake sidecar.
pub struct FakeLink {
    listener: UnixListener,
}

impl FakeLink {
    pub fn new(folder: &Folder) -> Self {
        let path = folder.path("run/link.sock");
        let _ = fs::remove_file(&path);
        Self { listener: UnixListener::bind(path).expect("a socket") }
    }

    /// Accepts the supervisor's connection; returns it and the key that it sent.
    pub fn accept(&self) -> (Line, Value) {
        let (stream, _) = self.listener.accept().expect("a connection");
        let mut line = Line::of(stream);
        let key = line.until("control")["key"].clone();
        line.say(&json!({"key": "the-key"}));
        (line, key)
    }
}
