//! Long polls that wait here, and who was revoked: what the governor's stream of changes told.
//!
//! When the stream breaks nothing that was known counts any more: everybody who waits is woken, and asks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::policy::sweep::Sweep;
use crate::wire::governor::Change;

/// Revocations kept at least; twice as many at most. A token of an older one is refused by the API server, because its pod
/// is gone.
const REVOKED: usize = 25_000;
/// Agents that are remembered in each map before those are looked for that wait no more.
const WAITING: usize = 4096;

/// Who waits for something, by uid.
struct Waiting<T> {
    senders: HashMap<String, watch::Sender<T>>,
    sweep: Sweep,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { senders: HashMap::new(), sweep: Sweep::new(WAITING) }
    }
}

impl<T: Clone + Default> Waiting<T> {
    fn subscribe(&mut self, uid: &str) -> watch::Receiver<T> {
        if self.sweep.is_due(self.senders.len()) {
            self.senders.retain(|_, sender| sender.receiver_count() > 0);
            self.sweep.done(self.senders.len());
        }
        self.senders.entry(uid.to_owned()).or_insert_with(|| watch::channel(T::default()).0).subscribe()
    }

    /// Wakes one, with this.
    fn wake(&self, uid: &str, what: T) {
        if let Some(sender) = self.senders.get(uid) {
            sender.send_replace(what);
        }
    }

    /// Wakes everybody, with nothing.
    fn wake_all(&self) {
        self.senders.values().for_each(|sender| drop(sender.send_replace(T::default())));
    }

    /// Wakes one for the last time.
    fn end(&mut self, uid: &str) {
        if let Some(sender) = self.senders.remove(uid) {
            sender.send_replace(T::default());
        }
    }
}

#[derive(Default)]
struct Known {
    waiting: Waiting<Option<String>>,
    hungry: Waiting<()>,
    /// Who has a stream open; woken when nothing is known any more.
    streaming: Waiting<()>,
    revoked: HashSet<String>,
    /// Those before them.
    revoked_before: HashSet<String>,
}

impl Known {
    fn revoke(&mut self, uid: String) {
        if self.revoked.len() >= REVOKED {
            self.revoked_before = std::mem::take(&mut self.revoked);
        }
        self.revoked.insert(uid);
    }

    fn is_revoked(&self, uid: &str) -> bool {
        self.revoked.contains(uid) || self.revoked_before.contains(uid)
    }
}

/// What is known of agents. Cheap to clone.
#[derive(Clone, Default)]
pub struct Park(Arc<Mutex<Known>>);

impl Park {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The governor tells of a change.
    pub fn apply(&self, change: Change) {
        let mut known = self.lock();
        match change {
            Change::Alive => {}
            Change::Wanted { uid, revision } => known.waiting.wake(&uid, Some(revision)),
            Change::Work { uid } => known.hungry.wake(&uid, ()),
            Change::Revoked { uid } => {
                known.hungry.end(&uid);
                known.waiting.end(&uid);
                known.streaming.senders.remove(&uid);
                known.revoke(uid);
            }
        }
    }

    /// The stream of changes broke, or began: whoever waits must ask.
    pub fn nothing_is_known(&self) {
        let known = self.lock();
        known.waiting.wake_all();
        known.hungry.wake_all();
        known.streaming.wake_all();
    }

    /// For as long as `uid` has a stream open: it ends when `uid` is revoked, and changes when that may have been missed.
    pub fn stream(&self, uid: &str) -> watch::Receiver<()> {
        let mut known = self.lock();
        if known.is_revoked(uid) {
            return watch::channel(()).1;
        }
        known.streaming.subscribe(uid)
    }

    /// Whether the agent ended.
    pub fn is_revoked(&self, uid: &str) -> bool {
        self.lock().is_revoked(uid)
    }

    /// Waits until something is, or may be, wanted of `uid` that is not `after`.
    pub fn wait(&self, uid: &str) -> watch::Receiver<Option<String>> {
        self.lock().waiting.subscribe(uid)
    }

    /// Waits until there may be work for `uid`.
    pub fn wait_for_work(&self, uid: &str) -> watch::Receiver<()> {
        self.lock().hungry.subscribe(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_for_work_is_woken_by_it_and_by_a_broken_stream() {
        let park = Park::default();
        let mut work = park.wait_for_work("u");
        park.apply(Change::Work { uid: "other".into() });
        assert!(!work.has_changed().expect("a sender"));
        park.apply(Change::Work { uid: "u".into() });
        work.changed().await.expect("a sender");
        park.nothing_is_known();
        work.changed().await.expect("a sender");
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_change_and_by_a_broken_stream() {
        let park = Park::default();
        let mut waiting = park.wait("u");
        park.apply(Change::Wanted { uid: "other".into(), revision: "1.1".into() });
        assert!(!waiting.has_changed().expect("a sender"));
        park.apply(Change::Wanted { uid: "u".into(), revision: "1.2".into() });
        waiting.changed().await.expect("a sender");
        assert_eq!(waiting.borrow_and_update().as_deref(), Some("1.2"));
        park.nothing_is_known();
        waiting.changed().await.expect("a sender");
        assert_eq!(*waiting.borrow_and_update(), None);
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_agent_and_looks_again_after_a_gap() {
        let park = Park::default();
        let mut stream = park.stream("u");
        park.nothing_is_known();
        stream.changed().await.expect("it may have been missed");
        park.apply(Change::Revoked { uid: "u".into() });
        assert!(stream.changed().await.is_err());
        assert!(park.stream("u").changed().await.is_err(), "one that comes later ends too");
    }

    #[tokio::test]
    async fn a_revoked_agent_is_woken_and_known() {
        let park = Park::default();
        let mut waiting = park.wait("u");
        park.apply(Change::Revoked { uid: "u".into() });
        assert!(park.is_revoked("u") && !park.is_revoked("v"));
        assert!(waiting.changed().await.is_ok());
    }

    #[tokio::test]
    async fn who_waits_no_more_is_forgotten_and_who_waits_is_not() {
        let park = Park::default();
        let mut waits = (park.wait("waits"), park.wait_for_work("waits"), park.stream("waits"));
        for at in 0..5 * WAITING {
            let uid = at.to_string();
            drop((park.wait(&uid), park.wait_for_work(&uid), park.stream(&uid)));
        }
        let lengths = {
            let known = park.lock();
            [known.waiting.senders.len(), known.hungry.senders.len(), known.streaming.senders.len()]
        };
        assert!(lengths.iter().all(|length| *length <= WAITING), "{lengths:?}");
        park.nothing_is_known();
        waits.0.changed().await.expect("a sender");
        waits.1.changed().await.expect("a sender");
        waits.2.changed().await.expect("a sender");
    }

    #[test]
    fn as_many_revocations_are_kept_as_are_needed_and_the_last_ones_always() {
        let park = Park::default();
        for at in 0..=4 * REVOKED {
            park.apply(Change::Revoked { uid: at.to_string() });
            if at >= REVOKED {
                assert!(park.is_revoked(&(at - REVOKED + 1).to_string()), "it is one of the last {REVOKED}");
            }
        }
        let known = park.lock();
        assert!(known.revoked.len() + known.revoked_before.len() <= 2 * REVOKED);
    }
}
