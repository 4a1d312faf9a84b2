//! `explain`: the reasons for the state of an agent, a pool, an item or a queue, what it waits for, and what to do.
//! Only reads.
//!
//! | file | for |
//! |---|---|
//! | this one | reads the object, its pool or its agents, and its pod; builds the report |
//! | `arguments` | arguments |
//! | [`facts`] | the objects that were read |
//! | `events` | events |
//! | [`work`] | reads the objects related to an item or a queue; explains pools |
//! | [`report`](mod@report) | the report, as data |
//! | `agent`, `agent_pool`, `item`, `queue` | the report on each. Pure |
//! | `artifact` | the artifacts of an item: facts. Pure |
//! | `changeset` | the changes of an item: facts, and the advice after a failure. Pure |
//! | `hints` | the advice of a report, each reason once. Pure |
//! | `failures` | the fix before an item that failed is started again. Pure |
//! | [`advice`] | from reasons to advice. Pure |
//! | [`render`](mod@render) | the report as text. Pure |
//!
//! The user needs the right to read the object itself. The report lists the other objects that could not be read.

pub mod advice;
mod agent;
mod agent_pool;
mod arguments;
mod artifact;
mod changeset;
mod events;
pub mod facts;
mod failures;
mod hints;
mod item;
mod pod;
mod queue;
pub mod render;
pub mod report;
pub mod work;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::connect::Cluster;
use super::error::Error;
use super::find::{self, FoundObject};
use super::input::Explainable;
use super::ls;
use crate::api::{Agent, AgentPool};

use facts::Subject;

pub use arguments::{Arguments, Format};
pub use facts::{Facts, PodFact};
pub use render::render;
pub use report::Report;

/// Reads the object and what is related to it.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Facts, Error> {
    let mut facts = Facts { namespace: cluster.namespace.clone(), ..Facts::default() };
    match &arguments.name {
        Explainable::Work(named) => work::read(cluster, named, &mut facts).await?,
        Explainable::Fleet(named) => match find::named(cluster, named).await.map_err(with_work_hint)? {
            FoundObject::Agent(agent) => read_agent(cluster, *agent, &mut facts).await,
            FoundObject::Pool(pool) => read_pool(cluster, *pool, &mut facts).await,
        },
    }
    Ok(facts)
}

/// Adds a hint to the error: a bare name is never looked up as an item or a queue.
fn with_work_hint(error: Error) -> Error {
    match error {
        Error::Usage(words) => Error::Usage(format!("{words}; for an item or a queue write item/NAME or queue/NAME")),
        other => other,
    }
}

async fn read_agent(cluster: &Cluster, agent: Agent, facts: &mut Facts) {
    match find::pool(cluster, &agent.spec.pool_ref.name).await {
        Ok(pool) => facts.pool = Some(pool),
        Err(error) => facts.unread.push(error.to_string()),
    }
    let recorded = agent.status.as_ref().and_then(|status| status.pod_ref.clone());
    let mut about = vec![agent.uid()];
    if let Some(recorded) = recorded {
        match cluster.api::<Pod>().get_opt(&recorded.name).await {
            // A pod of the same name with another uid is not the pod of this agent.
            Ok(pod) => {
                let ours = pod.filter(|pod| pod.uid().as_deref() == Some(&recorded.uid));
                facts.pod = ours.map_or(PodFact::Gone, |pod| PodFact::There(Box::new(pod)));
            }
            Err(error) => facts.unread.push(Error::of::<Pod>(&cluster.namespace, &recorded.name)(error).to_string()),
        }
        about.push(Some(recorded.uid));
    }
    facts.agent = Some(agent);
    events::read(cluster, about, facts).await;
}

async fn read_pool(cluster: &Cluster, pool: AgentPool, facts: &mut Facts) {
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
    events::read(cluster, about, facts).await;
}

/// The report on the objects that were read.
pub fn report(facts: &Facts) -> Report {
    let Facts { namespace, agent, pool, pod: _, agents, work, events, unread } = facts;
    let mut report = match (work.as_deref(), agent, pool) {
        (Some(work), _, _) => match &work.subject {
            Subject::Item(item) => item::report(facts, work, item),
            Subject::Queue(queue) => queue::report(facts, work, queue),
        },
        (None, Some(agent), _) => agent::report(facts, agent),
        (None, None, Some(pool)) => agent_pool::report(pool, agents),
        (None, None, None) => Report::default(),
    };
    report.namespace.clone_from(namespace);
    report.events = events::newest_events(events);
    report.unread.clone_from(unread);
    report
}

#[cfg(test)]
mod report_tests;
