//! The items of one namespace in memory, and related state: agents that wait for work, agents that get no more work,
//! and items that are being written. It decides on the latest state that was read. It must not do I/O, and has no lock.
//!
//! Invariant: the state of an item never goes back to an older version.

mod counting;
mod messages;
mod needs;
mod progress;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use self::messages::Messages;
use super::convert;
use crate::api::work_item::ItemTokens;
use crate::api::{WorkItem, WorkQueue, names};
use crate::cluster::clock::BootTime;
use crate::governor::budget::object::Leaf;
use crate::policy::artifacts::Artifacts;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Phase, Policy, Record, UnixMillis};
use crate::policy::work::item_index::{ClaimClass, ClaimRequester, ItemIndex};
use crate::policy::work::lease::{self, Fence, claimable};
use crate::policy::work::requires::PoolIntake;
use crate::policy::work::tally::{ItemEvent, Tally};
use crate::wire::work::{LeaseRef, ProgressUpdate};

/// How long a pod marked for termination is excluded from claims. Afterwards it is gone, or its pool has kept it.
const TERMINATION_EXCLUSION: Duration = Duration::from_secs(30);
/// A waiting agent that has not polled for this long is dropped from the waiting list.
const CLAIM_WAITER_TTL: Duration = Duration::from_secs(40);

/// Deleted queues whose versions are kept, so that a late answer to a write of ours does not bring one back.
const MAX_DELETED_QUEUES: usize = 64;

/// The current wall-clock time.
pub fn now() -> UnixMillis {
    UnixMillis(Timestamp::now().as_millisecond())
}

/// An agent that waits for work.
#[derive(Clone, Debug)]
struct ClaimWaiters {
    labels: BTreeMap<String, String>,
    taking: PoolIntake,
    since: BootTime,
}

/// The item that an agent holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentHolding {
    /// The item's name.
    pub name: String,
    /// The lease.
    pub held: LeaseRef,
    /// The phase of the item: one of the held phases.
    pub phase: Phase,
    /// The policy of the item.
    pub policy: Policy,
    /// The number of pauses so far.
    pub pauses: i64,
    /// Whether a person resumed the last pause.
    pub resumed: bool,
    /// Whether this attempt made progress, or recorded a checkpoint.
    pub made_progress: bool,
}

/// The lane in which a write of an item waits for its turn. An item may wait once in each lane, because a needed write
/// must not wait for one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteLane {
    /// A caller waits for it.
    Needed,
    /// It only shows that the item waits.
    Shown,
    /// It is the item's deletion.
    Collected,
}

/// One namespace.
#[derive(Default)]
pub struct NamespaceWork {
    /// Its items.
    pub index: ItemIndex,
    names: HashMap<String, String>,
    busy: HashSet<String>,
    again: HashSet<String>,
    queued: HashMap<WriteLane, HashSet<String>>,
    queue_versions: HashMap<String, String>,
    waiting: BTreeMap<String, ClaimWaiters>,
    /// Pools whose agents are not signalled, because there are no tokens for them.
    held_back: HashSet<String>,
    /// Pools whose agents are not signalled, because the circuit of their work refuses it.
    stopped: HashSet<String>,
    listening: BTreeMap<String, (String, BootTime)>,
    /// The watch has delivered every change up to this version. Answers to our own writes may be ahead of it.
    watched: u64,
    /// Ends that may not be reported yet, by version: the pool that submitted the item.
    news: BTreeMap<u64, String>,
    /// Other messages for pools.
    pub messages: Messages,
    /// Ended plans whose end was not reported yet.
    ended_plans: HashSet<String>,
    /// Unmet requirements that were already reported, once for each queue, class of items and submitter.
    unmet: BTreeSet<(String, ClaimClass, Option<String>)>,
    retired: HashMap<String, BootTime>,
    last_counts: (u64, u64),
    progress: HashMap<String, (ProgressUpdate, Option<BootTime>)>,
    /// Attempts that made progress, by uid of the item and epoch.
    progressed_attempts: HashMap<String, i64>,
    /// Items with a token limit, by uid: the limit, and the item as it was last read.
    shares: HashMap<String, (i64, Leaf<ItemTokens>)>,
    /// Stored usage of all other items, if there is any.
    used: HashMap<String, i64>,
    tally: Tally,
    /// Events that metrics have not counted yet, with their queue. `None` if the queue does not exist.
    happened: Vec<(Option<String>, ItemEvent)>,
    /// Artifacts of its items.
    pub artifacts: Artifacts,
}

impl NamespaceWork {
    pub(super) fn is_empty(&self) -> bool {
        let idle = self.waiting.is_empty()
            && self.listening.is_empty()
            && self.retired.is_empty()
            && self.busy.is_empty()
            && self.queued.values().all(HashSet::is_empty)
            && self.messages.are_old()
            && self.artifacts.is_idle(now());
        idle && self.index.iter().next().is_none() && self.index.queues().next().is_none()
    }

    /// The item with this uid.
    pub fn by_uid(&self, uid: &str) -> Option<(String, Entry)> {
        let name = self.names.get(uid)?;
        self.index.get(name).filter(|entry| entry.uid == uid).map(|entry| (name.clone(), entry.clone()))
    }

    /// Whether the item with this uid exists and has not ended.
    pub fn lives(&self, uid: &str) -> bool {
        let entry = self.names.get(uid).and_then(|name| self.index.get(name));
        entry.is_some_and(|entry| entry.uid == uid && !entry.record.phase.ended())
    }

    /// The items of these uids that exist here and have not ended.
    pub(super) fn living(&self, uids: &HashSet<String>) -> Vec<String> {
        // Iterates over the shorter of two long lists.
        if uids.len() < self.names.len() {
            uids.iter().filter(|uid| self.lives(uid)).cloned().collect()
        } else {
            self.names.keys().filter(|uid| uids.contains(*uid) && self.lives(uid)).cloned().collect()
        }
    }

    /// The token limit of each attempt at the item with this uid, if it has one, and the item.
    pub fn share(&self, uid: &str) -> Option<&(i64, Leaf<ItemTokens>)> {
        self.shares.get(uid)
    }

    /// Stored token usage of the item with this uid. `None` if the item has a share, which counts its tokens.
    pub fn used(&self, uid: &str) -> Option<i64> {
        (!self.shares.contains_key(uid)).then(|| self.used.get(uid).copied().unwrap_or(0))
    }

    /// All held items with a share, with the epoch of their lease.
    pub fn shares(&self) -> impl Iterator<Item = (&(i64, Leaf<ItemTokens>), i64)> {
        self.shares.iter().filter_map(|(uid, share)| {
            let entry = self.index.get(self.names.get(uid)?)?;
            entry.record.holder.as_ref().map(|_| (share, entry.record.epoch))
        })
    }

    /// Whether a pod holds this lease, whatever else it holds.
    pub fn holds(&self, pod: &str, held: &LeaseRef) -> bool {
        let fence = Fence { epoch: held.epoch, pod, agent: "" };
        self.by_uid(&held.uid).is_some_and(|(_, entry)| lease::holds(&entry.record, fence))
    }

    /// The item that a pod holds.
    pub fn holding(&self, pod: &str) -> Option<AgentHolding> {
        let (name, entry) = self.index.held_by(pod)?;
        let held = LeaseRef { uid: entry.uid.clone(), epoch: entry.record.epoch };
        let pauses = entry.record.pauses;
        Some(AgentHolding {
            name: name.to_owned(),
            phase: entry.record.phase,
            policy: self.index.policy(entry),
            pauses,
            resumed: entry.record.phase == Phase::Paused && entry.spec.resume_pause >= pauses,
            made_progress: self.progressed_attempts.get(&held.uid) == Some(&held.epoch),
            held,
        })
    }

    /// Begins to write an item. Returns false if another write is in flight; the item is then checked again after it.
    pub fn begin(&mut self, name: &str) -> bool {
        let free = self.busy.insert(name.to_owned());
        if !free {
            self.again.insert(name.to_owned());
        }
        free
    }

    /// Marks that a write of an item waits for its turn. Returns false if one already waits.
    pub fn enqueue(&mut self, name: &str, lane: WriteLane) -> bool {
        self.queued.entry(lane).or_default().insert(name.to_owned())
    }

    /// Marks that the turn of a write has come.
    pub fn dequeue(&mut self, name: &str, lane: WriteLane) {
        self.queued.entry(lane).or_default().remove(name);
    }

    /// Whether a write of the item waits in this lane.
    pub fn is_queued(&self, name: &str, lane: WriteLane) -> bool {
        self.queued.get(&lane).is_some_and(|names| names.contains(name))
    }

    /// The next item for this agent, of those that can be claimed now. With `but_written`, items that are being written
    /// are skipped.
    pub fn next_for(&self, taker: &ClaimRequester, but_written: bool) -> Option<String> {
        let free = |name: &str| {
            let entry = self.index.get(name);
            !(but_written && self.is_busy(name)) && entry.is_some_and(|entry| claimable(&entry.spec, &entry.record, taker.now))
        };
        self.index.next_for(taker, free).map(str::to_owned)
    }

    /// Whether the item is being written.
    pub fn is_busy(&self, name: &str) -> bool {
        self.busy.contains(name)
    }

    /// Excludes a pod from claims, unless it holds an item. Returns whether it is excluded.
    pub fn retire(&mut self, pod: &str) -> bool {
        let free = self.index.held_by(pod).is_none();
        if free {
            self.retired.insert(pod.to_owned(), BootTime::now());
            self.waiting.remove(pod);
        }
        free
    }

    /// Whether the pod is excluded from claims.
    pub fn is_retired(&self, pod: &str) -> bool {
        self.retired.get(pod).is_some_and(|since| since.elapsed() < TERMINATION_EXCLUSION)
    }

    /// Adds a pod to the waiting list, because there is no item for it.
    pub fn add_waiter(&mut self, pod: &str, labels: BTreeMap<String, String>, taking: PoolIntake) {
        let waiting = ClaimWaiters { labels, taking, since: BootTime::now() };
        self.waiting.insert(pod.to_owned(), waiting);
    }

    /// Updates what waiting pods take: `taking_of` returns that for a pool, if it is known.
    pub fn take_from(&mut self, taking_of: impl Fn(&str) -> Option<PoolIntake>) {
        let mut known: HashMap<(String, bool), Option<PoolIntake>> = HashMap::new();
        for waiting in self.waiting.values_mut() {
            let Some(pool) = waiting.labels.get(names::POOL_LABEL) else { continue };
            let outside = waiting.taking.outside_cluster;
            let taking = known.entry((pool.clone(), outside)).or_insert_with(|| {
                let taking = taking_of(pool)?;
                Some(if outside { taking.for_outside() } else { taking })
            });
            if let Some(taking) = taking.as_ref().filter(|taking| **taking != waiting.taking) {
                waiting.taking.clone_from(taking);
            }
        }
    }

    /// Excludes the agents of exactly these pools from signals. Returns whether a pool was released.
    pub fn hold_back(&mut self, pools: HashSet<String>) -> bool {
        let before = std::mem::replace(&mut self.held_back, pools);
        before.iter().any(|pool| !self.held_back.contains(pool))
    }

    /// The same as [`hold_back`](Self::hold_back), for pools whose circuit refuses work.
    pub fn stop(&mut self, pools: HashSet<String>) -> bool {
        let before = std::mem::replace(&mut self.stopped, pools);
        before.iter().any(|pool| !self.stopped.contains(pool))
    }

    /// The circuit of a pool has just refused work: its agents are not signalled until [`stop`](Self::stop) releases
    /// the pool.
    pub fn stopped(&mut self, pool: &str) {
        self.stopped.insert(pool.to_owned());
    }

    /// A pod waits for messages about items that its pool submitted.
    pub fn add_listener(&mut self, pod: &str, pool: &str) {
        self.listening.insert(pod.to_owned(), (pool.to_owned(), BootTime::now()));
    }

    /// The waiting pods for which there is a message, as far as the watch has delivered.
    fn take_ready_listeners(&mut self) -> Vec<String> {
        self.listening.retain(|_, (_, since)| since.elapsed() < CLAIM_WAITER_TTL);
        let later = self.news.split_off(&self.watched.saturating_add(1));
        let ended = std::mem::replace(&mut self.news, later).into_values();
        let pools: HashSet<String> = ended.chain(self.messages.take_news()).collect();
        self.listening.extract_if(.., |_, (pool, _)| pools.contains(pool)).map(|(pod, _)| pod).collect()
    }

    /// The watch has delivered every change up to this version. Returns whether the end of a submitted item is among
    /// them.
    pub fn watch(&mut self, version: u64) -> bool {
        self.watched = self.watched.max(version);
        self.news.first_key_value().is_some_and(|(first, _)| *first <= self.watched)
    }

    /// The version up to which everything is known.
    pub fn watched(&self) -> u64 {
        self.watched
    }

    /// Whether the end of a plan was not reported yet. After this call it counts as reported.
    pub fn take_ended_plan(&mut self, plan: &str) -> bool {
        self.ended_plans.remove(plan)
    }

    /// Removes a pod from the waiting list.
    pub fn remove_waiter(&mut self, pod: &str) {
        self.waiting.remove(pod);
    }

    /// The waiting pods that could get an item now, each a different one as far as the counts show, and the pods with
    /// new messages.
    pub(super) fn take_pods_to_signal(&mut self) -> Vec<String> {
        self.waiting.retain(|_, waiting| waiting.since.elapsed() < CLAIM_WAITER_TTL);
        let mut alike: HashMap<(&PoolIntake, &BTreeMap<String, String>), Vec<&String>> = HashMap::new();
        for (pod, waiting) in &self.waiting {
            alike.entry((&waiting.taking, &waiting.labels)).or_default().push(pod);
        }
        let mut remaining: HashMap<&str, u64> = HashMap::new();
        let mut left: HashMap<(&str, &ClaimClass), u64> = HashMap::new();
        let mut called = Vec::new();
        // Pods with equal labels and intake can take the same items: one check serves all of them.
        for ((PoolIntake { queues, offer, outside_cluster: _ }, labels), pods) in alike {
            // They keep waiting: the code that releases their pool checks all again.
            if labels.get(names::POOL_LABEL).is_some_and(|pool| self.held_back.contains(pool) || self.stopped.contains(pool)) {
                continue;
            }
            let taker = ClaimRequester { agent: "", labels, queues, offer, now: now() };
            if self.next_for(&taker, false).is_none() {
                continue;
            }
            let mut fits: Vec<(&str, &ClaimClass)> = Vec::new();
            for (queue, types) in queues {
                remaining.entry(queue).or_insert_with(|| self.index.claimable(queue, &[], None));
                let fits_all = |class: &ClaimClass| class.of_types(types) && class.selects(labels) && class.met_by(offer);
                for (class, count) in self.index.classes(queue, fits_all) {
                    left.entry((queue, class)).or_insert(count);
                    fits.push((queue, class));
                }
            }
            for pod in pods {
                let one = fits.iter().find(|(queue, class)| remaining.get(queue) > Some(&0) && left.get(&(*queue, *class)) > Some(&0));
                let Some((queue, class)) = one else { break };
                remaining.entry(queue).and_modify(|count| *count -= 1);
                left.entry((queue, class)).and_modify(|left| *left -= 1);
                called.push(pod.clone());
            }
        }
        called.iter().for_each(|pod| drop(self.waiting.remove(pod)));
        called.extend(self.take_ready_listeners());
        called
    }

    /// Whether the number of ready or held items has changed since the last call.
    pub fn counts_changed(&mut self) -> bool {
        let ready = self.index.queues().map(|queue| self.index.claimable(queue, &[], None)).sum();
        let held = u64::try_from(self.index.holders().count()).unwrap_or(u64::MAX);
        self.retired.retain(|_, since| since.elapsed() < TERMINATION_EXCLUSION);
        std::mem::replace(&mut self.last_counts, (ready, held)) != (ready, held)
    }

    /// Records an item as it was read. Returns the items that are affected, or `None` if the version is not new.
    pub(super) fn observe(&mut self, name: &str, item: &WorkItem, entry: Entry) -> Option<Vec<String>> {
        let known = self.index.get(name).filter(|known| known.uid == entry.uid);
        // A known version contains nothing new, and a decision on it may be in flight.
        if known.is_some_and(|known| !newer(&entry.version, &known.version)) {
            return None;
        }
        // An item that no agent has held is ready since its first ready time, as an earlier leader stored it.
        let waits = entry.record.phase == Phase::Ready && entry.record.attempts == 0;
        let stored = entry.first_ready.filter(|_| waits && known.is_none());
        let ready_since = known.and_then(|known| known.ready_since).or(stored);
        // Our own time is more precise than the stored one. Times from before a redrive do not count.
        let first_ready = known.filter(|known| known.record.redrives == entry.record.redrives).and_then(|known| known.first_ready);
        let first_ready = first_ready.or(entry.first_ready);
        let before = known.map(|known| known.record.phase);
        if entry.record.phase.ended() {
            self.progress.remove(&entry.uid);
            self.progressed_attempts.remove(&entry.uid);
        } else if convert::has_progress(item) {
            self.progressed_attempts.insert(entry.uid.clone(), entry.record.epoch);
        }
        let changed = before != Some(entry.record.phase);
        if changed && entry.record.phase.ended() {
            let version = entry.version.parse().unwrap_or(0);
            self.news.extend(entry.spec.submitted_by.clone().map(|pool| (version, pool)));
        }
        let plan = entry.spec.plan.as_ref().map(|(plan, _)| plan.clone());
        self.names.insert(entry.uid.clone(), name.to_owned());
        self.artifacts.observe(&entry.uid, convert::artifacts(item), now());
        if let Some(tokens) = item.spec.bulkhead.as_ref().and_then(|bulkhead| bulkhead.tokens) {
            self.shares.insert(entry.uid.clone(), (tokens, Leaf::from(item)));
        } else if let Some(used) = item.status.as_ref().and_then(|status| status.tokens.as_ref()).map(|tokens| tokens.used) {
            self.used.insert(entry.uid.clone(), used);
        }
        let happened = self.tally.observe_stored(&entry.uid, &entry.record, now());
        self.index.put(name, Entry { ready_since, first_ready, ..entry }, now());
        self.record_events(name, happened);
        self.note_ready(name);
        // Plans that ended before our first list were reported by the previous leader.
        if before.is_some_and(|before| !before.ended()) {
            self.ended_plans.extend(plan.filter(|plan| self.index.ended_plan(plan).is_some()));
        }
        Some(if changed { self.index.affected_by(name) } else { Vec::new() })
    }

    /// Removes a deleted item. Returns the items that are affected.
    pub(super) fn forget(&mut self, name: &str, uid: &str) -> Vec<String> {
        self.names.remove(uid);
        self.progress.remove(uid);
        self.progressed_attempts.remove(uid);
        self.shares.remove(uid);
        self.used.remove(uid);
        self.artifacts.observe(uid, Vec::new(), now());
        let happened = self.tally.observe_deleted(uid, now());
        self.record_events(name, happened);
        if self.index.get(name).is_none_or(|entry| entry.uid != uid) {
            return Vec::new();
        }
        let touched = self.index.affected_by(name);
        let plan = self.index.remove(name).and_then(|entry| entry.spec.plan);
        if let Some((plan, _)) = plan.filter(|(plan, _)| !self.index.has_plan(plan)) {
            self.ended_plans.remove(&plan);
        }
        touched
    }

    /// Records a queue. `None` if it was deleted. Returns the items that are affected.
    pub(super) fn observe_queue(&mut self, name: &str, queue: Option<&WorkQueue>) -> Vec<String> {
        let version = queue.and_then(|queue| queue.metadata.resource_version.clone()).unwrap_or_default();
        let known = self.queue_versions.get(name);
        if queue.is_some() && known.is_some_and(|known| newer(known, &version)) {
            return Vec::new();
        }
        if queue.is_some() {
            self.queue_versions.insert(name.to_owned(), version);
        }
        let gone = |name: &String| self.index.queue(name).is_none();
        if queue.is_none() && self.queue_versions.keys().filter(|name| gone(name)).count() >= MAX_DELETED_QUEUES {
            let kept: HashSet<String> = self.index.queues().cloned().collect();
            self.queue_versions.retain(|queue, _| kept.contains(queue) || queue == name);
        }
        let groups = queue.map(convert::cancelled_groups).unwrap_or_default();
        let mut touched = self.index.set_cancelled(name, groups);
        if self.index.set_queue(name, queue.map(convert::queue)) {
            touched.extend(self.index.of_queue(name));
        }
        touched
    }

    /// Marks the end of a write of an item. Returns whether the item is to be checked again.
    pub(super) fn written(&mut self, name: &str) -> bool {
        self.busy.remove(name);
        self.again.remove(name)
    }

    /// Sets the record of an item in memory, unless the item changed since the decision. Returns the items that are
    /// affected.
    pub(super) fn remember(&mut self, name: &str, entry: &Entry, record: Record) -> Vec<String> {
        if self.index.get(name) != Some(entry) {
            return Vec::new();
        }
        if self.is_busy(name) {
            self.begin(name); // checked again after the write
            return Vec::new();
        }
        let arrived = self.tally.observe_phase(&entry.uid, record.phase);
        self.index.set_record(name, record, true, now());
        self.record_events(name, arrived);
        self.note_ready(name);
        self.index.affected_by(name)
    }
}

/// Compares resource versions, which are rising numbers. A version that is not a number counts as newer.
fn newer(version: &str, than: &str) -> bool {
    !matches!((version.parse::<u64>(), than.parse::<u64>()), (Ok(version), Ok(than)) if version <= than)
}

#[cfg(test)]
#[path = "namespace_work_tests.rs"]
mod tests;
