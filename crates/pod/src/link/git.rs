//! The git port: it forwards requests of git clients to the gateway, and the answers back.
//!
//! It decides nothing and keeps nothing. No credential is in the pod: the gateway adds the team's.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_wire::egress::DENIAL_HEADER;
use spillway_wire::git::GIT_PATH_PREFIX;
use spillway_wire::headers;
use spillway_wire::meter::ITEM_HEADER;
use spillway_wire::work::LeaseRef;
use spillway_wire::{Code, Refusal};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::gateway::{Gateway, refusal};
use crate::link_says;

/// Connections at once, as many as the gateway accepts from one agent: others wait in the kernel's queue.
pub const MAX_CONNECTIONS: usize = 8;
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// The port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GitPort {
    gateway: Arc<Gateway>,
    item: watch::Receiver<Option<LeaseRef>>,
}

type Answer = Response<Either<Incoming, Full<Bytes>>>;

impl GitPort {
    /// Forwards requests to `gateway`, for the item that the program works on.
    pub fn new(gateway: Arc<Gateway>, item: watch::Receiver<Option<LeaseRef>>) -> Self {
        Self { gateway, item }
    }

    /// Serves the requests of one connection.
    pub async fn serve(self, stream: TcpStream) {
        let service = service_fn(|request| {
            let port = self.clone();
            async move { Ok::<_, Infallible>(port.answer(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(64 * 1024);
        let _ = builder.serve_connection(TokioIo::new(stream), service).await; // the client may have gone
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        if !path.starts_with(GIT_PATH_PREFIX) || request.method() == Method::CONNECT {
            let text = format!("this port serves git only: the URL of a repository is http://127.0.0.1:PORT{GIT_PATH_PREFIX}HOST/PATH");
            return message(StatusCode::NOT_FOUND, &text);
        }
        let request = match self.prepare(request) {
            Ok(request) => request,
            Err(error) => return message(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let answer = match self.gateway.carry(request).await {
            Ok(answer) => answer,
            Err(silence) => {
                link_says!("git: {path}: {silence}");
                let text = format!("Spillway's gateway cannot be reached now ({silence}); try again");
                return message(StatusCode::SERVICE_UNAVAILABLE, &text);
            }
        };
        let (mut head, body) = answer.into_parts();
        if head.status.is_success() {
            head.headers.remove(CONNECTION);
            return Response::from_parts(head, Either::Left(body));
        }
        let text = Limited::new(body, MAX_REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let refusal = refusal(head.status.as_u16(), &text);
        link_says!("git: {path}: {refusal}");
        refused(&refusal)
    }

    /// The request for the gateway.
    fn prepare(&self, mut request: Request<Incoming>) -> hyper::http::Result<Request<Incoming>> {
        strip(request.headers_mut());
        let item = self.item.borrow().as_ref().map(|LeaseRef { uid, epoch }| format!("{uid}/{epoch}"));
        if let Some(item) = item {
            request.headers_mut().insert(ITEM_HEADER, HeaderValue::try_from(item)?);
        }
        Ok(request)
    }
}

/// Removes the headers that are not forwarded, and those that `Connection` names.
fn strip(sent: &mut HeaderMap) {
    let named = sent.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let named = named.filter_map(|name| HeaderName::try_from(name.trim()).ok());
    let kept = sent.keys().filter(|name| headers::is_never_forwarded(name.as_str())).cloned();
    let gone: Vec<HeaderName> = named.chain(kept).collect();
    gone.iter().for_each(|name| drop(sent.remove(name)));
}

/// The gateway refuses the request. git shows a body of plain text.
fn refused(refusal: &Refusal) -> Answer {
    let status = match refusal.code {
        Code::GitDenied | Code::NotWorking => StatusCode::FORBIDDEN,
        code => StatusCode::from_u16(code.status()).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    // A 401 would make git ask for a password that does not exist.
    let status = if status == StatusCode::UNAUTHORIZED { StatusCode::BAD_GATEWAY } else { status };
    let mut answer = message(status, &format!("Spillway: {}", refusal.message));
    let reason = refusal.reason.as_deref().unwrap_or_else(|| refusal.code.label());
    answer.headers_mut().extend(HeaderValue::try_from(reason).ok().map(|reason| (HeaderName::from_static(DENIAL_HEADER), reason)));
    if let Some(seconds) = refusal.retry_after_seconds {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

fn message(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_reads_why_a_request_is_denied_and_never_asks_for_a_password() {
        let denied = refused(&Refusal::new(Code::GitDenied, "no").reason("OtherRepository"));
        assert_eq!(
            (denied.status(), &denied.headers()[DENIAL_HEADER]),
            (StatusCode::FORBIDDEN, &HeaderValue::from_static("OtherRepository"))
        );
        assert_eq!(denied.headers()[CONTENT_TYPE], "text/plain");
        let token = refused(&Refusal::new(Code::InvalidToken, "forged"));
        assert_eq!(token.status(), StatusCode::BAD_GATEWAY);
    }

    #[test]
    fn a_credential_of_the_program_and_headers_of_the_connection_stay_here() {
        let mut sent = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Basic x"),
            ("host", "127.0.0.1"),
            ("connection", "x-hop"),
            ("x-hop", "y"),
            ("spillway-item", "forged/1"),
            ("git-protocol", "version=2"),
            ("content-length", "4"),
        ] {
            sent.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut sent);
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "git-protocol"]);
    }
}
