//! The places that have the tokens which a call lacks. A refusal names them, so that a person knows which object to
//! change.
//!
//! Data only, because a refusal carries it. `holder_lookup` finds the places.

use std::cmp::Reverse;
use std::fmt;

use super::node::Key;

/// The most places that a refusal names.
pub const MAX_NAMED_HOLDERS: usize = 3;

/// A place, and its tokens of the limit above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Its key.
    pub key: Key,
    /// Weighed tokens.
    pub tokens: i64,
}

/// The places with the most tokens of a limit, the largest first, and the number of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holders {
    /// At most [`MAX_NAMED_HOLDERS`].
    pub named: Vec<Holder>,
    /// The number of others.
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
