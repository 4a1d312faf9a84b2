//! A loopback port of a simulated agent's sidecar: the sidecar's own code, on a free port of this machine, with the token and an address
//! of that agent's pod.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use spillway_pod::link::forwarded_port::{ForwardedPort, MAX_CONNECTIONS};
use spillway_pod::link::gateway::Gateway;
use spillway_wire::CA_FILE;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::bench_namespace::BenchNamespace;
use crate::simulated::address;

/// A running port. It ends when this value is dropped.
pub struct SidecarPort {
    /// Where the program of the agent reaches it.
    pub address: SocketAddr,
    _task: JoinSet<()>,
}

impl SidecarPort {
    /// The git port of the agent in this pod, which is registered.
    pub async fn git(room: &BenchNamespace, pod: &str) -> anyhow::Result<Self> {
        let commit = watch::channel(None).1;
        Self::serve(ForwardedPort::git(gateway(room, pod), watch::channel(None).1, mpsc::channel(1).0, commit)).await
    }

    /// The port for tools of the agent in this pod, which is registered.
    pub async fn tools(room: &BenchNamespace, pod: &str) -> anyhow::Result<Self> {
        Self::serve(ForwardedPort::tools(gateway(room, pod), watch::channel(None).1, mpsc::channel(1).0)).await
    }

    async fn serve(port: ForwardedPort) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a loopback port")?;
        let address = listener.local_addr()?;
        let mut task = JoinSet::new();
        task.spawn(accept(listener, port));
        Ok(Self { address, _task: task })
    }
}

fn gateway(room: &BenchNamespace, pod: &str) -> Arc<Gateway> {
    let (ca, token) = (room.folder().join(CA_FILE), room.folder().join(format!("{pod}.token")));
    Arc::new(Gateway::new(address(room.gateway.port()).to_string(), ca, token))
}

/// Serves connections, as many at once as in a pod.
async fn accept(listener: TcpListener, port: ForwardedPort) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = permits.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let port = port.clone();
        connections.spawn(async move {
            port.serve(stream).await;
            drop(permit);
        });
    }
}
