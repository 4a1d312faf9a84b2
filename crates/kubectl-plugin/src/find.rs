//! Finds the object of a name, and tells the state of an Agent as a short text. Only reads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::connect::Cluster;
use super::error::Error;
use super::input::NamedKind;
use super::table::printable;
use crate::api::agent::AgentPhase;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool};

/// The container of an agent's program.
pub const AGENT_CONTAINER: &str = "agent";
/// The sidecar that connects the agent to the gateway.
pub const LINK_CONTAINER: &str = "link";
/// The most agents that a message lists as candidates.
const MAX_CANDIDATES: usize = 10;

/// The object that a name stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum FoundObject {
    /// An Agent.
    Agent(Box<Agent>),
    /// An AgentPool.
    Pool(Box<AgentPool>),
}

/// Finds the object of a name. A bare name means an Agent, or a pool if there is no such Agent.
pub async fn named(cluster: &Cluster, named: &NamedKind) -> Result<FoundObject, Error> {
    match named {
        NamedKind::Agent(name) => agent(cluster, name).await.map(|agent| FoundObject::Agent(Box::new(agent))),
        NamedKind::Pool(name) => pool(cluster, name).await.map(|pool| FoundObject::Pool(Box::new(pool))),
        NamedKind::Either(name) => match agent(cluster, name).await {
            Err(Error::NotFound { .. }) => match pool(cluster, name).await {
                Err(Error::NotFound { namespace, .. }) => Err(Error::Usage(format!(
                    "no Agent and no AgentPool \"{name}\" in namespace \"{namespace}\"; \
                     `kubectl get agents,agentpools -n {namespace}` lists those that exist"
                ))),
                other => other.map(|pool| FoundObject::Pool(Box::new(pool))),
            },
            other => other.map(|agent| FoundObject::Agent(Box::new(agent))),
        },
    }
}

/// The Agent of this name.
pub async fn agent(cluster: &Cluster, name: &str) -> Result<Agent, Error> {
    cluster.api::<Agent>().get(name).await.map_err(Error::of::<Agent>(&cluster.namespace, name))
}

/// The AgentPool of this name.
pub async fn pool(cluster: &Cluster, name: &str) -> Result<AgentPool, Error> {
    cluster.api::<AgentPool>().get(name).await.map_err(Error::of::<AgentPool>(&cluster.namespace, name))
}

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The phase of an Agent in its last status.
pub fn phase(agent: &Agent) -> Option<AgentPhase> {
    agent.status.as_ref().and_then(|status| status.phase)
}

/// Whether the life of an Agent is over.
pub fn ended(agent: &Agent) -> bool {
    phase(agent).is_some_and(AgentPhase::ended)
}

/// Whether an Agent is Ready and not being deleted.
pub fn ready(agent: &Agent) -> bool {
    let ready = agent.status.as_ref().and_then(|status| condition(&status.conditions, types::READY));
    ready.is_some_and(|ready| ready.status == "True") && agent.metadata.deletion_timestamp.is_none()
}

/// Phase, reason and message of an Agent, as far as they exist.
pub fn state(agent: &Agent) -> String {
    let ready = agent.status.as_ref().and_then(|status| condition(&status.conditions, types::READY));
    match (phase(agent), ready) {
        (None, _) => "the operator has not observed it yet: check that the operator runs".to_owned(),
        (Some(phase), None) => phase.name().to_owned(),
        (Some(phase), Some(ready)) => format!("{}, {}", phase.name(), reason_and_message(ready)),
    }
}

/// Reason and message of a condition.
pub fn reason_and_message(condition: &Condition) -> String {
    match condition.message.as_str() {
        "" => condition.reason.clone(),
        message => format!("{}: {message}", condition.reason),
    }
}

/// Agents to choose from, each with name, display name and phase. At most ten.
pub fn candidates<'a>(agents: impl ExactSizeIterator<Item = &'a Agent>) -> String {
    let left = agents.len().saturating_sub(MAX_CANDIDATES);
    let shown = agents.take(MAX_CANDIDATES).map(|agent| {
        let words = [agent.spec.display_name.clone(), phase(agent).map(|phase| phase.name().to_owned())];
        let words: Vec<String> = words.into_iter().flatten().collect();
        if words.is_empty() { agent.name_any() } else { format!("{} ({})", agent.name_any(), words.join(", ")) }
    });
    let more = if left > 0 { format!(" and {left} more") } else { String::new() };
    printable(&format!("{}{more}", shown.collect::<Vec<_>>().join(", ")))
}
