//! The places that have limits, and their settings. Data only.

use std::fmt;

use super::estimate::{CallTerms, Weights};
use super::window::{Span, Window};

/// A place that has limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A ClusterBudget: all of its namespaces together.
    Cluster(String),
    /// A ClusterBudget's part for one namespace.
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
    /// A share of one of those, reserved for pool types.
    Share {
        /// The place that it is a share of.
        of: Box<Key>,
        /// Name of the reservation.
        name: String,
    },
    /// An agent's lifetime.
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

    /// The place whose object stores the counters of this one.
    pub fn record(&self) -> Self {
        match self {
            Self::Namespace { cluster, .. } => Self::Cluster(cluster.clone()),
            Self::Share { of, .. } => of.record(),
            Self::Cluster(_) | Self::Budget { .. } | Self::Agent(_) | Self::Task { .. } => self.clone(),
        }
    }

    /// Whether it is the first level of a path: an agent's lifetime or an item's share.
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

/// The mode of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It counts, and counts what it would have refused.
    Observe,
    /// It is not consulted.
    Disabled,
}

/// What happens to tokens spent beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debt {
    /// The next window begins with them as debt.
    #[default]
    CarryOver,
    /// They are forgotten with their window.
    Forgive,
}

/// The actions of thresholds, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A line in the log.
    Log,
    /// Agents get a signal.
    Warn,
    /// People are notified.
    Notify,
    /// No new holds; agents keep their items and wait.
    Pause,
    /// Agents are ended.
    Reap,
}

impl Action {
    /// Whether it counts spent tokens only. The other actions count held tokens too.
    pub fn counts_spent_only(self) -> bool {
        match self {
            Self::Pause | Self::Reap => true,
            Self::Log | Self::Warn | Self::Notify => false,
        }
    }
}

/// The action at a percentage of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threshold {
    /// The percentage, 1 to 100.
    pub percent: i64,
    /// The action, once in a window and for a height of the limit.
    pub action: Action,
}

/// The settings of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// Its name, which refusals and grants use.
    pub name: String,
    /// Its window.
    pub window: Window,
    /// Weighed tokens in a window. 0 refuses every call.
    pub tokens: i64,
    /// The part of them that siblings can never take, as it counts at the parent (see `share`).
    pub guaranteed: i64,
}

/// Tokens on top of a limit, given by a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// Its identity: a repeated grant counts once.
    pub id: String,
    /// The limit that is raised.
    pub limit: String,
    /// The number of tokens.
    pub tokens: i64,
    /// When it was first applied, in milliseconds.
    pub from: i64,
    /// The end of its effect, in milliseconds. `None`: the end of the window that contains `from`.
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

/// The steps in which the durable amount is raised. A step is the most that a crash of everything may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chunk {
    /// As large as rare writes need: between a 64th and a quarter of the limit.
    Adaptive,
    /// A quarter of the limit.
    Quarter,
    /// All of it.
    Whole,
}

/// Why a place gives no tokens at all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Block {
    /// The parent that it names does not exist.
    ParentMissing(String),
    /// It is its own ancestor, through these Budgets.
    Cycle(Vec<String>),
    /// The chain of Budgets up from it is longer than [`super::MAX_BUDGET_DEPTH`].
    TooDeep,
}

/// The settings of a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// Its key.
    pub key: Key,
    /// The next place for its calls, and the place where its guarantees count.
    pub parent: Option<Key>,
    /// Whether it refuses, only counts, or neither.
    pub mode: Mode,
    /// Why it gives no tokens.
    pub block: Option<Block>,
    /// The weights of its tokens.
    pub weights: Weights,
    /// What happens to debt.
    pub debt: Debt,
    /// Its limits; each must have enough left. At most 8.
    pub limits: Vec<LimitSpec>,
    /// The actions near its limits.
    pub thresholds: Vec<Threshold>,
    /// Its rules for single calls; `None`: it has none.
    pub terms: Option<CallTerms>,
    /// The most calls at once.
    pub max_in_flight: Option<u32>,
    /// For a share: how many of its parent's calls at once are reserved for it.
    pub sure_in_flight: u32,
    /// The pool types whose calls pass a share of it, each with that share.
    pub shares: Vec<(String, Key)>,
    /// The steps in which the durable amount is raised.
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
            debt: Debt::CarryOver,
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
