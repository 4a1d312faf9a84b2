//! Git through the gateway: large clones and pushes compared with a plain proxy, many clones at once, and the clones of a
//! repository with many files.
//!
//! These parts are real: the git server (`git http-backend` over TLS), git's own client, the gateway, the controller, the
//! API server, the pods' identity (tokens that it bound to pods of registered agents), and the code of the sidecar's git
//! port. The pods are missing: clients and git ports run on the node.

mod concurrent_clones;
mod many_files;
mod repository;
mod server;
mod transfers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use serde_json::json;

use crate::bench_namespace::{BenchNamespace, GATEWAY, Nodes, within};
use crate::git_http::{BASIC, HOST, TOKEN};
use crate::nginx::{Forwarding, Nginx, Upstream};
use crate::operator::Operator;
use crate::report::{Report, folder};
use crate::sidecar_port::SidecarPort;
use crate::simulated::Fleet;
use crate::size::Size;
use repository::{Contents, MIB, git, run as run_command};
use server::GitServer;

/// Time limit for steps that take seconds, or a few minutes with hundreds of agents.
const SETUP_TIMEOUT: Duration = Duration::from_secs(300);
/// The Secret with the team's credential.
const SECRET: &str = "robot";
/// The refs that agents may push.
const PUSH_PATTERN: &str = "bench/*";

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    /// To the server itself.
    Direct,
    /// Through nginx.
    Nginx,
    /// Through the sidecar's git port and the gateway.
    Gateway,
}

impl Route {
    const ALL: [Self; 3] = [Self::Direct, Self::Nginx, Self::Gateway];

    fn label(self) -> &'static str {
        match self {
            Self::Direct => "straight to the server",
            Self::Nginx => "nginx",
            Self::Gateway => "gateway",
        }
    }
}

/// The size of the measurements.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Of the large clone, and of the push.
    large: Contents,
    /// Of each of the clones at once.
    small: Contents,
    clones: usize,
    many_files: Contents,
    turns: usize,
}

impl Scale {
    fn of(size: Size) -> Self {
        let (large, clones, files) = if size.small() { (2, size.agents.min(20), 500) } else { (50, 200, 10_000) };
        Self {
            large: Contents { files: 10, file_bytes: large * MIB },
            small: Contents { files: 16, file_bytes: MIB / 16 },
            clones,
            many_files: Contents { files, file_bytes: 2048 },
            turns: size.runs(3),
        }
    }
}

/// A URL for git, and the settings that it needs.
struct Remote {
    url: String,
    settings: Vec<String>,
}

/// A folder of repositories. It is removed when this value is dropped.
struct ScratchFolder(PathBuf);

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // it is removed with `target`
    }
}

/// A git server, a gateway and a controller that know it, and nginx before the same server.
struct GitBench {
    room: BenchNamespace,
    gateway: Operator,
    controller: Operator,
    server: GitServer,
    nginx: Nginx,
    fleet: Fleet,
    /// Number of agents of all pools.
    agents: usize,
    scale: Scale,
    scratch: ScratchFolder,
}

/// Measures git, and adds its reports one by one.
pub async fn run(size: Size, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let mut bench = GitBench::open(Scale::of(size)).await?;
    reports.push(bench.measure_transfers().await.context("large transfers")?);
    bench.ensure_running()?;
    reports.push(bench.measure_many_files().await.context("many files")?);
    bench.ensure_running()?;
    // Last: it has the most agents, whose reports take processor time.
    reports.push(bench.measure_concurrent_clones().await.context("clones at once")?);
    bench.ensure_running()
}

impl GitBench {
    async fn open(scale: Scale) -> anyhow::Result<Self> {
        let room = BenchNamespace::open("git").await?;
        let scratch = ScratchFolder(folder("git")?);
        let server = GitServer::start(room.node, scratch.0.join("served")).await?;
        let (rules, hosts) = (room.folder().join("git.json"), room.folder().join("hosts"));
        let origins = json!([{"origin": server.origin(), "allowPrivate": true, "caBundle": server.certificate}]);
        std::fs::write(&rules, json!({"origins": origins}).to_string())?;
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{} {HOST}\n", room.node))?;
        std::fs::write(room.folder().join("git.crt"), &server.certificate)?;
        let upstream = Upstream { address: server.address, name: HOST, certificate: &server.certificate, key: &server.key };
        let nginx = Nginx::start(room.folder(), &upstream, Forwarding::Transfers).await?;
        let options = ["--git-file".to_owned(), rules.to_string_lossy().into_owned()];
        let controller = Operator::start_with(&room, "one", &options)?;
        let gateway = Operator::gateway_with_hosts(&room, GATEWAY, &options, &hosts)?;
        controller.leads(&room).await?;
        gateway.ready().await?;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": SECRET}, "type": "spillway.dev/git-credential",
            "stringData": {"origin": server.origin(), "username": "robot", "token": TOKEN},
        }))?;
        room.api::<Secret>().create(&PostParams::default(), &secret).await?;
        let fleet = Fleet::start(&room);
        Ok(Self { room, gateway, controller, server, nginx, fleet, agents: 0, scale, scratch })
    }

    /// A folder of the clients.
    fn work_folder(&self, name: &str) -> PathBuf {
        self.scratch.0.join("work").join(name)
    }

    /// Whether both still run: on a machine that is too busy a controller loses its lease, and ends.
    fn ensure_running(&self) -> anyhow::Result<()> {
        for (name, operator) in [("controller", &self.controller), ("gateway", &self.gateway)] {
            anyhow::ensure!(operator.runs(), "the {name} has ended; see target/bench/logs");
        }
        Ok(())
    }

    /// A pool of so many agents that works on this repository; their git ports.
    async fn start_agents(&mut self, pool: &str, repository: &str, agents: usize) -> anyhow::Result<Vec<SidecarPort>> {
        let workspace = json!({"git": {"remote": self.server.url(repository), "credentialsRef": {"name": SECRET}, "push": PUSH_PATTERN}});
        let spec = json!({"type": "free", "scaling": {"min": agents, "max": 10000}, "workspace": workspace});
        self.room.apply(pool, Nodes::Fake, &["/bin/demo-agent"], spec).await?;
        self.agents += agents;
        self.room.settled(pool, agents, SETUP_TIMEOUT).await?;
        self.fleet.registered(self.agents, SETUP_TIMEOUT).await?;
        let prefix = format!("{pool}-");
        let mut sidecars = Vec::new();
        for pod in self.fleet.names().iter().filter(|name| name.starts_with(&prefix)) {
            sidecars.push(SidecarPort::git(&self.room, pod).await?);
        }
        anyhow::ensure!(sidecars.len() == agents, "{} of {agents} agents of {pool} are registered", sidecars.len());
        let first = sidecars.first().context("an agent")?;
        within(SETUP_TIMEOUT, "the gateway answers git", async || {
            let mut command = git(&[]);
            command.args(["ls-remote", &self.server.url_at(first, repository)]);
            run_command(command).await
        })
        .await?;
        Ok(sidecars)
    }

    /// The URL of a repository on a route.
    fn remote(&self, route: Route, sidecar: &SidecarPort, repository: &str) -> Remote {
        let port = match route {
            Route::Direct => self.server.address.port(),
            Route::Nginx => self.nginx.port,
            Route::Gateway => return Remote { url: self.server.url_at(sidecar, repository), settings: Vec::new() },
        };
        let settings = vec![
            format!("http.sslCAInfo={}", self.room.folder().join("git.crt").display()),
            format!("http.extraHeader=Authorization: Basic {BASIC}"),
            "http.version=HTTP/1.1".to_owned(),
        ];
        Remote { url: format!("https://{}:{port}/{repository}.git", self.room.node), settings }
    }

    /// Processor time of the proxy of a route so far, in seconds.
    fn proxy_seconds(&self, route: Route) -> anyhow::Result<f64> {
        match route {
            Route::Direct => Ok(0.0),
            Route::Nginx => self.nginx.processor_seconds(),
            Route::Gateway => self.gateway.processor_seconds(),
        }
    }

    /// The method that all parts share.
    fn method(&self) -> String {
        format!(
            "the server is git http-backend over TLS with a password, in the measuring program; the client is git ({}). Through the gateway \
             git speaks to the code of a sidecar's git port, in the measuring program too, with the token of a pod on a KWOK node, and the \
             gateway adds the password. Straight to the server and through nginx git speaks TLS itself and sends the password. All \
             processes share the machine",
            git_version(),
        )
    }
}

/// A clone.
fn clone_command(remote: &Remote, options: &[&str], into: &Path) -> std::process::Command {
    let mut command = git(&remote.settings);
    command.args(["clone", "--quiet"]).args(options).arg(&remote.url).arg(into);
    command
}

fn git_version() -> String {
    let output = git(&[]).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
