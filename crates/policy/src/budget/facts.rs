//! Budgets and ClusterBudgets as the tree of places is built from them, and what can be wrong with one.
//!
//! Only data: which places follow from it is decided in [`tree`](super::tree), and what each is guaranteed in
//! [`share`](super::share).

use std::collections::{BTreeMap, BTreeSet};

use super::estimate::{CallTerms, Weights};
use super::node::{Block, Debt, Mode, Threshold};
use super::window::Window;

/// A limit as it is written by people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLimit {
    /// Its name.
    pub name: String,
    /// Its window.
    pub window: Window,
    /// How many.
    pub tokens: i64,
    /// How many of them siblings can never take.
    pub guaranteed: i64,
}

/// A share of every limit, kept for types of pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// The types.
    pub pool_types: Vec<String>,
    /// How large it is, 1 to 100.
    pub percent: i64,
    /// They may use no more than it.
    pub cap: bool,
}

impl Reservation {
    /// Whether it is kept for any of these types.
    pub fn is_for_one_of(&self, pool_types: &BTreeSet<String>) -> bool {
        self.pool_types.iter().any(|pool_type| pool_types.contains(pool_type))
    }
}

/// `spec.tokens`, what is unset computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Limits.
    pub limits: Vec<TokenLimit>,
    /// Shares kept for types of pools.
    pub reservations: Vec<Reservation>,
    /// What a token counts.
    pub weights: Weights,
    /// What is said of single calls.
    pub terms: Option<CallTerms>,
    /// What becomes of debt.
    pub debt: Debt,
}

/// A ClusterBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Its name.
    pub name: String,
    /// When it was made, in milliseconds.
    pub created: i64,
    /// Of all namespaces together.
    pub tokens: Tokens,
    /// Of each.
    pub per_namespace: Tokens,
    /// Those that it selects, with when they were made.
    pub namespaces: Vec<(String, i64)>,
    /// Types of the pools of each of those: what is reserved for a type that a namespace has no pool of is not kept there.
    pub pool_types: BTreeMap<String, BTreeSet<String>>,
}

/// A Budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was made, in milliseconds.
    pub created: i64,
    /// How far it goes.
    pub mode: Mode,
    /// The Budget above it.
    pub parent: Option<String>,
    /// Tokens.
    pub tokens: Tokens,
    /// What happens near a limit.
    pub thresholds: Vec<Threshold>,
    /// Calls at once.
    pub max_in_flight: Option<u32>,
}

/// What is wrong with a Budget or ClusterBudget. All of it is `Stalled`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defect {
    /// It gives nothing.
    Blocked(Block),
    /// Its guarantee of this limit does not fit beside those of its older siblings and counts 0.
    GuaranteesExceedParent {
        /// The limit.
        limit: String,
        /// What would fit, in tokens.
        left: i64,
    },
    /// Its guarantee of this limit counts 0: a token counts otherwise at its parent.
    GuaranteeOtherWeights {
        /// The limit.
        limit: String,
    },
    /// Another ClusterBudget, which is older, binds this namespace already.
    NamespaceTaken {
        /// The namespace.
        namespace: String,
        /// The other one.
        by: String,
    },
}
