//! The git port of a simulated agent's sidecar: the sidecar's own code, on a loopback port of this machine, with the token
//! and an address of that agent's pod.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context as _;
use spillway_pod::link::forwarded_port::{ForwardedPort, MAX_CONNECTIONS};
use spillway_pod::link::gateway::Gateway;
use spillway_wire::CA_FILE;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::bench_namespace::BenchNamespace;
use crate::git_http::HOST;
use crate::simulated::address;

/// A running git port. It ends when this value is dropped.
pub struct GitSidecar {
    port: u16,
    _task: JoinSet<()>,
}

impl GitSidecar {
    /// The git port of the agent in this pod, which is registered.
    pub async fn start(room: &BenchNamespace, pod: &str) -> anyhow::Result<Self> {
        let (ca, token) = (room.folder().join(CA_FILE), room.folder().join(format!("{pod}.token")));
        let gateway = Arc::new(Gateway::new(address(room.gateway.port()).to_string(), ca, token));
        let git = ForwardedPort::git(gateway, watch::channel(None).1, watch::channel(None).1);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a loopback port")?;
        let port = listener.local_addr()?.port();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, git));
        Ok(Self { port, _task: task })
    }

    /// The URL of a repository of the server at `server_port`, for the program of the agent.
    pub fn url(&self, server_port: u16, repository: &str) -> String {
        format!("http://127.0.0.1:{}/git/{HOST}:{server_port}/{repository}.git", self.port)
    }
}

/// Serves connections, as many at once as in a pod.
async fn accept(listener: TcpListener, git: ForwardedPort) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = permits.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let git = git.clone();
        connections.spawn(async move {
            git.serve(stream).await;
            drop(permit);
        });
    }
}
