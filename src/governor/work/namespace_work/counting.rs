//! What happens to the items of a namespace, for metrics. It decides nothing.

use super::NamespaceWork;
use crate::policy::work::tally::ItemEvent;

impl NamespaceWork {
    /// What happened since this was asked last.
    pub fn happened(&mut self) -> Vec<(Option<String>, ItemEvent)> {
        std::mem::take(&mut self.happened)
    }

    /// This happened to the item.
    pub(super) fn happens(&mut self, name: &str, happened: impl IntoIterator<Item = ItemEvent>) {
        let queue = self.index.counts_at(name);
        self.happened.extend(happened.into_iter().map(|one| (queue.map(str::to_owned), one)));
    }

    /// Since when the item is ready, for when it is claimed.
    pub(super) fn note_ready(&mut self, name: &str) {
        if let Some((uid, since)) = self.index.get(name).and_then(|entry| Some((&entry.uid, entry.ready_since?))) {
            self.tally.ready(uid, since);
        }
    }
}
