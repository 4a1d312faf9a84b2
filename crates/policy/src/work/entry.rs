//! An item as a process has it in memory: what was asked, what is recorded, and since when it is so.
//!
//! Data alone: the index keeps it, and everything that looks at one item is given it.

use super::item::{Record, Spec, UnixMillis};

/// One item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its uid.
    pub uid: String,
    /// The version of it that is known.
    pub version: String,
    /// What was asked.
    pub spec: Spec,
    /// What is true of it; stored, unless [`Entry::unsaved`].
    pub record: Record,
    /// Since when the record is another one than what is stored.
    pub unsaved: Option<UnixMillis>,
    /// Since when it has been ready.
    pub ready_since: Option<UnixMillis>,
    /// When it was ready for the first time since the last redrive: what objectives are measured from.
    pub first_ready: Option<UnixMillis>,
    /// Somebody else would make it again if it were removed.
    pub tracked: bool,
    /// The generation of what was asked.
    pub generation: i64,
}
