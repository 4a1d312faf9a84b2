//! An item in memory: its spec, its record, and since when the record is so.
//!
//! Data only: the index keeps entries, and functions about one item get one.

use super::item::{Record, Spec, UnixMillis};

/// One item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its uid.
    pub uid: String,
    /// Its resource version that is known.
    pub version: String,
    /// What was asked for.
    pub spec: Spec,
    /// Its current record; stored, unless [`Entry::unsaved`].
    pub record: Record,
    /// Since when the record differs from the stored one.
    pub unsaved: Option<UnixMillis>,
    /// Since when it is ready.
    pub ready_since: Option<UnixMillis>,
    /// When it was first ready since the last redrive. Objectives are measured from then.
    pub first_ready: Option<UnixMillis>,
    /// Another tool would create it again if it were deleted.
    pub tracked: bool,
    /// The generation of its spec.
    pub generation: i64,
    /// Branch of its changeset, while an attempt at it has one.
    pub open_changeset: Option<String>,
}
