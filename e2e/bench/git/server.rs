//! A real git server at the node's address: `git http-backend` behind TLS and a password, in the measuring program.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::git_http::{AnswerBody, HOST, acceptor, refusal, run_backend, serve};
use crate::sidecar_port::SidecarPort;

/// A running server. It ends when this value is dropped.
pub struct GitServer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate, which is its own authority.
    pub certificate: String,
    /// The key of its certificate.
    pub key: String,
    root: PathBuf,
    _tasks: JoinSet<()>,
}

impl GitServer {
    /// Serves the repositories below `root`.
    pub async fn start(node: IpAddr, root: PathBuf) -> anyhow::Result<Self> {
        let issued = rcgen::generate_simple_self_signed([node.to_string(), HOST.to_owned()]).context("a certificate")?;
        let listener = TcpListener::bind((node, 0)).await.context("the address of the git server")?;
        let (address, tls, served) = (listener.local_addr()?, acceptor(&issued)?, Arc::<Path>::from(root.as_path()));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, tls, move |request| {
            let root = served.clone();
            async move { answer(&root, request).await }
        }));
        Ok(Self { address, certificate: issued.cert.pem(), key: issued.signing_key.serialize_pem(), root, _tasks: tasks })
    }

    /// Its origin, as pools and the gateway name it.
    pub fn origin(&self) -> String {
        format!("https://{HOST}:{}", self.address.port())
    }

    /// The URL of a repository, as pools name it.
    pub fn url(&self, repository: &str) -> String {
        format!("{}/{repository}.git", self.origin())
    }

    /// The URL of a repository for the program of an agent, at the git port of its sidecar.
    pub fn url_at(&self, sidecar: &SidecarPort, repository: &str) -> String {
        format!("http://{}/git/{HOST}:{}/{repository}.git", sidecar.address, self.address.port())
    }

    /// The folder of a repository.
    pub fn folder(&self, repository: &str) -> PathBuf {
        self.root.join(format!("{repository}.git"))
    }
}

/// Answers one request. The answer begins when the body of the request was read, as with most servers. git's program begins it
/// before, and nginx sends no more of a body when the answer to it has begun.
async fn answer(root: &Path, request: Request<Incoming>) -> Response<AnswerBody> {
    let (head, body) = request.into_parts();
    if let Some(refusal) = refusal(&head) {
        return refusal;
    }
    let (reading, read) = oneshot::channel::<()>();
    let body = body.map_frame(move |frame| {
        let _ = &reading; // it is dropped with the body
        frame
    });
    let response = run_backend(root, &head, body).await;
    let _ = read.await; // nothing is sent
    response
}
