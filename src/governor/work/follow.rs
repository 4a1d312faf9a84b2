//! The calls of agents about items that they submitted: a list, and an inbox.
//!
//! Both answer for the pool, so that an agent that replaces another one gets the answers that the other waited for.
//! Ends of items are not stored separately: they are read from the items, in the order in which the API server stored
//! them. Other messages are only in the memory of the leader.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt;

use super::common::{ready, unavailable};
use super::item_events::{counted, line};
use super::namespace_work::NamespaceWork;
use crate::api::WorkItem;
use crate::cluster::Error;
use crate::controller::Context;
use crate::governor::caller::Caller;
use crate::policy::work::entry::Entry;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use crate::wire::Refusal;
use crate::wire::follow::{CURSOR_SEPARATOR, Inbox, InboxQuery, ListWork, MAX_LINES, Message, SubmittedItem, WorkList};

/// Items that are read at once, for all callers together: these calls must not overload the API server.
const MAX_CONCURRENT_READS: usize = 4;
static READ_SEMAPHORE: LazyLock<FairSemaphore> =
    LazyLock::new(|| FairSemaphore::new(Bounds { total: MAX_CONCURRENT_READS, per_namespace: 3, max_waiting: usize::MAX }));
/// Characters of a result that are sent. The status of the item has the whole result.
const MAX_RESULT_CHARS: usize = 1024;

/// The items that the agents of `pool` submitted.
pub async fn list(caller: &Caller, pool: &str, request: &ListWork, context: &Context) -> Result<WorkList, Refusal> {
    ready(context)?;
    let namespace = &caller.key.namespace;
    let (counts, lines) = context.work_index.with(namespace, |namespace_work| {
        let mut all: Vec<_> = namespace_work.index.submitted_by(pool).filter(|(_, entry)| asked_for(request, entry)).collect();
        all.sort_by_key(|(name, entry)| (entry.record.phase.ended(), entry.spec.submitted, *name));
        let lines: Vec<SubmittedItem> = all.iter().take(MAX_LINES).map(|(name, entry)| line(namespace_work, name, entry)).collect();
        (counted(all.iter().map(|(_, entry)| *entry)), lines)
    });
    let filled = futures::stream::iter(lines.into_iter().map(|line| with_result(namespace, line, context)));
    Ok(WorkList { counts, items: filled.buffered(MAX_CONCURRENT_READS).try_collect().await? })
}

fn asked_for(request: &ListWork, entry: &Entry) -> bool {
    let plan = entry.spec.plan.as_ref().map(|(plan, _)| plan);
    (request.group.is_none() || request.group == entry.spec.group) && (request.plan.is_none() || request.plan.as_ref() == plan)
}

/// The messages of a pool after the cursor. `None` if there are none; the caller is signalled when there is one.
pub async fn inbox(caller: &Caller, pool: &str, request: &InboxQuery, context: &Context) -> Result<Option<Inbox>, Refusal> {
    ready(context)?;
    let namespace = &caller.key.namespace;
    let after = request.after.as_deref().map_or_else(Cursor::default, Cursor::read);
    let (found, cursor) = context.work_index.with(namespace, |namespace_work| {
        let (found, cursor) = messages_after(namespace_work, pool, after, context.epoch);
        if found.is_empty() {
            namespace_work.add_listener(&caller.uid, pool);
        }
        (found, cursor)
    });
    if found.is_empty() {
        return Ok(None);
    }
    let filled = futures::stream::iter(found.into_iter().map(async |message| match message {
        Message::ItemEnded { item } => Ok::<_, Refusal>(Message::ItemEnded { item: with_result(namespace, item, context).await? }),
        other @ (Message::PlanEnded { .. } | Message::Escalated { .. } | Message::ItemWaits { .. }) => Ok(other),
    }));
    Ok(Some(Inbox { messages: filled.buffered(MAX_CONCURRENT_READS).try_collect().await?, cursor: cursor.to_string() }))
}

/// How far a reader has read an inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Ends of items, up to this resource version.
    version: u64,
    /// Other messages, of the leader with this epoch ...
    epoch: i64,
    /// ... up to this number.
    message: u64,
}

impl Cursor {
    /// Parses a cursor. An invalid cursor starts from the beginning.
    fn read(text: &str) -> Self {
        let mut parts = text.split(CURSOR_SEPARATOR);
        let mut part = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Self { version: part(), epoch: i64::try_from(part()).unwrap_or(0), message: part() }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, epoch, message } = self;
        if *message == 0 { write!(f, "{version}") } else { write!(f, "{version}{CURSOR_SEPARATOR}{epoch}{CURSOR_SEPARATOR}{message}") }
    }
}

/// The messages of a pool after a cursor, from the leader with this epoch, and the next cursor: ends of items first,
/// then other messages.
fn messages_after(namespace_work: &NamespaceWork, pool: &str, after: Cursor, epoch: i64) -> (Vec<Message>, Cursor) {
    let ended = ended_after(namespace_work, pool, after.version);
    let version = ended.last().map_or(after.version, |(version, _)| *version);
    // The message numbers of another leader do not apply to ours.
    let heard = if after.epoch == epoch { after.message } else { 0 };
    let beside: Vec<(u64, &Message)> = namespace_work.messages.after(pool, heard).take(MAX_LINES.saturating_sub(ended.len())).collect();
    let cursor = match beside.last() {
        Some((message, _)) => Cursor { version, epoch, message: *message },
        None => Cursor { version, ..after },
    };
    let beside = beside.into_iter().map(|(_, message)| message.clone());
    (ended.into_iter().map(|(_, message)| message).chain(beside).collect(), cursor)
}

/// The ends of items and plans after a version, the oldest first. The place of an item is the resource version with
/// which its end was stored, which is the same order for every leader, whatever its clock says. Nothing is reported
/// beyond the version of the watch: of two ends the later one may become known first, and the cursor must not skip the
/// other.
fn ended_after(namespace_work: &NamespaceWork, pool: &str, after: u64) -> Vec<(u64, Message)> {
    let within = |place| after < place && place <= namespace_work.watched();
    let mut found = Vec::new();
    let mut plans = BTreeSet::new();
    for (name, entry) in namespace_work.index.submitted_by(pool) {
        let told = entry.spec.notify_on.is_empty() || entry.spec.notify_on.iter().any(|end| end.matches(entry.record.phase));
        if entry.record.phase.ended() && entry.unsaved.is_none() && told && within(version(entry)) {
            found.push((version(entry), Message::ItemEnded { item: line(namespace_work, name, entry) }));
        }
        plans.extend(entry.spec.plan.as_ref().map(|(plan, _)| plan));
    }
    for plan in plans {
        let Some(entries) = namespace_work.index.ended_plan(plan) else { continue };
        let last = entries.iter().map(|entry| version(entry)).max().unwrap_or(0);
        if within(last) {
            found.push((last, Message::PlanEnded { plan: plan.clone(), counts: counted(entries.into_iter()) }));
        }
    }
    // At the same place the item comes before its plan, which ended with it.
    found.sort_by_key(|(place, message)| (*place, matches!(message, Message::PlanEnded { .. })));
    // Messages with the same place go into one answer, or the cursor would skip the rest: an item and its plan.
    let end = found.get(MAX_LINES).map_or(found.len(), |(beyond, _)| found.partition_point(|(place, _)| place < beyond));
    found.truncate(end);
    found
}

fn version(entry: &Entry) -> u64 {
    entry.version.parse().unwrap_or(0)
}

/// Reads the result of an item, if it succeeded.
async fn with_result(namespace: &str, line: SubmittedItem, context: &Context) -> Result<SubmittedItem, Refusal> {
    if line.phase != "Succeeded" {
        return Ok(line);
    }
    let _turn = READ_SEMAPHORE.take(namespace).await; // the queue is unbounded
    let live = context.api::<WorkItem>(namespace).get_opt(&line.name).await;
    let live = live.map_err(Error::of("reading an item")).map_err(|error| unavailable(context, &error))?;
    let result = live.filter(|item| item.uid().as_deref() == Some(&line.uid)).and_then(|item| item.status?.result);
    let result = result.map(|result| result.chars().take(MAX_RESULT_CHARS).collect());
    Ok(SubmittedItem { result, ..line })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::work::item::{NotifyOn, Phase, Record, Spec, UnixMillis};

    fn entry(version: u64, phase: Phase, plan: Option<(&str, u32)>) -> Entry {
        let spec = Spec { submitted_by: Some("planner".into()), plan: plan.map(|(plan, size)| (plan.to_owned(), size)), ..Spec::default() };
        let record = Record { phase, ..Record::default() };
        let version = version.to_string();
        Entry { uid: format!("u{version}"), version, spec, record, generation: 1, ..Entry::default() }
    }

    fn name(message: &Message) -> String {
        match message {
            Message::ItemEnded { item } => item.name.clone(),
            Message::PlanEnded { plan, .. } => plan.clone(),
            Message::Escalated { agent, .. } => agent.clone(),
            Message::ItemWaits { item, .. } => item.name.clone(),
        }
    }

    fn names(found: &[(u64, Message)]) -> Vec<String> {
        found.iter().map(|(_, message)| name(message)).collect()
    }

    #[test]
    fn who_reads_page_by_page_reads_everything_once_and_in_order() {
        let mut namespace_work = NamespaceWork::default();
        namespace_work.watch(u64::MAX);
        let many = u64::try_from(MAX_LINES * 2 + 7).expect("small");
        for at in 0..many {
            // Every third item is a plan of its own, which ends at the same place as the item.
            let plan = format!("plan-{at}");
            let plan = at.is_multiple_of(3).then_some((plan.as_str(), 1));
            namespace_work.index.put(&format!("item-{at}"), entry(1000 + at * 7 % many, Phase::Succeeded, plan), UnixMillis(0));
        }
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = ended_after(&namespace_work, "planner", after);
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
        let mut namespace_work = NamespaceWork::default();
        namespace_work.watch(u64::MAX);
        let asked = |version, phase, end| {
            let entry = entry(version, phase, None);
            Entry { spec: Spec { notify_on: vec![end], ..entry.spec }, ..entry }
        };
        namespace_work.index.put("done", asked(1, Phase::Succeeded, NotifyOn::Failed), UnixMillis(0));
        namespace_work.index.put("failed", asked(2, Phase::Failed, NotifyOn::Failed), UnixMillis(0));
        namespace_work.index.put("dead", asked(3, Phase::DeadLettered, NotifyOn::DeadLettered), UnixMillis(0));
        namespace_work.index.put("any", asked(4, Phase::Cancelled, NotifyOn::Finished), UnixMillis(0));
        namespace_work.index.put("open", entry(5, Phase::Leased, Some(("two", 2))), UnixMillis(0));
        namespace_work.index.put("half", entry(6, Phase::Succeeded, Some(("two", 2))), UnixMillis(0));
        let written = entry(7, Phase::Succeeded, None);
        namespace_work.index.put("not-stored", Entry { unsaved: Some(UnixMillis(0)), ..written }, UnixMillis(0));
        assert_eq!(names(&ended_after(&namespace_work, "planner", 0)), ["failed", "dead", "any", "half"]);
        assert_eq!(names(&ended_after(&namespace_work, "planner", 3)), ["any", "half"]);
        assert!(ended_after(&namespace_work, "other", 0).is_empty());
        namespace_work.index.put("open", entry(8, Phase::Failed, Some(("two", 2))), UnixMillis(0));
        assert_eq!(names(&ended_after(&namespace_work, "planner", 6)), ["open", "two"]);
    }

    #[test]
    fn what_is_told_beside_ends_waits_for_no_watch_and_is_told_once() {
        let mut namespace_work = NamespaceWork::default();
        namespace_work.index.put("before", entry(5, Phase::Succeeded, None), UnixMillis(0));
        namespace_work.watch(9);
        let message = |agent: &str| Message::Escalated { agent: agent.into(), signal: "S".into(), text: "t".into(), item: None };
        namespace_work.messages.add(1, "planner", message("a"));
        namespace_work.messages.add(2, "other", message("b"));
        namespace_work.add_listener("pod", "planner");
        assert_eq!(namespace_work.take_pods_to_signal(), ["pod"], "who listens is called");
        let told = |namespace_work: &NamespaceWork, cursor: &str, epoch| {
            let (found, next) = messages_after(namespace_work, "planner", Cursor::read(cursor), epoch);
            assert_eq!(Cursor::read(&next.to_string()), next);
            (found.iter().map(name).collect::<Vec<_>>(), next.to_string())
        };
        let said = |names: &[&str], cursor: &str| (names.iter().map(|name| (*name).to_owned()).collect(), cursor.to_owned());
        assert_eq!(told(&namespace_work, "0", 7), said(&["before", "a"], "5.7.1"));
        assert_eq!(told(&namespace_work, "5", 7), said(&["a"], "5.7.1"));
        assert_eq!(told(&namespace_work, "5.7.1", 7), said(&[], "5.7.1"));
        namespace_work.messages.add(3, "planner", message("c"));
        assert_eq!(told(&namespace_work, "5.7.1", 7), said(&["c"], "5.7.3"));
        assert_eq!(told(&namespace_work, "5.6.900", 7), said(&["a", "c"], "5.7.3"), "another leader numbered anew");
        namespace_work.index.put("after", entry(20, Phase::Failed, None), UnixMillis(0));
        namespace_work.watch(20);
        assert_eq!(told(&namespace_work, "5.7.3", 7), said(&["after"], "20.7.3"));
        // One answer is full: the rest comes with the next one.
        (4..).take(MAX_LINES + 5).for_each(|number| namespace_work.messages.add(number, "planner", message("d")));
        let (first, cursor) = told(&namespace_work, "5.7.3", 7);
        let (second, _) = told(&namespace_work, &cursor, 7);
        assert_eq!((first.len(), first[0].as_str(), second.len()), (MAX_LINES, "after", 1));
    }

    #[test]
    fn an_end_that_is_known_before_an_earlier_one_waits_for_it() {
        let mut namespace_work = NamespaceWork::default();
        namespace_work.watch(10);
        namespace_work.index.put("later", entry(20, Phase::Succeeded, None), UnixMillis(0));
        assert!(ended_after(&namespace_work, "planner", 0).is_empty(), "the answer to our own write came before the watch");
        namespace_work.index.put("sooner", entry(15, Phase::Succeeded, None), UnixMillis(0));
        namespace_work.watch(15);
        assert_eq!(names(&ended_after(&namespace_work, "planner", 0)), ["sooner"]);
        namespace_work.watch(20);
        assert_eq!(names(&ended_after(&namespace_work, "planner", 15)), ["later"]);
    }
}
