//! The attacker: a process of its own, with the provider of the hostile namespace. It carries out one attack at a time, until
//! the attack's time is over, and counts the outcomes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use spillway_wire::GATEWAY_TLS_NAME;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::provider::{Provider, Served, Streams};
use super::super::{GATEWAY_PATH, child};
use super::{authenticated, objects, unauthenticated};

/// The argument that starts it, before the address of its provider.
pub const ARGUMENT: &str = "hostile-callers";
/// The streams of its provider.
const STREAMS: Streams = Streams { events: 2000, pace: Duration::from_millis(1) };
/// Third byte of the addresses: of pods without a token, and of the hostile namespace's agents. Both are above the
/// addresses of simulated sidecars, which count up from 10.200.0.1.
const UNAUTHENTICATED_PODS: u8 = 240;
const AGENTS: u8 = 230;
/// First two bytes of the addresses.
const NETWORK: [u8; 2] = [10, 200];

/// One attack: it runs until it is dropped.
pub type Attack = fn(Arc<Attacker>) -> BoxFuture<'static, anyhow::Result<()>>;

/// All attacks: the name and the function.
pub fn attacks() -> Vec<(&'static str, Attack)> {
    [unauthenticated::ATTACKS.as_slice(), authenticated::ATTACKS.as_slice(), objects::ATTACKS.as_slice()].concat()
}

/// An order.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    /// Name of the attack.
    pub attack: String,
    /// Length of the attack.
    pub time: Duration,
    /// Address of the gateway.
    pub port: u16,
    /// Certificates to trust.
    pub bundle: String,
    /// Tokens of the hostile namespace's agents.
    pub tokens: Vec<String>,
    /// A namespace in which the attacker may create objects.
    pub namespace: String,
}

/// The outcome of an attack.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Outcome {
    /// Number of events, by their name.
    pub counts: BTreeMap<String, u64>,
    /// Tokens that the provider's whole answers reported so far, in all attacks.
    pub tokens: u64,
    /// Headers that steer a provider and have reached it so far.
    pub steering: u64,
    /// Why the attack could not be carried out.
    pub error: Option<String>,
}

/// The child process, seen from the benchmark.
pub struct Hostile {
    process: child::Process,
    /// The hostile namespace's provider.
    pub served: Served,
}

impl Hostile {
    /// Starts it, with a provider at `node`.
    pub async fn start(node: std::net::IpAddr) -> anyhow::Result<Self> {
        let (process, served) = child::Process::start(&[ARGUMENT, &node.to_string()]).await?;
        Ok(Self { process, served })
    }

    /// Carries out one attack.
    pub async fn attack(&self, order: &Order) -> anyhow::Result<Outcome> {
        self.process.order(order).await
    }
}

/// The child process, with a provider at `node`. It runs until its input ends.
pub fn main(node: &str) -> anyhow::Result<()> {
    child::yield_to_others()?;
    crate::runtime()?.block_on(serve(node))
}

async fn serve(node: &str) -> anyhow::Result<()> {
    let provider = Provider::serve(node.parse()?, STREAMS).await?;
    child::answer(&provider.served)?;
    while let Some(order) = child::next_order::<Order>().await? {
        let attacker = Arc::new(Attacker::new(&order).await?);
        let attack = attacks().into_iter().find(|(name, _)| *name == order.attack).context("no such attack")?.1;
        let error = match tokio::time::timeout(order.time, attack(attacker.clone())).await {
            Ok(Err(error)) => Some(format!("{error:#}")),
            Ok(Ok(())) | Err(_) => None,
        };
        let counts = std::mem::take(&mut *attacker.counts.lock().unwrap_or_else(PoisonError::into_inner));
        let [tokens, steering] = [&provider.counts.tokens, &provider.counts.steering].map(|number| number.load(Ordering::Relaxed));
        child::answer(&Outcome { counts, tokens, steering, error })?;
    }
    Ok(())
}

/// The resources of an attack.
pub struct Attacker {
    tls: Arc<ClientConfig>,
    port: u16,
    /// Tokens of the hostile namespace's agents.
    pub tokens: Vec<String>,
    /// A namespace in which it may create objects.
    pub namespace: String,
    /// A client with the rights of a user who may edit that namespace.
    pub client: kube::Client,
    counts: Mutex<BTreeMap<String, u64>>,
}

/// A protocol that a connection offers.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    First,
    Second,
}

impl Attacker {
    async fn new(order: &Order) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(order.bundle.as_bytes()) {
            roots.add(certificate.context("a certificate to trust")?)?;
        }
        let mut tls =
            ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]).with_root_certificates(roots).with_no_client_auth();
        tls.resumption = rustls::client::Resumption::disabled();
        let (tokens, namespace) = (order.tokens.clone(), order.namespace.clone());
        let client = kube::Client::try_default().await?;
        Ok(Self { tls: Arc::new(tls), port: order.port, tokens, namespace, client, counts: Mutex::default() })
    }

    /// Counts that something happened.
    pub fn count(&self, what: impl Into<String>) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += 1;
    }

    /// Address of the gateway for the pod without a token that has this number.
    pub fn unauthenticated_pod(&self, number: u8) -> SocketAddr {
        let [first, second] = NETWORK;
        (Ipv4Addr::new(first, second, UNAUTHENTICATED_PODS, number), self.port).into()
    }

    /// Address of the gateway for the hostile agent that has this number.
    pub fn agent(&self, number: usize) -> SocketAddr {
        let [first, second] = NETWORK;
        (Ipv4Addr::new(first, second, AGENTS, u8::try_from(number).unwrap_or(u8::MAX)), self.port).into()
    }

    /// A connection after its TLS handshake.
    pub async fn connect(&self, to: SocketAddr, protocol: Protocol) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let mut config = (*self.tls).clone();
        config.alpn_protocols = match protocol {
            Protocol::First => vec![b"http/1.1".to_vec()],
            Protocol::Second => vec![b"h2".to_vec()],
        };
        let name = ServerName::try_from(GATEWAY_TLS_NAME).context("a name")?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    /// A connection for calls by HTTP/1.1.
    pub async fn first<B>(&self, to: SocketAddr) -> anyhow::Result<http1::SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect(to, Protocol::First).await?)).await?;
        // The calls show how the connection ended.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// A connection for calls by HTTP/2, which answers pings.
    pub async fn second<B>(&self, to: SocketAddr) -> anyhow::Result<http2::SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(self.connect(to, Protocol::Second).await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// A request of the agent with this number.
    pub fn request<B>(&self, agent: usize, method: Method, path: &str, body: B) -> anyhow::Result<Request<B>> {
        let token = &self.tokens[agent % self.tokens.len()];
        let request = Request::builder().method(method).uri(path).header(HOST, "gateway").header(CONTENT_TYPE, "application/json");
        Ok(request.header(AUTHORIZATION, format!("Bearer {token}")).body(body)?)
    }

    /// A call of a model by the agent with this number.
    pub fn call<B>(&self, agent: usize, body: B) -> anyhow::Result<Request<B>> {
        self.request(agent, Method::POST, GATEWAY_PATH, body)
    }

    /// Counts how a call ended.
    pub fn answered<E: std::fmt::Display>(&self, answer: &Result<Response<Incoming>, E>) {
        match answer {
            Ok(answer) => self.count(format!("answered {}", answer.status().as_u16())),
            Err(_) => self.count("connection ended"),
        }
    }
}
