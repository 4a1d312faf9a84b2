//! The operator's release binary as processes, controller and gateway: start and signal them, read their memory and
//! counters.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::bench_namespace::{BenchNamespace, GATEWAY, within};
use crate::hosts_file;
use crate::processes::{self, Memory};
use crate::report::folder;

const PATIENCE: Duration = Duration::from_secs(60);
/// Image of the pods' programs, as `e2e/images/build.sh` names it.
const IMAGE: &str = "localhost/spillway/spillway:dev";

/// A running controller or gateway of one namespace. It ends when this value is dropped.
pub struct Operator {
    child: Child,
    name: String,
    port: u16,
    log: PathBuf,
}

/// A line of its log.
#[derive(Deserialize)]
struct Line {
    timestamp: Timestamp,
    message: String,
}

impl Operator {
    /// Starts a controller that serves `room` only. `name` is unique in the namespace.
    pub fn start(room: &BenchNamespace, name: &str) -> anyhow::Result<Self> {
        Self::controller(room, name, &["--namespace", &room.namespace])
    }

    /// The same, with more arguments.
    pub fn start_with(room: &BenchNamespace, name: &str, more: &[String]) -> anyhow::Result<Self> {
        let words: Vec<&str> = ["--namespace", &room.namespace].into_iter().chain(more.iter().map(String::as_str)).collect();
        Self::controller(room, name, &words)
    }

    /// Starts a controller that serves all namespaces: only such a one accounts for ClusterBudgets. The caller cleans
    /// up.
    pub fn everywhere(room: &BenchNamespace, name: &str) -> anyhow::Result<Self> {
        Self::controller(room, name, &[])
    }

    fn controller(room: &BenchNamespace, name: &str, serves: &[&str]) -> anyhow::Result<Self> {
        let namespace = &room.namespace;
        let governor = SocketAddr::new(room.node, free_port(room.node)?);
        let mut arguments: Vec<String> = ["controller", "--lease-namespace", namespace].map(str::to_owned).into();
        arguments.extend(serves.iter().map(|word| (*word).to_owned()));
        arguments.extend(["--agent-image".to_owned(), IMAGE.to_owned(), "--gateway-account".to_owned()]);
        arguments.extend([format!("{namespace}:{GATEWAY}"), "--gateway-address".to_owned(), room.gateway.to_string()]);
        arguments.extend(["--governor-listen".to_owned(), governor.to_string(), "--governor-address".to_owned(), governor.to_string()]);
        // The API server, which listens on the node's own address here.
        arguments.extend(["--canary".to_owned(), format!("{}:6443", room.node)]);
        Self::spawn(room, name, "--listen", &arguments, None)
    }

    /// Starts a gateway at the namespace's gateway address.
    pub fn gateway(room: &BenchNamespace, name: &str) -> anyhow::Result<Self> {
        Self::gateway_with(room, name, &[])
    }

    /// The same, with more arguments.
    pub fn gateway_with(room: &BenchNamespace, name: &str, more: &[String]) -> anyhow::Result<Self> {
        Self::spawn(room, name, "--health-listen", &Self::gateway_arguments(room, more), None)
    }

    /// The same, with names from this hosts file.
    pub fn gateway_with_hosts(room: &BenchNamespace, name: &str, more: &[String], hosts: &Path) -> anyhow::Result<Self> {
        Self::spawn(room, name, "--health-listen", &Self::gateway_arguments(room, more), Some(hosts))
    }

    fn gateway_arguments(room: &BenchNamespace, more: &[String]) -> Vec<String> {
        let mut arguments: Vec<String> = ["gateway", "--namespace", &room.namespace].map(str::to_owned).into();
        // On all addresses, because each simulated agent connects to an address of its own.
        arguments.extend(["--listen".to_owned(), format!("0.0.0.0:{}", room.gateway.port()), "--governor-token-file".to_owned()]);
        arguments.push(room.folder().join(GATEWAY).to_string_lossy().into_owned());
        arguments.extend_from_slice(more);
        arguments
    }

    /// Its log goes to `target/bench/logs`.
    fn spawn(room: &BenchNamespace, name: &str, listen: &str, arguments: &[String], hosts: Option<&Path>) -> anyhow::Result<Self> {
        let binary = std::env::var_os("SPILLWAY_BINARY").context("SPILLWAY_BINARY")?;
        let log = folder("logs")?.join(format!("{}-{name}.log", room.namespace));
        let port = free_port(Ipv4Addr::LOCALHOST.into())?;
        let mut command = hosts_file::command(binary, hosts);
        command.args(arguments).args(["--identity", name, listen, &format!("127.0.0.1:{port}")]);
        let file = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().context("SPILLWAY_BINARY does not start")?;
        Ok(Self { child, name: name.to_owned(), port, log })
    }

    /// Waits until it holds the lease of `room` and has filled its caches.
    pub async fn leads(&self, room: &BenchNamespace) -> anyhow::Result<()> {
        within(PATIENCE, &format!("{} leads", self.name), async || {
            let lease = room.api::<Lease>().get_opt("spillway-controller").await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            anyhow::ensure!(self.is_holder(&holder), "the holder is {holder:?}; its log is {}", self.log.display());
            anyhow::ensure!(fs::read_to_string(&self.log)?.contains(r#""leading""#), "its caches are being filled");
            Ok(())
        })
        .await
    }

    /// Waits until it has seen the lease of another controller.
    pub async fn stands_by(&self) -> anyhow::Result<()> {
        within(PATIENCE, &format!("{} stands by", self.name), async || {
            anyhow::ensure!(fs::read_to_string(&self.log)?.contains("standing by"), "its log does not say so");
            Ok(())
        })
        .await
    }

    /// Waits until it is Ready.
    pub async fn ready(&self) -> anyhow::Result<()> {
        within(PATIENCE, &format!("{} is ready", self.name), async || {
            let answer = self.get("/readyz").await?;
            anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "/readyz answers {answer:?}; its log is {}", self.log.display());
            Ok(())
        })
        .await
    }

    /// When this gateway first connected to a leader after `since`, by its log.
    pub async fn connected_since(&self, since: Timestamp, limit: Duration) -> anyhow::Result<Timestamp> {
        self.said_since("connected to the governor", since, limit).await
    }

    /// When this controller began to lead after `since`, by its log.
    pub async fn led_since(&self, since: Timestamp, limit: Duration) -> anyhow::Result<Timestamp> {
        self.said_since("leading", since, limit).await
    }

    async fn said_since(&self, message: &str, since: Timestamp, limit: Duration) -> anyhow::Result<Timestamp> {
        within(limit, &format!("the log of {} says {message:?}", self.name), async || {
            let log = fs::read_to_string(&self.log)?;
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
            let mut said = lines.filter(|line| line.message == message && line.timestamp >= since);
            said.next().map(|line| line.timestamp).context("it has no such line")
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

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self, limit: Duration) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let started = std::time::Instant::now();
        while self.child.try_wait()?.is_none() {
            anyhow::ensure!(started.elapsed() < limit, "{} did not end within {} s after SIGTERM", self.name, limit.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Kills it, and waits until its address is free.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        // A process that has ended has no memory.
        self.memory().is_ok()
    }

    /// Its memory now.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        processes::memory(self.child.id()).with_context(|| format!("{}; see {}", self.name, self.log.display()))
    }

    /// Resets the peak of its resident memory.
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        processes::forget_peak(self.child.id())
    }

    /// Seconds of processor time it has used so far, its own and the kernel's for it.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        processes::processor_seconds(self.child.id())
    }

    /// Values of its counter `metric`, by the values of these labels.
    pub async fn counted(&self, metric: &str, labels: &[&str]) -> anyhow::Result<BTreeMap<String, f64>> {
        let answer = self.get("/metrics").await?;
        let mut all = BTreeMap::new();
        for line in answer.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{')) {
            let (given, count) = line.split_once("} ").context("a sample")?;
            let value = |name: &&str| given.split(',').find_map(|label| label.strip_prefix(*name)?.strip_prefix("=\"")?.strip_suffix('"'));
            let key: Vec<&str> = labels.iter().filter_map(value).collect();
            *all.entry(key.join(" ")).or_insert(0.0) += count.trim().parse::<f64>()?;
        }
        Ok(all)
    }

    /// Its requests to the API server so far, by verb and resource.
    pub async fn requests(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        self.counted("spillway_api_requests_total", &["verb", "resource"]).await
    }

    /// The calls of agents that it answered so far, by path.
    pub async fn calls(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        self.counted("spillway_agent_calls_total", &["call"]).await
    }

    /// The whole answer to `GET path` at its health port.
    async fn get(&self, path: &str) -> anyhow::Result<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// A port that no other caller gets. It is below the kernel's range for outgoing connections: otherwise one of
/// thousands of agents that connect to a stopped gateway would get the gateway's port.
pub fn free_port(address: IpAddr) -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(port < 30_000, "no port is free at {address}");
        if TcpListener::bind((address, port)).is_ok() {
            return Ok(port);
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
