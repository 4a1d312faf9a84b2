//! Reports about items: events and webhooks for people, messages for the pool that submitted the item.
//!
//! It must not change an item.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::namespace_work::NamespaceWork;
use crate::api::WorkItem;
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::controller::conditions::find;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Phase, Record, reasons};
use crate::wire::follow::{Message, SubmittedItem};

/// Reports the end of an item as people asked for, and the end of its plan. Failures are reported by the code that
/// decides them, whether people asked or not.
pub async fn tell_people(context: &Context, stored: &WorkItem, entry: &Entry, record: &Record) {
    let namespace = stored.namespace().unwrap_or_default();
    let well = matches!(record.phase, Phase::Succeeded | Phase::Cancelled);
    if well && entry.spec.notify_on.iter().any(|end| end.matches(record.phase)) {
        context.events.notify(stored, "Finished", "Settle", format!("the item is {}", record.phase.name())).await;
    }
    let Some((plan, _)) = &entry.spec.plan else { return };
    // The first writer of an end reports the plan.
    let ended = |namespace_work: &mut NamespaceWork| {
        namespace_work.take_ended_plan(plan).then(|| namespace_work.index.ended_plan(plan)).flatten().map(|all| counted(all.into_iter()))
    };
    let counts = context.work_index.with(&namespace, ended);
    if let Some(counts) = counts {
        let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        context.events.notify(stored, "PlanFinished", "Settle", format!("plan {plan}: {}", counts.join(", "))).await;
    }
}

/// Reports that no pool offers what an item requires: an event, and a message to the pool that submitted the item. Of
/// items with the same requirements and submitter only the first one is reported.
pub async fn tell_unmet(context: &Context, key: &ObjectKey, stored: &WorkItem) {
    let told = context.work_index.with(&key.namespace, |namespace_work| {
        let text = namespace_work.tell_unmet(&key.name)?;
        let entry = namespace_work.index.get(&key.name)?;
        Some((text, line(namespace_work, &key.name, entry), entry.spec.submitted_by.clone()))
    });
    let Some((text, item, submitter)) = told else { return };
    if let Some(pool) = submitter {
        context.work_index.tell(&key.namespace, &[pool], &Message::ItemWaits { item, text: text.clone() });
    }
    context.events.warning(stored, reasons::REQUIREMENTS_UNMET, "Wait", text).await;
}

/// Reports a final failure of an item, in the words of its condition: an event in any case, and webhooks if people asked
/// for it.
pub async fn tell_failure(context: &Context, stored: &WorkItem, entry: &Entry, record: &Record, action: &str, reason: &str) {
    let failed = stored.status.as_ref().and_then(|status| find(&status.conditions, "Failed"));
    let note = failed.map(|failed| failed.message.clone()).filter(|message| !message.is_empty());
    let note = note.unwrap_or_else(|| format!("the item is {} now", record.phase.name()));
    if entry.spec.notify_on.iter().any(|end| end.matches(record.phase)) {
        context.events.alert(stored, reason, action, note).await;
    } else {
        context.events.warning(stored, reason, action, note).await;
    }
}

/// The number of these items in each phase.
pub(super) fn counted<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    entries.for_each(|entry| *counts.entry(entry.record.phase.name().to_owned()).or_default() += 1);
    counts
}

/// The line about an item in an answer to an agent.
pub(super) fn line(namespace_work: &NamespaceWork, name: &str, entry: &Entry) -> SubmittedItem {
    SubmittedItem {
        name: name.to_owned(),
        uid: entry.uid.clone(),
        queue: entry.record.queue.clone().or_else(|| entry.spec.queue.clone()),
        type_: entry.spec.type_.clone(),
        group: entry.spec.group.clone(),
        plan: entry.spec.plan.as_ref().map(|(plan, _)| plan.clone()),
        phase: entry.record.phase.name().to_owned(),
        reason: entry.record.reason.clone(),
        position: namespace_work.index.position(name).and_then(|position| u64::try_from(position).ok()),
        // The message of a failure is in memory. The result of a success is read from the item.
        result: entry.record.history.last().and_then(|last| last.message.clone()).filter(|message| !message.is_empty()),
    }
}
