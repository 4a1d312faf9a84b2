//! A developer's machine for tests of the sandbox on a laptop: a home folder with credentials, and programs of the machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::{BINARY, Folder};

const MISSING: &str = "these tests need bubblewrap: apt-get install bubblewrap (make cluster-packages installs it)";

/// A home folder with a workspace and credentials, and a folder beside it.
pub struct Machine(Folder);

impl Machine {
    pub fn new() -> Self {
        assert!(Command::new("bwrap").arg("--version").output().is_ok_and(|output| output.status.success()), "{MISSING}");
        let machine = Self(Folder::new());
        for (path, text) in [
            ("home/.ssh/id", "canary"),
            ("home/.netrc", "canary"),
            ("home/.config/spillway/token", "canary"),
            ("home/.local/bin/tool", "#!/bin/sh\necho tool\n"),
            ("home/notes", "notes"),
            ("home/project/main.rs", "fn main() {}"),
            ("outside/file", "outside"),
        ] {
            let path = machine.path(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("written");
        }
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// The launcher with these flags. Its environment is small, and has canaries.
    pub fn launcher(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut launcher = Command::new(BINARY);
        launcher.arg("sandbox").args(flags).arg("--").args(command).stdin(Stdio::null());
        launcher.env("HOME", self.path("home")).env("SPILLWAY_CANARY", "canary").env("AWS_SECRET_ACCESS_KEY", "canary");
        launcher
    }

    /// Runs a shell command in the project.
    pub fn shell(&self, flags: &[&str], script: &str) -> Output {
        self.shell_in("home/project", flags, script)
    }

    pub fn shell_in(&self, workspace: &str, flags: &[&str], script: &str) -> Output {
        let workspace = self.path(workspace).display().to_string();
        let flags = [&["--workspace", &workspace], flags].concat();
        self.launcher(&flags, &["bash", "-c", script]).output().expect("it runs")
    }

    pub fn config(&self, text: &str) -> String {
        let path = self.path("config.yaml");
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// A server that answers each connection with this text, until the test ends.
pub fn serve(text: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            // A shell sends each line of its request alone. Bytes that were not read when the connection is closed would reset it, and the
            // answer with it.
            let (mut request, mut part) = (Vec::new(), [0; 1024]);
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut part) {
                    Ok(count @ 1..) => request.extend_from_slice(&part[..count]),
                    Ok(_) | Err(_) => break,
                }
            }
            if !request.is_empty() {
                let length = text.len();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}");
            }
        }
    });
    port
}

/// The folder with the binary of another package, which `cargo test --workspace` builds before it runs a test.
pub fn folder_of_spillway() -> PathBuf {
    let folder = Path::new(BINARY).parent().expect("a folder").to_owned();
    assert!(folder.join("spillway").exists(), "build it first: cargo build --bin spillway");
    folder
}
