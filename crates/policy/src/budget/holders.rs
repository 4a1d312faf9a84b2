//! The places that have what a call lacks: a refusal names them, so that a person knows which object to change.
//!
//! Data alone: a refusal carries it. The places are found in `holder_lookup`.

use std::cmp::Reverse;
use std::fmt;

use super::node::Key;

/// Places that a refusal names at most.
pub const MAX_NAMED_HOLDERS: usize = 3;

/// A place and what it has of the limit above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Which.
    pub key: Key,
    /// Weighed tokens.
    pub tokens: i64,
}

/// Those who have most of a limit, the largest first, and how many others have something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holders {
    /// At most [`MAX_NAMED_HOLDERS`].
    pub named: Vec<Holder>,
    /// Others.
    pub more: usize,
}

impl Holders {
    pub(super) fn of(mut all: Vec<Holder>) -> Self {
        all.sort_by(|one, other| (Reverse(one.tokens), &one.key).cmp(&(Reverse(other.tokens), &other.key)));
        let more = all.len().saturating_sub(MAX_NAMED_HOLDERS);
        all.truncate(MAX_NAMED_HOLDERS);
        Self { named: all, more }
    }
}

/// A list after a colon, or nothing.
impl fmt::Display for Holders {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Holder { key, tokens }) in self.named.iter().enumerate() {
            let before = if at == 0 { ": " } else { ", " };
            write!(out, "{before}{key} ({tokens})")?;
        }
        if self.more > 0 { write!(out, " and {} more", self.more) } else { Ok(()) }
    }
}
