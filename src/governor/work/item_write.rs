//! Writing an item: one compare-and-swap of its status, and its effects in memory, for its group and for people.
//!
//! It must not decide what is written. Invariant: after a write the index has the true state, however the write ended.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::convert::{self, StatusExtras};
use super::item_events::{tell_failure, tell_people};
use super::namespace_work::{WriteLane, now};
use super::queues;
use crate::api::WorkItem;
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::controller::status_throttle::after_conflict;
use crate::governor::breaker::work as attempt;
use crate::governor::budget::object::result_unknown;
use crate::policy::breaker::Outcome;
use crate::policy::breaker::work::Permits;
use crate::policy::budget::Key as TokenKey;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Holder, Phase, Record};
use crate::wire::work::ProgressUpdate;

/// Marks an item as being written until it is dropped, also when the caller goes away in the middle.
pub(super) struct ItemWriteGuard<'a> {
    pub(super) context: &'a Context,
    pub(super) key: &'a ObjectKey,
    /// A claim whose write is not confirmed: it is given back.
    pub(super) unconfirmed_claim: Option<(&'a Entry, &'a Record)>,
    /// Permits that the circuits gave for this claim and that are not used yet.
    pub(super) probe: Option<(ObjectKey, Permits)>,
}

impl Drop for ItemWriteGuard<'_> {
    fn drop(&mut self) {
        if let Some((entry, next)) = self.unconfirmed_claim {
            give_back(self.context, self.key, entry, next);
        }
        if let Some((pool, permits)) = &self.probe {
            self.context.circuits.complete_work(pool, permits, Outcome::Neutral, "");
        }
        self.context.work_index.written(&self.key.namespace, &self.key.name);
        self.context.work_index.mark_due(&self.key.namespace, &self.key.name);
    }
}

/// Restores the entry from before a claim that was not written, unless a newer version was read.
fn give_back(context: &Context, key: &ObjectKey, entry: &Entry, next: &Record) {
    context.work_index.with(&key.namespace, |namespace_work| {
        if namespace_work.index.get(&key.name).is_some_and(|known| known.version == entry.version && known.record == *next) {
            namespace_work.index.put(&key.name, entry.clone(), now());
        }
    });
}

/// Whether this change is a final failure. A dead letter that is not admitted again is not a new failure.
pub fn final_failure(before: &Record, record: &Record) -> bool {
    matches!(record.phase, Phase::Failed | Phase::DeadLettered) && !before.phase.ended()
}

/// Writes the end of an attempt, and the effects of a final failure.
pub(super) async fn write_finish(
    key: &ObjectKey,
    entry: &Entry,
    record: &Record,
    beside: &StatusExtras,
    context: &Context,
) -> Result<(), Error> {
    if let (Some(group), true) = (&entry.spec.group, final_failure(&entry.record, record)) {
        queues::cancel_group(context, &key.namespace, record.queue.as_deref().unwrap_or_default(), group).await?;
    }
    let said = context.work_index.with(&key.namespace, |namespace_work| namespace_work.progress(&entry.uid));
    let beside = StatusExtras { progress: said.map(progress), ..beside.clone() };
    let stored = store(context, key, entry, record, &beside, WriteLane::Needed).await?;
    if final_failure(&entry.record, record) {
        let reason = record.reason.clone().unwrap_or_else(|| "Failed".to_owned());
        tell_failure(context, &stored, entry, record, "Fail", &reason).await;
    }
    Ok(())
}

/// The holder gave an item back: the usage of the attempt is written without waiting for more.
fn given_back(context: &Context, key: &ObjectKey, entry: &Entry, holder: &Holder) {
    context.meter.write_soon(TokenKey::Task { item: entry.uid.clone(), epoch: entry.record.epoch });
    let agent = context.stores.agent(&ObjectKey { namespace: key.namespace.clone(), name: holder.agent.clone() });
    if let Some(uid) = agent.and_then(|agent| agent.uid()) {
        context.meter.write_between_items(&uid);
    }
}

/// Writes a record over the version that it was decided on, in this lane. Afterwards the index has the true state,
/// however the write ended.
pub async fn store(
    context: &Context,
    key: &ObjectKey,
    entry: &Entry,
    record: &Record,
    beside: &StatusExtras,
    lane: WriteLane,
) -> Result<WorkItem, Error> {
    context.leadership.check()?;
    let policy = context.work_index.with(&key.namespace, |namespace_work| namespace_work.index.policy(entry));
    let stored = context.work_index.with(&key.namespace, |namespace_work| namespace_work.used(&entry.uid));
    let told = stored.and_then(|stored| context.meter.used_by(&entry.uid, stored));
    let beside = StatusExtras { tokens_used: told.map(|told| told.total), ..beside.clone() };
    let body = convert::patch(entry, record, &policy, &beside, context.epoch, now());
    let api = context.api::<WorkItem>(&key.namespace);
    let said = beside
        .progress
        .as_ref()
        .and_then(|_| context.work_index.with(&key.namespace, |namespace_work| namespace_work.progress(&entry.uid)));
    let result = match lane {
        WriteLane::Shown => calls::show_status(&api, &key.name, &body).await,
        WriteLane::Needed | WriteLane::Collected => calls::patch_status(&api, &key.name, &body).await,
    };
    if let Some(told) = told {
        match result.as_ref().map_err(Error::class) {
            Ok(_) => context.meter.usage_stored(&entry.uid, told, false),
            Err(class) if result_unknown(class) => context.meter.usage_stored(&entry.uid, told, true),
            Err(_) => {}
        }
    }
    match &result {
        Ok(stored) => {
            context.metrics.item(record.phase.name());
            context.work_index.observe(stored);
            if let Some(holder) = entry.record.holder.as_ref().filter(|_| record.holder.is_none()) {
                given_back(context, key, entry, holder);
                attempt::record_attempt_end(context, &key.namespace, entry, record, stored);
            }
            if let Some(said) = said {
                context.work_index.with(&key.namespace, |namespace_work| namespace_work.progress_stored(&entry.uid, &said));
            }
            if record.phase.ended() && !entry.record.phase.ended() {
                tell_people(context, stored, entry, record).await;
            }
        }
        Err(error) => match error.class() {
            Class::Conflict => match after_conflict(context, &api, &key.name).await? {
                Some(live) => context.work_index.observe(&live),
                None => context.work_index.forget(&key.namespace, &key.name, &entry.uid),
            },
            Class::NotFound => context.work_index.forget(&key.namespace, &key.name, &entry.uid),
            Class::AlreadyExists
            | Class::QuotaExceeded
            | Class::Terminating
            | Class::Refused
            | Class::LostLeadership
            | Class::Unavailable => {}
        },
    }
    result
}

/// The progress of an item, as its status shows it.
pub fn progress(advance: ProgressUpdate) -> Value {
    let ProgressUpdate { epoch: _, percent, message, checkpoint_ref } = advance;
    let mut said = json!({"updateTime": Time(Timestamp::now())});
    if let Some(percent) = percent {
        said["percent"] = json!(percent);
    }
    if let Some(message) = message {
        said["message"] = json!(message);
    }
    if let Some(checkpoint) = checkpoint_ref {
        said["checkpointRef"] = json!(checkpoint);
    }
    said
}
