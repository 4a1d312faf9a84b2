//! What a call needs before it runs: artifacts of its item, and the approval of a person. The bridge says so, the gateway provides it, and
//! sends the same request again.
//!
//! An approval is used up when the governor tells of it. Therefore what hinders the call afterwards is waited for, as long as nothing was
//! started.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use futures::TryStreamExt as _;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::Method;
use hyper::body::Frame;
use spillway_bridge::answer::Status;
use tokio::time::{Instant, sleep};

use super::bridge_call::BridgeCall;
use super::watch::{Watch, ask};
use crate::bridge::client::BridgeAnswer;
use crate::gateway::artifacts::{ArtifactForTool, open_own};
use crate::gateway::call_slot::CallSlot;
use crate::gateway::transfer_record::TransferRecord;
use crate::telemetry::TransferKind;
use crate::wire::artifact::{Artifact, SHA256_HEADER, is_name};
use crate::wire::governor::CALLER_UID_HEADER;
use crate::wire::tools::{
    ApprovalVerdict, BRIDGE_FILES_PATH, CallNeeds, CallToApprove, JudgedCall, MAX_CALL_FILES, TOOL_STATUS_HEADER, ToolStep, ToolsetRequest,
};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// How often a request is sent without an approval: for its artifacts, for a verdict, and again for both if definitions or artifacts changed
/// meanwhile.
const MAX_ROUNDS: usize = 6;
/// How long an approved call waits for what hinders it: a full bridge, one that is being replaced, another leader.
const APPROVED_TIMEOUT: Duration = Duration::from_secs(120);
/// How often an approved call may fail to start, and is tried again.
const MAX_FAILED_STARTS: usize = 2;
/// Between two tries of an approved call.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The most bytes of [`CallNeeds`].
const MAX_NEEDS_BYTES: usize = 64 * 1024;
/// Between two questions whether a person has answered.
const VERDICT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a person's answer is asked for without an answer of the governor.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// The most bytes of a bridge's words about a file that it does not take.
const MAX_WORDS_BYTES: usize = 1024;

/// What came of sending a request once.
enum Sent {
    /// The answer for the program.
    Answered(BridgeAnswer),
    /// The call needs something first.
    Needs(CallNeeds),
    /// It was not sent, or started nothing.
    Hindered(Refusal),
}

/// The bridge's answer to the program, once the bridge has all that the call needs.
pub async fn answer_with_needs(mut call: BridgeCall<'_>, watch: &mut Watch) -> Result<BridgeAnswer, Refusal> {
    let (mut rounds, mut failed_starts, mut approved_until) = (0, 0, None);
    loop {
        let is_approved = approved_until.is_some_and(|until| Instant::now() < until);
        let hindered = match watch.guard(send(&call)).await? {
            Sent::Answered(answer) if !(is_approved && may_start_later(&answer, &mut failed_starts)) => return Ok(answer),
            Sent::Answered(_) => call.unreachable("the bridge is busy"),
            Sent::Hindered(refusal) => refusal,
            Sent::Needs(needs) => {
                rounds += 1;
                if rounds > MAX_ROUNDS && !is_approved {
                    return Err(call.unreachable("the call was never complete: its definition or its artifacts keep changing"));
                }
                let provided = match needs {
                    CallNeeds::Files(names) => {
                        let item = watch.asked().item.clone();
                        watch.guard(bring_files(&call, item, names)).await
                    }
                    CallNeeds::Approval(question) => {
                        let judged = approve(&call, watch, question).await?;
                        if matches!(judged.verdict, ApprovalVerdict::Approved { .. }) {
                            approved_until = Some(Instant::now() + APPROVED_TIMEOUT);
                            watch.renew();
                        }
                        call.set_verdict(&judged);
                        // A person takes a while: the bridge may be elsewhere now.
                        find_again(&mut call, watch).await
                    }
                };
                match provided {
                    Ok(()) => continue,
                    Err(refusal) => refusal,
                }
            }
        };
        let may_wait = approved_until.is_some_and(|until| Instant::now() < until) && hindered.code.is_retryable();
        if !may_wait {
            return Err(hindered);
        }
        let pause = async {
            sleep(RETRY_INTERVAL).await;
            Ok(())
        };
        watch.guard(pause).await?;
        match find_again(&mut call, watch).await {
            // If the bridge is not found, the next try says so.
            Ok(()) => {}
            Err(refusal) if refusal.code.is_retryable() => {}
            Err(refusal) => return Err(refusal),
        }
    }
}

/// Asks where the bridge is, and whether the agent may still act.
async fn find_again(call: &mut BridgeCall<'_>, watch: &mut Watch) -> Result<(), Refusal> {
    let target = watch.target().await?;
    call.set_target(target)
}

async fn send(call: &BridgeCall<'_>) -> Result<Sent, Refusal> {
    let connection = match call.connect().await {
        Ok(connection) => connection,
        Err(refusal) => return Ok(Sent::Hindered(refusal)),
    };
    let answer = call.send_request(connection).await?;
    if answer.response.status() != StatusCode::PRECONDITION_REQUIRED {
        return Ok(Sent::Answered(answer));
    }
    let body = Limited::new(answer.response.into_body(), MAX_NEEDS_BYTES).collect().await;
    let bytes = body.map_err(|error| call.unreachable(&error.to_string()))?.to_bytes();
    serde_json::from_slice(&bytes).map(Sent::Needs).map_err(|error| call.unreachable(&error.to_string()))
}

/// Whether the bridge has started nothing, and may start the same call later. A program that fails to start counts for the circuit breaker of
/// its agent and of all, so that it is tried only a few times.
fn may_start_later(answer: &BridgeAnswer, failed_starts: &mut usize) -> bool {
    let status = answer.response.headers().get(TOOL_STATUS_HEADER);
    let is = |one: Status| status.is_some_and(|status| status == one.label());
    if is(Status::SpawnFailed) {
        *failed_starts += 1;
        return *failed_starts <= MAX_FAILED_STARTS;
    }
    is(Status::Busy) || is(Status::BreakerOpen)
}

/// Brings artifacts of the item to the bridge.
async fn bring_files(call: &BridgeCall<'_>, item: Option<LeaseRef>, names: Vec<String>) -> Result<(), Refusal> {
    let names: BTreeSet<String> = names.into_iter().collect();
    if names.len() > MAX_CALL_FILES || !names.iter().all(|name| is_name(name)) {
        return Err(call.unreachable("the bridge asks for files that cannot be artifacts"));
    }
    for name in names {
        bring_file(call, item.clone(), name).await?;
    }
    Ok(())
}

async fn bring_file(call: &BridgeCall<'_>, item: Option<LeaseRef>, name: String) -> Result<(), Refusal> {
    let BridgeCall { gateway, pod, toolset, .. } = call;
    let _slot = gateway.tools.files.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
    let ArtifactForTool { artifact: Artifact { name, bytes, sha256, .. }, content } = open_own(gateway, pod, item, name).await?;
    let peer = format!("artifact {name} for Toolset/{toolset}");
    let record = Arc::new(TransferRecord::new(gateway.metrics.clone(), TransferKind::Artifact, pod, peer));
    let of_header = |value: &str| HeaderValue::try_from(value).map_err(|error| call.unreachable(&error.to_string()));
    let headers: HeaderMap = [
        (header::CONTENT_LENGTH, HeaderValue::from(bytes)),
        (HeaderName::from_static(SHA256_HEADER), of_header(&sha256)?),
        (HeaderName::from_static(CALLER_UID_HEADER), of_header(&pod.uid)?),
    ]
    .into_iter()
    .collect();
    let read = record.clone();
    let body = StreamBody::new(content.inspect_ok(move |part| read.received(part.len())).map_ok(Frame::data)).boxed_unsync();
    let path = format!("{BRIDGE_FILES_PATH}{}/{name}", call.id);
    let request = call.request(Method::PUT, &path, headers, body)?;
    let sending = async { call.send(call.connect().await?, request).await };
    let answer = tokio::select! {
        answer = sending => answer?,
        () = record.idle() => return Err(call.unreachable("the bridge takes no bytes of an artifact")),
    };
    let status = answer.response.status();
    if status.is_success() {
        return Ok(());
    }
    let words = Limited::new(answer.response.into_body(), MAX_WORDS_BYTES).collect().await;
    let words = words.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned()).unwrap_or_default();
    let message = format!("the artifact {name} was not taken: {words}");
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        return Err(Refusal::new(Code::LimitReached, format!("Toolset/{toolset}: {message}")));
    }
    Err(call.unreachable(&message))
}

/// Waits for the verdict of a person, or for the end of the time for it.
async fn approve(call: &BridgeCall<'_>, watch: &mut Watch, question: CallToApprove) -> Result<JudgedCall, Refusal> {
    let BridgeCall { gateway, pod, .. } = call;
    let _waiting = gateway.tools.approvals.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
    let request = ToolsetRequest { step: ToolStep::Approval(question.clone()), ..watch.asked().clone() };
    let verdict = watch.guard(async {
        let mut answered = Instant::now();
        loop {
            let told = match CallSlot::take_of(&gateway.tools.decisions, gateway, pod) {
                Ok(_deciding) => ask::<ApprovalVerdict>(gateway, pod, &request).await,
                Err(busy) => Err(busy),
            };
            match told {
                Ok(ApprovalVerdict::Waiting) => answered = Instant::now(),
                Ok(verdict) => return Ok(verdict),
                // A new leader knows what its predecessor wrote.
                Err(refusal) if refusal.code.is_retryable() && answered.elapsed() < SILENCE_TIMEOUT => {
                    tracing::debug!(%refusal, "the governor cannot say whether a call is approved");
                }
                Err(refusal) => return Err(refusal),
            }
            sleep(VERDICT_INTERVAL).await;
        }
    });
    Ok(JudgedCall { id: question.id, verdict: verdict.await? })
}
