//! The journal of a session: a file of lines in a folder that survives the process, but not the pod.
//!
//! It does not know the meaning of lines. A line is written whole, except that the end of the process may tear the last
//! line. No answer was given for a torn line. The file is not synced to disk: if the node ends, the pod ends too.
//!
//! A journal that fills its volume can still be rewritten, because the space of the new file is reserved in advance.
//! The old file is complete until the new one is, wherever the process ends; see
//! `docs/adr/0043-room-for-the-gateways-journal.md`.
use std::io::{self, Write as _};
use std::path::PathBuf;

use crate::disk::{Disk, Folder};
use crate::lines::Line;

const JOURNAL_FILE: &str = "session.jsonl";
/// The target of a rewrite. Before that it only reserves the space.
const NEW_JOURNAL_FILE: &str = "session.new";
const SHORTENED_JOURNAL_FILE: &str = "session.shorter";
/// See [`Journal::spare`].
const JOURNAL_SPARE_BYTES: usize = 1024 * 1024;

/// The journal file, or none: then the session ends with the process.
pub struct Journal<D: Disk = Folder> {
    open_journal: Option<OpenJournal<D>>,
    bytes: usize,
    /// A compaction starts when the journal is this many bytes longer than twice the needed bytes.
    pub(crate) spare: usize,
    /// Bytes to reserve for a rewrite; and whether they are reserved.
    reserve: usize,
    reserved: bool,
    /// A compaction is running.
    shortening: bool,
    /// No compaction starts below this length, because the last one failed.
    patience: usize,
    /// Lines that were appended since the compaction began. None: there is no compaction, or a rewrite overtook it.
    since: Option<Vec<u8>>,
}

/// A compaction. It starts under the lock of the journal, and writes its file without the lock.
pub struct Compaction<D: Disk = Folder> {
    disk: D,
}

/// A written compaction, without the lines that were appended since it began.
pub struct CompactedJournal<D: Disk = Folder> {
    file: D::File,
    bytes: usize,
}

struct OpenJournal<D: Disk> {
    disk: D,
    /// None: the file may end with a torn line, and must be rewritten before the next append.
    file: Option<D::File>,
}

impl Journal {
    /// Opens the journal in `folder`. Returns it with the readable lines of an earlier process. A rewrite has at most
    /// `reserve` bytes.
    pub fn open(folder: Option<PathBuf>, reserve: usize) -> anyhow::Result<(Self, Vec<Line>)> {
        if folder.is_none() {
            tracing::warn!("there is no journal of holds (--journal is not set): open holds are charged when this process ends");
        }
        let disk = folder.map(|folder| Folder::open(&folder)).transpose()?;
        Self::open_on(disk, reserve)
    }
}

impl<D: Disk> Journal<D> {
    /// Opens the journal on `disk`.
    pub fn open_on(disk: Option<D>, reserve: usize) -> anyhow::Result<(Self, Vec<Line>)> {
        let journal = |kept| Self {
            open_journal: kept,
            bytes: 0,
            spare: JOURNAL_SPARE_BYTES,
            reserve,
            reserved: false,
            shortening: false,
            patience: 0,
            since: None,
        };
        let Some(disk) = disk else { return Ok((journal(None), Vec::new())) };
        if let Err(error) = disk.remove(SHORTENED_JOURNAL_FILE) {
            tracing::warn!(%error, "cannot remove an unfinished file beside the journal of holds");
        }
        let text = disk.read(JOURNAL_FILE).map_err(|error| anyhow::Error::new(error).context("cannot read the journal of holds"))?;
        let lines = read(&text.unwrap_or_default());
        Ok((journal(Some(OpenJournal { disk, file: None })), lines))
    }

    /// Whether the journal outlives the process.
    pub fn is_persistent(&self) -> bool {
        self.open_journal.is_some()
    }

    /// Starts a compaction if only `needed` of the many bytes are still of use, and none is running. The caller writes
    /// the present session to it; lines that are appended from now on follow.
    pub fn begin_compaction(&mut self, needed: usize) -> Option<Compaction<D>> {
        let kept = self.open_journal.as_ref().filter(|kept| kept.file.is_some())?;
        let begins = !self.shortening && self.bytes > (self.spare + 2 * needed).max(self.patience);
        begins.then(|| {
            (self.shortening, self.since) = (true, Some(Vec::new()));
            Compaction { disk: kept.disk.clone() }
        })
    }

    /// Replaces the journal by the compacted file, and returns the old file, whose close takes a while. A compaction
    /// that a rewrite overtook is discarded. Err: the compaction failed, and the journal continues as it is.
    pub fn finish_compaction(&mut self, written: io::Result<CompactedJournal<D>>) -> io::Result<Option<D::File>> {
        let Some(kept) = &mut self.open_journal else { return Ok(None) };
        let since = self.since.take();
        (self.shortening, self.patience) = (false, self.bytes + self.spare);
        let put = |CompactedJournal { mut file, bytes }: CompactedJournal<D>| {
            let Some(since) = since else { return Ok(None) };
            file.write_all(&since)?;
            kept.disk.rename(SHORTENED_JOURNAL_FILE, JOURNAL_FILE)?;
            Ok(Some((file, bytes + since.len())))
        };
        match written.and_then(put) {
            Ok(Some((file, bytes))) => {
                (self.bytes, self.patience) = (bytes, 0);
                Ok(kept.file.replace(file))
            }
            // The discarded file must not take the space of the journal.
            left => kept.disk.remove(SHORTENED_JOURNAL_FILE).and(left.map(|_| None)),
        }
    }

    /// Appends a line. After an error the file may end with a torn line, so it must be rewritten before the next
    /// append.
    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        let Some(kept) = &mut self.open_journal else { return Ok(()) };
        let file = kept.file.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let text = text(line)?;
        let written = file.write_all(&text);
        if written.is_err() {
            (kept.file, self.since) = (None, None);
        }
        self.bytes += text.len();
        if let Some(since) = &mut self.since {
            since.extend_from_slice(&text);
        }
        written
    }

    /// Rewrites the journal in a second file, and renames that over the first.
    pub fn rewrite(&mut self, lines: impl Iterator<Item = Line>) -> io::Result<()> {
        let Some(kept) = &mut self.open_journal else { return Ok(()) };
        // A running compaction does not have these lines.
        self.since = None;
        let written = whole(&kept.disk, NEW_JOURNAL_FILE, lines).and_then(|written| {
            // The file is cut to its content, so space must be reserved again.
            self.reserved = false;
            kept.disk.rename(NEW_JOURNAL_FILE, JOURNAL_FILE)?;
            Ok(written)
        });
        let written = written.map(|(file, bytes)| {
            // This closes the old file, so that its space is free before new space is reserved.
            (kept.file, self.bytes) = (Some(file), bytes);
        });
        if let Err(error) = self.make_room() {
            tracing::warn!(%error, bytes = self.reserve, "cannot reserve space to rewrite the journal of holds if its volume becomes full");
        }
        written
    }

    /// Reserves the space for a rewrite, if it is not reserved.
    pub fn make_room(&mut self) -> io::Result<()> {
        if let Some(kept) = self.open_journal.as_ref().filter(|_| !self.reserved) {
            kept.disk.reserve(NEW_JOURNAL_FILE, u64::try_from(self.reserve).unwrap_or(u64::MAX))?;
            self.reserved = true;
        }
        Ok(())
    }
}

impl<D: Disk> Compaction<D> {
    /// Writes the compacted file. This may take long.
    pub fn write(self, lines: impl Iterator<Item = Line>) -> io::Result<CompactedJournal<D>> {
        let (file, bytes) = whole(&self.disk, SHORTENED_JOURNAL_FILE, lines)?;
        Ok(CompactedJournal { file, bytes })
    }
}

/// Writes a file with exactly these lines. Returns it with its length.
fn whole<D: Disk>(disk: &D, name: &str, lines: impl Iterator<Item = Line>) -> io::Result<(D::File, usize)> {
    let mut all = Vec::new();
    for line in lines {
        all.extend(text(&line)?);
    }
    let mut file = disk.open(name)?;
    file.write_all(&all)?;
    disk.cut(&file, u64::try_from(all.len()).unwrap_or(u64::MAX))?;
    Ok((file, all.len()))
}

fn text(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

/// The lines without a torn last one. After an unreadable line in between the whole journal counts as unreadable.
pub fn read(text: &[u8]) -> Vec<Line> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = Vec::new();
    for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            // Without its first line `Session::restore` refuses the journal.
            Err(error) => {
                tracing::error!(%error, "a line of the journal of holds cannot be read");
                return vec![Line::Reserved(0)];
            }
        }
    }
    lines
}

/// A name for a session: the unique uid of the pod. With `again` a random suffix is added, because the governor may
/// know an earlier session of the pod.
pub fn name(uid: Option<&str>, again: bool) -> String {
    let random = format!("{:016x}", rand::random::<u64>());
    match uid.filter(|uid| !uid.is_empty()) {
        Some(uid) if again => format!("{uid}-{random}"),
        Some(uid) => uid.to_owned(),
        None => random,
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
