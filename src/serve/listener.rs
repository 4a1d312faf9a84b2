//! Accepts connections, does each TLS handshake in its own task, and serves until it is asked to stop.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use spillway_pod::keep_alive::keep_alive;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::connection::{Connection, ConnectionSlot, Register};
use super::io::{AnswerBody, WatchedStream};
use super::lifetime::Step;
use super::{Bounds, Peer};
use crate::telemetry::Metrics;

/// Bytes of a request's head, and of trailers (HTTP/1). A token has about 2 kB.
const HEAD_BYTES: usize = 32 * 1024;
/// Fields in a request's head (HTTP/1).
const HEAD_FIELDS: usize = 64;
/// Bytes of a request's fields, and 32 for each of them (HTTP/2).
const HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Bytes of a frame (HTTP/2).
const FRAME_BYTES: u32 = 16 * 1024;
/// Bytes of the table of header fields that compression uses (HTTP/2).
const HEADER_TABLE_BYTES: u32 = 4 * 1024;
/// Bytes of a response that wait to be sent (HTTP/2).
const SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Streams that the server may reset for errors of the peer. One more ends the connection (HTTP/2).
const ERROR_RESETS: usize = 64;
/// Between two pings of the server, which detect a dead peer (HTTP/2).
const PING_PERIOD: Duration = Duration::from_secs(20);
/// How long the answer to a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed accept: the process may be out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// Serves `routes` over TLS on `listener` until `stop`. Running calls then have `bounds.last_calls` to end.
pub async fn serve_tls(
    listener: TcpListener,
    config: ServerConfig,
    bounds: Bounds,
    routes: axum::Router,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve(listener, Some(TlsAcceptor::from(Arc::new(config))), bounds, routes, metrics, stop).await
}

/// Serves `routes` without TLS, with HTTP/1. A connection that no route admits stays strange, and is short.
pub async fn serve_plain(
    listener: TcpListener,
    bounds: Bounds,
    routes: axum::Router,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve(listener, None, bounds, routes, metrics, stop).await
}

async fn serve(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    bounds: Bounds,
    routes: axum::Router,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let (register, tasks) = (Register::new(bounds, metrics), TaskTracker::new());
    while let Some((stream, place)) = accept_next(&listener, &register, &stop).await {
        let (acceptor, routes, stop) = (acceptor.clone(), routes.clone(), stop.clone());
        tasks.spawn(async move {
            let connection = place.connection();
            let ended = tokio::select! {
                ended = serve_connection(stream, acceptor, bounds, routes, connection, &stop) => ended,
                () = connection.ended() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(peer = %connection.address(), %error, "a connection ended with an error");
            }
        });
    }
    tasks.close();
    let _ = tokio::time::timeout(bounds.shutdown_timeout, tasks.wait()).await;
    Ok(())
}

/// The next connection that has a slot. None: the server stops.
async fn accept_next(listener: &TcpListener, register: &Register, stop: &CancellationToken) -> Option<(TcpStream, ConnectionSlot)> {
    let (stream, peer) = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return None,
        };
        match accepted {
            Ok(accepted) => break accepted,
            Err(error) => {
                // The process is out of file descriptors, or the peer has closed the connection: neither ends the
                // server.
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    };
    let address = peer.ip().to_canonical();
    loop {
        let after = match register.arrive(address) {
            Ok(place) => return Some((stream, place)),
            Err(after) => after,
        };
        // Other connections wait in the kernel meanwhile.
        tokio::select! {
            () = tokio::time::sleep(after) => {}
            () = register.freed() => {}
            () = stop.cancelled() => return None,
        }
    }
}

/// The version of HTTP that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    bounds: Bounds,
    routes: axum::Router,
    connection: &Connection,
    stop: &CancellationToken,
) -> Result<(), Trouble> {
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let Some(acceptor) = acceptor else { return drive(stream, Protocol::Http1, bounds, routes, connection, stop).await };
    let stream = tokio::select! {
        shaken = tokio::time::timeout_at(connection.strange_deadline(), tls_handshake(stream, &acceptor, connection)) => shaken??,
        () = stop.cancelled() => return Ok(()),
    };
    let second = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
    let protocol = if second { Protocol::Http2 } else { Protocol::Http1 };
    drive(stream, protocol, bounds, routes, connection, stop).await
}

/// Does the TLS handshake, within the rate limit of the connection's address: a handshake costs more than most
/// requests.
pub(super) async fn tls_handshake<S>(stream: S, acceptor: &TlsAcceptor, connection: &Connection) -> std::io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    connection.wait_for_rate_limit().await;
    acceptor.accept(stream).await
}

/// Serves one connection whose handshake is over.
pub(super) async fn drive<S>(
    stream: S,
    protocol: Protocol,
    bounds: Bounds,
    routes: axum::Router,
    connection: &Connection,
    stop: &CancellationToken,
) -> Result<(), Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let whose = connection.clone();
    let service = service_fn(move |request| answer(request, whose.clone(), routes.clone()));
    match protocol {
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_PERIOD)
                .keep_alive_timeout(PING_TIMEOUT)
                .max_concurrent_streams(bounds.streams)
                .max_pending_accept_reset_streams(bounds.max_reset_streams)
                .max_local_error_reset_streams(ERROR_RESETS)
                .max_header_list_size(HEADER_LIST_BYTES)
                .max_frame_size(FRAME_BYTES)
                .header_table_size(HEADER_TABLE_BYTES)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .initial_stream_window_size(bounds.stream_window_bytes)
                .initial_connection_window_size(bounds.connection_window_bytes);
            let serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            drive_until_closed(serving, |serving| serving.graceful_shutdown(), connection, stop).await
        }
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            // `Lifetime` limits the time of a head, which depends on what the connection did before.
            builder.timer(TokioTimer::new()).header_read_timeout(None);
            builder.max_buf_size(HEAD_BYTES).max_header_size(HEAD_BYTES).max_headers(HEAD_FIELDS);
            let stream = TokioIo::new(WatchedStream::new(stream, connection.clone()));
            let serving = std::pin::pin!(builder.serve_connection(stream, service));
            drive_until_closed(serving, |serving| serving.graceful_shutdown(), connection, stop).await
        }
    }
}

/// Drives `serving` as long as its connection may live.
async fn drive_until_closed<C: Future<Output = hyper::Result<()>>>(
    mut serving: Pin<&mut C>,
    close: impl Fn(Pin<&mut C>),
    connection: &Connection,
    stop: &CancellationToken,
) -> Result<(), Trouble> {
    let mut stopping = false;
    loop {
        let until = match connection.step() {
            Step::End => return Ok(()),
            Step::Close => {
                close(serving.as_mut());
                connection.closing();
                continue;
            }
            Step::WaitUntil(time) => Some(connection.at(time)),
            Step::Wait => None,
        };
        let due = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = serving.as_mut() => return Ok(ended?),
            () = due => {}
            () = connection.changed() => {}
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                close(serving.as_mut());
                connection.closing();
            }
        }
    }
}

async fn answer(mut request: Request<Incoming>, connection: Connection, routes: axum::Router) -> Result<Response<AnswerBody>, Infallible> {
    let running = connection.begin();
    // Waiting requests are bounded: a second waiting request ends a connection that is not known.
    let response = if connection.is_known() || connection.wait_for_rate_limit().await {
        request.extensions_mut().insert(Peer(connection.address()));
        request.extensions_mut().insert(connection);
        routes.oneshot(request.map(Body::new)).await?
    } else {
        connection.end();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response
    };
    Ok(response.map(|body| AnswerBody::new(body, running)))
}
