//! Shared parts of the tests of the pod's programs: folders, waiting, and the programs themselves.

#![expect(dead_code, reason = "each test file uses its part")]

pub mod gateway;
pub mod laptop;
pub mod supervised;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use spillway_pod::LOOPBACK_PORTS;

pub use gateway::FakeGateway;

/// Longer than any step of a test takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder that is removed after the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("spillway-pod-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        for folder in ["journal", "run", "data"] {
            fs::create_dir_all(path.join(folder)).expect("a folder");
        }
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The binary under test.
pub const BINARY: &str = match option_env!("SPILLWAY_POD_BINARY") {
    Some(path) => path,
    None => env!("CARGO_BIN_EXE_spillway-agent"),
};

/// A process that ends with the test, and whose standard error is shown when the test fails.
pub struct Process {
    pub child: Child,
    log: PathBuf,
}

impl Process {
    pub fn start(command: &mut Command, log: PathBuf) -> Self {
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let child = command.stdin(Stdio::null()).stderr(file).spawn().expect("a process");
        Self { child, log }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub fn ended(&mut self) -> ExitStatus {
        until("the process ends", || self.child.try_wait().expect("our child"))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

pub fn send(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("signalled");
}

/// The first of as many free loopback ports as a sidecar has. They are below the ports that the kernel assigns itself, because another process soon
/// gets a port that was assigned and released.
pub fn ports() -> u16 {
    /// Two tests that run at once must not share a port.
    const STEP: u16 = 8;
    const { assert!(LOOPBACK_PORTS <= STEP) };
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Another process of tests mostly begins at another port.
        let place = std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 2500;
        let first = 12_000 + u16::try_from(place).expect("below 2500") * STEP;
        if (first..first + LOOPBACK_PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

/// A sidecar on `folder` that talks to `gateway`.
pub fn start_link(folder: &Folder, gateway: &FakeGateway) -> Process {
    start_link_with(folder, gateway, &["--first-port", "0"])
}

pub fn start_link_with(folder: &Folder, gateway: &FakeGateway, more: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.arg("link").env("SPILLWAY_GATEWAY", gateway.address().to_string());
    for (flag, name) in [("--ca", "ca.crt"), ("--token", "token"), ("--journal", "journal"), ("--socket", "run/link.sock")] {
        command.arg(flag).arg(folder.path(name));
    }
    Process::start(command.args(more), folder.path("link.log"))
}

/// Runs a command of the program; the sidecar may not listen yet.
pub fn spillway(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).arg("--ask-socket").arg(folder.path("run/link.sock")).arg("--ask-data").arg(folder.path("data"));
    command.output().expect("the command runs")
}

/// The variable in the environment of all processes of a test, with the test's folder.
pub const MARK: &str = "SPILLWAY_TEST_MARK";

/// The living processes that a test's commands started.
pub fn alive(folder: &Folder) -> Vec<i32> {
    let mark = format!("{MARK}={}", folder.path("").display());
    let pids = fs::read_dir("/proc").expect("processes").filter_map(|one| one.ok()?.file_name().to_str()?.parse().ok());
    let marked = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()))
    };
    pids.filter(marked).collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A connection to the sidecar.
pub struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    pub fn open(folder: &Folder) -> Self {
        let stream = until("the sidecar listens", || UnixStream::connect(folder.path("run/link.sock")).ok());
        Self::of(stream)
    }

    pub fn of(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        Self { reader: BufReader::new(stream) }
    }

    /// Connects as the supervisor.
    pub fn control(folder: &Folder, key: Option<&str>) -> Self {
        let mut line = Self::open(folder);
        line.say(&json!({"control": {"key": key}}));
        line
    }

    pub fn say(&mut self, value: &Value) {
        self.raw(format!("{value}\n").as_bytes());
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// The next line; `None` at the end.
    pub fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("JSON")),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no line: {error}"),
        }
    }

    /// Reads until a line has this member, or is this word.
    pub fn until(&mut self, name: &str) -> Value {
        loop {
            let line = self.next().unwrap_or_else(|| panic!("closed before {name}"));
            if line == name {
                return line;
            }
            if let Some(value) = line.get(name) {
                return value.clone();
            }
        }
    }

    /// Reads the rest, and returns whether the connection is closed.
    pub fn closed(&mut self) -> bool {
        match self.reader.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A supervisor's report of the state of its program.
pub fn state(program: &str) -> Value {
    json!({"state": {"program": program, "silentMs": 0}})
}

/// Asks one question.
pub fn ask(folder: &Folder, ask: &Value) -> Value {
    let mut line = Line::open(folder);
    line.say(&json!({"ask": ask}));
    line.next().expect("an answer")
}

/// Waits until the sidecar knows that it is registered.
pub fn until_registered(folder: &Folder) {
    until("it is registered", || (ask(folder, &json!("status"))["status"]["registered"] == true).then_some(()));
}

pub fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("written");
    fs::rename(&beside, path).expect("renamed");
}
