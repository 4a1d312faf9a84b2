//! A bridge with a folder of definitions, and requests to it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const SPILLWAY: &str = env!("CARGO_BIN_EXE_spillway");
/// Longer than anything takes on a busy machine.
const GENEROUS: Duration = Duration::from_secs(120);
const OLDER: &str = "2025-11-25";
const NEWER: &str = "2026-07-28";

/// An answer of HTTP.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

/// A running bridge.
pub struct Bridge {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    child: Child,
    port: u16,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Bridge {
    /// `programs`: names, and the other fields of their definitions.
    pub fn start(programs: &[(&str, &str)], more: &[&str]) -> Self {
        // Not the folder for temporary files, which sandboxes close.
        let folder = tempfile::Builder::new().prefix("bridge").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        fs::create_dir(folder.path().join("definitions")).expect("a folder");
        for (name, fields) in programs {
            define(folder.path(), name, fields);
        }
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(path("work")).expect("a folder");
        let (definitions, work) = (path("definitions"), path("work"));
        let own = ["--definitions", &definitions, "--work-folder", &work];
        Self::start_in(folder, &[&own, more].concat())
    }

    /// A bridge in front of an MCP server. `fields`: those of `spec.upstream`.
    pub fn start_upstream(fields: &str, more: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("upstream").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let file = folder.path().join("upstream.yaml");
        fs::write(&file, fields).expect("a file");
        Self::start_in(folder, &[&["--upstream", &file.display().to_string()], more].concat())
    }

    fn start_in(folder: tempfile::TempDir, more: &[&str]) -> Self {
        let audit = folder.path().join("audit.log").display().to_string();
        let fixed = ["--audit-file", &audit, "--listen", "127.0.0.1:0"];
        let arguments: Vec<String> = fixed.iter().chain(more).map(|&word| word.to_owned()).collect();
        let (child, port) = spawn(folder.path(), &arguments);
        Self { folder, arguments, child, port }
    }

    /// The address of MCP.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn definitions(&self) -> PathBuf {
        self.folder.path().join("definitions")
    }

    pub fn audit_file(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    /// The folder of the private folders of calls.
    pub fn work_folder(&self) -> PathBuf {
        let mut folders = fs::read_dir(self.folder.path().join("work")).expect("the folder");
        folders.next().expect("the bridge makes one").expect("an entry").path()
    }

    pub fn has_work_folder(&self) -> bool {
        fs::read_dir(self.folder.path().join("work")).expect("the folder").next().is_some()
    }

    /// Sends a signal and waits for the end; returns whether the bridge ended with exit code 0.
    pub fn end(&mut self, signal: Signal) -> bool {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("sent");
        self.child.wait().expect("its end").success()
    }

    /// Writes a definition.
    pub fn define(&self, name: &str, fields: &str) {
        define(self.folder.path(), name, fields);
    }

    /// What the bridge said on standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).expect("the log")
    }

    /// Kills the bridge itself, without a word.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the bridge again; returns how many times it was opened.
    pub fn start_again(&mut self) -> usize {
        (self.child, self.port) = spawn(self.folder.path(), &self.arguments);
        self.events().iter().filter(|event| event["event"] == "Opened").count()
    }

    /// The records of the audit log.
    pub fn events(&self) -> Vec<Value> {
        let log = BufReader::new(File::open(self.audit_file()).expect("the log"));
        // The last line may be half written.
        log.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect()
    }

    /// What `spillway bridge audit verify` says.
    pub fn verify(&self) -> Result<String, String> {
        let output = run(&["bridge", "audit", "verify", &self.audit_file().display().to_string()]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(GENEROUS)).expect("a limit");
        stream
    }

    fn send(&self, host: &str, headers: &[(&str, &str)], body: &Value) -> TcpStream {
        let mut stream = self.connect();
        let body = body.to_string();
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n{more}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        // A body that is too long is not read to its end.
        let _ = stream.write_all(body.as_bytes());
        stream
    }

    pub fn request_to(&self, host: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        answer(self.send(host, headers, body))
    }

    pub fn request(&self, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.request_to("localhost", headers, body)
    }

    /// A request of the revision with sessions, which a client begins with `initialize`.
    pub fn older(&self, method: &str, params: &Value) -> Reply {
        self.request(&[("MCP-Protocol-Version", OLDER)], &json!({"jsonrpc": "2.0", "id": 2, "method": method, "params": params}))
    }

    /// A request of the revision without sessions.
    pub fn newer(&self, method: &str, params: &Value) -> Reply {
        let mut params = params.clone();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": NEWER,
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let mut headers = vec![("MCP-Protocol-Version", NEWER), ("Mcp-Method", method)];
        if !name.is_empty() {
            headers.push(("Mcp-Name", &name));
        }
        self.request(&headers, &json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params}))
    }

    /// A call of a tool.
    pub fn call(&self, tool: &str, arguments: &Value) -> Reply {
        self.older("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// The structured answer to a call of a tool.
    pub fn tool(&self, tool: &str, arguments: &Value) -> Value {
        let reply = self.call(tool, arguments);
        let answer = reply.body["result"]["structuredContent"].clone();
        assert!(answer.is_object(), "{reply:?}");
        answer
    }

    pub fn execute(&self, program: &str, args: &Value) -> Value {
        self.tool("execute", &json!({"program": program, "args": args}))
    }

    /// Begins a call of `execute`, and does not wait for its answer.
    pub fn begin(&self, arguments: &Value) -> TcpStream {
        self.begin_tool("execute", arguments)
    }

    /// Begins a call of a tool, and does not wait for its answer.
    pub fn begin_tool(&self, tool: &str, arguments: &Value) -> TcpStream {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": params});
        self.send("localhost", &[("MCP-Protocol-Version", OLDER)], &body)
    }
}

/// The answer that comes on a connection.
pub fn answer(mut stream: TcpStream) -> Reply {
    let mut text = Vec::new();
    // After a body that was not read to its end, the connection is reset behind the answer.
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {text:?}"));
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    Reply { status, body: serde_json::from_str(body).unwrap_or_else(|_| json!(body)) }
}

fn define(folder: &Path, name: &str, fields: &str) {
    let text = format!("---\nname: {name}\ndescription: d\n{fields}---\nHelp of {name}.\n");
    // As an editor does it: a half written definition is never seen.
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, text).expect("a file");
    fs::rename(new, folder.join("definitions").join(format!("{name}.md"))).expect("renamed");
}

fn spawn(folder: &Path, arguments: &[String]) -> (Child, u16) {
    let log = folder.join("stderr");
    let errors = File::create(&log).expect("a file");
    let mut command = Command::new(SPILLWAY);
    command.arg("bridge").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let mut child = command.spawn().expect("it starts");
    let mut port = None;
    wait_until("it listens", || {
        let said = fs::read_to_string(&log).expect("the log");
        assert!(child.try_wait().expect("its state").is_none(), "it ended: {said}");
        port = said.split_once("address=127.0.0.1:").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        port.is_some()
    });
    (child, port.expect("a port"))
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < GENEROUS, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How many processes have exactly these words.
pub fn running(words: &[&str]) -> usize {
    let line: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
    let processes = fs::read_dir("/proc").expect("the processes").filter_map(Result::ok);
    processes.filter(|process| fs::read(process.path().join("cmdline")).is_ok_and(|found| found == line)).count()
}

/// Writes a program and replaces the one that was there.
pub fn write_program(path: &Path, script: &str) {
    let new = path.with_extension("new");
    fs::write(&new, script).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::rename(new, path).expect("renamed");
}

fn run(arguments: &[&str]) -> std::process::Output {
    Command::new(SPILLWAY).args(arguments).output().expect("it runs")
}

/// What a command of `spillway` says.
pub fn spillway(arguments: &[&str]) -> String {
    let output = run(arguments);
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
