//! The [work](super::namespace_work) of all namespaces, each behind a lock of its own, and which of them have to be looked at.
//!
//! It must not do I/O, and no lock is held over anything that waits: whoever goes through ten thousand items of one namespace
//! keeps nobody of another waiting. What always holds: nothing is given out before everything was listed once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use tokio::sync::{mpsc, watch};

use super::convert;
use super::namespace_work::{AgentHolding, NamespaceWork, now};
use crate::api::{WorkItem, WorkQueue};
use crate::cluster::ObjectKey;
use crate::policy::work::admission::{ProjectLimit, Queue};
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Phase, Record, UnixMillis, Verb};
use crate::policy::work::item_index::{Counts, Depth};
use crate::policy::work::lease::{self, Fence};
use crate::policy::work::requires::PoolIntake;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use crate::telemetry::{Depths, Metrics};
use crate::wire::follow::Message;
use crate::wire::work::{ItemOrder, ItemWanted, LeaseRef};

/// Agents' calls that write, at once: what the API server takes without their waiting for each other there, where nobody takes
/// turns. As many of one namespace may wait as a gateway lets in: what bodies they wait with is bounded where those are read.
const CALL_BOUNDS: Bounds = Bounds { all: 32, of_one: 24, waiting: 8_000 };

/// Since when the item of a queue is ready, or a dead letter, that has been for the longest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestItems {
    /// Ready.
    pub ready: Option<UnixMillis>,
    /// A dead letter.
    pub dead_letter: Option<UnixMillis>,
}

/// A room, and its lock.
type SharedNamespace = Arc<Mutex<NamespaceWork>>;

fn enter(shelf: &SharedNamespace) -> MutexGuard<'_, NamespaceWork> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held for a moment only, and never while the lock of a namespace is waited for.
#[derive(Default)]
struct State {
    namespaces: HashMap<String, SharedNamespace>,
    items_listed: bool,
    queues_listed: bool,
    highest_epoch: Option<i64>,
}

struct Shared {
    state: Mutex<State>,
    /// Items that are in the channel: each is in it once.
    due: Mutex<HashSet<ObjectKey>>,
    looks: mpsc::UnboundedSender<ObjectKey>,
    listed: watch::Sender<bool>,
    turns: FairSemaphore,
    /// Messages so far, of all namespaces: each takes its number under the lock of its room.
    messages: AtomicU64,
    metrics: Metrics,
}

/// The governor's memory of work. Cheap to clone.
#[derive(Clone)]
pub struct WorkIndex(Arc<Shared>);

impl WorkIndex {
    /// Nothing is known. Whoever has to be looked at comes out of the receiver; what happens to items is counted in `metrics`.
    pub fn new(metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<ObjectKey>) {
        let (looks, looked) = mpsc::unbounded_channel();
        let (state, due, listed, turns) = (Mutex::default(), Mutex::default(), watch::Sender::new(false), FairSemaphore::new(CALL_BOUNDS));
        let shared = Shared { state, due, looks, listed, turns, messages: AtomicU64::new(0), metrics };
        (Self(Arc::new(shared)), looked)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places for agents' calls that write, taken before anything is decided: what a call waited for is known then.
    pub fn turns(&self) -> &FairSemaphore {
        &self.0.turns
    }

    /// Works on one namespace. `work` must not wait for anything.
    pub fn with<T>(&self, namespace: &str, work: impl FnOnce(&mut NamespaceWork) -> T) -> T {
        let shelf = self.lock().namespaces.entry(namespace.to_owned()).or_default().clone();
        work(&mut enter(&shelf))
    }

    /// The same, and what happens to items there is counted: under the lock, so that a queue that is gone counts nothing more.
    fn counted<T>(&self, namespace: &str, work: impl FnOnce(&mut NamespaceWork) -> T) -> T {
        let metrics = &self.0.metrics;
        self.with(namespace, |namespace_work| {
            let done = work(namespace_work);
            for (queue, happening) in namespace_work.happened() {
                metrics.happened(&metrics.queue(namespace, queue.as_deref()), happening);
            }
            done
        })
    }

    /// Shows how many items of each queue are in which phase. No item is looked at.
    pub fn measure(&self) {
        let (metrics, mut depths) = (&self.0.metrics, Depths::default());
        let now = now();
        for (namespace, shelf) in self.shelves() {
            let namespace_work = enter(&shelf);
            for Depth { queue, phases, oldest } in namespace_work.index.depths() {
                let oldest = oldest.map(|since| now.since(since)).unwrap_or_default();
                depths.add(metrics.queue(&namespace, queue), phases, oldest);
            }
        }
        metrics.depths(depths);
    }

    /// Every queue, with its unfinished items and how many it may hold. No item is looked at.
    pub fn fullness(&self) -> Vec<(ObjectKey, u64, u64)> {
        let mut all = Vec::new();
        for (namespace, shelf) in self.shelves() {
            let index = &enter(&shelf).index;
            let of = |name: &String| {
                let most = index.queue(name).map(|queue| queue.max_pending)?;
                Some((ObjectKey { namespace: namespace.clone(), name: name.clone() }, index.pending(name), most))
            };
            all.extend(index.queues().filter_map(of));
        }
        all
    }

    /// Looks at one namespace, if it is known.
    fn within<T>(&self, namespace: &str, look: impl FnOnce(&NamespaceWork) -> T) -> Option<T> {
        let shelf = self.lock().namespaces.get(namespace).cloned()?;
        Some(look(&enter(&shelf)))
    }

    fn shelves(&self) -> Vec<(String, SharedNamespace)> {
        self.lock().namespaces.iter().map(|(namespace, shelf)| (namespace.clone(), shelf.clone())).collect()
    }

    /// Everything was listed once: what is not known does not exist.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.items_listed && state.queues_listed
    }

    /// Waits until everything was listed once.
    pub async fn filled(&self) {
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await; // the sender lives as long as we
    }

    /// The highest owner epoch in what was read.
    pub fn highest_epoch(&self) -> Option<i64> {
        self.lock().highest_epoch
    }

    /// Look at this item.
    pub fn look(&self, namespace: &str, name: &str) {
        let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        if self.due().insert(key.clone()) {
            let _ = self.0.looks.send(key); // a closed channel means that we are ending
        }
    }

    fn due(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.0.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This item is about to be looked at: what changes from now on makes it due again.
    pub fn looks_at(&self, key: &ObjectKey) {
        self.due().remove(key);
    }

    fn look_at(&self, namespace: &str, names: impl IntoIterator<Item = String>) {
        names.into_iter().for_each(|name| self.look(namespace, &name));
    }

    /// An item as it was read, or as the server answered a write of ours. An older version than is known is left out.
    pub fn observe(&self, item: &WorkItem) {
        let (namespace, name) = (item.namespace().unwrap_or_default(), item.name_any());
        let entry = convert::entry(item);
        let epoch = item.status.as_ref().and_then(|status| status.governor_epoch);
        {
            let mut state = self.lock();
            state.highest_epoch = epoch.max(state.highest_epoch);
        }
        let touched = self.counted(&namespace, |namespace_work| namespace_work.observe(&name, item, entry));
        let Some(touched) = touched else { return };
        self.look(&namespace, &name);
        self.look_at(&namespace, touched);
    }

    /// The watch told of every change in a namespace up to this version: those who listen for one of them can be called.
    pub fn watched(&self, namespace: &str, version: u64) {
        if self.with(namespace, |namespace_work| namespace_work.watch(version)) {
            self.look(namespace, ""); // at no item: those who can be called are, after each look
        }
    }

    /// The agents of these pools are told this, as soon as they listen.
    pub fn tell(&self, namespace: &str, pools: &[String], message: &Message) {
        let number = || self.0.messages.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(namespace, |namespace_work| pools.iter().for_each(|pool| namespace_work.messages.add(number(), pool, message.clone())));
        self.look(namespace, ""); // as above
    }

    /// An item is gone.
    pub fn forget(&self, namespace: &str, name: &str, uid: &str) {
        let touched = self.counted(namespace, |namespace_work| namespace_work.forget(name, uid));
        self.look_at(namespace, touched);
    }

    /// A queue, as it is now; none: it is gone.
    pub fn observe_queue(&self, namespace: &str, name: &str, queue: Option<&WorkQueue>) {
        let listed = self.lock().queues_listed;
        let touched = self.with(namespace, |namespace_work| {
            let touched = namespace_work.observe_queue(name, queue);
            if namespace_work.index.queue(name).is_none() {
                self.0.metrics.queue_gone(namespace, name);
            }
            touched
        });
        if listed {
            self.look_at(namespace, touched);
        }
    }

    /// All queues are known.
    pub fn queues_listed(&self) {
        self.lock().queues_listed = true;
        self.look_at_all();
    }

    /// Namespace, name and uid of every item that is known.
    pub fn known(&self) -> HashSet<(String, String, String)> {
        let mut all = HashSet::new();
        for (namespace, shelf) in self.shelves() {
            all.extend(enter(&shelf).index.iter().map(|(name, entry)| (namespace.clone(), name.clone(), entry.uid.clone())));
        }
        all
    }

    /// All items were listed, and these are gone.
    pub fn items_listed(&self, gone: &HashSet<(String, String, String)>) {
        gone.iter().for_each(|(namespace, name, uid)| self.forget(namespace, name, uid));
        self.lock().items_listed = true;
        self.look_at_all();
    }

    fn look_at_all(&self) {
        if !self.is_ready() {
            return;
        }
        self.0.listed.send_replace(true);
        for (namespace, shelf) in self.shelves() {
            enter(&shelf).index.iter().for_each(|(name, _)| self.look(&namespace, name));
        }
    }

    /// A write of an item is over, however it ended.
    pub fn written(&self, namespace: &str, name: &str) {
        if self.with(namespace, |namespace_work| namespace_work.written(name)) {
            self.look(namespace, name);
        }
    }

    /// What is true of an item from now on, though it is not stored: whoever depends on it is looked at.
    pub fn remember(&self, namespace: &str, name: &str, entry: &Entry, record: Record) {
        let touched = self.counted(namespace, |namespace_work| namespace_work.remember(name, entry, record));
        self.look_at(namespace, touched);
    }

    /// Forgets namespaces in which there is nothing, and nobody waits.
    pub fn tidy(&self) {
        // Who works on one has it besides us; nobody begins to meanwhile.
        self.lock().namespaces.retain(|namespace, shelf| {
            let kept = Arc::strong_count(shelf) > 1 || !enter(shelf).is_empty();
            if !kept {
                self.0.metrics.work_gone(namespace);
            }
            kept
        });
    }

    /// Namespaces that are known.
    pub fn namespaces(&self) -> Vec<String> {
        self.lock().namespaces.keys().cloned().collect()
    }

    /// All leases, by item and epoch.
    pub fn leases(&self) -> HashSet<(String, i64)> {
        let of = |namespace_work: &NamespaceWork| {
            namespace_work.index.leased().map(|entry| (entry.uid.clone(), entry.record.epoch)).collect::<Vec<_>>()
        };
        self.shelves().iter().flat_map(|(_, shelf)| of(&enter(shelf))).collect()
    }

    /// Of the items with these uids, wherever they are, those that have not ended.
    pub fn living(&self, uids: &HashSet<String>) -> HashSet<String> {
        self.shelves().iter().flat_map(|(_, shelf)| enter(shelf).living(uids)).collect()
    }

    /// Pods that hold an item.
    pub fn holders(&self) -> HashSet<String> {
        self.shelves().iter().flat_map(|(_, shelf)| enter(shelf).index.holders().cloned().collect::<Vec<_>>()).collect()
    }

    /// Pods that wait for work and could get some.
    pub fn called(&self, namespace: &str) -> Vec<String> {
        self.with(namespace, NamespaceWork::called)
    }

    /// What a pod holds.
    pub fn holding(&self, namespace: &str, pod: &str) -> Option<AgentHolding> {
        self.within(namespace, |namespace_work| namespace_work.holding(pod))?
    }

    /// What a pod is told of the item that it says it holds, if that is anything but to go on.
    pub fn order(&self, namespace: &str, pod: &str, agent: &str, held: &LeaseRef) -> Option<ItemWanted> {
        if !self.is_ready() {
            return None;
        }
        let order = |order| Some(ItemWanted { held: held.clone(), order });
        // By the item and not by the pod: one whose claim's answer was lost may hold another one besides.
        let Some((_, entry)) = self.with(namespace, |namespace_work| namespace_work.by_uid(&held.uid)) else {
            return order(ItemOrder::Lost);
        };
        let mut own = entry.record.history.iter().filter(|attempt| attempt.epoch == held.epoch && attempt.agent == agent);
        // It finished the item itself, and the answer to that is on its way.
        if own.any(|attempt| matches!(attempt.verb, Verb::Complete | Verb::Fail | Verb::Release | Verb::CancelDone)) {
            return None;
        }
        if !lease::holds(&entry.record, Fence { epoch: held.epoch, pod, agent }) {
            return order(ItemOrder::Lost);
        }
        if entry.record.phase == Phase::Paused {
            return order(ItemOrder::Pause(entry.record.pauses));
        }
        (entry.record.phase == Phase::Cancelling).then(|| order(ItemOrder::Cancel)).flatten()
    }

    /// How much work there is for a pool: items that could be given out now, and items that its agents hold.
    pub fn work_for(
        &self,
        namespace: &str,
        PoolIntake { queues, offer, outside: _ }: &PoolIntake,
        pods: &HashSet<&str>,
    ) -> Option<(u64, u64)> {
        if !self.is_ready() {
            return None;
        }
        let work = self.within(namespace, |namespace_work| {
            let ready = queues.iter().map(|(queue, types)| namespace_work.index.claimable(queue, types, Some(offer))).sum();
            let held = namespace_work.index.holders().filter(|pod| pods.contains(pod.as_str())).count();
            (ready, u64::try_from(held).unwrap_or(u64::MAX))
        });
        Some(work.unwrap_or_default())
    }

    /// How many items of a queue do what, and since when the oldest of some do.
    pub fn counts(&self, namespace: &str, queue: &str) -> (Counts, OldestItems) {
        let look = |namespace_work: &NamespaceWork| {
            let oldest = OldestItems {
                ready: namespace_work.index.oldest_ready(queue),
                dead_letter: namespace_work.index.oldest_dead_letter(queue),
            };
            (namespace_work.index.counts(queue), oldest)
        };
        self.within(namespace, look).unwrap_or_default()
    }

    /// How many items of a namespace are not over, and how many may be, where that is limited.
    pub fn project(&self, namespace: &str) -> Option<(u64, ProjectLimit)> {
        self.within(namespace, |namespace_work| namespace_work.index.project().map(|(pending, limit)| (pending, limit.clone())))?
    }

    /// A queue, as it is decided on.
    pub fn queue(&self, namespace: &str, queue: &str) -> Option<Queue> {
        self.within(namespace, |namespace_work| namespace_work.index.queue(queue).cloned())?
    }
}

#[cfg(test)]
#[path = "work_index_tests.rs"]
mod tests;
