//! The operator as a process: started, killed, stopped, continued.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::{Pid, Signal, kill_process};

use super::{Room, eventually};

pub struct Operator {
    child: Child,
    name: String,
    port: u16,
}

impl Operator {
    /// Starts the controller for `namespace` under the name `name`, with another kubeconfig if one is given. Its log goes
    /// to `target/e2e-logs`.
    pub fn start(namespace: &str, name: &str, kubeconfig: Option<&PathBuf>) -> Self {
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e-logs");
        std::fs::create_dir_all(&logs).expect("a folder for logs");
        let log = File::create(logs.join(format!("{namespace}-{name}.log"))).expect("a log file");
        // Free now; nobody else in this network namespace takes ports at random.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
        command.args(["controller", "--namespace", namespace, "--lease-namespace", namespace, "--identity", name]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        if let Some(kubeconfig) = kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the operator starts");
        Self { child, name: name.to_owned(), port }
    }

    /// Waits until it holds the lease of the room.
    pub async fn leads(&self, room: &Room) {
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

impl Drop for Operator {
    fn drop(&mut self) {
        // A stopped process takes a KILL too. That it ended before is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
