//! WorkQueues: their status, and groups that the failure of a member cancels.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use super::convert;
use super::objectives::{self, Watches};
use super::work_index::WorkIndex;
use crate::api::WorkQueue;
use crate::api::conditions::{reasons, types};
use crate::api::work_queue::{CancelledGroup, QueueCounts, WorkQueueStatus};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::cluster::{Error, calls};
use crate::controller::Context;
use crate::controller::conditions::{Builder, find, with_stored_messages};
use crate::policy::work::admission::Refusal;
use crate::policy::work::item::UnixMillis;
use crate::policy::work::objectives::MissedObjective;

/// Name of this loop in logs and back-offs.
const LOOP_NAME: &str = "workqueue";
/// Interval of checks of all queues.
const QUEUE_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two writes of counts alone.
const COUNTS_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a cancelled group is kept at least.
const CANCELLED_GROUP_TTL: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);
/// Cancelled groups that a queue keeps: the bound of the schema.
const MAX_CANCELLED_GROUPS: usize = 64;

/// The queues as they were last read. Cheap to clone.
#[derive(Clone, Default)]
pub struct Queues(Arc<Mutex<HashMap<ObjectKey, KnownQueue>>>);

/// A queue, the time of the last write of its status, and the delay after a failed write.
#[derive(Clone)]
struct KnownQueue {
    queue: WorkQueue,
    written: Option<BootTime>,
    put_off: Option<(BootTime, Duration)>,
}

impl Queues {
    /// Records a queue.
    pub fn know(&self, key: ObjectKey, queue: WorkQueue) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (written, put_off) = all.get(&key).map_or((None, None), |known| (known.written, known.put_off));
        all.insert(key, KnownQueue { queue, written, put_off });
    }

    /// Removes a deleted queue.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The keys of all known queues.
    pub fn keys(&self) -> HashSet<ObjectKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Keeps the status of all queues up to date. Never returns.
    pub async fn publish(self, context: Arc<Context>) {
        let mut watches = Watches::default();
        loop {
            tokio::time::sleep(QUEUE_SCAN_INTERVAL).await;
            if !context.work_index.is_ready() {
                continue;
            }
            let queues = self.with_objectives();
            let over = objectives::over(&context.work_index, queues.keys());
            watches.look(&over, &queues, &context);
            for (key, queue, next) in self.due(&context.work_index, &over) {
                match self.write(&context, &key, &queue, &next).await {
                    Ok(()) => context.succeeded(LOOP_NAME, &key),
                    Err(error) => {
                        let wait = context.record_failure(LOOP_NAME, key.clone(), &error);
                        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(known) = all.get_mut(&key) {
                            known.put_off = wait.map(|wait| (BootTime::now(), wait));
                        }
                    }
                }
            }
        }
    }

    /// The queues with objectives: the others can miss none.
    fn with_objectives(&self) -> HashMap<ObjectKey, WorkQueue> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .filter(|(_, known)| known.queue.spec.objectives.is_some())
            .map(|(key, known)| (key.clone(), known.queue.clone()))
            .collect()
    }

    fn due(&self, work_index: &WorkIndex, over: &objectives::MissedItems) -> Vec<(ObjectKey, WorkQueue, WorkQueueStatus)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let due = all.into_iter().filter_map(|(key, KnownQueue { queue, written, put_off })| {
            if put_off.is_some_and(|(since, wait)| since.elapsed() < wait) {
                return None;
            }
            let stored = queue.status.clone().unwrap_or_default();
            let next = status(&key, &queue, work_index, over.get(&key).map(Vec::as_slice).unwrap_or_default(), Timestamp::now());
            let only_counts = WorkQueueStatus {
                counts: stored.counts.clone(),
                oldest_ready_time: stored.oldest_ready_time.clone(),
                oldest_dead_letter_time: stored.oldest_dead_letter_time.clone(),
                conditions: with_stored_messages(&next.conditions, &stored.conditions),
                ..next.clone()
            } == stored;
            let now = next != stored && (!only_counts || written.is_none_or(|written| written.elapsed() >= COUNTS_WRITE_INTERVAL));
            now.then_some((key, queue, next))
        });
        due.collect()
    }

    async fn write(&self, context: &Context, key: &ObjectKey, queue: &WorkQueue, next: &WorkQueueStatus) -> Result<(), Error> {
        context.leadership.check()?;
        let mut status = serde_json::to_value(next).unwrap_or_default();
        for field in ["counts", "oldestReadyTime", "oldestDeadLetterTime", "cancelledGroups"] {
            if status.get(field).is_none() {
                status[field] = serde_json::Value::Null;
            }
        }
        let body = json!({"metadata": {"resourceVersion": queue.metadata.resource_version}, "status": status});
        let stored: WorkQueue = calls::patch_status(&context.api(&key.namespace), &key.name, &body).await?;
        let full =
            |status: &WorkQueueStatus| find(&status.conditions, types::DEAD_LETTERS_KEPT).filter(|kept| kept.status == "False").cloned();
        if let (Some(full), None) = (full(next), queue.status.as_ref().and_then(full)) {
            context.events.warning(&stored, &full.reason, "Collect", full.message).await;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(key) {
            all.insert(key.clone(), KnownQueue { queue: stored, written: Some(BootTime::now()), put_off: None });
        }
        Ok(())
    }
}

fn count(value: u64) -> Option<i32> {
    Some(i32::try_from(value).unwrap_or(i32::MAX))
}

fn status(key: &ObjectKey, queue: &WorkQueue, work_index: &WorkIndex, over: &[MissedObjective], now: Timestamp) -> WorkQueueStatus {
    let (counts, oldest) = work_index.counts(&key.namespace, &key.name);
    let generation = queue.metadata.generation.unwrap_or(0);
    let stored = queue.status.clone().unwrap_or_default();
    let build = Builder { stored: &stored.conditions, generation, now };
    let unfinished = counts.ready + counts.leased + counts.paused + counts.waiting;
    let known = work_index.queue(&key.namespace, &key.name).unwrap_or_else(|| convert::queue(queue));
    let limit = known.max_pending;
    let project = work_index.project(&key.namespace).filter(|(pending, limit)| *pending >= limit.most);
    let accepting = if let Some((current, limit)) = project {
        let full = Refusal::ProjectFull { limit, current };
        build.build(types::ACCEPTING, false, full.reason(), full.to_string())
    } else if unfinished >= limit {
        let message = format!("the queue has {unfinished} unfinished items and allows {limit} (spec.limits.maxPending)");
        build.build(types::ACCEPTING, false, reasons::QUEUE_FULL, message)
    } else if unfinished.saturating_mul(5) >= limit.saturating_mul(4) {
        let message =
            format!("the queue is over 80 % full: it has {unfinished} unfinished items and allows {limit} (spec.limits.maxPending)");
        build.build(types::ACCEPTING, true, reasons::NEARLY_FULL, message)
    } else {
        build.build(types::ACCEPTING, true, reasons::ACCEPTED, "items are accepted")
    };
    let ready = if queue.spec.suspend == Some(true) {
        build.build(types::READY, true, reasons::SUSPENDED, "agents get no items from the queue (spec.suspend); new items are accepted")
    } else {
        build.build(types::READY, true, reasons::SERVING, "agents get items from the queue")
    };
    let kept = dead_letters_kept(build, counts.dead_lettered, known.max_dead_letters);
    // A different number in a message alone is no reason for a write.
    let mut conditions = with_stored_messages(&[ready, accepting, kept], &stored.conditions);
    // The number of missed objectives is a count like the others, and is written as often.
    if !known.objectives.is_empty() {
        let reason = if over.is_empty() { reasons::OBJECTIVES_MET } else { reasons::OBJECTIVE_MISSED };
        conditions.push(build.build(types::OBJECTIVES_MET, over.is_empty(), reason, objectives::words(known.objectives, over)));
    }
    // A group is also kept while the watch may not have shown its newest member.
    let young = |one: &CancelledGroup| now.duration_since(one.time.0) < CANCELLED_GROUP_TTL;
    let living = |one: &CancelledGroup| {
        young(one) || work_index.with(&key.namespace, |namespace_work| namespace_work.index.group_has_unfinished(&key.name, &one.group))
    };
    let second = |at: UnixMillis| Timestamp::from_second(at.0.div_euclid(1000)).ok().map(Time);
    // Groups that a person cancelled are listed too: the list shows when an entry may be removed.
    let cancelled =
        convert::cancelled_groups(queue).into_iter().filter_map(|(group, at)| Some(CancelledGroup { group, time: second(at)? }));
    let groups: Vec<CancelledGroup> = cancelled.filter(living).take(MAX_CANCELLED_GROUPS).collect();
    WorkQueueStatus {
        observed_generation: Some(generation),
        counts: Some(QueueCounts {
            ready: count(counts.ready),
            leased: count(counts.leased),
            waiting: count(counts.waiting),
            paused: count(counts.paused),
            finished: count(counts.finished),
            dead_lettered: count(counts.dead_lettered),
        }),
        oldest_ready_time: oldest.ready.and_then(second),
        oldest_dead_letter_time: oldest.dead_letter.and_then(second),
        cancelled_groups: Some(groups).filter(|groups| !groups.is_empty()),
        conditions,
    }
}

/// The condition that dead letters are kept for their whole time, or are deleted sooner because there are too many.
fn dead_letters_kept(build: Builder, there: u64, most: u64) -> Condition {
    let condition = |status, reason, message: String| build.build(types::DEAD_LETTERS_KEPT, status, reason, message);
    let act = "redrive or delete dead letters, or raise the limit";
    if there >= most {
        let message =
            format!("the queue has {there} dead letters and keeps {most} (spec.deadLetters.max): each new one deletes the oldest; {act}");
        condition(false, reasons::DEAD_LETTERS_FULL, message)
    } else if there.saturating_mul(5) >= most.saturating_mul(4) {
        condition(true, reasons::NEARLY_FULL, format!("the queue has {there} dead letters and keeps {most} (spec.deadLetters.max); {act}"))
    } else {
        condition(true, reasons::DEAD_LETTERS_FIT, "every dead letter is kept for spec.deadLetters.ttlSeconds".to_owned())
    }
}

/// Records in the queue that a group is cancelled, because a member failed finally and the queue says so. This happens
/// before the failure is written: if the leader is lost in between, the next one finds the tombstone, or the member has
/// not failed yet.
pub async fn cancel_group(context: &Context, namespace: &str, queue: &str, group: &str) -> Result<(), Error> {
    if !context.work_index.queue(namespace, queue).is_some_and(|queue| queue.cancel_group) {
        return Ok(());
    }
    let api = context.api::<WorkQueue>(namespace);
    let Some(live) = api.get_opt(queue).await.map_err(Error::of("reading a queue"))? else { return Ok(()) };
    let mut groups = live.status.clone().unwrap_or_default().cancelled_groups.unwrap_or_default();
    groups.retain(|known| known.group != group);
    if groups.len() >= MAX_CANCELLED_GROUPS {
        tracing::warn!(namespace, queue, group, "the list of cancelled groups of the queue is full; this group is not cancelled");
        return Ok(());
    }
    // Only members that exist now are cancelled: a member that is created later joins a cancelled group knowingly. The
    // clock of the API server tells when members were created.
    let now = Timestamp::now();
    let latest = context
        .work_index
        .with(namespace, |namespace_work| namespace_work.index.cancel_time(queue, group, UnixMillis(now.as_millisecond())));
    groups.push(CancelledGroup { group: group.to_owned(), time: Time(Timestamp::from_millisecond(latest.0).unwrap_or(now)) });
    context.leadership.check()?;
    let body = json!({"metadata": {"resourceVersion": live.metadata.resource_version}, "status": {"cancelledGroups": groups}});
    let stored: WorkQueue = calls::patch_status(&api, queue, &body).await?;
    context.work_index.observe_queue(namespace, queue, Some(&stored));
    Ok(())
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
