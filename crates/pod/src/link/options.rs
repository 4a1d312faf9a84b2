//! The options of the sidecar.

use std::path::PathBuf;
use std::time::Duration;

use spillway_wire::agent::Directive;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The paths and addresses that the sidecar uses.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gateway, as `HOST:PORT`.
    pub gateway: String,
    /// The certificates to trust.
    pub ca: PathBuf,
    /// The pod's token.
    pub token: PathBuf,
    /// The journal's folder.
    pub journal: PathBuf,
    /// The unix socket.
    pub socket: PathBuf,
    /// The first of the loopback ports.
    pub first_port: u16,
    /// Between two tests of the canary while the isolation is in force.
    pub look_each: Duration,
    /// How long the breaker of commands stays open; `None`: as its settings say.
    pub commands_open: Option<Duration>,
    /// The claim and the path of the folder whose volume is mounted. None: there is none.
    pub folder: Option<String>,
}

/// Further options outside the cluster.
#[derive(Debug)]
pub struct ExternalOptions {
    /// The agent's directive, for the process that ends its program.
    pub wanted: watch::Sender<Directive>,
    /// The bound port for models.
    pub models: TcpListener,
    /// The required first part of the path of model calls.
    pub secret: String,
}
