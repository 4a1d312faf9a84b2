//! The operator's release binary as a process: started, signalled, and weighed through `/proc`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::room::{Room, within};

/// Clock ticks a second in `/proc/PID/stat`: a constant of Linux' interface, whatever the kernel ticks at.
const TICKS: f64 = 100.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// A running controller of one room. Ends with this value.
pub struct Operator {
    child: Child,
    name: String,
    port: u16,
    log: PathBuf,
}

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// What is resident.
    pub resident: f64,
    /// The same with shared pages divided among those that share them, where the kernel tells.
    pub proportional: Option<f64>,
    /// The most that ever was resident.
    pub peak: f64,
}

impl Operator {
    /// Starts one that serves `room` only, under a name that no other of the room has. Its log goes to `target/bench/logs`.
    pub fn start(room: &Room, name: &str) -> anyhow::Result<Self> {
        let binary = std::env::var_os("SPILLWAY_BINARY").context("SPILLWAY_BINARY")?;
        let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench/logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{}-{name}.log", room.namespace));
        // Free now; nobody else in this network namespace takes ports at random.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(binary);
        command.args(["controller", "--namespace", &room.namespace, "--lease-namespace", &room.namespace, "--identity", name]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        let file = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().context("SPILLWAY_BINARY does not start")?;
        Ok(Self { child, name: name.to_owned(), port, log })
    }

    /// Waits until it holds the lease of `room` and has filled its caches.
    pub async fn leads(&self, room: &Room) -> anyhow::Result<()> {
        within(PATIENCE, &format!("{} leads", self.name), async || {
            let lease = room.api::<Lease>().get_opt("spillway-controller").await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            anyhow::ensure!(self.is_holder(&holder), "the holder is {holder:?}");
            anyhow::ensure!(fs::read_to_string(&self.log)?.contains(r#""leading""#), "its caches are being filled");
            Ok(())
        })
        .await
    }

    /// Waits until it has seen another one's lease.
    pub async fn stands_by(&self) -> anyhow::Result<()> {
        within(PATIENCE, &format!("{} stands by", self.name), async || {
            anyhow::ensure!(fs::read_to_string(&self.log)?.contains("standing by"), "its log does not say so");
            Ok(())
        })
        .await
    }

    /// Whether a holder identity, or the name in a User-Agent, is this process's.
    pub fn is_holder(&self, identity: &str) -> bool {
        identity.rsplit_once('_').is_some_and(|(name, _)| name == self.name)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// What it weighs now.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        let mib = |file: &str, name: &str| {
            let text = fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
        };
        let status =
            |name: &str| mib("status", name).ok_or_else(|| anyhow!("no {name}: {} has ended; see {}", self.name, self.log.display()));
        Ok(Memory { resident: status("VmRSS")?, proportional: mib("smaps_rollup", "Pss"), peak: status("VmHWM")? })
    }

    /// Seconds of processor time it has used so far, its own and the kernel's for it.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The second field is the name, in parentheses; user and system time are fields 14 and 15.
        let fields: Vec<&str> = text.rsplit_once(')').context("a name in stat")?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).context("a time in stat");
        Ok((ticks(11)? + ticks(12)?) / TICKS)
    }

    /// Requests to the API server so far, by verb and resource, from its own metrics.
    pub async fn requests(&self) -> anyhow::Result<std::collections::BTreeMap<String, f64>> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let mut all = std::collections::BTreeMap::new();
        for line in answer.lines().filter_map(|line| line.strip_prefix("spillway_api_requests_total{")) {
            let (labels, count) = line.split_once("} ").context("a sample")?;
            let label =
                |name: &str| labels.split(',').find_map(|label| label.strip_prefix(name)).unwrap_or_default().replace(['=', '"'], "");
            *all.entry(format!("{} {}", label("verb"), label("resource"))).or_insert(0.0) += count.trim().parse::<f64>()?;
        }
        Ok(all)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // That it ended before is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
