//! What the places are that have limits, and what is asked of each. Nothing is decided here.

use std::fmt;

use super::estimate::{CallTerms, Weights};
use super::window::{Span, Window};

/// A place that has limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A ClusterBudget: all of its namespaces together.
    Cluster(String),
    /// What a ClusterBudget leaves to one namespace.
    Namespace {
        /// The ClusterBudget.
        cluster: String,
        /// The namespace.
        namespace: String,
    },
    /// A Budget.
    Budget {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A share of one of those, reserved for types of pools.
    Share {
        /// Of which.
        of: Box<Key>,
        /// Name of the reservation.
        name: String,
    },
    /// An agent's life.
    Agent(String),
    /// One lease of an item.
    Task {
        /// Uid of the item.
        item: String,
        /// The epoch of the lease.
        epoch: i64,
    },
}

impl Key {
    /// A Budget.
    pub fn budget(namespace: &str, name: &str) -> Self {
        Self::Budget { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The place whose object keeps what was spent here.
    pub fn record(&self) -> Self {
        match self {
            Self::Namespace { cluster, .. } => Self::Cluster(cluster.clone()),
            Self::Share { of, .. } => of.record(),
            Self::Cluster(_) | Self::Budget { .. } | Self::Agent(_) | Self::Task { .. } => self.clone(),
        }
    }

    /// A level of its own at the end of a path: an agent's life or a task's share.
    pub fn is_leaf(&self) -> bool {
        match self {
            Self::Agent(_) | Self::Task { .. } => true,
            Self::Cluster(_) | Self::Namespace { .. } | Self::Budget { .. } | Self::Share { .. } => false,
        }
    }
}

/// For people and logs.
impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(name) => write!(out, "ClusterBudget/{name}"),
            Self::Namespace { cluster, namespace } => write!(out, "ClusterBudget/{cluster} for the namespace {namespace}"),
            Self::Budget { namespace, name } => write!(out, "Budget/{name} in {namespace}"),
            Self::Share { of, name } => write!(out, "the reservation {name} of {of}"),
            Self::Agent(_) => out.write_str("the agent's lifetime"),
            Self::Task { .. } => out.write_str("the item's share"),
        }
    }
}

/// How far a budget goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It counts, and counts what it would have refused.
    Observe,
    /// It does not stand in the way of any call.
    Disabled,
}

/// What becomes of tokens spent beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debt {
    /// The next window begins with them.
    #[default]
    Next,
    /// They are forgotten with their window.
    Forgive,
}

/// What can happen at a threshold, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A line in the log.
    Log,
    /// The agents are told.
    Warn,
    /// People are told.
    Notify,
    /// No new holds; agents keep their items and wait.
    Pause,
    /// Agents are ended.
    Reap,
}

impl Action {
    /// It follows what was spent only. The others follow what is held too.
    pub fn counts_spent_only(self) -> bool {
        match self {
            Self::Pause | Self::Reap => true,
            Self::Log | Self::Warn | Self::Notify => false,
        }
    }
}

/// What happens at a share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threshold {
    /// The share, 1 to 100.
    pub percent: i64,
    /// What happens, once a window and height of the limit.
    pub action: Action,
}

/// A limit as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// Its name: refusals and grants say it.
    pub name: String,
    /// Its window.
    pub window: Window,
    /// Tokens a window, weighed. 0 refuses every call.
    pub tokens: i64,
    /// How many of them siblings can never take, as it counts at the parent (see `share`).
    pub guaranteed: i64,
}

/// Tokens on top of a limit, given by a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// Its identity: one that is told twice counts once.
    pub id: String,
    /// The limit that is raised.
    pub limit: String,
    /// How many.
    pub tokens: i64,
    /// When it was applied first, in milliseconds.
    pub from: i64,
    /// Until when it counts, in milliseconds; unset: to the end of the window that `from` is in.
    pub until: Option<i64>,
}

impl Grant {
    /// Whether it counts in this window at this time.
    pub fn counts(&self, span: Span, now: i64) -> bool {
        match self.until {
            Some(until) => self.from <= now && now < until,
            None => span.window.at(self.from) == span,
        }
    }
}

/// In which steps what was raised durably is raised: a step is what a crash of everything may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chunk {
    /// As it takes to write seldom: between a 64th and a quarter of the limit.
    Adaptive,
    /// A quarter of the limit.
    Quarter,
    /// All of it.
    Whole,
}

/// Why a place gives nothing at all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Block {
    /// The parent that it names does not exist.
    ParentMissing(String),
    /// It is its own ancestor, by way of these.
    Cycle(Vec<String>),
    /// With it more than [`super::MAX_BUDGET_DEPTH`] Budgets are above one another.
    TooDeep,
}

/// A place as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// Which.
    pub key: Key,
    /// Where its calls go on, and where its guarantees count.
    pub parent: Option<Key>,
    /// How far it goes.
    pub mode: Mode,
    /// Why it gives nothing.
    pub block: Option<Block>,
    /// What a token counts here.
    pub weights: Weights,
    /// What becomes of what was overspent.
    pub debt: Debt,
    /// Its limits; all must have room. At most 8.
    pub limits: Vec<LimitSpec>,
    /// What happens near them.
    pub thresholds: Vec<Threshold>,
    /// What it says of single calls; `None`: nothing.
    pub terms: Option<CallTerms>,
    /// Calls at once.
    pub max_in_flight: Option<u32>,
    /// Of a share: how many of its parent's calls at once others can never take.
    pub sure_in_flight: u32,
    /// Types of pools whose calls go through a share of it, and that share.
    pub shares: Vec<(String, Key)>,
    /// In which steps it is raised.
    pub chunk: Chunk,
}

impl NodeSpec {
    /// A place without limits.
    pub fn new(key: Key, parent: Option<Key>) -> Self {
        let chunk = match &key {
            Key::Agent(_) => Chunk::Quarter,
            Key::Task { .. } => Chunk::Whole,
            Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Share { .. } => Chunk::Adaptive,
        };
        Self {
            key,
            parent,
            mode: Mode::Enforce,
            block: None,
            weights: Weights::default(),
            debt: Debt::Next,
            limits: Vec::new(),
            thresholds: Vec::new(),
            terms: None,
            max_in_flight: None,
            sure_in_flight: 0,
            shares: Vec::new(),
            chunk,
        }
    }
}
