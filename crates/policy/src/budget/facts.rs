//! Budgets and ClusterBudgets as data for the tree of places, and their possible defects.
//!
//! Data only: [`tree`](super::tree) decides which places follow, and [`share`](super::share) what each of them is
//! guaranteed.

use std::collections::{BTreeMap, BTreeSet};

use super::estimate::{CallTerms, Weights};
use super::node::{Block, Debt, Mode, Threshold};
use super::window::Window;

/// A limit, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLimit {
    /// Its name.
    pub name: String,
    /// Its window.
    pub window: Window,
    /// The number of tokens.
    pub tokens: i64,
    /// The part of them that siblings can never take.
    pub guaranteed: i64,
}

/// A share of every limit, reserved for pool types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// The types.
    pub pool_types: Vec<String>,
    /// How large it is, 1 to 100.
    pub percent: i64,
    /// These types may use no more than the share.
    pub cap: bool,
}

impl Reservation {
    /// Whether it is reserved for any of these types.
    pub fn is_for_one_of(&self, pool_types: &BTreeSet<String>) -> bool {
        self.pool_types.iter().any(|pool_type| pool_types.contains(pool_type))
    }
}

/// `spec.tokens`, with computed defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Limits.
    pub limits: Vec<TokenLimit>,
    /// Shares that are reserved for pool types.
    pub reservations: Vec<Reservation>,
    /// The weights of tokens.
    pub weights: Weights,
    /// The rules for single calls.
    pub terms: Option<CallTerms>,
    /// What happens to debt.
    pub debt: Debt,
}

/// A ClusterBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Its name.
    pub name: String,
    /// When it was made, in milliseconds.
    pub created: i64,
    /// The limits of all namespaces together.
    pub tokens: Tokens,
    /// The limits of each namespace.
    pub per_namespace: Tokens,
    /// The selected namespaces, with the time when each was made.
    pub namespaces: Vec<(String, i64)>,
    /// The types of the pools in each of those. A reservation for types that a namespace has no pool of is not kept
    /// there.
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
    /// Whether it refuses, only counts, or neither.
    pub mode: Mode,
    /// The Budget above it.
    pub parent: Option<String>,
    /// Tokens.
    pub tokens: Tokens,
    /// The actions near a limit.
    pub thresholds: Vec<Threshold>,
    /// The most calls at once.
    pub max_in_flight: Option<u32>,
}

/// A defect of a Budget or ClusterBudget. Each sets `Stalled`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defect {
    /// It gives no tokens.
    Blocked(Block),
    /// Its guarantee of this limit does not fit with those of its older siblings, and counts 0.
    GuaranteesExceedParent {
        /// The limit.
        limit: String,
        /// The tokens that would fit.
        left: i64,
    },
    /// Its guarantee of this limit counts 0, because tokens have other weights at its parent.
    GuaranteeOtherWeights {
        /// The limit.
        limit: String,
    },
    /// Another, older ClusterBudget applies to this namespace already.
    NamespaceTaken {
        /// The namespace.
        namespace: String,
        /// The other ClusterBudget.
        other: String,
    },
}
