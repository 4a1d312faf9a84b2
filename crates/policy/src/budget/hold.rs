//! The hold of one call, and the settle that ends it. Data only.
//!
//! The ledger keeps holds and sessions report settles, so this file imports neither. [`holding`](super::holding)
//! decides about them.

use std::sync::Arc;

use super::estimate::{Quality, Usage, Weights};
use super::node::Key;

/// A place that a hold counts at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub node: usize,
    pub generation: u32,
    /// The amount that is held there, in the weights of the place.
    pub estimate: i64,
}

/// Tokens held for one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub session: usize,
    pub id: u64,
    /// When it was given. It counts in the windows of this time, however late it ends.
    pub at: i64,
    /// Limits that were made later do not count it.
    pub serial: u64,
    pub input: i64,
    pub output: i64,
    /// Charged as lost, because its gateway is dead.
    pub lost: bool,
    pub steps: Vec<Step>,
    pub path: Arc<[Key]>,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settle {
    /// The session's number of the settle, from 1, without gaps.
    pub seq: u64,
    /// Number of the hold.
    pub hold: u64,
    /// The usage of the call.
    pub usage: Usage,
    /// How well the usage is known.
    pub quality: Quality,
    /// Input tokens that the hold covers, by the gateway's journal. A leader may remember a larger hold (an extension
    /// whose answer was lost), and the next leader does not know that. So every leader charges by this number.
    pub input: i64,
    /// Output tokens that the hold covers; see `input`.
    pub output: i64,
}

impl Settle {
    /// The charge under these weights.
    pub fn charged(&self, weights: &Weights) -> i64 {
        self.quality.charged(weights.charge(&self.usage), weights.bound(self.input, self.output))
    }
}

impl Quality {
    /// The charge for a usage of this quality.
    pub fn charged(self, actual: i64, estimate: i64) -> i64 {
        match self {
            Self::Exact => actual,
            Self::Partial | Self::Estimated => actual.max(estimate),
        }
    }
}
