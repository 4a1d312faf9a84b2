//! A gateway of the agents' API over real TLS, controlled by a test.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use super::{Folder, PATIENCE, write};

/// A call, as it came.
#[derive(Clone, Debug)]
pub struct Call {
    pub path: String,
    pub token: String,
    pub key: Option<String>,
    /// The item of a model call.
    pub item: Option<String>,
    /// A key that the program sent.
    pub shown: Option<String>,
    /// The agent outside the cluster that the call names.
    pub place: Option<String>,
    pub body: Value,
    pub status: u16,
}

struct Shared {
    calls: Vec<Call>,
    settings: Value,
    wanted: Value,
    tokens: Vec<String>,
    away: bool,
    /// Other answers, to calls with this text in their path.
    instead: Vec<(String, u16, Value)>,
    /// The answer to a request to try a command.
    tried: Value,
    /// Items that wait to be claimed, and the claimed one.
    items: VecDeque<Value>,
    leased: Option<Value>,
    /// Whether the next claim that gets an item stays without an answer.
    lose_claim: bool,
    /// Parts of the answer to the next model call.
    parts: Option<mpsc::UnboundedReceiver<Bytes>>,
    tls: Arc<ServerConfig>,
    connections: Vec<AbortHandle>,
}

type State = Arc<(Mutex<Shared>, Condvar)>;

pub struct FakeGateway {
    state: State,
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl FakeGateway {
    /// A gateway that accepts the token `token-1`. Its CA and that token are written to the folder.
    pub fn start(folder: &Folder) -> Self {
        let tls = certificates(&folder.path("ca.crt"));
        write(&folder.path("token"), "token-1\n");
        let shared = Shared {
            calls: Vec::new(),
            settings: settings(),
            wanted: json!({"revision": "1", "directive": "run", "notices": []}),
            tokens: vec!["token-1".into()],
            away: false,
            instead: Vec::new(),
            tried: json!({"permit": {"owner": 9, "epoch": 8, "id": 7}}),
            items: VecDeque::new(),
            leased: None,
            lose_claim: false,
            parts: None,
            tls,
            connections: Vec::new(),
        };
        let state: State = Arc::new((Mutex::new(shared), Condvar::new()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(serve(listener, state.clone()));
        Self { state, address, _runtime: runtime }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn change(&self, change: impl FnOnce(&mut Shared)) {
        change(&mut self.state.0.lock().expect("the state"));
        self.state.1.notify_all();
    }

    /// Changes the settings in the answer to a registration.
    pub fn set(&self, name: &str, value: Value) {
        self.change(|shared| shared.settings[name] = value);
    }

    pub fn want(&self, wanted: Value) {
        self.change(|shared| shared.wanted = wanted);
    }

    /// Makes the gateway absent, and breaks its connections; or makes it present again.
    pub fn away(&self, away: bool) {
        self.change(|shared| {
            shared.away = away;
            shared.connections.drain(..).for_each(|connection| connection.abort());
        });
    }

    /// Refuses calls with `path` in their path; `None` ends that.
    pub fn refuse(&self, path: &str, code: Option<(u16, &str)>) {
        self.change(|shared| {
            shared.instead.retain(|(known, _, _)| known != path);
            if let Some((status, code)) = code {
                shared.instead.push((path.to_owned(), status, json!({"code": code, "message": "as the test says"})));
            }
        });
    }

    /// Answers calls with `path` in their path with this status and body.
    pub fn refuse_with(&self, path: &str, status: u16, body: Value) {
        self.change(|shared| shared.instead.push((path.to_owned(), status, body)));
    }

    /// Sets the answer to a request to try a command.
    pub fn try_says(&self, answer: Value) {
        self.change(|shared| shared.tried = answer);
    }

    /// Makes the agent one of a pool with queues, with these fields of its work settings.
    pub fn work(&self, changes: Value) {
        let mut work = json!({"run": "perItem", "input": "stdin", "continuePrompt": "go on", "maxTurns": 1});
        for (name, value) in changes.as_object().expect("an object") {
            work[name] = value.clone();
        }
        self.set("work", work);
    }

    /// Adds an item with this task. Its name and uid end with `number`.
    pub fn offer(&self, number: u32, payload: &str) {
        self.offer_with(number, payload, &json!({}));
    }

    /// The same, for an item that requires this of its sandbox.
    pub fn offer_with(&self, number: u32, payload: &str, sandbox: &Value) {
        let item = json!({
            "held": {"uid": format!("u-{number}"), "epoch": number}, "name": format!("item-{number}"), "queue": "fixes",
            "payload": payload, "attempt": 1, "attemptSeconds": 600, "sandbox": sandbox,
        });
        self.change(|shared| shared.items.push_back(item));
    }

    /// Loses the answer to the next claim that gets an item.
    pub fn lose_claim(&self) {
        self.change(|shared| shared.lose_claim = true);
    }

    /// Answers the next model call with the parts that are sent here.
    pub fn stream(&self) -> mpsc::UnboundedSender<Bytes> {
        let (sending, parts) = mpsc::unbounded_channel();
        self.change(|shared| shared.parts = Some(parts));
        sending
    }

    /// Takes the lease away.
    pub fn take_away(&self) {
        self.change(|shared| shared.leased = None);
    }

    /// Waits for the accepted end of an item.
    pub fn ended(&self, number: u32) -> (String, Value) {
        let path = format!("/work/u-{number}/");
        let call = self.wait(&path, 0, |call| call.status == 200 && !call.path.ends_with("/progress"));
        (call.path.rsplit('/').next().unwrap_or_default().to_owned(), call.body)
    }

    /// Accepts only this token from now on.
    pub fn take_only(&self, token: &str) {
        self.change(|shared| shared.tokens = vec![token.to_owned()]);
    }

    /// Uses another CA from now on, and writes it to `ca`.
    pub fn exchange_ca(&self, ca: &Path) {
        let tls = certificates(ca);
        self.change(|shared| {
            shared.tls = tls;
            shared.connections.drain(..).for_each(|connection| connection.abort());
        });
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.state.0.lock().expect("the state").connections.len()
    }

    pub fn calls(&self, path: &str) -> Vec<Call> {
        let shared = self.state.0.lock().expect("the state");
        shared.calls.iter().filter(|call| call.path.contains(path)).cloned().collect()
    }

    /// Waits for a call after the first `from` of this path.
    pub fn wait(&self, path: &str, from: usize, is: impl Fn(&Call) -> bool) -> Call {
        let began = Instant::now();
        let mut shared = self.state.0.lock().expect("the state");
        loop {
            if let Some(call) = shared.calls.iter().filter(|call| call.path.contains(path)).skip(from).find(|call| is(call)) {
                return call.clone();
            }
            assert!(began.elapsed() < PATIENCE, "no such call of {path}: {:#?}", shared.calls);
            shared = self.state.1.wait_timeout(shared, Duration::from_secs(1)).expect("the state").0;
        }
    }

    pub fn report(&self, is: impl Fn(&Value) -> bool) -> Call {
        self.wait("/report", 0, |call| call.status == 200 && is(&call.body))
    }
}

/// The settings of an agent with short periods.
pub fn settings() -> Value {
    json!({
        "agent": "fleet-abc", "displayName": "Ada", "heartbeatPeriodSeconds": 1, "heartbeatTimeoutSeconds": 1800,
        "goodbyeTimeoutSeconds": 15, "chat": false, "canaries": [], "drainHook": [], "warnHook": [],
        "wanted": {"revision": "0", "directive": "run", "notices": []},
    })
}

/// A CA, written to `ca`, and the configuration of a server with a certificate of it.
fn certificates(ca: &Path) -> Arc<ServerConfig> {
    let ca_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&ca_key).expect("a CA");
    write(ca, &certificate.pem());
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["gateway.spillway.internal".to_owned()];
    let server = CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![CertificateDer::from(server)];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).expect("a server"))
}

async fn serve(listener: TcpListener, state: State) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut shared = state.0.lock().expect("the state");
        if shared.away {
            continue;
        }
        let acceptor = TlsAcceptor::from(shared.tls.clone());
        let service_state = state.clone();
        let task = tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| answer(request, service_state.clone()));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        shared.connections.push(task.abort_handle());
    }
}

/// Parts of an answer, as they come.
struct BodyParts(mpsc::UnboundedReceiver<Bytes>);

impl Body for BodyParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// The destination that sends back what it gets.
pub const ECHO_DESTINATION: &str = "echo.example.org:443";

fn echo(mut body: Incoming) -> BodyParts {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(part) = frame.into_data() {
                let _ = sender.send(part); // the program may have left
            }
        }
    });
    BodyParts(receiver)
}

async fn answer(request: Request<Incoming>, state: State) -> Result<Response<Either<BodyParts, Full<Bytes>>>, Infallible> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = request.uri().to_string();
    let token = header("authorization").unwrap_or_default().trim_start_matches("Bearer ").to_owned();
    let key = header("idempotency-key");
    let (item, shown, place) = (header("spillway-item"), header("x-api-key"), header("spillway-external"));
    let destination = header("spillway-destination");
    if destination.as_deref() == Some(ECHO_DESTINATION) {
        return Ok(Response::builder().body(Either::Left(echo(request.into_body()))).expect("a response"));
    }
    // The body of a connection has no end.
    let body = match destination {
        Some(destination) => json!({"destination": destination}),
        None => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            serde_json::from_slice(&body).unwrap_or(Value::Null)
        }
    };
    let began = Instant::now();
    let (status, answer) = loop {
        let decided = decide(&mut state.0.lock().expect("the state"), &path, &token, &body, began);
        match decided {
            Some((0, _)) => {
                state.0.lock().expect("the state").connections.drain(..).for_each(|connection| connection.abort());
                std::future::pending::<()>().await;
            }
            Some(decided) => break decided,
            None => tokio::time::sleep(Duration::from_millis(5)).await, // the long poll
        }
    };
    let mut shared = state.0.lock().expect("the state");
    let parts = if path.starts_with("/models/") { shared.parts.take() } else { None };
    shared.calls.push(Call { path, token, key, item, shown, place, body, status });
    state.1.notify_all();
    if let Some(parts) = parts {
        let answer = Response::builder().header("spillway-conversation", "00000000000000ab").body(Either::Left(BodyParts(parts)));
        return Ok(answer.expect("a response"));
    }
    let text = if status == 204 { String::new() } else { answer.to_string() };
    Ok(Response::builder().status(status).body(Either::Right(Full::new(Bytes::from(text)))).expect("a response"))
}

/// The answer to a call. `None`: not yet. The status 0: never, the connection breaks.
fn decide(shared: &mut Shared, path: &str, token: &str, body: &Value, began: Instant) -> Option<(u16, Value)> {
    if !shared.tokens.iter().any(|known| known == token) {
        return Some((401, json!({"code": "invalid_token", "message": "nobody vouches for it"})));
    }
    if let Some((_, status, body)) = shared.instead.iter().find(|(known, _, _)| path.contains(known.as_str())) {
        return Some((*status, body.clone()));
    }
    Some(match path.split('?').next().unwrap_or_default() {
        "/agent/v1/register" => {
            let mut settings = shared.settings.clone();
            settings["wanted"] = shared.wanted.clone();
            (200, settings)
        }
        "/agent/v1/external" => {
            let models = json!([{"name": "claude", "dialect": "Anthropic"}]);
            (200, json!({"agent": "laptops-1", "uid": "uid-1", "type": "worker", "models": models}))
        }
        "/agent/v1/report" => (200, shared.wanted.clone()),
        "/agent/v1/goodbye" | "/agent/v1/commands/end" => (200, json!({})),
        "/agent/v1/commands/try" => (200, shared.tried.clone()),
        "/agent/v1/agents" => (200, json!({"agent": "child-1"})),
        "/agent/v1/budget" => {
            let limit = json!({"budget": "the agent's lifetime", "name": "lifetime", "window": "Lifetime", "limit": 10_000,
                "used": 2_500, "held": 500, "left": 7_000, "enforced": true});
            (200, json!({"limits": [limit]}))
        }
        "/agent/v1/budget/request" => (200, json!({})),
        "/agent/v1/wanted" => {
            let after = path.split_once("after=").map_or("", |(_, after)| after);
            if shared.wanted["revision"] == after {
                return None;
            }
            (200, shared.wanted.clone())
        }
        path if path.starts_with("/models/") => (200, json!({"answer": "whole"})),
        "/agent/v1/work" => (200, json!({"name": "item-9", "uid": "u-9", "queue": "fixes"})),
        "/agent/v1/work/claim" => {
            let new = if shared.leased.is_none() { shared.items.pop_front() } else { None };
            let is_new = new.is_some();
            shared.leased = shared.leased.take().or(new);
            match &shared.leased {
                Some(_) if is_new && std::mem::take(&mut shared.lose_claim) => (0, Value::Null),
                Some(leased) => (200, leased.clone()),
                None if began.elapsed().as_secs() < body["waitSeconds"].as_u64().unwrap_or(0) => return None,
                None => (204, Value::Null),
            }
        }
        path if path.starts_with("/agent/v1/work/u-") => {
            let uid = path.split('/').nth(4).unwrap_or_default();
            let held = shared.leased.as_ref().map_or(&Value::Null, |leased| &leased["held"]);
            if held["uid"] != uid || held["epoch"] != body["epoch"] {
                return Some((409, json!({"code": "stale_lease", "message": "the lease is not yours"})));
            }
            if !path.ends_with("/progress") {
                shared.leased = None;
            }
            (200, json!({}))
        }
        _ => (404, json!({"code": "no_such_call", "message": path})),
    })
}
