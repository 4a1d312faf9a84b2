//! Tokens held for one call, and the settle that ends it: data alone.
//!
//! The ledger keeps holds, and sessions tell of settles. So this file imports neither; what becomes of them is decided in
//! [`holding`](super::holding).

use std::sync::Arc;

use super::estimate::{Quality, Usage, Weights};
use super::node::Key;

/// A place that a hold counts at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub node: usize,
    pub generation: u32,
    /// What is held there, in its weighed tokens.
    pub estimate: i64,
}

/// Tokens held for one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub session: usize,
    pub id: u64,
    /// When it was given: it counts in the windows of that time, whenever it ends.
    pub at: i64,
    /// Limits that are younger do not know it.
    pub serial: u64,
    pub input: i64,
    pub output: i64,
    /// Charged as lost: its gateway is dead.
    pub lost: bool,
    pub steps: Vec<Step>,
    pub path: Arc<[Key]>,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settle {
    /// The session's number of it, from 1, without gaps.
    pub seq: u64,
    /// Number of the hold.
    pub hold: u64,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
    /// Tokens of input that its hold covers, by the gateway's journal; and of output. What a leader remembers of the hold may be
    /// more (an extension whose answer was lost), and another leader does not know that: so all charge by this.
    pub input: i64,
    /// See `input`.
    pub output: i64,
}

impl Settle {
    /// What is charged where tokens have these weights.
    pub fn charged(&self, weights: &Weights) -> i64 {
        self.quality.charged(weights.charge(&self.usage), weights.bound(self.input, self.output))
    }
}

impl Quality {
    /// What is charged of what is known.
    pub fn charged(self, actual: i64, estimate: i64) -> i64 {
        match self {
            Self::Exact => actual,
            Self::Partial | Self::Estimated => actual.max(estimate),
        }
    }
}
