//! Serving HTTP over TLS: accept, shake hands apart from each other, serve until told to stop.
//!
//! A client that connects and says nothing must not keep others from being served, and must not be kept for ever.

pub mod bodies;
pub mod query;
pub mod turns;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// How long a handshake, and the first head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may rest between two calls. Longer than our own clients keep one.
const REST: Duration = Duration::from_secs(75);
/// Connections at once: more than any fleet's pods on one replica.
const CONNECTIONS: usize = 10_000;
/// Of one address. A pod needs three; where a network hides pods behind their node's address, a node's pods share these.
const OF_ONE_ADDRESS: usize = 1_000;
/// How long running calls have when we stop, where they are short.
pub const LAST_CALLS: Duration = Duration::from_secs(5);

/// Where a request comes from: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// What a server takes of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Calls at once on an HTTP/2 connection.
    pub streams: u32,
    /// Of these, how many may be given up before they were looked at: more end the connection, and with it everybody's calls on
    /// it. Few, where a peer may be hostile.
    pub given_up: usize,
    /// How long running calls have when we stop.
    pub last_calls: Duration,
}

/// How many connections each address has.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of an address' connections, until it is dropped.
struct Place {
    addresses: Addresses,
    address: IpAddr,
    _one_of_all: OwnedSemaphorePermit,
}

impl Addresses {
    fn take(&self, address: IpAddr, one_of_all: OwnedSemaphorePermit) -> Option<Place> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        if *count >= OF_ONE_ADDRESS {
            return None;
        }
        *count += 1;
        Some(Place { addresses: self.clone(), address, _one_of_all: one_of_all })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// Serves `routes` on `listener` until `stop`; then running calls have a moment to end.
pub async fn serve_tls(
    listener: TcpListener,
    config: ServerConfig,
    bounds: Bounds,
    routes: axum::Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (room, addresses, tasks) = (Arc::new(Semaphore::new(CONNECTIONS)), Addresses::default(), TaskTracker::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a connection that went before it came: neither ends a server.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(one_of_all) = room.clone().try_acquire_owned() else { continue };
        let Some(place) = addresses.take(peer.ip(), one_of_all) else { continue };
        let (acceptor, routes, stop) = (acceptor.clone(), routes.clone(), stop.clone());
        tasks.spawn(async move {
            let _place = place;
            if let Err(error) = one(stream, acceptor, bounds, routes, stop).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
    }
    tasks.close();
    let _ = tokio::time::timeout(bounds.last_calls, tasks.wait()).await;
    Ok(())
}

type Trouble = Box<dyn std::error::Error + Send + Sync>;

async fn one(
    stream: tokio::net::TcpStream,
    acceptor: TlsAcceptor,
    bounds: Bounds,
    routes: axum::Router,
    stop: CancellationToken,
) -> Result<(), Trouble> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?.ip();
    let stream = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await??;
    let second = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
    // Who connects and says nothing is sent away; what comes between two calls later is another matter.
    let mut stream = tokio::io::BufReader::new(stream);
    tokio::time::timeout(PATIENCE, stream.fill_buf()).await??;
    let routes = routes.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request
    });
    let (stream, routes) = (TokioIo::new(stream), TowerToHyperService::new(routes));
    if second {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(bounds.streams)
            .max_pending_accept_reset_streams(bounds.given_up);
        let connection = builder.serve_connection(stream, routes);
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    } else {
        // The time for a head runs between two calls as well.
        let connection = http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(REST).serve_connection(stream, routes);
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    }
}

/// Binds `address`, with an error that says what to do.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    use anyhow::Context as _;
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}: is the address free?"))
}
