//! Forwards calls to the scripted provider over TLS, and checks what the client gets and what the settle says. There is
//! no governor, so requests to it are not answered.

use std::collections::BTreeMap;
use std::sync::Mutex;

use axum::body::Body;
use http::{HeaderValue, Method, Request};
use kube::Client;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use spillway_model_server::{Provider, serve};
use tokio::net::TcpListener;

use super::*;
use crate::cluster::token::Reviewer;
use crate::gateway::artifacts::{ArtifactSettings, Artifacts};
use crate::gateway::credentials::{Credentials, MODEL_SECRET_TYPE, Purpose};
use crate::gateway::governor::{Governor, Settings};
use crate::gateway::limits::Limits;
use crate::gateway::long_poll::LongPolls;
use crate::gateway::meter::Meter;
use crate::gateway::models::Models;
use crate::gateway::models::upstream::Upstream;
use crate::origins::Origins;
use crate::serve::request_body::BodyMemory;
use crate::telemetry::Metrics;
use crate::wire::meter::{CallEnd, Dialect, FaultCause, HoldAnswer, JournaledHold, JournaledSettle};

const TOKEN: &str = "the-teams-own-key";
/// Long enough for a busy machine.
const FIRST_TOKEN: u32 = 4;

/// A gateway and a provider.
struct Scene {
    gateway: Arc<Gateway>,
    provider: Arc<Provider>,
    origin: String,
}

/// An API server that has only the team's credential.
fn client(origin: String) -> Client {
    let service = tower::service_fn(move |_: Request<kube::client::Body>| {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "provider", "namespace": "team"}, "type": MODEL_SECRET_TYPE,
            "data": {"origin": k8s_openapi::ByteString(origin.clone().into_bytes()), "token": k8s_openapi::ByteString(TOKEN.into())}});
        async move { Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(secret.to_string().into_bytes()))) }
    });
    Client::new(service, "team")
}

impl Scene {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let origin = format!("https://{}", listener.local_addr().expect("an address"));
        let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
        let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key).expect("a pair");
        let provider = Provider::new(BTreeMap::from([("team".to_owned(), TOKEN.to_owned())]), Vec::new());
        tokio::spawn(serve(listener, Some(tls), provider.clone()));
        Self { gateway: gateway(&origin, &issued.cert.pem()), provider, origin }
    }

    /// Begins a call to the provider, which follows `script`.
    async fn begin(&self, script: &str, stream: bool, turn: u32) -> oneshot::Receiver<ResponseStart> {
        self.begin_of("m", script, stream, turn).await
    }

    /// The same with this model.
    async fn begin_of(&self, model: &str, script: &str, stream: bool, turn: u32) -> oneshot::Receiver<ResponseStart> {
        let pod = PodIdentity { namespace: "team".into(), name: "a".into(), uid: "pod".into(), external: None };
        let body = json!({"model": model, "max_tokens": 100, "stream": stream, "messages": [{"role": "user", "content": "say something"}]});
        let (bytes, place) = self.gateway.models.bodies.read("team", Body::from(body.to_string())).await.expect("a body");
        let path = "/v1/chat/completions";
        let route = spillway_dialect::route("POST", path, None).expect("a way");
        let call = spillway_dialect::parse(&route, Some("application/json"), None, bytes.clone()).expect("a call");
        let target = Target {
            origin: self.origin.clone(),
            dialect: Dialect::OpenAIChat,
            credential: Some("provider".into()),
            credential_type: None,
        };
        let open = JournaledHold { id: 0, at: 0, path: Vec::new(), input: 100, output: 100 };
        let given =
            HoldAnswer { open, output: 100, target: target.clone(), first_token_seconds: FIRST_TOKEN, turn_seconds: turn, room: None };
        let held = self.gateway.models.meter.given(given, &pod);
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("x-script", HeaderValue::try_from(script).expect("a script"));
        let sent = Call { method: Method::POST, path: path.into(), headers, body: call.upstream_body(100).into() };
        let way = ModelRoute { entry: "gpt".into(), dialect: Some(Dialect::OpenAIChat), model: Some(model.into()), item: None };
        let model_slot = ModelSlot::take(&self.gateway, &pod).expect("a seat");
        let counted = Some(CallCounts { held, call });
        let (heading, headed) = oneshot::channel();
        let job = Job {
            gateway: self.gateway.clone(),
            pod,
            route: way,
            target,
            counted,
            sent,
            began: Instant::now(),
            model_slot,
            body_reservation: place,
        };
        tokio::spawn(run(job, heading));
        headed
    }

    /// The client's result: a status and a text, which may be cut off, or a refusal.
    async fn call(&self, script: &str, stream: bool, turn: u32) -> Result<(u16, String), Code> {
        let (status, _, mut parts) =
            self.begin(script, stream, turn).await.await.expect("somebody answers").map_err(|refusal| refusal.code)?;
        let mut text = Vec::new();
        while let Some(BodyPart::Data(part)) = parts.recv().await {
            text.extend_from_slice(&part);
        }
        Ok((status.as_u16(), String::from_utf8_lossy(&text).into_owned()))
    }

    /// The settle of the call that ended last, once there are `count` settles.
    async fn settled(&self, count: usize) -> JournaledSettle {
        loop {
            let told = self.gateway.models.meter.unacknowledged_settles();
            if told.len() == count {
                return told.last().cloned().expect("there is one");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn gateway(origin: &str, authority: &str) -> Arc<Gateway> {
    let client = client(origin.to_owned());
    let settings = Settings { namespace: "s".into(), lease: "l".into(), token: "/nowhere".into(), identity: "g".into() };
    let long_polls = LongPolls::default();
    let governor = Governor::new(settings, client.clone(), tokio::sync::watch::channel(String::new()).1, long_polls.clone());
    let meter = Meter::open(governor.clone(), None, None).expect("a session");
    let origins = json!([{"origin": origin, "allowPrivate": true, "caBundle": authority}]).to_string();
    let upstream = Upstream::new(Origins::parse(&origins).expect("origins"));
    let times = Times { idle: Duration::from_secs(3), drain: Duration::from_secs(8), ..Times::default() };
    let models = Arc::new(Models::new(meter, upstream, Credentials::new(Purpose::Models, client.clone(), "gateway", "s"), times));
    let authorizer = Some(crate::cluster::access::Authorizer::new(client.clone()));
    let (limits, metrics, reviewer) = (Mutex::new(Limits::default()), Metrics::default(), Reviewer::new(client.clone(), "x"));
    let bodies = BodyMemory::new(crate::gateway::routes::AGENT_BODY_LIMITS);
    let lease_history = crate::gateway::lease_history::LeaseHistory::default();
    let egress = crate::gateway::egress::Egress::new(Default::default(), Origins::default());
    let people = Reviewer::new(client.clone(), "people");
    let git = crate::gateway::git::Git::new(Default::default(), Credentials::new(Purpose::Git, client.clone(), "gateway", "s"));
    let bridges = crate::bridge::client::BridgeClient::new(Default::default(), client.clone()).expect("a client of bridges");
    let tools = crate::gateway::tools::Tools::new(bridges);
    let artifacts = Artifacts::new(&ArtifactSettings::default()).expect("no store");
    Arc::new(Gateway {
        reviewer,
        people,
        authorizer,
        governor,
        long_polls,
        limits,
        bodies,
        metrics,
        models,
        egress,
        git,
        tools,
        artifacts,
        lease_history,
    })
}

fn failed(why: FaultCause) -> Option<Outcome> {
    Some(Outcome::Failed { why, retry_after: None })
}

#[tokio::test]
async fn an_answer_says_of_its_provider_what_another_call_would_meet_too() {
    let scene = Scene::new().await;
    let cases = [
        ("cache", true, Some(Outcome::Worked)),
        ("cache", false, Some(Outcome::Worked)),
        ("nousage", true, Some(Outcome::Worked)),
        ("split crlf comments", true, Some(Outcome::Worked)),
        ("status-500", true, failed(FaultCause::Status(500))),
        ("status-529", false, failed(FaultCause::Status(529))),
        ("status-503 retry-7", false, Some(Outcome::Failed { why: FaultCause::Status(503), retry_after: Some(7) })),
        ("status-400", false, Some(Outcome::Nothing)),
        ("status-429", false, Some(Outcome::Nothing)),
        ("error-1", true, failed(FaultCause::Event)),
        ("cut-1", true, failed(FaultCause::Broken)),
        ("silent-1", true, failed(FaultCause::Idle)),
        ("late-4500", true, failed(FaultCause::Late)),
        ("late-4500", false, Some(Outcome::Worked)),
    ];
    for (count, (script, stream, outcome)) in cases.into_iter().enumerate() {
        let answer = scene.call(script, stream, 600).await;
        let told = scene.settled(count + 1).await;
        assert_eq!(told.end, CallEnd { outcome, timed_out: false }, "{script}, {stream}: {answer:?}");
        let status = script.strip_prefix("status-").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(200);
        assert_eq!(answer.map(|(status, _)| status), Ok(status), "what the provider says is passed on: {script}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_and_a_provider_that_is_not_there() {
    let scene = Scene::new().await;
    drop(scene.begin("wait", false, 600).await);
    let told = scene.settled(1).await;
    assert_eq!(told.end.outcome, Some(Outcome::Nothing), "it says nothing of the provider");
    // If a client leaves after the time of a first token, and nothing arrives, the provider counts as hanging.
    let patient = async |script: &str, stream: bool| {
        let headed = scene.begin(script, stream, 600).await;
        tokio::time::sleep(Duration::from_millis(u64::from(FIRST_TOKEN) * 1000 + 500)).await;
        drop(headed);
    };
    patient("wait", false).await;
    assert_eq!(scene.settled(2).await.end.outcome, failed(FaultCause::Late));
    patient("late-6000", false).await;
    assert_eq!(scene.settled(3).await.end.outcome, Some(Outcome::Worked), "it was slow, and answered");
    // A provider that accepts a connection and closes it.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let origin = format!("https://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let nobody = Scene { gateway: gateway(&origin, ""), origin, ..scene };
    assert_eq!(nobody.call("cache", true, 600).await, Err(Code::GovernorAway));
    let told = nobody.settled(1).await;
    assert_eq!((told.end.outcome, told.usage, told.quality), (failed(FaultCause::Unreachable), Usage::default(), Quality::Exact));
}

#[tokio::test]
async fn a_provider_that_wants_no_calls_for_a_while_gets_none_with_that_credential() {
    let scene = Scene::new().await;
    assert_eq!(scene.call("status-429 retry-40", false, 600).await.map(|(status, _)| status), Ok(429));
    assert_eq!(scene.call("cache", false, 600).await, Err(Code::TooManyCalls));
    let told = scene.settled(2).await;
    assert_eq!((told.end.outcome, told.quality), (Some(Outcome::Nothing), Quality::Exact), "it was not sent");
    assert_eq!(scene.provider.counts.count()["all"]["calls"], 1);
    let other = scene.begin_of("other", "cache", false, 600).await.await.expect("somebody answers");
    assert_eq!(other.map(|(status, ..)| status.as_u16()).map_err(|refusal| refusal.code), Ok(200), "another model is not paused");
}

#[tokio::test]
async fn an_answer_that_was_lost_on_its_way_is_charged_as_it_was_held_and_a_refusal_is_not() {
    let scene = Scene::new().await;
    let cases = [("status-502", Quality::Estimated), ("status-408", Quality::Estimated), ("status-500", Quality::Exact)];
    for (count, (script, quality)) in cases.into_iter().enumerate() {
        scene.call(script, false, 600).await.expect("it is passed on");
        let told = scene.settled(count + 1).await;
        assert_eq!((told.usage, told.quality), (Usage::default(), quality), "{script}");
    }
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_told_so_and_read_on_for_what_it_used() {
    let scene = Scene::new().await;
    // Before anything arrived.
    assert_eq!(scene.call("late-4500 output-9", false, 3).await, Err(Code::TurnTimedOut));
    let told = scene.settled(1).await;
    assert_eq!(
        (told.end, told.usage.output, told.quality),
        (CallEnd { outcome: Some(Outcome::Worked), timed_out: true }, 9, Quality::Exact)
    );
    // In the middle of a stream.
    let (status, text) = scene.call("output-8 events-8 pace-800", true, 3).await.expect("it began");
    assert!(status == 200 && text.contains("word") && text.contains("turn_timed_out") && !text.contains("[DONE]"), "{text}");
    let told = scene.settled(2).await;
    assert_eq!(
        (told.end, told.usage.output, told.quality),
        (CallEnd { outcome: Some(Outcome::Worked), timed_out: true }, 8, Quality::Exact)
    );
    // A provider that never answers.
    assert_eq!(scene.call("wait", false, 3).await, Err(Code::TurnTimedOut));
    let told = scene.settled(3).await;
    assert_eq!((told.end, told.quality), (CallEnd { outcome: failed(FaultCause::Late), timed_out: true }, Quality::Estimated));
}

#[test]
fn an_answer_that_was_lost_on_its_way_may_have_cost_and_a_refusal_did_not() {
    let lost = [408, 499, 502, 504].into_iter().chain(520..=527);
    assert!(lost.into_iter().all(|status| may_have_worked(StatusCode::from_u16(status).expect("a status"))));
    for status in [400, 401, 403, 404, 409, 413, 422, 429, 500, 501, 503, 529] {
        assert!(!may_have_worked(StatusCode::from_u16(status).expect("a status")), "{status}");
    }
}
