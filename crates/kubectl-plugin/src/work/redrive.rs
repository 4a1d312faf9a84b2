//! `redrive`: starts items again that ended without success, from the beginning and at a bounded rate. The counts of an item
//! (attempts, failures, losses) restart at 0. Its epoch does not, so an agent that held the item before still cannot change it.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::sleep;

use super::{item_count_text, life};
use crate::api::{GROUP, WorkItem, WorkQueue};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::input;
use crate::policy::work::Phase;
use crate::table::printable;
use crate::write::{self, Decision, WriteOutcome, WriteTarget};
use spillway_conversion::work as convert;

/// Arguments of `redrive`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway redrive bugs-x7k2p
  kubectl spillway redrive --queue bugs --dry-run                        # show the dead letters, change nothing
  kubectl spillway redrive --queue bugs --reason TooManyStalls --rate 2
  kubectl spillway redrive --queue bugs --phase Expired --phase Failed --yes

An item that is started again ignores its deadline. Succeeded and Cancelled are final: submit another item.")]
pub struct Arguments {
    /// The items
    #[arg(value_name = "ITEM", required_unless_present = "queue", conflicts_with = "queue", value_parser = input::item)]
    pub items: Vec<String>,
    /// Items of this queue
    #[arg(long, value_name = "QUEUE", value_parser = input::queue)]
    pub queue: Option<String>,
    /// Items in this phase; can be repeated [default: DeadLettered]
    #[arg(long, value_enum, value_name = "PHASE", requires = "queue")]
    pub phase: Vec<RedrivePhase>,
    /// Items of this group
    #[arg(long, requires = "queue")]
    pub group: Option<String>,
    /// Items that ended with this reason, as `queue --all` shows it
    #[arg(long, requires = "queue")]
    pub reason: Option<String>,
    /// Show the items, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The most items a second
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rate: u32,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// A phase from which an item can be started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[clap(rename_all = "PascalCase")]
pub enum RedrivePhase {
    /// Set aside for a person to decide
    DeadLettered,
    /// Failed for good
    Failed,
    /// Its deadline passed
    Expired,
    /// Not admitted
    Rejected,
}

impl RedrivePhase {
    fn phase(self) -> Phase {
        match self {
            Self::DeadLettered => Phase::DeadLettered,
            Self::Failed => Phase::Failed,
            Self::Expired => Phase::Expired,
            Self::Rejected => Phase::Rejected,
        }
    }
}

/// The items to start again, before the user confirms.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The names of the items, in the order in which agents get them.
    pub items: Vec<String>,
    /// One message for each skipped item, or phase of skipped items.
    pub skipped: Vec<String>,
    /// The queues of the namespace. They tell which groups are cancelled: their items are not started again.
    pub queues: Vec<WorkQueue>,
}

/// The command: reads, asks the user, writes.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let plan = plan(cluster, arguments).await?;
    console.show(skipped_notes(&plan));
    if arguments.dry_run {
        let lines = plan.items.iter().map(|name| format!("workitem.{GROUP}/{name} would be started again (dry run)\n"));
        console.show(Output::of(lines.collect()));
    } else if plan.items.is_empty() {
        console.show(Output { err: "No items to start again.\n".to_owned(), ..Output::default() });
    } else {
        if let Some(question) = question(&plan, arguments)
            && !console.confirm(&question)?
        {
            return Err(Error::Usage("no item was started again".into()));
        }
        run(cluster, &plan, arguments.rate, console).await?;
    }
    Ok(())
}

/// Finds the items to start again.
pub async fn plan(cluster: &Cluster, arguments: &Arguments) -> Result<Plan, Error> {
    // The parser does not require --queue when items are named, because the two conflict.
    if arguments.queue.is_none() && (!arguments.phase.is_empty() || arguments.group.is_some() || arguments.reason.is_some()) {
        return Err(Error::Usage("--phase, --group and --reason select items of a queue: write --queue Q, and name no items".into()));
    }
    let queues = match super::queues(cluster).await {
        Ok(found) => found.objects,
        // A user without the right to list queues can still redrive. The operator ends items of a cancelled group again.
        Err(Error::Server { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let Some(queue) = &arguments.queue else {
        let mut items = arguments.items.clone();
        items.sort();
        items.dedup();
        return Ok(Plan { items, skipped: Vec::new(), queues });
    };
    if !queues.iter().any(|known| known.name_any() == *queue) {
        super::queue(cluster, queue).await?;
    }
    let found = super::items(cluster, None).await?.objects;
    Ok(select_items(arguments, queue, &found, queues))
}

/// Selects the ended items of a queue that match the arguments, with messages on the skipped ones.
pub fn select_items(arguments: &Arguments, queue: &str, items: &[WorkItem], queues: Vec<WorkQueue>) -> Plan {
    let default = [RedrivePhase::DeadLettered];
    let wanted: Vec<Phase> =
        if arguments.phase.is_empty() { &default[..] } else { &arguments.phase }.iter().map(|one| one.phase()).collect();
    let of_group = |item: &&WorkItem| arguments.group.is_none() || item.spec.group == arguments.group;
    let here = items.iter().filter(|item| convert::queue_of(item) == Some(queue) && life::phase(item).ended()).filter(of_group);
    let (mut plan, mut others) = (Plan { items: Vec::new(), skipped: Vec::new(), queues }, BTreeMap::<&str, usize>::new());
    for item in here {
        let phase = life::phase(item);
        let asked = wanted.contains(&phase) && (arguments.reason.is_none() || life::reason(item) == arguments.reason.as_deref());
        match life::redrive(item, &plan.queues) {
            _ if !asked => *others.entry(phase.name()).or_default() += 1,
            Decision::Write(_) => plan.items.push(item.name_any()),
            Decision::Leave(words) => plan.skipped.push(format!("item \"{}\" is skipped: {words}", item.name_any())),
            Decision::Refuse(words) => plan.skipped.push(format!("item \"{}\" {words}", item.name_any())),
        }
    }
    plan.skipped.extend(others.into_iter().map(|(phase, count)| skipped_message(phase, count)));
    plan
}

/// The message on ended items that do not match the arguments.
fn skipped_message(phase: &str, count: usize) -> String {
    let advice = match phase {
        "Succeeded" | "Cancelled" => "final: submit another item",
        _ => "not selected: use --phase and --reason",
    };
    format!("{} in phase {phase} skipped ({advice})", item_count_text(count))
}

/// The messages on skipped items, as text.
pub fn skipped_notes(plan: &Plan) -> Output {
    let mut output = Output::default();
    plan.skipped.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    output
}

/// The question before the write; none if no confirmation is needed.
pub fn question(plan: &Plan, arguments: &Arguments) -> Option<String> {
    let queue = arguments.queue.as_ref().filter(|_| !arguments.yes)?;
    Some(format!("Start {} of queue {queue} again, {} a second?", item_count_text(plan.items.len()), arguments.rate))
}

/// Writes to at most `rate` items a second. Every item is tried, and its result is printed at once.
pub async fn run(cluster: &Cluster, plan: &Plan, rate: u32, console: &mut dyn Console) -> Result<(), Error> {
    for (at, name) in plan.items.iter().enumerate() {
        if at > 0 {
            sleep(Duration::from_secs(1) / rate.max(1)).await;
        }
        let decide = |item: &WorkItem| life::redrive(item, &plan.queues);
        let mut output = Output::default();
        match write::settle::<WorkItem>(cluster, "item", name, WriteTarget::Version, decide).await? {
            WriteOutcome::Written(item) => {
                let restored = life::phase(&item) == Phase::Suspended;
                let was = if restored { "Suspended, Restored" } else { life::phase(&item).name() };
                output.line(format!("workitem.{GROUP}/{name} started again (was {was})"));
            }
            WriteOutcome::Unchanged(_, words) => output.line(format!("workitem.{GROUP}/{name} unchanged: {words}")),
            WriteOutcome::Failed(words) => output.failure(printable(&words)),
        }
        console.show(output);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use serde_json::json;
    use spillway_conversion::work as convert;

    fn item(name: &str, queue: &str, phase: &str, reason: &str, group: &str) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name},
            "spec": {"queueRef": {"name": queue}, "group": group}, "status": {"phase": phase, "reason": reason}}))
        .expect("a WorkItem")
    }
    fn items() -> Vec<WorkItem> {
        vec![
            item("a", "q", "DeadLettered", "TooManyFailures", "g"),
            item("b", "q", "DeadLettered", "TooManyStalls", "h"),
            item("c", "q", "Failed", "FailureRule", "g"),
            item("d", "q", "Succeeded", "", "g"),
            item("e", "other", "DeadLettered", "TooManyFailures", "g"),
            item("f", "q", "Ready", "", "g"),
        ]
    }

    #[test]
    fn phases_are_those_of_the_api() {
        for one in RedrivePhase::value_variants() {
            let name = one.to_possible_value().expect("a name").get_name().to_owned();
            assert_eq!(json!(name), json!(convert::phase(one.phase())));
            assert!(one.phase().redrivable());
        }
        assert_eq!(RedrivePhase::value_variants().len(), Phase::ALL.into_iter().filter(|phase| phase.redrivable()).count());
    }

    #[test]
    fn dead_letters_are_meant_unless_other_phases_are_named() {
        let plan = |arguments: Arguments| select_items(&arguments, "q", &items(), Vec::new());
        let all = plan(Arguments::default());
        assert_eq!(all.items, ["a", "b"]);
        assert_eq!(
            all.skipped,
            [
                "1 item in phase Failed skipped (not selected: use --phase and --reason)",
                "1 item in phase Succeeded skipped (final: submit another item)"
            ]
        );
        assert_eq!(
            plan(Arguments { phase: vec![RedrivePhase::Failed, RedrivePhase::DeadLettered], ..Arguments::default() }).items,
            ["a", "b", "c"]
        );
        assert_eq!(plan(Arguments { reason: Some("TooManyStalls".into()), ..Arguments::default() }).items, ["b"]);
        assert_eq!(plan(Arguments { group: Some("g".into()), ..Arguments::default() }).items, ["a"]);
    }

    #[test]
    fn a_queue_is_asked_about_and_named_items_are_not() {
        let arguments = Arguments { queue: Some("q".into()), rate: 10, ..Arguments::default() };
        let plan = select_items(&arguments, "q", &items(), Vec::new());
        assert_eq!(question(&plan, &arguments).as_deref(), Some("Start 2 items of queue q again, 10 a second?"));
        assert_eq!(question(&plan, &Arguments { yes: true, ..arguments.clone() }), None);
        assert_eq!(question(&plan, &Arguments { queue: None, ..arguments }), None);
        assert_eq!(skipped_notes(&plan).err.lines().count(), 2);
    }
}
