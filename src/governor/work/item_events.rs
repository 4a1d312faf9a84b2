//! Who is told of what becomes of an item: people by an event or a webhook, the pool that submitted it by a message.
//!
//! It must not change an item.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::namespace_work::NamespaceWork;
use crate::api::WorkItem;
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Phase, Record, reasons};
use crate::wire::follow::{Message, SubmittedItem};

/// An item ended: what people asked to be told of it, and its plan if that ended with it, as events. What went wrong is told
/// by whoever decided it, asked for or not.
pub async fn tell_people(context: &Context, stored: &WorkItem, entry: &Entry, record: &Record) {
    let namespace = stored.namespace().unwrap_or_default();
    let well = matches!(record.phase, Phase::Succeeded | Phase::Cancelled);
    if well && entry.spec.notify_on.iter().any(|end| end.is(record.phase)) {
        context.events.notify(stored, "Finished", "Settle", format!("the item is {}", record.phase.name())).await;
    }
    let Some((plan, _)) = &entry.spec.plan else { return };
    // Whoever of those that wrote an end of it comes first, tells.
    let ended = |namespace_work: &mut NamespaceWork| {
        namespace_work.tell_plan(plan).then(|| namespace_work.index.ended_plan(plan)).flatten().map(|all| counted(all.into_iter()))
    };
    let counts = context.work_index.with(&namespace, ended);
    if let Some(counts) = counts {
        let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        context.events.notify(stored, "PlanFinished", "Settle", format!("plan {plan}: {}", counts.join(", "))).await;
    }
}

/// No pool has what an item needs: an event, and a message to the pool whose agents submitted it. Of items that ask the same
/// and have one submitter the first one is told of.
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

/// An item failed for good: an event in any case, and the webhooks if that was asked for.
pub async fn tell_failure(
    context: &Context,
    stored: &WorkItem,
    entry: &Entry,
    record: &Record,
    action: &str,
    (reason, note): (&str, String),
) {
    if entry.spec.notify_on.iter().any(|end| end.is(record.phase)) {
        context.events.alert(stored, reason, action, note).await;
    } else {
        context.events.warning(stored, reason, action, note).await;
    }
}

/// How many of these items are in which phase.
pub(super) fn counted<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    entries.for_each(|entry| *counts.entry(entry.record.phase.name().to_owned()).or_default() += 1);
    counts
}

/// What an agent is told of an item.
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
        // Why it failed is known; what came out is read.
        result: entry.record.history.last().and_then(|last| last.message.clone()).filter(|message| !message.is_empty()),
    }
}
