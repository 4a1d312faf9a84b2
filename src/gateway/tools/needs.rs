//! What a call needs before it runs: artifacts of its item, and the approval of a person. The bridge says so, the gateway provides it, and
//! sends the same request again.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use futures::TryStreamExt as _;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::Method;
use hyper::body::Frame;
use tokio::time::sleep;

use super::bridge_call::BridgeCall;
use super::watch::{Watch, ask};
use crate::bridge::client::BridgeAnswer;
use crate::gateway::artifacts::{ArtifactForTool, open_own};
use crate::gateway::call_slot::CallSlot;
use crate::wire::Refusal;
use crate::wire::artifact::{Artifact, SHA256_HEADER};
use crate::wire::tools::{ApprovalVerdict, BRIDGE_FILES_PATH, CallNeeds, CallToApprove, JudgedCall, ToolStep, ToolsetRequest};
use crate::wire::work::LeaseRef;

/// How often a request is sent: for its artifacts, for a verdict, and again for both if definitions or artifacts changed meanwhile.
const MAX_ROUNDS: usize = 6;
/// The most bytes of [`CallNeeds`].
const MAX_NEEDS_BYTES: usize = 64 * 1024;
/// Between two questions whether a person has answered.
const VERDICT_INTERVAL: Duration = Duration::from_secs(2);
/// The most bytes of a bridge's words about a file that it does not take.
const MAX_WORDS_BYTES: usize = 1024;

/// The bridge's answer to the program, once the bridge has all that the call needs.
pub async fn answer_with_needs(mut call: BridgeCall<'_>, watch: &mut Watch) -> Result<BridgeAnswer, Refusal> {
    for _ in 0..MAX_ROUNDS {
        let answer = watch.guard(call.send_request()).await?;
        if answer.response.status() != StatusCode::PRECONDITION_REQUIRED {
            return Ok(answer);
        }
        match watch.guard(read_needs(&call, answer)).await? {
            CallNeeds::Files(names) => {
                let item = watch.asked().item.clone();
                watch.guard(bring_files(&call, item, names)).await?;
            }
            CallNeeds::Approval(question) => {
                let judged = approve(&call, watch, question).await?;
                // A person takes a while: the bridge may be elsewhere now.
                call.judged(&judged, watch.target().await?);
            }
        }
    }
    Err(call.unreachable("the call was never complete: its definition or its artifacts keep changing"))
}

async fn read_needs(call: &BridgeCall<'_>, answer: BridgeAnswer) -> Result<CallNeeds, Refusal> {
    let body = Limited::new(answer.response.into_body(), MAX_NEEDS_BYTES).collect().await;
    let bytes = body.map_err(|error| call.unreachable(&error.to_string()))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| call.unreachable(&error.to_string()))
}

/// Brings artifacts of the item to the bridge.
async fn bring_files(call: &BridgeCall<'_>, item: Option<LeaseRef>, names: Vec<String>) -> Result<(), Refusal> {
    for name in names {
        let ArtifactForTool { artifact: Artifact { name, bytes, sha256, .. }, content, slot } =
            open_own(call.gateway, call.pod, item.clone(), name).await?;
        let of_header = |value: String| HeaderValue::try_from(value).map_err(|error| call.unreachable(&error.to_string()));
        let headers: HeaderMap =
            [(header::CONTENT_LENGTH, HeaderValue::from(bytes)), (HeaderName::from_static(SHA256_HEADER), of_header(sha256)?)]
                .into_iter()
                .collect();
        let body = StreamBody::new(content.map_ok(Frame::data)).boxed_unsync();
        let path = format!("{BRIDGE_FILES_PATH}{}/{name}", call.id);
        let answer = call.send(call.request(Method::PUT, &path, headers, body)?).await?;
        drop(slot);
        if !answer.response.status().is_success() {
            let words = Limited::new(answer.response.into_body(), MAX_WORDS_BYTES).collect().await;
            let words = words.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned()).unwrap_or_default();
            return Err(call.unreachable(&format!("the artifact {name} was not taken: {words}")));
        }
    }
    Ok(())
}

/// Waits for the verdict of a person, or for the end of the time for it.
async fn approve(call: &BridgeCall<'_>, watch: &mut Watch, question: CallToApprove) -> Result<JudgedCall, Refusal> {
    let BridgeCall { gateway, pod, .. } = call;
    let _waiting = gateway.tools.approvals.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
    let request = ToolsetRequest { step: ToolStep::Approval(question.clone()), ..watch.asked().clone() };
    let verdict = watch.guard(async {
        loop {
            let told = match CallSlot::take_of(&gateway.tools.decisions, gateway, pod) {
                Ok(_deciding) => ask::<ApprovalVerdict>(gateway, pod, &request).await,
                Err(busy) => Err(busy),
            };
            match told {
                Ok(ApprovalVerdict::Waiting) => {}
                Ok(verdict) => return Ok(verdict),
                // A new leader knows what its predecessor wrote.
                Err(refusal) if refusal.code.is_retryable() => {}
                Err(refusal) => return Err(refusal),
            }
            sleep(VERDICT_INTERVAL).await;
        }
    });
    Ok(JudgedCall { id: question.id, verdict: verdict.await? })
}
