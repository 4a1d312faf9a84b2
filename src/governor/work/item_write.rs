//! Writing an item: one compare-and-swap of its status, and what follows from it in memory, for its group and for people.
//!
//! It must not decide what is written. What always holds: what is true after a write is known, however that ended.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::convert::{self, Beside};
use super::item_events::{tell_failure, tell_people};
use super::queues;
use super::room::{Lane, now};
use crate::api::WorkItem;
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::controller::publish::after_conflict;
use crate::governor::breaker::work as attempt;
use crate::governor::budget::object::in_doubt;
use crate::policy::breaker::Outcome;
use crate::policy::breaker::work::Permits;
use crate::policy::budget::Key as TokenKey;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Holder, Phase, Record};
use crate::wire::work::Advance;

/// An item is being written, until this is dropped: also when whoever asked goes away in the middle.
pub(super) struct Writing<'a> {
    pub(super) context: &'a Context,
    pub(super) key: &'a ObjectKey,
    /// A claim that is not known to be written: what is given back.
    pub(super) back: Option<(&'a Entry, &'a Record)>,
    /// What the circuits of its pool's work gave for it, and nothing came of.
    pub(super) probe: Option<(ObjectKey, Permits)>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some((entry, next)) = self.back {
            give_back(self.context, self.key, entry, next);
        }
        if let Some((pool, permits)) = &self.probe {
            self.context.circuits.complete_work(pool, permits, Outcome::Neutral, "");
        }
        self.context.desk.written(&self.key.namespace, &self.key.name);
        self.context.desk.look(&self.key.namespace, &self.key.name);
    }
}

/// A claim was not written, as far as we know: what was known before is true again, unless something newer was read.
fn give_back(context: &Context, key: &ObjectKey, entry: &Entry, next: &Record) {
    context.desk.with(&key.namespace, |room| {
        if room.book.get(&key.name).is_some_and(|known| known.version == entry.version && known.record == *next) {
            room.book.put(&key.name, entry.clone(), now());
        }
    });
}

/// Whether an item that was as `before` says has now failed for good. A dead letter that is only not admitted again has not.
pub fn final_failure(before: &Record, record: &Record) -> bool {
    matches!(record.phase, Phase::Failed | Phase::DeadLettered) && !before.phase.ended()
}

/// Writes the end of an attempt, and what follows from one that failed for good.
pub(super) async fn write_finish(key: &ObjectKey, entry: &Entry, record: &Record, beside: &Beside, context: &Context) -> Result<(), Error> {
    if let (Some(group), true) = (&entry.spec.group, final_failure(&entry.record, record)) {
        queues::cancel_group(context, &key.namespace, record.queue.as_deref().unwrap_or_default(), group).await?;
    }
    let said = context.desk.with(&key.namespace, |room| room.progress(&entry.uid));
    let beside = Beside { progress: said.map(progress), ..beside.clone() };
    let stored = store(context, key, entry, record, &beside, Lane::Needed).await?;
    if final_failure(&entry.record, record) {
        let reason = record.reason.clone().unwrap_or_else(|| "Failed".to_owned());
        let note = record.history.last().and_then(|last| last.message.clone()).unwrap_or_default();
        tell_failure(context, &stored, entry, record, "Fail", (&reason, note)).await;
    }
    Ok(())
}

/// An item was given back: what that attempt has used is written without waiting for more.
fn given_back(context: &Context, key: &ObjectKey, entry: &Entry, holder: &Holder) {
    context.meter.is_over(TokenKey::Task { item: entry.uid.clone(), epoch: entry.record.epoch });
    let agent = context.stores.agent(&ObjectKey { namespace: key.namespace.clone(), name: holder.agent.clone() });
    if let Some(uid) = agent.and_then(|agent| agent.uid()) {
        context.meter.is_between_items(&uid);
    }
}

/// Writes a record over the version that it was decided on, as a write of this lane. What is true afterwards is known, however it ended.
pub async fn store(
    context: &Context,
    key: &ObjectKey,
    entry: &Entry,
    record: &Record,
    beside: &Beside,
    lane: Lane,
) -> Result<WorkItem, Error> {
    context.leadership.check()?;
    let policy = context.desk.with(&key.namespace, |room| room.book.policy(entry));
    let stored = context.desk.with(&key.namespace, |room| room.used(&entry.uid));
    let told = stored.and_then(|stored| context.meter.used_by(&entry.uid, stored));
    let beside = Beside { used: told.map(|told| told.total), ..beside.clone() };
    let body = convert::patch(entry, record, &policy, &beside, context.epoch, now());
    let api = context.api::<WorkItem>(&key.namespace);
    let said = beside.progress.as_ref().and_then(|_| context.desk.with(&key.namespace, |room| room.progress(&entry.uid)));
    let result = match lane {
        Lane::Shown => calls::show_status(&api, &key.name, &body).await,
        Lane::Needed | Lane::Collected => calls::patch_status(&api, &key.name, &body).await,
    };
    if let Some(told) = told {
        match result.as_ref().map_err(Error::class) {
            Ok(_) => context.meter.told_of(&entry.uid, told, false),
            Err(class) if in_doubt(class) => context.meter.told_of(&entry.uid, told, true),
            Err(_) => {}
        }
    }
    match &result {
        Ok(stored) => {
            context.metrics.item(record.phase.name());
            context.desk.observe(stored);
            if let Some(holder) = entry.record.holder.as_ref().filter(|_| record.holder.is_none()) {
                given_back(context, key, entry, holder);
                attempt::ended(context, &key.namespace, entry, record, stored);
            }
            if let Some(said) = said {
                context.desk.with(&key.namespace, |room| room.progress_stored(&entry.uid, &said));
            }
            if record.phase.ended() && !entry.record.phase.ended() {
                tell_people(context, stored, entry, record).await;
            }
        }
        Err(error) => match error.class() {
            Class::Conflict => match after_conflict(context, &api, &key.name).await? {
                Some(live) => context.desk.observe(&live),
                None => context.desk.forget(&key.namespace, &key.name, &entry.uid),
            },
            Class::NotFound => context.desk.forget(&key.namespace, &key.name, &entry.uid),
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

/// How far an item is, as its status says it.
pub fn progress(advance: Advance) -> Value {
    let Advance { epoch: _, percent, message, checkpoint_ref } = advance;
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
