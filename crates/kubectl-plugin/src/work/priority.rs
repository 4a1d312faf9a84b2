//! `priority`: sets the priority of items within their queue. It changes only the order in which agents get the items: an item
//! that an agent holds stays with the agent.

use std::cell::Cell;

use futures::StreamExt as _;
use kube::ResourceExt as _;

use super::{MAX_CONCURRENT_WRITES, item_count_text, life};
use crate::api::{GROUP, WorkItem};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::input;
use crate::policy::work::Phase;
use crate::table::printable;
use crate::write::{self, WriteOutcome, WriteTarget};
use spillway_conversion::work as convert;

/// Arguments of `priority`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  kubectl spillway priority bugs-x7k2p 10                # before the items with a lower priority
  kubectl spillway priority bugs-x7k2p bugs-8rq2m -5     # two items, after those with a higher priority
  kubectl spillway priority 10 --queue bugs --group book
  kubectl spillway priority 0 --queue bugs --dry-run     # show the items, change nothing

Agents get items with a higher priority first. Items with the same priority keep the order of their submission. Put options
before the items, or after N."
)]
pub struct Arguments {
    /// The items
    #[arg(value_name = "ITEM", required_unless_present = "queue", conflicts_with = "queue", allow_negative_numbers = true, value_parser = input::item)]
    pub items: Vec<String>,
    /// The new priority, -1000000 to 1000000
    #[arg(value_name = "N", required = true, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1_000_000..=1_000_000))]
    pub priority: i32,
    /// Items of this queue
    #[arg(long, value_name = "QUEUE", value_parser = input::queue)]
    pub queue: Option<String>,
    /// Items in this phase; can be repeated [default: all phases in which an item waits]
    #[arg(long, value_enum, value_name = "PHASE", requires = "queue")]
    pub phase: Vec<Chosen>,
    /// Items of this group
    #[arg(long, requires = "queue")]
    pub group: Option<String>,
    /// Show the items, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// A phase in which the priority of an item counts, now or when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[clap(rename_all = "PascalCase")]
pub enum Chosen {
    /// Not admitted yet
    Pending,
    /// Paused by a person, or restored from a backup
    Suspended,
    /// Waits for other items
    Blocked,
    /// Waits for a time
    Scheduled,
    /// Can be claimed by an agent
    Ready,
    /// An agent holds it
    Leased,
    /// Paused with its agent
    Paused,
    /// Set aside for a person to decide
    DeadLettered,
    /// Failed for good
    Failed,
    /// Its deadline passed
    Expired,
    /// Not admitted
    Rejected,
}

impl Chosen {
    fn phase(self) -> Phase {
        match self {
            Self::Pending => Phase::Pending,
            Self::Suspended => Phase::Suspended,
            Self::Blocked => Phase::Blocked,
            Self::Scheduled => Phase::Scheduled,
            Self::Ready => Phase::Ready,
            Self::Leased => Phase::Leased,
            Self::Paused => Phase::Paused,
            Self::DeadLettered => Phase::DeadLettered,
            Self::Failed => Phase::Failed,
            Self::Expired => Phase::Expired,
            Self::Rejected => Phase::Rejected,
        }
    }
}

/// The items to change, before the user confirms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The names of the items, in the order in which agents get them.
    pub items: Vec<String>,
    /// The number of items that have the priority already.
    pub unchanged: usize,
}

/// The command: reads, asks the user, writes.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let plan = plan(cluster, arguments).await?;
    if plan.unchanged > 0 {
        console.show(Output {
            err: format!("note: {} skipped: the priority is {} already\n", item_count_text(plan.unchanged), arguments.priority),
            ..Output::default()
        });
    }
    if plan.items.is_empty() {
        console.show(Output { err: "No items to change.\n".to_owned(), ..Output::default() });
        return Ok(());
    }
    if arguments.dry_run {
        let line = |name: &String| format!("workitem.{GROUP}/{name} would have priority {} (dry run)\n", arguments.priority);
        console.show(Output::of(plan.items.iter().map(line).collect()));
        return Ok(());
    }
    if let Some(question) = question(&plan, arguments)
        && !console.confirm(&question)?
    {
        return Err(Error::Usage("no priority was changed".into()));
    }
    console.show(run(cluster, &plan, arguments.priority).await?);
    Ok(())
}

/// Finds the items to change.
pub async fn plan(cluster: &Cluster, arguments: &Arguments) -> Result<Plan, Error> {
    let Arguments { items: named, priority: _, queue, phase, group, dry_run: _, yes: _ } = arguments;
    let Some(queue) = queue else {
        // The parser does not require --queue when items are named, because the two conflict.
        if !phase.is_empty() || group.is_some() {
            return Err(Error::Usage("--phase and --group select items of a queue: write --queue Q, and name no items".into()));
        }
        let mut items = named.clone();
        items.sort();
        items.dedup();
        return Ok(Plan { items, unchanged: 0 });
    };
    super::queue(cluster, queue).await?;
    Ok(select_items(arguments, queue, &super::items(cluster, None).await?.objects))
}

/// Selects the items of a queue that match the arguments.
pub fn select_items(arguments: &Arguments, queue: &str, items: &[WorkItem]) -> Plan {
    let Arguments { items: _, priority, queue: _, phase: phases, group, dry_run: _, yes: _ } = arguments;
    let wanted = |item: &&WorkItem| {
        let phase = life::phase(item);
        let in_phase = if phases.is_empty() { phase.waits() } else { phases.iter().any(|chosen| chosen.phase() == phase) };
        convert::queue_of(item) == Some(queue) && in_phase && (group.is_none() || item.spec.group == *group)
    };
    let (same, others): (Vec<_>, Vec<_>) = items.iter().filter(wanted).partition(|item| item.spec.priority == *priority);
    Plan { items: others.iter().map(|item| item.name_any()).collect(), unchanged: same.len() }
}

/// The question before the write; none if no confirmation is needed.
pub fn question(plan: &Plan, arguments: &Arguments) -> Option<String> {
    let queue = arguments.queue.as_ref().filter(|_| !arguments.yes)?;
    Some(format!("Set the priority of {} of queue {queue} to {}?", item_count_text(plan.items.len()), arguments.priority))
}

/// Writes to the items. Every item is tried.
pub async fn run(cluster: &Cluster, plan: &Plan, priority: i32) -> Result<Output, Error> {
    let changes = plan.items.iter().map(|name| async move {
        let before = Cell::new(priority);
        let decide = |item: &WorkItem| {
            before.set(item.spec.priority);
            life::prioritize(item, priority)
        };
        let done = write::settle::<WorkItem>(cluster, "item", name, WriteTarget::Uid, decide).await;
        (name, before.get(), done)
    });
    let (mut output, mut done) = (Output::default(), futures::stream::iter(changes).buffered(MAX_CONCURRENT_WRITES));
    while let Some((name, before, done)) = done.next().await {
        match done? {
            WriteOutcome::Written(item) => {
                let held = life::agent_of(&item)
                    .map(|agent| format!("; agent {agent} keeps the item, and the priority counts when it comes back"))
                    .unwrap_or_default();
                output.line(format!("workitem.{GROUP}/{name} has priority {priority} (was {before}){held}"));
            }
            WriteOutcome::Unchanged(_, words) => output.line(format!("workitem.{GROUP}/{name} unchanged: {words}")),
            WriteOutcome::Failed(words) => output.failure(printable(&words)),
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use serde_json::json;

    fn item(name: &str, queue: &str, phase: &str, priority: i32, group: &str) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name},
            "spec": {"queueRef": {"name": queue}, "group": group, "priority": priority}, "status": {"phase": phase}}))
        .expect("a WorkItem")
    }

    #[test]
    fn those_that_wait_are_meant_unless_other_phases_are_named() {
        let items = [
            item("a", "q", "Ready", 0, "g"),
            item("b", "q", "Blocked", 0, "h"),
            item("c", "q", "Leased", 0, "g"),
            item("d", "q", "Succeeded", 0, "g"),
            item("e", "q", "DeadLettered", 0, "g"),
            item("f", "other", "Ready", 0, "g"),
            item("same", "q", "Ready", 7, "g"),
        ];
        let plan = |arguments: Arguments| select_items(&Arguments { priority: 7, ..arguments }, "q", &items);
        let all = plan(Arguments::default());
        assert_eq!((all.items, all.unchanged), (vec!["a".to_owned(), "b".to_owned()], 1));
        assert_eq!(plan(Arguments { group: Some("h".into()), ..Arguments::default() }).items, ["b"]);
        let named = vec![Chosen::Leased, Chosen::DeadLettered];
        assert_eq!(plan(Arguments { phase: named, ..Arguments::default() }).items, ["c", "e"]);
    }

    #[test]
    fn every_phase_but_the_final_ones_can_be_chosen() {
        let chosen: Vec<Phase> = Chosen::value_variants().iter().map(|one| one.phase()).collect();
        let left: Vec<Phase> = Phase::ALL.into_iter().filter(|phase| !chosen.contains(phase)).collect();
        assert_eq!(left, [Phase::Cancelling, Phase::Succeeded, Phase::Cancelled]);
        for one in Chosen::value_variants() {
            assert_eq!(one.to_possible_value().expect("it is shown").get_name(), one.phase().name());
        }
    }

    #[test]
    fn a_queue_is_asked_about_and_named_items_are_not() {
        let plan = Plan { items: vec!["a".into(), "b".into()], unchanged: 0 };
        let queue = Arguments { queue: Some("q".into()), priority: -3, ..Arguments::default() };
        assert_eq!(question(&plan, &queue).as_deref(), Some("Set the priority of 2 items of queue q to -3?"));
        assert_eq!(question(&plan, &Arguments { yes: true, ..queue }), None);
        assert_eq!(question(&plan, &Arguments::default()), None);
    }
}
