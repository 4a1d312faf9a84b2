//! Model calls in flight: the permit of each, by the hold of its gateway.
//!
//! A hold asks for a permit, and a settle reports the result, so all gateways share a circuit. Permits are only in
//! memory: a new leader has none, and later results of those calls count for nothing. Invariant: a permit is given back
//! exactly once, also if its hold was refused, or its gateway began anew or died.

use std::time::Duration;

use super::circuits::{BeginRefusal, Circuits, MAX_MODEL_CIRCUITS};
use super::key::Key;
use super::open_calls::OpenCall;
use crate::cluster::ObjectKey;
use crate::policy::breaker::{Outcome, Permit, Rejection, RejectionCause};
use crate::wire::meter::{self, Begin, CallEnd};
use crate::wire::{Code, Refusal};

/// The longest retry delay, in milliseconds, that is returned while probes test a provider.
const MAX_PROBE_RETRY_AFTER_MS: u64 = 15_000;
/// Default limit for the first token of a stream, in seconds.
const DEFAULT_FIRST_TOKEN_SECONDS: u32 = 60;

/// A permit that is not kept yet. If it is dropped, it is given back unused.
pub struct PendingPermit<'a> {
    circuits: &'a Circuits,
    key: Key,
    permit: Option<Permit>,
}

impl PendingPermit<'_> {
    /// Keeps the permit: from now on the call is in flight.
    pub fn keep(mut self, session: &str, id: u64, pod: &str, agent: &ObjectKey) {
        let out = OpenCall { key: self.key.clone(), permit: self.permit.take(), pod: pod.to_owned(), agent: agent.clone() };
        if let Some(permit) = &out.permit {
            self.circuits.record_operation_start(permit, agent);
        }
        let before = self.circuits.calls().entry(session.to_owned()).or_default().insert(id, out);
        if let Some(mut before) = before {
            self.circuits.give_back(&mut before, Outcome::Neutral, "");
        }
    }
}

impl Drop for PendingPermit<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.circuits.complete(&self.key, &permit, Outcome::Neutral, "");
        }
    }
}

fn outcome(end: &CallEnd) -> (Outcome, String) {
    match end.outcome {
        Some(meter::Outcome::Worked) => (Outcome::Success, String::new()),
        Some(meter::Outcome::Failed { why, retry_after }) => {
            let retry_after = retry_after.map(|seconds| u64::from(seconds) * 1000);
            (Outcome::Failure { retry_after }, why.to_string())
        }
        Some(meter::Outcome::Nothing) => (Outcome::Neutral, String::new()),
        None => (Outcome::Dropped, "the result of the call is unknown".to_owned()),
    }
}

/// The host of an origin, with its port if it is not the default one.
fn host(origin: &str) -> &str {
    origin.split_once("://").map_or(origin, |(_, host)| host)
}

/// The message about a circuit that several models share.
pub(super) fn shared_circuit_note(key: &Key) -> String {
    format!("{} is shared by all models of this provider beyond the first {MAX_MODEL_CIRCUITS} that this namespace calls", key.name)
}

impl Circuits {
    /// Asks for a permit for a call that takes at most `within`. `origin` is that of its provider. The class of a model
    /// is its name.
    pub async fn may_call(&self, pool: &ObjectKey, origin: &str, model: &str, within: Duration) -> Result<PendingPermit<'_>, Refusal> {
        let key = Key::models(&pool.namespace, host(origin), model);
        match self.admit(pool, &key, within).await {
            Ok(permit) => Ok(PendingPermit { circuits: self, key, permit: Some(permit) }),
            Err(BeginRefusal::Away(why)) => Err(Refusal::new(Code::GovernorAway, why).retry_after(1)),
            Err(BeginRefusal::Open { rejection, words: _ }) => Err(self.refusal(pool, &key, rejection)),
        }
    }

    fn refusal(&self, pool: &ObjectKey, key: &Key, rejection: Rejection) -> Refusal {
        // A probe may take as long as a model turn, but usually takes seconds: it must not send a client away for long.
        let most = if rejection.cause == RejectionCause::Probing { MAX_PROBE_RETRY_AFTER_MS } else { u64::MAX };
        let rejection = Rejection { retry_after: rejection.retry_after.min(most), ..rejection };
        let standing = self.state(pool, key);
        let named = standing.as_ref().and_then(|standing| Key::named(&key.namespace, &standing.what));
        let named = named.as_ref().unwrap_or(key);
        let words = format!("{}: {rejection}", rejection.name(named.target()));
        let whose = match standing.as_ref().and_then(|standing| standing.breaker.as_deref()) {
            Some(breaker) => format!("Breaker/{breaker} in {}", pool.namespace),
            None => format!("no Breaker applies to AgentPool/{}: the defaults apply", pool.name),
        };
        let last = standing.and_then(|standing| standing.last_failure).map(|last| format!("; the last failure: {last}"));
        let shared = if named == key { String::new() } else { format!("; {}", shared_circuit_note(named)) };
        let message = format!("{words} ({whose}{}{shared})", last.unwrap_or_default());
        let refusal = Refusal::new(Code::CircuitOpen, message);
        match rejection.cause {
            RejectionCause::Open | RejectionCause::Probing => {
                refusal.retry_after(u32::try_from(rejection.retry_after.div_ceil(1000)).unwrap_or(u32::MAX))
            }
            // Waiting does not help.
            RejectionCause::Review | RejectionCause::Forced => refusal,
        }
    }

    /// Whether a repeated hold already has its permit.
    pub fn has_permit(&self, session: &str, id: u64) -> bool {
        self.calls().get(session).is_some_and(|calls| calls.contains_key(&id))
    }

    /// The limit for the first token of a stream for agents of this pool, in seconds.
    pub fn first_token(&self, pool: &ObjectKey) -> u32 {
        let state = self.lock();
        let home = state.breaker_for(&pool.namespace, &pool.name);
        let seconds = state.spec_for(&pool.namespace, home.as_deref()).first_token();
        seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(DEFAULT_FIRST_TOKEN_SECONDS)
    }

    fn give_back(&self, out: &mut OpenCall, outcome: Outcome, why: &str) {
        if let Some(permit) = out.permit.take() {
            self.complete_for(&out.key, &permit, outcome, why, Some(&out.agent));
        }
    }

    /// Ends a call, and returns it the first time.
    pub fn end_call(&self, session: &str, id: u64, end: &CallEnd) -> Option<OpenCall> {
        let mut out = self.calls().get_mut(session)?.remove(&id)?;
        let (outcome, why) = outcome(end);
        self.give_back(&mut out, outcome, &why);
        Some(out)
    }

    /// Counts a late first token as a failure, whatever the call returns later.
    pub fn record_late_first_token(&self, session: &str, id: u64) {
        let late = {
            let mut calls = self.calls();
            let Some(out) = calls.get_mut(session).and_then(|calls| calls.get_mut(&id)) else { return };
            OpenCall { permit: out.permit.take(), ..out.clone() }
        };
        let end = CallEnd { outcome: Some(meter::Outcome::Failed { why: meter::FaultCause::Late, retry_after: None }), timed_out: false };
        let ((outcome, why), mut late) = (outcome(&end), late);
        self.give_back(&mut late, outcome, &why);
    }

    /// A session began and reported its calls: all other calls of it are over and were never sent. Returns those that
    /// ended, with their results.
    pub fn session_begins(&self, begin: &Begin) -> Vec<(OpenCall, CallEnd)> {
        let ended: Vec<_> =
            begin.settles.iter().filter_map(|told| Some((self.end_call(&begin.session, told.open.id, &told.end)?, told.end))).collect();
        let open = |id: u64| id >= begin.next_hold || begin.open.iter().any(|open| open.id == id);
        self.drop_calls(&begin.session, |id| !open(id), Outcome::Neutral);
        ended
    }

    /// Ends every call of a session whose hold is below this number.
    pub fn end_calls_below(&self, session: &str, floor: u64) {
        self.drop_calls(session, |id| id < floor, Outcome::Neutral);
    }

    /// A session is dead: the results of its calls will never be known.
    pub fn session_died(&self, session: &str) {
        self.drop_calls(session, |_| true, Outcome::Dropped);
    }

    fn drop_calls(&self, session: &str, which: impl Fn(u64) -> bool, outcome: Outcome) {
        let gone: Vec<OpenCall> = {
            let mut calls = self.calls();
            let Some(of) = calls.get_mut(session) else { return };
            let gone = of.extract_if(.., |id, _| which(*id)).map(|(_, out)| out).collect();
            if of.is_empty() {
                calls.remove(session);
            }
            gone
        };
        // Not under our lock: the circuits have a lock of their own.
        gone.into_iter().for_each(|mut out| self.give_back(&mut out, outcome, "the gateway of the call is gone"));
    }
}
