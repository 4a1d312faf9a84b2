//! A session and its journal: what changes in the one is written in the other before anybody relies on it.
//!
//! What always holds: while something is not written nothing of it is told, and no tokens are asked for. A journal that cannot
//! be added to is written anew at once, and if that fails, again later: also at the start of a process, which begins without a
//! line if it must.

use std::time::Duration;

use super::disk::{Disk, Folder};
use super::journal::{self, CompactedJournal, Compaction, Journal};
use super::lines::{Line, Snapshot};
use super::session::{MAX_SESSION_BYTES, MAX_SESSION_HEADER_BYTES, Session};

/// Between two tries to write a journal that cannot be written.
pub const JOURNAL_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The room that a journal needs to be written anew.
pub const JOURNAL_RESERVE_BYTES: usize = MAX_SESSION_BYTES + MAX_SESSION_HEADER_BYTES;

/// A session that survives its process.
pub struct DurableSession<D: Disk = Folder> {
    /// What is known.
    pub session: Session,
    journal: Journal<D>,
    /// Not all of it is written.
    broken: bool,
    next_try: Duration,
}

impl<D: Disk> DurableSession<D> {
    /// Goes on from the lines of a journal. `uid` is that of our pod.
    pub fn restore(journal: Journal<D>, lines: &[Line], uid: Option<&str>, now: Duration) -> Self {
        let session = Session::restore(lines, || journal::name(uid, !journal.is_kept())).unwrap_or_else(|trouble| {
            // Numbers of a session whose journal cannot be read might be used twice: it is left to die, and is charged.
            tracing::error!(trouble, "the journal of holds cannot be read: a new session begins");
            Session::new(journal::name(uid, true))
        });
        let mut durable = Self { session, journal, broken: true, next_try: now };
        durable.write_anew(now);
        if durable.broken {
            tracing::error!("the journal of holds cannot be written at the start: no model call is made until it can");
        }
        durable
    }

    /// Everything is written.
    pub fn is_written(&self) -> bool {
        !self.broken
    }

    /// Writes a line about what has just changed in the session. False: it is not written, and nothing that needs it may happen.
    pub fn keep(&mut self, line: &Line, now: Duration) -> bool {
        if self.broken {
            return false;
        }
        if let Err(error) = self.journal.append(line) {
            tracing::warn!(%error, "a line cannot be added to the journal of holds; it is written anew");
            self.broken = true;
            self.write_anew(now);
            if self.broken {
                tracing::error!("the journal of holds cannot be written: no model call is made meanwhile");
            }
        }
        !self.broken
    }

    /// Does what is due: a journal that could not be written is written anew. When that is to be tried again, if it failed.
    pub fn tend(&mut self, now: Duration) -> Option<Duration> {
        if now >= self.next_try {
            if self.broken {
                self.write_anew(now);
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

    fn write_anew(&mut self, now: Duration) {
        match self.journal.rewrite(self.session.snapshot().lines()) {
            Ok(()) => self.broken = false,
            Err(error) => {
                tracing::debug!(%error, "the journal of holds cannot be written anew");
                self.next_try = now + JOURNAL_RETRY_DELAY;
            }
        }
    }

    /// Begins a shorter journal, if this one has grown long: with what it is to have.
    pub fn shorten(&mut self) -> Option<(Compaction<D>, Snapshot)> {
        let shorter = self.journal.shorten(self.session.bytes())?;
        Some((shorter, self.session.snapshot()))
    }

    /// Puts it in place. The file that it replaces.
    pub fn shortened(&mut self, written: std::io::Result<CompactedJournal<D>>) -> std::io::Result<Option<D::File>> {
        self.journal.shortened(written)
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
