//! The objects that are read to explain an object: data alone.
//!
//! An object that could not be read is unknown, not absent.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};

use crate::api::{Agent, AgentPool, WorkItem, WorkQueue};

/// The objects that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The namespace.
    pub namespace: String,
    /// The Agent to explain.
    pub agent: Option<Agent>,
    /// The pool of that Agent, or the pool to explain.
    pub pool: Option<AgentPool>,
    /// The pod that the Agent names.
    pub pod: PodFact,
    /// The agents of the pool to explain.
    pub agents: Vec<Agent>,
    /// The item or queue to explain, with the objects related to it.
    pub work: Option<Box<Work>>,
    /// Events of the object and of its pod.
    pub events: Vec<Event>,
    /// The errors of reads that failed, as text.
    pub unread: Vec<String>,
}

/// The pod of an Agent, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PodFact {
    /// The Agent has no pod, or the pod cannot be read.
    #[default]
    Unknown,
    /// The pod does not exist any more.
    Gone,
    /// The pod exists.
    There(Box<Pod>),
}

/// The object to explain.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// An item.
    Item(Box<WorkItem>),
    /// A queue.
    Queue(Box<WorkQueue>),
}

/// An item or a queue, with the objects related to it. A list that could not be read is unknown, and the report concludes
/// nothing from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The object to explain.
    pub subject: Subject,
    /// All items of the namespace, in the order in which agents get them.
    pub items: Option<Vec<WorkItem>>,
    /// All queues of the namespace.
    pub queues: Option<Vec<WorkQueue>>,
    /// All pools of the namespace.
    pub pools: Option<Vec<AgentPool>>,
    /// The agents of the namespace that have not ended.
    pub agents: Option<Vec<Agent>>,
    /// The time of the reads.
    pub now: Timestamp,
}
