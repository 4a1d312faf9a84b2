//! `submit`: creates items, and with `--wait` waits for them.
//!
//! The name of an item with a deduplication key is made from the key, so the API server refuses a second item of the key.
//! A create whose answer was lost is not repeated automatically: without a name it would create a second item.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;

use super::from_git::{self, TaskFile};
use super::{follow, life, payload};
use crate::api::names::{self, managers};
use crate::api::shared::LocalRef;
use crate::api::work_item::{Dependency, DependencyCondition};
use crate::api::work_queue::MAX_PAYLOAD_BYTES;
use crate::api::{GROUP, WorkItem, WorkItemSpec, WorkQueue};
use crate::connect::Cluster;
use crate::console::{self, Console, Output};
use crate::error::Error;
use crate::input::{self, PointInTime};
use crate::table::printable;

/// Arguments of `submit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(
    override_usage = "kubectl spillway submit [OPTIONS] [QUEUE] [-]",
    after_help = "Examples:
  kubectl spillway submit bugs --payload 'fix issue 7'
  kubectl spillway submit bugs -f task.json --priority 10 --deadline 2h
  git diff | kubectl spillway submit reviews - --dedup-key \"$(git rev-parse HEAD)\"
  kubectl spillway submit --type bug --payload 'fix issue 7'     # the queue that accepts the type
  kubectl spillway submit bugs --count 20 --payload 'translate chapter {}' --group book
  kubectl spillway submit bugs --after bugs-x7k2p --payload 'then this' --wait --timeout 1h
  kubectl spillway submit bugs --from-git https://git.example.com/team/app --path tasks

The task of an item cannot be changed after it is submitted. `kubectl spillway explain item/NAME` shows what it waits for."
)]
pub struct Arguments {
    /// The queue [default: the one that accepts the type]; `-` reads the task from standard input
    #[arg(value_name = "QUEUE", num_args = 0..=2, value_parser = word)]
    pub words: Vec<Word>,
    /// The queue, as an option
    #[arg(long, value_name = "QUEUE", value_parser = input::queue)]
    pub queue: Option<String>,
    /// The file with the task; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "payload")]
    pub file: Option<String>,
    /// The task itself, JSON or text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// Type of the work
    #[arg(long = "type", value_name = "TYPE", value_parser = input::label)]
    pub type_: Option<String>,
    /// Priority within the queue; agents get items with a higher priority first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1_000_000..=1_000_000))]
    pub priority: Option<i32>,
    /// Group of the item; the items of a group can be cancelled together
    #[arg(long)]
    pub group: Option<String>,
    /// Concurrency key; spec.concurrency.maxLeasedPerKey of the queue limits the items of one key
    #[arg(long, value_name = "KEY")]
    pub concurrency_key: Option<String>,
    /// Deduplication key; a second item with the same key is refused as a duplicate
    #[arg(long, value_name = "KEY", conflicts_with = "name")]
    pub dedup_key: Option<String>,
    /// Tasks in a git repository.
    #[command(flatten)]
    pub git: from_git::RepositoryArguments,
    /// Start only after this item has succeeded; can be repeated
    #[arg(long, value_name = "ITEM", value_parser = input::item)]
    pub after: Vec<String>,
    /// Earliest start, as a time or a duration from now: 2026-11-22T18:00:00Z, 30m
    #[arg(long, value_name = "TIME", value_parser = input::point_in_time)]
    pub not_before: Option<PointInTime>,
    /// Deadline, as a time or a duration from now; work in progress is ended then
    #[arg(long, value_name = "TIME", value_parser = input::point_in_time)]
    pub deadline: Option<PointInTime>,
    /// Name of the item [default: the queue's, and five characters]
    #[arg(long)]
    pub name: Option<String>,
    /// Number of items to create; `{}` in the payload, the keys and the name becomes the number of the item, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: Option<u32>,
    /// Wait until the items have ended, and print each change
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// How long to wait [default: no limit]
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = input::duration)]
    pub timeout: Option<Duration>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Let the API server check the items, and store nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// A positional argument: the queue, or `-` for standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The queue.
    Queue(String),
    /// `-`.
    Stdin,
}

fn word(text: &str) -> Result<Word, String> {
    if text == "-" { Ok(Word::Stdin) } else { input::queue(text).map(Word::Queue) }
}

/// The output format; without one each item is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Only kind and name
    Name,
    /// The objects, as JSON
    Json,
    /// The objects, as YAML
    Yaml,
}

/// The source of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// No task.
    Nothing,
    /// The value of `--payload`.
    Text(String),
    /// A file.
    File(String),
    /// Standard input.
    Stdin,
    /// The files of a git repository.
    Git(String),
}

/// The task of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// A text.
    Text(String),
    /// A file of a git repository.
    File(TaskFile),
}

impl Task {
    /// What the agent gets.
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::File(TaskFile { text, .. }) => text,
        }
    }

    fn file(&self) -> Option<&TaskFile> {
        if let Self::File(file) = self { Some(file) } else { None }
    }
}

/// The created items.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// Whether nothing was stored.
    pub dry_run: bool,
    /// The items, as they are stored.
    pub items: Vec<WorkItem>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Error messages.
    pub failures: Vec<String>,
}

/// The command: reads the task, creates items, waits.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let (queue, source) = queue_and_source(arguments)?;
    let tasks = match source {
        Source::Nothing => vec![Task::Text(String::new())],
        Source::Text(text) => vec![Task::Text(text)],
        Source::File(file) => vec![Task::Text(payload::read_file(&file)?)],
        Source::Stdin => vec![Task::Text(payload::read_stdin()?)],
        Source::Git(repository) => {
            let most = usize::try_from(MAX_PAYLOAD_BYTES).unwrap_or(usize::MAX);
            from_git::read(&repository, &arguments.git, most)?.into_iter().map(Task::File).collect()
        }
    };
    let report = run(cluster, arguments, queue.as_deref(), tasks, Timestamp::now()).await?;
    console.show(render(&report, arguments.output)?);
    if arguments.wait && !report.items.is_empty() {
        let telling = if arguments.output.is_some() { follow::Announcement::Stderr } else { follow::Announcement::Stdout };
        follow::run(cluster, &report.items, arguments.timeout, telling, console, console::interrupted()).await?;
    }
    Ok(())
}

/// The queue and the source of the task.
pub fn queue_and_source(arguments: &Arguments) -> Result<(Option<String>, Source), Error> {
    let Arguments { words, queue: named, file, payload: text, type_, name, dedup_key, count, git, .. } = arguments;
    let refuse = |text: &str| Err(Error::Usage(text.to_owned()));
    let positional: Vec<&String> = words.iter().filter_map(|word| if let Word::Queue(name) = word { Some(name) } else { None }).collect();
    let stdin = words.len() - positional.len() + usize::from(file.as_deref() == Some("-"));
    let given = [file.as_deref().is_some_and(|file| file != "-"), text.is_some(), git.from_git.is_some()];
    let given = stdin + given.into_iter().filter(|given| *given).count();
    let queues: Vec<&String> = positional.into_iter().chain(named).collect();
    if queues.len() > 1 {
        return refuse("only one queue can be named; give the task with --payload TEXT, -f FILE, or - for standard input");
    }
    if queues.is_empty() && type_.is_none() {
        return refuse("no queue is named: write a QUEUE, or --type TYPE for the queue that accepts the type");
    }
    if given > 1 {
        return refuse("the task is given more than once: use one of --payload TEXT, -f FILE, --from-git, or - for standard input");
    }
    let numbered = |text: &Option<String>| text.as_ref().is_none_or(|text| text.contains("{}"));
    if count.is_some_and(|count| count > 1) && !(numbered(name) && numbered(dedup_key)) {
        return refuse("with --count above 1, --name and --dedup-key must contain {}, which becomes the number of the item");
    }
    let source = match (text, file, &git.from_git) {
        _ if stdin > 0 => Source::Stdin,
        (Some(text), ..) => Source::Text(text.clone()),
        (None, Some(file), _) => Source::File(file.clone()),
        (None, None, Some(repository)) => Source::Git(repository.clone()),
        (None, None, None) => Source::Nothing,
    };
    Ok((queues.first().map(|name| (*name).clone()), source))
}

/// Creates the items. An error stops the items after it, except for a duplicate.
pub async fn run(cluster: &Cluster, arguments: &Arguments, queue: Option<&str>, tasks: Vec<Task>, now: Timestamp) -> Result<Report, Error> {
    let mut report = Report {
        namespace: cluster.namespace.clone(),
        dry_run: arguments.dry_run,
        items: Vec::new(),
        notes: Vec::new(),
        failures: Vec::new(),
    };
    let limit = match queue {
        Some(name) => {
            let known = known_queue(cluster, name).await?;
            report.notes.extend(known.as_ref().filter(|queue| queue.spec.suspend == Some(true)).map(|_| {
                format!(
                    "queue {name} is paused, so agents get no items from it: `kubectl spillway resume queue/{name} -n {}` resumes it",
                    cluster.namespace
                )
            }));
            known.and_then(|queue| queue.spec.limits).and_then(|limits| limits.max_item_bytes).unwrap_or(MAX_PAYLOAD_BYTES)
        }
        None => MAX_PAYLOAD_BYTES,
    };
    let numbered: Vec<(u32, &Task)> = match arguments.count {
        Some(count) => (1..=count).flat_map(|number| tasks.iter().map(move |task| (number, task))).collect(),
        None => (1..).zip(&tasks).collect(),
    };
    let first = now - SignedDuration::from_millis(numbered.len().try_into().unwrap_or(0));
    let mut items = Vec::with_capacity(numbered.len());
    for (number, task) in numbered {
        let mut item = build(arguments, queue, task, number, limit, now)?;
        // A queue gives items out in the order of their submission, to the millisecond: the items of one command keep their order.
        item.spec.submit_time = Some(MicroTime(first + SignedDuration::from_millis(number.into())));
        items.push((task, item));
    }
    let params = PostParams { dry_run: arguments.dry_run, field_manager: Some(managers::PLUGIN.to_owned()) };
    for (task, item) in items {
        let name = item.metadata.name.clone().unwrap_or_default();
        let duplicate = item.spec.dedup_key.is_some();
        match cluster.api::<WorkItem>().create(&params, &item).await.map_err(Error::of::<WorkItem>(&cluster.namespace, &name)) {
            Ok(made) => report.items.push(made),
            Err(Error::Exists { .. }) if duplicate => {
                let phase = phase_of(cluster, &name).await;
                match task.file() {
                    Some(file) => report.notes.push(format!("{} was submitted before: item \"{name}\" ({phase})", file.path)),
                    None => report
                        .failures
                        .push(format!("Duplicate: item \"{name}\" already has this --dedup-key ({phase}); nothing was submitted")),
                }
            }
            Err(error) if report.items.is_empty() && report.failures.is_empty() => return Err(error),
            Err(error) => {
                report.failures.push(error.to_string());
                break;
            }
        }
    }
    Ok(report)
}

/// The queue; none if the user has no right to read it.
async fn known_queue(cluster: &Cluster, name: &str) -> Result<Option<WorkQueue>, Error> {
    match super::queue(cluster, name).await {
        Ok(queue) => Ok(Some(queue)),
        Err(Error::Server { .. }) => Ok(None), // the right to create items is enough to submit
        Err(error) => Err(error),
    }
}

/// The phase of an item whose deduplication key is taken.
async fn phase_of(cluster: &Cluster, name: &str) -> String {
    match super::item(cluster, name).await {
        Ok(item) => life::phase(&item).name().to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The item to create, without its time of submission. `number` is its number among the items of one command.
fn build(arguments: &Arguments, queue: Option<&str>, task: &Task, number: u32, limit: i32, now: Timestamp) -> Result<WorkItem, Error> {
    let filled = |text: &str| if arguments.count.is_some() { text.replace("{}", &number.to_string()) } else { text.to_owned() };
    let payload = filled(task.text());
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    if payload.len() > most {
        let path = task.file().map(|file| format!("{}: ", printable(&file.path))).unwrap_or_default();
        return Err(Error::Usage(format!("{path}{}", payload::too_large(payload.len(), most))));
    }
    let dedup_key = task.file().map(|file| file.key.clone()).or_else(|| arguments.dedup_key.as_deref().map(filled));
    let keyed = dedup_key.as_ref().map(|key| format!("item-{}", names::short_hash(&["item", "dedup", key], 16)));
    let name = keyed.or_else(|| arguments.name.as_deref().map(filled));
    if let Some(name) = &name {
        input::object(name).map_err(|words| Error::Usage(format!("--name {name:?}: {words}")))?;
    }
    let not_before = arguments.not_before.map(|when| when.time(now));
    let deadline = arguments.deadline.map(|when| when.time(now));
    let source = task.file().map(|file| BTreeMap::from([(names::SOURCE_ANNOTATION.to_owned(), file.source.clone())]));
    if let Some(deadline) = deadline.filter(|deadline| *deadline <= not_before.unwrap_or(now).max(now)) {
        return Err(Error::Usage(format!("--deadline {deadline} passes before an agent could get the item")));
    }
    let after =
        arguments.after.iter().map(|name| Dependency { name: name.clone(), queue: None, condition: DependencyCondition::Succeeded });
    Ok(WorkItem {
        metadata: ObjectMeta {
            generate_name: name.is_none().then(|| format!("{}-", queue.unwrap_or("item"))),
            name,
            annotations: source,
            ..ObjectMeta::default()
        },
        spec: WorkItemSpec {
            queue_ref: queue.map(|name| LocalRef { name: name.to_owned() }),
            type_: arguments.type_.clone(),
            priority: arguments.priority.unwrap_or(0),
            group: arguments.group.clone(),
            concurrency_key: arguments.concurrency_key.as_deref().map(filled),
            dedup_key,
            payload,
            not_before_time: not_before.map(Time),
            deadline_time: deadline.map(Time),
            depends_on: Some(after.collect::<Vec<_>>()).filter(|after| !after.is_empty()),
            ..WorkItemSpec::default()
        },
        status: None,
    })
}

/// The created items, in the requested format.
pub fn render(report: &Report, format: Option<Format>) -> Result<Output, Error> {
    let Report { namespace: _, dry_run, items, notes, failures } = report;
    let mut output = Output::default();
    let object = || match items.as_slice() {
        [one] => json!(one),
        many => json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": many}),
    };
    match format {
        Some(Format::Json) => output.line(serde_json::to_string_pretty(&object()).map_err(|error| Error::Format(error.to_string()))?),
        Some(Format::Yaml) => output.out = serde_saphyr::to_string(&object()).map_err(|error| Error::Format(error.to_string()))?,
        Some(Format::Name) => items.iter().for_each(|item| output.line(format!("workitem.{GROUP}/{}", item.name_any()))),
        None => {
            let how = if *dry_run { " (server dry run)" } else { "" };
            for item in items {
                let source = item.annotations().get(names::SOURCE_ANNOTATION).map(|source| format!(": {}", printable(source)));
                output.line(format!("workitem.{GROUP}/{} submitted{how}{}", item.name_any(), source.unwrap_or_default()));
            }
        }
    }
    notes.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    failures.iter().for_each(|words| output.failure(printable(words)));
    Ok(output)
}

#[cfg(test)]
#[path = "submit_tests.rs"]
mod tests;
