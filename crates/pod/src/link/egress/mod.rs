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
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_wire::egress::DENIAL_HEADER;
use spillway_wire::headers::HOP_BY_HOP_HEADERS;
use spillway_wire::work::LeaseRef;
use spillway_wire::{Code, Refusal};
use tokio::io::{AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use self::tunnel::Tunnel;
use super::gateway::{Gateway, Silence};
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

type Answer = Response<Either<Incoming, Full<Bytes>>>;

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
        strip(request.headers_mut());
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
                strip(&mut head.headers);
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
                Err(refused(&refusal))
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

/// The gateway refuses the connection.
fn refused(refusal: &Refusal) -> Answer {
    let status = match refusal.code {
        Code::EgressDenied | Code::NotWorking => StatusCode::FORBIDDEN,
        code => StatusCode::from_u16(code.status()).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    // A 401 would make a program ask for a password that does not exist.
    let status = if status == StatusCode::UNAUTHORIZED { StatusCode::BAD_GATEWAY } else { status };
    let mut answer = message(status, &refusal.to_string());
    let reason = refusal.reason.as_deref().unwrap_or_else(|| refusal.code.label());
    answer.headers_mut().extend(HeaderValue::try_from(reason).ok().map(|reason| (HeaderName::from_static(DENIAL_HEADER), reason)));
    if let Some(seconds) = refusal.retry_after_seconds {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The gateway does not answer.
fn unreachable(silence: &Silence) -> Answer {
    let mut answer = message(StatusCode::SERVICE_UNAVAILABLE, &format!("Spillway's gateway cannot be reached now ({silence}); try again"));
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    answer
}

fn message(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Takes out the headers of one connection, and those that `Connection` names.
fn strip(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let named: Vec<HeaderName> = named.filter_map(|name| HeaderName::try_from(name.trim()).ok()).collect();
    let fixed = HOP_BY_HOP_HEADERS.into_iter().map(HeaderName::from_static);
    named.into_iter().chain(fixed).for_each(|name| drop(headers.remove(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_why_a_destination_is_denied() {
        let refusal = Refusal::new(Code::EgressDenied, "example.org:443 is denied").reason("NotListed");
        let answer = refused(&refusal);
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
        assert_eq!(answer.headers()[DENIAL_HEADER], "NotListed");
        let token = refused(&Refusal::new(Code::InvalidToken, "the token is forged"));
        assert_eq!(
            (token.status(), &token.headers()[DENIAL_HEADER]),
            (StatusCode::BAD_GATEWAY, &HeaderValue::from_static("invalid_token"))
        );
        let busy = refused(&Refusal::new(Code::TooManyCalls, "too many").retry_after(5));
        assert_eq!((busy.status(), &busy.headers()[RETRY_AFTER]), (StatusCode::TOO_MANY_REQUESTS, &HeaderValue::from_static("5")));
    }

    #[test]
    fn the_headers_of_the_connection_stay_here_and_the_programs_own_go_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("proxy-authorization", "a"), ("connection", "close, X-Hop"), ("x-hop", "b"), ("authorization", "c")] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["authorization"]);
    }
}
