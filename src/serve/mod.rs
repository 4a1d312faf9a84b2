//! Serving HTTP within bounds, over TLS or without.
//!
//! A connection is *strange* until a request on it is let in by a token that was vouched for; then it is *known*. Strange
//! connections are few, short and give way to new ones; known ones are counted by namespace and live as long as they are used.
//! What must not be: that a peer without a token keeps another one from being served, or takes much memory.
//!
//! | file | for |
//! |---|---|
//! | [`admission`] | which connections may exist |
//! | [`lifetime`] | how long each may live |
//! | [`rate`] | how many requests an address may send before a token is vouched for |
//! | [`connection`] | one connection, and the register of all |
//! | [`listener`] | accepting, shaking hands, serving |
//! | `io` | what tells a lifetime of bytes and answers |
//! | [`request_body`] | memory of the bodies of calls |
//! | [`query`], [`fair_semaphore`] | reading queries; places taken in turns |

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

/// How long running calls have when we stop, where they are short.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a request comes from: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// What a server takes of one connection, and of all.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The listener's name: label of its metrics.
    pub listener: &'static str,
    /// Calls at once on an HTTP/2 connection.
    pub streams: u32,
    /// Of these, how many may be given up before they were looked at: more end the connection, and with it everybody's calls on
    /// it. Few, where a peer may be hostile.
    pub given_up: usize,
    /// Bytes of one body that may come before they are read (HTTP/2).
    pub stream_window_bytes: u32,
    /// Bytes of all bodies of a connection that may come before they are read (HTTP/2).
    pub connection_window_bytes: u32,
    /// How long running calls have when we stop.
    pub last_calls: Duration,
    /// How many connections there may be.
    pub capacity: Capacity,
    /// How long what may take.
    pub times: Times,
}

const TIMES: Times = Times {
    strange: Duration::from_secs(10),
    head: Duration::from_secs(10),
    // Longer than our own clients keep a connection.
    rest: Duration::from_secs(75),
    // With `strange` it is longer than the API server may take to review a token.
    close: Duration::from_secs(2),
};

impl Bounds {
    /// Of a gateway: its peers are pods, and any of them may be hostile.
    pub const AGENTS: Self = Self {
        listener: "agents",
        streams: 64,
        given_up: 20,
        stream_window_bytes: 32 * 1024,
        connection_window_bytes: 64 * 1024,
        last_calls: SHUTDOWN_TIMEOUT,
        // A pod keeps up to three connections, so the known ones are for some 3,300 pods of one replica, at about 34 kB each.
        // A strange one costs up to about 70 kB. Where a network hides pods behind their node's address, a node's pods share
        // what one address has.
        capacity: Capacity { strange: 1_024, strange_per_address: 64, known: 10_000, known_per_address: 1_000 },
        times: TIMES,
    };
    /// Of the governor: its peers are gateways, one connection each, with the calls of all their agents.
    pub const GATEWAYS: Self = Self {
        listener: "governor",
        streams: 10_000,
        // A gateway gives up many at once when its clients go.
        given_up: 10_000,
        stream_window_bytes: 1024 * 1024,
        connection_window_bytes: 1024 * 1024,
        last_calls: SHUTDOWN_TIMEOUT,
        capacity: Capacity { strange: 256, strange_per_address: 64, known: 1_024, known_per_address: 256 },
        times: TIMES,
    };
    /// Of health and metrics: no token is shown there, so all connections are strange.
    pub const HEALTH: Self = Self {
        listener: "health",
        capacity: Capacity { strange: 128, strange_per_address: 16, known: 0, known_per_address: 0 },
        ..Self::AGENTS
    };
}

/// Binds `address`, with an error that says what to do.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    use anyhow::Context as _;
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}: is the address free?"))
}
