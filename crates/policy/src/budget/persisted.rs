//! The durable data of a budget: all that a new leader needs besides the reports of the gateways' sessions.
//!
//! One record for each object, one writer, compare-and-swap. Everything else of the ledger is in memory and may be lost
//! with its leader at any time.

use super::node::{Key, Threshold};
use super::window::Span;

/// The record of one object. Each write replaces it as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PersistedRecord {
    /// The counters by place: those of the object itself, and of its shares and namespaces.
    pub places: Vec<PersistedPlace>,
    /// Sessions that may have holds here, and the last settle of each that is contained. At most
    /// [`super::MAX_SESSIONS_PER_RECORD`].
    pub acked: Vec<AckedSettles>,
    /// Thresholds that have acted in live windows.
    pub latched: Vec<Latch>,
}

/// The counters of one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistedPlace {
    /// The place.
    pub key: Key,
    /// Its windows: for each limit the present one and at most [`super::MAX_PAST_WINDOWS`] before it.
    pub windows: Vec<PersistedWindow>,
}

/// One window of one limit, in weighed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistedWindow {
    /// Name of the limit.
    pub limit: String,
    /// The window.
    pub span: Span,
    /// The highest value of the limit in this window, with grants. Tokens beyond it are debt.
    pub peak: i64,
    /// Spent, as settled.
    pub used: i64,
    /// Held at the time of the write. For people only: no leader reads it.
    pub held: i64,
    /// Charged for gateways that went away.
    pub lost: i64,
    /// Debt from earlier windows.
    pub debt: i64,
    /// The upper bound of `used`, `lost` and all holds together that may have been given.
    pub high: i64,
}

/// The last settle of a session that is contained.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AckedSettles {
    /// The session: uid of the gateway's pod.
    pub session: String,
    /// The number of the last contained settle.
    pub seq: u64,
}

/// A threshold that has acted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Latch {
    /// The place.
    pub key: Key,
    /// Name of the limit.
    pub limit: String,
    /// The window.
    pub span: Span,
    /// The threshold.
    pub threshold: Threshold,
    /// The limit when it acted, with grants, in tokens. The API calls it the generation: a higher limit arms the
    /// threshold again.
    pub height: i64,
}

/// A write to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordDraft {
    /// The object.
    pub record: Key,
    /// The number of the write. Its outcome is reported with it.
    pub ticket: u64,
    /// The data to write.
    pub saved: PersistedRecord,
}
