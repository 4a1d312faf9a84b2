//! `cancel`: ends items. For single items it sets a field of each item. For a group it adds one entry to each queue, which also
//! covers members that the command has not listed. Neither can be undone.
//!
//! An entry covers the members that were created up to its time, so later items of the same group are not cancelled. The list
//! of entries is written over exactly the version that was read, so that no entry of a concurrent writer is lost.

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::json;

use super::{MAX_CONCURRENT_WRITES, item_count_text, life};
use crate::api::work_queue::CancelledGroup;
use crate::api::{GROUP, WorkItem, WorkQueue};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::input;
use crate::table::printable;
use crate::write::{self, Decision, WriteOutcome, WriteTarget};
use spillway_conversion::work as convert;

/// The most entries of a queue; the bound in the schema.
const MAX_CANCELLED_GROUPS: usize = 64;

/// Arguments of `cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway cancel bugs-x7k2p
  kubectl spillway cancel --group book                  # in every queue that has items of the group
  kubectl spillway cancel --group book --queue bugs
  kubectl spillway cancel --queue bugs --all --dry-run  # only show the items

A cancel cannot be undone: submit another item instead. An agent that holds the item is told to stop. If the agent completes
the item first, the result counts.")]
pub struct Arguments {
    /// The items
    #[arg(value_name = "ITEM", required_unless_present_any = ["group", "queue"], conflicts_with_all = ["group", "queue"], value_parser = input::item)]
    pub items: Vec<String>,
    /// All items of this group that exist now
    #[arg(long)]
    pub group: Option<String>,
    /// Only items of this queue, with --group or --all
    #[arg(long, value_name = "QUEUE", value_parser = input::queue)]
    pub queue: Option<String>,
    /// All items of the queue
    #[arg(long, requires = "queue", conflicts_with = "group")]
    pub all: bool,
    /// Show the items that would be cancelled, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// A queue, and the members of the group in it that have not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The queue.
    pub queue: String,
    /// Their names.
    pub items: Vec<String>,
    /// The number of them that agents hold.
    pub held: usize,
}

/// The items to cancel, before the user confirms.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Items, one by one.
    Items(Vec<String>),
    /// A group in some queues.
    Group {
        /// The group.
        group: String,
        /// The queues with members that have not ended.
        queues: Vec<Members>,
        /// The time of the entry. It is not before the creation of the youngest member, even if the local clock is behind.
        time: Timestamp,
        /// All items. They tell which older entries are still needed.
        items: Vec<WorkItem>,
    },
}

/// The command: reads, asks the user, writes.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let plan = plan(cluster, arguments, Timestamp::now()).await?;
    if arguments.dry_run {
        console.show(render_plan(&plan));
        return Ok(());
    }
    if let Some(question) = question(&plan, arguments)
        && !console.confirm(&question)?
    {
        return Err(Error::Usage("nothing was cancelled".into()));
    }
    console.show(run(cluster, &plan).await?);
    Ok(())
}

/// Finds the items to cancel.
pub async fn plan(cluster: &Cluster, arguments: &Arguments, now: Timestamp) -> Result<Plan, Error> {
    let Arguments { items: named, group, queue, all, dry_run: _, yes: _ } = arguments;
    // The parser does not require --queue when items are named, because the two conflict.
    if *all && queue.is_none() {
        return Err(Error::Usage("--all means all items of a queue: write --queue Q, and name no items".into()));
    }
    if let Some(queue) = queue {
        if group.is_none() && !all {
            return Err(Error::Usage(format!("--queue {queue} also needs --all, for all items of the queue, or --group G")));
        }
        super::queue(cluster, queue).await?;
    }
    if group.is_none() && !all {
        let mut names = named.clone();
        names.sort();
        names.dedup();
        return Ok(Plan::Items(names));
    }
    let items = super::items(cluster, None).await?.objects;
    let here = |item: &&WorkItem| queue.is_none() || convert::queue_of(item) == queue.as_deref();
    Ok(match group {
        Some(group) => group_plan(group, items.iter().filter(here).cloned().collect(), items, now),
        None => {
            let live = items.iter().filter(here).filter(|item| !life::phase(item).ended());
            Plan::Items(live.map(kube::ResourceExt::name_any).collect())
        }
    })
}

/// The queues with members of the group among `chosen` that have not ended. `all` are all items of the namespace.
fn group_plan(group: &str, chosen: Vec<WorkItem>, all: Vec<WorkItem>, now: Timestamp) -> Plan {
    let live = chosen.iter().filter(|item| item.spec.group.as_deref() == Some(group) && !life::phase(item).ended());
    let (mut queues, mut time) = (Vec::<Members>::new(), now);
    for item in live {
        let Some(queue) = convert::queue_of(item) else { continue };
        time = time.max(item.creation_timestamp().map_or(now, |made| made.0));
        let held = usize::from(life::phase(item).held());
        match queues.iter_mut().find(|members| members.queue == queue) {
            Some(members) => {
                members.items.push(item.name_any());
                members.held += held;
            }
            None => queues.push(Members { queue: queue.to_owned(), items: vec![item.name_any()], held }),
        }
    }
    queues.sort_by(|one, other| one.queue.cmp(&other.queue));
    Plan::Group { group: group.to_owned(), queues, time, items: all }
}

/// The question before the write; none if no confirmation is needed.
pub fn question(plan: &Plan, arguments: &Arguments) -> Option<String> {
    let what = match plan {
        Plan::Items(names) if arguments.all && !names.is_empty() => {
            format!("all {} of queue {}", item_count_text(names.len()), arguments.queue.as_deref().unwrap_or_default())
        }
        Plan::Group { group, queues, .. } if !queues.is_empty() => {
            let count: usize = queues.iter().map(|members| members.items.len()).sum();
            let names: Vec<&str> = queues.iter().map(|members| members.queue.as_str()).collect();
            format!("group {group}, {} in queue {}", item_count_text(count), names.join(", "))
        }
        Plan::Items(_) | Plan::Group { .. } => return None,
    };
    (!arguments.yes).then(|| format!("Cancel {what}? This cannot be undone."))
}

/// Writes to the items or the queues. Every object is tried.
pub async fn run(cluster: &Cluster, plan: &Plan) -> Result<Output, Error> {
    let mut output = Output::default();
    match plan {
        Plan::Items(names) => {
            let cancels = names
                .iter()
                .map(|name| async move { (name, write::settle::<WorkItem>(cluster, "item", name, WriteTarget::Uid, life::cancel).await) });
            let mut done = futures::stream::iter(cancels).buffered(MAX_CONCURRENT_WRITES);
            while let Some((name, done)) = done.next().await {
                match done? {
                    WriteOutcome::Written(_) => output.line(format!("workitem.{GROUP}/{name} cancel requested")),
                    WriteOutcome::Unchanged(_, words) => output.line(format!("workitem.{GROUP}/{name} unchanged: {words}")),
                    WriteOutcome::Failed(words) => output.failure(printable(&words)),
                }
            }
        }
        Plan::Group { group, queues, time, items } => {
            for members in queues {
                let queue = &members.queue;
                let decide = |stored: &WorkQueue| entries(stored, group, *time, items);
                match write::settle::<WorkQueue>(cluster, "queue", queue, WriteTarget::Version, decide).await? {
                    WriteOutcome::Written(_) => {
                        output.line(format!("workqueue.{GROUP}/{queue}: group {group} cancelled: {}", members_text(members)))
                    }
                    WriteOutcome::Unchanged(_, words) => output.line(format!("workqueue.{GROUP}/{queue} unchanged: {words}")),
                    WriteOutcome::Failed(words) => output.failure(printable(&words)),
                }
            }
        }
    }
    note_nothing_to_cancel(plan, &mut output);
    Ok(output)
}

/// The entries of a queue, with one for this group, and without the entries that no item needs any more.
pub fn entries(queue: &WorkQueue, group: &str, time: Timestamp, items: &[WorkItem]) -> Decision {
    let name = queue.name_any();
    let needed = |entry: &CancelledGroup| {
        items.iter().any(|item| {
            let covered = item.creation_timestamp().is_some_and(|made| made.0 <= entry.time.0);
            item.spec.group.as_ref() == Some(&entry.group)
                && convert::queue_of(item) == Some(&name)
                && covered
                && !life::phase(item).ended()
        })
    };
    let stored = queue.spec.cancel_groups.iter().flatten();
    let mut entries: Vec<CancelledGroup> = stored.filter(|entry| entry.group != group && needed(entry)).cloned().collect();
    if entries.len() >= MAX_CANCELLED_GROUPS {
        return Decision::Refuse(format!(
            "has {MAX_CANCELLED_GROUPS} cancelled groups with items that have not ended (spec.cancelGroups): wait until some have ended, or cancel single items: `kubectl spillway cancel ITEM...`"
        ));
    }
    entries.push(CancelledGroup { group: group.to_owned(), time: Time(time) });
    Decision::Write(json!({"cancelGroups": entries}))
}

fn members_text(members: &Members) -> String {
    let held = match members.held {
        0 => String::new(),
        held => format!("; agents hold {held} of them and are told to stop"),
    };
    format!("{}{held}", item_count_text(members.items.len()))
}

/// The items that would be cancelled, as text.
pub fn render_plan(plan: &Plan) -> Output {
    let mut output = Output::default();
    match plan {
        Plan::Items(names) => names.iter().for_each(|name| output.line(format!("workitem.{GROUP}/{name} would be cancelled (dry run)"))),
        Plan::Group { group, queues, .. } => {
            for members in queues {
                output.line(format!(
                    "workqueue.{GROUP}/{}: group {group} would be cancelled (dry run): {}",
                    members.queue,
                    members_text(members)
                ));
                members.items.iter().for_each(|name| output.line(format!("  workitem.{GROUP}/{name}")));
            }
        }
    }
    note_nothing_to_cancel(plan, &mut output);
    output
}

fn note_nothing_to_cancel(plan: &Plan, output: &mut Output) {
    match plan {
        Plan::Items(names) if names.is_empty() => output.note("All items of the queue have ended: nothing to cancel."),
        Plan::Group { group, queues, .. } if queues.is_empty() => {
            output.note(format!("All items of group {group} have ended: nothing to cancel."))
        }
        Plan::Items(_) | Plan::Group { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn item(name: &str, queue: &str, group: &str, phase: &str, minute: u32) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z")},
            "spec": {"queueRef": {"name": queue}, "group": group}, "status": {"phase": phase}}))
        .expect("a WorkItem")
    }
    fn queue(entries: &Value) -> WorkQueue {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q"}, "spec": {"cancelGroups": entries}}))
            .expect("a WorkQueue")
    }
    fn at(minute: u32) -> Timestamp {
        format!("2026-01-01T00:{minute:02}:00Z").parse().expect("a time")
    }

    #[test]
    fn a_group_is_found_in_every_queue_that_has_living_members() {
        let items = vec![
            item("a", "q", "g", "Ready", 1),
            item("b", "q", "g", "Leased", 9),
            item("c", "q", "g", "Succeeded", 1),
            item("d", "p", "g", "Blocked", 1),
            item("e", "p", "other", "Ready", 1),
        ];
        let Plan::Group { queues, time, .. } = group_plan("g", items.clone(), items, at(5)) else { panic!("a group") };
        let members = |queue: &str, items: &[&str], held| Members {
            queue: queue.into(),
            items: items.iter().map(|name| (*name).into()).collect(),
            held,
        };
        assert_eq!(queues, [members("p", &["d"], 0), members("q", &["a", "b"], 1)]);
        assert_eq!(time, at(9), "a clock that is behind does not spare the youngest");
    }

    #[test]
    fn an_entry_is_kept_for_as_long_as_a_member_lives() {
        let items = vec![
            item("a", "q", "dead", "Failed", 1),
            item("b", "q", "late", "Ready", 9),
            item("c", "q", "live", "Ready", 1),
            item("d", "other", "elsewhere", "Ready", 1),
        ];
        let stored = queue(&json!([
            {"group": "dead", "time": "2026-01-01T00:05:00Z"},
            {"group": "late", "time": "2026-01-01T00:05:00Z"},
            {"group": "live", "time": "2026-01-01T00:05:00Z"},
            {"group": "elsewhere", "time": "2026-01-01T00:05:00Z"},
            {"group": "g", "time": "2026-01-01T00:05:00Z"},
        ]));
        assert_eq!(
            entries(&stored, "g", at(10), &items),
            Decision::Write(
                json!({"cancelGroups": [{"group": "live", "time": "2026-01-01T00:05:00Z"}, {"group": "g", "time": "2026-01-01T00:10:00Z"}]})
            )
        );
    }

    #[test]
    fn a_full_list_refuses_and_a_known_group_is_not_one_more() {
        let items: Vec<WorkItem> = (0..64).map(|number| item("x", "q", &format!("g{number}"), "Ready", 1)).collect();
        let all: Vec<Value> = (0..64).map(|number| json!({"group": format!("g{number}"), "time": "2026-01-01T00:05:00Z"})).collect();
        assert!(
            matches!(entries(&queue(&json!(all)), "new", at(10), &items), Decision::Refuse(words) if words.starts_with("has 64 cancelled groups"))
        );
        assert!(
            matches!(entries(&queue(&json!(all)), "g7", at(10), &items), Decision::Write(body) if body["cancelGroups"].as_array().map(Vec::len) == Some(64))
        );
    }

    #[test]
    fn many_are_asked_about_and_named_ones_are_not() {
        let all = Arguments { queue: Some("q".into()), all: true, ..Arguments::default() };
        let items = Plan::Items(vec!["a".into(), "b".into()]);
        assert_eq!(question(&items, &all).as_deref(), Some("Cancel all 2 items of queue q? This cannot be undone."));
        assert_eq!(question(&items, &Arguments { yes: true, ..all.clone() }), None);
        assert_eq!(question(&items, &Arguments::default()), None);
        let plan = group_plan("g", vec![item("a", "q", "g", "Leased", 1)], Vec::new(), at(5));
        assert_eq!(question(&plan, &Arguments::default()).as_deref(), Some("Cancel group g, 1 item in queue q? This cannot be undone."));
        assert_eq!(
            render_plan(&plan).out,
            "workqueue.spillway.dev/q: group g would be cancelled (dry run): 1 item; agents hold 1 of them and are told to stop\n  workitem.spillway.dev/a\n"
        );
        let none = group_plan("g", Vec::new(), Vec::new(), at(5));
        assert_eq!(
            (question(&none, &Arguments::default()), render_plan(&none).err.as_str()),
            (None, "All items of group g have ended: nothing to cancel.\n")
        );
        assert!(render_plan(&Plan::Items(Vec::new())).err.starts_with("All items of the queue have ended"));
    }
}
