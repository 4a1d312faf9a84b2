//! The journal of a session: a file of lines in a folder that survives the process, not the pod.
//!
//! It knows nothing of what the lines mean. A line is written whole or not at all: one that was torn by the end of the process
//! is the last, and stands for nothing that anybody was told of. It is not synced to a disk: a node that ends takes the pod
//! with it.
//!
//! A journal that fills its volume can still be written anew: the file that it is written into has its room before it is
//! needed. So the old one is complete until the new one is, wherever the process ends; see `docs/adr/0043-room-for-the-gateways-journal.md`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use super::disk::{Disk, Folder};
use super::session::Line;

const JOURNAL_FILE: &str = "session.jsonl";
/// What it is written into anew; until then, room for that.
const NEW_JOURNAL_FILE: &str = "session.new";
const SHORTENED_JOURNAL_FILE: &str = "session.shorter";
/// See [`Journal::spare`].
const JOURNAL_SPARE_BYTES: usize = 1024 * 1024;

/// The file, or nothing: then the session ends with the process.
pub struct Journal<D: Disk = Folder> {
    kept: Option<OpenJournal<D>>,
    bytes: usize,
    /// Bytes beyond twice what is needed, before it is written anew.
    pub(super) spare: usize,
    /// The room that is kept for writing it anew, and whether it is.
    reserve: usize,
    reserved: bool,
    /// Somebody writes a shorter one, beside.
    shortening: bool,
    /// None is begun with fewer bytes: the last came to nothing.
    patience: usize,
    /// What was added since that began. None: there is none, or it was overtaken.
    since: Option<Vec<u8>>,
}

/// A shorter one, beside: begun under whatever lock the journal is under, written without it.
pub struct Compaction<D: Disk = Folder> {
    disk: D,
}

/// It is written, but for what was added since.
pub struct CompactedJournal<D: Disk = Folder> {
    file: D::File,
    bytes: usize,
}

struct OpenJournal<D: Disk> {
    disk: D,
    /// None: it ends with a part of a line, perhaps, and must be written anew before anything is added.
    file: Option<D::File>,
}

impl Journal {
    /// Opens the one in `folder`: with the lines that a process before us wrote, as far as they can be read. It has at most
    /// `reserve` bytes when it is written anew.
    pub fn open(folder: Option<PathBuf>, reserve: usize) -> anyhow::Result<(Self, Vec<Line>)> {
        if folder.is_none() {
            tracing::warn!("there is no journal of holds (--journal): what is held when this process ends is charged");
        }
        let disk = folder.map(|folder| Folder::open(&folder)).transpose()?;
        Self::on(disk, reserve)
    }
}

impl<D: Disk> Journal<D> {
    /// The one on `disk`.
    pub fn on(disk: Option<D>, reserve: usize) -> anyhow::Result<(Self, Vec<Line>)> {
        let journal = |kept| Self {
            kept,
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
            tracing::warn!(%error, "what a process before this one did not finish stays beside the journal of holds");
        }
        let text = disk.read(JOURNAL_FILE).map_err(|error| anyhow::Error::new(error).context("reading the journal of holds"))?;
        let lines = read(&text.unwrap_or_default());
        Ok((journal(Some(OpenJournal { disk, file: None })), lines))
    }

    /// Whether it outlives the process.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Begins a shorter one, if most of its bytes are of no use any more (`needed` are) and none is begun. It is to have what must
    /// be known now; what is added from now on follows.
    pub fn shorten(&mut self, needed: usize) -> Option<Compaction<D>> {
        let kept = self.kept.as_ref().filter(|kept| kept.file.is_some())?;
        let begins = !self.shortening && self.bytes > (self.spare + 2 * needed).max(self.patience);
        begins.then(|| {
            (self.shortening, self.since) = (true, Some(Vec::new()));
            Compaction { disk: kept.disk.clone() }
        })
    }

    /// Puts it in place, and gives the file that it replaces: to close that takes a while. One that was overtaken is left out.
    /// Err: there is none, and the journal goes on as it is.
    pub fn shortened(&mut self, written: io::Result<CompactedJournal<D>>) -> io::Result<Option<D::File>> {
        let Some(kept) = &mut self.kept else { return Ok(None) };
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
            // It must not take the room of the other.
            left => kept.disk.remove(SHORTENED_JOURNAL_FILE).and(left.map(|_| None)),
        }
    }

    /// Adds a line. After an error the file may end with a part of it: then it is written anew before anything is added.
    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
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

    /// Writes all of it anew, beside, and puts it in place.
    pub fn rewrite(&mut self, lines: impl Iterator<Item = Line>) -> io::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        // A shorter one that is being written does not have this.
        self.since = None;
        let written = whole(&kept.disk, NEW_JOURNAL_FILE, lines).and_then(|written| {
            // Cut to what is in it, it has no room to spare until it is reserved again.
            self.reserved = false;
            kept.disk.rename(NEW_JOURNAL_FILE, JOURNAL_FILE)?;
            Ok(written)
        });
        let written = written.map(|(file, bytes)| {
            // Closed before, the old one gives its room back.
            (kept.file, self.bytes) = (Some(file), bytes);
        });
        if let Err(error) = self.make_room() {
            tracing::warn!(%error, bytes = self.reserve, "there is no room to write the journal of holds anew should its volume be full");
        }
        written
    }

    /// Keeps room to write it anew, if there is none.
    pub fn make_room(&mut self) -> io::Result<()> {
        if let Some(kept) = self.kept.as_ref().filter(|_| !self.reserved) {
            kept.disk.reserve(NEW_JOURNAL_FILE, u64::try_from(self.reserve).unwrap_or(u64::MAX))?;
            self.reserved = true;
        }
        Ok(())
    }
}

impl<D: Disk> Compaction<D> {
    /// Writes it. Takes as long as it takes.
    pub fn write(self, lines: impl Iterator<Item = Line>) -> io::Result<CompactedJournal<D>> {
        let (file, bytes) = whole(&self.disk, SHORTENED_JOURNAL_FILE, lines)?;
        Ok(CompactedJournal { file, bytes })
    }
}

/// A file with these lines and nothing else, and how many bytes they are.
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

/// The lines, but the last where it was torn. What cannot be read in between ends it: what follows makes no sense without.
pub fn read(text: &[u8]) -> Vec<Line> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = Vec::new();
    for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            // Told by what is missing: see `Session::restore`.
            Err(error) => {
                tracing::error!(%error, "a line of the journal of holds cannot be read");
                return vec![Line::Reserved(0)];
            }
        }
    }
    lines
}

/// A name for a session: the pod's uid, which no other has; with a random part where an earlier session of it may be known.
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
