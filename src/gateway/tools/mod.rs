//! Tools: requests of programs' MCP clients for the Toolsets of their pool.
//!
//! The governor says whether an agent may call a Toolset now, and where its bridge is. The gateway calls the bridge with the identity of the
//! agent, and carries the answer back. It does not read a request: the bridge does. While a request is under way, the governor is asked
//! again; an agent that has ended, or lost its item, loses its connection, and the bridge ends the program.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one request: decide, send, carry |
//! | `bridge_call` | sends a request to a bridge, as often as that needs something first |
//! | `needs` | what a call needs before it runs: artifacts, and the approval of a person |
//! | `outcome` | how a request ended, in one word |
//! | `state` | the shared state |
//! | `watch` | when a request must not go on |

mod bridge_call;
mod needs;
mod outcome;
mod state;
mod watch;

pub use self::state::{TOOL_BODY_LIMITS, Tools};

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::Method;
use serde::de::IgnoredAny;

use self::bridge_call::{BridgeCall, MCP_HEADER_PREFIX};
use self::needs::answer_with_needs;
use self::watch::{Watch, ask};
use super::call_slot::{self, CallSlot};
use super::caller::identify;
use super::download::download;
use super::models::item;
use super::state::Gateway;
use super::transfer_record::TransferRecord;
use crate::bridge::client::BridgeAnswer;
use crate::cluster::token::PodIdentity;
use crate::telemetry::TransferKind;
use crate::wire::tools::{REJECTED_STATUS, TOOL_STATUS_HEADER, TOOLS_PATH_PREFIX, ToolStep, ToolsetRequest};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// The most bytes of an answer: both streams of a program, as the longest text of JSON.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;
/// The most bytes of the name of a Toolset.
const MAX_TOOLSET_NAME_BYTES: usize = 63;

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
        let sent = bytes.len();
        let bridge_call = BridgeCall::new(gateway, pod, toolset, (headers, Bytes::from(bytes)), target)?;
        let BridgeAnswer { response, connection } = answer_with_needs(bridge_call, &mut watch).await?;
        drop(room);
        // The answer begins now, however long the program ran and a person thought.
        record.sent(sent);
        if response.headers().get(TOOL_STATUS_HEADER).is_some_and(|status| status == REJECTED_STATUS) {
            let rejected = ToolsetRequest { step: ToolStep::Rejected, ..request };
            let _: Result<IgnoredAny, _> = ask(gateway, pod, &rejected).await; // a rejection that the governor cannot count is still one
        }
        let passed_on = passed_on(response.status(), response.headers());
        let ended = async move { drop(watch.ended().await) };
        let mut answer = Response::new(download(response.into_body(), MAX_ANSWER_BYTES, record, ended, (slot, connection)));
        (*answer.status_mut(), *answer.headers_mut()) = passed_on;
        Ok(answer)
    }
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
}
