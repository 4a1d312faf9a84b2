//! The ports for git, for tools and for artifacts: they forward requests to the gateway, and the answers back.
//!
//! They decide nothing and keep nothing. No credential is in the pod: the gateway adds the team's. Each request and each answer counts as
//! activity of the program.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_wire::Refusal;
use spillway_wire::artifact::ARTIFACT_PATH_PREFIX;
use spillway_wire::changeset::{COMMIT_HEADER, PendingCommit};
use spillway_wire::git::GIT_PATH_PREFIX;
use spillway_wire::headers::is_never_forwarded;
use spillway_wire::tools::TOOLS_PATH_PREFIX;
use spillway_wire::work::LeaseRef;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::forwarding::{Answer, message, refused, set_item, strip, unreachable};
use super::gateway::{Gateway, Silence, refusal};
use super::input::Input;
use crate::asked_body::when_asked;
use crate::link_says;

/// Connections at once: others wait in the kernel's queue. The gateway accepts as many git requests of one agent.
pub const MAX_CONNECTIONS: usize = 8;
/// Longer than the gateway lets a request take, so that the gateway answers first: up to 120 s for a slot, an hour for the transfer, and
/// 30 s until an artifact is recorded.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(3900);
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// A port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ForwardedPort {
    gateway: Arc<Gateway>,
    item: watch::Receiver<Option<LeaseRef>>,
    inputs: mpsc::Sender<Input>,
    kind: Kind,
}

/// What a port forwards.
#[derive(Clone, Debug)]
enum Kind {
    /// Requests of git clients, with the commit that the supervisor announced.
    Git(watch::Receiver<Option<PendingCommit>>),
    /// Requests of MCP clients.
    Tools,
    /// Calls about artifacts.
    Artifacts,
}

impl ForwardedPort {
    /// Forwards requests of git clients to `gateway`, for the item that the program works on, and the commit that its supervisor
    /// announced.
    pub fn git(
        gateway: Arc<Gateway>,
        item: watch::Receiver<Option<LeaseRef>>,
        inputs: mpsc::Sender<Input>,
        commit: watch::Receiver<Option<PendingCommit>>,
    ) -> Self {
        Self { gateway, item, inputs, kind: Kind::Git(commit) }
    }

    /// Forwards requests of MCP clients to `gateway`, for the item that the program works on.
    pub fn tools(gateway: Arc<Gateway>, item: watch::Receiver<Option<LeaseRef>>, inputs: mpsc::Sender<Input>) -> Self {
        Self { gateway, item, inputs, kind: Kind::Tools }
    }

    /// Forwards calls about artifacts to `gateway`, for the item that the program works on.
    pub fn artifacts(gateway: Arc<Gateway>, item: watch::Receiver<Option<LeaseRef>>, inputs: mpsc::Sender<Input>) -> Self {
        Self { gateway, item, inputs, kind: Kind::Artifacts }
    }

    /// Start of the paths, and what the port serves.
    fn paths(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Git(_) => (GIT_PATH_PREFIX, "git only: the URL of a repository is http://127.0.0.1:PORT/git/HOST/PATH"),
            Kind::Tools => (TOOLS_PATH_PREFIX, "MCP only: the URL of a Toolset is http://127.0.0.1:PORT/mcp/TOOLSET"),
            Kind::Artifacts => (ARTIFACT_PATH_PREFIX, "artifacts only, below /agent/v1/artifacts/"),
        }
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

    /// If the loop is busy, the note is dropped: the loop was told of activity a moment ago.
    fn note_activity(&self) {
        let _ = self.inputs.try_send(Input::RequestForwarded);
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let (prefix, serves) = self.paths();
        if !path.starts_with(prefix) || request.method() == Method::CONNECT {
            return message(StatusCode::NOT_FOUND, &format!("this port serves {serves}"));
        }
        if matches!(self.kind, Kind::Tools) && !names_loopback(request.headers()) {
            link_says!("{path}: the Host of the request is not this pod's loopback");
            return message(StatusCode::FORBIDDEN, "the Host of a request must be 127.0.0.1 or localhost");
        }
        strip(request.headers_mut(), is_never_forwarded);
        if let Err(error) = set_item(request.headers_mut(), self.item.borrow().as_ref()) {
            return message(StatusCode::BAD_REQUEST, &error.to_string());
        }
        if let Kind::Git(commit) = &self.kind {
            let commit = commit.borrow().as_ref().and_then(|commit| HeaderValue::try_from(commit.header_value()).ok());
            request.headers_mut().extend(commit.map(|commit| (HeaderName::from_static(COMMIT_HEADER), commit)));
        }
        // The gateway refuses a file before it is sent. A push is refused after its first bytes.
        let request = match self.kind {
            Kind::Git(_) | Kind::Tools => request.map(Either::Left),
            Kind::Artifacts => when_asked(request).map(Either::Right),
        };
        self.note_activity();
        let carried = timeout(GATEWAY_TIMEOUT, self.gateway.carry(request)).await.unwrap_or(Err(Silence::TimeOut));
        self.note_activity();
        let answer = match carried {
            Ok(answer) => answer,
            Err(silence) => {
                link_says!("{path}: {silence}");
                return unreachable(&silence);
            }
        };
        let (mut head, body) = answer.into_parts();
        if head.status.is_success() {
            head.headers.remove(CONNECTION);
            return Response::from_parts(head, Either::Left(body));
        }
        let text = Limited::new(body, MAX_REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        // What a bridge refuses, it refuses in the words of MCP.
        if matches!(self.kind, Kind::Tools) && serde_json::from_slice::<Refusal>(&text).is_err() {
            head.headers.remove(CONNECTION);
            return Response::from_parts(head, Either::Right(Full::from(text)));
        }
        let refusal = refusal(head.status.as_u16(), &text);
        link_says!("{path}: {refusal}");
        refused(&refusal, &format!("Spillway: {}", refusal.message))
    }
}

/// Whether a request names this pod's loopback as its host: a page that resolves its own name to 127.0.0.1 names another one.
fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    matches!(name, "127.0.0.1" | "localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_tools_names_the_loopback() {
        let named = |host: &str| names_loopback(&[(HOST, HeaderValue::try_from(host).expect("a value"))].into_iter().collect());
        assert!(named("127.0.0.1:4104") && named("localhost:4104") && named("127.0.0.1"));
        assert!(!named("evil.example:4104") && !named("127.0.0.1.evil.example:4104") && !named("") && !names_loopback(&HeaderMap::new()));
    }
}
