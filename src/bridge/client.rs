//! The client of bridges, for gateways and for the leader.
//!
//! It sends nothing before the bridge has proved which one it is. A bridge has no certificate that anybody vouches for: on a new connection
//! it shows the token of its pod, for an audience of its own, and the API server says whose token that is. The bridge shows it only to a
//! client with the certificate of a gateway or of the governor, so that nobody between the two can show it in its place.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use spillway_pod::keep_alive::keep_alive;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::token::Reviewer;
use crate::pki::bridge_tls;
use crate::pki::tls::Serving;
use crate::wire::tools::{BRIDGE_IDENTITY_PATH, BRIDGE_STATUS_PATH, BridgeStatus};
use crate::wire::{BRIDGE_AUDIENCE, BRIDGE_TLS_NAME, Refusal};

/// How long TCP and TLS may take, and each of the short requests.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest head of an answer, and the buffer for its body.
const BUFFER_BYTES: usize = 64 * 1024;
/// The most bytes of a token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The most bytes of a status: the names of some thousand programs.
const MAX_STATUS_BYTES: usize = 256 * 1024;

/// Who a bridge has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeAccount {
    /// Namespace of its pod.
    pub namespace: String,
    /// ServiceAccount of its pod.
    pub service_account: String,
}

/// Why a bridge gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// It does not answer.
    #[error("the bridge cannot be reached: {0}")]
    Unreachable(String),
    /// What answers is not the bridge.
    #[error("what answers is not the bridge: {0}")]
    NotTheBridge(String),
}

/// Calls bridges.
pub struct BridgeClient {
    connector: TlsConnector,
    reviewer: Reviewer,
}

/// The body of a request to a bridge: in memory, or a file that is read meanwhile.
pub type BridgeBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A body that is in memory.
pub fn in_memory(bytes: Bytes) -> BridgeBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A connection to a bridge that proved itself.
pub struct BridgeConnection {
    sender: SendRequest<BridgeBody>,
    task: AbortOnDropHandle<()>,
}

/// The answer of a bridge, and the task of its connection, which ends with it.
pub struct BridgeAnswer {
    /// The answer.
    pub response: Response<Incoming>,
    /// The task.
    pub connection: AbortOnDropHandle<()>,
}

impl BridgeClient {
    /// A client that shows `certificate`, and asks the API server about tokens.
    pub fn new(certificate: Serving, api: kube::Client) -> anyhow::Result<Self> {
        let connector = TlsConnector::from(Arc::new(bridge_tls::client(certificate).context("cannot make a client of bridges")?));
        Ok(Self { connector, reviewer: Reviewer::new(api, BRIDGE_AUDIENCE) })
    }

    /// A connection to the bridge of this account. `may_review` is called before the API server is asked about an unknown token: what
    /// answers may show another one each time.
    pub async fn connect(
        &self,
        address: SocketAddr,
        account: &BridgeAccount,
        may_review: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<BridgeConnection, BridgeError> {
        let unreachable = |why: String| BridgeError::Unreachable(why);
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            let name = ServerName::try_from(BRIDGE_TLS_NAME).map_err(std::io::Error::other)?;
            self.connector.connect(name, stream).await
        };
        let stream = timeout(STEP_TIMEOUT, connecting).await.map_err(|_| unreachable("it does not answer".to_owned()))?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
        // The sender reports errors of the connection.
        let task = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        let mut connection = BridgeConnection { sender, task };
        let token = connection.get(BRIDGE_IDENTITY_PATH, MAX_TOKEN_BYTES).await?;
        self.check(&token, account, may_review).await?;
        Ok(connection)
    }

    /// What the bridge of this account serves.
    pub async fn status(&self, address: SocketAddr, account: &BridgeAccount) -> Result<BridgeStatus, BridgeError> {
        let mut connection = self.connect(address, account, || Ok(())).await?;
        connection.get_json(BRIDGE_STATUS_PATH, MAX_STATUS_BYTES).await
    }

    /// Whether a token is one of a pod of this account.
    async fn check(
        &self,
        token: &[u8],
        account: &BridgeAccount,
        may_review: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), BridgeError> {
        let not_it = |why: String| BridgeError::NotTheBridge(why);
        let token = std::str::from_utf8(token).map_err(|error| not_it(error.to_string()))?.trim();
        let bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| not_it("it shows no token".to_owned()))?;
        let headers: HeaderMap = [(header::AUTHORIZATION, bearer)].into_iter().collect();
        let holder = match self.reviewer.review(&headers, may_review).await {
            Ok(holder) => holder,
            Err(refusal) if refusal.code.is_retryable() => return Err(BridgeError::Unreachable(refusal.message)),
            Err(refusal) => return Err(not_it(refusal.message)),
        };
        let BridgeAccount { namespace, service_account } = account;
        if holder.pod.is_some() && holder.user == format!("system:serviceaccount:{namespace}:{service_account}") {
            return Ok(());
        }
        Err(not_it(format!("its token is one of {}, and not of a pod of ServiceAccount/{service_account}", holder.user)))
    }
}

impl BridgeConnection {
    /// Sends one request, and waits for the head of its answer. There is no time limit: the caller has one.
    pub async fn send(mut self, request: Request<BridgeBody>) -> Result<BridgeAnswer, BridgeError> {
        let response = send(&mut self.sender, request).await?;
        Ok(BridgeAnswer { response, connection: self.task })
    }

    async fn get_json<T: DeserializeOwned>(&mut self, path: &'static str, most: usize) -> Result<T, BridgeError> {
        let bytes = self.get(path, most).await?;
        serde_json::from_slice(&bytes).map_err(|error| BridgeError::NotTheBridge(format!("{path}: {error}")))
    }

    async fn get(&mut self, path: &'static str, most: usize) -> Result<Bytes, BridgeError> {
        let unreachable = |why: String| BridgeError::Unreachable(why);
        let request = Request::builder().uri(path).body(in_memory(Bytes::new())).map_err(|error| unreachable(error.to_string()))?;
        let getting = async {
            let response = send(&mut self.sender, request).await?;
            if response.status().is_server_error() {
                return Err(unreachable(format!("{path} is answered with {}", response.status())));
            }
            if response.status() != StatusCode::OK {
                return Err(BridgeError::NotTheBridge(format!("{path} is answered with {}", response.status())));
            }
            let body = Limited::new(response.into_body(), most).collect().await;
            body.map(|body| body.to_bytes()).map_err(|error| unreachable(error.to_string()))
        };
        timeout(STEP_TIMEOUT, getting).await.unwrap_or_else(|_| Err(unreachable("it does not answer".to_owned())))
    }
}

/// Sends a request when the connection is ready for it.
async fn send(sender: &mut SendRequest<BridgeBody>, mut request: Request<BridgeBody>) -> Result<Response<Incoming>, BridgeError> {
    let broken = |error: hyper::Error| BridgeError::Unreachable(format!("it broke the connection: {error}"));
    request.headers_mut().insert(header::HOST, HeaderValue::from_static(BRIDGE_TLS_NAME));
    sender.ready().await.map_err(broken)?;
    sender.send_request(request).await.map_err(broken)
}
