//! Long polls that wait here, and who was revoked: what the governor's stream of changes told.
//!
//! When the stream breaks nothing that was known counts any more: everybody who waits is woken, and asks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::wire::governor::Change;

/// Revocations kept; a token of an older one is refused by the API server, because its pod is gone.
const KEPT: usize = 50_000;

#[derive(Default)]
struct Known {
    waiting: HashMap<String, watch::Sender<Option<String>>>,
    hungry: HashMap<String, watch::Sender<()>>,
    /// Who has a stream open; woken when nothing is known any more.
    streaming: HashMap<String, watch::Sender<()>>,
    revoked: HashSet<String>,
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
            Change::Wanted { uid, revision } => {
                if let Some(waiting) = known.waiting.get(&uid) {
                    waiting.send_replace(Some(revision));
                }
            }
            Change::Work { uid } => {
                if let Some(hungry) = known.hungry.get(&uid) {
                    hungry.send_replace(());
                }
            }
            Change::Revoked { uid } => {
                if let Some(hungry) = known.hungry.remove(&uid) {
                    hungry.send_replace(());
                }
                if let Some(waiting) = known.waiting.remove(&uid) {
                    waiting.send_replace(None);
                }
                known.streaming.remove(&uid);
                if known.revoked.len() >= KEPT {
                    known.revoked.clear();
                }
                known.revoked.insert(uid);
            }
        }
    }

    /// The stream of changes broke, or began: whoever waits must ask.
    pub fn nothing_is_known(&self) {
        let known = self.lock();
        known.waiting.values().for_each(|waiting| drop(waiting.send_replace(None)));
        known.hungry.values().for_each(|hungry| hungry.send_replace(()));
        known.streaming.values().for_each(|streaming| streaming.send_replace(()));
    }

    /// For as long as `uid` has a stream open: it ends when `uid` is revoked, and changes when that may have been missed.
    pub fn stream(&self, uid: &str) -> watch::Receiver<()> {
        let mut known = self.lock();
        if known.revoked.contains(uid) {
            return watch::channel(()).1;
        }
        if known.streaming.len() > KEPT {
            known.streaming.retain(|_, streaming| streaming.receiver_count() > 0);
        }
        known.streaming.entry(uid.to_owned()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Whether the agent ended.
    pub fn is_revoked(&self, uid: &str) -> bool {
        self.lock().revoked.contains(uid)
    }

    /// Waits until something is, or may be, wanted of `uid` that is not `after`.
    pub fn wait(&self, uid: &str) -> watch::Receiver<Option<String>> {
        let mut known = self.lock();
        if known.waiting.len() > KEPT {
            known.waiting.retain(|_, waiting| waiting.receiver_count() > 0);
        }
        known.waiting.entry(uid.to_owned()).or_insert_with(|| watch::channel(None).0).subscribe()
    }

    /// Waits until there may be work for `uid`.
    pub fn wait_for_work(&self, uid: &str) -> watch::Receiver<()> {
        let mut known = self.lock();
        if known.hungry.len() > KEPT {
            known.hungry.retain(|_, hungry| hungry.receiver_count() > 0);
        }
        known.hungry.entry(uid.to_owned()).or_insert_with(|| watch::channel(()).0).subscribe()
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
}
