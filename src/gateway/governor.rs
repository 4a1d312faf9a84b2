//! The connection to the leading governor: found by the leader Lease, kept open, replaced when another leader takes
//! over.
//!
//! The highest owner epoch that was seen is kept. An answer with a lower epoch comes from a leader that was replaced
//! and does not know it yet. The answer is refused, and the leader is looked for again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::long_poll::LongPolls;
use crate::cluster::token::{ExternalUser, PodIdentity};
use crate::pki::tls;
use crate::policy::lease::{REPLAY_HISTORY_TTL, SeenLeader};
use crate::wire::body::MAX_BODY_BYTES;
use crate::wire::governor::{
    ADDRESS_ANNOTATION, CALLER_AGENT_UID_HEADER, CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_POOL_HEADER, CALLER_UID_HEADER,
    CALLER_USER_HEADER, Change, GATEWAY_HEADER, LEASE_VERSION_HEADER, OWNER_EPOCH_HEADER, ROLLED_BACK_HEADER, SEEN_EPOCH_HEADER,
    SEEN_VERSION_HEADER,
};
use crate::wire::{Code, GOVERNOR_TLS_NAME, Refusal};

/// How long the governor has to answer a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A stream of changes that is silent for this long is dead.
const STREAM_SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the token's file is not read again.
const TOKEN_READ_INTERVAL: Duration = Duration::from_secs(10);
/// Between two tries to find and reach the leader.
const LEADER_RETRY_DELAY: Duration = Duration::from_millis(250);

/// How to find the governor, and our identity.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the leader Lease.
    pub namespace: String,
    /// Name of the leader Lease.
    pub lease: String,
    /// File with our token for the governor.
    pub token: PathBuf,
    /// Our name. No two processes have the same.
    pub identity: String,
}

type Sender = SendRequest<Full<Bytes>>;

/// A connection, and the token that ends its session.
#[derive(Clone)]
struct Connection {
    sender: Sender,
    end: CancellationToken,
}

/// The client of the leading governor. Cheap to clone.
#[derive(Clone)]
pub struct Governor {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    leases: Api<Lease>,
    /// Trusted certificates, as PEM.
    trusted: watch::Receiver<String>,
    long_polls: LongPolls,
    /// Our token as a header, and when it was read.
    bearer: Mutex<Option<(Instant, HeaderValue)>>,
    connection: Mutex<Option<Connection>>,
    /// The number of the current connection. A connection with another number may be to another leader.
    connection_number: watch::Sender<Option<u64>>,
    /// The last leader, and the time of its last answer. An answer with a lower epoch comes from a replaced leader.
    last_leader: Mutex<Option<(SeenLeader, Instant)>>,
    /// The leader's store was rolled back in the last minutes.
    rolled_back: AtomicBool,
}

impl Governor {
    /// Not connected yet.
    pub fn new(settings: Settings, client: Client, trusted: watch::Receiver<String>, long_polls: LongPolls) -> Self {
        let leases = Api::namespaced(client, &settings.namespace);
        let numbers = watch::channel(None).0;
        let (bearer, connection) = (Mutex::default(), Mutex::default());
        let (seen, rolled_back) = (Mutex::default(), AtomicBool::new(false));
        Self {
            shared: Arc::new(Shared {
                settings,
                leases,
                trusted,
                long_polls,
                bearer,
                connection,
                connection_number: numbers,
                last_leader: seen,
                rolled_back,
            }),
        }
    }

    /// Whether the leader's store was rolled back in the last minutes, so that it has lost what earlier leaders acknowledged.
    pub fn store_rolled_back(&self) -> bool {
        self.shared.rolled_back.load(Ordering::SeqCst)
    }

    /// Whether there is a connection.
    pub fn connected(&self) -> bool {
        self.connection().is_some()
    }

    fn connection(&self) -> Option<Connection> {
        self.shared.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, connection: Option<Connection>, number: u64) {
        let there = connection.is_some();
        *self.shared.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
        self.shared.connection_number.send_replace(there.then_some(number));
    }

    /// The number of the current connection, as it changes. The epoch of its leader is recorded before a number is
    /// published.
    pub fn connections(&self) -> watch::Receiver<Option<u64>> {
        self.shared.connection_number.subscribe()
    }

    /// Finds the leader, reads its stream of changes, and starts again when the stream ends. Never returns.
    pub async fn run(self, tell: impl Fn(bool)) {
        let mut last = String::new();
        for number in 1.. {
            let ended = self.session(number, &tell).await;
            self.set(None, number);
            tell(false);
            self.shared.long_polls.changes_missed();
            if let Err(error) = ended {
                let error = format!("{error:#}");
                if error != last {
                    tracing::warn!(error, "no connection to the governor; trying again");
                    last = error;
                }
            }
            tokio::time::sleep(LEADER_RETRY_DELAY.mul_f64(0.5 + rand::random::<f64>())).await;
        }
    }

    /// One connection, until it ends, is silent, or belongs to a replaced leader.
    async fn session(&self, number: u64, tell: &impl Fn(bool)) -> anyhow::Result<()> {
        let address = tokio::time::timeout(ANSWER_TIMEOUT, self.find()).await.context("the API server does not answer")??;
        let sender = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(&address)).await.context("the governor does not answer")??;
        let mut request = self.request("GET", "/governor/v1/changes", None)?;
        // With this the leader can detect a rollback of the store that happened before it led.
        if let Some(SeenLeader { epoch, version }) = self.seen_leader() {
            request = request.header(SEEN_EPOCH_HEADER, epoch).header(SEEN_VERSION_HEADER, version);
        }
        let request = request.body(Full::default())?;
        let mut sending = sender.clone();
        let answer =
            tokio::time::timeout(ANSWER_TIMEOUT, sending.send_request(request)).await.context("the governor does not answer")??;
        ensure!(answer.status().is_success(), "the governor at {address} answers with status {}", answer.status());
        // The Lease that was just read is the authority: after a restore of the cluster the epoch of its holder may be
        // lower than the highest that we saw. A replaced leader is not in a Lease that is read after its successor was
        // seen.
        let epoch = epoch_of(&answer)?;
        *self.shared.last_leader.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((SeenLeader { epoch, version: version_of(&answer) }, Instant::now()));
        self.shared.rolled_back.store(answer.headers().contains_key(ROLLED_BACK_HEADER), Ordering::SeqCst);
        let end = CancellationToken::new();
        self.set(Some(Connection { sender, end: end.clone() }), number);
        self.shared.long_polls.changes_missed();
        tracing::info!(address, epoch, "connected to the governor");
        tell(true);
        let mut body = answer.into_body();
        let mut text = Vec::new();
        loop {
            let frame = tokio::select! {
                frame = tokio::time::timeout(STREAM_SILENCE_TIMEOUT, body.frame()) => frame.context("the governor is silent")?,
                () = end.cancelled() => bail!("the governor at {address} was replaced by another leader"),
            };
            let Some(frame) = frame else { return Ok(()) };
            let Ok(data) = frame?.into_data() else { continue };
            text.extend_from_slice(&data);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                match serde_json::from_slice::<Change>(&line) {
                    Ok(change) => self.shared.long_polls.apply(change),
                    // A newer controller may send changes that this version does not know.
                    Err(error) => tracing::debug!(%error, "an unknown change from the governor is ignored"),
                }
            }
            ensure!(text.len() <= MAX_BODY_BYTES, "a line of the stream of changes has more than {MAX_BODY_BYTES} bytes");
        }
    }

    async fn find(&self) -> anyhow::Result<String> {
        let name = &self.shared.settings.lease;
        let Some(lease) = self.shared.leases.get_opt(name).await.context("cannot read the leader Lease")? else {
            bail!("the Lease {name} does not exist: no controller has led yet");
        };
        let held = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty());
        ensure!(held, "the Lease {name} has no holder now");
        lease
            .metadata
            .annotations
            .and_then(|mut all| all.remove(ADDRESS_ANNOTATION))
            .with_context(|| format!("the Lease {name} does not have the address of its holder (annotation {ADDRESS_ANNOTATION})"))
    }

    async fn connect(&self, address: &str) -> anyhow::Result<Sender> {
        let config = tls::client(&self.shared.trusted.borrow())?;
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(GOVERNOR_TLS_NAME)?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = connecting.await.with_context(|| format!("cannot set up TLS with {address}"))?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // The timeout of the stream of changes detects a dead connection.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the governor ended");
            }
        });
        Ok(sender)
    }

    fn request(&self, method: &str, path: &str, caller: Option<&PodIdentity>) -> anyhow::Result<http::request::Builder> {
        let identity = &self.shared.settings.identity;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{GOVERNOR_TLS_NAME}{path}"))
            .header(http::header::AUTHORIZATION, self.bearer()?)
            .header(GATEWAY_HEADER, identity);
        if let Some(PodIdentity { namespace, name, uid, external }) = caller {
            request = request.header(CALLER_NAMESPACE_HEADER, namespace).header(CALLER_POD_HEADER, name);
            request = match external {
                None => request.header(CALLER_UID_HEADER, uid),
                Some(ExternalUser { user, pool, enrols: _ }) => request
                    .header(CALLER_AGENT_UID_HEADER, uid)
                    .header(CALLER_USER_HEADER, user.as_bytes())
                    .header(CALLER_POOL_HEADER, pool),
            };
        }
        Ok(request)
    }

    /// Our token. Its file is read again after a while: the kubelet replaces the token long before it expires.
    fn bearer(&self) -> anyhow::Result<HeaderValue> {
        let mut bearer = self.shared.bearer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, known)) = bearer.as_ref()
            && read.elapsed() < TOKEN_READ_INTERVAL
        {
            return Ok(known.clone());
        }
        let file = &self.shared.settings.token;
        let token = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let value = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
        *bearer = Some((Instant::now(), value.clone()));
        Ok(value)
    }

    /// Makes one call for an agent. Returns the status and the body of the answer.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        caller: &PodIdentity,
        key: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<(u16, Bytes), Refusal> {
        self.exchange(method, path, Some(caller), key, body).await
    }

    /// Makes one call of the gateway, for an agent if one is named, and reads its answer.
    pub async fn call_json<B: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        caller: Option<&PodIdentity>,
        body: &B,
    ) -> Result<A, Refusal> {
        let internal = |error: serde_json::Error| Refusal::new(Code::Internal, format!("{path}: {error}"));
        let body = Bytes::from(serde_json::to_vec(body).map_err(internal)?);
        let (status, answer) = self.exchange("POST", path, caller, None, body).await?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&answer).map_err(internal);
        }
        let unread = |_| Refusal::unavailable(format!("the governor answers with status {status} and without a reason"));
        Err(serde_json::from_slice(&answer).unwrap_or_else(unread))
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        caller: Option<&PodIdentity>,
        key: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<(u16, Bytes), Refusal> {
        let away = |why: String| Refusal::unavailable(format!("the governor cannot be reached now ({why}); try again"));
        let Connection { mut sender, end } = self.connection().ok_or_else(|| away("no connection".into()))?;
        let mut request = self.request(method, path, caller).map_err(|error| away(format!("{error:#}")))?;
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(body)).map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
        let calling = async {
            let answer = sender.send_request(request).await?;
            // A refused answer ends its own connection. The current connection may be a newer leader's, and stays open.
            self.accept_epoch(&answer).inspect_err(|_| end.cancel())?;
            let status = answer.status().as_u16();
            if status == 401 {
                *self.shared.bearer.lock().unwrap_or_else(PoisonError::into_inner) = None; // the file is read again
            }
            anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, calling).await;
        answered.map_err(|_| away("no answer".into()))?.map_err(|error| away(format!("{error:#}")))
    }

    /// Refuses the answer of a replaced leader.
    fn accept_epoch(&self, answer: &Response<Incoming>) -> anyhow::Result<()> {
        let (epoch, version) = (epoch_of(answer)?, version_of(answer));
        let mut seen = self.shared.last_leader.lock().unwrap_or_else(PoisonError::into_inner);
        let (highest, before) = seen.map_or((epoch, 0), |(leader, _)| (leader.epoch, leader.version));
        // Only the answer is dropped. The current connection may be to another leader by now.
        ensure!(epoch >= highest, "the answer has owner epoch {epoch}, but a leader with owner epoch {highest} was seen");
        let version = if epoch == highest { version.max(before) } else { version };
        *seen = Some((SeenLeader { epoch, version }, Instant::now()));
        Ok(())
    }

    /// The last leader, if it answered within [`REPLAY_HISTORY_TTL`]. Answers of an older one would not be replayed.
    fn seen_leader(&self) -> Option<SeenLeader> {
        let seen = *self.shared.last_leader.lock().unwrap_or_else(PoisonError::into_inner);
        seen.filter(|(_, at)| at.elapsed() < REPLAY_HISTORY_TTL).map(|(leader, _)| leader)
    }
}

/// The version of the leader's Lease. 0: the controller is older and does not send it.
fn version_of(answer: &Response<Incoming>) -> u64 {
    answer.headers().get(LEASE_VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// The owner epoch of the leader that answered.
fn epoch_of(answer: &Response<Incoming>) -> anyhow::Result<i64> {
    let epoch = answer.headers().get(OWNER_EPOCH_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    epoch.with_context(|| format!("the answer has no owner epoch (header {OWNER_EPOCH_HEADER})"))
}
