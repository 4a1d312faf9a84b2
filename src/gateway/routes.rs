//! One call of an agent: whose token, how many calls, which row of the table, which body; then the governor.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use super::governor::Governor;
use super::lease_history::LeaseHistory;
use super::limits::{Full, Limits, Whose};
use super::models::{self, Models};
use super::openapi;
use super::park::Park;
use crate::api::names;
use crate::cluster::access::Authorizer;
use crate::cluster::clock::BootTime;
use crate::cluster::token::{ExternalUser, Holder, PodIdentity, Reviewer};
use crate::governor::server::refused;
use crate::serve::admission::Full as ConnectionsFull;
use crate::serve::bodies::{Bodies, Sizes};
use crate::serve::{Connection, Peer, query};
use crate::telemetry::Metrics;
use crate::wire::access::{Call, Caller, Found, Row, find, methods};
use crate::wire::agent::{AskWanted, Goodbye, Register, Report, Spawn, Wanted};
use crate::wire::body::{self, MAX_BYTES};
use crate::wire::budget::AskTokens;
use crate::wire::command::{EndTry, TryCommand};
use crate::wire::external::{EXTERNAL, Enrol, Place as ExternalPlace};
use crate::wire::follow::{AskInbox, ListWork};
use crate::wire::plan::Plan;
use crate::wire::work::{Advance, Claim, Complete, Fail, Release, Submit};
use crate::wire::{Code, Refusal};

/// The most bytes of the name of a user who registers agents outside the cluster: as long as an Agent says it.
const MAX_USER: usize = 512;
/// How long a long poll waits. Below what usual middle boxes and clients wait.
const POLL: Duration = Duration::from_secs(25);
/// Bodies of agents' own calls in memory, until they are answered: a call may wait there for its turn, or for work. They have
/// some hundred bytes, but for plans. A namespace gets a little, whatever others have: its heartbeats come through.
pub const BODIES: Sizes = Sizes {
    most: MAX_BYTES,
    all: 16 * 1024 * 1024,
    reserve: 4 * 1024 * 1024,
    guaranteed: 64 * 1024,
    within: Duration::from_secs(10),
    patience: Duration::from_secs(5),
};

/// What the routes work with.
pub struct Gateway {
    /// Whose token it is.
    pub reviewer: Reviewer,
    /// Who may register agents outside the cluster. None: nobody.
    pub authorizer: Option<Authorizer>,
    /// The way to the governor.
    pub governor: Governor,
    /// Long polls, and who was revoked.
    pub park: Park,
    /// How much who calls.
    pub limits: Mutex<Limits>,
    /// Bodies of agents' own calls.
    pub bodies: Bodies,
    /// What is counted.
    pub metrics: Metrics,
    /// Calls of models.
    pub models: Arc<Models>,
    /// The last answers about leases.
    pub lease_history: LeaseHistory,
}

/// The routes.
pub fn routes(gateway: Arc<Gateway>) -> axum::Router {
    axum::Router::new().route("/openapi.json", get(document).fallback(async || wrong_method(&["GET"]))).fallback(answer).with_state(gateway)
}

/// The OpenAPI document and its entity tag.
static DOCUMENT: LazyLock<(String, String)> = LazyLock::new(|| {
    let document = openapi::document().to_string();
    let digest = Sha256::digest(document.as_bytes());
    let tag = digest.iter().take(16).fold(String::from("\""), |tag, byte| format!("{tag}{byte:02x}")) + "\"";
    (document, tag)
});
/// How long a client may use the document without asking again, in seconds.
const DOCUMENT_CACHE: &str = "public, max-age=3600";

async fn document(request: Request) -> Response {
    // Requests on connections that are not known were counted before.
    let connection = request.extensions().get::<Connection>().filter(|connection| connection.is_known());
    if let Some(connection) = connection
        && !connection.take_turn().await
    {
        return refused(&Refusal::new(Code::TooManyCalls, "too many requests come from this address").retry_after(1));
    }
    let (text, tag) = &*DOCUMENT;
    let fresh = [(header::ETAG, tag.as_str()), (header::CACHE_CONTROL, DOCUMENT_CACHE)];
    let known = request.headers().get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|one| matches!(one.trim(), one if one == "*" || one.trim_start_matches("W/") == tag)) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    (fresh, [(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    if request.uri().path().starts_with(models::PREFIX) {
        let response = models::answer(&gateway, request).await;
        gateway.metrics.call_answered("/models", response.status().as_u16());
        return response;
    }
    let row = find(request.method().as_str(), request.uri().path());
    let call = match row {
        Found::Row(row) => row.path,
        Found::OtherMethod | Found::Nothing => "other",
    };
    let methods = methods(request.uri().path());
    let response = one(&gateway, row, request).await.unwrap_or_else(|refusal| {
        gateway.metrics.call_refused(call, refusal.code.label());
        if refusal.code == Code::WrongMethod { wrong_method(&methods) } else { refused(&refusal) }
    });
    gateway.metrics.call_answered(call, response.status().as_u16());
    response
}

/// The path is served, with these methods.
fn wrong_method(methods: &[&str]) -> Response {
    let allow = methods.join(", ");
    let mut response = refused(&Refusal::new(Code::WrongMethod, format!("the path is served with {allow}")));
    response.headers_mut().extend(HeaderValue::try_from(allow).ok().map(|allow| (header::ALLOW, allow)));
    response
}

/// Whose call it is: the pod that its token is bound to, or the agent outside the cluster that it says it is, unless that ended. The
/// connection of the call is a known one from then on.
pub(super) async fn identify(gateway: &Gateway, headers: &HeaderMap, extensions: &Extensions) -> Result<PodIdentity, Refusal> {
    let peer = extensions.get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default();
    let identified = vouched(gateway, headers, &peer).await;
    if let Some(connection) = extensions.get::<Connection>() {
        match &identified {
            Ok(pod) => connection.admit(&pod.namespace).map_err(no_place)?,
            Err(refusal) if refusal.code.passes() => {}
            Err(_) => connection.refuse(),
        }
    }
    identified
}

/// Why a call is refused whose connection cannot become known.
fn no_place(full: ConnectionsFull) -> Refusal {
    let message = match full {
        ConnectionsFull::Namespace => "the agents of this namespace have as many connections as they may",
        ConnectionsFull::Address => "this address has as many connections as it may",
        ConnectionsFull::Gone => "the connection gave way to another one",
    };
    Refusal::new(Code::TooManyCalls, message).retry_after(1)
}

async fn vouched(gateway: &Gateway, headers: &HeaderMap, peer: &str) -> Result<PodIdentity, Refusal> {
    let holder = gateway.reviewer.review(headers, || may_ask(gateway, peer)).await?;
    let caller = match (holder.pod.clone(), headers.get(EXTERNAL)) {
        (Some(pod), None) => pod,
        (Some(pod), Some(_)) => {
            let message = format!(
                "the token is bound to pod {}, and speaks for no agent outside the cluster: use one of a ServiceAccount, or of a person, \
                 that is bound to no pod",
                pod.name
            );
            return Err(Refusal::new(Code::NotAllowed, message));
        }
        (None, None) => {
            let message = "the token is not bound to a pod: only agents' pods may call, and agents outside the cluster that say which \
                           they are (header spillway-external)";
            return Err(Refusal::new(Code::NotAPod, message));
        }
        (None, Some(said)) => external(gateway, &holder, said, peer).await?,
    };
    if gateway.park.is_revoked(&caller.uid) {
        return Err(Refusal::new(Code::AgentEnded, "this agent ended: nothing that is left of it may act"));
    }
    Ok(caller)
}

/// Whether the API server may be asked about somebody at `peer` of whom nothing is known.
fn may_ask(gateway: &Gateway, peer: &str) -> Result<(), Refusal> {
    let may = gateway.limits.lock().unwrap_or_else(PoisonError::into_inner).stranger(peer, now());
    let message = "too many unknown tokens come from this address";
    if may { Ok(()) } else { Err(Refusal::new(Code::TooManyCalls, message).retry_after(1)) }
}

/// Who calls from outside the cluster, if its user may. Which agent it is it only says: the governor knows whose that is.
async fn external(gateway: &Gateway, holder: &Holder, said: &HeaderValue, peer: &str) -> Result<PodIdentity, Refusal> {
    let Some(place) = said.to_str().ok().and_then(ExternalPlace::parse) else {
        let message = "it is NAMESPACE/POOL, and /AGENT/UID for an agent that has registered";
        return Err(Refusal::new(Code::InvalidBody, message).field(EXTERNAL));
    };
    let user = &holder.user;
    if user.is_empty() || user.len() > MAX_USER || HeaderValue::from_bytes(user.as_bytes()).is_err() {
        let message = format!("the name of the token's user has more than {MAX_USER} bytes, or control characters, or is empty");
        return Err(Refusal::new(Code::NotAllowed, message));
    }
    let ExternalPlace { namespace, pool, agent } = place;
    let Some(authorizer) = &gateway.authorizer else {
        let message = "this installation takes no agents from outside the cluster: the chart's value gateway.external.enabled lets them in";
        return Err(Refusal::new(Code::NotAllowed, message));
    };
    authorizer.may_register(holder, &namespace, &pool, || may_ask(gateway, peer)).await?;
    let enrols = agent.is_none();
    // Of who has no Agent yet the calls are counted by user.
    let (name, uid) = agent.unwrap_or_else(|| (pool.clone(), names::short_hash(&["external", user], 32)));
    let caller = PodIdentity { namespace, name, uid, external: Some(ExternalUser { user: user.clone(), pool, enrols }) };
    if gateway.park.is_unconfirmed(&caller) {
        confirm(gateway, &caller).await?;
    }
    Ok(caller)
}

/// Asks the governor whether an agent is whose it says it is: once, so that its calls are counted as its own from the first one on.
/// Where the governor cannot say, they are counted as its user's.
async fn confirm(gateway: &Gateway, caller: &PodIdentity) -> Result<(), Refusal> {
    let _place = Place::take(gateway, caller)?;
    match gateway.governor.call("GET", "/agent/v1/wanted", caller, None, Bytes::new()).await {
        Ok((200, _)) => gateway.park.confirmed(caller),
        Ok((_, answer)) => match serde_json::from_slice::<Refusal>(&answer) {
            Ok(refusal) if !refusal.code.passes() => return Err(refusal),
            Ok(_) | Err(_) => {}
        },
        Err(_) => {}
    }
    Ok(())
}

async fn one(gateway: &Gateway, row: Found, request: Request) -> Result<Response, Refusal> {
    let pod = identify(gateway, request.headers(), request.extensions()).await?;
    let row = match row {
        Found::Row(row) => row,
        Found::OtherMethod => return Err(Refusal::new(Code::WrongMethod, "the path is served with another method")),
        Found::Nothing => return Err(Refusal::new(Code::NoSuchCall, "there is no such call; /openapi.json lists them")),
    };
    // A pod's token is its sidecar's: what programs may ask is looked at in the pod.
    let enrols = pod.external.as_ref().is_some_and(|external| external.enrols);
    if !row.callers.contains(if enrols { &Caller::External } else { &Caller::Link }) {
        return Err(Refusal::new(Code::NotAllowed, "agents may not make this call"));
    }
    if !row.served {
        return Err(Refusal::new(Code::NotBuilt, format!("this version of Spillway does not serve {} {}", row.method, row.path)));
    }
    let _place = Place::take(gateway, &pod)?;
    served(gateway, row, &pod, request).await
}

async fn served(gateway: &Gateway, row: &Row, pod: &PodIdentity, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let (bytes, _room) = gateway.bodies.read(&pod.namespace, body).await?;
    let bytes = Bytes::from(bytes);
    checked(row.call, &bytes, &head.uri)?;
    if row.call == Call::Wanted {
        let AskWanted { after } = query::read(&head.uri)?;
        return wanted(gateway, pod, &after.unwrap_or_default()).await;
    }
    let path = head.uri.path_and_query().map_or(row.path, PathAndQuery::as_str);
    let wait_seconds = match row.call {
        Call::Claim => Some(body::read::<Claim>(&bytes)?.wait_seconds),
        Call::Inbox => Some(query::read::<AskInbox>(&head.uri)?.wait_seconds),
        _ => None,
    };
    if let Some(wait_seconds) = wait_seconds {
        return when_there_is(gateway, pod, (row, path), bytes, wait_seconds).await;
    }
    let (status, answer) = gateway.governor.call(row.method, path, pod, head.headers.get("idempotency-key"), bytes.clone()).await?;
    if status == 200 {
        gateway.lease_history.record_end(pod, row.call, head.uri.path().rsplit('/').nth(1).unwrap_or_default(), &bytes);
    }
    passed_on(status, answer)
}

/// The governor's answer as soon as it has something to say; 204 if it has not for as long as the caller waits.
async fn when_there_is(
    gateway: &Gateway,
    pod: &PodIdentity,
    (row, path): (&Row, &str),
    bytes: Bytes,
    wait_seconds: u32,
) -> Result<Response, Refusal> {
    let end = tokio::time::Instant::now() + Duration::from_secs(wait_seconds.into()).min(POLL);
    // Subscribed before the first look: what comes in between is not missed.
    let mut work = gateway.park.wait_for_work(&pod.uid);
    loop {
        work.mark_unchanged();
        let (status, answer) = gateway.governor.call(row.method, path, pod, None, bytes.clone()).await?;
        if status == 200 && row.call == Call::Claim {
            gateway.lease_history.record_claim(pod, &answer);
        }
        if status != 204 {
            return passed_on(status, answer);
        }
        match tokio::time::timeout_at(end, work.changed()).await {
            Err(_) => return Ok(StatusCode::NO_CONTENT.into_response()),
            Ok(Err(_)) => return Err(Refusal::new(Code::AgentEnded, "this agent ended")),
            Ok(Ok(())) if gateway.park.is_revoked(&pod.uid) => {
                return Err(Refusal::new(Code::AgentEnded, "this agent ended: nothing that is left of it may act"));
            }
            Ok(Ok(())) => {}
        }
    }
}

/// Refuses a body or a query that the governor would refuse, here, where it costs least.
fn checked(call: Call, bytes: &Bytes, uri: &Uri) -> Result<(), Refusal> {
    match call {
        Call::Enrol => body::read::<Enrol>(bytes).map(drop),
        Call::Register => body::read::<Register>(bytes).map(drop),
        Call::Report => body::read::<Report>(bytes).map(drop),
        Call::Goodbye => body::read::<Goodbye>(bytes).map(drop),
        Call::Spawn => body::read::<Spawn>(bytes).map(drop),
        Call::Claim => body::read::<Claim>(bytes).map(drop),
        Call::Complete => body::read::<Complete>(bytes).map(drop),
        Call::Fail => body::read::<Fail>(bytes).map(drop),
        Call::Release => body::read::<Release>(bytes).map(drop),
        Call::Advance => body::read::<Advance>(bytes).map(drop),
        Call::Submit => body::read::<Submit>(bytes).map(drop),
        Call::Plan => body::read::<Plan>(bytes).map(drop),
        Call::ListWork => query::read::<ListWork>(uri).map(drop),
        Call::Inbox => query::read::<AskInbox>(uri).map(drop),
        Call::Wanted => query::read::<AskWanted>(uri).map(drop),
        Call::AskBudget => body::read::<AskTokens>(bytes).map(drop),
        Call::TryCommand => body::read::<TryCommand>(bytes).map(drop),
        Call::EndTry => body::read::<EndTry>(bytes).map(drop),
        Call::Budget | Call::Changes => Ok(()),
        Call::MeterBegin | Call::MeterWay | Call::MeterHold | Call::MeterExtend | Call::MeterLate | Call::MeterSettle => Ok(()),
        Call::WorkReplay => Ok(()),
    }
}

/// The whole wanted state as soon as it is not `after`; 204 if it stays that for long.
async fn wanted(gateway: &Gateway, pod: &PodIdentity, after: &str) -> Result<Response, Refusal> {
    let end = tokio::time::Instant::now() + POLL;
    // Subscribed before the first look: a change in between is not missed.
    let mut changes = gateway.park.wait(&pod.uid);
    loop {
        changes.mark_unchanged();
        let (status, answer) = gateway.governor.call("GET", "/agent/v1/wanted", pod, None, Bytes::new()).await?;
        let same = status == 200 && serde_json::from_slice::<Wanted>(&answer).is_ok_and(|wanted| wanted.revision == after);
        if !same {
            return passed_on(status, answer);
        }
        match tokio::time::timeout_at(end, changes.changed()).await {
            Err(_) => return Ok(StatusCode::NO_CONTENT.into_response()),
            // It was revoked: the next look says so.
            Ok(Err(_)) => return Err(Refusal::new(Code::AgentEnded, "this agent ended")),
            Ok(Ok(())) if gateway.park.is_revoked(&pod.uid) => {
                return Err(Refusal::new(Code::AgentEnded, "this agent ended: nothing that is left of it may act"));
            }
            Ok(Ok(())) => {}
        }
    }
}

fn passed_on(status: u16, answer: Bytes) -> Result<Response, Refusal> {
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(&answer)
        && status >= 400
    {
        return Err(refusal);
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = Response::new(Body::from(answer));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// On the clock of the limits.
pub(super) fn now() -> Duration {
    BootTime::now().since(BootTime::default())
}

/// One agent's place among its calls in flight, until it is dropped.
struct Place<'a> {
    limits: &'a Mutex<Limits>,
    namespace: &'a str,
    /// Under which name it is counted.
    name: String,
}

impl<'a> Place<'a> {
    fn take(gateway: &'a Gateway, pod: &'a PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.park.counted_as(pod);
        let begun = gateway.limits.lock().unwrap_or_else(PoisonError::into_inner).begin(&pod.namespace, &name, now());
        let (whose, full) = match begun {
            Ok(()) => return Ok(Self { limits: &gateway.limits, namespace: &pod.namespace, name }),
            Err(refused) => refused,
        };
        Err(too_many(whose, full))
    }
}

/// Why a call has to wait.
pub(super) fn too_many(whose: Whose, full: Full) -> Refusal {
    let whose = match whose {
        Whose::Agent => "this agent",
        Whose::Namespace => "the agents of this namespace",
    };
    let message = match full {
        Full::InFlight => format!("too many calls of {whose} are in flight"),
        Full::Rate => format!("too many calls of {whose} lately"),
    };
    Refusal::new(Code::TooManyCalls, message).retry_after(1)
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).end(self.namespace, &self.name);
    }
}
