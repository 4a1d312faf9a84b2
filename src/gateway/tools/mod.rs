//! Tools: requests of programs' MCP clients for the Toolsets of their pool.
//!
//! The governor says whether an agent may call a Toolset now, and where its bridge is. The gateway calls the bridge with the identity of the
//! agent, and carries the answer back. It does not read a request: the bridge does. While a request is under way, the governor is asked
//! again; an agent that has ended, or lost its item, loses its connection, and the bridge ends the program.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one request: decide, send, carry |
//! | `outcome` | how a request ended, in one word |
//! | `state` | the shared state |
//! | `watch` | when a request must not go on |

mod outcome;
mod state;
mod watch;

pub use self::state::{TOOL_BODY_LIMITS, Tools};

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Method;

use self::watch::{Watch, ask};
use super::call_slot::{self, CallSlot};
use super::caller::{identify, may_review_token};
use super::download::download;
use super::models::item;
use super::state::Gateway;
use super::transfer_record::TransferRecord;
use crate::bridge::client::{BridgeAccount, BridgeAnswer, BridgeError};
use crate::cluster::token::PodIdentity;
use crate::telemetry::TransferKind;
use crate::wire::governor::{CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_UID_HEADER};
use crate::wire::meter::ITEM_HEADER;
use crate::wire::tools::{
    BRIDGE_MCP_PATH, REJECTED_STATUS, TOOL_STATUS_HEADER, TOOLS_PATH_PREFIX, ToolStep, ToolsetRequest, ToolsetTarget,
};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// The most bytes of an answer: both streams of a program, as the longest text of JSON.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;
/// Seconds after which a program may try again to reach a bridge.
const RETRY_SECONDS: u32 = 5;
/// Headers of a program's request that go to the bridge, besides those of MCP.
const FORWARDED_HEADERS: [HeaderName; 4] = [header::ACCEPT, header::CONTENT_TYPE, header::ORIGIN, header::USER_AGENT];
/// The most bytes of the name of a Toolset.
const MAX_TOOLSET_NAME_BYTES: usize = 63;
/// Start of the names of MCP's headers.
const MCP_HEADER_PREFIX: &str = "mcp-";

/// One request of an agent.
struct Call<'a> {
    gateway: &'a Arc<Gateway>,
    pod: &'a PodIdentity,
    toolset: &'a str,
    item: Option<LeaseRef>,
}

/// Answers a request below [`TOOLS_PATH_PREFIX`].
pub async fn answer(gateway: &Arc<Gateway>, request: Request) -> Result<Response, Refusal> {
    let mut caller = LoggedCaller::default();
    let answered = carry(gateway, request, &mut caller).await;
    match &answered {
        Ok(answer) => caller.log(gateway, outcome::of_answer(answer.status(), answer.headers())),
        Err(refusal) => {
            let outcome = refusal.code.label();
            // Any pod can cause them, at any rate. The metric counts all.
            if gateway.tools.refusal_lines.take(call_slot::now()) {
                caller.log(gateway, outcome)
            } else {
                gateway.metrics.tool_call(outcome)
            }
        }
    }
    answered
}

/// What is logged of a caller, as far as it is known.
#[derive(Default)]
struct LoggedCaller {
    pod: PodIdentity,
    toolset: String,
    item: Option<LeaseRef>,
}

impl LoggedCaller {
    fn log(&self, gateway: &Gateway, outcome: &'static str) {
        let Self { pod, toolset, item } = self;
        gateway.metrics.tool_call(outcome);
        let item = item.as_ref().map(|item| item.uid.as_str()).unwrap_or_default();
        tracing::info!(namespace = pod.namespace, agent = pod.name, item, toolset, outcome, "tool call");
    }
}

async fn carry(gateway: &Arc<Gateway>, request: Request, caller: &mut LoggedCaller) -> Result<Response, Refusal> {
    let toolset = request.uri().path().strip_prefix(TOOLS_PATH_PREFIX).filter(|name| is_toolset_name(name));
    caller.toolset = toolset.ok_or_else(|| Refusal::new(Code::NoSuchCall, "the path of a Toolset is /mcp/NAME"))?.to_owned();
    caller.pod = identify(gateway, request.headers(), request.extensions()).await?;
    if request.method() != Method::POST {
        return Err(Refusal::new(Code::WrongMethod, "this path accepts only POST"));
    }
    let (head, body) = request.into_parts();
    caller.item = item(&head.headers)?;
    Call { gateway, pod: &caller.pod, toolset: &caller.toolset, item: caller.item.clone() }.answer(&head.headers, body).await
}

/// Whether a Toolset may have this name.
fn is_toolset_name(name: &str) -> bool {
    let of_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_TOOLSET_NAME_BYTES).contains(&name.len()) && name.bytes().all(of_label)
}

impl Call<'_> {
    async fn answer(&self, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
        let Self { gateway, pod, toolset, item } = self;
        let tools = &gateway.tools;
        let slot = tools.slots.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
        let request = ToolsetRequest { toolset: (*toolset).to_owned(), item: item.clone(), step: ToolStep::Call };
        let mut watch = Watch::new(Arc::clone(gateway), (*pod).clone(), request.clone());
        let (bytes, room) = tools.bodies.read(&pod.namespace, body).await?;
        // After the slow part: the agent may have been paused meanwhile, or have lost its item.
        let target = {
            let _deciding = CallSlot::take_of(&tools.decisions, gateway, pod)?;
            watch.target().await?
        };
        let record = Arc::new(TransferRecord::new(gateway.metrics.clone(), TransferKind::Tools, pod, format!("Toolset/{toolset}")));
        record.sent(bytes.len());
        let BridgeAnswer { response, connection } = watch.guard(self.send(&target, headers, Bytes::from(bytes))).await?;
        drop(room);
        if response.headers().get(TOOL_STATUS_HEADER).is_some_and(|status| status == REJECTED_STATUS) {
            let rejected = ToolsetRequest { step: ToolStep::Rejected, ..request };
            let _ = ask(gateway, pod, &rejected).await; // a rejection that the governor cannot count is still one
        }
        let passed_on = passed_on(response.status(), response.headers());
        let ended = async move { drop(watch.ended().await) };
        let mut answer = Response::new(download(response.into_body(), MAX_ANSWER_BYTES, record, ended, (slot, connection)));
        (*answer.status_mut(), *answer.headers_mut()) = passed_on;
        Ok(answer)
    }

    /// Sends the request to the bridge, with the identity of the agent.
    async fn send(&self, target: &ToolsetTarget, headers: &HeaderMap, body: Bytes) -> Result<BridgeAnswer, Refusal> {
        let Self { gateway, pod, toolset, item: _ } = self;
        let wrong = |why: String| Refusal::new(Code::Internal, format!("Toolset/{toolset}: {why}"));
        let address: SocketAddr = target.address.parse().map_err(|_| wrong(format!("{} is no address", target.address)))?;
        let account = BridgeAccount { namespace: pod.namespace.clone(), service_account: target.service_account.clone() };
        let mut request = Request::builder().method(Method::POST).uri(BRIDGE_MCP_PATH).body(Full::new(body));
        if let Ok(request) = &mut request {
            *request.headers_mut() = asserted(headers, pod, target.item.as_ref()).map_err(|error| wrong(error.to_string()))?;
        }
        let request = request.map_err(|error| wrong(error.to_string()))?;
        let may_review = || may_review_token(gateway, &format!("bridges of {}", pod.namespace));
        let connected = gateway.tools.client.connect(address, &account, may_review).await;
        let answer = match connected {
            Ok(connection) => connection.send(request).await,
            Err(error) => Err(error),
        };
        answer.map_err(|error| {
            if let BridgeError::NotTheBridge(why) = &error {
                tracing::error!(namespace = pod.namespace, toolset, %address, why, "a server is not the bridge of the Toolset");
            }
            Refusal::new(Code::DestinationUnreachable, format!("Toolset/{toolset}: {error}")).retry_after(RETRY_SECONDS)
        })
    }
}

/// The headers for the bridge: those of MCP, and who calls. A program cannot set the latter.
fn asserted(from: &HeaderMap, pod: &PodIdentity, item: Option<&LeaseRef>) -> Result<HeaderMap, header::InvalidHeaderValue> {
    let is_forwarded = |name: &HeaderName| FORWARDED_HEADERS.contains(name) || name.as_str().starts_with(MCP_HEADER_PREFIX);
    let mut headers: HeaderMap =
        from.iter().filter(|(name, _)| is_forwarded(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
    let item = item.map(|LeaseRef { uid, epoch }| (ITEM_HEADER, format!("{uid}/{epoch}")));
    let caller =
        [(CALLER_NAMESPACE_HEADER, pod.namespace.clone()), (CALLER_POD_HEADER, pod.name.clone()), (CALLER_UID_HEADER, pod.uid.clone())];
    for (name, value) in caller.into_iter().chain(item) {
        headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value)?);
    }
    Ok(headers)
}

/// The status and the headers of a bridge's answer that go to the program.
fn passed_on(status: StatusCode, from: &HeaderMap) -> (StatusCode, HeaderMap) {
    let is_passed_on = |name: &HeaderName| *name == header::CONTENT_TYPE || name.as_str().starts_with(MCP_HEADER_PREFIX);
    let headers = from.iter().filter(|(name, _)| is_passed_on(name) || name.as_str() == TOOL_STATUS_HEADER);
    (status, headers.map(|(name, value)| (name.clone(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_toolset_or_nothing() {
        assert!(["deploy", "a", "a-1"].into_iter().all(is_toolset_name) && is_toolset_name(&"a".repeat(63)));
        assert!(!["", "a/b", "..", "A", "a.b", "a%20", "\u{e4}"].into_iter().any(is_toolset_name) && !is_toolset_name(&"a".repeat(64)));
    }

    #[test]
    fn the_bridge_hears_from_the_gateway_who_calls_and_from_the_program_nothing_but_mcp() {
        let sent: HeaderMap = [
            ("content-type", "application/json"),
            ("mcp-protocol-version", "2025-11-25"),
            ("origin", "https://evil.example"),
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "1.2.3.4"),
            (CALLER_UID_HEADER, "forged"),
            (ITEM_HEADER, "forged/9"),
        ]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
        let pod = PodIdentity { namespace: "n".into(), name: "a".into(), uid: "u".into(), external: None };
        let text = |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let headers = asserted(&sent, &pod, Some(&LeaseRef { uid: "i".into(), epoch: 3 })).expect("headers");
        assert_eq!(text(&headers, CALLER_UID_HEADER).as_deref(), Some("u"));
        assert_eq!(text(&headers, ITEM_HEADER).as_deref(), Some("i/3"));
        assert_eq!(text(&headers, "origin").as_deref(), Some("https://evil.example"), "the bridge judges it");
        assert_eq!(headers.len(), 7, "{headers:?}");
        let headers = asserted(&sent, &pod, None).expect("headers");
        assert_eq!(text(&headers, ITEM_HEADER), None, "an item that nobody holds is not asserted");
    }
}
