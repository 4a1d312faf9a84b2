//! The operator's processes, controller and gateway: start, kill, stop and continue them.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::{Pid, Signal, kill_process};

use super::{TestNamespace, eventually, hosts_file};

/// Name of the gateway's ServiceAccount in every test namespace.
pub const GATEWAY: &str = "gateway";
/// The argument for the health port of a controller. That of a gateway has another name.
const CONTROLLER_LISTEN: &str = "--listen";

/// Number of the last lines of its log that a failed test prints, and how much of each.
const LOG_LINES_SHOWN: usize = 12;
const LOG_LINE_LENGTH: usize = 400;

pub struct Operator {
    child: Child,
    name: String,
    port: u16,
    log: PathBuf,
}

impl Operator {
    /// Starts a controller for `room` under the name `name`, with another kubeconfig if one is given. Its log is in
    /// `target/tmp/e2e-logs`.
    pub fn start(room: &TestNamespace, name: &str, kubeconfig: Option<&PathBuf>) -> Self {
        Self::start_with(room, name, kubeconfig, &[])
    }

    /// Like [`start`](Self::start), with more arguments.
    pub fn start_with(room: &TestNamespace, name: &str, kubeconfig: Option<&PathBuf>, more: &[String]) -> Self {
        let only = ["--namespace".to_owned(), room.namespace.clone()];
        Self::controller(room, name, kubeconfig, &[only.as_slice(), more].concat())
    }

    /// Like [`start`](Self::start), for all namespaces. No other test may run at the same time.
    pub fn start_everywhere(room: &TestNamespace, name: &str) -> Self {
        Self::controller(room, name, None, &[])
    }

    fn controller(room: &TestNamespace, name: &str, kubeconfig: Option<&PathBuf>, more: &[String]) -> Self {
        let namespace = &room.namespace;
        let governor = SocketAddr::new(room.node, free_port(room.node));
        let mut arguments: Vec<String> = ["controller", "--lease-namespace", namespace].map(str::to_owned).into();
        arguments.extend(["--agent-image", "localhost/spillway/spillway:dev", "--gateway-account"].map(str::to_owned));
        arguments.extend([format!("{namespace}:{GATEWAY}"), "--gateway-address".into(), room.gateway.to_string()]);
        arguments.extend(["--governor-listen".into(), governor.to_string(), "--governor-address".into(), governor.to_string()]);
        arguments.extend(["--canary".to_owned(), format!("{}:6443", room.node)]);
        for (option, file) in [("--egress-file", room.egress_file()), ("--git-file", room.git_file())] {
            if file.exists() {
                arguments.extend([option.to_owned(), file.to_string_lossy().into_owned()]);
            }
        }
        arguments.extend_from_slice(more);
        Self::spawn(namespace, name, CONTROLLER_LISTEN, kubeconfig, &arguments)
    }

    /// Starts a gateway for `room`, at its address.
    pub fn gateway(room: &TestNamespace, name: &str) -> Self {
        Self::gateway_at(room, name, room.gateway, &room.journal())
    }

    /// Like [`gateway`](Self::gateway), in addition to the first one.
    pub fn gateway_at(room: &TestNamespace, name: &str, address: SocketAddr, journal: &Path) -> Self {
        let mut arguments: Vec<String> = ["gateway", "--namespace", &room.namespace].map(str::to_owned).into();
        arguments.extend(["--listen".into(), address.to_string()]);
        arguments.extend(["--governor-token-file".into(), room.token_file().to_string_lossy().into_owned()]);
        std::fs::create_dir_all(journal).expect("a folder for the journal");
        arguments.extend(["--journal".into(), journal.to_string_lossy().into_owned()]);
        arguments.push("--external-agents".into());
        // The headers of the scripted provider, for its mode and its caller.
        arguments.extend(["--allowed-header", "x-script", "--allowed-header", "x-caller"].map(str::to_owned));
        if room.origins_file().exists() {
            arguments.extend(["--model-origins-file".into(), room.origins_file().to_string_lossy().into_owned()]);
        }
        let files = [("--egress-file", room.egress_file()), ("--git-file", room.git_file()), ("--artifacts-file", room.artifacts_file())];
        for (option, file) in files {
            if file.exists() {
                arguments.extend([option.to_owned(), file.to_string_lossy().into_owned()]);
            }
        }
        let hosts = Some(room.hosts_file()).filter(|file| file.exists());
        Self::spawn_knowing(&room.namespace, name, "--health-listen", None, &arguments, hosts.as_deref())
    }

    fn spawn(namespace: &str, name: &str, listen: &str, kubeconfig: Option<&PathBuf>, arguments: &[String]) -> Self {
        Self::spawn_knowing(namespace, name, listen, kubeconfig, arguments, None)
    }

    /// Starts a process that resolves names by this hosts file.
    fn spawn_knowing(
        namespace: &str,
        name: &str,
        listen: &str,
        kubeconfig: Option<&PathBuf>,
        arguments: &[String],
        hosts: Option<&Path>,
    ) -> Self {
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e-logs");
        std::fs::create_dir_all(&logs).expect("a folder for logs");
        let log = logs.join(format!("{namespace}-{name}.log"));
        let written = File::create(&log).expect("a log file");
        let port = free_port(Ipv4Addr::LOCALHOST.into());
        // Another binary of the same sources, which `make e2e` sets.
        let binary = std::env::var_os("SPILLWAY_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_spillway").into());
        let mut command = hosts_file::command(binary, hosts);
        command.args(arguments).args(["--identity", name, listen, &format!("127.0.0.1:{port}")]);
        // Accounts with the rights of the chart, which `make e2e` sets. Without them operators have all rights of the test.
        let account = if listen == CONTROLLER_LISTEN { "SPILLWAY_CONTROLLER_KUBECONFIG" } else { "SPILLWAY_GATEWAY_KUBECONFIG" };
        if let Some(kubeconfig) = kubeconfig.cloned().or_else(|| std::env::var_os(account).map(PathBuf::from)) {
            command.env("KUBECONFIG", kubeconfig);
        }
        // Of the cluster's S3 server, for gateways that keep artifacts there.
        command.env("AWS_ACCESS_KEY_ID", "spillway-test").env("AWS_SECRET_ACCESS_KEY", "spillway-test-secret");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(written).spawn().expect("the operator starts");
        Self { child, name: name.to_owned(), port, log }
    }

    /// Waits until it holds the lease of the namespace.
    pub async fn leads(&self, room: &TestNamespace) {
        eventually(&format!("{} leads", self.name), async || {
            let lease = room.api::<Lease>().get_opt("spillway-controller").await.map_err(|error| error.to_string())?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            if self.is_holder(&holder) { Ok(()) } else { Err(format!("the holder is {holder:?}")) }
        })
        .await;
    }

    /// Whether a holder identity, or the name in a User-Agent, is this process's.
    pub fn is_holder(&self, identity: &str) -> bool {
        identity.rsplit_once('_').is_some_and(|(name, _)| name == self.name)
    }

    /// `GET path` of its health port: status and body.
    pub async fn get(&self, path: &str) -> Result<(u16, String), String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let io = |error: std::io::Error| error.to_string();
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.map_err(io)?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").as_bytes()).await.map_err(io)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(io)?;
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("no status")?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
        Ok((status, body.to_owned()))
    }

    /// Its PID.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// What a person who reads only the output of a failed test needs: whether the process ended, and the end of its log.
    fn describe(&mut self) -> String {
        let state = match self.child.try_wait() {
            Ok(None) => "runs".to_owned(),
            Ok(Some(status)) => format!("has ended: {status}"),
            Err(error) => format!("cannot be looked at: {error}"),
        };
        let log = std::fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<String> = log.lines().map(|line| line.chars().take(LOG_LINE_LENGTH).collect()).collect();
        let shown = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        format!("{} {state}; the end of {}:\n{shown}", self.name, self.log.display())
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its peak memory, in kB.
    pub fn memory_peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("our own child takes a signal");
    }

    /// Waits until the process ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let name = self.name.clone();
        let child = std::sync::Mutex::new(&mut self.child);
        eventually(&format!("{name} ends"), async || {
            let status = child.lock().expect("one waiter").try_wait().map_err(|error| error.to_string())?;
            status.ok_or_else(|| "it runs".to_owned())
        })
        .await
    }
}

/// First port of this test process. Other test processes run in parallel, and a port that is free now may soon be
/// theirs. Each process keeps a marker port open to reserve its range.
fn first_port() -> u16 {
    const PLACES: u16 = 4;
    static PLACE: OnceLock<(u16, TcpListener)> = OnceLock::new();
    let (place, _) = PLACE.get_or_init(|| {
        let taken = (0..PLACES).find_map(|place| Some((place, TcpListener::bind(("127.0.0.1", 11_990 + place)).ok()?)));
        taken.expect("at most four processes of tests run beside each other")
    });
    12_000 + place * PORTS
}

/// Number of ports of one test process.
const PORTS: u16 = 4_500;

/// A port that stays reserved while its process restarts: below the kernel's range for outgoing connections and below
/// that of Services, and never given twice.
pub fn free_port(address: IpAddr) -> u16 {
    free_listener(address).local_addr().expect("its address").port()
}

/// A listener on such a port, for a server in this process. A port that was only tried can still be taken: a child that is being
/// started has a copy of the listener for a moment.
pub fn free_listener(address: IpAddr) -> TcpListener {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(next < PORTS, "no port is left");
        if let Ok(listener) = TcpListener::bind((address, first_port() + next)) {
            return listener;
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.describe());
        }
        // SIGKILL also ends a stopped process. The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
