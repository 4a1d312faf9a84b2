//! The journal of a session: a file of lines in a folder that survives the process, not the pod.
//!
//! It knows nothing of what the lines mean. A line is written whole or not at all: one that was torn by the end of the process
//! is the last, and stands for nothing that anybody was told of. It is not synced to a disk: a node that ends takes the pod
//! with it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

use super::session::Line;

const FILE: &str = "session.jsonl";
const BESIDE: &str = "session.new";
const SHORTER: &str = "session.shorter";
const LOCK: &str = "lock";
/// Lines beyond what is needed, before the file is written anew.
const SPARE: usize = 4096;

/// The file, or nothing: then the session ends with the process.
pub struct Journal {
    kept: Option<Kept>,
    lines: usize,
    /// Somebody writes a shorter one, beside.
    shortening: bool,
    /// None is begun with fewer lines: the last came to nothing.
    patience: usize,
    /// What was added since that began. None: there is none, or it was overtaken.
    since: Option<Since>,
}

#[derive(Default)]
struct Since {
    text: Vec<u8>,
    lines: usize,
}

/// A shorter one, beside: begun under whatever lock the journal is under, written without it.
pub struct Shorter {
    path: PathBuf,
}

/// It is written, but for what was added since.
pub struct Shortened {
    file: File,
    lines: usize,
}

struct Kept {
    folder: PathBuf,
    file: Option<File>,
    /// Held while we live: no two processes write one journal.
    _lock: File,
}

impl Journal {
    /// Opens the one in `folder`: with the lines that a process before us wrote, as far as they can be read.
    pub fn open(folder: Option<PathBuf>) -> anyhow::Result<(Self, Vec<Line>)> {
        let Some(folder) = folder else {
            tracing::warn!("there is no journal of holds (--journal): what is held when this process ends is charged");
            return Ok((Self { kept: None, lines: 0, shortening: false, patience: 0, since: None }, Vec::new()));
        };
        std::fs::create_dir_all(&folder).with_context(|| format!("making the folder of the journal, {}", folder.display()))?;
        let lock = File::create(folder.join(LOCK)).with_context(|| format!("locking the journal in {}", folder.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another process has the journal in {}", folder.display()))?;
        remove(&folder.join(SHORTER)).context("removing what a process before us did not finish")?;
        let text = match std::fs::read(folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).context("reading the journal of holds"),
        };
        let lines = read(&text);
        Ok((Self { kept: Some(Kept { folder, file: None, _lock: lock }), lines: 0, shortening: false, patience: 0, since: None }, lines))
    }

    /// Whether it outlives the process.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Begins a shorter one, if most of its lines are of no use any more (`size` are) and none is begun. It is to have what must
    /// be known now; what is added from now on follows.
    pub fn shorten(&mut self, size: usize) -> Option<Shorter> {
        let kept = self.kept.as_ref().filter(|kept| kept.file.is_some())?;
        let begins = !self.shortening && self.lines > (SPARE + 2 * size).max(self.patience);
        begins.then(|| {
            (self.shortening, self.since) = (true, Some(Since::default()));
            Shorter { path: kept.folder.join(SHORTER) }
        })
    }

    /// Puts it in place, and gives the file that it replaces: to close that takes a while. One that was overtaken is left out.
    /// Err: there is none, and the journal goes on as it is.
    pub fn shortened(&mut self, written: io::Result<Shortened>) -> io::Result<Option<File>> {
        let Some(kept) = &mut self.kept else { return Ok(None) };
        let since = self.since.take();
        (self.shortening, self.patience) = (false, self.lines + SPARE);
        let put = |Shortened { mut file, lines }: Shortened| {
            let Some(since) = since else { return Ok(None) };
            file.write_all(&since.text)?;
            std::fs::rename(kept.folder.join(SHORTER), kept.folder.join(FILE))?;
            Ok(Some((file, lines + since.lines)))
        };
        match written.and_then(put) {
            Ok(Some((file, lines))) => {
                (self.lines, self.patience) = (lines, 0);
                Ok(kept.file.replace(file))
            }
            // It must not take the room of the other.
            left => remove(&kept.folder.join(SHORTER)).and(left.map(|_| None)),
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
        self.lines += 1;
        if let Some(since) = &mut self.since {
            since.text.extend_from_slice(&text);
            since.lines += 1;
        }
        written
    }

    /// Writes all of it anew, beside, and puts it in place.
    pub fn rewrite(&mut self, lines: impl Iterator<Item = Line>) -> io::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        // A shorter one that is being written does not have this.
        self.since = None;
        let beside = kept.folder.join(BESIDE);
        let (file, count) = whole(&beside, lines)?;
        std::fs::rename(&beside, kept.folder.join(FILE))?;
        kept.file = Some(file);
        self.lines = count;
        Ok(())
    }
}

impl Shorter {
    /// Writes it. Takes as long as it takes.
    pub fn write(self, lines: impl Iterator<Item = Line>) -> io::Result<Shortened> {
        let (file, lines) = whole(&self.path, lines)?;
        Ok(Shortened { file, lines })
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A file with these lines, and how many they are.
fn whole(path: &Path, lines: impl Iterator<Item = Line>) -> io::Result<(File, usize)> {
    let (mut all, mut count) = (Vec::new(), 0);
    for line in lines {
        all.extend(text(&line)?);
        count += 1;
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(&all)?;
    Ok((file, count))
}

fn text(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

/// The lines, but the last where it was torn. What cannot be read in between ends it: what follows makes no sense without.
fn read(text: &[u8]) -> Vec<Line> {
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
mod tests {
    use super::*;
    use crate::wire::meter::Open;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("spillway-meter-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // of a run before
        folder
    }

    fn first() -> Line {
        Line::Session { name: "s".into(), reserved: 1, acked: 0 }
    }

    #[test]
    fn what_was_written_is_read_but_a_torn_end() {
        let folder = folder("torn");
        let (mut journal, lines) = Journal::open(Some(folder.clone())).expect("opened");
        assert_eq!(lines, []);
        journal.rewrite([first()].into_iter()).expect("written");
        let held = Line::Held(Open { id: 1, at: 5, path: vec!["a".into()], input: 1, output: 2 });
        journal.append(&held).expect("written");
        assert!(Journal::open(Some(folder.clone())).is_err(), "two processes do not share one");
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(folder.join(FILE)).expect("the file");
        file.write_all(b"{\"sent\": 1").expect("half a line");
        let (mut journal, lines) = Journal::open(Some(folder.clone())).expect("opened");
        assert_eq!(lines, [first(), held]);
        journal.rewrite(lines.into_iter()).expect("written");
        journal.append(&Line::Sent(1)).expect("written");
        drop(journal);
        assert_eq!(Journal::open(Some(folder.clone())).expect("opened").1.len(), 3);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    /// Long enough to be shortened to its first line.
    fn long(name: &str) -> (PathBuf, Journal) {
        let folder = folder(name);
        let mut journal = Journal::open(Some(folder.clone())).expect("opened").0;
        journal.rewrite([first()].into_iter()).expect("written");
        assert!(journal.shorten(1).is_none(), "it is short");
        for _ in 0..=SPARE + 4 {
            journal.append(&Line::Acked(0)).expect("written");
        }
        (folder, journal)
    }

    fn reopened(folder: &Path, journal: Journal) -> Vec<Line> {
        drop(journal);
        let lines = Journal::open(Some(folder.to_owned())).expect("opened").1;
        std::fs::remove_dir_all(folder).expect("removed");
        lines
    }

    #[test]
    fn a_shorter_one_has_what_was_added_while_it_was_written() {
        let (folder, mut journal) = long("shorter");
        let shorter = journal.shorten(1).expect("it is long");
        journal.append(&Line::Sent(1)).expect("written");
        assert!(journal.shorten(1).is_none(), "one at a time");
        let written = shorter.write([first()].into_iter());
        journal.append(&Line::Sent(2)).expect("written");
        journal.shortened(written).expect("in place");
        journal.append(&Line::Sent(3)).expect("written");
        assert_eq!(journal.lines, 4);
        assert_eq!(reopened(&folder, journal), [first(), Line::Sent(1), Line::Sent(2), Line::Sent(3)]);
    }

    #[test]
    fn a_shorter_one_that_was_overtaken_or_never_came_to_be_is_left_out() {
        let (folder, mut journal) = long("overtaken");
        let written = journal.shorten(1).expect("it is long").write([first()].into_iter());
        journal.rewrite([first(), Line::Sent(1)].into_iter()).expect("written");
        journal.shortened(written).expect("left out");
        assert!(!folder.join(SHORTER).exists(), "it takes no room");
        journal.append(&Line::Sent(2)).expect("written");
        assert_eq!(reopened(&folder, journal), [first(), Line::Sent(1), Line::Sent(2)]);

        let (folder, mut journal) = long("failed");
        drop(journal.shorten(1).expect("it is long"));
        journal.shortened(Err(io::ErrorKind::StorageFull.into())).expect_err("it is told");
        assert!(journal.shorten(1).is_none(), "not at once again");
        journal.append(&Line::Sent(1)).expect("written");
        let lines = reopened(&folder, journal);
        assert_eq!((lines.len(), lines.last()), (SPARE + 7, Some(&Line::Sent(1))));
    }

    #[test]
    fn a_line_that_makes_no_sense_ends_the_session() {
        assert_eq!(read(b"{\"reserved\":7}\nrubbish\n{\"acked\":1}\n"), [Line::Reserved(0)]);
    }

    #[test]
    fn a_journal_that_is_not_kept_has_a_name_of_its_own_each_time() {
        assert_eq!(name(Some("u"), false), "u");
        assert!(name(Some("u"), true).starts_with("u-") && name(Some("u"), true) != name(Some("u"), true));
        assert_eq!(name(None, false).len(), 16);
    }
}
