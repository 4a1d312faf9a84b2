//! `pause` and `resume`: hold agents, items and queues, and let them go on. One merge patch an object, which carries the uid of
//! what was looked at, and none where nothing would change.
//!
//! An agent, and an item with it, is paused either by a person or by the supervisor, which numbers its pauses
//! (`status.pauses`). `resume` answers both: it takes the person's word away and names the number, so that a pause that
//! comes in between is not resumed by it.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments, what is written, waiting, the words |
//! | `request` | what was asked for of one object |
//! | `agent` | what is written to an agent, and what its status says to that. Pure |
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
  kubectl spillway pause queue/bugs                  # it gives nothing out; items are still accepted
  kubectl spillway pause item/bugs-x7k2p             # this one is not given out

A paused agent keeps its pod and the item it holds; it takes no work and makes no model calls. An item that an agent
holds is not taken from it: pause the agent. `kubectl spillway resume` lets them go on.";

/// Examples of `resume`.
pub const RESUME_HELP: &str = "Examples:
  kubectl spillway resume coders-1f2e3d4c5b
  kubectl spillway resume coders-1f2e3d4c5b --wait
  kubectl spillway resume queue/bugs item/bugs-x7k2p

It resumes what a person paused and what the supervisor paused; `kubectl spillway explain NAME` says why that was. An
agent that was paused because its tokens are over is paused again unless it gets more.";

/// Arguments of `pause` and of `resume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Arguments {
    /// Agents; or item/NAME, queue/NAME
    #[arg(value_name = "NAME", required = true, value_parser = input::pausable)]
    pub names: Vec<Pausable>,
    /// Wait until the operator says that it is so
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "60s", value_parser = input::duration)]
    pub timeout: Duration,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// Which of the two.
    pub verb: Verb,
    /// The objects, by kind and name.
    pub asked: Vec<PauseRequest>,
    /// What failed, in words.
    pub failures: Vec<String>,
}

/// What came of waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    /// The namespace.
    pub namespace: String,
    /// Which of the two.
    pub verb: Verb,
    /// The objects of which the operator says that it is so, as kubectl names them.
    pub done: Vec<String>,
    /// What came instead, in words.
    pub failures: Vec<String>,
}

/// Asks for it. Every object is tried; failures are in the report.
pub async fn run(cluster: &Cluster, verb: Verb, arguments: &Arguments) -> Result<Report, Error> {
    let mut report = Report { namespace: cluster.namespace.clone(), verb, asked: Vec::new(), failures: Vec::new() };
    for name in arguments.names.iter().collect::<BTreeSet<_>>() {
        let asked = match name {
            Pausable::Agent(name) => ask(cluster, Kind::Agent, name, |agent| agent::decide(verb, agent), |_| None).await?,
            Pausable::Item(name) => {
                ask(cluster, Kind::Item, name, |item| work::decide_item(verb, item), |item| work::note(verb, item)).await?
            }
            Pausable::Queue(name) => ask(cluster, Kind::Queue, name, |queue| work::decide_queue(verb, queue), |_| None).await?,
        };
        match asked {
            Ok(asked) => report.asked.push(asked),
            Err(words) => report.failures.push(words),
        }
    }
    Ok(report)
}

async fn ask<K>(
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
    Ok(match write::settle(cluster, kind.word(), name, WriteTarget::Uid, decide).await? {
        WriteOutcome::Written(object) => Ok(seen(&object, None)),
        WriteOutcome::Left(object, words) => Ok(seen(&object, Some(words))),
        WriteOutcome::Failed(words) => Err(words),
    })
}

/// Waits until the operator says of each that it is so, at most `timeout` for all of them.
pub async fn wait(cluster: &Cluster, report: &Report, timeout: Duration) -> Result<Waited, Error> {
    let deadline = Some(Instant::now() + timeout);
    let mut waited = Waited { namespace: report.namespace.clone(), verb: report.verb, done: Vec::new(), failures: Vec::new() };
    for asked in &report.asked {
        let named = format!("{} \"{}\"", asked.kind.word(), asked.name);
        match wait::until(deadline, wait::WAIT_POLL_INTERVAL, async || look(cluster, report.verb, asked).await).await? {
            wait::Waited::Done(Ok(())) => waited.done.push(format!("{}.{GROUP}/{}", asked.kind.resource(), asked.name)),
            wait::Waited::Done(Err(words)) => waited.failures.push(format!("{named} {words}")),
            wait::Waited::Late(words) => {
                waited.failures.push(format!("{named} is not {} in time ({words})", participle(report.verb)));
            }
        }
    }
    Ok(waited)
}

/// One look; `Err` if it will never be so, and why.
async fn look(cluster: &Cluster, verb: Verb, asked: &PauseRequest) -> Result<Check<Result<(), String>>, Error> {
    Ok(match asked.kind {
        Kind::Agent => seen::<Agent>(cluster, asked).await?.map(|object| agent::seen(verb, &object, asked)),
        Kind::Item => seen::<WorkItem>(cluster, asked).await?.map(|object| work::seen_item(verb, &object, asked)),
        Kind::Queue => seen::<WorkQueue>(cluster, asked).await?.map(|object| work::seen_queue(verb, &object, asked)),
    }
    .unwrap_or_else(|| Check::Done(Err("was deleted while we waited for it".to_owned()))))
}

async fn seen<K>(cluster: &Cluster, asked: &PauseRequest) -> Result<Option<K>, Error>
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

/// What was asked for, in words.
pub fn render(report: &Report) -> Output {
    let Report { namespace: _, verb, asked, failures } = report;
    let mut output = Output::default();
    for PauseRequest { kind, name, uid: _, generation: _, unchanged, note } in asked {
        let resource = kind.resource();
        match (unchanged, verb) {
            (Some(words), _) => output.line(format!("{resource}.{GROUP}/{name} unchanged: {words}")),
            (None, Verb::Pause) => output.line(format!("{resource}.{GROUP}/{name} asked to pause")),
            (None, Verb::Resume) => output.line(format!("{resource}.{GROUP}/{name} asked to go on")),
        }
        note.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    }
    failures.iter().for_each(|words| output.failure(printable(words)));
    output
}

/// What came of waiting, in words.
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
        output.note(format!("`kubectl spillway explain NAME -n {namespace}` tells more"));
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
            "agent.spillway.dev/a asked to pause\nagent.spillway.dev/b unchanged: spec.paused is true already\nworkitem.spillway.dev/i asked to pause\n"
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
