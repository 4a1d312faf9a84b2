//! `pause` and `resume` of agents, items and queues. Each object gets one merge patch with the uid that was read, or none if
//! nothing would change.
//!
//! A person or the supervisor pauses an agent, and the item with it. The supervisor numbers its pauses (`status.pauses`).
//! `resume` ends both kinds: it removes the field of the person, and writes the number of the pause. So a newer pause of the
//! supervisor is not resumed.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments, writes, waiting, the text |
//! | `request` | the request for one object |
//! | `agent` | the write to an agent, and the check of its status. Pure |
//! | `work` | the same for items and queues. Pure |

mod agent;
mod request;
mod work;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::input::{self, Pausable};
use super::table::printable;
use super::wait::{self, Check};
use super::write::{self, Decision, WriteOutcome, WriteTarget};
use crate::api::{Agent, GROUP, WorkItem, WorkQueue};

pub use request::{Kind, PauseRequest, Verb};

/// Examples of `pause`.
pub const PAUSE_HELP: &str = "Examples:
  kubectl spillway pause coders-1f2e3d4c5b
  kubectl spillway pause coders-1f2e3d4c5b --wait --timeout 2m
  kubectl spillway ls coders -o name | xargs kubectl spillway pause
  kubectl spillway pause queue/bugs                  # agents get no items from it; it still accepts items
  kubectl spillway pause item/bugs-x7k2p             # no agent gets this item

A paused agent keeps its pod and its item. It takes no work and makes no model calls. An item that an agent holds stays with
the agent: pause the agent instead. `kubectl spillway resume` resumes agents, items and queues.";

/// Examples of `resume`.
pub const RESUME_HELP: &str = "Examples:
  kubectl spillway resume coders-1f2e3d4c5b
  kubectl spillway resume coders-1f2e3d4c5b --wait
  kubectl spillway resume queue/bugs item/bugs-x7k2p

It ends pauses by a person and pauses by the supervisor. `kubectl spillway explain NAME` shows why an object is paused. An
agent that was paused because its tokens are spent is paused again unless it gets more.";

/// Arguments of `pause` and of `resume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Arguments {
    /// Agents, or item/NAME or queue/NAME
    #[arg(value_name = "NAME", required = true, value_parser = input::pausable)]
    pub names: Vec<Pausable>,
    /// Wait until the status confirms it
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "60s", value_parser = input::duration)]
    pub timeout: Duration,
}

/// The result of the writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// Pause or resume.
    pub verb: Verb,
    /// The objects, by kind and name.
    pub asked: Vec<PauseRequest>,
    /// Error messages.
    pub failures: Vec<String>,
}

/// The result of waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    /// The namespace.
    pub namespace: String,
    /// Pause or resume.
    pub verb: Verb,
    /// The objects whose status confirms it, as kubectl names them.
    pub done: Vec<String>,
    /// Error messages.
    pub failures: Vec<String>,
}

/// Writes the requests. Every object is tried; errors are in the report.
pub async fn run(cluster: &Cluster, verb: Verb, arguments: &Arguments) -> Result<Report, Error> {
    let mut report = Report { namespace: cluster.namespace.clone(), verb, asked: Vec::new(), failures: Vec::new() };
    for name in arguments.names.iter().collect::<BTreeSet<_>>() {
        let asked = match name {
            Pausable::Agent(name) => write_request(cluster, Kind::Agent, name, |agent| agent::decide(verb, agent), |_| None).await?,
            Pausable::Item(name) => {
                write_request(cluster, Kind::Item, name, |item| work::decide_item(verb, item), |item| work::note(verb, item)).await?
            }
            Pausable::Queue(name) => write_request(cluster, Kind::Queue, name, |queue| work::decide_queue(verb, queue), |_| None).await?,
        };
        match asked {
            Ok(asked) => report.asked.push(asked),
            Err(words) => report.failures.push(words),
        }
    }
    Ok(report)
}

async fn write_request<K>(
    cluster: &Cluster,
    kind: Kind,
    name: &str,
    decide: impl Fn(&K) -> Decision,
    note: impl Fn(&K) -> Option<String>,
) -> Result<Result<PauseRequest, String>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let seen = |object: &K, unchanged| PauseRequest {
        kind,
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        generation: object.meta().generation.unwrap_or(0),
        unchanged,
        note: note(object),
    };
    Ok(match write::settle(cluster, kind.noun(), name, WriteTarget::Uid, decide).await? {
        WriteOutcome::Written(object) => Ok(seen(&object, None)),
        WriteOutcome::Unchanged(object, words) => Ok(seen(&object, Some(words))),
        WriteOutcome::Failed(words) => Err(words),
    })
}

/// Waits until the status of each object confirms the request, at most `timeout` for all of them.
pub async fn wait(cluster: &Cluster, report: &Report, timeout: Duration) -> Result<Waited, Error> {
    let deadline = Some(Instant::now() + timeout);
    let mut waited = Waited { namespace: report.namespace.clone(), verb: report.verb, done: Vec::new(), failures: Vec::new() };
    for asked in &report.asked {
        let named = format!("{} \"{}\"", asked.kind.noun(), asked.name);
        match wait::until(deadline, wait::WAIT_POLL_INTERVAL, async || check_request(cluster, report.verb, asked).await).await? {
            wait::Waited::Done(Ok(())) => waited.done.push(format!("{}.{GROUP}/{}", asked.kind.resource(), asked.name)),
            wait::Waited::Done(Err(words)) => waited.failures.push(format!("{named} {words}")),
            wait::Waited::TimedOut(words) => {
                waited.failures.push(format!("{named} is not {} in time ({words})", participle(report.verb)));
            }
        }
    }
    Ok(waited)
}

/// Reads an object once. `Err` is the reason why the status can never confirm the request.
async fn check_request(cluster: &Cluster, verb: Verb, asked: &PauseRequest) -> Result<Check<Result<(), String>>, Error> {
    Ok(match asked.kind {
        Kind::Agent => read_same_object::<Agent>(cluster, asked).await?.map(|object| agent::check_status(verb, &object, asked)),
        Kind::Item => read_same_object::<WorkItem>(cluster, asked).await?.map(|object| work::check_item_status(verb, &object, asked)),
        Kind::Queue => read_same_object::<WorkQueue>(cluster, asked).await?.map(|object| work::check_queue_status(verb, &object, asked)),
    }
    .unwrap_or_else(|| Check::Done(Err("was deleted during the wait".to_owned()))))
}

async fn read_same_object<K>(cluster: &Cluster, asked: &PauseRequest) -> Result<Option<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let found = cluster.api::<K>().get_opt(&asked.name).await.map_err(Error::of::<K>(&cluster.namespace, &asked.name))?;
    Ok(found.filter(|object| object.uid().as_deref() == Some(&asked.uid)))
}

fn participle(verb: Verb) -> &'static str {
    match verb {
        Verb::Pause => "paused",
        Verb::Resume => "resumed",
    }
}

/// The result of the writes, as text.
pub fn render(report: &Report) -> Output {
    let Report { namespace: _, verb, asked, failures } = report;
    let mut output = Output::default();
    for PauseRequest { kind, name, uid: _, generation: _, unchanged, note } in asked {
        let resource = kind.resource();
        match (unchanged, verb) {
            (Some(words), _) => output.line(format!("{resource}.{GROUP}/{name} unchanged: {words}")),
            (None, Verb::Pause) => output.line(format!("{resource}.{GROUP}/{name} pause requested")),
            (None, Verb::Resume) => output.line(format!("{resource}.{GROUP}/{name} resume requested")),
        }
        note.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    }
    failures.iter().for_each(|words| output.failure(printable(words)));
    output
}

/// The result of waiting, as text.
pub fn render_waited(waited: &Waited) -> Output {
    let Waited { namespace, verb, done, failures } = waited;
    let mut output = Output::default();
    for named in done {
        output.line(format!("{named} is {}", participle(*verb)));
    }
    for words in failures {
        output.failure(printable(words));
    }
    if !failures.is_empty() {
        output.note(format!("`kubectl spillway explain NAME -n {namespace}` shows the reason"));
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_told_and_does_not_fail() {
        let asked = PauseRequest { name: "a".into(), ..PauseRequest::default() };
        let already = PauseRequest { name: "b".into(), unchanged: Some("spec.paused is true already".into()), ..asked.clone() };
        let held = PauseRequest { kind: Kind::Item, name: "i".into(), note: Some("agent x holds it".into()), ..asked.clone() };
        let report = Report { namespace: "n".into(), verb: Verb::Pause, asked: vec![asked, already, held], failures: Vec::new() };
        let told = render(&report);
        assert_eq!(
            told.out,
            "agent.spillway.dev/a pause requested\nagent.spillway.dev/b unchanged: spec.paused is true already\nworkitem.spillway.dev/i pause requested\n"
        );
        assert_eq!(told.err, "note: agent x holds it\n");
        assert!(!told.failed);
        let late = Waited {
            namespace: "n".into(),
            verb: Verb::Resume,
            done: vec!["agent.spillway.dev/a".into()],
            failures: vec!["w \u{1b}[2J".into()],
        };
        let told = render_waited(&late);
        assert_eq!((told.out.as_str(), told.failed), ("agent.spillway.dev/a is resumed\n", true));
        assert!(told.err.starts_with("error: w \u{fffd}[2J\n"), "{}", told.err);
    }
}
