//! The agents' questions about what they submitted: a list, and an inbox.
//!
//! Both answer for the pool, so that an agent that replaces another one hears what that one waited for. Nothing is kept for
//! them: they are read from the items, in the order in which the API server stored their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt;

use super::calls::{ready, unavailable};
use super::room::Room;
use crate::api::WorkItem;
use crate::cluster::Error;
use crate::controller::{Context, Key};
use crate::governor::caller::Caller;
use crate::policy::work::book::Entry;
use crate::policy::work::item::{Phase, Record, reasons};
use crate::serve::turns::{Bounds, Turns};
use crate::wire::Refusal;
use crate::wire::follow::{AskInbox, Inbox, Line, ListWork, Listed, MAX_LINES, Message};

/// Items that are read at once, for all who ask together: what agents ask must not keep the API server busy.
const AT_ONCE: usize = 4;
static READS: LazyLock<Turns> = LazyLock::new(|| Turns::new(Bounds { all: AT_ONCE, of_one: 3, waiting: usize::MAX }));
/// Characters of what came out that are told: the whole of it is in the item's status.
const TOLD: usize = 1024;

/// The items that the agents of `pool` submitted.
pub async fn list(caller: &Caller, pool: &str, request: &ListWork, context: &Context) -> Result<Listed, Refusal> {
    ready(context)?;
    let namespace = &caller.key.namespace;
    let (counts, lines) = context.desk.with(namespace, |room| {
        let mut all: Vec<_> = room.book.submitted_by(pool).filter(|(_, entry)| asked_for(request, entry)).collect();
        all.sort_by_key(|(name, entry)| (entry.record.phase.ended(), entry.spec.submitted, *name));
        let lines: Vec<Line> = all.iter().take(MAX_LINES).map(|(name, entry)| line(room, name, entry)).collect();
        (counted(all.iter().map(|(_, entry)| *entry)), lines)
    });
    let filled = futures::stream::iter(lines.into_iter().map(|line| with_result(namespace, line, context)));
    Ok(Listed { counts, items: filled.buffered(AT_ONCE).try_collect().await? })
}

fn asked_for(request: &ListWork, entry: &Entry) -> bool {
    let plan = entry.spec.plan.as_ref().map(|(plan, _)| plan);
    (request.group.is_none() || request.group == entry.spec.group) && (request.plan.is_none() || request.plan.as_ref() == plan)
}

/// What of `pool`'s ended after the cursor; none: nothing did. The caller is called when something does.
pub async fn inbox(caller: &Caller, pool: &str, request: &AskInbox, context: &Context) -> Result<Option<Inbox>, Refusal> {
    ready(context)?;
    let namespace = &caller.key.namespace;
    let after = request.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(0);
    let found = context.desk.with(namespace, |room| {
        let found = ended_after(room, pool, after);
        if found.is_empty() {
            room.listens(&caller.uid, pool);
        }
        found
    });
    let Some((cursor, _)) = found.last() else { return Ok(None) };
    let cursor = cursor.to_string();
    let filled = futures::stream::iter(found.into_iter().map(async |(_, message)| match message {
        Message::ItemEnded { item } => Ok::<_, Refusal>(Message::ItemEnded { item: with_result(namespace, item, context).await? }),
        other @ (Message::PlanEnded { .. } | Message::Escalated { .. } | Message::ItemWaits { .. }) => Ok(other),
    }));
    Ok(Some(Inbox { messages: filled.buffered(AT_ONCE).try_collect().await?, cursor }))
}

/// Messages and their places, the oldest first. An item's place is the version with which its end was stored: that is the
/// order for every leader, whatever its clock says. Nothing is told beyond what the watch told: of two ends the later one may
/// be known first, and a cursor must not pass over the other.
fn ended_after(room: &Room, pool: &str, after: u64) -> Vec<(u64, Message)> {
    let within = |place| after < place && place <= room.watched();
    let mut found = Vec::new();
    let mut plans = BTreeSet::new();
    for (name, entry) in room.book.submitted_by(pool) {
        let told = entry.spec.notify_on.is_empty() || entry.spec.notify_on.iter().any(|end| end.is(entry.record.phase));
        if entry.record.phase.ended() && entry.unsaved.is_none() && told && within(version(entry)) {
            found.push((version(entry), Message::ItemEnded { item: line(room, name, entry) }));
        }
        plans.extend(entry.spec.plan.as_ref().map(|(plan, _)| plan));
    }
    for plan in plans {
        let Some(entries) = room.book.ended_plan(plan) else { continue };
        let last = entries.iter().map(|entry| version(entry)).max().unwrap_or(0);
        if within(last) {
            found.push((last, Message::PlanEnded { plan: plan.clone(), counts: counted(entries.into_iter()) }));
        }
    }
    found.extend(room.escalated(pool).filter(|(place, _)| within(*place)).map(|(place, message)| (place, message.clone())));
    // Of one place the item comes first: its plan ended with it.
    found.sort_by_key(|(place, message)| (*place, matches!(message, Message::PlanEnded { .. })));
    // What has one place is told in one answer, or the cursor would pass over the rest: an item and its plan.
    let end = found.get(MAX_LINES).map_or(found.len(), |(beyond, _)| found.partition_point(|(place, _)| place < beyond));
    found.truncate(end);
    found
}

/// An item ended: what people asked to be told of it, and its plan if that ended with it, as events. What went wrong is told
/// by whoever decided it, asked for or not.
pub async fn tell_people(context: &Context, stored: &WorkItem, entry: &Entry, record: &Record) {
    let namespace = stored.namespace().unwrap_or_default();
    let well = matches!(record.phase, Phase::Succeeded | Phase::Cancelled);
    if well && entry.spec.notify_on.iter().any(|end| end.is(record.phase)) {
        context.events.notify(stored, "Finished", "Settle", format!("it is {}", record.phase.name())).await;
    }
    let Some((plan, _)) = &entry.spec.plan else { return };
    // Whoever of those that wrote an end of it comes first, tells.
    let ended = |room: &mut Room| room.tell_plan(plan).then(|| room.book.ended_plan(plan)).flatten().map(|all| counted(all.into_iter()));
    let counts = context.desk.with(&namespace, ended);
    if let Some(counts) = counts {
        let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        context.events.notify(stored, "PlanFinished", "Settle", format!("plan {plan}: {}", counts.join(", "))).await;
    }
}

/// No pool has what an item needs: an event, and a message to the pool whose agents submitted it. Of items that ask the same
/// and have one submitter the first one is told of.
pub async fn tell_unmet(context: &Context, key: &Key, stored: &WorkItem) {
    let place = stored.resource_version().and_then(|version| version.parse().ok());
    let told = context.desk.with(&key.namespace, |room| {
        let text = room.tell_unmet(&key.name)?;
        let entry = room.book.get(&key.name).cloned()?;
        if let (Some(place), Some(pool)) = (place, &entry.spec.submitted_by) {
            let message = Message::ItemWaits { item: line(room, &key.name, &entry), text: text.clone() };
            room.escalate(place, pool, message);
        }
        Some(text)
    });
    if let Some(text) = told {
        context.events.warning(stored, reasons::REQUIREMENTS_UNMET, "Wait", text).await;
    }
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

fn version(entry: &Entry) -> u64 {
    entry.version.parse().unwrap_or(0)
}

fn counted<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    entries.for_each(|entry| *counts.entry(entry.record.phase.name().to_owned()).or_default() += 1);
    counts
}

fn line(room: &Room, name: &str, entry: &Entry) -> Line {
    Line {
        name: name.to_owned(),
        uid: entry.uid.clone(),
        queue: entry.record.queue.clone().or_else(|| entry.spec.queue.clone()),
        type_: entry.spec.type_.clone(),
        group: entry.spec.group.clone(),
        plan: entry.spec.plan.as_ref().map(|(plan, _)| plan.clone()),
        phase: entry.record.phase.name().to_owned(),
        reason: entry.record.reason.clone(),
        position: room.book.position(name).and_then(|position| u64::try_from(position).ok()),
        // Why it failed is known; what came out is read.
        result: entry.record.history.last().and_then(|last| last.message.clone()).filter(|message| !message.is_empty()),
    }
}

/// Reads what came out, if anything did.
async fn with_result(namespace: &str, line: Line, context: &Context) -> Result<Line, Refusal> {
    if line.phase != "Succeeded" {
        return Ok(line);
    }
    let _turn = READS.take(namespace).await; // as many wait as are asked for
    let live = context.api::<WorkItem>(namespace).get_opt(&line.name).await;
    let live = live.map_err(Error::of("reading an item")).map_err(|error| unavailable(context, &error))?;
    let result = live.filter(|item| item.uid().as_deref() == Some(&line.uid)).and_then(|item| item.status?.result);
    let result = result.map(|result| result.chars().take(TOLD).collect());
    Ok(Line { result, ..line })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::work::item::{At, NotifyOn, Spec};

    fn entry(version: u64, phase: Phase, plan: Option<(&str, u32)>) -> Entry {
        let spec = Spec { submitted_by: Some("planner".into()), plan: plan.map(|(plan, size)| (plan.to_owned(), size)), ..Spec::default() };
        let record = Record { phase, ..Record::default() };
        let version = version.to_string();
        Entry {
            uid: format!("u{version}"),
            version,
            spec,
            record,
            unsaved: None,
            ready_since: None,
            first_ready: None,
            tracked: false,
            generation: 1,
        }
    }

    fn names(found: &[(u64, Message)]) -> Vec<String> {
        let name = |message: &Message| match message {
            Message::ItemEnded { item } => item.name.clone(),
            Message::PlanEnded { plan, .. } => plan.clone(),
            Message::Escalated { agent, .. } => agent.clone(),
            Message::ItemWaits { item, .. } => item.name.clone(),
        };
        found.iter().map(|(_, message)| name(message)).collect()
    }

    #[test]
    fn who_reads_page_by_page_reads_everything_once_and_in_order() {
        let mut room = Room::default();
        room.watch(u64::MAX);
        let many = u64::try_from(MAX_LINES * 2 + 7).expect("small");
        for at in 0..many {
            // Every third one is a plan of its own, which ends at the same place as its item.
            let plan = format!("plan-{at}");
            let plan = at.is_multiple_of(3).then_some((plan.as_str(), 1));
            room.book.put(&format!("item-{at}"), entry(1000 + at * 7 % many, Phase::Succeeded, plan), At(0));
        }
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = ended_after(&room, "planner", after);
            let Some((last, _)) = page.last() else { break };
            assert!(*last > after && page.len() <= MAX_LINES + 1);
            after = *last;
            all.extend(page);
        }
        assert!(all.is_sorted_by_key(|(place, _)| *place));
        let told: BTreeSet<String> = names(&all).into_iter().collect();
        assert_eq!((told.len(), all.len()), (usize::try_from(many + many.div_ceil(3)).expect("small"), told.len()));
    }

    #[test]
    fn only_ends_that_were_asked_for_are_told_and_only_to_the_pool() {
        let mut room = Room::default();
        room.watch(u64::MAX);
        let asked = |version, phase, end| {
            let entry = entry(version, phase, None);
            Entry { spec: Spec { notify_on: vec![end], ..entry.spec }, ..entry }
        };
        room.book.put("done", asked(1, Phase::Succeeded, NotifyOn::Failed), At(0));
        room.book.put("failed", asked(2, Phase::Failed, NotifyOn::Failed), At(0));
        room.book.put("dead", asked(3, Phase::DeadLettered, NotifyOn::DeadLettered), At(0));
        room.book.put("any", asked(4, Phase::Cancelled, NotifyOn::Finished), At(0));
        room.book.put("open", entry(5, Phase::Leased, Some(("two", 2))), At(0));
        room.book.put("half", entry(6, Phase::Succeeded, Some(("two", 2))), At(0));
        let written = entry(7, Phase::Succeeded, None);
        room.book.put("not-stored", Entry { unsaved: Some(At(0)), ..written }, At(0));
        assert_eq!(names(&ended_after(&room, "planner", 0)), ["failed", "dead", "any", "half"]);
        assert_eq!(names(&ended_after(&room, "planner", 3)), ["any", "half"]);
        assert!(ended_after(&room, "other", 0).is_empty());
        room.book.put("open", entry(8, Phase::Failed, Some(("two", 2))), At(0));
        assert_eq!(names(&ended_after(&room, "planner", 6)), ["open", "two"]);
    }

    #[test]
    fn an_escalation_is_told_in_its_place_and_to_its_pool_alone() {
        let mut room = Room::default();
        room.book.put("before", entry(5, Phase::Succeeded, None), At(0));
        room.book.put("after", entry(20, Phase::Failed, None), At(0));
        let message = |agent: &str| Message::Escalated { agent: agent.into(), signal: "S".into(), text: "t".into(), item: None };
        room.escalate(10, "planner", message("a"));
        room.escalate(11, "other", message("b"));
        room.watch(9);
        assert_eq!(names(&ended_after(&room, "planner", 0)), ["before"], "what ended before it may not be known yet");
        assert!(room.watch(12), "who listens is called");
        assert_eq!(names(&ended_after(&room, "planner", 5)), ["a"]);
        room.watch(20);
        assert_eq!(names(&ended_after(&room, "planner", 0)), ["before", "a", "after"]);
        assert_eq!(names(&ended_after(&room, "other", 0)), ["b"]);
        (0..200).for_each(|at| room.escalate(30 + at, "planner", message("c")));
        assert!(room.escalated("planner").count() <= 100, "they are bounded");
    }

    #[test]
    fn an_end_that_is_known_before_an_earlier_one_waits_for_it() {
        let mut room = Room::default();
        room.watch(10);
        room.book.put("later", entry(20, Phase::Succeeded, None), At(0));
        assert!(ended_after(&room, "planner", 0).is_empty(), "the answer to our own write came before the watch");
        room.book.put("sooner", entry(15, Phase::Succeeded, None), At(0));
        room.watch(15);
        assert_eq!(names(&ended_after(&room, "planner", 0)), ["sooner"]);
        room.watch(20);
        assert_eq!(names(&ended_after(&room, "planner", 15)), ["later"]);
    }
}
