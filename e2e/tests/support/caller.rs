//! A caller of a gateway or a governor, with any token: HTTPS under the fixed names, with the certificates that agents'
//! pods trust.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::ResourceExt;
use kube::api::PostParams;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use spillway::wire::governor::ADDRESS_ANNOTATION;
use spillway::wire::{GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME, Refusal};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{TestNamespace, eventually};

/// Longer than the gateway holds a long poll.
const PATIENCE: Duration = Duration::from_secs(60);

/// A caller: the address, the name in the server's certificate, and the token.
#[derive(Clone)]
pub struct Caller {
    address: SocketAddr,
    source: Option<IpAddr>,
    name: &'static str,
    config: Arc<ClientConfig>,
    token: Option<String>,
    headers: Vec<(&'static str, String)>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The refusal in the answer.
    pub fn refusal(&self) -> Refusal {
        assert!(self.status >= 400, "{self:?}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Caller {
    /// A caller without a token, at the namespace's gateway.
    pub async fn anonymous_at_gateway(room: &TestNamespace) -> Self {
        Self::new(room, room.gateway, GATEWAY_TLS_NAME).await
    }

    /// A caller without a token, at the governor of the namespace's current leader.
    pub async fn anonymous_at_governor(room: &TestNamespace) -> Self {
        let lease = room.api::<Lease>().get("spillway-controller").await.expect("the leader's lease");
        let address = lease.annotations().get(ADDRESS_ANNOTATION).expect("the leader's address").parse().expect("an address");
        Self::new(room, address, GOVERNOR_TLS_NAME).await
    }

    async fn new(room: &TestNamespace, address: SocketAddr, name: &'static str) -> Self {
        let bundle = eventually("the namespace has the ConfigMap with the CA", async || {
            let map = room.api::<ConfigMap>().get("spillway-ca").await.map_err(|error| error.to_string())?;
            map.data.and_then(|mut data| data.remove("ca.crt")).ok_or_else(|| "no ca.crt".to_owned())
        })
        .await;
        let mut config = spillway::pki::tls::client(&bundle).expect("certificates");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { address, source: None, name, config: Arc::new(config), token: None, headers: Vec::new() }
    }

    /// The same caller with this token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same caller with this header on every call.
    pub fn with_header(&self, header: &'static str, value: &str) -> Self {
        let mut same = self.clone();
        same.headers.push((header, value.to_owned()));
        same
    }

    /// The same caller at this address, that of another gateway.
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// The same caller from this address of the machine, as a pod has an address of its own.
    pub fn with_source(&self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self.clone() }
    }

    /// A connection after its TLS handshake, for bytes that no client sends.
    pub async fn raw(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(self.name).expect("a name");
        TlsConnector::from(self.config.clone()).connect(name, self.dial().await?).await
    }

    /// A connection that is held.
    pub async fn connect(&self) -> Result<Line, String> {
        let stream = self.raw().await.map_err(|error| error.to_string())?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Line { sender, caller: self.clone() })
    }

    async fn dial(&self) -> std::io::Result<TcpStream> {
        let Some(source) = self.source else { return TcpStream::connect(self.address).await };
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        socket.connect(self.address).await
    }

    /// One call on a connection of its own. `Err`: it was not answered.
    pub async fn try_call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<Answer, String> {
        self.connect().await?.call(method, path, body).await
    }

    /// One call, which must be answered.
    pub async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        self.try_call(method, path, body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Bytes::new()).await
    }
}

/// A connection that is held.
pub struct Line {
    sender: SendRequest<Full<Bytes>>,
    caller: Caller,
}

impl Line {
    /// One call on it. `Err`: it was not answered.
    pub async fn call(&mut self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<Answer, String> {
        self.call_for(PATIENCE, method, path, body).await
    }

    /// The same, with another time limit.
    pub async fn call_for(&mut self, patience: Duration, method: &str, path: &str, body: impl Into<Bytes>) -> Result<Answer, String> {
        let Caller { name, token, headers, .. } = &self.caller;
        let mut request = Request::builder().method(method).uri(path).header("host", *name).header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (header, value) in headers {
            request = request.header(*header, value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let answering = async {
            self.sender.ready().await.map_err(|error| error.to_string())?; // after an answer, that takes a moment
            let answer = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(patience, answering).await.unwrap_or_else(|_| Err("no answer came".to_owned()))
    }
}

/// A token for `audience`, of the ServiceAccount `account`, bound to `pod` if one is given. It is valid for ten
/// minutes, the shortest time of the API server.
pub async fn token(room: &TestNamespace, account: &str, audience: &str, pod: Option<&Pod>) -> String {
    let mut spec = json!({"audiences": [audience], "expirationSeconds": 600});
    if let Some(pod) = pod {
        spec["boundObjectRef"] = json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name_any(), "uid": pod.uid()});
    }
    let request: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a request");
    let accounts = room.api::<ServiceAccount>();
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await.expect("a token");
    answer.status.and_then(|status| status.token).expect("a token")
}

/// The token that `pod` itself shows to the gateway.
pub async fn token_of(room: &TestNamespace, pod: &Pod) -> String {
    token(room, "default", spillway::wire::GATEWAY_AUDIENCE, Some(pod)).await
}

/// A report of an idle agent.
pub fn report() -> Value {
    json!({"program": "running", "silentMs": 0})
}
