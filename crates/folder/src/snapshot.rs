//! A consistent copy of a folder, as a stream.
//!
//! The main lock is held only until each file has a second name in a work folder: commits replace files and never write in them.
//! It must not be held while the stream is written: a reader may stop for ever.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};

use rustix::io::Errno;

use crate::beneath::{Directory, PathKind};
use crate::error::{Context as _, FolderError};
use crate::folder::Folder;
use crate::limits::{MAX_DEPTH, MAX_FILES};
use crate::path::{OWN_NAME, RelativePath};
use crate::record::{CopyLine, read_line, write_line};
use crate::scratch::Scratch;
use crate::transfer::{TransferError, transfer};

/// The lines of the copy, in the work folder. The content of the file of line `n` is in the file `n`.
const LINES_NAME: &str = "lines";

/// A folder as it was at one time. It is removed when it is dropped.
pub struct Snapshot {
    scratch: Scratch,
}

impl Folder {
    /// Streams a copy of the folder. If it fails before the first line, nothing was written: see [`Folder::snapshot`].
    pub fn copy(&self, out: &mut dyn Write) -> Result<(), FolderError> {
        self.snapshot()?.stream(out)
    }

    /// Takes a snapshot, which does not change any more. Only this part waits for other agents, and they wait for it.
    pub fn snapshot(&self) -> Result<Snapshot, FolderError> {
        let lock = self.lock()?;
        let scratch = self.make_scratch(&lock)?;
        let lines = BufWriter::new(scratch.folder().create(LINES_NAME, false).context("make the file", LINES_NAME)?);
        let mut walk = Walk { to: scratch.folder(), lines, paths: 0, number: 0 };
        walk.folder(&self.top, None, 0)?;
        walk.lines.flush().context("write", LINES_NAME)?;
        Ok(Snapshot { scratch })
    }
}

impl Snapshot {
    /// Streams it: [`CopyLine`]s, in the order of the paths' bytes, each file's followed by its bytes. If it fails, the stream is
    /// cut off, perhaps within the bytes of a file: no other line may follow.
    pub fn stream(&self, out: &mut dyn Write) -> Result<(), FolderError> {
        let folder = self.scratch.folder();
        let mut lines = match folder.find(LINES_NAME.as_ref()).context("open", LINES_NAME)? {
            PathKind::File { file, .. } => BufReader::new(file),
            _ => return Err(missing(LINES_NAME)),
        };
        let mut number = 0_usize;
        while let Some((_, line)) = read_line::<CopyLine>(&mut lines).context("read", LINES_NAME)? {
            if let CopyLine::File { path, size, .. } = &line {
                let mut file = match folder.find(number.to_string().as_ref()).context("open the copy of", path.as_str())? {
                    PathKind::File { file, size: found, .. } if found == *size => file,
                    _ => return Err(missing(path.as_str())),
                };
                write_line(out, &line).map_err(FolderError::Output)?;
                transfer(&mut file, out, *size, |_| ()).map_err(|error| match error {
                    TransferError::Read(error) => FolderError::Io { action: "read", path: path.to_string(), error },
                    TransferError::Write(error) => FolderError::Output(error),
                })?;
            } else {
                write_line(out, &line).map_err(FolderError::Output)?;
            }
            number += 1;
        }
        write_line(out, &CopyLine::End).and_then(|_| out.flush()).map_err(FolderError::Output)
    }
}

fn missing(path: &str) -> FolderError {
    FolderError::Io { action: "open the copy of", path: path.to_owned(), error: io::Error::from(io::ErrorKind::InvalidData) }
}

/// The walk through a folder that makes a snapshot of it.
struct Walk<'a> {
    to: &'a Directory,
    lines: BufWriter<File>,
    /// The files, links and folders so far.
    paths: usize,
    /// The lines so far.
    number: usize,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Directory, above: Option<&str>, depth: usize) -> Result<(), FolderError> {
        for (name, _) in folder.list().context("list the folder", above.unwrap_or_default())? {
            if above.is_none() && name == OWN_NAME {
                continue;
            }
            let shown = name.to_string_lossy();
            let shown = above.map_or_else(|| shown.to_string(), |above| format!("{above}/{shown}"));
            if name.to_str().is_none() {
                return Err(FolderError::NotUtf8 { path: shown });
            }
            let path = RelativePath::parse(&shown).map_err(|error| FolderError::Path { path: shown, error })?;
            self.paths += 1;
            if self.paths > MAX_FILES {
                return Err(FolderError::TooManyPaths);
            }
            let line = match folder.find(&name).context("read", path.as_str())? {
                PathKind::Folder if depth >= MAX_DEPTH => return Err(FolderError::TooDeep { path: path.into() }),
                PathKind::Folder => {
                    let opened = name.to_str().map(|name| folder.open(name)).transpose().context("open the folder", path.as_str())?;
                    if let Some(opened) = opened {
                        self.folder(&opened, Some(path.as_str()), depth + 1)?;
                    }
                    continue;
                }
                PathKind::File { executable, size, file } => {
                    self.file(folder, &name, file, size).map_err(|error| match error {
                        TransferError::Read(error) => FolderError::Io { action: "read", path: path.to_string(), error },
                        TransferError::Write(error) => FolderError::Io { action: "copy", path: path.to_string(), error },
                    })?;
                    CopyLine::File { path, executable, size }
                }
                PathKind::Link(target) if path.link_stays_below(&target) => CopyLine::Link { path, target },
                PathKind::Link(target) => return Err(FolderError::LinkLeaves { path: path.into(), target }),
                PathKind::Other(kind) => return Err(FolderError::Unsupported { path: path.into(), kind }),
                PathKind::Nothing | PathKind::Blocked(_) => return Err(missing(path.as_str())),
            };
            write_line(&mut self.lines, &line).context("write", LINES_NAME)?;
            self.number += 1;
        }
        Ok(())
    }

    /// Gives a file a second name in the snapshot. Its bytes are copied if the file system does not allow that.
    fn file(&self, folder: &Directory, name: &OsStr, mut file: File, size: u64) -> Result<(), TransferError> {
        let number = self.number.to_string();
        match folder.hard_link(name, self.to, &number) {
            Ok(()) => Ok(()),
            Err(Errno::PERM | Errno::ACCESS | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::INVAL) => {
                let mut copy = self.to.create(&number, false).map_err(TransferError::Write)?;
                transfer(&mut file, &mut copy, size, |_| ())
            }
            Err(error) => Err(TransferError::Write(error.into())),
        }
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
