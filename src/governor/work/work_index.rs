//! The [work](super::namespace_work) of all namespaces, each with its own lock, and the items that are due for a check.
//!
//! It must not do I/O, and holds no lock while it waits: work on ten thousand items of one namespace must not delay
//! another namespace. Invariant: nothing is assigned before everything was listed once.

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

/// Concurrent calls of agents that write: as many as the API server takes without queueing them itself, where they
/// would not take turns. As many calls of one namespace may wait as a gateway accepts. The memory of their bodies is
/// bounded where the bodies are read.
const CALL_BOUNDS: Bounds = Bounds { total: 32, per_namespace: 24, max_waiting: 8_000 };

/// For a queue, since when its oldest ready item is ready, and its oldest dead letter is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestItems {
    /// The oldest ready item.
    pub ready: Option<UnixMillis>,
    /// The oldest dead letter.
    pub dead_letter: Option<UnixMillis>,
}

/// The work of one namespace, and its lock.
type SharedNamespace = Arc<Mutex<NamespaceWork>>;

fn lock_namespace(shelf: &SharedNamespace) -> MutexGuard<'_, NamespaceWork> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locked only briefly, and never while waiting for the lock of a namespace.
#[derive(Default)]
struct State {
    namespaces: HashMap<String, SharedNamespace>,
    items_listed: bool,
    queues_listed: bool,
    highest_epoch: Option<i64>,
}

struct Shared {
    state: Mutex<State>,
    /// Items in the channel. Each is in it once.
    due: Mutex<HashSet<ObjectKey>>,
    looks: mpsc::UnboundedSender<ObjectKey>,
    listed: watch::Sender<bool>,
    turns: FairSemaphore,
    /// Number of messages so far, of all namespaces. Each message takes its number under the lock of its namespace.
    messages: AtomicU64,
    metrics: Metrics,
}

/// The work of all namespaces in memory. Cheap to clone.
#[derive(Clone)]
pub struct WorkIndex(Arc<Shared>);

impl WorkIndex {
    /// Starts empty. The receiver yields the items that are due for a check. Events of items are counted in `metrics`.
    pub fn new(metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<ObjectKey>) {
        let (looks, looked) = mpsc::unbounded_channel();
        let (state, due, listed, turns) = (Mutex::default(), Mutex::default(), watch::Sender::new(false), FairSemaphore::new(CALL_BOUNDS));
        let shared = Shared { state, due, looks, listed, turns, messages: AtomicU64::new(0), metrics };
        (Self(Arc::new(shared)), looked)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turns of calls that write. A call takes its turn before it decides, so that it sees the state after its
    /// wait.
    pub fn turns(&self) -> &FairSemaphore {
        &self.0.turns
    }

    /// Runs `work` on one namespace. `work` must not wait.
    pub fn with<T>(&self, namespace: &str, work: impl FnOnce(&mut NamespaceWork) -> T) -> T {
        let shelf = self.lock().namespaces.entry(namespace.to_owned()).or_default().clone();
        work(&mut lock_namespace(&shelf))
    }

    /// The same, and counts the events of items. This happens under the lock, so that a deleted queue counts nothing
    /// more.
    fn counted<T>(&self, namespace: &str, work: impl FnOnce(&mut NamespaceWork) -> T) -> T {
        let metrics = &self.0.metrics;
        self.with(namespace, |namespace_work| {
            let done = work(namespace_work);
            for (queue, happening) in namespace_work.take_events() {
                metrics.happened(&metrics.queue(namespace, queue.as_deref()), happening);
            }
            done
        })
    }

    /// Updates the metrics of items by queue and phase, without iterating over items.
    pub fn measure(&self) {
        let (metrics, mut depths) = (&self.0.metrics, Depths::default());
        let now = now();
        for (namespace, shelf) in self.all_namespaces() {
            let namespace_work = lock_namespace(&shelf);
            for Depth { queue, phases, oldest } in namespace_work.index.depths() {
                let oldest = oldest.map(|since| now.since(since)).unwrap_or_default();
                depths.add(metrics.queue(&namespace, queue), phases, oldest);
            }
        }
        metrics.depths(depths);
    }

    /// Every queue, with the number of its unfinished items and its limit, without iterating over items.
    pub fn fullness(&self) -> Vec<(ObjectKey, u64, u64)> {
        let mut all = Vec::new();
        for (namespace, shelf) in self.all_namespaces() {
            let index = &lock_namespace(&shelf).index;
            let of = |name: &String| {
                let most = index.queue(name).map(|queue| queue.max_pending)?;
                Some((ObjectKey { namespace: namespace.clone(), name: name.clone() }, index.pending(name), most))
            };
            all.extend(index.queues().filter_map(of));
        }
        all
    }

    /// Runs `look` on one namespace, if it is known.
    fn within<T>(&self, namespace: &str, look: impl FnOnce(&NamespaceWork) -> T) -> Option<T> {
        let shelf = self.lock().namespaces.get(namespace).cloned()?;
        Some(look(&lock_namespace(&shelf)))
    }

    fn all_namespaces(&self) -> Vec<(String, SharedNamespace)> {
        self.lock().namespaces.iter().map(|(namespace, shelf)| (namespace.clone(), shelf.clone())).collect()
    }

    /// Whether everything was listed once: from then on, an unknown object does not exist.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.items_listed && state.queues_listed
    }

    /// Waits until everything was listed once.
    pub async fn wait_until_listed(&self) {
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await; // the sender lives as long as we
    }

    /// The highest owner epoch that was read.
    pub fn highest_epoch(&self) -> Option<i64> {
        self.lock().highest_epoch
    }

    /// Makes this item due for a check.
    pub fn mark_due(&self, namespace: &str, name: &str) {
        let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        if self.due().insert(key.clone()) {
            let _ = self.0.looks.send(key); // a closed channel means that we are ending
        }
    }

    fn due(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.0.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The item is about to be checked: a later change makes it due again.
    pub fn clear_due(&self, key: &ObjectKey) {
        self.due().remove(key);
    }

    fn look_at(&self, namespace: &str, names: impl IntoIterator<Item = String>) {
        names.into_iter().for_each(|name| self.mark_due(namespace, &name));
    }

    /// Records an item as it was read, or as the server answered a write of ours. An older version is ignored.
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
        self.mark_due(&namespace, &name);
        self.look_at(&namespace, touched);
    }

    /// The watch has delivered every change of a namespace up to this version: agents that wait for one of them can be
    /// signalled.
    pub fn watched(&self, namespace: &str, version: u64) {
        if self.with(namespace, |namespace_work| namespace_work.watch(version)) {
            self.mark_due(namespace, ""); // no item: each check signals the waiting agents
        }
    }

    /// Adds a message for the agents of these pools.
    pub fn tell(&self, namespace: &str, pools: &[String], message: &Message) {
        let number = || self.0.messages.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(namespace, |namespace_work| pools.iter().for_each(|pool| namespace_work.messages.add(number(), pool, message.clone())));
        self.mark_due(namespace, ""); // as above
    }

    /// Removes a deleted item.
    pub fn forget(&self, namespace: &str, name: &str, uid: &str) {
        let touched = self.counted(namespace, |namespace_work| namespace_work.forget(name, uid));
        self.look_at(namespace, touched);
    }

    /// Records a queue. `None` if it was deleted.
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

    /// Records that all queues are listed.
    pub fn queues_listed(&self) {
        self.lock().queues_listed = true;
        self.look_at_all();
    }

    /// Namespace, name and uid of every item that is known.
    pub fn known(&self) -> HashSet<(String, String, String)> {
        let mut all = HashSet::new();
        for (namespace, shelf) in self.all_namespaces() {
            all.extend(lock_namespace(&shelf).index.iter().map(|(name, entry)| (namespace.clone(), name.clone(), entry.uid.clone())));
        }
        all
    }

    /// Records that all items are listed, and that these are gone.
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
        for (namespace, shelf) in self.all_namespaces() {
            lock_namespace(&shelf).index.iter().for_each(|(name, _)| self.mark_due(&namespace, name));
        }
    }

    /// Marks the end of a write of an item, however it ended.
    pub fn written(&self, namespace: &str, name: &str) {
        if self.with(namespace, |namespace_work| namespace_work.written(name)) {
            self.mark_due(namespace, name);
        }
    }

    /// Sets the record of an item in memory without storing it, and makes dependent items due.
    pub fn remember(&self, namespace: &str, name: &str, entry: &Entry, record: Record) {
        let touched = self.counted(namespace, |namespace_work| namespace_work.remember(name, entry, record));
        self.look_at(namespace, touched);
    }

    /// Removes namespaces that are empty and in which no agent waits.
    pub fn tidy(&self) {
        // A task that works on a namespace holds a reference, and no task can start meanwhile.
        self.lock().namespaces.retain(|namespace, shelf| {
            let kept = Arc::strong_count(shelf) > 1 || !lock_namespace(shelf).is_empty();
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
        self.all_namespaces().iter().flat_map(|(_, shelf)| of(&lock_namespace(shelf))).collect()
    }

    /// The items of these uids, in any namespace, that have not ended.
    pub fn living(&self, uids: &HashSet<String>) -> HashSet<String> {
        self.all_namespaces().iter().flat_map(|(_, shelf)| lock_namespace(shelf).living(uids)).collect()
    }

    /// Pods that hold an item.
    pub fn holders(&self) -> HashSet<String> {
        self.all_namespaces().iter().flat_map(|(_, shelf)| lock_namespace(shelf).index.holders().cloned().collect::<Vec<_>>()).collect()
    }

    /// Waiting pods that could get an item.
    pub fn called(&self, namespace: &str) -> Vec<String> {
        self.with(namespace, NamespaceWork::take_pods_to_signal)
    }

    /// The item that a pod holds.
    pub fn holding(&self, namespace: &str, pod: &str) -> Option<AgentHolding> {
        self.within(namespace, |namespace_work| namespace_work.holding(pod))?
    }

    /// The order for the item that a pod says it holds. `None` lets it continue.
    pub fn order(&self, namespace: &str, pod: &str, agent: &str, held: &LeaseRef) -> Option<ItemWanted> {
        if !self.is_ready() {
            return None;
        }
        let order = |order| Some(ItemWanted { held: held.clone(), order });
        // Found by the item, not by the pod: if the answer to a claim was lost, the pod may hold another item too.
        let Some((_, entry)) = self.with(namespace, |namespace_work| namespace_work.by_uid(&held.uid)) else {
            return order(ItemOrder::Lost);
        };
        let mut own = entry.record.history.iter().filter(|attempt| attempt.epoch == held.epoch && attempt.agent == agent);
        // The agent finished the item itself, and the answer is in flight.
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

    /// Work for a pool: the number of items that can be claimed now, and the number that its agents hold.
    pub fn work_for(
        &self,
        namespace: &str,
        PoolIntake { queues, offer, outside_cluster: _ }: &PoolIntake,
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

    /// The counts of a queue by phase, and its oldest items.
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

    /// The number of unfinished items of a namespace, and the limit, if there is one.
    pub fn project(&self, namespace: &str) -> Option<(u64, ProjectLimit)> {
        self.within(namespace, |namespace_work| namespace_work.index.project_use().map(|(pending, limit)| (pending, limit.clone())))?
    }

    /// The settings of a queue.
    pub fn queue(&self, namespace: &str, queue: &str) -> Option<Queue> {
        self.within(namespace, |namespace_work| namespace_work.index.queue(queue).cloned())?
    }
}

#[cfg(test)]
#[path = "work_index_tests.rs"]
mod tests;
