//! Connections to providers over TLS, to checked addresses only, kept for later calls.
//!
//! `origin_dialer` makes the connections. Redirects are not followed: the caller gets them as responses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::gateway::origin_dialer::{OriginDialError, OriginDialer};
use crate::origins::{DialRefusal, Origin, Origins};
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};

/// A connection that was idle for this long is not reused, because the provider may have closed it.
const MAX_CONNECTION_IDLE: Duration = Duration::from_secs(50);
/// A connection of this age is not reused, because the name may have other addresses by now.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// Idle HTTP/1.1 connections to one origin.
const MAX_IDLE_CONNECTIONS: usize = 32;
/// HTTP/2 connections to one origin.
const MAX_HTTP2_CONNECTIONS: usize = 8;
/// Calls in flight to one origin. They are fewer than the connections can carry: calls that wait inside a connection
/// would not be fair between namespaces, and a response may take minutes.
const ORIGIN_CALL_BOUNDS: Bounds = Bounds { total: 768, per_namespace: 576, max_waiting: 2_048 };

/// The longest head of a response over HTTP/1.1, and the buffer for its body. (HTTP/2 accepts 16 KiB of headers.)
const HEAD_BYTES: usize = 64 * 1024;
/// Bytes of one response over HTTP/2 that the client has not read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for all responses on one connection. It is enough for all calls of an origin, so that clients that do not
/// read do not block other calls on their connection.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 768;

/// Why a provider was not reached.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The origin is not allowed.
    #[error("{0} is not among the origins that this gateway may call (gateway.modelOrigins of the chart)")]
    NotListed(String),
    /// Its address is not allowed.
    #[error("{origin} has the address {address}, {closed}")]
    Address {
        /// The origin.
        origin: Origin,
        /// The address.
        address: IpAddr,
        /// What is wrong with it.
        closed: DialRefusal,
    },
    /// It has no address, does not answer, or has an invalid certificate.
    #[error("{origin} cannot be reached: {why}")]
    Unreachable {
        /// The origin.
        origin: Origin,
        /// Why.
        why: String,
    },
    /// The connection broke after the provider may have read the call.
    #[error("{origin} broke the connection: {why}")]
    Broken {
        /// The origin.
        origin: Origin,
        /// Why.
        why: String,
    },
}

impl UpstreamError {
    /// Whether the provider may have read the call, so that it may have cost something.
    pub fn may_have_cost(&self) -> bool {
        match self {
            Self::NotListed(_) | Self::Address { .. } | Self::Unreachable { .. } => false,
            Self::Broken { .. } => true,
        }
    }

    fn of_dial(origin: &Origin, error: OriginDialError) -> Self {
        let origin = origin.clone();
        match error {
            OriginDialError::NotListed => Self::NotListed(origin.to_string()),
            OriginDialError::Address(address, closed) => Self::Address { origin, address, closed },
            OriginDialError::Unreachable(why) => Self::Unreachable { origin, why },
        }
    }

    /// Whether a retry may help.
    pub fn passes(&self) -> bool {
        match self {
            Self::NotListed(_) | Self::Address { .. } => false,
            Self::Unreachable { .. } | Self::Broken { .. } => true,
        }
    }
}

/// A call in parts, so that it can be sent on another connection if it was not sent on the first one.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers, without Host.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

type Http1Sender = http1::SendRequest<Full<Bytes>>;
type Http2Sender = http2::SendRequest<Full<Bytes>>;

#[derive(Default)]
struct Pool {
    /// Idle connections, with the times of their creation and their last use.
    idle_http1: Vec<(Http1Sender, Instant, Instant)>,
    shared: Vec<(Http2Sender, Instant)>,
}

impl Pool {
    /// Keeps this connection for later calls.
    fn share(&mut self, sender: Http2Sender, made: Instant) {
        self.shared.retain(|(sender, _)| !sender.is_closed());
        // Concurrent calls may have dialled at once. A connection beyond the limit serves its own call only, and then
        // ends.
        if self.shared.len() < MAX_HTTP2_CONNECTIONS {
            self.shared.push((sender, made));
        }
    }

    fn keep_idle(&mut self, sender: Http1Sender, made: Instant) {
        if self.idle_http1.len() < MAX_IDLE_CONNECTIONS {
            self.idle_http1.push((sender, made, Instant::now()));
        }
    }
}

enum Connection {
    Http1(Http1Sender, Instant),
    Http2(Http2Sender),
}

/// The connections to providers.
pub struct Upstream {
    dialer: OriginDialer,
    pools: Mutex<HashMap<Origin, Pool>>,
    permits: Mutex<HashMap<Origin, FairSemaphore>>,
}

impl Upstream {
    /// Allows these origins. No connection is made yet.
    pub fn new(origins: Origins) -> Arc<Self> {
        let dialer = OriginDialer::new(origins, &["h2", "http/1.1"]);
        Arc::new(Self { dialer, pools: Mutex::default(), permits: Mutex::default() })
    }

    /// The listed origin that `text` names.
    pub fn find(&self, text: &str) -> Result<Origin, UpstreamError> {
        self.dialer.find(text).ok_or_else(|| UpstreamError::NotListed(text.to_owned()))
    }

    /// The permits for calls to an origin. A permit is kept until the response has ended.
    pub fn permits(&self, origin: &Origin) -> FairSemaphore {
        let mut turns = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(origin.clone()).or_insert_with(|| FairSemaphore::new(ORIGIN_CALL_BOUNDS)).clone()
    }

    /// Sends a call and waits for the head of its response.
    pub async fn send(self: &Arc<Self>, origin: &Origin, call: &Call) -> Result<Response<Incoming>, UpstreamError> {
        // A kept connection may be closed by now. Then the call is not sent, and the next connection is tried, until
        // none is kept.
        while let Some(kept) = self.take(origin) {
            if let Some(answer) = self.send_on(origin, kept, call).await? {
                return Ok(answer);
            }
        }
        let fresh = self.dial(origin).await?;
        let unsent = || UpstreamError::Unreachable { origin: origin.clone(), why: "it closed the connection at once".into() };
        self.send_on(origin, fresh, call).await?.ok_or_else(unsent)
    }

    /// Sends a call on one connection. None: the call was not sent.
    async fn send_on(
        self: &Arc<Self>,
        origin: &Origin,
        connection: Connection,
        call: &Call,
    ) -> Result<Option<Response<Incoming>>, UpstreamError> {
        let why = |why: String| UpstreamError::Broken { origin: origin.clone(), why };
        match connection {
            Connection::Http1(mut sender, made) => {
                let request = request(origin, call, Version::HTTP_11).map_err(|error| why(error.to_string()))?;
                match sender.try_send_request(request).await {
                    Ok(answer) => {
                        let (pools, origin) = (self.clone(), origin.clone());
                        // The connection can be reused when the response was read to its end.
                        tokio::spawn(async move {
                            if sender.ready().await.is_ok() {
                                pools.keep(origin, sender, made);
                            }
                        });
                        Ok(Some(answer))
                    }
                    Err(error) if error.message().is_some() => Ok(None),
                    Err(error) => Err(why(error.into_error().to_string())),
                }
            }
            Connection::Http2(mut sender) => {
                let request = request(origin, call, Version::HTTP_2).map_err(|error| why(error.to_string()))?;
                match sender.try_send_request(request).await {
                    Ok(answer) => Ok(Some(answer)),
                    Err(error) if error.message().is_some() => Ok(None),
                    Err(error) => Err(why(error.into_error().to_string())),
                }
            }
        }
    }

    fn take(&self, origin: &Origin) -> Option<Connection> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get_mut(origin)?;
        pool.idle_http1.retain(|(sender, made, used)| {
            !sender.is_closed() && used.elapsed() < MAX_CONNECTION_IDLE && made.elapsed() < MAX_CONNECTION_AGE
        });
        pool.shared.retain(|(sender, made)| !sender.is_closed() && made.elapsed() < MAX_CONNECTION_AGE);
        let full = pool.shared.len() >= MAX_HTTP2_CONNECTIONS;
        // A connection with free streams. If the limit of connections is reached, any connection, and the call waits on
        // it.
        let shared = pool.shared.iter().find(|(sender, _)| sender.is_ready()).or_else(|| pool.shared.first().filter(|_| full));
        if let Some((sender, _)) = shared {
            return Some(Connection::Http2(sender.clone()));
        }
        let ready = pool.idle_http1.iter().rposition(|(sender, ..)| sender.is_ready())?;
        let (sender, made, _) = pool.idle_http1.swap_remove(ready);
        Some(Connection::Http1(sender, made))
    }

    fn keep(&self, origin: Origin, sender: Http1Sender, made: Instant) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.entry(origin).or_default().keep_idle(sender, made);
    }

    async fn dial(self: &Arc<Self>, origin: &Origin) -> Result<Connection, UpstreamError> {
        let stream = self.dialer.dial(origin).await.map_err(|error| UpstreamError::of_dial(origin, error))?;
        let unreachable = |error: hyper::Error| UpstreamError::Unreachable { origin: origin.clone(), why: error.to_string() };
        self.handshake(origin, stream).await.map_err(unreachable)
    }

    async fn handshake(&self, origin: &Origin, stream: tokio_rustls::client::TlsStream<TcpStream>) -> hyper::Result<Connection> {
        let second = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
        let (stream, made) = (TokioIo::new(stream), Instant::now());
        if !second {
            let (sender, connection) = http1_builder().handshake(stream).await?;
            // The sender reports errors of the connection.
            tokio::spawn(async move { drop(connection.await) });
            return Ok(Connection::Http1(sender, made));
        }
        let (sender, connection) = http2_builder().handshake(stream).await?;
        tokio::spawn(async move { drop(connection.await) });
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.entry(origin.clone()).or_default().share(sender.clone(), made);
        Ok(Connection::Http2(sender))
    }
}

/// The settings of connections over HTTP/1.1.
fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES);
    builder
}

/// The settings of connections over HTTP/2.
fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(16 * 1024);
    builder
}

fn request(origin: &Origin, call: &Call, version: Version) -> http::Result<Request<Full<Bytes>>> {
    let uri = match version {
        Version::HTTP_2 => format!("https://{}{}", origin.authority(), call.path),
        _ => call.path.clone(),
    };
    let mut request = Request::builder().method(call.method.clone()).uri(uri).body(Full::new(call.body.clone()))?;
    request.headers_mut().clone_from(&call.headers);
    if version != Version::HTTP_2 {
        let host = HeaderValue::try_from(origin.authority())?;
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// A kept connection, and its other end.
    async fn second() -> (Http2Sender, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (sender, connection) = http2_builder().handshake(TokioIo::new(ours)).await.expect("a connection");
        tokio::spawn(connection);
        (sender, theirs)
    }

    #[tokio::test]
    async fn connections_that_calls_dialled_together_are_not_all_kept() {
        let (mut pool, mut others) = (Pool::default(), Vec::new());
        for _ in 0..3 * MAX_HTTP2_CONNECTIONS {
            let (sender, other) = second().await;
            pool.share(sender, Instant::now());
            others.push(other);
        }
        assert_eq!(pool.shared.len(), MAX_HTTP2_CONNECTIONS);
        for _ in 0..3 * MAX_IDLE_CONNECTIONS {
            let (ours, theirs) = tokio::io::duplex(1024);
            let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(ours)).await.expect("a connection");
            tokio::spawn(connection);
            pool.keep_idle(sender, Instant::now());
            others.push(theirs);
        }
        assert_eq!(pool.idle_http1.len(), MAX_IDLE_CONNECTIONS);
    }

    #[tokio::test]
    async fn a_provider_whose_head_does_not_end_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(8 * HEAD_BYTES);
        let (mut sender, connection) = http1_builder().handshake::<_, Full<Bytes>>(TokioIo::new(ours)).await.expect("a connection");
        let ended = tokio::spawn(connection);
        let request = Request::get("/").body(Full::default()).expect("a request");
        let answering = async {
            let mut asked = [0; 14];
            theirs.read_exact(&mut asked).await.expect("the call");
            let head = [&b"HTTP/1.1 200 OK\r\nx-endless: "[..], &vec![b'a'; 4 * HEAD_BYTES]].concat();
            theirs.write_all(&head).await.expect("it is read");
            asked
        };
        let (answer, asked) = tokio::join!(sender.send_request(request), answering);
        assert!(answer.is_err() && asked.starts_with(b"GET / HTTP/1.1"));
        drop(ended.await.expect("no panic"));
    }

    /// A provider that answers each call with as many bytes as flow control allows.
    async fn endless(stream: DuplexStream) {
        use std::convert::Infallible;

        let answer = async |_: Request<Incoming>| {
            let parts =
                futures::stream::repeat_with(|| Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from_static(&[b'a'; 16 * 1024]))));
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(parts)))
        };
        let service = hyper::service::service_fn(answer);
        drop(hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
    }

    #[tokio::test]
    async fn answers_that_nobody_takes_keep_no_other_answer_of_their_connection_waiting() {
        let (mut sender, other) = second().await;
        tokio::spawn(endless(other));
        let mut left = Vec::new();
        for _ in 0..120 {
            let request = Request::get("https://provider/").body(Full::default()).expect("a request");
            left.push(sender.send_request(request).await.expect("an answer").into_body());
        }
        let mut taken = left.pop().expect("an answer");
        for _ in 0..64 {
            let part = tokio::time::timeout(Duration::from_secs(30), taken.frame()).await.expect("the others do not hinder it");
            assert!(part.expect("more").expect("whole").into_data().is_ok());
        }
    }
}
