//! The progress of items, as their holders report it, until it is stored.

use std::time::Duration;

use super::NamespaceWork;
use crate::cluster::clock::BootTime;
use crate::wire::work::ProgressUpdate;

impl NamespaceWork {
    /// Records the progress of an item, as its holder reports it.
    pub fn advanced(&mut self, uid: &str, advance: ProgressUpdate) {
        let slot = self.progress.entry(uid.to_owned()).or_default();
        let ProgressUpdate { epoch, percent, message, checkpoint_ref } = advance;
        if percent.is_some_and(|percent| percent > 0) || checkpoint_ref.is_some() {
            self.progressed_attempts.insert(uid.to_owned(), epoch);
        }
        if slot.0.epoch != epoch {
            slot.0 = ProgressUpdate::default(); // from an earlier attempt
        }
        let known = &slot.0;
        slot.0 = ProgressUpdate {
            epoch,
            percent: percent.or(known.percent),
            message: message.or_else(|| known.message.clone()),
            checkpoint_ref: checkpoint_ref.or_else(|| known.checkpoint_ref.clone()),
        };
    }

    /// The reported progress of an item that is not stored yet.
    pub fn progress(&self, uid: &str) -> Option<ProgressUpdate> {
        self.progress.get(uid).map(|(advance, _)| advance.clone()).filter(|said| *said != ProgressUpdate::default())
    }

    /// Records that this progress is stored.
    pub fn progress_stored(&mut self, uid: &str, stored: &ProgressUpdate) {
        if let Some((said, written)) = self.progress.get_mut(uid) {
            *written = Some(BootTime::now());
            if said == stored {
                *said = ProgressUpdate::default();
            }
        }
    }

    /// Whether progress may be stored now: the last write was at least `gap` ago.
    pub fn progress_is_due(&self, uid: &str, gap: Duration) -> bool {
        self.progress.get(uid).is_some_and(|(_, written)| written.is_none_or(|written| written.elapsed() >= gap))
    }

    /// Items with unstored progress whose last write was at least `gap` ago.
    pub fn unsaved_progress(&self, gap: Duration) -> Vec<String> {
        let due = |written: &Option<BootTime>| written.is_none_or(|written| written.elapsed() >= gap);
        let said = self.progress.iter().filter(|(_, (advance, written))| *advance != ProgressUpdate::default() && due(written));
        said.filter_map(|(uid, _)| self.names.get(uid).cloned()).collect()
    }
}
