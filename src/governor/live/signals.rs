//! Signals of agents that no state shows: who raised which, what was done about them, and what is counted of them until it is stored.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::Live;
use crate::cluster::clock::BootTime;
use crate::governor::work::refused::RefusedCall;
use crate::policy::interventions::{Signal, Timeout};
use crate::wire::work::LeaseRef;

/// Between two answers to the same thing that happens again and again.
const REPEATED_ANSWER_INTERVAL: Duration = Duration::from_secs(60);
/// Occurrences of a signal that are remembered for one agent.
const MAX_SIGNAL_OCCURRENCES: usize = 256;
/// The end of an item so soon after a refusal of ours is that refusal's doing.
const REFUSAL_BLAME_WINDOW: Duration = Duration::from_secs(60);
/// What is stored is seen by all watches within this.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(5);
/// All agents of a gang have said within this what became of them.
const GANG_NOTICE_TTL: Duration = Duration::from_secs(60);
/// What is decided about a signal is decided within this, however busy we are.
const DECISION_TIMEOUT: Duration = Duration::from_secs(15);

impl Live {
    /// A signal that no state shows was raised by what an agent did, or by what is above it; in these words, if there are any.
    pub fn raised(&self, uid: &str, signal: Signal, words: Option<String>) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        one.words.extend(words.map(|words| (signal, words)));
        let times = one.occurrences.entry(signal).or_default();
        if times.len() == MAX_SIGNAL_OCCURRENCES {
            times.pop_front();
        }
        times.push_back(BootTime::now());
    }

    /// There are no tokens for an agent: a call of it, with an item in hand, was refused for want of tokens of its own life, whose
    /// limit was so high; or (none) a threshold of a Budget above says so.
    pub fn out_of_tokens(&self, uid: &str, limit: Option<i64>, words: String) {
        self.raised(uid, Signal::TokenBudgetExceeded, Some(words));
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.short_at = limit;
        }
    }

    /// Something that an agent did took too long and was ended. Its reconciler has to be woken: it counts, and decides.
    pub fn timed_out(&self, uid: &str, what: Timeout) {
        self.raised(uid, Signal::OperationTimeout, Some(what.words().to_owned()));
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.timeouts = one.timeouts.saturating_add(1);
        }
    }

    /// So many of its time-outs are counted in its status.
    pub fn timeouts_stored(&self, uid: &str, counted: u32) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.timeouts = one.timeouts.saturating_sub(counted);
        }
    }

    /// A call for this item was refused for want of tokens. The last refusal counts.
    pub fn refused(&self, uid: &str, held: LeaseRef, refused: RefusedCall) {
        self.lock().agents.entry(uid.to_owned()).or_default().refused = Some((held, refused, BootTime::now()));
    }

    /// The refusal of a call for this item, if one was refused a short time ago.
    pub fn was_refused(&self, uid: &str, held: &LeaseRef) -> Option<RefusedCall> {
        let state = self.lock();
        let refused = state.agents.get(uid).and_then(|one| one.refused.as_ref());
        refused.filter(|(of, _, at)| of == held && at.elapsed() < REFUSAL_BLAME_WINDOW).map(|(_, refused, _)| refused.clone())
    }

    /// Whether a signal was raised just now, and what is done about it is not stored yet, or is so new that not everybody has
    /// seen it.
    pub fn undecided(&self, uid: &str, signal: Signal) -> bool {
        let state = self.lock();
        let Some(one) = state.agents.get(uid) else { return false };
        let raised = one.occurrences.get(&signal).and_then(VecDeque::back);
        let mut decided = [one.answered.get(&signal), one.dealt_with.get(&signal)].into_iter().flatten();
        raised.is_some_and(|at| at.elapsed() < DECISION_TIMEOUT) || decided.any(|at| at.elapsed() < MAX_WATCH_DELAY)
    }

    /// What follows from a signal is stored: what was raised before counts no more, whether it was told or not.
    pub fn dealt_with(&self, uid: &str, signal: Signal) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.occurrences.remove(&signal);
            one.words.remove(&signal);
            one.dealt_with.insert(signal, BootTime::now());
        }
    }

    /// Whether people were not told yet, lately, that a gang in this namespace diverges: in words that are its own. It counts as
    /// told from then on.
    pub fn first_of_gang(&self, namespace: &str, words: &str) -> bool {
        let gangs = &mut self.lock().gangs;
        gangs.retain(|_, told| told.elapsed() < GANG_NOTICE_TTL);
        gangs.insert((namespace.to_owned(), words.to_owned()), BootTime::now()).is_none()
    }

    /// Whether a signal stands without an answer: one that goes on standing is answered once.
    pub fn unanswered(&self, uid: &str, signal: Signal) -> bool {
        let state = self.lock();
        // One that ended is told of once, by its own last write.
        let Some(one) = state.agents.get(uid) else { return true };
        // What happens again and again is answered again, but not each time.
        let again = |answered: &BootTime| one.occurrences.contains_key(&signal) && answered.elapsed() >= REPEATED_ANSWER_INTERVAL;
        one.answered.get(&signal).is_none_or(again)
    }

    /// A signal was answered, and that is stored: its occurrences so far count no more.
    pub fn answered(&self, uid: &str, signal: Signal) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            one.occurrences.remove(&signal);
            one.words.remove(&signal);
            one.answered.insert(signal, BootTime::now());
        }
    }

    /// These signals stand now; one that stood and does not any more may be answered again.
    pub fn standing(&self, uid: &str, signals: &BTreeSet<Signal>) {
        if let Some(one) = self.lock().agents.get_mut(uid) {
            // One that occurs, and does not stand, is remembered for as long as it is not answered again.
            one.answered.retain(|signal, answered| signals.contains(signal) || answered.elapsed() < REPEATED_ANSWER_INTERVAL);
        }
    }
}
