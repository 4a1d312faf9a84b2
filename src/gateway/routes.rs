//! One call of an agent. It is checked against the token, the limits of calls, the table of calls and the type of its
//! body; then it is forwarded to the governor.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use super::artifacts;
use super::call_slot::CallSlot;
use super::caller::identify;
use super::egress;
use super::git;
use super::models;
use super::openapi;
use super::state::Gateway;
use super::tools;
use crate::cluster::token::PodIdentity;
use crate::governor::server::refusal_response;
use crate::serve::request_body::BodyLimits;
use crate::serve::{Connection, query};
use crate::wire::access::{Call, Caller, RequestMatch, Row, find, methods_of_path};
use crate::wire::agent::{DesiredState, DesiredStateQuery, Goodbye, Register, Report, Spawn};
use crate::wire::artifact::PEOPLE_PATH_PREFIX;
use crate::wire::body::{self, MAX_BODY_BYTES};
use crate::wire::budget::AskTokens;
use crate::wire::command::{EndTry, TryCommand};
use crate::wire::external::Enrol;
use crate::wire::follow::{InboxQuery, ListWork};
use crate::wire::git::GIT_PATH_PREFIX;
use crate::wire::plan::Plan;
use crate::wire::text::hex;
use crate::wire::tools::TOOLS_PATH_PREFIX;
use crate::wire::work::{Claim, Complete, Fail, ProgressUpdate, Release, Submit};
use crate::wire::{Code, Refusal};

/// How long a long poll waits. Proxies and clients usually wait longer.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(25);
/// Bodies of agents' own calls are in memory until the call is answered, which may wait for a turn or for work. They
/// have some hundred bytes, except for plans. The guaranteed part lets the heartbeats of each namespace pass.
pub const AGENT_BODY_LIMITS: BodyLimits = BodyLimits {
    max_body_bytes: MAX_BODY_BYTES,
    total_bytes: 16 * 1024 * 1024,
    reserve: 4 * 1024 * 1024,
    guaranteed: 64 * 1024,
    within: Duration::from_secs(10),
    memory_wait: Duration::from_secs(5),
};

/// The routes.
pub fn routes(gateway: Arc<Gateway>) -> axum::Router {
    axum::Router::new().route("/openapi.json", get(document).fallback(async || wrong_method(&["GET"]))).fallback(answer).with_state(gateway)
}

/// The OpenAPI document and its entity tag.
static OPENAPI_DOCUMENT: LazyLock<(String, String)> = LazyLock::new(|| {
    let document = openapi::document().to_string();
    let digest = Sha256::digest(document.as_bytes());
    let tag = format!("\"{}\"", hex(&digest));
    (document, tag)
});
/// How long a client may use the document without asking again, in seconds.
const DOCUMENT_CACHE_CONTROL: &str = "public, max-age=3600";

async fn document(request: Request) -> Response {
    // Requests on strange connections were counted before.
    let connection = request.extensions().get::<Connection>().filter(|connection| connection.is_known());
    if let Some(connection) = connection
        && !connection.wait_for_rate_limit().await
    {
        return refusal_response(&Refusal::new(Code::TooManyCalls, "this address sent too many requests; try again").retry_after(1));
    }
    let (text, tag) = &*OPENAPI_DOCUMENT;
    let fresh = [(header::ETAG, tag.as_str()), (header::CACHE_CONTROL, DOCUMENT_CACHE_CONTROL)];
    let known = request.headers().get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|one| matches!(one.trim(), one if one == "*" || one.trim_start_matches("W/") == tag)) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    (fresh, [(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    if request.uri().path().starts_with(models::MODELS_PATH_PREFIX) {
        let response = models::answer(&gateway, request).await;
        gateway.metrics.call_answered("/models", response.status().as_u16());
        return response;
    }
    if request.uri().path().starts_with(GIT_PATH_PREFIX) {
        let response = git::answer(&gateway, request).await.unwrap_or_else(|refusal| {
            gateway.metrics.call_refused("/git", refusal.code.label());
            refusal_response(&refusal)
        });
        gateway.metrics.call_answered("/git", response.status().as_u16());
        return response;
    }
    if request.uri().path().starts_with(TOOLS_PATH_PREFIX) {
        let response = tools::answer(&gateway, request).await.unwrap_or_else(|refusal| {
            gateway.metrics.call_refused("/mcp", refusal.code.label());
            if refusal.code == Code::WrongMethod { wrong_method(&["POST"]) } else { refusal_response(&refusal) }
        });
        gateway.metrics.call_answered("/mcp", response.status().as_u16());
        return response;
    }
    if request.uri().path().starts_with(PEOPLE_PATH_PREFIX) {
        let response = artifacts::answer_person(&gateway, request).await.unwrap_or_else(|refusal| {
            gateway.metrics.call_refused("/people", refusal.code.label());
            refusal_response(&refusal)
        });
        gateway.metrics.call_answered("/people", response.status().as_u16());
        return response;
    }
    let row = find(request.method().as_str(), request.uri().path());
    let call = match row {
        RequestMatch::Row(row) => row.path,
        RequestMatch::OtherMethod | RequestMatch::UnknownPath => "other",
    };
    let methods = methods_of_path(request.uri().path());
    let response = handle_call(&gateway, row, request).await.unwrap_or_else(|refusal| {
        gateway.metrics.call_refused(call, refusal.code.label());
        if refusal.code == Code::WrongMethod { wrong_method(&methods) } else { refusal_response(&refusal) }
    });
    gateway.metrics.call_answered(call, response.status().as_u16());
    response
}

/// The refusal of a method, with the methods that the path accepts.
fn wrong_method(methods: &[&str]) -> Response {
    let allow = methods.join(", ");
    let mut response = refusal_response(&Refusal::new(Code::WrongMethod, format!("this path accepts only {allow}")));
    response.headers_mut().extend(HeaderValue::try_from(allow).ok().map(|allow| (header::ALLOW, allow)));
    response
}

async fn handle_call(gateway: &Arc<Gateway>, row: RequestMatch, request: Request) -> Result<Response, Refusal> {
    let pod = identify(gateway, request.headers(), request.extensions()).await?;
    let row = match row {
        RequestMatch::Row(row) => row,
        RequestMatch::OtherMethod => return Err(Refusal::new(Code::WrongMethod, "this path does not accept this method")),
        RequestMatch::UnknownPath => return Err(Refusal::new(Code::NoSuchCall, "there is no such call; /openapi.json lists all calls")),
    };
    // A pod's token belongs to its sidecar. The sidecar checks what programs may call.
    let enrols = pod.external.as_ref().is_some_and(|external| external.enrols);
    if !row.callers.contains(if enrols { &Caller::External } else { &Caller::Link }) {
        return Err(Refusal::new(Code::NotAllowed, "agents may not make this call"));
    }
    if !row.served {
        return Err(Refusal::new(Code::NotBuilt, format!("this version of Spillway does not serve {} {}", row.method, row.path)));
    }
    if row.call == Call::Connect {
        // Its body has no end, and it may stay open as long as a program likes: it has limits of its own.
        return egress::answer(gateway, &pod, request).await;
    }
    if let Call::PutArtifact | Call::ListArtifacts | Call::GetArtifact = row.call {
        return artifacts::answer(gateway, &pod, row.call, request).await;
    }
    let _place = CallSlot::take(gateway, &pod)?;
    forward_call(gateway, row, &pod, request).await
}

async fn forward_call(gateway: &Gateway, row: &Row, pod: &PodIdentity, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let (bytes, _room) = gateway.bodies.read(&pod.namespace, body).await?;
    let bytes = Bytes::from(bytes);
    check_arguments(row.call, &bytes, &head.uri)?;
    if row.call == Call::Wanted {
        let DesiredStateQuery { after } = query::read(&head.uri)?;
        return desired_state(gateway, pod, &after.unwrap_or_default()).await;
    }
    let path = head.uri.path_and_query().map_or(row.path, PathAndQuery::as_str);
    let wait_seconds = match row.call {
        Call::Claim => Some(body::read::<Claim>(&bytes)?.wait_seconds),
        Call::Inbox => Some(query::read::<InboxQuery>(&head.uri)?.wait_seconds),
        _ => None,
    };
    if let Some(wait_seconds) = wait_seconds {
        return poll_until_result(gateway, pod, (row, path), bytes, wait_seconds).await;
    }
    let (status, answer) = gateway.governor.call(row.method, path, pod, head.headers.get("idempotency-key"), bytes.clone()).await?;
    if status == 200 {
        gateway.lease_history.record_end(pod, row.call, head.uri.path().rsplit('/').nth(1).unwrap_or_default(), &bytes);
    }
    pass_on_answer(status, answer)
}

/// The first answer of the governor that is not 204, or 204 if there is none within the caller's `wait_seconds`.
async fn poll_until_result(
    gateway: &Gateway,
    pod: &PodIdentity,
    (row, path): (&Row, &str),
    bytes: Bytes,
    wait_seconds: u32,
) -> Result<Response, Refusal> {
    let end = tokio::time::Instant::now() + Duration::from_secs(wait_seconds.into()).min(LONG_POLL_TIMEOUT);
    // Subscribed before the first call: a change in between is not missed.
    let mut work = gateway.long_polls.wait_for_work(&pod.uid);
    loop {
        work.mark_unchanged();
        let (status, answer) = gateway.governor.call(row.method, path, pod, None, bytes.clone()).await?;
        if status == 200 && row.call == Call::Claim {
            gateway.lease_history.record_claim(pod, &answer);
        }
        if status != 204 {
            return pass_on_answer(status, answer);
        }
        match tokio::time::timeout_at(end, work.changed()).await {
            Err(_) => return Ok(StatusCode::NO_CONTENT.into_response()),
            Ok(Err(_)) => return Err(Refusal::new(Code::AgentEnded, "this agent has ended")),
            Ok(Ok(())) if gateway.long_polls.is_revoked(&pod.uid) => {
                return Err(Refusal::new(Code::AgentEnded, "this agent has ended: its remaining processes may make no calls"));
            }
            Ok(Ok(())) => {}
        }
    }
}

/// Refuses invalid bodies and queries here, where it costs less than at the governor.
fn check_arguments(call: Call, bytes: &Bytes, uri: &Uri) -> Result<(), Refusal> {
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
        Call::Advance => body::read::<ProgressUpdate>(bytes).map(drop),
        Call::Submit => body::read::<Submit>(bytes).map(drop),
        Call::Plan => body::read::<Plan>(bytes).map(drop),
        Call::ListWork => query::read::<ListWork>(uri).map(drop),
        Call::Inbox => query::read::<InboxQuery>(uri).map(drop),
        Call::Wanted => query::read::<DesiredStateQuery>(uri).map(drop),
        Call::AskBudget => body::read::<AskTokens>(bytes).map(drop),
        Call::TryCommand => body::read::<TryCommand>(bytes).map(drop),
        Call::EndTry => body::read::<EndTry>(bytes).map(drop),
        Call::Budget | Call::Changes | Call::Connect | Call::Egress | Call::Git | Call::Tools => Ok(()),
        Call::MeterBegin | Call::MeterWay | Call::MeterHold | Call::MeterExtend | Call::MeterLate | Call::MeterSettle => Ok(()),
        Call::PutArtifact | Call::ListArtifacts | Call::GetArtifact | Call::Artifacts => Ok(()),
        Call::ReadArtifact | Call::UnusedArtifacts | Call::WorkReplay => Ok(()),
    }
}

/// The whole desired state as soon as its revision is not `after`, or 204 after the long poll's time.
async fn desired_state(gateway: &Gateway, pod: &PodIdentity, after: &str) -> Result<Response, Refusal> {
    let end = tokio::time::Instant::now() + LONG_POLL_TIMEOUT;
    // Subscribed before the first call: a change in between is not missed.
    let mut changes = gateway.long_polls.subscribe_desired_state(&pod.uid);
    loop {
        changes.mark_unchanged();
        let (status, answer) = gateway.governor.call("GET", "/agent/v1/wanted", pod, None, Bytes::new()).await?;
        let same = status == 200 && serde_json::from_slice::<DesiredState>(&answer).is_ok_and(|wanted| wanted.revision == after);
        if !same {
            return pass_on_answer(status, answer);
        }
        match tokio::time::timeout_at(end, changes.changed()).await {
            Err(_) => return Ok(StatusCode::NO_CONTENT.into_response()),
            // The sender is gone because the agent was revoked.
            Ok(Err(_)) => return Err(Refusal::new(Code::AgentEnded, "this agent has ended")),
            Ok(Ok(())) if gateway.long_polls.is_revoked(&pod.uid) => {
                return Err(Refusal::new(Code::AgentEnded, "this agent has ended: its remaining processes may make no calls"));
            }
            Ok(Ok(())) => {}
        }
    }
}

fn pass_on_answer(status: u16, answer: Bytes) -> Result<Response, Refusal> {
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
