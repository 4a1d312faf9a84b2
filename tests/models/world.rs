//! Support of the tests of model calls: a fake cluster, a governor that gives holds and counts, and a scripted
//! provider, all over real TLS on loopback.

#[path = "world/governor.rs"]
mod governor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use serde_json::{Value, json};
use spillway::bridge::client::BridgeClient;
use spillway::cluster::access::Authorizer;
use spillway::cluster::token::Reviewer;
use spillway::gateway::artifacts::{ArtifactSettings, Artifacts};
use spillway::gateway::credentials::{Credentials, Purpose};
use spillway::gateway::git::Git;
use spillway::gateway::governor::{Governor, Settings};
use spillway::gateway::limits::Limits;
use spillway::gateway::long_poll::LongPolls;
use spillway::gateway::meter::Meter;
use spillway::gateway::models::upstream::Upstream;
use spillway::gateway::models::{Models, Times};
use spillway::gateway::routes::{AGENT_BODY_LIMITS, routes};
use spillway::gateway::state::Gateway;
use spillway::gateway::tools::Tools;
use spillway::governor::server::refusal_response;
use spillway::origins::Origins;
use spillway::pki::authority::{PemKeyPair, authority, serving};
use spillway::pki::tls::{self, Serving};
use spillway::serve::fair_semaphore::FairSemaphore;
use spillway::serve::request_body::BodyMemory;
use spillway::serve::{Bounds, Connection, bind, serve_tls};
use spillway::telemetry::Metrics;
use spillway::wire::governor::{CALLER_AGENT_UID_HEADER, Change, OWNER_EPOCH_HEADER};
use spillway::wire::meter::{
    Begin, CallEnd, Dialect, Extend, Extended, Hold, HoldAnswer, JournaledHold, MeterAck, ModelRoute, Settle, Settles, Target,
};
use spillway::wire::shortage::LimitRoom;
use spillway::wire::{Code, GATEWAY_AUDIENCE, GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME, Refusal};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower::util::MapRequestLayer;

pub use governor::{Leader, Table};

/// Longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
const BOUNDS: Bounds = Bounds { shutdown_timeout: Duration::ZERO, ..Bounds::AGENTS };

/// Waits until `look` returns a value.
pub async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Admits every client: providers and governors of the tests check no token.
fn admit_client(request: Request) -> Request {
    request.extensions().get::<Connection>().expect("served").admit("clients").expect("a place");
    request
}

async fn served(pair: &PemKeyPair, routes: axum::Router, second: bool) -> SocketAddr {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let certificate = Serving::default();
    certificate.set(pair).expect("a certificate");
    let mut config = tls::server(certificate);
    if !second {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    let routes = routes.layer(MapRequestLayer::new(admit_client));
    tokio::spawn(serve_tls(listener, config, BOUNDS, routes, Metrics::default(), CancellationToken::new()));
    address
}

/// The provider's next answer.
#[derive(Clone, Debug)]
pub enum Script {
    /// An answer in one piece.
    Json(u16, Value),
    /// A stream.
    Events(String),
    /// A stream that is cut after this, on the test's signal.
    Cut(String),
    /// A stream that continues without an end after this.
    Endless(String),
    /// A redirect.
    Redirect(String),
    /// No answer.
    Never,
}

/// A call that reached the provider.
#[derive(Clone, Debug)]
pub struct SeenCalls {
    pub line: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Default)]
pub struct Provider {
    pub seen: Mutex<Vec<SeenCalls>>,
    scripts: Mutex<VecDeque<Script>>,
    pub pushed: AtomicUsize,
    /// Cuts a stream.
    pub cut: Notify,
}

impl Provider {
    pub fn queue_script(&self, script: Script) {
        self.scripts.lock().expect("whole").push_back(script);
    }

    pub fn calls(&self) -> usize {
        self.seen.lock().expect("whole").len()
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let seen = SeenCalls { line: format!("{} {path}", head.method), headers: head.headers, body };
        self.seen.lock().expect("whole").push(seen);
        let script = self.scripts.lock().expect("whole").pop_front();
        let events = |body: Body| ([("content-type", "text/event-stream")], body).into_response();
        match script.unwrap_or(Script::Never) {
            Script::Json(status, body) => {
                let status = StatusCode::from_u16(status).expect("a status");
                (status, [("content-type", "application/json")], body.to_string()).into_response()
            }
            Script::Events(text) => events(Body::from(text)),
            Script::Cut(text) => {
                let provider = self.clone();
                let parts = futures::stream::unfold(Some(text), move |first| {
                    let provider = provider.clone();
                    async move {
                        match first {
                            Some(text) => Some((Ok(Bytes::from(text)), None)),
                            None => {
                                provider.cut.notified().await;
                                Some((Err(std::io::Error::other("cut")), None))
                            }
                        }
                    }
                });
                events(Body::from_stream(parts))
            }
            Script::Endless(text) => {
                let provider = self.clone();
                let parts = futures::stream::unfold(Some(text), move |first| {
                    let provider = provider.clone();
                    async move {
                        provider.pushed.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        let part = first.unwrap_or_else(|| "event: ping\ndata: {\"type\": \"ping\"}\n\n".repeat(200));
                        Some((Ok::<_, Infallible>(Bytes::from(part)), None))
                    }
                });
                events(Body::from_stream(parts))
            }
            Script::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [("location", to)]).into_response(),
            Script::Never => std::future::pending().await,
        }
    }
}

/// Secrets by name. Others are missing, and `forbidden` is forbidden.
pub type Secrets = Arc<Mutex<BTreeMap<String, Value>>>;

pub fn secret(type_: &str, origin: &str, token: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": type_, "stringData": {},
        "data": {"origin": base64(origin), "token": base64(token)}})
}

fn base64(text: &str) -> String {
    const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let number = chunk.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let sign = SIGNS[(number >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(sign) } else { '=' });
        }
    }
    out
}

/// Users who may register agents outside the cluster, each as `USER NAMESPACE/POOL`, and the number of reviews.
#[derive(Default)]
pub struct Rights {
    pub allowed: BTreeSet<String>,
    pub asked: usize,
}

fn cluster(governor: SocketAddr, secrets: Secrets, rights: Arc<Mutex<Rights>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (secrets, rights) = (secrets.clone(), rights.clone());
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let (status, answer) = if path.contains("/leases/") {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": "l", "annotations": {"spillway.dev/governor": governor.to_string()}},
                    "spec": {"holderIdentity": "me"}});
                (200, lease)
            } else if path.ends_with("/tokenreviews") {
                let review: Value = serde_json::from_slice(&body).expect("a review");
                let name = review["spec"]["token"].as_str().unwrap_or_default();
                let person = name.strip_prefix("user-");
                let extra = json!({"authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [format!("uid-{name}")]});
                let namespace = if name == "pod-of-others" { "others" } else { "team" };
                let pods = json!({"username": format!("system:serviceaccount:{namespace}:default"), "extra": extra});
                let user = person.map_or(pods, |name| json!({"username": name, "groups": ["people"]}));
                let known = name.starts_with("pod") || person.is_some();
                let status = json!({"authenticated": known, "user": user, "audiences": [GATEWAY_AUDIENCE]});
                (
                    201,
                    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": review["spec"], "status": status}),
                )
            } else if path.ends_with("/subjectaccessreviews") {
                let review: Value = serde_json::from_slice(&body).expect("a review");
                let (spec, attributes) = (&review["spec"], &review["spec"]["resourceAttributes"]);
                assert_eq!(spec["groups"], json!(["people"]), "all that is known of the user is asked about");
                assert_eq!((&attributes["resource"], &attributes["subresource"]), (&json!("agentpools"), &json!("external")));
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let right = format!("{} {}/{}", text(&spec["user"]), text(&attributes["namespace"]), text(&attributes["name"]));
                let mut rights = rights.lock().expect("whole");
                rights.asked += 1;
                let status = json!({"allowed": rights.allowed.contains(&right)});
                (
                    201,
                    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec, "status": status}),
                )
            } else {
                let name = path.rsplit('/').next().unwrap_or_default();
                let failed = |code: u16, reason: &str| {
                    (
                        code,
                        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
                    )
                };
                match secrets.lock().expect("whole").get(name) {
                    _ if name == "forbidden" => failed(403, "Forbidden"),
                    Some(secret) => (200, secret.clone()),
                    None => failed(404, "NotFound"),
                }
            };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(status).body(body).expect("an answer"))
        }
    });
    Client::new(service, "spillway-system")
}

/// The whole test cluster.
pub struct TestCluster {
    pub leader: Arc<Leader>,
    pub provider: Arc<Provider>,
    pub origin: String,
    pub secrets: Secrets,
    pub rights: Arc<Mutex<Rights>>,
    pub folder: PathBuf,
    /// Fields that a gateway forwards although they can cost more than the tokens.
    pub allowed_fields: Vec<String>,
    ca: PemKeyPair,
    provider_certificate: String,
    address: SocketAddr,
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl TestCluster {
    pub async fn new() -> Self {
        Self::with(true).await
    }

    /// Sets it up with a provider that speaks HTTP/2, or only HTTP/1.1.
    pub async fn with(second: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // another test may have installed it
        let name = format!("spillway-models-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("token"), "gateway-token").expect("written");
        let now = jiff::Timestamp::now().as_second();
        let ca = authority(now).expect("a CA");
        let provider = Arc::new(Provider::default());
        // Spillway's own CA signs no provider's certificate.
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let pair = PemKeyPair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem(), times: ca.times };
        let answers = provider.clone();
        let app = axum::Router::new().fallback(move |request: Request| answers.clone().answer(request));
        let port = served(&pair, app, second).await.port();
        let provider_certificate = pair.certificate;
        let origin = format!("https://localhost:{port}");
        let target = Target { origin: origin.clone(), dialect: Dialect::Anthropic, credential: Some("key".into()), credential_type: None };
        let table = Table {
            begins: vec![],
            known_sessions: BTreeSet::new(),
            holds: vec![],
            open: BTreeMap::new(),
            settles: vec![],
            extends: vec![],
            routes: vec![],
            agent_calls: vec![],
            acked: BTreeMap::new(),
            next_refusals: VecDeque::new(),
            answers_to_lose: 0,
            target,
            ended: false,
            away: false,
            turned_away: 0,
            token_requests: 0,
            silent: false,
        };
        let leader = Arc::new(Leader { table: Mutex::new(table), changes: broadcast::channel(16).0, cut: broadcast::channel(4).0 });
        let routes = axum::Router::new().fallback(Leader::answer).with_state(leader.clone());
        let pair = serving(&ca, GOVERNOR_TLS_NAME, now).expect("a certificate");
        let address = served(&pair, routes, true).await;
        let secrets = Secrets::default();
        secrets.lock().expect("whole").insert("key".into(), secret("spillway.dev/model-credential", &origin, "team-key"));
        let rights = Arc::default();
        Self { leader, provider, origin, secrets, rights, folder, allowed_fields: Vec::new(), ca, provider_certificate, address }
    }

    /// A gateway with the journal `journal`.
    pub fn gateway(&self, journal: &str, times: Times, private: bool) -> Side {
        let client = cluster(self.address, self.secrets.clone(), self.rights.clone());
        let long_polls = LongPolls::default();
        let settings =
            Settings { namespace: "spillway-system".into(), lease: "l".into(), token: self.folder.join("token"), identity: journal.into() };
        let (trusting, trusted) = tokio::sync::watch::channel(self.ca.certificate.clone());
        let governor = Governor::new(settings, client.clone(), trusted, long_polls.clone());
        let meter = Meter::open(governor.clone(), Some(self.folder.join(journal)), Some(journal)).expect("a journal");
        let mut tasks = tokio::task::JoinSet::new();
        let (listening, telling) = (governor.clone(), meter.clone());
        tasks.spawn(async move {
            let _trusting = trusting;
            listening.run(|_| ()).await;
        });
        tasks.spawn(telling.run());
        let origins = json!([{"origin": self.origin, "allowPrivate": private, "caBundle": self.provider_certificate}]).to_string();
        let upstream = Upstream::new(Origins::parse(&origins).expect("origins"));
        let credentials = Credentials::new(Purpose::Models, client.clone(), "spillway-gateway", "spillway-system");
        let mut models = Models::new(meter.clone(), upstream.clone(), credentials, times);
        models.allowed_fields.clone_from(&self.allowed_fields);
        let models = Arc::new(models);
        let metrics = Metrics::default();
        let (reviewer, authorizer) = (Reviewer::new(client.clone(), GATEWAY_AUDIENCE), Some(Authorizer::new(client.clone())));
        let (limits, bodies) = (Mutex::new(Limits::default()), BodyMemory::new(AGENT_BODY_LIMITS));
        let readers = models.readers.clone();
        let lease_history = Default::default();
        let gateway = Gateway {
            reviewer,
            people: Reviewer::new(client.clone(), "people"),
            authorizer,
            governor,
            long_polls: long_polls.clone(),
            limits,
            bodies,
            metrics: metrics.clone(),
            models,
            egress: spillway::gateway::egress::Egress::new(Default::default(), Default::default()),
            git: Git::new(Default::default(), Credentials::new(Purpose::Git, client.clone(), "spillway-gateway", "spillway-system")),
            tools: Tools::new(BridgeClient::new(Default::default(), client.clone()).expect("a client of bridges")),
            artifacts: Artifacts::new(&ArtifactSettings::default()).expect("no store"),
            lease_history,
        };
        Side { routes: routes(Arc::new(gateway)), long_polls, metrics, upstream, readers, _tasks: tasks }
    }
}

impl TestCluster {
    /// Serves `side` to agents.
    pub async fn serve(&self, side: &Side, bounds: Bounds) -> SocketAddr {
        self.listen(side.routes.clone(), side.metrics.clone(), bounds).await
    }

    /// Serves `routes` like those of a gateway.
    pub async fn listen(&self, routes: axum::Router, metrics: Metrics, bounds: Bounds) -> SocketAddr {
        let pair = serving(&self.ca, GATEWAY_TLS_NAME, jiff::Timestamp::now().as_second()).expect("a certificate");
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let certificate = Serving::default();
        certificate.set(&pair).expect("a certificate");
        tokio::spawn(serve_tls(listener, tls::server(certificate), bounds, routes, metrics, CancellationToken::new()));
        address
    }

    /// Certificates to trust.
    pub fn bundle(&self) -> String {
        self.ca.certificate.clone()
    }
}

/// A gateway.
pub struct Side {
    routes: axum::Router,
    pub long_polls: LongPolls,
    pub metrics: Metrics,
    pub upstream: Arc<Upstream>,
    pub readers: FairSemaphore,
    _tasks: tokio::task::JoinSet<()>,
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body; none if it was cut.
    pub body: Option<String>,
}

impl Side {
    pub async fn send(&self, request: http::Request<Body>) -> Response {
        self.routes.clone().oneshot(request).await.expect("an answer")
    }

    pub async fn ask(&self, request: http::Request<Body>) -> Got {
        let (head, body) = self.send(request).await.into_parts();
        let body = body.collect().await.ok().map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        Got { status: head.status.as_u16(), headers: head.headers, body }
    }
}

/// A call of Anthropic Messages, as a client makes it.
pub fn messages(stream: bool) -> http::Request<Body> {
    let body = json!({"model": "claude-x", "max_tokens": 64, "stream": stream, "messages": [{"role": "user", "content": "hello"}]});
    http::Request::post("/models/claude/v1/messages?beta=true&key=mine")
        .header("authorization", "Bearer pod-a")
        .header("x-api-key", "of-the-client")
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header("spillway-item", "item-uid/4")
        .body(Body::from(body.to_string()))
        .expect("a request")
}
