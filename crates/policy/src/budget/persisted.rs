//! What is written of a budget: all that a new leader needs, beside what the gateways' sessions tell it.
//!
//! One record an object, one writer, compare-and-swap. Everything else of the ledger is memory and may be lost with its
//! leader at any time.

use super::node::{Key, Threshold};
use super::window::Span;

/// The record of one object. Each write of it is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PersistedRecord {
    /// What is counted, by place: the object's own, and the shares and namespaces that it keeps.
    pub places: Vec<PersistedPlace>,
    /// Sessions that may have holds here, and how far their settles are contained. At most [`super::MAX_SESSIONS_PER_RECORD`].
    pub acked: Vec<AckedSettles>,
    /// Thresholds that have acted in windows that live.
    pub latched: Vec<Latch>,
}

/// What is counted at one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistedPlace {
    /// The place.
    pub key: Key,
    /// Its windows: of each limit the present one and at most [`super::MAX_PAST_WINDOWS`] before it.
    pub windows: Vec<PersistedWindow>,
}

/// One window of one limit, in weighed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistedWindow {
    /// Name of the limit.
    pub limit: String,
    /// The window.
    pub span: Span,
    /// The highest that the limit was in this window, grants among it: what is beyond is debt.
    pub peak: i64,
    /// Spent, as settled.
    pub used: i64,
    /// Held when it was written. For people: nothing is made of it.
    pub held: i64,
    /// Charged for gateways that went away.
    pub lost: i64,
    /// Debt of the windows before.
    pub carried: i64,
    /// Holds were given so far that `used`, `lost` and all that is held are together no more than this.
    pub high: i64,
}

/// How far a session's settles are contained.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AckedSettles {
    /// The session: uid of the gateway's pod.
    pub session: String,
    /// The number of the last one that is contained.
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
    /// How high the limit was, grants among it, in tokens. It is what the API calls the generation: a higher limit arms the
    /// threshold again.
    pub height: i64,
}

/// A write to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordDraft {
    /// The object.
    pub record: Key,
    /// Which write it is: its outcome is told with it.
    pub ticket: u64,
    /// What to write.
    pub saved: PersistedRecord,
}
