//! `queue`: lists the queues, or shows one queue with its items in their order, or with `--stats` rates and times.
//! `--suspend` and `--resume` do the same as `pause` and `resume`.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;

use super::life;
use super::stats::{self, Stats};
use crate::api::conditions::types;
use crate::api::work_queue::QueueCounts;
use crate::api::{WorkItem, WorkQueue};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::find;
use crate::input::{self, Pausable};
use crate::pause;
use crate::policy::work::admission::Queue;
use crate::table::{age, indented, or_nothing, pairs, printable, table};
use spillway_conversion::work as convert;

/// Arguments of `queue`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway queue                    # the queues of this namespace
  kubectl spillway queue bugs               # one queue, with its items in their order
  kubectl spillway queue bugs --all         # with ended items
  kubectl spillway queue --stats            # rates and times of the last hour, of all queues
  kubectl spillway queue bugs --stats --since 15m
  kubectl spillway queue bugs --suspend     # agents get no items from it; the same as: kubectl spillway pause queue/bugs
  kubectl spillway queue bugs --resume

`kubectl spillway explain queue/bugs` says why agents take no items from it.")]
pub struct Arguments {
    /// The queue; without it all queues are listed
    #[arg(value_name = "NAME", value_parser = input::queue)]
    pub name: Option<String>,
    /// Also show ended items
    #[arg(long, requires = "name")]
    pub all: bool,
    /// The most items to show; 0 shows all
    #[arg(long, value_name = "N", requires = "name", default_value_t = 50)]
    pub limit: usize,
    /// Pause the queue: agents get no items from it, and it still accepts items
    #[arg(long, requires = "name", conflicts_with_all = ["resume", "all"])]
    pub suspend: bool,
    /// Resume the queue
    #[arg(long, requires = "name", conflicts_with = "all")]
    pub resume: bool,
    /// Show rates, and how long items waited and attempts took
    #[arg(long, conflicts_with_all = ["all", "limit", "suspend", "resume"])]
    pub stats: bool,
    /// The time before now that --stats covers
    #[arg(long, value_name = "DURATION", requires = "stats", default_value = "1h", value_parser = since)]
    pub since: Duration,
    /// List the queues of all namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub all_namespaces: bool,
}

fn since(text: &str) -> Result<Duration, String> {
    match input::duration(text)? {
        none if none.is_zero() => Err("--since must be longer than 0: write 15m or 1h".to_owned()),
        some => Ok(some),
    }
}

/// The result of `queue`.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Queues.
    Queues {
        /// The namespace; none for all namespaces.
        namespace: Option<String>,
        /// The queues, by namespace and name.
        queues: Vec<WorkQueue>,
        /// One message for each stored object that does not fit its type.
        unreadable: Vec<String>,
    },
    /// One queue.
    One {
        /// The queue.
        queue: Box<WorkQueue>,
        /// Its items in the order in which agents get them, then the ended items, the newest first.
        items: Vec<WorkItem>,
        /// The number of ended items that are left out.
        ended: usize,
        /// The most items to show; 0 for all.
        limit: usize,
        /// One message for each stored object that does not fit its type.
        unreadable: Vec<String>,
    },
    /// Rates and times.
    Stats {
        /// The namespace; none for all namespaces.
        namespace: Option<String>,
        /// The numbers of each queue, by namespace and name.
        queues: Vec<Stats>,
        /// Whether the command names one queue.
        one: bool,
        /// One message for each stored object that does not fit its type.
        unreadable: Vec<String>,
    },
}

/// The command.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    if let (Some(name), true) = (&arguments.name, arguments.suspend || arguments.resume) {
        let verb = if arguments.suspend { pause::Verb::Pause } else { pause::Verb::Resume };
        let asked = pause::Arguments { names: vec![Pausable::Queue(name.clone())], ..pause::Arguments::default() };
        console.show(pause::render(&pause::run(cluster, verb, &asked).await?));
        return Ok(());
    }
    let report = if arguments.stats { read_stats(cluster, arguments, Timestamp::now()).await? } else { run(cluster, arguments).await? };
    console.show(render(&report, Timestamp::now()));
    Ok(())
}

/// Reads the queues and items, and computes the numbers for `--stats`.
pub async fn read_stats(cluster: &Cluster, arguments: &Arguments, now: Timestamp) -> Result<Report, Error> {
    let everywhere = arguments.all_namespaces;
    let (mut queues, mut unreadable) = match &arguments.name {
        Some(name) => (vec![super::queue(cluster, name).await?], Vec::new()),
        None => {
            let found = super::all::<WorkQueue>(cluster, everywhere, None, |_| ()).await?;
            (found.objects, found.unreadable)
        }
    };
    queues.sort_by_cached_key(|queue| (queue.namespace(), queue.name_any()));
    // Items that were routed by their type do not name their queue in their spec, so all items are read. Long fields are dropped.
    let found = super::all::<WorkItem>(cluster, everywhere, None, |item| {
        item.spec.payload.clear();
        if let Some(status) = &mut item.status {
            status.result = None;
            status.conditions.clear();
        }
    });
    let found = found.await?;
    unreadable.extend(found.unreadable);
    let mut of_queues: HashMap<(Option<String>, &str), Vec<&WorkItem>> = HashMap::new();
    for item in &found.objects {
        of_queues.entry((item.namespace(), convert::queue_of(item).unwrap_or_default())).or_default().push(item);
    }
    let of = |queue: &WorkQueue| {
        let name = queue.name_any();
        let items = of_queues.get(&(queue.namespace(), name.as_str())).map(Vec::as_slice).unwrap_or_default();
        Stats::of(queue, items.iter().copied(), arguments.since, now)
    };
    let namespace = (!everywhere).then(|| cluster.namespace.clone());
    Ok(Report::Stats { namespace, queues: queues.iter().map(of).collect(), one: arguments.name.is_some(), unreadable })
}

/// Reads the queues, or one queue with its items.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Report, Error> {
    let Some(name) = &arguments.name else {
        let everywhere = arguments.all_namespaces;
        let mut found = super::all::<WorkQueue>(cluster, everywhere, None, |_| ()).await?;
        found.objects.sort_by_cached_key(|queue| (queue.namespace(), queue.name_any()));
        let namespace = (!everywhere).then(|| cluster.namespace.clone());
        return Ok(Report::Queues { namespace, queues: found.objects, unreadable: found.unreadable });
    };
    let queue = Box::new(super::queue(cluster, name).await?);
    // Items that were routed by their type do not name their queue in their spec, so all items are read.
    let found = super::items(cluster, None).await?;
    let here = found.objects.into_iter().filter(|item| convert::queue_of(item) == Some(name));
    let (mut over, mut items): (Vec<_>, Vec<_>) = here.partition(|item| life::phase(item).ended());
    let ended = if arguments.all { 0 } else { over.len() };
    if arguments.all {
        over.sort_by_key(|item| {
            std::cmp::Reverse(item.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0))
        });
        items.extend(over);
    }
    Ok(Report::One { queue, items, ended, limit: arguments.limit, unreadable: found.unreadable })
}

/// The report as text.
pub fn render(report: &Report, now: Timestamp) -> Output {
    let mut output = Output::default();
    let unreadable = match report {
        Report::Queues { namespace, queues, unreadable } => {
            if queues.is_empty() {
                output.note(none_found(namespace.as_deref()));
            } else {
                output.out = queues_table(queues, namespace.is_none(), now);
            }
            unreadable
        }
        Report::One { queue, items, ended, limit, unreadable } => {
            one(queue, now, &mut output);
            items_table(items, *limit, *ended, now, &mut output);
            unreadable
        }
        Report::Stats { namespace, queues, one, unreadable } => {
            match queues.as_slice() {
                [] => output.note(none_found(namespace.as_deref())),
                [queue] if *one => stats::render_one(queue, &mut output),
                queues => stats::render_all(queues, namespace.is_none(), &mut output),
            }
            unreadable
        }
    };
    unreadable.iter().for_each(|words| output.note(format!("warning: {}", printable(words))));
    output
}

fn none_found(namespace: Option<&str>) -> String {
    let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    format!("No queues found{place}.")
}

fn queues_table(queues: &[WorkQueue], with_namespace: bool, now: Timestamp) -> String {
    let mut header = vec!["NAME", "READY", "OLDEST", "LEASED", "WAITING", "FINISHED", "DEAD", "OLDEST-DEAD", "ACCEPTING", "SUSPENDED"];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let row = |queue: &WorkQueue| {
        let status = queue.status.clone().unwrap_or_default();
        let QueueCounts { ready, leased, waiting, paused: _, finished, dead_lettered } = status.counts.unwrap_or_default();
        let accepting = find::condition(&status.conditions, types::ACCEPTING);
        let mut row: Vec<String> = queue.namespace().filter(|_| with_namespace).into_iter().collect();
        row.push(queue.name_any());
        row.push(or_nothing(ready));
        row.push(age(status.oldest_ready_time.map(|time| time.0), now));
        row.extend([leased, waiting, finished, dead_lettered].map(or_nothing));
        row.push(age(status.oldest_dead_letter_time.map(|time| time.0), now));
        row.push(or_nothing(accepting.map(|accepting| &accepting.status)));
        row.push(if queue.spec.suspend == Some(true) { "True" } else { "False" }.to_owned());
        row
    };
    table(&header, queues.iter().map(row).collect())
}

fn one(queue: &WorkQueue, now: Timestamp, output: &mut Output) {
    let status = queue.status.clone().unwrap_or_default();
    output.line(format!("WorkQueue {} in namespace {}", queue.name_any(), queue.namespace().unwrap_or_default()));
    output.line("\nSettings");
    output.out.push_str(&pairs(&settings(queue)));
    output.line("\nItems by state");
    let oldest = status.oldest_ready_time.map(|time| format!(", the oldest ready one for {}", age(Some(time.0), now))).unwrap_or_default();
    let dead = status.oldest_dead_letter_time.map(|time| format!(", the oldest dead letter for {}", age(Some(time.0), now)));
    let oldest = format!("{oldest}{}", dead.unwrap_or_default());
    output.line(format!("  {}{oldest}", status.counts.as_ref().map_or_else(|| "the operator has not counted them yet".to_owned(), counts)));
    if !status.conditions.is_empty() {
        output.line("\nConditions");
        let rows = status.conditions.iter().map(|condition| {
            let since = age(Some(condition.last_transition_time.0), now);
            vec![condition.type_.clone(), condition.status.clone(), condition.reason.clone(), since, condition.message.clone()]
        });
        output.out.push_str(&indented(&["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], rows.collect()));
    }
}

/// How many items are in each state, as text.
pub fn counts(counts: &QueueCounts) -> String {
    let QueueCounts { ready, leased, waiting, paused, finished, dead_lettered } = counts;
    let all = [
        (ready, "ready"),
        (leased, "held by agents"),
        (paused, "paused with their agents"),
        (waiting, "waiting"),
        (dead_lettered, "dead letters"),
        (finished, "finished"),
    ];
    let words: Vec<String> =
        all.iter().filter_map(|(count, what)| count.filter(|count| *count > 0).map(|count| format!("{count} {what}"))).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// The settings of a queue that matter, with the defaults filled in.
pub fn settings(queue: &WorkQueue) -> Vec<(&'static str, String)> {
    let Queue {
        strict,
        priority,
        types,
        default,
        suspend,
        max_pending,
        max_finished,
        max_dead_letters,
        max_item_bytes,
        policy,
        rules,
        cancel_group,
        max_leased,
        max_leased_per_key,
        objectives,
        empty_after: _,
        hibernates: _,
    } = convert::queue(queue);
    let limit = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let mut takes =
        if types.is_empty() { "items that name it, of every type".to_owned() } else { format!("items of the types {}", types.join(", ")) };
    if default {
        takes.push_str("; and items whose type no queue accepts");
    }
    let (initial, factor, most) = policy.backoff;
    let mut settings = vec![
        (
            "Order",
            if strict {
                "strict: an item that no agent can take blocks those behind it"
            } else {
                "an item that no agent can take does not block those behind it"
            }
            .to_owned(),
        ),
        ("Gives items", if suspend { "no: the queue is paused (spec.suspend)" } else { "yes" }.to_owned()),
        ("Accepts", format!("{takes} (priority {priority} among queues)")),
        ("Holds", format!("at most {max_pending} unfinished items of {max_item_bytes} bytes each; {max_finished} finished items are kept")),
        (
            "Dead letters",
            format!("at most {max_dead_letters} are kept, each for {:?}; a new one above that deletes the oldest", policy.dead_letter_ttl),
        ),
        ("At once", format!("{} in all, {} of one concurrency key", limit(max_leased), limit(max_leased_per_key))),
        (
            "Attempts",
            format!(
                "{} failures or {} losses of the agent make an item a dead letter; backoff {initial:?} to {most:?}, factor {factor}",
                policy.max_attempts, policy.max_stalls
            ),
        ),
        (
            "Time-outs",
            format!(
                "lease {:?}, without progress {:?}, an attempt {:?}; items are kept for {:?} after their end",
                policy.lease, policy.stall_timeout, policy.attempt_timeout, policy.ttl
            ),
        ),
    ];
    let within = |what: &str, time: Option<std::time::Duration>| time.map(|time| format!("{what} within {time:?}"));
    let promises: Vec<String> =
        [within("claimed", objectives.wait), within("finished", objectives.completion)].into_iter().flatten().collect();
    if !promises.is_empty() {
        settings.push(("Objectives", format!("{} after being ready", promises.join(", "))));
    }
    if !rules.is_empty() || cancel_group {
        let groups = if cancel_group { "; a final failure cancels the item's group" } else { "" };
        settings.push(("Failures", format!("{} rules of its own{groups}", rules.len())));
    }
    let groups: Vec<String> = convert::cancelled_groups(queue).into_iter().map(|(group, _)| group).collect();
    if !groups.is_empty() {
        settings.push(("Cancelled", format!("the groups {}", groups.join(", "))));
    }
    settings
}

fn items_table(items: &[WorkItem], limit: usize, ended: usize, now: Timestamp, output: &mut Output) {
    let shown = if limit == 0 { items.len() } else { limit.min(items.len()) };
    if !items.is_empty() {
        output.line("\nItems in their order");
    }
    let rows = items.iter().take(shown).map(|item| {
        vec![
            item.name_any(),
            item.spec.priority.to_string(),
            life::phase(item).name().to_owned(),
            or_nothing(life::reason(item)),
            or_nothing(life::agent_of(item)),
            or_nothing(item.status.as_ref().and_then(|status| status.attempts)),
            age(item.creation_timestamp().map(|time| time.0), now),
        ]
    });
    output.out.push_str(&indented(&["NAME", "PRIORITY", "PHASE", "REASON", "AGENT", "ATTEMPTS", "AGE"], rows.collect()));
    if shown < items.len() {
        output.note(format!("and {} more (--limit 0 shows all)", items.len() - shown));
    }
    if ended > 0 {
        output.note(format!("{} ended (--all shows them)", super::item_count_text(ended)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn queue(spec: &Value, status: &Value) -> WorkQueue {
        serde_json::from_value(
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q", "namespace": "n"},
            "spec": spec, "status": status}),
        )
        .expect("a WorkQueue")
    }
    fn now() -> Timestamp {
        "2026-01-01T00:02:30Z".parse().expect("a time")
    }

    #[test]
    fn queues_are_a_table() {
        let busy = queue(
            &json!({"suspend": true}),
            &json!({"counts": {"ready": 3, "leased": 1, "waiting": 0, "paused": 2, "finished": 9, "deadLettered": 4}, "oldestReadyTime": "2026-01-01T00:00:00Z", "oldestDeadLetterTime": "2025-12-28T00:00:00Z",
                "conditions": [{"type": "Accepting", "status": "True", "reason": "Accepted", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        );
        let report = Report::Queues { namespace: None, queues: vec![busy, queue(&json!({}), &json!({}))], unreadable: Vec::new() };
        assert_eq!(
            render(&report, now()).out,
            "NAMESPACE   NAME   READY   OLDEST   LEASED   WAITING   FINISHED   DEAD   OLDEST-DEAD   ACCEPTING   SUSPENDED\n\
             n           q      3       2m30s    1        0         9          4      4d            True        True\n\
             n           q      -       -        -        -         -          -      -             -           False\n"
        );
        let none = Report::Queues { namespace: Some("n".into()), queues: Vec::new(), unreadable: vec!["w".into()] };
        assert_eq!(render(&none, now()).err, "No queues found in namespace n.\nwarning: w\n");
    }

    #[test]
    fn settings_are_told_with_their_defaults() {
        let told =
            |spec: Value| settings(&queue(&spec, &json!({}))).iter().map(|(name, words)| format!("{name}: {words}\n")).collect::<String>();
        let plain = told(json!({}));
        for line in [
            "Gives items: yes\n",
            "Accepts: items that name it, of every type (priority 0 among queues)\n",
            "Holds: at most 1000 unfinished items of 16384 bytes each; 500 finished items are kept\n",
            "Dead letters: at most 1000 are kept, each for 2592000s; a new one above that deletes the oldest\n",
            "At once: no limit in all, no limit of one concurrency key\n",
            "Attempts: 3 failures or 3 losses of the agent make an item a dead letter; backoff 10s to 360s, factor 2\n",
            "Time-outs: lease 60s, without progress 1800s, an attempt 7200s; items are kept for 3600s after their end\n",
        ] {
            assert!(plain.contains(line), "{line}{plain}");
        }
        let strict = told(
            json!({"queueingStrategy": "StrictFIFO", "accepts": {"types": ["bug"], "default": true}, "concurrency": {"maxLeased": 5, "maxLeasedPerKey": 1},
            "failurePolicy": {"cancelGroup": true}, "cancelGroups": [{"group": "g", "time": "2026-01-01T00:00:00Z"}]}),
        );
        for line in [
            "Order: strict",
            "items of the types bug; and items whose type",
            "At once: 5 in all, 1 of one",
            "a final failure cancels",
            "Cancelled: the groups g\n",
        ] {
            assert!(strict.contains(line), "{line}\n{strict}");
        }
    }

    #[test]
    fn items_stand_in_their_order_and_no_more_than_asked() {
        let item = |name: &str, status: Value| -> WorkItem {
            serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"queueRef": {"name": "q"}, "priority": 2}, "status": status}))
            .expect("a WorkItem")
        };
        let leased = item("a", json!({"phase": "Leased", "attempts": 2, "lease": {"holder": "p", "agent": "c-1", "leaseTransitions": 2}}));
        let report = Report::One {
            queue: Box::new(queue(
                &json!({}),
                &json!({"counts": {"ready": 1, "leased": 1}, "oldestReadyTime": "2026-01-01T00:00:30Z", "oldestDeadLetterTime": "2026-01-01T00:01:30Z"}),
            )),
            items: vec![leased, item("b", json!({"phase": "Scheduled", "reason": "Backoff"})), item("c", json!({}))],
            ended: 1,
            limit: 2,
            unreadable: Vec::new(),
        };
        let told = render(&report, now());
        assert!(
            told.out
                .contains("\nItems by state\n  1 ready, 1 held by agents, the oldest ready one for 2m, the oldest dead letter for 60s\n"),
            "{}",
            told.out
        );
        assert!(
            told.out.ends_with(
                "\nItems in their order\n\
                 \x20 NAME   PRIORITY   PHASE       REASON    AGENT   ATTEMPTS   AGE\n\
                 \x20 a      2          Leased      -         c-1     2          2m30s\n\
                 \x20 b      2          Scheduled   Backoff   -       -          2m30s\n"
            ),
            "{}",
            told.out
        );
        assert_eq!(told.err, "and 1 more (--limit 0 shows all)\n1 item ended (--all shows them)\n");
    }
}
