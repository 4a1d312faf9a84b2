//! A session and its journal: a change of the session is written to the journal before any part of the system relies on
//! it.
//!
//! What always holds: while a change is not written, the governor is not told of it, and no tokens are requested. A
//! journal that cannot be appended to is rewritten at once. If that fails, it is tried again later. This also holds at
//! the start of a process, which can begin with an unwritten journal.
use std::time::Duration;

use crate::disk::{Disk, Folder};
use crate::journal::{self, CompactedJournal, Compaction, Journal};
use crate::lines::{Line, Snapshot};
use crate::session::{MAX_SESSION_BYTES, MAX_SESSION_HEADER_BYTES, Session};

/// Between two attempts to rewrite a journal.
pub const JOURNAL_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The space that a rewrite of the journal needs.
pub const JOURNAL_RESERVE_BYTES: usize = MAX_SESSION_BYTES + MAX_SESSION_HEADER_BYTES;

/// A session that survives its process.
pub struct DurableSession<D: Disk = Folder> {
    /// The session in memory.
    pub session: Session,
    journal: Journal<D>,
    /// A part of the session is not written.
    broken: bool,
    next_try: Duration,
}

impl<D: Disk> DurableSession<D> {
    /// Continues from the lines of a journal. `uid` is that of our pod.
    pub fn restore(journal: Journal<D>, lines: &[Line], uid: Option<&str>, now: Duration) -> Self {
        let session = Session::restore(lines, || journal::name(uid, !journal.is_persistent())).unwrap_or_else(|trouble| {
            // A session with an unreadable journal could use numbers twice. So it is abandoned: it expires, and its
            // holds are charged.
            tracing::error!(trouble, "cannot read the journal of holds; a new session begins, and the holds of the old one are charged");
            Session::new(journal::name(uid, true))
        });
        let mut durable = Self { session, journal, broken: true, next_try: now };
        durable.rewrite(now);
        if durable.broken {
            tracing::error!("cannot write the journal of holds; model calls are refused until it can be written");
        }
        durable
    }

    /// Whether the whole session is written.
    pub fn is_written(&self) -> bool {
        !self.broken
    }

    /// Writes a line about a change of the session. False: it is not written, and nothing that depends on it may
    /// happen.
    pub fn append_line(&mut self, line: &Line, now: Duration) -> bool {
        if self.broken {
            return false;
        }
        if let Err(error) = self.journal.append(line) {
            tracing::warn!(%error, "cannot append to the journal of holds; rewriting it");
            self.broken = true;
            self.rewrite(now);
            if self.broken {
                tracing::error!("cannot write the journal of holds; model calls are refused until it can be written");
            }
        }
        !self.broken
    }

    /// Rewrites a journal that could not be written, if that is due. Returns when to try again if it failed.
    pub fn retry_rewrite(&mut self, now: Duration) -> Option<Duration> {
        if now >= self.next_try {
            if self.broken {
                self.rewrite(now);
                if !self.broken {
                    tracing::info!("the journal of holds can be written again");
                }
            } else if self.journal.make_room().is_err() {
                self.next_try = now + JOURNAL_RETRY_DELAY;
            }
        }
        if !self.broken {
            self.session.is_written();
        }
        self.broken.then_some(self.next_try)
    }

    fn rewrite(&mut self, now: Duration) {
        match self.journal.rewrite(self.session.snapshot().lines()) {
            Ok(()) => self.broken = false,
            Err(error) => {
                tracing::debug!(%error, "cannot rewrite the journal of holds");
                self.next_try = now + JOURNAL_RETRY_DELAY;
            }
        }
    }

    /// Starts a compaction if the journal has grown long. Returns it with the content to write.
    pub fn begin_compaction(&mut self) -> Option<(Compaction<D>, Snapshot)> {
        let shorter = self.journal.begin_compaction(self.session.bytes())?;
        Some((shorter, self.session.snapshot()))
    }

    /// Replaces the journal by a compacted one. Returns the replaced file.
    pub fn finish_compaction(&mut self, written: std::io::Result<CompactedJournal<D>>) -> std::io::Result<Option<D::File>> {
        self.journal.finish_compaction(written)
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
