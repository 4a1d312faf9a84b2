//! The gateway's side of the ledger: tokens are held at the governor before a model call, and settled after it.
//!
//! What always holds: a hold is in the journal before its call is forwarded, and a settle before it is sent.
//!
//! The decisions and the journal are in [`spillway_holds`]. Here are the requests to the governor, and [`CallHold`], which
//! settles a call in every case.

mod client;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_holds::durable::{DurableSession, JOURNAL_RESERVE_BYTES};
use spillway_holds::journal::Journal;
use spillway_holds::shares::ShareFull;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::governor::Governor;
use crate::cluster::clock::BootTime;
use crate::cluster::token::PodIdentity;
use crate::wire::meter::{
    CallEnd, Dialect, Extend, Extended, Facts, FaultCause, Hold, HoldAnswer, LateFirstToken, ModelRoute, Outcome, Quality, Target, Usage,
};
use crate::wire::{Code, Refusal};

/// Between two attempts while the governor is away.
const GOVERNOR_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long a stream may be delayed by an extension of its hold.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(1);

const ROUTE_PATH: &str = "/governor/v1/meter/way";
const HOLD_PATH: &str = "/governor/v1/meter/hold";
const EXTEND_PATH: &str = "/governor/v1/meter/extend";
const LATE_PATH: &str = "/governor/v1/meter/late";

/// The session with the governor. Cheap to clone.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

struct Shared {
    inner: Mutex<DurableSession>,
    governor: Governor,
    /// There is something to report.
    wake: Notify,
    /// The governor knows the session.
    attached: watch::Sender<bool>,
    /// Settles that are not acknowledged.
    unacknowledged: watch::Sender<usize>,
}

impl Meter {
    /// Reads the journal in `folder`, if there is one, and continues from it. `uid` is that of our pod. Calls that an
    /// earlier process had forwarded are charged at their estimate. Its other holds are given back.
    pub fn open(governor: Governor, folder: Option<PathBuf>, uid: Option<&str>) -> anyhow::Result<Self> {
        let (journal, lines) = Journal::open(folder, JOURNAL_RESERVE_BYTES)?;
        let durable = DurableSession::restore(journal, &lines, uid, now());
        tracing::info!(session = durable.session.name(), "opened the session with the ledger");
        let owed = durable.session.unacknowledged_count();
        let inner = Mutex::new(durable);
        let shared =
            Shared { inner, governor, wake: Notify::new(), attached: watch::channel(false).0, unacknowledged: watch::channel(owed).0 };
        Ok(Self(Arc::new(shared)))
    }

    fn lock(&self) -> MutexGuard<'_, DurableSession> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The target of a call that costs nothing. While the governor is away, it is asked again for `patience`.
    pub async fn resolve_route(&self, pod: &PodIdentity, way: &ModelRoute, patience: Duration) -> Result<Target, Refusal> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match self.0.governor.call_json(ROUTE_PATH, Some(pod), way).await {
                Err(refusal) if refusal.code == Code::GovernorAway && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(GOVERNOR_RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }

    /// Holds tokens for one call. While the governor is away, it is asked again with the same number for `patience`.
    pub async fn hold(&self, pod: &PodIdentity, way: ModelRoute, facts: Facts, patience: Duration) -> Result<CallHold, Refusal> {
        let deadline = tokio::time::Instant::now() + patience;
        let mut asking = self.number(&pod.namespace)?;
        let model = way.model.clone().unwrap_or_default();
        let hold = Hold { session: self.lock().session.name().to_owned(), id: asking.id, way, facts };
        let away = || {
            let message = "the governor, which holds tokens for model calls, cannot be reached now; try again";
            Refusal::new(Code::GovernorAway, message).retry_after(5)
        };
        loop {
            let mut attached = self.0.attached.subscribe();
            tokio::time::timeout_at(deadline, attached.wait_for(|attached| *attached)).await.map_err(|_| away())?.map_err(|_| away())?;
            // If this future is dropped from here on, it is not known whether the hold was given.
            asking.sent = true;
            let answer = tokio::time::timeout_at(deadline, self.0.governor.call_json::<_, HoldAnswer>(HOLD_PATH, Some(pod), &hold)).await;
            match answer {
                Ok(Ok(given)) => return asking.given(given, pod.clone(), model, learnable_bytes(&facts)),
                Ok(Err(refusal)) if refusal.code == Code::SessionUnknown => self.detach(),
                Ok(Err(refusal)) if refusal.code == Code::GovernorAway => asking.lost = true,
                Ok(Err(refusal)) if refusal.code == Code::HoldClosed => {
                    tracing::error!(id = asking.id, "the governor says that the number of a new hold was used before");
                    return Err(Refusal::new(Code::Internal, "the governor mistook this call for an ended one; make the call again"));
                }
                Ok(Err(refusal)) => {
                    // If a request was lost, it may still arrive. Else nothing is held.
                    asking.sent = asking.lost;
                    return Err(refusal);
                }
                Err(_) => return Err(away()),
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(away());
            }
            tokio::time::sleep(GOVERNOR_RETRY_DELAY).await;
        }
    }

    fn number(&self, namespace: &str) -> Result<HoldAttempt, Refusal> {
        let mut inner = self.lock();
        if !inner.is_written() {
            return Err(unwritten_refusal());
        }
        let (id, line) = inner.session.take_number(namespace).map_err(full)?;
        let kept = line.is_none_or(|line| inner.append_line(&line, now()));
        drop(inner);
        let asking = HoldAttempt { meter: self.clone(), id, sent: false, lost: false };
        if kept { Ok(asking) } else { Err(unwritten_refusal()) }
    }

    fn end(&self, id: u64, usage: Usage, quality: Quality, end: CallEnd, model: &str, bytes: i64) {
        let mut inner = self.lock();
        if let Some(line) = inner.session.end(id, usage, quality, end, model, bytes) {
            inner.append_line(&line, now());
        }
        let owed = inner.session.unacknowledged_count();
        drop(inner);
        self.0.unacknowledged.send_replace(owed);
        self.0.wake.notify_one();
    }

    /// A given hold, for a test.
    #[cfg(test)]
    pub fn given(&self, given: HoldAnswer, pod: &PodIdentity) -> CallHold {
        let asking = self.number(&pod.namespace).expect("a number");
        let given = HoldAnswer { open: crate::wire::meter::JournaledHold { id: asking.id, ..given.open.clone() }, ..given };
        asking.given(given, pod.clone(), "m".into(), 0).expect("it is kept")
    }

    /// The unacknowledged settles, for a test.
    #[cfg(test)]
    pub fn unacknowledged_settles(&self) -> Vec<crate::wire::meter::JournaledSettle> {
        self.lock().session.begin().settles
    }

    /// Compacts a long journal in the background: many thousand lines take tens of milliseconds, and no call must wait
    /// for that.
    fn shorten(&self) {
        let mut inner = self.lock();
        let Some((shorter, snapshot)) = inner.begin_compaction() else { return };
        let meter = self.clone();
        drop(inner);
        tokio::task::spawn_blocking(move || {
            let written = shorter.write(snapshot.lines());
            let replaced = meter.lock().finish_compaction(written);
            if let Err(error) = replaced {
                tracing::warn!(%error, "cannot compact the journal of holds; it continues to grow");
            }
        });
    }

    /// The governor does not know the session, so it must begin again.
    fn detach(&self) {
        self.lock().session.detached();
        self.0.attached.send_replace(false);
        self.0.wake.notify_one();
    }

    /// Waits until everything is acknowledged, at most `within`: the process is about to end.
    pub async fn flush(&self, within: Duration) {
        let mut owed = self.0.unacknowledged.subscribe();
        let _ = tokio::time::timeout(within, owed.wait_for(|owed| *owed == 0)).await; // the journal has the rest
    }
}

fn now() -> Duration {
    BootTime::now().since(BootTime::default())
}

/// Bytes of text from which the ratio of tokens to bytes is learned. 0 for a call with images or files, because their
/// part of the tokens is not known.
fn learnable_bytes(facts: &Facts) -> i64 {
    let Facts { bytes, other_tokens, output: _, thinking: _, choices: _ } = *facts;
    if other_tokens == 0 { bytes } else { 0 }
}

fn unwritten_refusal() -> Refusal {
    Refusal::new(Code::GovernorAway, "this gateway cannot write its journal of holds, so it makes no model calls now; try again")
        .retry_after(5)
}

/// The refusal when too many settles are not acknowledged.
fn full(full: ShareFull) -> Refusal {
    match full {
        ShareFull::Namespace => {
            let message = "the usage records of this namespace that are not stored yet have reached its share of the gateway's memory; \
                           try again";
            Refusal::new(Code::TooManyCalls, message).retry_after(5)
        }
        ShareFull::All => {
            let message = "the usage records that are not stored yet have reached the memory limit of this gateway; try again";
            Refusal::new(Code::GovernorAway, message).retry_after(5)
        }
    }
}

/// A number that was taken for a hold. When it is dropped, it is settled with no usage if the hold may exist.
struct HoldAttempt {
    meter: Meter,
    id: u64,
    /// The request was sent, so the hold may exist.
    sent: bool,
    /// An answer was lost.
    lost: bool,
}

impl HoldAttempt {
    fn given(mut self, given: HoldAnswer, pod: PodIdentity, model: String, bytes: i64) -> Result<CallHold, Refusal> {
        let mut inner = self.meter.lock();
        // After an error `self` is dropped, which settles it with no usage.
        let line = inner.session.given(self.id, &given.open).map_err(full)?;
        let kept = inner.append_line(&line, now());
        drop(inner);
        self.sent = false;
        let (meter, id, covered) = (self.meter.clone(), self.id, given.open.output);
        let (end, late, answer_due) = (UNSENT_CALL_END, None, None);
        let held = CallHold { meter, pod, id, given, covered, model, bytes, state: Life::Given, end, late, answer_due, hangs: false };
        if kept { Ok(held) } else { Err(unwritten_refusal()) }
    }
}

impl Drop for HoldAttempt {
    fn drop(&mut self) {
        if self.sent {
            self.meter.end(self.id, Usage::default(), Quality::Exact, UNSENT_CALL_END, "", 0);
        } else {
            self.meter.lock().session.discard_number(self.id);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Given,
    Sent,
    Ended,
}

/// The end of a call that was never sent.
const UNSENT_CALL_END: CallEnd = CallEnd { outcome: Some(Outcome::Nothing), timed_out: false };

/// Waits for the first token of a call. When it is late, the governor is told once.
struct FirstTokenTimer {
    due: Instant,
    telling: AbortHandle,
}

impl Drop for FirstTokenTimer {
    fn drop(&mut self) {
        self.telling.abort();
    }
}

/// Tokens that are held for a call. It is settled exactly once. If it is dropped before its call was sent, the usage is
/// nothing; after that it is the estimate.
pub struct CallHold {
    meter: Meter,
    pod: PodIdentity,
    id: u64,
    /// The answer of the governor.
    pub given: HoldAnswer,
    covered: i64,
    model: String,
    bytes: i64,
    state: Life,
    end: CallEnd,
    late: Option<FirstTokenTimer>,
    /// Only for responses that are not streamed. If the client leaves after this time without a response, the provider
    /// counts as hanging.
    answer_due: Option<Instant>,
    /// The client left after that time, and nothing has arrived since.
    hangs: bool,
}

impl CallHold {
    /// The call is about to be sent: from now on it may cost something.
    pub fn sent(&mut self) -> Result<(), Refusal> {
        if self.state == Life::Given {
            let mut inner = self.meter.lock();
            let line = inner.session.sent(self.id);
            if !inner.append_line(&line, now()) {
                inner.session.unsent(self.id);
                return Err(unwritten_refusal());
            }
            (self.state, self.end) = (Life::Sent, CallEnd::default());
        }
        Ok(())
    }

    /// Starts the timer of the first token. A late first token counts at once, even if the call goes on.
    pub fn await_first(&mut self) {
        let within = Duration::from_secs(self.given.first_token_seconds.into());
        if within.is_zero() {
            return;
        }
        let (governor, late) =
            (self.meter.0.governor.clone(), LateFirstToken { session: self.meter.lock().session.name().to_owned(), id: self.id });
        let due = Instant::now() + within;
        let telling = tokio::spawn(async move {
            tokio::time::sleep_until(due).await;
            // If this request is lost, the settle reports it.
            let _ = governor.call_json::<_, serde_json::Value>(LATE_PATH, None, &late).await;
        });
        self.late = Some(FirstTokenTimer { due, telling: telling.abort_handle() });
    }

    /// Starts the timer of a response that arrives as a whole. It may take long. But if the client waits longer than a
    /// first token may take, and leaves without a response, the provider counts as hanging.
    pub fn await_answer(&mut self) {
        let within = Duration::from_secs(self.given.first_token_seconds.into());
        self.answer_due = (!within.is_zero()).then(|| Instant::now() + within);
    }

    /// The client left, and nothing has arrived yet. A later response counts as if the client had stayed.
    pub fn client_left(&mut self, at: Instant) {
        self.hangs |= self.answer_due.is_some_and(|due| at >= due);
    }

    /// The first part of the response arrived.
    pub fn first_came(&mut self) {
        (self.answer_due, self.hangs) = (None, false);
        self.end_first_token_timer();
    }

    /// The first token arrived, or the call ended without it.
    fn end_first_token_timer(&mut self) {
        if let Some(FirstTokenTimer { due, .. }) = self.late.take().as_ref()
            && Instant::now() >= *due
        {
            self.record_outcome(Outcome::Failed { why: FaultCause::Late, retry_after: None });
        }
    }

    /// Records what the call shows about its provider. A failure is never overwritten.
    pub fn record_outcome(&mut self, outcome: Outcome) {
        if !matches!(self.end.outcome, Some(Outcome::Failed { .. })) {
            self.end.outcome = Some(outcome);
        }
    }

    /// The client was told that the call took too long.
    pub fn timed_out(&mut self) {
        self.end.timed_out = true;
    }

    /// The response has `output` tokens by now. If that exceeds the hold, more is requested. A provider that respects
    /// the call's limit never exceeds it. If the request is refused, the call may finish, and the excess becomes debt.
    pub async fn extend_to(&mut self, output: i64) {
        if output <= self.covered {
            return;
        }
        // The next request follows only after growth by half, so that a stream does not wait for each token.
        let wanted = output.saturating_add(output / 2).saturating_add(256);
        self.covered = wanted;
        let extend = Extend { session: self.meter.lock().session.name().to_owned(), id: self.id, output: wanted };
        let asked = self.meter.0.governor.call_json::<_, Extended>(EXTEND_PATH, Some(&self.pod), &extend);
        if let Ok(Ok(Extended { output })) = tokio::time::timeout(EXTEND_TIMEOUT, asked).await {
            let mut inner = self.meter.lock();
            if let Some(line) = inner.session.extended(self.id, output) {
                inner.append_line(&line, now());
            }
        }
    }

    /// The call ended.
    pub fn settle(mut self, usage: Usage, quality: Quality) {
        self.end(usage, quality);
    }

    /// The provider refused the call before it worked on it.
    pub fn refused(mut self) {
        self.end(Usage::default(), Quality::Exact);
    }

    fn end(&mut self, usage: Usage, quality: Quality) {
        if std::mem::replace(&mut self.state, Life::Ended) != Life::Ended {
            // The ratio of tokens to bytes is learned only from exact usage.
            let bytes = if quality == Quality::Exact && usage != Usage::default() { self.bytes } else { 0 };
            self.end_first_token_timer();
            if self.hangs {
                self.record_outcome(Outcome::Failed { why: FaultCause::Late, retry_after: None });
            }
            self.meter.end(self.id, usage, quality, self.end, &self.model, bytes);
        }
    }
}

impl Drop for CallHold {
    fn drop(&mut self) {
        let quality = if self.state == Life::Sent { Quality::Estimated } else { Quality::Exact };
        self.end(Usage::default(), quality);
    }
}

/// The label for metrics.
pub fn dialect_label(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "anthropic",
        Dialect::OpenAIChat => "openai_chat",
        Dialect::OpenAIResponses => "openai_responses",
        Dialect::Gemini => "gemini",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_want_of_room_says_whose_it_is_and_when_to_try_again() {
        let cases =
            [(ShareFull::Namespace, Code::TooManyCalls, 429, "this namespace"), (ShareFull::All, Code::GovernorAway, 503, "this gateway")];
        for (why, code, status, whose) in cases {
            let refusal = full(why);
            assert_eq!((refusal.code, refusal.code.status(), refusal.retry_after_seconds), (code, status, Some(5)));
            assert!(refusal.code.is_retryable() && refusal.message.contains(whose), "{}", refusal.message);
        }
    }

    #[test]
    fn a_call_with_an_image_teaches_nothing_of_text() {
        let facts = Facts { bytes: 300, ..Facts::default() };
        assert_eq!(learnable_bytes(&facts), 300);
        assert_eq!(learnable_bytes(&Facts { other_tokens: 1600, ..facts }), 0);
    }
}
