//! `ask`: sends a request to a scheduler agent, and prints its answer. With `--wait` it also prints the results of the items
//! that the scheduler queued for the request.
//!
//! A request is an item of type `ask`, in a queue that accepts this type by name. A default queue is not used: its agents would
//! work on the text as a task. The items that a scheduler queues have the name of the request as their group.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;
use tokio::time::Instant;

use super::follow::{self, Announcement};
use super::{item_count_text, life, payload};
use crate::api::names::managers;
use crate::api::shared::LocalRef;
use crate::api::{AgentPool, GROUP, WorkItem, WorkItemSpec, WorkQueue};
use crate::connect::Cluster;
use crate::console::{self, Console, Output};
use crate::error::Error;
use crate::input;
use crate::policy::work::Phase;
use crate::table::{or_nothing, printable_line, table};
use spillway_conversion::work as convert;
use spillway_wire::ask as talk;

/// The item type of a request.
pub const ASK_ITEM_TYPE: &str = "ask";

/// Arguments of `ask`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(
    override_usage = "kubectl spillway ask [OPTIONS] WORDS... | - | -f FILE",
    after_help = "Examples:
  kubectl spillway ask 'the login button does nothing: fix it'
  kubectl spillway ask 'fix the login; fix the search; then write the notes' --wait
  kubectl spillway ask -f tasks.txt
  kubectl spillway ask 'how far are you?'
  kubectl spillway ask --answers ask-x7k2p 'the one on the start page'

The program of the scheduler agent decides which requests it understands; docs/how-to/ask.md describes the sample scheduler.
Put words that begin with a dash after `--`."
)]
pub struct Arguments {
    /// The request; `-` alone reads it from standard input
    #[arg(value_name = "WORDS", required_unless_present = "file", conflicts_with = "file")]
    pub words: Vec<String>,
    /// The file with the request; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<String>,
    /// Answer the question of this item: the request is sent again, with the whole conversation
    #[arg(long, value_name = "ITEM")]
    pub answers: Option<String>,
    /// Also wait until all items that were queued for the request have ended, and print their results
    #[arg(long)]
    pub wait: bool,
    /// How long to wait in total [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = input::duration)]
    pub timeout: Option<Duration>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// The output format; without one the answer, and with `--wait` a table of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Only kind and name, of the request and of the items that were queued for it
    Name,
    /// The objects, as JSON
    Json,
}

/// A request and its results.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// The item of the request, after its end.
    pub request: WorkItem,
    /// The items that were queued for the request, in the order of their ends.
    pub items: Vec<WorkItem>,
    /// Whether the command waited for these items.
    pub waited: bool,
}

/// The command: creates the request, waits for the answer, and with `--wait` for the queued items.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let mut words = request_text(arguments)?;
    if let Some(name) = &arguments.answers {
        words = answered_request(&super::item(cluster, name).await?, &words)?;
    }
    let deadline = arguments.timeout.map(|timeout| Instant::now() + timeout);
    let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let asked = ask(cluster, &words, Timestamp::now(), console).await?;
    let name = asked.name_any();
    let heard = follow::run(cluster, &[asked], left(), Announcement::StderrWithoutResults, console, console::interrupted()).await;
    heard.map_err(|error| with_explain_hint(error, &name, &cluster.namespace))?;
    let mut report = read_results(cluster, &name).await?;
    // Print the answer now: the queued items may take hours.
    console.show(answer_output(&report.request, arguments.output));
    if arguments.wait && !report.items.is_empty() {
        follow::run(cluster, &report.items, left(), Announcement::StderrWithoutResults, console, console::interrupted()).await?;
        report = Report { waited: true, ..read_results(cluster, &name).await? };
    }
    console.show(render(&report, arguments.output)?);
    Ok(())
}

/// The text of the request.
fn request_text(arguments: &Arguments) -> Result<String, Error> {
    let text = match (&arguments.file, arguments.words.as_slice()) {
        (Some(file), _) if file != "-" => payload::read_file(file)?,
        (Some(_), _) => payload::read_stdin()?,
        (None, [dash]) if dash == "-" => payload::read_stdin()?,
        (None, words) => words.join(" "),
    };
    if text.trim().is_empty() {
        Err(Error::Usage("the request is empty: write it as WORDS, with -f FILE, or as - on standard input".to_owned()))
    } else {
        Ok(text)
    }
}

/// The earlier request, the scheduler's question, and these words as the answer.
fn answered_request(before: &WorkItem, words: &str) -> Result<String, Error> {
    let name = before.name_any();
    let result = before.status.as_ref().and_then(|status| status.result.as_deref()).filter(|_| life::phase(before) == Phase::Succeeded);
    match result {
        Some(result) if before.spec.type_.as_deref() == Some(ASK_ITEM_TYPE) => {
            Ok(talk::task_with_answer(&before.spec.payload, result, words))
        }
        Some(_) => Err(Error::Usage(format!("item \"{name}\" has no question to answer: its type is not {ASK_ITEM_TYPE}"))),
        None => {
            Err(Error::Usage(format!("item \"{name}\" has no question to answer: it is {} and has no result", life::phase(before).name())))
        }
    }
}

/// Creates the item of the request.
pub async fn ask(cluster: &Cluster, words: &str, now: Timestamp, console: &mut dyn Console) -> Result<WorkItem, Error> {
    let queues = super::queues(cluster).await?.objects;
    let queue = ask_queue(&queues).ok_or_else(|| no_ask_queue_error(&cluster.namespace))?;
    let name = queue.name_any();
    let most = usize::try_from(convert::queue(queue).max_item_bytes).unwrap_or(usize::MAX);
    if words.len() > most {
        return Err(Error::Usage(payload::too_large(words.len(), most)));
    }
    let item = WorkItem {
        metadata: ObjectMeta { generate_name: Some(format!("{ASK_ITEM_TYPE}-")), ..ObjectMeta::default() },
        spec: WorkItemSpec {
            queue_ref: Some(LocalRef { name: name.clone() }),
            type_: Some(ASK_ITEM_TYPE.to_owned()),
            payload: words.to_owned(),
            submit_time: Some(MicroTime(now)),
            ..WorkItemSpec::default()
        },
        status: None,
    };
    let params = PostParams { dry_run: false, field_manager: Some(managers::PLUGIN.to_owned()) };
    let made = cluster.api::<WorkItem>().create(&params, &item).await.map_err(Error::of::<WorkItem>(&cluster.namespace, ""))?;
    let mut output = Output::default();
    output.note(format!("workitem.{GROUP}/{} asked in queue {name}", made.name_any()));
    if queue.spec.suspend == Some(true) {
        output.note(format!(
            "note: queue {name} is paused, so agents get no items from it: `kubectl spillway resume queue/{name} -n {}` resumes it",
            cluster.namespace
        ));
    }
    // A user without the right to list pools can still ask.
    if let Ok(pools) = super::all::<AgentPool>(cluster, false, None, |_| ()).await
        && !pools.objects.iter().any(|pool| works_from(pool, &name))
    {
        output.note(format!(
            "note: no AgentPool works from queue {name}, so no agent answers; create one (config/samples/agentpool-scheduler.yaml)"
        ));
    }
    console.show(output);
    Ok(made)
}

/// The queue for requests: of the queues that accept the type by name the one with the highest priority, then the first by name.
fn ask_queue(queues: &[WorkQueue]) -> Option<&WorkQueue> {
    let accepts = |queue: &&WorkQueue| {
        let types = queue.spec.accepts.as_ref().and_then(|accepts| accepts.types.as_ref());
        queue.metadata.deletion_timestamp.is_none() && types.is_some_and(|types| types.iter().any(|type_| type_ == ASK_ITEM_TYPE))
    };
    queues.iter().filter(accepts).min_by_key(|queue| (Reverse(queue.spec.priority.unwrap_or(0)), queue.name_any()))
}

fn works_from(pool: &AgentPool, queue: &str) -> bool {
    pool.spec.queues.iter().flatten().any(|named| {
        let types = named.types.as_deref().unwrap_or_default();
        named.name == queue && (types.is_empty() || types.iter().any(|type_| type_ == ASK_ITEM_TYPE))
    })
}

fn no_ask_queue_error(namespace: &str) -> Error {
    Error::Usage(format!(
        "no WorkQueue in namespace \"{namespace}\" accepts the type {ASK_ITEM_TYPE} by name (spec.accepts.types: [{ASK_ITEM_TYPE}]), \
         so no agent would answer. Create such a queue, and an AgentPool that works from it: config/samples/workqueues.yaml \
         and config/samples/agentpool-scheduler.yaml have both"
    ))
}

/// The error when the wait ended before the answer came.
fn with_explain_hint(error: Error, name: &str, namespace: &str) -> Error {
    match error {
        Error::Usage(words) => {
            Error::Usage(format!("{words}; `kubectl spillway explain item/{name} -n {namespace}` shows what it waits for"))
        }
        other => other,
    }
}

/// Reads the request and the items that were queued for it.
async fn read_results(cluster: &Cluster, name: &str) -> Result<Report, Error> {
    let asked = super::item(cluster, name).await?;
    let group = format!("spec.group={name}");
    let mut items = super::all::<WorkItem>(cluster, false, Some(&group), |_| ()).await?.objects;
    let ended = |item: &WorkItem| item.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0);
    items.sort_by_cached_key(|item| (ended(item).is_none(), ended(item), item.name_any()));
    Ok(Report { namespace: cluster.namespace.clone(), request: asked, items, waited: false })
}

/// Prints the answer. If there is none, the wait has printed the reason.
fn answer_output(asked: &WorkItem, format: Option<Format>) -> Output {
    let mut output = Output::default();
    let result = asked.status.as_ref().and_then(|status| status.result.as_deref()).filter(|_| life::phase(asked) == Phase::Succeeded);
    for line in result.into_iter().flat_map(str::lines) {
        match format {
            None => output.line(printable_line(line)),
            Some(Format::Name | Format::Json) => output.note(printable_line(line)),
        }
    }
    output
}

/// The results as text, without the answer.
pub fn render(report: &Report, format: Option<Format>) -> Result<Output, Error> {
    let Report { namespace, request: asked, items, waited } = report;
    let mut output = Output::default();
    let name = asked.name_any();
    match format {
        Some(Format::Json) => {
            let all: Vec<&WorkItem> = std::iter::once(asked).chain(items).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": all});
            output.line(serde_json::to_string_pretty(&list).map_err(|error| Error::Format(error.to_string()))?);
        }
        Some(Format::Name) => {
            std::iter::once(asked).chain(items).for_each(|item| output.line(format!("workitem.{GROUP}/{}", item.name_any())));
        }
        None if *waited => output.out = table(&["ITEM", "TYPE", "QUEUE", "PHASE", "RESULT"], items.iter().map(row).collect()),
        None => {}
    }
    if !waited && !items.is_empty() {
        output.note(format!(
            "note: {} queued. `kubectl get workitems -n {namespace} --field-selector spec.group={name}` lists them. Each item, and \
             each plan, ends with an event (`kubectl events -n {namespace}`). With --wait this command prints the results",
            if items.len() == 1 { "1 item is".to_owned() } else { format!("{} are", item_count_text(items.len())) }
        ));
    }
    Ok(output)
}

fn row(item: &WorkItem) -> Vec<String> {
    let phase = life::phase(item);
    let result = item.status.as_ref().and_then(|status| status.result.as_deref());
    // A row is one line, so line breaks of the result become spaces.
    let result = result.map(|result| result.split_whitespace().collect::<Vec<_>>().join(" "));
    let why = [life::reason(item).map(str::to_owned), life::failure_text(item)].into_iter().flatten().collect::<Vec<_>>().join(": ");
    vec![
        item.name_any(),
        or_nothing(item.spec.type_.as_ref()),
        or_nothing(convert::queue_of(item)),
        phase.name().to_owned(),
        if phase == Phase::Succeeded { result.unwrap_or_default() } else { why },
    ]
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
