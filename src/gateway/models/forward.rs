//! From the forwarding of a call to its settling: a task of its own. The client gets the answer as it comes, no faster than it
//! takes it; when it goes, the answer is read on for a while, for what it used.

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

use super::failure::Failure;
use super::model_slot::ModelSlot;
use super::response::{BodyPart, BodyParts};
use super::state::Times;
use super::upstream::Call;
use super::{credentials, headers};
use crate::cluster::token::PodIdentity;
use crate::gateway::meter::{CallHold, dialect_label};
use crate::gateway::state::Gateway;
use crate::serve::fair_semaphore::{Permit, QueueFull};
use crate::serve::request_body;
use crate::wire::meter::{ModelRoute, Outcome, Quality, Target, Usage};
use crate::wire::{Code, Refusal};

/// Parts of an answer that wait for the client.
const MAX_PENDING_ANSWER_PARTS: usize = 4;

/// A call to forward.
pub struct Job {
    pub gateway: Arc<Gateway>,
    pub pod: PodIdentity,
    pub way: ModelRoute,
    pub target: Target,
    /// None: it costs nothing.
    pub counted: Option<CallCounts>,
    pub sent: Call,
    pub began: Instant,
    /// Until it ends.
    pub model_slot: ModelSlot,
    /// Until its body is sent.
    pub place: request_body::BodyReservation,
}

/// What is counted of a call.
pub struct CallCounts {
    pub held: CallHold,
    pub call: spillway_dialect::Call,
}

/// The head of an answer, and its parts as they come.
pub type ResponseStart = Result<(StatusCode, HeaderMap, BodyParts), Refusal>;

/// Forwards a call. Who waits for the head gets it, or why there is none.
pub async fn run(job: Job, mut heading: oneshot::Sender<ResponseStart>) {
    let Job { gateway, pod, way, target, mut counted, sent, began, model_slot: _seat, place } = job;
    let turn_over = counted.as_ref().and_then(|counted| TurnTimeout::of(&counted.held, target.dialect));
    let dialect = dialect_label(target.dialect);
    let over = |outcome| gateway.metrics.model_call(dialect, outcome, began.elapsed());
    let ended = agent_ended(&gateway, &pod, &way);
    tokio::pin!(ended);
    let turn = tokio::select! {
        turn = turn(&gateway, &pod, &target) => turn,
        // Nothing was sent: what is held is given back.
        () = heading.closed() => return over("gone"),
        () = &mut ended => Err(Failure::Refused(over_and_out())),
    };
    let _turn = match turn {
        Ok(turn) => turn,
        Err(failure) => {
            let _ = heading.send(Err(failure.refusal(&target.origin))); // it may have gone
            return over(failure.label());
        }
    };
    let model = way.model.as_deref().unwrap_or_default();
    let sending = send(&gateway, &pod, (&target, model), counted.as_mut(), sent);
    let HeadOutcome { answered, told_over, client_left } =
        first(sending, &mut heading, &mut ended, gateway.models.times, turn_over.as_ref()).await;
    if let Some(CallCounts { held, .. }) = &mut counted {
        client_left.into_iter().for_each(|at| held.client_left(at));
        if told_over {
            held.timed_out();
        }
    }
    // Dropped, what is held is settled: with nothing if it was not sent, else with the estimate.
    let Some(answered) = answered else {
        if let Some(CallCounts { held, .. }) = &mut counted {
            held.says(if told_over { Failure::Slow.outcome() } else { Outcome::Nothing });
        }
        return over("gone");
    };
    let response = match answered.and_then(readable) {
        Ok(response) => response,
        Err(failure) => {
            if let Some(CallCounts { mut held, .. }) = counted {
                held.says(failure.outcome());
                if !failure.may_have_cost() {
                    held.refused();
                }
            }
            let _ = heading.send(Err(failure.refusal(&target.origin))); // it may have gone
            return over(failure.label());
        }
    };
    let (parts, body) = response.into_parts();
    let (giving, taking) = mpsc::channel(MAX_PENDING_ANSWER_PARTS);
    let room = counted.as_ref().and_then(|counted| counted.held.given.room.clone());
    let told = heading.send(Ok((parts.status, headers::inward(&parts.headers, room.as_ref()), taking))).is_ok();
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let events = content_type.is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/event-stream"));
    let turn_over = turn_over.filter(|_| !told_over).map(|turn| TurnTimeout { event: turn.event.filter(|_| events), ..turn });
    let giving = told.then_some(giving);
    let mut passing = ResponseStream { giving, times: gateway.models.times, turn_over, gone_at: None, first: None };
    if !told {
        passing.lose();
    }
    let meter = counted.as_ref().map(|counted| spillway_dialect::Meter::new(&counted.call, parts.status.as_u16(), content_type));
    if let (StatusCode::TOO_MANY_REQUESTS, Some(secret), Some(wait)) = (parts.status, &target.credential, retry_after(&parts.headers)) {
        gateway.models.credentials.pause(&pod.namespace, secret, model, Duration::from_secs(wait.into()));
    }
    let said = spillway_dialect::of_status(parts.status.as_u16(), retry_after(&parts.headers));
    // Neither the body nor its place is needed while the answer passes.
    let held = counted.map(|counted| {
        let mut held = counted.held;
        said.into_iter().for_each(|said| held.says(said));
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

/// The call's turn at its origin.
async fn turn(gateway: &Gateway, pod: &PodIdentity, target: &Target) -> Result<Permit, Failure> {
    let models = &gateway.models;
    let origin = models.upstream.find(&target.origin).map_err(Failure::Trouble)?;
    let turns = models.upstream.turns(&origin);
    let busy = || {
        let message = format!("too many calls of this namespace to {} are under way; try again", target.origin);
        Failure::Refused(Refusal::new(Code::TooManyCalls, message).retry_after(5))
    };
    let turn = timeout(models.times.patience, turns.take(&pod.namespace)).await;
    turn.map_err(|_| busy())?.map_err(|QueueFull| busy())
}

/// What became of the wait for the head of an answer.
struct HeadOutcome {
    /// None: it did not come.
    answered: Option<Result<Response<Incoming>, Failure>>,
    /// The client was told that its turn is over.
    told_over: bool,
    /// When the client left before it came.
    client_left: Option<Instant>,
}

/// The head of the answer, for which we wait a little longer when the client goes: `heading` leads nowhere then.
async fn first(
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
            return HeadOutcome { answered: Some(answered.unwrap_or(Err(Failure::Slow))), told_over: false, client_left: None };
        }
        () = heading.closed() => (None, Some(Instant::now())),
        () = ended => (None, None),
        () = late => (turn_over.map(|turn| turn.refusal.clone()), None),
    };
    // Who was revoked is told at once; who went is not there.
    let nobody = oneshot::channel().0;
    let told_over = told.is_some();
    let _ = std::mem::replace(heading, nobody).send(Err(told.unwrap_or_else(over_and_out)));
    let answered = timeout(times.drain, sending).await.ok();
    HeadOutcome { answered: answered.map(|answered| answered.unwrap_or(Err(Failure::Slow))), told_over, client_left }
}

/// When a model turn has taken too long, and what its client is told then. The answer is read on for what it used.
struct TurnTimeout {
    at: Instant,
    refusal: Refusal,
    /// The same for a stream that has begun; none: it is none of events.
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

/// Seconds after which a provider wants to be asked again.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

fn over_and_out() -> Refusal {
    Refusal::new(Code::AgentEnded, "this agent ended: nothing that is left of it may act")
}

/// Ends when the agent does, and not before.
async fn agent_ended(gateway: &Gateway, pod: &PodIdentity, way: &ModelRoute) {
    let mut stream = gateway.long_polls.stream(&pod.uid);
    while stream.changed().await.is_ok() {
        // The stream of changes was broken for a while: what it would have told is asked.
        if let Err(refusal) = gateway.models.meter.way(pod, way, gateway.models.times.patience).await
            && matches!(refusal.code, Code::AgentEnded | Code::NotAnAgent | Code::LeaseLost)
        {
            return;
        }
    }
}

/// Sends the call with the team's credential. One that the provider refuses is read anew, in case it was exchanged.
async fn send(
    gateway: &Gateway,
    pod: &PodIdentity,
    (target, model): (&Target, &str),
    counted: Option<&mut CallCounts>,
    mut call: Call,
) -> Result<Response<Incoming>, Failure> {
    let models = &gateway.models;
    let origin = models.upstream.find(&target.origin).map_err(Failure::Trouble)?;
    if let Some(left) = target.credential.as_ref().and_then(|secret| models.credentials.paused(&pod.namespace, secret, model)) {
        let message = format!(
            "{origin} wants no calls of {model} with this credential for a while (it answered 429 with retry-after); try again",
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
    let put = |call: &mut Call, token: &credentials::Token| {
        let (name, value) = credentials::header_of(target.dialect, kind, token).map_err(Failure::Refused)?;
        call.headers.insert(name, value);
        Ok(())
    };
    if let Some(token) = &token {
        put(&mut call, token)?;
    }
    if let Some(CallCounts { held, call }) = counted {
        held.sent().map_err(Failure::Refused)?;
        // Of an answer that is not streamed the first token comes with the last.
        if call.stream() {
            held.await_first();
        } else {
            held.await_answer();
        }
    }
    let answer = models.upstream.send(&origin, &call).await.map_err(Failure::Trouble)?;
    let (StatusCode::UNAUTHORIZED, Some(secret)) = (answer.status(), &target.credential) else { return Ok(answer) };
    models.credentials.forget(&pod.namespace, secret);
    let Ok(newer) = models.credentials.get(&pod.namespace, secret, &origin).await else { return Ok(answer) };
    if token.replace(newer.clone()).is_some_and(|older| older == newer) {
        return Ok(answer);
    }
    drop(answer);
    put(&mut call, &newer)?;
    models.upstream.send(&origin, &call).await.map_err(Failure::Trouble)
}

/// An answer that can be passed on and metered.
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

/// The way of an answer to its client.
struct ResponseStream {
    /// None: it is gone.
    giving: Option<mpsc::Sender<BodyPart>>,
    times: Times,
    /// None: it was, or never is.
    turn_over: Option<TurnTimeout>,
    gone_at: Option<Instant>,
    /// When the first part was there.
    first: Option<Instant>,
}

impl ResponseStream {
    fn lose(&mut self) {
        self.giving = None;
        self.gone_at.get_or_insert_with(Instant::now);
    }

    /// Passes an answer on, and settles its call. True: all of it came.
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
            let turn_over = self.turn_over.as_ref().map(|turn| turn.at);
            let until = self.gone_at.map_or(last, |gone| last.min(gone + self.times.drain)).min(Instant::now() + self.times.idle);
            let frame = tokio::select! {
                frame = timeout_at(until, body.frame()) => frame,
                () = client_gone(self.giving.as_ref()), if self.giving.is_some() => {
                    self.lose();
                    held.iter_mut().for_each(|held| held.client_left(Instant::now()));
                    continue
                }
                () = &mut *ended, if self.giving.is_some() => { self.cut(None); continue }
                () = sleep_until(turn_over.unwrap_or(last)), if self.giving.is_some() && turn_over.is_some() => {
                    let turn = self.turn_over.take();
                    self.cut(turn.and_then(|turn| turn.event));
                    held.iter_mut().for_each(CallHold::timed_out);
                    continue
                }
            };
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(None) => break AnswerEnd::Whole,
                Ok(Some(Err(_))) => break AnswerEnd::Broken,
                Err(_) if self.gone_at.is_some() || Instant::now() >= last => break AnswerEnd::Left,
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
                held.reached(meter.output_so_far()).await;
            }
            self.give(&mut out, ended).await;
        };
        let complete = ending == AnswerEnd::Whole;
        let said = spillway_dialect::of_answer(ending, meter.as_ref().and_then(spillway_dialect::Meter::error));
        let counts = meter.map(|meter| meter.end(complete, &mut out));
        self.give(&mut out, ended).await;
        // Before the client sees the end: what it is told of as done is written down.
        if let (Some(mut held), Some((usage, quality))) = (held, counts) {
            if status.is_success() {
                held.says(said);
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

    /// The client sees that this is not the whole answer: it breaks off, or, with a `last` event, ends in words that say why.
    fn cut(&mut self, last: Option<Bytes>) {
        if let (Some(giving), Some(last)) = (self.giving.take(), last) {
            // It comes after what waits for the client.
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
        let Some(giving) = &self.giving else { return };
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

/// What a provider refuses it does not charge. Of an answer that was lost on its way nobody knows what it cost: the estimate is
/// charged.
fn settle(held: CallHold, status: StatusCode, usage: Usage, quality: Quality) {
    if may_have_worked(status) {
        held.settle(Usage::default(), Quality::Estimated);
    } else {
        held.settle(usage, quality);
    }
}

/// Whether an answer of this status was lost on its way from a provider that may have worked. 429, 503 and 529 are said before:
/// there is no room. 500 is the provider's own failure, which none charges.
fn may_have_worked(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 499 | 502 | 504 | 520..=527)
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
