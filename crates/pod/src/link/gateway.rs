//! Calls to the gateway: HTTPS with the pod's token, over kept connections.
//!
//! It returns the answer, or why no answer came. It decides nothing. It repeats a call only in two cases: a kept connection fails,
//! because the gateway may have closed it before, or the token was replaced during the call. Every call of the API may be
//! repeated. Every answer is authentic: a server without a certificate of our CA for the gateway's name counts as absent.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use spillway_wire::external::{EXTERNAL_HEADER, ExternalAgent};
use spillway_wire::{Code, GATEWAY_TLS_NAME, Refusal};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::files;
use crate::keep_alive::keep_alive;

/// Bytes of a request or an answer that is carried, in each direction of a connection. There may be a hundred at once.
const CARRY_BUFFER_BYTES: usize = 32 * 1024;
/// Time limit of TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a kept connection may be unused. Afterwards it is not used again.
const MAX_CONNECTION_IDLE: Duration = Duration::from_secs(50);
/// The most connections that are kept.
const MAX_IDLE_CONNECTIONS: usize = 2;
/// The most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// The most bytes of a token or a list of certificates.
const MAX_FILE_BYTES: usize = 256 * 1024;
/// Header of the idempotency key.
const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// The answer of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success, with this body.
    Done(Bytes),
    /// Success without a body (204).
    Nothing,
    /// A refusal.
    Refused(Refusal),
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// A file of ours cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file of certificates contains none that can be used.
    #[error("{} contains no certificate that can be used", .0.display())]
    NoCertificate(PathBuf),
    /// The TLS library refuses its settings.
    #[error("cannot prepare TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// There is no connection, or the other side is not the gateway.
    #[error("cannot connect to the gateway: {0}")]
    Connect(std::io::Error),
    /// The connection broke.
    #[error("the connection to the gateway broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The answer could not be read.
    #[error("the gateway's answer cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The call took too long.
    #[error("the gateway did not answer in time")]
    TimeOut,
    /// The request could not be made.
    #[error("cannot build the request: {0}")]
    Request(#[from] hyper::http::Error),
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path, with the query.
    pub path: String,
    /// Its body; empty for none.
    pub body: Vec<u8>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// The time limit, with the time to connect.
    pub within: Duration,
}

impl Call {
    /// A POST of JSON.
    pub fn post(path: &str, body: Vec<u8>, within: Duration) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body, key: None, within }
    }

    /// A GET.
    pub fn get(path: String, within: Duration) -> Self {
        Self { method: Method::GET, path, body: Vec::new(), key: None, within }
    }

    /// With an idempotency key.
    pub fn key(mut self, key: String) -> Self {
        self.key = Some(key);
        self
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// The gateway, as seen from the pod.
#[derive(Debug)]
pub struct Gateway {
    /// `IP:PORT`; outside the cluster also `NAME:PORT`.
    address: String,
    ca: PathBuf,
    token: PathBuf,
    /// The header that names the agent outside the cluster; `None` in a pod, where the token alone identifies the agent.
    place: Mutex<Option<HeaderValue>>,
    /// The certificates as they were read, and the TLS configuration that was built from them.
    trust: Mutex<Option<(Vec<u8>, Arc<ClientConfig>)>>,
    idle_connections: Mutex<Vec<(Sender, Instant)>>,
}

impl Gateway {
    /// The gateway at `address`, with the certificates in the file `ca` and the token in the file `token`. No file is read yet.
    pub fn new(address: String, ca: PathBuf, token: PathBuf) -> Self {
        Self { address, ca, token, place: Mutex::new(None), trust: Mutex::new(None), idle_connections: Mutex::new(Vec::new()) }
    }

    /// From now on each call names this agent outside the cluster.
    pub fn set_external_agent(&self, place: &ExternalAgent) -> Result<(), Silence> {
        let place = HeaderValue::try_from(place.to_string()).map_err(hyper::http::Error::from)?;
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }

    fn place(&self) -> Option<HeaderValue> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a call. The token is read for each call, because it is replaced while we run. If it was replaced during a call that
    /// got 401, the call is repeated at once with the new token.
    pub async fn call(&self, call: &Call) -> Result<Answer, Silence> {
        timeout(call.within, async {
            let token = self.token()?;
            let answer = self.ask(call, &token).await?;
            if matches!(&answer, Answer::Refused(refusal) if refusal.code.status() == 401) {
                let newer = self.token()?;
                if newer != token {
                    return self.ask(call, &newer).await;
                }
            }
            Ok(answer)
        })
        .await
        .unwrap_or(Err(Silence::TimeOut))
    }

    fn token(&self) -> Result<String, Silence> {
        let trouble = |source| Silence::File { path: self.token.clone(), source };
        let bytes = files::read(&self.token, MAX_FILE_BYTES).map_err(trouble)?;
        let bytes = bytes.ok_or_else(|| trouble(std::io::ErrorKind::NotFound.into()))?;
        let text = String::from_utf8(bytes).map_err(|error| trouble(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))?;
        Ok(text.trim().to_owned())
    }

    async fn ask(&self, call: &Call, token: &str) -> Result<Answer, Silence> {
        if let Some(mut sender) = self.take() {
            // The gateway may have closed the connection just now, which only shows when we send.
            match sender.send_request(request(call, token, self.place())?).await {
                Ok(response) => return self.read(sender, response).await,
                Err(_) => drop(sender),
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request(call, token, self.place())?).await?;
        self.read(sender, response).await
    }

    async fn read(&self, sender: Sender, response: Response<Incoming>) -> Result<Answer, Silence> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(Silence::Body)?.to_bytes();
        self.keep(sender);
        Ok(match status.as_u16() {
            204 => Answer::Nothing,
            200..=299 => Answer::Done(body),
            status => Answer::Refused(refusal(status, &body)),
        })
    }

    /// A kept connection that is still good.
    fn take(&self) -> Option<Sender> {
        let mut kept = self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(sender, used)| !sender.is_closed() && used.elapsed() < MAX_CONNECTION_IDLE);
        let ready = kept.iter().rposition(|(sender, _)| sender.is_ready())?;
        Some(kept.remove(ready).0)
    }

    fn keep(&self, sender: Sender) {
        let mut kept = self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((sender, Instant::now()));
        if kept.len() > MAX_IDLE_CONNECTIONS {
            kept.remove(0);
        }
    }

    async fn connect(&self) -> Result<Sender, Silence> {
        let (sender, connection) = handshake(TokioIo::new(self.secure().await?)).await?;
        // The task ends when the sender is dropped or the gateway closes the connection. Errors appear at the sender.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Forwards a request unchanged, on its own connection. The body of the answer is read as fast as the client takes it. If the
    /// client drops it, the connection ends, so that the gateway notices.
    pub async fn carry<B>(&self, mut request: Request<B>) -> Result<Response<Incoming>, Silence>
    where
        B: Body + Send + Unpin + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let bearer = bearer(&self.token()?)?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static(GATEWAY_TLS_NAME));
        headers.insert(AUTHORIZATION, bearer);
        if let Some(place) = self.place() {
            headers.insert(EXTERNAL_HEADER, place);
        }
        let mut builder = http1::Builder::new();
        builder.max_buf_size(CARRY_BUFFER_BYTES);
        let (mut sender, connection) = builder.handshake(TokioIo::new(self.secure().await?)).await?;
        tokio::spawn(async move {
            let _ = connection.await; // errors appear at the answer
        });
        Ok(sender.send_request(request).await?)
    }

    async fn secure(&self) -> Result<TlsStream<TcpStream>, Silence> {
        let config = self.trusted()?;
        let name = ServerName::try_from(GATEWAY_TLS_NAME).map_err(|error| Silence::Connect(std::io::Error::other(error)))?;
        let connecting = async {
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            TlsConnector::from(config).connect(name, stream).await
        };
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| Silence::TimeOut)?.map_err(Silence::Connect)
    }

    /// The TLS configuration. The file of certificates is read for each connection, and used again after a change.
    fn trusted(&self) -> Result<Arc<ClientConfig>, Silence> {
        let trouble = |source| Silence::File { path: self.ca.clone(), source };
        let pem = files::read(&self.ca, MAX_FILE_BYTES).map_err(trouble)?.ok_or_else(|| trouble(std::io::ErrorKind::NotFound.into()))?;
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, config)) = &*trust
            && *known == pem
        {
            return Ok(config.clone());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
        if roots.is_empty() {
            return Err(Silence::NoCertificate(self.ca.clone()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Connections are few and kept, so that saved memory matters more than a shorter handshake.
        config.resumption = rustls::client::Resumption::disabled();
        let config = Arc::new(config);
        *trust = Some((pem, config.clone()));
        Ok(config)
    }
}

fn bearer(token: &str) -> Result<HeaderValue, Silence> {
    let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(hyper::http::Error::from)?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

fn request(call: &Call, token: &str, place: Option<HeaderValue>) -> Result<Request<Full<Bytes>>, Silence> {
    let bearer = bearer(token)?;
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(&call.path)
        .header(HOST, GATEWAY_TLS_NAME)
        .header(USER_AGENT, concat!("spillway-link/", env!("CARGO_PKG_VERSION")))
        .header(AUTHORIZATION, bearer);
    if !call.body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let Some(key) = &call.key {
        request = request.header(IDEMPOTENCY_KEY_HEADER, key);
    }
    if let Some(place) = place {
        request = request.header(EXTERNAL_HEADER, place);
    }
    Ok(request.body(Full::new(Bytes::from(call.body.clone())))?)
}

/// The refusal in an answer. A body in another format, for example of a proxy, counts by its status alone, and never as a
/// statement about the agent.
pub fn refusal(status: u16, body: &[u8]) -> Refusal {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        let code = match status {
            401 => Code::InvalidToken,
            403 => Code::NotAllowed,
            404 => Code::NoSuchCall,
            429 => Code::TooManyCalls,
            502..=504 => Code::GovernorAway,
            _ => Code::Unknown,
        };
        Refusal::new(code, format!("the gateway answered {status}"))
    })
}

/// The error about an answer that does not follow the API.
pub fn not_understood(error: &serde_json::Error) -> Refusal {
    Refusal::new(spillway_wire::Code::Internal, format!("the gateway's answer is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_our_shape_is_no_verdict_on_the_agent() {
        assert_eq!(refusal(403, b"<html>").code, Code::NotAllowed);
        assert_eq!(refusal(503, b"").code, Code::GovernorAway);
        assert_eq!(refusal(403, b"{\"code\": \"agent_ended\", \"message\": \"x\"}").code, Code::AgentEnded);
    }
}
