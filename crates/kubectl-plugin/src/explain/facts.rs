//! What is read to explain an object: data alone.
//!
//! What could not be read is unknown, not absent.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};

use crate::api::{Agent, AgentPool, WorkItem, WorkQueue};

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
    pub work: Option<Box<Work>>,
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

/// What is asked about.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// An item.
    Item(Box<WorkItem>),
    /// A queue.
    Queue(Box<WorkQueue>),
}

/// What was read around it. What could not be read is unknown, not absent: nothing is concluded from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What is asked about.
    pub subject: Subject,
    /// All items of the namespace, in the order in which they are given out.
    pub items: Option<Vec<WorkItem>>,
    /// All queues of the namespace.
    pub queues: Option<Vec<WorkQueue>>,
    /// All pools of the namespace.
    pub pools: Option<Vec<AgentPool>>,
    /// Its living agents.
    pub agents: Option<Vec<Agent>>,
    /// When.
    pub now: Timestamp,
}
