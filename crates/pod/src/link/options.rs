//! What the sidecar is started with.

use std::path::PathBuf;
use std::time::Duration;

use spillway_wire::agent::Directive;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Where everything is.
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
    /// Between two looks at walls that stand.
    pub look_each: Duration,
    /// How long the breaker of commands stays open; none: as long as its guard says.
    pub commands_open: Option<Duration>,
}

/// What is different outside the cluster.
#[derive(Debug)]
pub struct ExternalOptions {
    /// What is wanted of the agent, for who ends its processes: nobody else does.
    pub wanted: watch::Sender<Directive>,
    /// Where models are served.
    pub models: TcpListener,
    /// The first part of the path of calls of models.
    pub secret: String,
}
