//! The egress port: an HTTP proxy for the programs of the pod, by `CONNECT` and, for `http` URLs, by requests with whole URLs.
//!
//! It decides nothing and resolves nothing: the gateway gets the destination as the program wrote it, and the program gets the
//! gateway's answer.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one proxy request |
//! | [`tunnel`] | the bytes of a connection, to and from the gateway |

mod tunnel;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_wire::Code;
use spillway_wire::headers::HOP_BY_HOP_HEADERS;
use spillway_wire::work::LeaseRef;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use self::tunnel::Tunnel;
use super::forwarding::{Answer, message, refused, strip, unreachable};
use super::gateway::Gateway;
use crate::link_says;

/// Connections at once; others wait in the kernel's queue.
pub const MAX_CONNECTIONS: usize = 64;
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Port of an `http` URL without one.
const HTTP_PORT: u16 = 80;
/// How often a connection is tried again when the gateway is busy, and after which delay.
const BUSY_RETRIES: u32 = 10;
const BUSY_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Bytes of a buffer between a program and its connection.
const BUFFER_BYTES: usize = 16 * 1024;

/// The proxy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EgressProxy {
    gateway: Arc<Gateway>,
    item: watch::Receiver<Option<LeaseRef>>,
}

impl EgressProxy {
    /// Carries connections to `gateway`, for the item that the program works on.
    pub fn new(gateway: Arc<Gateway>, item: watch::Receiver<Option<LeaseRef>>) -> Self {
        Self { gateway, item }
    }

    /// Serves one connection of a program: one request. The permit is held until the tunnel ends, too.
    pub async fn serve(self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let permit = Arc::new(permit);
        let service = service_fn(move |request| {
            let (proxy, permit) = (self.clone(), permit.clone());
            async move { Ok::<_, Infallible>(proxy.answer(request, permit).await) }
        });
        let mut builder = http1::Builder::new();
        // A program that has sent all it has may close its direction, and still reads the answer.
        builder.half_close(true);
        builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(64 * 1024);
        let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await; // a client that left is no fault
    }

    async fn answer(&self, request: Request<Incoming>, permit: Arc<OwnedSemaphorePermit>) -> Answer {
        if request.method() == Method::CONNECT {
            return self.connect(request, permit).await;
        }
        match request.uri().scheme_str() {
            Some("http") => self.forward(request).await,
            Some(_) => message(StatusCode::BAD_REQUEST, "a URL of another scheme than http is reached by CONNECT"),
            None => message(StatusCode::BAD_REQUEST, "this port is an HTTP proxy: set HTTPS_PROXY and HTTP_PROXY to it"),
        }
    }

    /// Opens a tunnel for the program.
    async fn connect(&self, mut request: Request<Incoming>, permit: Arc<OwnedSemaphorePermit>) -> Answer {
        let destination = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let mut tunnel = match self.open(&destination).await {
            Ok(tunnel) => tunnel,
            Err(answer) => return answer,
        };
        let upgrading = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let _permit = permit;
            if let Ok(upgraded) = upgrading.await {
                carry(upgraded, &mut tunnel).await;
            }
        });
        Response::new(Either::Right(Full::default()))
    }

    /// Makes a request of the program on a connection of its own.
    async fn forward(&self, mut request: Request<Incoming>) -> Answer {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let destination = if request.uri().port().is_some() { authority.clone() } else { format!("{authority}:{HTTP_PORT}") };
        let (Ok(path), Ok(host)) = (Uri::try_from(path), HeaderValue::try_from(authority)) else {
            return message(StatusCode::BAD_REQUEST, "the URL cannot be read");
        };
        *request.uri_mut() = path;
        strip(request.headers_mut(), is_of_connection);
        request.headers_mut().insert(HOST, host);
        let tunnel = match self.open(&destination).await {
            Ok(tunnel) => tunnel,
            Err(answer) => return answer,
        };
        let sent = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tunnel)).await?;
            tokio::spawn(async move {
                let _ = connection.await; // a fault shows at the answer
            });
            sender.send_request(request).await
        };
        match sent.await {
            Ok(answer) => {
                let (mut head, body) = answer.into_parts();
                strip(&mut head.headers, is_of_connection);
                Response::from_parts(head, Either::Left(body))
            }
            Err(error) => message(StatusCode::BAD_GATEWAY, &format!("{destination} gives no answer: {error}")),
        }
    }

    /// A connection to `destination`, or the answer that the program gets instead.
    async fn open(&self, destination: &str) -> Result<Tunnel, Answer> {
        let item = self.item.borrow().clone();
        let mut opened = tunnel::open(&self.gateway, destination, item.as_ref()).await;
        // Package managers open many connections at once, and most take a 429 for the end.
        for _ in 0..BUSY_RETRIES {
            match &opened {
                Err(tunnel::Closed::Refused(refusal)) if refusal.code == Code::TooManyCalls => {
                    tokio::time::sleep(BUSY_RETRY_DELAY).await;
                    opened = tunnel::open(&self.gateway, destination, item.as_ref()).await;
                }
                Ok(_) | Err(_) => break,
            }
        }
        match opened {
            Ok(tunnel) => Ok(tunnel),
            Err(tunnel::Closed::Refused(refusal)) => {
                link_says!("no connection to {destination:?}: {refusal}");
                Err(refused(&refusal, &refusal.to_string()))
            }
            Err(tunnel::Closed::Silent(silence)) => {
                link_says!("no connection to {destination:?}: {silence}");
                Err(unreachable(&silence))
            }
        }
    }
}

/// Carries bytes until both sides have closed, or one is cut. Then the other one sees a reset, and not an end.
async fn carry(upgraded: Upgraded, tunnel: &mut Tunnel) {
    let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
    let mut program = parts.io.into_inner();
    let carried = async {
        tunnel.write_all(&parts.read_buf).await?;
        copy_bidirectional_with_sizes(&mut program, tunnel, BUFFER_BYTES, BUFFER_BYTES).await
    };
    if carried.await.is_err() {
        let _ = program.set_zero_linger(); // a socket that refuses it is closed in the usual way
    }
}

/// Whether a header is of one connection. A program's own credentials go on to the host.
fn is_of_connection(name: &str) -> bool {
    HOP_BY_HOP_HEADERS.contains(&name)
}
