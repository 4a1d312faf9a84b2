//! Events of the items of a namespace, for metrics. It decides nothing.

use super::NamespaceWork;
use crate::policy::work::tally::ItemEvent;

impl NamespaceWork {
    /// The events since the last call.
    pub fn take_events(&mut self) -> Vec<(Option<String>, ItemEvent)> {
        std::mem::take(&mut self.happened)
    }

    /// Records events of an item.
    pub(super) fn record_events(&mut self, name: &str, happened: impl IntoIterator<Item = ItemEvent>) {
        let queue = self.index.counts_at(name);
        self.happened.extend(happened.into_iter().map(|one| (queue.map(str::to_owned), one)));
    }

    /// Notes since when an item is ready, for the metric of its claim.
    pub(super) fn note_ready(&mut self, name: &str) {
        if let Some((uid, since)) = self.index.get(name).and_then(|entry| Some((&entry.uid, entry.ready_since?))) {
            self.tally.ready(uid, since);
        }
    }
}
