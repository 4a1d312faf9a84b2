//! `priority`: puts items before, or behind, the others of their queue. It changes the order in which they are given out and
//! nothing else: an item that an agent holds stays with it.

use std::cell::Cell;

use futures::StreamExt as _;
use kube::ResourceExt as _;

use super::{MAX_CONCURRENT_WRITES, life, many};
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
  kubectl spillway priority bugs-x7k2p 10                # before all of its queue with a lower priority
  kubectl spillway priority bugs-x7k2p bugs-8rq2m -5     # two, behind the others
  kubectl spillway priority 10 --queue bugs --group book
  kubectl spillway priority 0 --queue bugs --dry-run     # which that would be

The higher the sooner; among items of one priority the order is that of their submission. Options stand before the items, or
behind N."
)]
pub struct Arguments {
    /// The items
    #[arg(value_name = "ITEM", required_unless_present = "queue", conflicts_with = "queue", allow_negative_numbers = true, value_parser = input::item)]
    pub items: Vec<String>,
    /// Their priority, -1000000 to 1000000
    #[arg(value_name = "N", required = true, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1_000_000..=1_000_000))]
    pub priority: i32,
    /// Those of this queue
    #[arg(long, value_name = "QUEUE", value_parser = input::queue)]
    pub queue: Option<String>,
    /// In this phase; may be given again [default: all in which an item waits]
    #[arg(long, value_enum, value_name = "PHASE", requires = "queue")]
    pub phase: Vec<Chosen>,
    /// Of this group
    #[arg(long, requires = "queue")]
    pub group: Option<String>,
    /// Show which, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// A phase in which the priority of an item counts, now or when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[clap(rename_all = "PascalCase")]
pub enum Chosen {
    /// Not admitted yet
    Pending,
    /// Held by a person
    Suspended,
    /// Waits for other items
    Blocked,
    /// Waits for a time
    Scheduled,
    /// Could be given out
    Ready,
    /// An agent holds it
    Leased,
    /// Paused with its agent
    Paused,
    /// Set aside for a person
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

/// What is to be changed, before anybody is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Their names, in the order in which they are given out.
    pub items: Vec<String>,
    /// Items of the queue that have the priority already.
    pub same: usize,
}

/// The command: look, ask, write.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let plan = plan(cluster, arguments).await?;
    if plan.same > 0 {
        console.show(Output {
            err: format!("note: {} left: priority {} already\n", many(plan.same), arguments.priority),
            ..Output::default()
        });
    }
    if plan.items.is_empty() {
        console.show(Output { err: "There is no item to change.\n".to_owned(), ..Output::default() });
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

/// Looks at what is to be changed.
pub async fn plan(cluster: &Cluster, arguments: &Arguments) -> Result<Plan, Error> {
    let Arguments { items: named, priority: _, queue, phase, group, dry_run: _, yes: _ } = arguments;
    let Some(queue) = queue else {
        // The parser does not ask for --queue where its conflict with named items excuses it.
        if !phase.is_empty() || group.is_some() {
            return Err(Error::Usage("--phase and --group choose among the items of a queue: write --queue Q and name no items".into()));
        }
        let mut items = named.clone();
        items.sort();
        items.dedup();
        return Ok(Plan { items, same: 0 });
    };
    super::queue(cluster, queue).await?;
    Ok(chosen(arguments, queue, &super::items(cluster, None).await?.objects))
}

/// Which items of a queue were asked for.
pub fn chosen(arguments: &Arguments, queue: &str, items: &[WorkItem]) -> Plan {
    let Arguments { items: _, priority, queue: _, phase: phases, group, dry_run: _, yes: _ } = arguments;
    let wanted = |item: &&WorkItem| {
        let phase = life::phase(item);
        let in_phase = if phases.is_empty() { phase.waits() } else { phases.iter().any(|chosen| chosen.phase() == phase) };
        convert::queue_of(item) == Some(queue) && in_phase && (group.is_none() || item.spec.group == *group)
    };
    let (same, others): (Vec<_>, Vec<_>) = items.iter().filter(wanted).partition(|item| item.spec.priority == *priority);
    Plan { items: others.iter().map(|item| item.name_any()).collect(), same: same.len() }
}

/// What to ask before it is done; none where nothing needs to be asked.
pub fn question(plan: &Plan, arguments: &Arguments) -> Option<String> {
    let queue = arguments.queue.as_ref().filter(|_| !arguments.yes)?;
    Some(format!("Set the priority of {} of queue {queue} to {}?", many(plan.items.len()), arguments.priority))
}

/// Writes. Every item is tried.
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
                let held = life::agent_of(&item).map(|agent| format!("; agent {agent} holds it, and keeps it")).unwrap_or_default();
                output.line(format!("workitem.{GROUP}/{name} has priority {priority} (was {before}){held}"));
            }
            WriteOutcome::Left(_, words) => output.line(format!("workitem.{GROUP}/{name} unchanged: {words}")),
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
        let plan = |arguments: Arguments| chosen(&Arguments { priority: 7, ..arguments }, "q", &items);
        let all = plan(Arguments::default());
        assert_eq!((all.items, all.same), (vec!["a".to_owned(), "b".to_owned()], 1));
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
        let plan = Plan { items: vec!["a".into(), "b".into()], same: 0 };
        let queue = Arguments { queue: Some("q".into()), priority: -3, ..Arguments::default() };
        assert_eq!(question(&plan, &queue).as_deref(), Some("Set the priority of 2 items of queue q to -3?"));
        assert_eq!(question(&plan, &Arguments { yes: true, ..queue }), None);
        assert_eq!(question(&plan, &Arguments::default()), None);
    }
}
