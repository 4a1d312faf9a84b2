//! The governor's HTTPS server. It serves only gateways, by the token of their ServiceAccount, and sets the owner epoch
//! on every answer. A process that is not sure that it leads answers nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::sync::broadcast::error::RecvError;

use super::caller::Caller;
use super::{budget, calls, egress, git, tools, work};
use crate::cluster::ObjectKey;
use crate::cluster::token::{ExternalUser, Reviewer};
use crate::controller::Context;
use crate::policy::lease::SeenLeader;
use crate::serve::Connection;
use crate::serve::request_body::{BodyLimits, BodyMemory};
use crate::wire::access::{Call, RequestMatch, find};
use crate::wire::body::MAX_BODY_BYTES;
use crate::wire::governor::{
    CALLER_AGENT_UID_HEADER, CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_POOL_HEADER, CALLER_UID_HEADER, CALLER_USER_HEADER, Change,
    GATEWAY_HEADER, LEASE_VERSION_HEADER, OWNER_EPOCH_HEADER, ROLLED_BACK_HEADER, SEEN_EPOCH_HEADER, SEEN_VERSION_HEADER,
};
use crate::wire::meter::MAX_BEGIN_BYTES;
use crate::wire::{Code, Refusal};

/// Bodies of agents' calls in memory until they are answered. Thousands of calls may wait for their turn to write, and
/// a parsed plan takes several times its bytes. Each namespace has a small guaranteed part.
pub const GOVERNOR_BODY_LIMITS: BodyLimits = BodyLimits {
    max_body_bytes: MAX_BODY_BYTES,
    total_bytes: 8 * 1024 * 1024,
    reserve: 2 * 1024 * 1024,
    guaranteed: 64 * 1024,
    within: Duration::from_secs(10),
    memory_wait: Duration::from_secs(3),
};
/// Interval of keep-alive lines on a stream of changes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The state of the server.
pub struct Governor {
    /// The context of the controllers.
    pub context: Arc<Context>,
    /// Reviews the tokens of gateways.
    pub reviewer: Reviewer,
    /// The only user that may call, under the name that the API server uses.
    pub gateway: String,
    /// Memory for the bodies of agents' calls.
    pub bodies: BodyMemory,
}

/// The routes.
pub fn routes(governor: Arc<Governor>) -> axum::Router {
    axum::Router::new().fallback(answer).with_state(governor)
}

async fn answer(State(governor): State<Arc<Governor>>, request: Request) -> Response {
    let result = route_request(&governor, request).await;
    // If the lease ran out meanwhile, another leader may decide otherwise.
    let leading = governor.context.leadership.check().is_ok();
    let away = || Refusal::unavailable("this replica is not the leader any more; try again");
    let mut response = match result {
        Ok(response) if leading => response,
        Err(refusal) if leading => refusal_response(&refusal),
        Ok(_) | Err(_) => refusal_response(&away()),
    };
    if let Ok(epoch) = HeaderValue::from_str(&governor.context.epoch.to_string()) {
        response.headers_mut().insert(OWNER_EPOCH_HEADER, epoch);
    }
    response.headers_mut().insert(LEASE_VERSION_HEADER, HeaderValue::from(governor.context.leadership.version()));
    response
}

async fn route_request(governor: &Arc<Governor>, request: Request) -> Result<Response, Refusal> {
    let context = &governor.context;
    if context.leadership.check().is_err() {
        return Err(Refusal::unavailable("this replica is not the leader; try again"));
    }
    check_gateway(governor, request.headers()).await?;
    // The connection of a gateway carries the calls of all its agents and its stream of changes. Once accepted, it
    // stays open when a later token is refused. Only that call is refused.
    if let Some(connection) = request.extensions().get::<Connection>() {
        let full = |_| Refusal::new(Code::TooManyCalls, "the gateways have reached their limit of connections").retry_after(1);
        connection.admit(&governor.gateway).map_err(full)?;
    }
    let row = match find(request.method().as_str(), request.uri().path()) {
        RequestMatch::Row(row) => row,
        RequestMatch::OtherMethod => return Err(Refusal::new(Code::WrongMethod, "the path is served with another method")),
        RequestMatch::UnknownPath => return Err(Refusal::new(Code::NoSuchCall, "there is no such call")),
    };
    let gateway = value(request.headers(), GATEWAY_HEADER)?;
    if row.call == Call::Changes {
        let seen =
            SeenLeader { epoch: number(request.headers(), SEEN_EPOCH_HEADER), version: number(request.headers(), SEEN_VERSION_HEADER) };
        if context.takeover.missed_rollback(context.epoch, seen) {
            context.leadership.report_rollback(seen.version.max(u64::try_from(seen.epoch).unwrap_or(0)));
            return Err(Refusal::unavailable(
                "the API server's store was rolled back before this replica became the leader; this replica restarts",
            ));
        }
        return Ok(changes(context.clone(), gateway));
    }
    if let Call::MeterBegin | Call::MeterSettle | Call::MeterExtend | Call::MeterLate = row.call {
        let most = if row.call == Call::MeterBegin { MAX_BEGIN_BYTES } else { MAX_BODY_BYTES };
        let bytes = whole(request.into_body(), most).await?;
        return Ok(json_response(&budget::calls::of_session(row.call, &bytes, context).await?));
    }
    if let Call::UnusedArtifacts | Call::ReadArtifact = row.call {
        let bytes = whole(request.into_body(), MAX_BODY_BYTES).await?;
        return Ok(json_response(&work::artifacts::of_gateway(row.call, &bytes, context)?));
    }
    let external = external(request.headers(), row.call)?;
    let caller = Caller {
        key: ObjectKey {
            namespace: value(request.headers(), CALLER_NAMESPACE_HEADER)?,
            name: value(request.headers(), CALLER_POD_HEADER)?,
        },
        uid: value(request.headers(), if external.is_some() { CALLER_AGENT_UID_HEADER } else { CALLER_UID_HEADER })?,
        gateway,
        external,
    };
    let (head, body) = request.into_parts();
    let (bytes, room) = governor.bodies.read(&caller.key.namespace, body).await?;
    if let Call::MeterHold | Call::MeterWay = row.call {
        return Ok(json_response(&budget::calls::of_agent(row.call, &caller, &bytes, context).await?));
    }
    if row.call == Call::Egress {
        return Ok(json_response(&egress::of_agent(&caller, &bytes, context).await?));
    }
    if row.call == Call::Git {
        return Ok(json_response(&git::of_agent(&caller, &bytes, context).await?));
    }
    let key = head.headers.get("idempotency-key").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (context, call) = (context.clone(), row.call);
    // The call runs to its end even if the gateway hangs up. The result of a write that is dropped midway is unknown.
    let calling = tokio::spawn(async move {
        // Held until the call is answered, however long it waits for its turn.
        let _room = room;
        if call == Call::Artifacts {
            return work::artifacts::of_agent(&caller, &bytes, &context).await.map(Some);
        }
        if call == Call::Tools {
            return tools::of_agent(&caller, &bytes, &context).await.map(Some);
        }
        if call == Call::WorkReplay {
            return work::replay::replay(&caller, &bytes, &context).await.map(Some);
        }
        calls::answer(call, &head.uri, &caller, key.as_deref(), &bytes, &context).await
    });
    let answer = calling.await.map_err(|error| Refusal::new(Code::Internal, format!("the call was aborted: {error}")))??;
    Ok(match answer {
        Some(answer) => json_response(&answer),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Checks that the caller is a gateway.
async fn check_gateway(governor: &Governor, headers: &HeaderMap) -> Result<(), Refusal> {
    let holder = governor.reviewer.review(headers, || Ok(())).await?;
    if holder.user != governor.gateway {
        return Err(Refusal::new(Code::NotAllowed, format!("{} is not the gateways' ServiceAccount", holder.user)));
    }
    Ok(())
}

fn value(headers: &HeaderMap, name: &'static str) -> Result<String, Refusal> {
    let value = headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
    value.map(str::to_owned).ok_or_else(|| Refusal::new(Code::InvalidBody, format!("the header {name} is missing")).field(name))
}

/// The number in a header; 0 without one.
fn number<T: std::str::FromStr + Default>(headers: &HeaderMap, name: &'static str) -> T {
    headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or_default()
}

/// The user of a call from outside the cluster, if it is one. The name may contain any characters.
fn external(headers: &HeaderMap, call: Call) -> Result<Option<ExternalUser>, Refusal> {
    let Some(user) = headers.get(CALLER_USER_HEADER) else { return Ok(None) };
    let user = std::str::from_utf8(user.as_bytes())
        .map_err(|error| Refusal::new(Code::InvalidBody, error.to_string()).field(CALLER_USER_HEADER))?;
    Ok(Some(ExternalUser { user: user.to_owned(), pool: value(headers, CALLER_POOL_HEADER)?, enrols: call == Call::Enrol }))
}

fn json_response(answer: &serde_json::Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}

async fn whole(body: Body, most: usize) -> Result<Bytes, Refusal> {
    axum::body::to_bytes(body, most + 1)
        .await
        .map_err(|_| Refusal::new(Code::BodyTooLarge, format!("the body of a call has at most {most} bytes")).field("(body)"))
}

/// A refusal as an answer.
pub fn refusal_response(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::to_string(refusal).unwrap_or_default();
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], text).into_response();
    if let Some(seconds) = refusal.retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The stream of changes, until the gateway hangs up. The stream of a gateway that lags too far behind ends, and the
/// gateway connects again.
fn changes(context: Arc<Context>, gateway: String) -> Response {
    tracing::info!(gateway, "a gateway is connected");
    let receiver = context.live.changes();
    let session = context.live.session(gateway);
    let alive = tokio::time::interval(KEEPALIVE_INTERVAL);
    let lines = futures::stream::unfold((receiver, session, alive), async |(mut receiver, session, mut alive)| {
        let change = tokio::select! {
            _ = alive.tick() => Change::Alive,
            change = receiver.recv() => match change {
                Ok(change) => change,
                Err(RecvError::Lagged(_) | RecvError::Closed) => return None,
            },
        };
        let mut line = serde_json::to_vec(&change).ok()?;
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (receiver, session, alive)))
    });
    // The stream ends with our leadership: a gateway must not mistake the silence of an old leader for the absence of
    // changes.
    let leadership = context.leadership.clone();
    let lines = lines.take_until(async move { leadership.stopped().await });
    let mut response = ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response();
    if context.recent_rollback().is_some() {
        response.headers_mut().insert(ROLLED_BACK_HEADER, HeaderValue::from_static("true"));
    }
    response
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
