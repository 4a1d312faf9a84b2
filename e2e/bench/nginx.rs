//! nginx as a plain proxy: the least cost of forwarding a call, with TLS on both legs. It does the forwarding of the
//! gateway (passes an answer on as it comes, keeps connections to the server) and nothing else: it identifies no caller,
//! and neither holds nor counts tokens.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpStream;

use crate::bench_namespace::within;
use crate::operator::free_port;
use crate::processes;

const PATIENCE: Duration = Duration::from_secs(20);

/// The server behind the proxy. The proxy has the same certificate.
pub struct Upstream<'a> {
    /// Its address.
    pub address: SocketAddr,
    /// The name in its certificate.
    pub name: &'a str,
    /// Its certificate, which is its own authority.
    pub certificate: &'a str,
    /// The key of its certificate.
    pub key: &'a str,
}

/// How bodies are forwarded, as the gateway forwards them.
#[derive(Clone, Copy, Debug)]
pub enum Forwarding {
    /// Calls of models: a request's body is read whole, and then sent.
    Calls,
    /// Transfers of any length: both bodies are passed on as they come, through buffers as large as the gateway's.
    Transfers,
}

impl Forwarding {
    fn settings(self) -> &'static str {
        match self {
            Self::Calls => "client_max_body_size 32m;\n        client_body_buffer_size 256k;",
            Self::Transfers => {
                "client_max_body_size 0;\n        client_body_buffer_size 64k;\n        proxy_request_buffering off;\n        \
                 proxy_buffer_size 64k;\n        proxy_buffers 4 64k;"
            }
        }
    }
}

/// A running nginx. It ends when this value is dropped.
pub struct Nginx {
    child: Child,
    /// Its port.
    pub port: u16,
    /// Its version.
    pub version: String,
}

impl Nginx {
    /// Starts the nginx that `SPILLWAY_NGINX` names, as a proxy of this server. Its files go to `folder`.
    pub async fn start(folder: &Path, upstream: &Upstream<'_>, forwarding: Forwarding) -> anyhow::Result<Self> {
        let binary = std::env::var_os("SPILLWAY_NGINX").context("SPILLWAY_NGINX is not set. Run this with e2e/bench/run.sh")?;
        let said = Command::new(&binary).arg("-v").output().with_context(|| format!("{} does not start", binary.display()))?;
        let version = String::from_utf8_lossy(&said.stderr).trim().trim_start_matches("nginx version: ").to_owned();
        let port = free_port(upstream.address.ip())?;
        fs::write(folder.join("nginx.crt"), upstream.certificate)?;
        fs::write(folder.join("nginx.key"), upstream.key)?;
        let file = folder.join("nginx.conf");
        fs::write(&file, settings(folder, port, upstream, forwarding))?;
        let mut command = Command::new(binary);
        command.arg("-p").arg(folder).arg("-c").arg(&file).arg("-e").arg(folder.join("nginx.log"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("nginx does not start")?;
        let nginx = Self { child, port, version };
        within(PATIENCE, "nginx serves", async || {
            TcpStream::connect((upstream.address.ip(), port))
                .await
                .with_context(|| format!("see {}", folder.join("nginx.log").display()))?;
            Ok(())
        })
        .await?;
        Ok(nginx)
    }

    /// Its master and its workers.
    fn processes(&self) -> anyhow::Result<Vec<u32>> {
        let master = self.child.id();
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).context("nginx has ended")?;
        let workers = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        Ok(std::iter::once(master).chain(workers).collect())
    }

    /// Processor time of all of them so far, in seconds.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        self.processes()?.into_iter().map(processes::processor_seconds).sum()
    }

    /// Resident memory of all of them, in MiB.
    pub fn resident(&self) -> anyhow::Result<f64> {
        self.processes()?.into_iter().map(|pid| Ok(processes::memory(pid)?.resident)).sum()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM ends its workers too. SIGKILL would leave them running.
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or_default()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

fn settings(folder: &Path, port: u16, upstream: &Upstream<'_>, forwarding: Forwarding) -> String {
    let Upstream { address, name, .. } = upstream;
    let (folder, forwarding) = (folder.display(), forwarding.settings());
    let scratch: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("    {kind}_temp_path {folder}/nginx-{kind};\n"))
        .collect();
    format!(
        r"daemon off;
user root;
worker_processes auto;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
{scratch}    upstream origin {{ server {address}; keepalive 32; }}
    server {{
        listen 0.0.0.0:{port} ssl;
        ssl_certificate {folder}/nginx.crt;
        ssl_certificate_key {folder}/nginx.key;
        ssl_protocols TLSv1.3;
        ssl_session_tickets off;
        keepalive_requests 1000000;
        {forwarding}
        location / {{
            proxy_pass https://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_set_header Host {name};
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate {folder}/nginx.crt;
            proxy_ssl_name {name};
            proxy_ssl_server_name on;
            proxy_buffering off;
            proxy_read_timeout 300s;
        }}
    }}
}}
"
    )
}
