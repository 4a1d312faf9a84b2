//! The changes of an item, from an untrusted stream into a work folder, where they wait for their commit.
//!
//! The main lock must not be held while the stream is read: a sender may stop for ever. Nothing of the folder is changed here.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufWriter, Write as _};

use sha2::{Digest as _, Sha256};

use crate::beneath::Directory;
use crate::error::{Context as _, FolderError};
use crate::folder::Folder;
use crate::limits::{MAX_CHANGES, MAX_DEPTH, MAX_LINES_BYTES};
use crate::path::RelativePath;
use crate::record::{Change, Content, read_line};
use crate::scratch::Scratch;
use crate::transfer::{TransferError, transfer};

/// The lines of the changes, in the work folder. The content of the file of line `n` is in the file `n`.
pub(crate) const CHANGES_NAME: &str = "changes";

/// Changes that wait for their commit. They are removed when they are dropped.
pub struct Staged {
    pub(crate) scratch: Scratch,
    pub(crate) changes: Vec<Change>,
}

impl Staged {
    /// The changes, in the order of their paths.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }
}

impl Folder {
    /// Reads changes until the stream ends: a [`Change`] as a line, in the order of the paths, each followed by the bytes of its
    /// new file. `expected_digest` is the SHA-256 of all lines, each with its end, as hexadecimal digits. All files together have
    /// at most `max_bytes` bytes.
    pub fn receive(&self, input: &mut dyn BufRead, expected_digest: &str, max_bytes: u64) -> Result<Staged, FolderError> {
        let scratch = self.make_scratch(&self.lock()?)?;
        let folder = scratch.folder();
        let max_name_bytes = self.top.max_name_bytes().context("read the limits of", "")?;
        let mut lines = BufWriter::new(folder.create(CHANGES_NAME, false).context("make the file", CHANGES_NAME)?);
        let mut changes: Vec<Change> = Vec::new();
        let (mut digest, mut line_bytes, mut bytes) = (Sha256::new(), 0, 0_u64);
        while let Some((mut line, change)) = read_line::<Change>(input).map_err(FolderError::Input)? {
            line.push(b'\n');
            line_bytes += line.len();
            if changes.len() >= MAX_CHANGES || line_bytes > MAX_LINES_BYTES {
                return Err(FolderError::TooManyChanges);
            }
            check_change(&change, changes.last(), max_name_bytes)?;
            digest.update(&line);
            lines.write_all(&line).context("write", CHANGES_NAME)?;
            let sum = bytes.checked_add(change.following_bytes()).filter(|sum| *sum <= max_bytes);
            bytes = sum.ok_or(FolderError::TooLarge { limit: max_bytes })?;
            if let Some(Content::File { executable, size, sha256 }) = &change.new {
                let file = folder.create(&changes.len().to_string(), *executable).context("make a work file for", change.path.as_str())?;
                if !folder.keeps_executable(&file, *executable).context("make a work file for", change.path.as_str())? {
                    return Err(FolderError::NoExecutableBit);
                }
                receive_file(input, folder, file, *size, sha256, &change.path)?;
            }
            changes.push(change);
        }
        if spillway_wire::text::hex(&digest.finalize()) != expected_digest {
            return Err(FolderError::WrongDigest);
        }
        check_structure(&changes)?;
        let lines = lines.into_inner().map_err(std::io::IntoInnerError::into_error).context("write", CHANGES_NAME)?;
        folder.sync_file(&lines).context("make durable", CHANGES_NAME)?;
        folder.sync().context("make the work folder durable", scratch.name())?;
        Ok(Staged { scratch, changes })
    }
}

/// Reads the content of a file, which must be the content that its line names.
fn receive_file(
    input: &mut dyn BufRead,
    folder: &Directory,
    mut file: File,
    size: u64,
    sha256: &str,
    path: &RelativePath,
) -> Result<(), FolderError> {
    let mut hash = Sha256::new();
    let mut input = input;
    transfer(&mut input, &mut file, size, |piece| hash.update(piece)).map_err(|error| match error {
        TransferError::Read(error) => FolderError::Input(error),
        TransferError::Write(error) => FolderError::Io { action: "write the new content of", path: path.to_string(), error },
    })?;
    if spillway_wire::text::hex(&hash.finalize()) != sha256 {
        return Err(FolderError::WrongContent { path: path.clone() });
    }
    folder.sync_file(&file).context("make durable the new content of", path.as_str())
}

/// Refuses a change that is not allowed by itself, or not after the change before it.
pub(crate) fn check_change(change: &Change, before: Option<&Change>, max_name_bytes: usize) -> Result<(), FolderError> {
    let path = &change.path;
    let reason = if before.is_some_and(|before| before.path >= *path) {
        "it is not in the order of the paths"
    } else if path.folders().count() > MAX_DEPTH {
        "it is below too many folders"
    } else if max_name_bytes > 0 && path.as_str().split('/').any(|name| name.len() > max_name_bytes) {
        "its file system does not allow names of this length"
    } else if matches!(&change.new, Some(Content::Link { target }) if !path.link_stays_below(target)) {
        "its symbolic link points outside the folder"
    } else {
        return Ok(());
    };
    Err(FolderError::InvalidChange { path: path.clone(), reason })
}

/// Refuses changes that make a path both a file or link, and a folder.
fn check_structure(changes: &[Change]) -> Result<(), FolderError> {
    let made = || changes.iter().filter(|change| change.new.is_some()).map(|change| &change.path);
    let files: HashSet<&str> = made().map(RelativePath::as_str).collect();
    match made().find(|path| path.folders().any(|folder| files.contains(folder))) {
        Some(path) => Err(FolderError::InvalidChange { path: path.clone(), reason: "a folder above it becomes a file" }),
        None => Ok(()),
    }
}
