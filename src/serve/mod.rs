//! Serves HTTP within bounds, with or without TLS.
//!
//! A connection is *strange* until a request on it is accepted with a valid token. Then it is *known*. Strange
//! connections are few and short, and new ones evict them. Known connections are counted by namespace and live as long
//! as they are used. A peer without a token must not keep another peer from being served, nor take much memory.
//!
//! | file | for |
//! |---|---|
//! | [`admission`] | which connections may exist |
//! | [`lifetime`] | how long each may live |
//! | [`rate`] | how many requests an address may send without a valid token |
//! | [`connection`] | one connection, and the register of all |
//! | [`listener`] | accepting, TLS handshakes, serving |
//! | `io` | reports received bytes and ended responses to the lifetime |
//! | [`request_body`] | memory of request bodies |
//! | [`query`], [`fair_semaphore`] | reading queries; permits that are fair between namespaces |

pub mod admission;
pub mod connection;
pub mod fair_semaphore;
mod io;
pub mod lifetime;
pub mod listener;
pub mod query;
pub mod rate;
pub mod request_body;

#[cfg(test)]
mod listener_tests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;

use self::admission::Capacity;
use self::lifetime::Times;

pub use self::connection::Connection;
pub use self::listener::{serve_plain, serve_tls};

/// How long running calls have to end when the server stops, if all calls are short.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of the peer: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The limits of one connection, and of all.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The listener's name: label of its metrics.
    pub listener: &'static str,
    /// Calls at once on an HTTP/2 connection.
    pub streams: u32,
    /// How many calls the peer may reset before the server has accepted them. One more ends the connection with all its
    /// calls. A low limit where a peer may be hostile.
    pub max_reset_streams: usize,
    /// Unread bytes of one body (HTTP/2).
    pub stream_window_bytes: u32,
    /// Unread bytes of all bodies of a connection (HTTP/2).
    pub connection_window_bytes: u32,
    /// How long running calls have to end when the server stops.
    pub shutdown_timeout: Duration,
    /// The limits of connections.
    pub capacity: Capacity,
    /// The time limits of a connection.
    pub times: Times,
}

const TIMES: Times = Times {
    strange: Duration::from_secs(10),
    head: Duration::from_secs(10),
    // Longer than our own clients keep a connection.
    idle: Duration::from_secs(75),
    // `strange` and this together exceed the time that the API server may take to review a token.
    close: Duration::from_secs(2),
};

impl Bounds {
    /// Bounds of a gateway. Its peers are pods, and any of them may be hostile.
    pub const AGENTS: Self = Self {
        listener: "agents",
        streams: 64,
        max_reset_streams: 20,
        stream_window_bytes: 32 * 1024,
        connection_window_bytes: 64 * 1024,
        shutdown_timeout: SHUTDOWN_TIMEOUT,
        // A pod keeps up to three connections, so these are enough for some 3,300 pods of one replica. A known
        // connection takes about 34 kB, a strange one up to about 70 kB. Where a network hides pods behind their node's
        // address, all pods of a node share the limits of one address.
        capacity: Capacity { strange: 1_024, strange_per_address: 64, known: 10_000, known_per_address: 1_000 },
        times: TIMES,
    };
    /// Bounds of the governor. Its peers are gateways, with one connection each for the calls of all their agents.
    pub const GATEWAYS: Self = Self {
        listener: "governor",
        streams: 10_000,
        // A gateway resets many calls at once when its clients leave.
        max_reset_streams: 10_000,
        stream_window_bytes: 1024 * 1024,
        connection_window_bytes: 1024 * 1024,
        shutdown_timeout: SHUTDOWN_TIMEOUT,
        capacity: Capacity { strange: 256, strange_per_address: 64, known: 1_024, known_per_address: 256 },
        times: TIMES,
    };
    /// Bounds of a bridge that was started by hand. Each connection may hold an answer of a few megabytes.
    pub const BRIDGE: Self = Self {
        listener: "bridge",
        // A call ends its program first.
        shutdown_timeout: Duration::from_secs(15),
        // Its clients are one namespace, which may have three quarters of the known ones.
        capacity: Capacity { strange: 64, strange_per_address: 64, known: 86, known_per_address: 64 },
        ..Self::AGENTS
    };
    /// Bounds of a bridge in the cluster. Its clients are gateways, each with up to 64 requests of the agents of its namespace, and the leader.
    pub const TOOLSET: Self =
        Self { capacity: Capacity { strange: 64, strange_per_address: 64, known: 684, known_per_address: 512 }, ..Self::BRIDGE };
    /// Bounds of health and metrics. These need no token, so all connections are strange.
    pub const HEALTH: Self = Self {
        listener: "health",
        capacity: Capacity { strange: 128, strange_per_address: 16, known: 0, known_per_address: 0 },
        ..Self::AGENTS
    };
}

/// Binds `address`. The error says what to do.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    use anyhow::Context as _;
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}: check that no other process uses the address"))
}
