//! Waiting long polls, and revoked agents, from the governor's stream of changes. Also the agents outside the cluster
//! that belong to their callers, as the governor's answers showed.
//!
//! When the stream breaks, changes may be missed: all waiting calls are woken, and ask the governor again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::cluster::token::PodIdentity;
use crate::policy::sweep::Sweep;
use crate::wire::governor::Change;

/// At least this many revocations are kept, and at most twice as many. The API server refuses the token of an older
/// one, because its pod is gone.
const MIN_KEPT_REVOCATIONS: usize = 25_000;
/// At least this many agents outside the cluster are remembered, and at most twice as many. A forgotten one is known
/// again after its next call.
const MIN_KEPT_EXTERNAL_AGENTS: usize = 10_000;
/// From this number of agents in a map on, those that no longer wait are removed.
const WAITER_SWEEP_THRESHOLD: usize = 4096;

/// The agents that wait for something, by uid.
struct Waiters<T> {
    senders: HashMap<String, watch::Sender<T>>,
    sweep: Sweep,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { senders: HashMap::new(), sweep: Sweep::new(WAITER_SWEEP_THRESHOLD) }
    }
}

impl<T: Clone + Default> Waiters<T> {
    fn subscribe(&mut self, uid: &str) -> watch::Receiver<T> {
        if self.sweep.is_due(self.senders.len()) {
            self.senders.retain(|_, sender| sender.receiver_count() > 0);
            self.sweep.done(self.senders.len());
        }
        self.senders.entry(uid.to_owned()).or_insert_with(|| watch::channel(T::default()).0).subscribe()
    }

    /// Wakes one agent, with a value.
    fn wake(&self, uid: &str, what: T) {
        if let Some(sender) = self.senders.get(uid) {
            sender.send_replace(what);
        }
    }

    /// Wakes all agents, with the default value.
    fn wake_all(&self) {
        self.senders.values().for_each(|sender| drop(sender.send_replace(T::default())));
    }

    /// Wakes one agent for the last time.
    fn end(&mut self, uid: &str) {
        if let Some(sender) = self.senders.remove(uid) {
            sender.send_replace(T::default());
        }
    }
}

/// The last inserted names: at least `most`, and at most twice as many.
struct RecentSet {
    current: HashSet<String>,
    previous: HashSet<String>,
    most: usize,
}

impl RecentSet {
    fn new(most: usize) -> Self {
        Self { current: HashSet::new(), previous: HashSet::new(), most }
    }

    fn insert(&mut self, one: String) {
        if self.current.len() >= self.most {
            self.previous = std::mem::take(&mut self.current);
        }
        self.current.insert(one);
    }

    fn contains(&self, one: &str) -> bool {
        self.current.contains(one) || self.previous.contains(one)
    }
}

struct KnownAgents {
    waiting: Waiters<Option<String>>,
    waiting_for_work: Waiters<()>,
    /// Agents with an open stream. They are woken when changes may have been missed.
    streaming: Waiters<()>,
    revoked: RecentSet,
    /// Agents outside the cluster that the governor confirmed as their user's, as USER/UID.
    confirmed_external: RecentSet,
}

impl Default for KnownAgents {
    fn default() -> Self {
        let (waiting, hungry, streaming) = (Waiters::default(), Waiters::default(), Waiters::default());
        Self {
            waiting,
            waiting_for_work: hungry,
            streaming,
            revoked: RecentSet::new(MIN_KEPT_REVOCATIONS),
            confirmed_external: RecentSet::new(MIN_KEPT_EXTERNAL_AGENTS),
        }
    }
}

/// The known state of agents. Cheap to clone.
#[derive(Clone, Default)]
pub struct LongPolls(Arc<Mutex<KnownAgents>>);

impl LongPolls {
    fn lock(&self) -> MutexGuard<'_, KnownAgents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change from the governor.
    pub fn apply(&self, change: Change) {
        let mut known = self.lock();
        match change {
            Change::Alive => {}
            Change::Wanted { uid, revision } => known.waiting.wake(&uid, Some(revision)),
            Change::Work { uid } => known.waiting_for_work.wake(&uid, ()),
            Change::Revoked { uid } => {
                known.waiting_for_work.end(&uid);
                known.waiting.end(&uid);
                known.streaming.senders.remove(&uid);
                known.revoked.insert(uid);
            }
        }
    }

    /// The stream of changes broke, or began: all waiting calls must ask the governor again.
    pub fn changes_missed(&self) {
        let known = self.lock();
        known.waiting.wake_all();
        known.waiting_for_work.wake_all();
        known.streaming.wake_all();
    }

    /// For an open stream of `uid`: the channel closes when `uid` is revoked, and changes when a revocation may have
    /// been missed.
    pub fn stream(&self, uid: &str) -> watch::Receiver<()> {
        let mut known = self.lock();
        if known.revoked.contains(uid) {
            return watch::channel(()).1;
        }
        known.streaming.subscribe(uid)
    }

    /// Whether the agent has ended.
    pub fn is_revoked(&self, uid: &str) -> bool {
        self.lock().revoked.contains(uid)
    }

    /// Whether it is an agent outside the cluster that the governor has not confirmed as its user's.
    pub fn is_unconfirmed(&self, caller: &PodIdentity) -> bool {
        let Some(external) = caller.external.as_ref().filter(|external| !external.enrols) else { return false };
        !self.lock().confirmed_external.contains(&format!("{}/{}", external.user, caller.uid))
    }

    /// The governor answered a call of this agent, which confirms that it belongs to its user.
    pub fn confirmed(&self, caller: &PodIdentity) {
        let Some(external) = caller.external.as_ref().filter(|external| !external.enrols) else { return };
        let (name, mut known) = (format!("{}/{}", external.user, caller.uid), self.lock());
        if !known.confirmed_external.contains(&name) {
            known.confirmed_external.insert(name);
        }
    }

    /// The name under which the calls of an agent are counted. An agent outside the cluster only claims its identity,
    /// so all unconfirmed agents of a user share one name: a user cannot use up the limits of another user's agent, nor
    /// get more by inventing agents.
    pub fn limit_key(&self, caller: &PodIdentity) -> String {
        let Some(external) = &caller.external else { return caller.uid.clone() };
        let name = format!("{}/{}", external.user, caller.uid);
        if self.lock().confirmed_external.contains(&name) { name } else { format!("{}/", external.user) }
    }

    /// Changes when `uid` has, or may have, a new desired state.
    pub fn subscribe_desired_state(&self, uid: &str) -> watch::Receiver<Option<String>> {
        self.lock().waiting.subscribe(uid)
    }

    /// Changes when there may be work for `uid`.
    pub fn wait_for_work(&self, uid: &str) -> watch::Receiver<()> {
        self.lock().waiting_for_work.subscribe(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::token::ExternalUser;

    #[tokio::test]
    async fn who_waits_for_work_is_woken_by_it_and_by_a_broken_stream() {
        let long_polls = LongPolls::default();
        let mut work = long_polls.wait_for_work("u");
        long_polls.apply(Change::Work { uid: "other".into() });
        assert!(!work.has_changed().expect("a sender"));
        long_polls.apply(Change::Work { uid: "u".into() });
        work.changed().await.expect("a sender");
        long_polls.changes_missed();
        work.changed().await.expect("a sender");
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_change_and_by_a_broken_stream() {
        let long_polls = LongPolls::default();
        let mut waiting = long_polls.subscribe_desired_state("u");
        long_polls.apply(Change::Wanted { uid: "other".into(), revision: "1.1".into() });
        assert!(!waiting.has_changed().expect("a sender"));
        long_polls.apply(Change::Wanted { uid: "u".into(), revision: "1.2".into() });
        waiting.changed().await.expect("a sender");
        assert_eq!(waiting.borrow_and_update().as_deref(), Some("1.2"));
        long_polls.changes_missed();
        waiting.changed().await.expect("a sender");
        assert_eq!(*waiting.borrow_and_update(), None);
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_agent_and_looks_again_after_a_gap() {
        let long_polls = LongPolls::default();
        let mut stream = long_polls.stream("u");
        long_polls.changes_missed();
        stream.changed().await.expect("it may have been missed");
        long_polls.apply(Change::Revoked { uid: "u".into() });
        assert!(stream.changed().await.is_err());
        assert!(long_polls.stream("u").changed().await.is_err(), "one that comes later ends too");
    }

    #[tokio::test]
    async fn a_revoked_agent_is_woken_and_known() {
        let long_polls = LongPolls::default();
        let mut waiting = long_polls.subscribe_desired_state("u");
        long_polls.apply(Change::Revoked { uid: "u".into() });
        assert!(long_polls.is_revoked("u") && !long_polls.is_revoked("v"));
        assert!(waiting.changed().await.is_ok());
    }

    #[tokio::test]
    async fn who_waits_no_more_is_forgotten_and_who_waits_is_not() {
        let long_polls = LongPolls::default();
        let mut waits = (long_polls.subscribe_desired_state("waits"), long_polls.wait_for_work("waits"), long_polls.stream("waits"));
        for at in 0..5 * WAITER_SWEEP_THRESHOLD {
            let uid = at.to_string();
            drop((long_polls.subscribe_desired_state(&uid), long_polls.wait_for_work(&uid), long_polls.stream(&uid)));
        }
        let lengths = {
            let known = long_polls.lock();
            [known.waiting.senders.len(), known.waiting_for_work.senders.len(), known.streaming.senders.len()]
        };
        assert!(lengths.iter().all(|length| *length <= WAITER_SWEEP_THRESHOLD), "{lengths:?}");
        long_polls.changes_missed();
        waits.0.changed().await.expect("a sender");
        waits.1.changed().await.expect("a sender");
        waits.2.changed().await.expect("a sender");
    }

    #[test]
    fn as_many_revocations_are_kept_as_are_needed_and_the_last_ones_always() {
        let long_polls = LongPolls::default();
        for at in 0..=4 * MIN_KEPT_REVOCATIONS {
            long_polls.apply(Change::Revoked { uid: at.to_string() });
            if at >= MIN_KEPT_REVOCATIONS {
                assert!(
                    long_polls.is_revoked(&(at - MIN_KEPT_REVOCATIONS + 1).to_string()),
                    "it is one of the last {MIN_KEPT_REVOCATIONS}"
                );
            }
        }
        let known = long_polls.lock();
        assert!(known.revoked.current.len() + known.revoked.previous.len() <= 2 * MIN_KEPT_REVOCATIONS);
    }

    fn outside(user: &str, uid: &str) -> PodIdentity {
        let external = ExternalUser { user: user.into(), pool: "p".into(), enrols: false };
        PodIdentity { namespace: "n".into(), name: "a".into(), uid: uid.into(), external: Some(external) }
    }

    #[test]
    fn who_invents_agents_has_no_more_than_one_of_them_may_and_uses_up_nobody_elses() {
        let long_polls = LongPolls::default();
        let of = |user: &str, uid: &str| long_polls.limit_key(&outside(user, uid));
        assert_eq!(of("alice", "u"), of("alice", "v"), "nobody has answered either");
        long_polls.confirmed(&outside("alice", "u"));
        assert_ne!(of("alice", "u"), of("alice", "v"));
        assert!(of("bob", "u") != of("alice", "u") && of("bob", "u") == of("bob", "v"), "whose agent it is not");
        let pod = PodIdentity { external: None, ..outside("", "u") };
        assert_eq!(long_polls.limit_key(&pod), "u");
        let mut enrols = outside("carol", "u");
        enrols.external.as_mut().expect("from outside").enrols = true;
        long_polls.confirmed(&enrols);
        assert_eq!(of("carol", "u"), of("carol", "v"), "an Agent that is made is no call of it");
    }

    #[test]
    fn of_agents_outside_the_cluster_the_last_ones_are_known() {
        let long_polls = LongPolls::default();
        for at in 0..=4 * MIN_KEPT_EXTERNAL_AGENTS {
            long_polls.confirmed(&outside("alice", &at.to_string()));
        }
        let last = outside("alice", &(4 * MIN_KEPT_EXTERNAL_AGENTS).to_string());
        assert_ne!(long_polls.limit_key(&last), long_polls.limit_key(&outside("alice", "nobody")));
        let known = long_polls.lock();
        assert!(known.confirmed_external.current.len() + known.confirmed_external.previous.len() <= 2 * MIN_KEPT_EXTERNAL_AGENTS);
    }
}
