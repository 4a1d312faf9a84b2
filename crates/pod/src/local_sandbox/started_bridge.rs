//! A bridge that the launcher starts, if none answers, and that ends with the launcher.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use super::bridge::BridgeUrl;

/// The program of the bridge.
pub const PROGRAM: &str = "spillway";
/// The folder of the audit log, in the home folder. Sandboxes hide it.
const STATE_FOLDER: &str = ".config/spillway";
const AUDIT_FILE: &str = "bridge-audit.log";
/// What the bridge said, in the launcher's private folder.
const LOG_FILE: &str = "bridge.log";
/// Time limit until the bridge answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of its end. It ends its programs first.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The audit log of bridges that launchers start. Its folder is made: only a folder that exists is hidden.
pub fn audit_file(home: &Path) -> io::Result<PathBuf> {
    let folder = home.join(STATE_FOLDER);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder.join(AUDIT_FILE))
}

/// A running bridge of ours. It ends when this value is dropped, and [`StartedBridge::end`] waits for that.
#[derive(Debug)]
pub struct StartedBridge {
    child: Child,
    /// The bridge ends when its input ends.
    input: Option<ChildStdin>,
}

impl StartedBridge {
    /// Starts a bridge and waits until it answers. `program`: the file of [`PROGRAM`]. `folder`: the launcher's private folder.
    pub async fn start(program: &Path, url: &BridgeUrl, definitions: &Path, audit: &Path, folder: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the bridge cannot be started: {error}");
        let log = folder.join(LOG_FILE);
        let mut command = Command::new(program);
        command.arg("bridge").arg("--definitions").arg(definitions).arg("--audit-file").arg(audit);
        command.arg("--listen").arg(format!("127.0.0.1:{}", url.port())).arg("--end-with-input");
        // The keys of the terminal end the command, and the bridge after it.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&log).map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        let mut bridge = Self { input: child.stdin.take(), child };
        let began = Instant::now();
        while let Err(error) = url.check().await {
            let ended = bridge.child.try_wait().map_err(failed)?.is_some();
            if ended || began.elapsed() >= START_TIMEOUT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let said = said.trim().strip_prefix("error: ").unwrap_or(said.trim());
                return Err(format!("the bridge does not answer at {url}: {error}: {said}"));
            }
            sleep(CHECK_INTERVAL).await;
        }
        Ok(bridge)
    }

    /// Ends the bridge.
    pub async fn end(mut self) {
        drop(self.input.take());
        if timeout(END_TIMEOUT, self.child.wait()).await.is_err() {
            let _ = self.child.start_kill(); // it may have ended just now
        }
    }
}
