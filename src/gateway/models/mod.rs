//! Model calls: `/models/<entry of the pool>/<path of the provider>`.
//!
//! The gateway reads a call, holds tokens for it, forwards it with the team's credential, meters the response while it
//! passes, and settles the hold. What always holds: a call is forwarded only with tokens from the ledger, unless it
//! costs none (lists of models, counting). The client's own credential is never forwarded. Each forwarded call is
//! settled, also if its client leaves.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one call, up to its forwarding |
//! | `state` | the shared state of model calls, and their time limits |
//! | `model_slot` | the slot of a model call in flight |
//! | `forward` | forwards and settles a call, in a task that continues after its client leaves |
//! | `failure` | why there is no response to pass on |
//! | `response` | writes responses: small ones in one piece, others as they arrive |
//! | `credential_header` | the header for the team's credential |
//! | [`headers`] | which headers are sent and come back |
//! | [`upstream`] | connections to providers |

mod credential_header;
mod failure;
mod forward;
pub mod headers;
mod model_slot;
mod response;
mod state;
pub mod upstream;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use spillway_dialect::{Kind, Route};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::model_slot::ModelSlot;
use super::caller::identify;
use super::state::Gateway;
use super::streamed_body::streamed;
use crate::cluster::token::PodIdentity;
use crate::governor::server::refusal_response;
use crate::serve::fair_semaphore::QueueFull;
use crate::wire::meter::{CONVERSATION_HEADER, Dialect, ITEM_HEADER, ModelRoute, Target};
use crate::wire::work::LeaseRef as Lease;
use crate::wire::{Code, Refusal};

pub use self::state::{MODEL_BODY_LIMITS, Models, Times};

/// A body of this size takes so long to parse and to rewrite that other calls would wait. It is processed on another
/// thread.
const LARGE_BODY_BYTES: usize = 128 * 1024;
/// How many characters of an unknown path are shown.
const MAX_SHOWN_PATH_CHARS: usize = 128;
/// The path before the name of the entry.
pub const MODELS_PATH_PREFIX: &str = "/models/";

/// The format of refusals of a call.
#[derive(Clone, Copy, Debug)]
struct RefusalFormat {
    dialect: Option<Dialect>,
    stream: bool,
    /// The call is forwarded, so the forwarding task counts its outcome.
    forwarded: bool,
    /// The conversation that the call continues.
    conversation: Option<u64>,
}

impl RefusalFormat {
    fn refuse(self, refusal: &Refusal) -> Response {
        let Some(dialect) = self.dialect else {
            let mut response = refusal_response(refusal);
            let body = spillway_dialect::refuse_in_unknown_dialect(refusal, jiff::Timestamp::now().as_millisecond());
            *response.body_mut() = Body::from(body);
            return response;
        };
        let answer = spillway_dialect::refuse(dialect, self.stream, refusal, jiff::Timestamp::now().as_millisecond());
        let mut response = Response::new(Body::from(answer.body));
        *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in answer.headers {
            response.headers_mut().extend(HeaderValue::try_from(value).ok().map(|value| (header::HeaderName::from_static(name), value)));
        }
        response
    }
}

/// Answers a call below [`MODELS_PATH_PREFIX`].
pub async fn answer(gateway: &Arc<Gateway>, request: Request) -> Response {
    let began = Instant::now();
    let mut refusal_format = RefusalFormat { dialect: None, stream: false, forwarded: false, conversation: None };
    let mut response = match handle_call(gateway, request, began, &mut refusal_format).await {
        Ok(response) => response,
        Err(refusal) => {
            gateway.metrics.call_refused("/models", refusal.code.label());
            if let Some(dialect) = refusal_format.dialect.filter(|_| !refusal_format.forwarded) {
                gateway.metrics.model_call(super::meter::dialect_label(dialect), "refused", began.elapsed());
            }
            refusal_format.refuse(&refusal)
        }
    };
    // A refusal has the header too, because the program continued the conversation. The provider's value is removed.
    response.headers_mut().remove(CONVERSATION_HEADER);
    if let Some(conversation) = refusal_format.conversation.and_then(|number| HeaderValue::try_from(format!("{number:016x}")).ok()) {
        response.headers_mut().insert(CONVERSATION_HEADER, conversation);
    }
    response
}

async fn handle_call(
    gateway: &Arc<Gateway>,
    request: Request,
    began: Instant,
    refusal_format: &mut RefusalFormat,
) -> Result<Response, Refusal> {
    let uri = request.uri().clone();
    let rest = uri.path().strip_prefix(MODELS_PATH_PREFIX).unwrap_or_default();
    let (entry, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let route = spillway_dialect::route(request.method().as_str(), path, uri.query());
    refusal_format.dialect = route.as_ref().and_then(|route| route.dialect);
    refusal_format.stream = route.as_ref().and_then(|route| route.stream).unwrap_or_default();
    let pod = identify(gateway, request.headers(), request.extensions()).await?;
    let route = route.ok_or_else(|| not_served(request.method().as_str(), entry, path))?;
    if route.kind == Kind::Hello {
        return Ok(StatusCode::OK.into_response());
    }
    let model_slot = ModelSlot::take(gateway, &pod)?;
    let (head, body) = request.into_parts();
    let item = item(&head.headers)?;
    let (body, place) = gateway.models.bodies.read(&pod.namespace, body).await?;
    let length = body.len();
    let way = |model: Option<String>| ModelRoute { entry: entry.to_owned(), dialect: route.dialect, model, item: item.clone() };
    let path = route.query.as_ref().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let sent = upstream::Call {
        method: head.method.clone(),
        path,
        headers: headers::request_headers(&head.headers, &gateway.models.allowed, !body.is_empty()),
        body: Bytes::new(),
    };
    let patience = gateway.models.times.governor_wait;
    let job = match route.kind {
        Kind::Hello | Kind::ListModels => {
            parse(gateway, &pod, &route, &head.headers, body).await?;
            let way = way(route.model.clone());
            let target = gateway.models.meter.resolve_route(&pod, &way, patience).await?;
            refusal_format.dialect = refusal_format.dialect.or(Some(target.dialect));
            forward::Job {
                gateway: gateway.clone(),
                pod,
                route: way,
                target,
                counted: None,
                sent,
                began,
                model_slot,
                body_reservation: place,
            }
        }
        Kind::CountTokens => {
            let call = parse(gateway, &pod, &route, &head.headers, body).await?;
            refusal_format.conversation = call.conversation();
            let way = way(Some(call.model().to_owned()));
            let sent = upstream::Call { body: call.into_body().into(), ..sent };
            let target = gateway.models.meter.resolve_route(&pod, &way, patience).await?;
            forward::Job {
                gateway: gateway.clone(),
                pod,
                route: way,
                target,
                counted: None,
                sent,
                began,
                model_slot,
                body_reservation: place,
            }
        }
        Kind::Generate => {
            let call = parse(gateway, &pod, &route, &head.headers, body).await?;
            (refusal_format.stream, refusal_format.conversation) = (call.stream(), call.conversation());
            call.check_surcharges(|field| gateway.models.allowed_fields.iter().any(|allowed| allowed == field))?;
            let way = way(Some(call.model().to_owned()));
            let held = gateway.models.meter.hold(&pod, way.clone(), call.facts(), patience).await?;
            let target: Target = held.given.target.clone();
            let output = held.given.output;
            let (body, call) = process_body(gateway, &pod, length, move || (call.upstream_body(output), call)).await?;
            let sent = upstream::Call { body: body.into(), ..sent };
            let counted = Some(forward::CallCounts { held, call });
            forward::Job { gateway: gateway.clone(), pod, route: way, target, counted, sent, began, model_slot, body_reservation: place }
        }
    };
    let (heading, headed) = oneshot::channel();
    // A separate task, so that a call is settled also if its client leaves.
    refusal_format.forwarded = true;
    let stopping = gateway.models.stopping.clone();
    gateway.models.tasks.spawn(async move { stopping.run_until_cancelled(forward::run(job, heading)).await });
    let lost = |_| Refusal::new(Code::Internal, "the gateway lost the call; the gateway's log says why");
    let (status, headers, parts) = headed.await.map_err(lost)??;
    let cut = || Refusal::new(Code::GovernorAway, "the provider's response was cut off; try again").retry_after(5);
    let body = if refusal_format.stream { streamed(parts) } else { response::buffered(parts).await.ok_or_else(cut)? };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Ok(response)
}

/// The refusal of an unknown path, with the known ones.
fn not_served(method: &str, entry: &str, path: &str) -> Refusal {
    // Only printable characters of the client's text are shown.
    let shown = |text: &str| text.chars().filter(char::is_ascii_graphic).take(MAX_SHOWN_PATH_CHARS).collect::<String>();
    let (method, entry, path) = (shown(method), shown(entry), shown(path));
    let message = format!(
        "{method} {path} is not passed on to the provider, because the gateway passes on only calls whose tokens it can count. Below the \
         base URL of the entry {entry} (/{entry}) it passes on {}",
        spillway_dialect::SERVED_PATHS.join(", ")
    );
    Refusal::new(Code::NoSuchCall, message).field("(path)")
}

async fn parse(
    gateway: &Gateway,
    pod: &PodIdentity,
    route: &Route,
    headers: &HeaderMap,
    body: Vec<u8>,
) -> Result<spillway_dialect::Call, Refusal> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or("?").to_owned();
    // The first value counts. The gateway sends its own content type, so the provider cannot use another value. Some
    // clients add a value to their user's.
    let kind = headers.get(header::CONTENT_TYPE).map(text);
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let encoding = encodings.next().map(text);
    if encodings.next().is_some() {
        return Err(Refusal::new(Code::InvalidBody, "the header content-encoding is set twice").field("content-encoding"));
    }
    let route = route.clone();
    let parsed =
        process_body(gateway, pod, body.len(), move || spillway_dialect::parse(&route, kind.as_deref(), encoding.as_deref(), body));
    Ok(parsed.await??)
}

/// Processes a body of `bytes`. A large body is processed on another thread, when its namespace gets a permit.
async fn process_body<T: Send + 'static>(
    gateway: &Gateway,
    pod: &PodIdentity,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    if bytes < LARGE_BODY_BYTES {
        return Ok(work());
    }
    let busy = || Refusal::new(Code::TooManyCalls, "too many large bodies of this namespace wait to be read; try again").retry_after(2);
    let turn = tokio::time::timeout(gateway.models.times.governor_wait, gateway.models.readers.take(&pod.namespace)).await;
    let _turn = turn.map_err(|_| busy())?.map_err(|QueueFull| busy())?;
    let lost = |_| Refusal::new(Code::Internal, "the gateway lost the call; the gateway's log says why");
    tokio::task::spawn_blocking(work).await.map_err(lost)
}

/// The item that the agent works on, from the sidecar's header.
pub(super) fn item(headers: &HeaderMap) -> Result<Option<Lease>, Refusal> {
    let Some(value) = headers.get(ITEM_HEADER) else { return Ok(None) };
    let read = || {
        let (uid, epoch) = value.to_str().ok()?.rsplit_once('/')?;
        Some(Lease { uid: uid.to_owned(), epoch: epoch.parse().ok()? })
    };
    let wrong = || Refusal::new(Code::InvalidBody, format!("the header {ITEM_HEADER} is not UID/EPOCH")).field(ITEM_HEADER);
    read().ok_or_else(wrong).map(Some)
}

#[cfg(test)]
mod tests {
    use super::state::LARGE_BODY_READER_BOUNDS;
    use super::*;
    use crate::serve::Bounds as Connections;
    use crate::serve::admission::Capacity;
    use crate::serve::fair_semaphore::Bounds;
    use crate::serve::request_body::BodyLimits;

    const MIB: usize = 1024 * 1024;
    /// Memory of a gateway's container, in the chart's values.
    const CONTAINER: usize = 512 * MIB;
    /// Bytes of a known and of a strange connection, as in `serve::Bounds`.
    const KNOWN: usize = 34 * 1024;
    const STRANGE: usize = 70 * 1024;

    #[test]
    fn bodies_and_what_is_read_out_of_them_are_half_of_the_containers_memory_at_most() {
        // Each body is in memory twice, and its parsed values take up to 16 MiB.
        let bodies = 2 * MODEL_BODY_LIMITS.total_bytes
            + LARGE_BODY_READER_BOUNDS.total * 16 * MIB
            + crate::gateway::routes::AGENT_BODY_LIMITS.total_bytes
            + crate::gateway::tools::TOOL_BODY_LIMITS.total_bytes;
        assert!(bodies <= CONTAINER / 2, "{bodies} bytes for bodies");
        let (Bounds { total: readers, per_namespace: of_one, .. }, BodyLimits { total_bytes: all, max_body_bytes: most, .. }) =
            (LARGE_BODY_READER_BOUNDS, MODEL_BODY_LIMITS);
        assert!(of_one < readers && most * 2 <= all, "one namespace never has all");
    }

    #[test]
    fn connections_take_a_part_of_the_containers_memory_and_no_few_addresses_have_all() {
        let Capacity { strange, strange_per_address, known, known_per_address } = Connections::AGENTS.capacity;
        assert!(strange * STRANGE <= CONTAINER / 4 && known * KNOWN <= CONTAINER * 3 / 4, "{strange} and {known} connections");
        assert!(strange_per_address * 16 <= strange && known_per_address * 10 <= known);
    }

    #[test]
    fn a_path_that_is_not_served_is_named_with_those_that_are() {
        let refusal = not_served("POST", "openai", "/v1/embeddings");
        assert_eq!(refusal.code, Code::NoSuchCall);
        for words in
            ["POST /v1/embeddings is not passed on", "of the entry openai (/openai)", "POST /v1/chat/completions", "GET /v1/models"]
        {
            assert!(refusal.message.contains(words), "{words:?} is not in {}", refusal.message);
        }
        let hostile = not_served("GET", "x", &format!("/\u{1b}[2J{}", "y".repeat(5000)));
        assert!(hostile.message.len() < 1000 && !hostile.message.contains('\u{1b}'), "{}", hostile.message);
    }
}
