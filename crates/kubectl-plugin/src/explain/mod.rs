//! `explain`: why an agent, a pool, an item or a queue is in the state it is in, what it waits for, and what to do about it.
//! Only reads.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments, and what is read: the object, its pool or its agents, its pod, events |
//! | [`work`] | what is read around an item or a queue, and what is said of pools |
//! | [`report`] | what was read to a typed report. Pure |
//! | [`item`], [`queue`] | the reports on an item and on a queue. Pure |
//! | [`failures`] | what has to change before an item that failed is started again. Pure |
//! | [`advice`] | reasons to advice. Pure |
//! | [`render`] | the report in words. Pure |
//!
//! Whoever may read the object gets a report: what else cannot be read is said in it.

pub mod advice;
mod failures;
mod item;
mod pod;
mod queue;
pub mod render;
pub mod report;
pub mod work;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::connect::Cluster;
use super::error::Error;
use super::find::{self, Found};
use super::input::{self, Explainable};
use super::ls;
use crate::api::{Agent, AgentPool};

pub use render::render;
pub use report::{Report, report};

/// Arguments of `explain`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway explain coders-1f2e3d4c5b       # an agent, or else a pool
  kubectl spillway explain pool/coders
  kubectl spillway explain item/bugs-x7k2p         # what it waits for, who holds it, its attempts
  kubectl spillway explain queue/bugs              # why nothing is taken from it
  kubectl spillway explain agent/coders-1f2e3d4c5b -o json | jq -r '.advice[].advice'

Times of heartbeat and activity are those of the last write: Spillway writes nothing for time alone.")]
pub struct Arguments {
    /// agent/NAME, pool/NAME, item/NAME, queue/NAME; a bare name is an agent's, or else a pool's
    #[arg(value_name = "NAME", value_parser = input::explainable)]
    pub name: Explainable,
    /// How to write it
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// How a report is written; none: text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The report as JSON
    Json,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The namespace.
    pub namespace: String,
    /// The Agent that is asked about.
    pub agent: Option<Agent>,
    /// Its pool, or the pool that is asked about.
    pub pool: Option<AgentPool>,
    /// The pod that the Agent names.
    pub pod: PodFact,
    /// The agents of the pool that is asked about.
    pub agents: Vec<Agent>,
    /// What is read around an item or a queue.
    pub work: Option<Box<work::Work>>,
    /// Events of the object and of its pod.
    pub events: Vec<Event>,
    /// What could not be read, in words.
    pub unread: Vec<String>,
}

/// What is known of an Agent's pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PodFact {
    /// It has none, or it cannot be read.
    #[default]
    Unknown,
    /// It is not there any more.
    Gone,
    /// It is there.
    There(Box<Pod>),
}

/// Reads.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Facts, Error> {
    let mut facts = Facts { namespace: cluster.namespace.clone(), ..Facts::default() };
    match &arguments.name {
        Explainable::Work(named) => work::read(cluster, named, &mut facts).await?,
        Explainable::Fleet(named) => match find::named(cluster, named).await.map_err(or_work)? {
            Found::Agent(agent) => of_agent(cluster, *agent, &mut facts).await,
            Found::Pool(pool) => of_pool(cluster, *pool, &mut facts).await,
        },
    }
    Ok(facts)
}

/// Names of work are not guessed: who gave one without its kind is told.
fn or_work(error: Error) -> Error {
    match error {
        Error::Usage(words) => Error::Usage(format!("{words}; of work write item/NAME or queue/NAME")),
        other => other,
    }
}

async fn of_agent(cluster: &Cluster, agent: Agent, facts: &mut Facts) {
    match find::pool(cluster, &agent.spec.pool_ref.name).await {
        Ok(pool) => facts.pool = Some(pool),
        Err(error) => facts.unread.push(error.to_string()),
    }
    let recorded = agent.status.as_ref().and_then(|status| status.pod_ref.clone());
    let mut about = vec![agent.uid()];
    if let Some(recorded) = recorded {
        match cluster.api::<Pod>().get_opt(&recorded.name).await {
            // Another pod of the name says nothing of this agent.
            Ok(pod) => {
                let ours = pod.filter(|pod| pod.uid().as_deref() == Some(&recorded.uid));
                facts.pod = ours.map_or(PodFact::Gone, |pod| PodFact::There(Box::new(pod)));
            }
            Err(error) => facts.unread.push(Error::of::<Pod>(&cluster.namespace, &recorded.name)(error).to_string()),
        }
        about.push(Some(recorded.uid));
    }
    facts.agent = Some(agent);
    events(cluster, about, facts).await;
}

async fn of_pool(cluster: &Cluster, pool: AgentPool, facts: &mut Facts) {
    let list = ls::Arguments { pool: Some(pool.name_any()), all: true, ..ls::Arguments::default() };
    match ls::run(cluster, &list).await {
        Ok(found) => {
            facts.agents = found.agents;
            facts.unread.extend(found.unreadable);
        }
        Err(error) => facts.unread.push(error.to_string()),
    }
    let about = vec![pool.uid()];
    facts.pool = Some(pool);
    events(cluster, about, facts).await;
}

/// Reads the events of these objects. They are kept for an hour or so: no events means little.
async fn events(cluster: &Cluster, uids: Vec<Option<String>>, facts: &mut Facts) {
    for uid in uids.into_iter().flatten().filter(|uid| !uid.is_empty()) {
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        match cluster.api::<Event>().list(&params).await {
            Ok(found) => facts.events.extend(found.items),
            Err(error) => {
                facts.unread.push(format!("events: {}", Error::of::<Event>(&cluster.namespace, "")(error)));
                return;
            }
        }
    }
}
