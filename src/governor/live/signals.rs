//! Signals of agents that no state shows: their occurrences, their answers, and counts that are not stored yet.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::Live;
use crate::cluster::clock::BootTime;
use crate::governor::work::refused::RefusedCall;
use crate::policy::interventions::{Signal, Timeout};
use crate::wire::work::LeaseRef;

/// Minimum time between two answers to a signal that is raised again and again.
const REPEATED_ANSWER_INTERVAL: Duration = Duration::from_secs(60);
/// Occurrences of a signal that are kept for one agent.
const MAX_SIGNAL_OCCURRENCES: usize = 256;
/// If an item ends within this time after we refused a call, the refusal is its cause.
const REFUSAL_BLAME_WINDOW: Duration = Duration::from_secs(60);
/// All watches have seen a stored change after this time.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(5);
/// All agents of a gang have reported the restart after this time.
const GANG_NOTICE_TTL: Duration = Duration::from_secs(60);
/// A signal is decided within this time, even under load.
const DECISION_TIMEOUT: Duration = Duration::from_secs(15);

impl Live {
    /// Raises a signal that no state shows, because of the agent or of an object above it. `words` is its message, if
    /// it has one.
    pub fn raise(&self, uid: &str, signal: Signal, words: Option<String>) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        one.words.extend(words.map(|words| (signal, words)));
        let times = one.occurrences.entry(signal).or_default();
        if times.len() == MAX_SIGNAL_OCCURRENCES {
            times.pop_front();
        }
        times.push_back(BootTime::now());
    }

    /// Raises that an agent has no tokens. Either a call with an item in hand was refused because the lifetime tokens,
    /// of which `limit` was the limit, are spent. Or, without a limit, a threshold of a Budget above the agent acted.
    pub fn out_of_tokens(&self, uid: &str, limit: Option<i64>, words: String) {
        self.raise(uid, Signal::TokenBudgetExceeded, Some(words));
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.refused_at_limit = limit;
        }
    }

    /// Records that an operation of an agent timed out and was ended. The caller must wake the reconciler, which counts
    /// it and decides.
    pub fn timed_out(&self, uid: &str, what: Timeout) {
        self.raise(uid, Signal::OperationTimeout, Some(what.message().to_owned()));
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.timeouts = one.timeouts.saturating_add(1);
        }
    }

    /// Records how often the sandbox of an agent refused something, and returns the increase of system calls and of uses of files. Counts
    /// from before the first report are not attributed.
    pub fn refusals_counted(&self, uid: &str, counts: [u64; 2]) -> [u64; 2] {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        let known = one.refusals.replace(counts).unwrap_or(counts);
        [counts[0].saturating_sub(known[0]), counts[1].saturating_sub(known[1])]
    }

    /// Records that the status counts this many more timeouts.
    pub fn timeouts_stored(&self, uid: &str, counted: u32) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.timeouts = one.timeouts.saturating_sub(counted);
        }
    }

    /// Records that a call for this item was refused for lack of tokens. The last refusal counts.
    pub fn refused(&self, uid: &str, held: LeaseRef, refused: RefusedCall) {
        self.lock().agents.entry(uid.to_owned()).or_default().refused = Some((held, refused, BootTime::now()));
    }

    /// The refusal of a call for this item, if there was one a short time ago.
    pub fn recent_refusal(&self, uid: &str, held: &LeaseRef) -> Option<RefusedCall> {
        let state = self.lock();
        let refused = state.agents.get(uid).and_then(|one| one.refused.as_ref());
        refused.filter(|(of, _, at)| of == held && at.elapsed() < REFUSAL_BLAME_WINDOW).map(|(_, refused, _)| refused.clone())
    }

    /// Whether a signal was raised just now and its decision is not stored yet, or was stored so recently that not
    /// every watch has seen it.
    pub fn is_undecided(&self, uid: &str, signal: Signal) -> bool {
        let state = self.lock();
        let Some(one) = state.agents.get(uid) else { return false };
        let raised = one.occurrences.get(&signal).and_then(VecDeque::back);
        let mut decided = [one.answered.get(&signal), one.dealt_with.get(&signal)].into_iter().flatten();
        raised.is_some_and(|at| at.elapsed() < DECISION_TIMEOUT) || decided.any(|at| at.elapsed() < MAX_WATCH_DELAY)
    }

    /// Records that the decision on a signal is stored: earlier occurrences count no more, whether they were reported
    /// or not.
    pub fn decision_stored(&self, uid: &str, signal: Signal) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.occurrences.remove(&signal);
            one.words.remove(&signal);
            one.dealt_with.insert(signal, BootTime::now());
        }
    }

    /// Whether this divergence of a gang was not reported yet. `words` identifies it. It counts as reported from then
    /// on.
    pub fn is_new_gang_notice(&self, namespace: &str, words: &str) -> bool {
        let gangs = &mut self.lock().gangs;
        gangs.retain(|_, told| told.elapsed() < GANG_NOTICE_TTL);
        gangs.insert((namespace.to_owned(), words.to_owned()), BootTime::now()).is_none()
    }

    /// Whether a signal has no answer yet. A signal that stays active is answered once.
    pub fn is_unanswered(&self, uid: &str, signal: Signal) -> bool {
        let state = self.lock();
        // The last write of an ended agent reports it once.
        let Some(one) = state.agents.get(uid) else { return true };
        // A repeated signal is answered again, but not every time.
        let again = |answered: &BootTime| one.occurrences.contains_key(&signal) && answered.elapsed() >= REPEATED_ANSWER_INTERVAL;
        one.answered.get(&signal).is_none_or(again)
    }

    /// Records that the answer to a signal is stored: its occurrences so far count no more.
    pub fn answer_stored(&self, uid: &str, signal: Signal) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.occurrences.remove(&signal);
            one.words.remove(&signal);
            one.answered.insert(signal, BootTime::now());
        }
    }

    /// Sets the active signals. A signal that is no longer active may be answered again.
    pub fn set_active_signals(&self, uid: &str, signals: &BTreeSet<Signal>) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            // A signal that occurs without being active is kept until it may be answered again.
            one.answered.retain(|signal, answered| signals.contains(signal) || answered.elapsed() < REPEATED_ANSWER_INTERVAL);
        }
    }
}
