//! The part of the meter for writes: which record is written next, its contents, and the effects of the write.
//!
//! At most one write of a record is in flight. Invariant: a write is made over a version whose record is the one that
//! we know, so no other process wrote it since we read it. If one did, another replica leads, or led a moment ago, and
//! this process starts anew.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;

use super::conditions::{AgentCounts, BudgetNews, BudgetStanding, PublishedStatus, news, next_status};
use super::convert::canonical;
use super::meter::{Meter, State};
use super::object::Object;
use super::record::{Record, conditions};
use super::write_order::DueRecord;
use crate::cluster::clock::BootTime;
use crate::policy::backoff::delay;
use crate::policy::budget::persisted::RecordDraft;
use crate::policy::budget::share::agent;
use crate::policy::budget::{Event, Key, PersistedRecord};

/// Minimum time between two writes of amounts alone.
const AMOUNTS_WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two writes of the record of an agent after the end of an item: it may do many short items.
const ITEM_END_WRITE_INTERVAL: Duration = AMOUNTS_WRITE_INTERVAL;
/// How long after the end of an item or an agent late usage may come, in milliseconds.
const LATE_USAGE_GRACE_MS: i64 = 10_000;
/// First and longest bound of the delay between attempts to write one record.
const WRITE_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Writes of one record with an unknown result that are kept.
const MAX_UNCERTAIN_WRITES: usize = 16;

/// A write to make.
pub struct Job {
    /// The record.
    pub key: Key,
    draft: Option<RecordDraft>,
    saved: Option<PersistedRecord>,
}

/// The effects of a write.
pub struct WriteEffects {
    /// Thresholds that were reached.
    pub events: Vec<Event>,
    /// Conditions that changed their status.
    pub news: Vec<BudgetNews>,
    /// The object.
    pub object: Object,
}

/// The result of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictOutcome {
    /// Another part of the object was written: try again.
    Again,
    /// The object was replaced.
    Gone,
    /// Another process wrote the record: we do not lead, or the previous leader was faster. This process must start
    /// anew.
    NotOurs,
}

impl State {
    /// All records that may be written now.
    fn due(&self, now: i64) -> Vec<DueRecord> {
        let counted = self.ledger.due(now);
        let seen: HashSet<&Key> = counted.iter().collect();
        let others: Vec<Key> = self.restate.iter().filter(|key| !seen.contains(key)).cloned().collect();
        let due = |(key, counted): (Key, bool)| {
            let record = self.records.get(&key).filter(|record| record.is_free())?;
            // A call may also wait for the top-up of its agent.
            let waited_for = record.pending_top_up.is_some() || (counted && self.ledger.is_waited_for(&key));
            Some(DueRecord { namespace: record.object.namespace().to_owned(), waited_for, counted, key })
        };
        let all = counted.into_iter().map(|key| (key, true)).chain(others.into_iter().map(|key| (key, false)));
        all.filter_map(due).collect()
    }

    fn hurry(&mut self, key: Key, gap: Duration) {
        if !self.records.contains_key(&key) {
            return;
        }
        self.make_due(&key, gap);
        let until = self.now().saturating_add(LATE_USAGE_GRACE_MS);
        // The end of an agent is not delayed by an item that it gave back before.
        let known = self.late_usage_due.get(&key).map_or(gap, |(_, known)| *known);
        self.late_usage_due.insert(key, (until, gap.min(known)));
    }

    /// Makes a record due, if its last write is at least this long ago.
    fn make_due(&mut self, key: &Key, gap: Duration) {
        if self.records.get(key).is_some_and(|record| record.written.is_none_or(|written| written.elapsed() >= gap)) {
            self.ledger.hasten(key);
        }
    }

    /// The status to write beside the record. `None` for agents and items.
    fn next_status(&self, key: &Key, object: &Object) -> Option<PublishedStatus> {
        let generation = match object {
            Object::Budget(budget) => budget.metadata.generation,
            Object::Cluster(cluster) => cluster.metadata.generation,
            Object::Agent(_) | Object::Item(_) => return None,
        };
        let written = self.written.get(key)?;
        let views = self.ledger.view(key);
        let standing = BudgetStanding {
            views: &views,
            mode: written.mode,
            lowest: written.lowest,
            defects: &written.defects,
            uncounted_namespaces: written.beyond,
        };
        let agents = self.agents.as_ref().map(|agents| AgentCounts::of(agents, key));
        Some(next_status(generation.unwrap_or(0), conditions(object), &standing, agents, jiff::Timestamp::now()))
    }

    /// Whether the status of a budget must be written for something other than its record.
    fn is_news(&self, key: &Key, record: &Record) -> bool {
        let Some(said) = self.next_status(key, &record.object) else { return false };
        let amounts_due = record.written.is_none_or(|written| written.elapsed() >= AMOUNTS_WRITE_INTERVAL);
        let (generation, amounts) = match &record.object {
            Object::Budget(budget) => {
                let stored = budget.status.clone().unwrap_or_default();
                let mut next = stored.clone();
                said.agents.iter().for_each(|agents| agents.into_budget(&mut next));
                (stored.observed_generation, said.tightest != stored.tightest || next != stored)
            }
            Object::Cluster(cluster) => {
                let stored = cluster.status.clone().unwrap_or_default();
                let mut next = stored.clone();
                said.agents.iter().for_each(|agents| agents.into_cluster(&mut next));
                (stored.observed_generation, said.tightest != stored.tightest || next != stored)
            }
            Object::Agent(_) | Object::Item(_) => return false,
        };
        said.conditions != record.conditions() || Some(said.generation) != generation || (amounts_due && amounts)
    }
}

impl Meter {
    /// An agent or a lease has ended or is about to: its usage is written without waiting for more.
    pub fn write_soon(&self, key: Key) {
        self.lock().hurry(key, Duration::ZERO);
        self.notify_writer();
    }

    /// The agent with this uid has given its item back: its usage is written soon, but not for each of many short
    /// items.
    pub fn write_between_items(&self, uid: &str) {
        self.lock().hurry(Key::Agent(uid.to_owned()), ITEM_END_WRITE_INTERVAL);
        self.notify_writer();
    }

    /// Makes the records of ended agents and leases due, if usage has come since.
    pub fn hurry(&self) {
        let mut state = self.lock();
        if state.late_usage_due.is_empty() {
            return;
        }
        let now = state.now();
        state.late_usage_due.retain(|_, (until, _)| *until > now);
        let all: Vec<(Key, Duration)> = state.late_usage_due.iter().map(|(key, (_, gap))| (key.clone(), *gap)).collect();
        all.into_iter().for_each(|(key, gap)| state.make_due(&key, gap));
        drop(state);
        self.notify_writer();
    }

    /// Finds the budgets whose status is outdated.
    pub fn restate(&self) {
        let mut state = self.lock();
        let news: Vec<Key> =
            state.records.iter().filter(|(key, record)| !key.is_leaf() && state.is_news(key, record)).map(|(key, _)| key.clone()).collect();
        if !news.is_empty() {
            state.restate.extend(news);
            self.notify_writer();
        }
    }

    /// The next write: records that a call waits for come first, in turns between namespaces.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let state = &mut *state;
        if !state.ready {
            return None;
        }
        let now = state.now();
        let State { restate: again, records, .. } = state;
        again.retain(|key| records.contains_key(key));
        let mut due = state.due(now);
        while let Some(at) = state.write_order.next(&due) {
            let DueRecord { key, counted, .. } = due.remove(at);
            let draft = if counted { state.ledger.draft(now, &key) } else { None };
            if draft.is_none() && !state.restate.remove(&key) {
                continue;
            }
            let Some(record) = state.records.get_mut(&key) else { continue };
            record.writing = true;
            let saved = draft.as_ref().map(|draft| canonical(&key, draft.saved.clone()));
            return Some(Job { key, draft, saved });
        }
        None
    }

    /// The object to write, and the patch. `None` if there is nothing to write any more.
    pub fn prepare(&self, job: &Job) -> Option<(Object, Value)> {
        let state = self.lock();
        let record = state.records.get(&job.key)?;
        let said = state.next_status(&job.key, &record.object);
        let top_ups = record.pending_top_up.map_or(0, |life| life.taken);
        let patch = record.object.patch(&job.key, job.saved.as_ref(), said.as_ref(), top_ups, state.epoch)?;
        Some((record.object.clone(), patch))
    }

    /// The object of a record, as it is known.
    pub fn object(&self, key: &Key) -> Option<Object> {
        self.lock().records.get(key).map(|record| record.object.clone())
    }

    /// Takes an object that was read, before a write or independently.
    pub fn saw(&self, key: &Key, object: &Object) {
        if let Some(record) = self.lock().records.get_mut(key).filter(|record| record.object.uid() == object.uid()) {
            record.saw(key, object);
        }
    }

    /// Handles a conflict of a write. `live` is the object now.
    pub fn conflicted(&self, job: &Job, live: &Object) -> ConflictOutcome {
        let mut state = self.lock();
        let state = &mut *state;
        let epoch = state.epoch;
        let Some(record) = state.records.get_mut(&job.key) else { return ConflictOutcome::Gone };
        if live.uid() != record.object.uid() {
            return ConflictOutcome::Gone;
        }
        if live.epoch().is_some_and(|other| other > epoch) {
            return ConflictOutcome::NotOurs;
        }
        if live.is_superseded(&job.key) {
            state.ledger.remove(&job.key);
            state.records.remove(&job.key);
            return ConflictOutcome::Gone;
        }
        // The answer to this write may have been lost, and the client may have sent it again.
        record.uncertain_writes.extend(job.saved.clone());
        let ours = record.saw(&job.key, live);
        if job.saved.is_some() {
            record.uncertain_writes.pop();
        }
        if ours { ConflictOutcome::Again } else { ConflictOutcome::NotOurs }
    }

    /// Records that the write was made.
    pub fn stored(&self, job: &Job, object: Object) -> WriteEffects {
        let mut state = self.lock();
        let state = &mut *state;
        let mut done = WriteEffects { events: Vec::new(), news: Vec::new(), object: object.clone() };
        if let Some(record) = state.records.get_mut(&job.key) {
            done.news = news(record.conditions(), conditions(&object));
            (record.writing, record.failures, record.put_off, record.written) = (false, 0, None, Some(BootTime::now()));
            record.uncertain_writes.clear();
            record.known = object.saved(&job.key);
            if job.saved.as_ref().is_some_and(|saved| *saved != record.known) {
                let (namespace, name) = object.names();
                tracing::error!(namespace, name, record = %job.key, "the API server dropped fields of a token record: apply the CRDs of this version");
            }
            if let Some(life) = record.pending_top_up.filter(|life| object.top_ups() >= life.taken) {
                (record.lifetime, record.pending_top_up) = (Some(life), None);
                state.ledger.put(agent(object.uid(), &life));
            }
            record.object = object;
        }
        if let Some(draft) = &job.draft {
            done.events = state.ledger.written(draft).events;
        }
        self.moved();
        done
    }

    /// Records that the write failed, or, with `doubt`, that its result is unknown. Returns the delay before the next
    /// attempt.
    pub fn failed(&self, job: &Job, doubt: bool) -> Duration {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(draft) = &job.draft {
            state.ledger.failed(draft);
        }
        let Some(record) = state.records.get_mut(&job.key) else { return WRITE_RETRY_BACKOFF.0 };
        record.writing = false;
        record.failures = record.failures.saturating_add(1);
        let wait = delay(record.failures, WRITE_RETRY_BACKOFF.0, WRITE_RETRY_BACKOFF.1, rand::random());
        record.put_off = Some((BootTime::now(), wait));
        if doubt && record.uncertain_writes.len() < MAX_UNCERTAIN_WRITES {
            record.uncertain_writes.extend(job.saved.clone());
        }
        if job.draft.is_none() {
            state.restate.insert(job.key.clone());
        }
        wait
    }

    /// Records that there was nothing to write.
    pub fn skipped(&self, job: &Job) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(draft) = &job.draft {
            state.ledger.failed(draft);
        }
        if let Some(record) = state.records.get_mut(&job.key) {
            record.writing = false;
        }
    }
}
