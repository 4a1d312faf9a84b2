//! Forwards a call and settles it, in a task of its own. The client gets the response as it arrives, no faster than it
//! reads. When the client leaves, the response is read for a while longer, to count its usage.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use spillway_dialect::AnswerEnd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::credential_header::credential_header;
use super::failure::Failure;
use super::headers;
use super::model_slot::ModelSlot;
use super::state::Times;
use super::upstream::Call;
use crate::cluster::token::PodIdentity;
use crate::gateway::credentials::Token;
use crate::gateway::meter::{CallHold, dialect_label};
use crate::gateway::state::Gateway;
use crate::gateway::streamed_body::{BodyPart, BodyParts};
use crate::serve::fair_semaphore::{Permit, QueueFull};
use crate::serve::request_body;
use crate::wire::meter::{ModelRoute, Outcome, Quality, Target, Usage};
use crate::wire::{Code, Refusal};

/// Parts of a response that wait for the client.
const MAX_PENDING_ANSWER_PARTS: usize = 4;

/// A call to forward.
pub struct Job {
    pub gateway: Arc<Gateway>,
    pub pod: PodIdentity,
    pub route: ModelRoute,
    pub target: Target,
    /// None: the call costs nothing.
    pub counted: Option<CallCounts>,
    pub sent: Call,
    pub began: Instant,
    /// Held until the call ends.
    pub model_slot: ModelSlot,
    /// Held until the body is sent.
    pub body_reservation: request_body::BodyReservation,
}

/// The hold of a call, and the call whose usage is counted.
pub struct CallCounts {
    pub held: CallHold,
    pub call: spillway_dialect::Call,
}

/// The head of a response, and its parts as they arrive.
pub type ResponseStart = Result<(StatusCode, HeaderMap, BodyParts), Refusal>;

/// Forwards a call. `heading` gets the head of the response, or a refusal.
pub async fn run(job: Job, mut heading: oneshot::Sender<ResponseStart>) {
    let Job { gateway, pod, route: way, target, mut counted, sent, began, model_slot: _seat, body_reservation: place } = job;
    let turn_over = counted.as_ref().and_then(|counted| TurnTimeout::of(&counted.held, target.dialect));
    let dialect = dialect_label(target.dialect);
    let over = |outcome| gateway.metrics.model_call(dialect, outcome, began.elapsed());
    let ended = agent_ended(&gateway, &pod, &way);
    tokio::pin!(ended);
    let turn = tokio::select! {
        turn = acquire_permit(&gateway, &pod, &target) => turn,
        // The call was not sent, so its hold is given back.
        () = heading.closed() => return over("gone"),
        () = &mut ended => Err(Failure::Refused(agent_ended_refusal())),
    };
    let _turn = match turn {
        Ok(turn) => turn,
        Err(failure) => {
            let _ = heading.send(Err(failure.refusal(&target.origin))); // the client may have left
            return over(failure.label());
        }
    };
    let model = way.model.as_deref().unwrap_or_default();
    let sending = send(&gateway, &pod, (&target, model), counted.as_mut(), sent);
    let HeadOutcome { answered, told_timeout: told_over, client_left } =
        wait_for_head(sending, &mut heading, &mut ended, gateway.models.times, turn_over.as_ref()).await;
    if let Some(CallCounts { held, .. }) = &mut counted {
        client_left.into_iter().for_each(|at| held.client_left(at));
        if told_over {
            held.timed_out();
        }
    }
    // When the hold is dropped it is settled: with no usage if the call was not sent, else with the estimate.
    let Some(answered) = answered else {
        if let Some(CallCounts { held, .. }) = &mut counted {
            held.record_outcome(if told_over { Failure::Slow.outcome() } else { Outcome::Nothing });
        }
        return over("gone");
    };
    let response = match answered.and_then(readable) {
        Ok(response) => response,
        Err(failure) => {
            if let Some(CallCounts { mut held, .. }) = counted {
                held.record_outcome(failure.outcome());
                if !failure.may_have_cost() {
                    held.refused();
                }
            }
            let _ = heading.send(Err(failure.refusal(&target.origin))); // the client may have left
            return over(failure.label());
        }
    };
    let (parts, body) = response.into_parts();
    let (giving, taking) = mpsc::channel(MAX_PENDING_ANSWER_PARTS);
    let room = counted.as_ref().and_then(|counted| counted.held.given.room.clone());
    let told = heading.send(Ok((parts.status, headers::response_headers(&parts.headers, room.as_ref()), taking))).is_ok();
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let events = content_type.is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/event-stream"));
    let turn_over = turn_over.filter(|_| !told_over).map(|turn| TurnTimeout { event: turn.event.filter(|_| events), ..turn });
    let giving = told.then_some(giving);
    let mut passing = ResponseStream { sender: giving, times: gateway.models.times, turn_timeout: turn_over, gone_at: None, first: None };
    if !told {
        passing.mark_client_gone();
    }
    let meter = counted.as_ref().map(|counted| spillway_dialect::Meter::new(&counted.call, parts.status.as_u16(), content_type));
    if let (StatusCode::TOO_MANY_REQUESTS, Some(secret), Some(wait)) = (parts.status, &target.credential, retry_after(&parts.headers)) {
        gateway.models.credentials.pause(&pod.namespace, secret, model, Duration::from_secs(wait.into()));
    }
    let said = spillway_dialect::outcome_of_status(parts.status.as_u16(), retry_after(&parts.headers));
    // The body and its memory are not needed while the response passes.
    let held = counted.map(|counted| {
        let mut held = counted.held;
        said.into_iter().for_each(|said| held.record_outcome(said));
        held
    });
    drop(place);
    let complete = passing.pass(body, meter, held, parts.status, &mut ended).await;
    if let Some(first) = passing.first {
        gateway.metrics.model_first_byte(dialect, first.duration_since(began));
    }
    over(match (complete, passing.gone_at.is_some(), parts.status.is_success()) {
        (false, false, _) => "cut",
        (_, true, _) => "gone",
        (true, false, true) => "ok",
        (true, false, false) => "provider_error",
    });
}

/// Waits for a permit for a call to the origin.
async fn acquire_permit(gateway: &Gateway, pod: &PodIdentity, target: &Target) -> Result<Permit, Failure> {
    let models = &gateway.models;
    let origin = models.upstream.find(&target.origin).map_err(Failure::Upstream)?;
    let turns = models.upstream.permits(&origin);
    let busy = || {
        let message = format!("too many calls of this namespace to {} are in flight; try again", target.origin);
        Failure::Refused(Refusal::new(Code::TooManyCalls, message).retry_after(5))
    };
    let turn = timeout(models.times.governor_wait, turns.take(&pod.namespace)).await;
    turn.map_err(|_| busy())?.map_err(|QueueFull| busy())
}

/// The result of waiting for the head of a response.
struct HeadOutcome {
    /// None: it did not arrive.
    answered: Option<Result<Response<Incoming>, Failure>>,
    /// The client was told that its turn timed out.
    told_timeout: bool,
    /// When the client left before it arrived.
    client_left: Option<Instant>,
}

/// Waits for the head of the response, and a little longer after the client has left. `heading` has no receiver then.
async fn wait_for_head(
    sending: impl Future<Output = Result<Response<Incoming>, Failure>>,
    heading: &mut oneshot::Sender<ResponseStart>,
    ended: &mut (impl Future<Output = ()> + Unpin),
    times: Times,
    turn_over: Option<&TurnTimeout>,
) -> HeadOutcome {
    let sending = timeout(times.first_byte, sending);
    tokio::pin!(sending);
    let late = async {
        match turn_over {
            Some(turn) => sleep_until(turn.at).await,
            None => std::future::pending().await,
        }
    };
    let (told, client_left) = tokio::select! {
        answered = &mut sending => {
            return HeadOutcome { answered: Some(answered.unwrap_or(Err(Failure::Slow))), told_timeout: false, client_left: None };
        }
        () = heading.closed() => (None, Some(Instant::now())),
        () = ended => (None, None),
        () = late => (turn_over.map(|turn| turn.refusal.clone()), None),
    };
    // A revoked agent is told at once. A client that left gets nothing.
    let nobody = oneshot::channel().0;
    let told_over = told.is_some();
    let _ = std::mem::replace(heading, nobody).send(Err(told.unwrap_or_else(agent_ended_refusal)));
    let answered = timeout(times.drain, sending).await.ok();
    HeadOutcome { answered: answered.map(|answered| answered.unwrap_or(Err(Failure::Slow))), told_timeout: told_over, client_left }
}

/// When a model turn times out, and the refusal for its client. The response is read further to count its usage.
struct TurnTimeout {
    at: Instant,
    refusal: Refusal,
    /// The refusal as an event, for a stream that has begun. None: the response is not an event stream.
    event: Option<Bytes>,
}

impl TurnTimeout {
    fn of(held: &CallHold, dialect: crate::wire::meter::Dialect) -> Option<Self> {
        let seconds = held.given.turn_seconds;
        let message = format!("this model turn took longer than {seconds} s (spec.bulkhead.modelTurnTimeoutSeconds of its AgentPool)");
        let refusal = Refusal::new(Code::TurnTimedOut, message);
        let event = spillway_dialect::refuse_in_stream(dialect, &refusal, jiff::Timestamp::now().as_millisecond());
        let at = Instant::now() + Duration::from_secs(seconds.into());
        (seconds > 0).then(|| Self { at, refusal, event: Some(event.into()) })
    }
}

/// The seconds in the provider's Retry-After header.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

fn agent_ended_refusal() -> Refusal {
    Refusal::new(Code::AgentEnded, "this agent has ended: its remaining processes may make no calls")
}

/// Returns when the agent has ended.
async fn agent_ended(gateway: &Gateway, pod: &PodIdentity, way: &ModelRoute) {
    let mut stream = gateway.long_polls.stream(&pod.uid);
    while stream.changed().await.is_ok() {
        // The stream of changes was interrupted, and a revocation may be missed, so the governor is asked.
        if let Err(refusal) = gateway.models.meter.resolve_route(pod, way, gateway.models.times.governor_wait).await
            && matches!(refusal.code, Code::AgentEnded | Code::NotAnAgent | Code::LeaseLost)
        {
            return;
        }
    }
}

/// Sends the call with the team's credential. If the provider refuses the credential, it is read again, because it may
/// have been replaced.
async fn send(
    gateway: &Gateway,
    pod: &PodIdentity,
    (target, model): (&Target, &str),
    counted: Option<&mut CallCounts>,
    mut call: Call,
) -> Result<Response<Incoming>, Failure> {
    let models = &gateway.models;
    let origin = models.upstream.find(&target.origin).map_err(Failure::Upstream)?;
    if let Some(left) = target.credential.as_ref().and_then(|secret| models.credentials.paused(&pod.namespace, secret, model)) {
        let message = format!(
            "calls of {model} to {origin} with this credential are paused, because it answered 429 with Retry-After; try again",
            model = if model.is_empty() { "this kind" } else { model },
        );
        let seconds = u32::try_from(left.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        return Err(Failure::Refused(Refusal::new(Code::TooManyCalls, message).retry_after(seconds)));
    }
    let mut token = match &target.credential {
        Some(secret) => Some(models.credentials.get(&pod.namespace, secret, &origin).await.map_err(Failure::Refused)?),
        None => None,
    };
    let kind = target.credential_type.as_deref();
    let put = |call: &mut Call, token: &Token| {
        let (name, value) = credential_header(target.dialect, kind, token.header_value()).map_err(Failure::Refused)?;
        call.headers.insert(name, value);
        Ok(())
    };
    if let Some(token) = &token {
        put(&mut call, token)?;
    }
    if let Some(CallCounts { held, call }) = counted {
        held.sent().map_err(Failure::Refused)?;
        // In a response that is not streamed, all tokens arrive together.
        if call.stream() {
            held.await_first();
        } else {
            held.await_answer();
        }
    }
    let answer = models.upstream.send(&origin, &call).await.map_err(Failure::Upstream)?;
    let (StatusCode::UNAUTHORIZED, Some(secret)) = (answer.status(), &target.credential) else { return Ok(answer) };
    models.credentials.forget(&pod.namespace, secret);
    let Ok(newer) = models.credentials.get(&pod.namespace, secret, &origin).await else { return Ok(answer) };
    if token.replace(newer.clone()).is_some_and(|older| older == newer) {
        return Ok(answer);
    }
    drop(answer);
    put(&mut call, &newer)?;
    models.upstream.send(&origin, &call).await.map_err(Failure::Upstream)
}

/// Checks that a response can be passed on and metered.
fn readable(response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
    if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(Failure::Credential(response.status()));
    }
    if response.status().is_redirection() || response.status().is_informational() {
        return Err(Failure::Redirect);
    }
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Failure::Encoded);
    }
    Ok(response)
}

/// The stream of a response to its client.
struct ResponseStream {
    /// None: the client is gone.
    sender: Option<mpsc::Sender<BodyPart>>,
    times: Times,
    /// None: the turn has timed out already, or has no limit.
    turn_timeout: Option<TurnTimeout>,
    gone_at: Option<Instant>,
    /// When the first part arrived.
    first: Option<Instant>,
}

impl ResponseStream {
    fn mark_client_gone(&mut self) {
        self.sender = None;
        self.gone_at.get_or_insert_with(Instant::now);
    }

    /// Passes a response on, and settles its call. True: it was complete.
    async fn pass(
        &mut self,
        mut body: Incoming,
        mut meter: Option<spillway_dialect::Meter>,
        mut held: Option<CallHold>,
        status: StatusCode,
        ended: &mut (impl Future<Output = ()> + Unpin),
    ) -> bool {
        let last = Instant::now() + self.times.whole;
        let mut out = Vec::new();
        let ending = loop {
            let turn_over = self.turn_timeout.as_ref().map(|turn| turn.at);
            let until = self.gone_at.map_or(last, |gone| last.min(gone + self.times.drain)).min(Instant::now() + self.times.idle);
            let frame = tokio::select! {
                frame = timeout_at(until, body.frame()) => frame,
                () = client_gone(self.sender.as_ref()), if self.sender.is_some() => {
                    self.mark_client_gone();
                    held.iter_mut().for_each(|held| held.client_left(Instant::now()));
                    continue
                }
                () = &mut *ended, if self.sender.is_some() => { self.cut(None); continue }
                () = sleep_until(turn_over.unwrap_or(last)), if self.sender.is_some() && turn_over.is_some() => {
                    let turn = self.turn_timeout.take();
                    self.cut(turn.and_then(|turn| turn.event));
                    held.iter_mut().for_each(CallHold::timed_out);
                    continue
                }
            };
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(None) => break AnswerEnd::Whole,
                Ok(Some(Err(_))) => break AnswerEnd::Broken,
                Err(_) if self.gone_at.is_some() || Instant::now() >= last => break AnswerEnd::Abandoned,
                Err(_) => break AnswerEnd::Idle,
            };
            if self.first.is_none() {
                self.first = Some(Instant::now());
                held.iter_mut().for_each(CallHold::first_came);
            }
            match &mut meter {
                Some(meter) => meter.feed(&data, &mut out),
                None => out.extend_from_slice(&data),
            }
            if let (Some(meter), Some(held)) = (&meter, &mut held) {
                held.extend_to(meter.output_so_far()).await;
            }
            self.give(&mut out, ended).await;
        };
        let complete = ending == AnswerEnd::Whole;
        let said = spillway_dialect::outcome_of_answer(ending, meter.as_ref().and_then(spillway_dialect::Meter::error));
        let counts = meter.map(|meter| meter.end(complete, &mut out));
        self.give(&mut out, ended).await;
        // The usage is written down before the client sees the end of the response.
        if let (Some(mut held), Some((usage, quality))) = (held, counts) {
            if status.is_success() {
                held.record_outcome(said);
            }
            settle(held, status, usage, quality);
        }
        if complete {
            self.send(BodyPart::Whole, ended).await;
        } else {
            self.cut(None);
        }
        complete
    }

    /// Ends the response for the client so that it does not look complete: it is cut off, or ends with an event `last`
    /// that says why.
    fn cut(&mut self, last: Option<Bytes>) {
        if let (Some(giving), Some(last)) = (self.sender.take(), last) {
            // The event comes after the parts that wait for the client.
            tokio::spawn(async move {
                if giving.send(BodyPart::Data(last)).await.is_ok() {
                    drop(giving.send(BodyPart::Whole).await);
                }
            });
        }
        self.gone_at.get_or_insert_with(Instant::now);
    }

    async fn give(&mut self, out: &mut Vec<u8>, ended: &mut (impl Future<Output = ()> + Unpin)) {
        if out.is_empty() {
            return;
        }
        self.send(BodyPart::Data(std::mem::take(out).into()), ended).await;
    }

    async fn send(&mut self, part: BodyPart, ended: &mut (impl Future<Output = ()> + Unpin)) {
        let Some(giving) = &self.sender else { return };
        let given = tokio::select! {
            given = timeout(self.times.slow, giving.send(part)) => matches!(given, Ok(Ok(()))),
            () = &mut *ended => false,
        };
        if !given {
            self.cut(None);
        }
    }
}

async fn client_gone(giving: Option<&mpsc::Sender<BodyPart>>) {
    match giving {
        Some(giving) => giving.closed().await,
        None => std::future::pending().await,
    }
}

/// A provider does not charge refused calls. The cost of a response that was lost is not known, so the estimate is
/// charged.
fn settle(held: CallHold, status: StatusCode, usage: Usage, quality: Quality) {
    if may_have_worked(status) {
        held.settle(Usage::default(), Quality::Estimated);
    } else {
        held.settle(usage, quality);
    }
}

/// Whether this status means that the response of a working provider may have been lost. With 429, 503 and 529 the
/// provider refuses before it works, for lack of capacity. 500 is the provider's own failure, which no provider
/// charges.
fn may_have_worked(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 499 | 502 | 504 | 520..=527)
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
