//! Ended items that were deleted.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::registered;
use crate::policy::work::item_index::Removal;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CollectedLabels {
    kind: &'static str,
    reason: &'static str,
}

/// How many ended items were deleted, and why.
pub struct CollectedItems(Family<CollectedLabels, Counter>);

impl CollectedItems {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Ended items that were deleted, by kind (dead letters, other items) and reason (their age or their count)";
        Self(registered(registry, "items_collected", help, Family::default()))
    }

    pub(super) fn count(&self, dead_letter: bool, removal: Removal) {
        let kind = if dead_letter { "dead_letter" } else { "finished" };
        let reason = match removal {
            Removal::TimeOver => "age",
            Removal::TooMany => "count",
        };
        self.0.get_or_create(&CollectedLabels { kind, reason }).inc();
    }
}
