//! Commands in agents' containers, with `kubectl exec` and `kubectl attach`, as a user runs them.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::TestNamespace;

/// Path of the command `spillway` in every agent's container.
pub const SPILLWAY: &str = "/spillway/bin/spillway";

/// The output of a command.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Its standard output. The command must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }
}

/// Runs `words` in the container `agent` of `pod`.
pub async fn exec(room: &TestNamespace, pod: &str, words: &[&str]) -> CommandOutput {
    let mut command = Command::new("kubectl");
    command.args(["-n", &room.namespace, "exec", pod, "-c", "agent", "--"]).args(words).stdin(Stdio::null());
    // On another thread, so that the test's watches continue.
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("not cancelled").expect("kubectl is on PATH");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}

/// Runs a shell script in the container.
pub async fn sh(room: &TestNamespace, pod: &str, script: &str) -> CommandOutput {
    exec(room, pod, &["/bin/sh", "-c", script]).await
}

/// Runs `spillway` in the container.
pub async fn spillway(room: &TestNamespace, pod: &str, words: &[&str]) -> CommandOutput {
    exec(room, pod, &[&[SPILLWAY], words].concat()).await
}

/// A user at the terminal of an agent, until this is dropped.
pub struct Attached {
    kubectl: Child,
    keyboard: File,
}

impl Attached {
    /// Attaches to the container `agent` of `pod`, from a terminal, which kubectl needs to attach to a terminal.
    pub fn to(room: &TestNamespace, pod: &str) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).expect("a pseudo terminal");
        grantpt(&keyboard).and_then(|()| unlockpt(&keyboard)).expect("its other side");
        let name = ptsname(&keyboard, Vec::new()).expect("its name");
        let terminal = open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("its other side");
        let mut command = Command::new("kubectl");
        command.args(["-n", &room.namespace, "attach", pod, "-c", "agent", "-it", "-q"]);
        let kubectl = command.stdin(terminal).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl is on PATH");
        Self { kubectl, keyboard: keyboard.into() }
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\n").as_bytes()).expect("the terminal takes it");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.kubectl.kill(); // it may have ended already
        let _ = self.kubectl.wait();
    }
}
