//! Whether changes can be made in a folder as it is now. It must not change anything.

use std::collections::HashSet;
use std::io;

use crate::beneath::{Directory, PathKind, hash, is_blocked};
use crate::error::{Context as _, FolderError};
use crate::limits::{MAX_DEPTH, MAX_FILES, MAX_PATHS_BYTES};
use crate::path::OWN_NAME;
use crate::record::{Change, Content};

/// The state of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The path is as the change makes it.
    Done,
    /// The path is as the work on it began.
    ToDo,
    /// The path is neither, or something that the commit does not remove is in its way.
    Conflict,
}

/// The state of each change.
pub(crate) fn check(top: &Directory, changes: &[Change]) -> Result<Vec<State>, FolderError> {
    let removed = changes.iter().filter(|change| change.new.is_none()).map(|change| change.path.as_str()).collect();
    changes.iter().map(|change| state(top, change, &removed)).collect()
}

fn state(top: &Directory, change: &Change, removed: &HashSet<&str>) -> Result<State, FolderError> {
    let path = change.path.as_str();
    let content = match top.find_at(&change.path).context("look at", path)? {
        PathKind::Other(_) => return Ok(State::Conflict),
        PathKind::Blocked(file) if change.new.is_some() && !removed.contains(file.as_str()) => return Ok(State::Conflict),
        PathKind::Folder if change.new.is_some() && !all_is_removed(top, path, removed, MAX_DEPTH)? => return Ok(State::Conflict),
        // A folder is no content: a path that becomes none, and is a folder now, is as the change makes it.
        PathKind::Nothing | PathKind::Blocked(_) | PathKind::Folder => None,
        PathKind::Link(target) => Some(Content::Link { target }),
        PathKind::File { executable, size, file } => {
            if ![&change.old, &change.new].into_iter().any(|content| may_be(content.as_ref(), executable, size)) {
                return Ok(State::Conflict);
            }
            let (size, sha256) = hash(file).context("read", path)?;
            Some(Content::File { executable, size, sha256 })
        }
    };
    Ok(if content == change.new {
        State::Done
    } else if content == change.old {
        State::ToDo
    } else {
        State::Conflict
    })
}

/// Whether a file can have this content: if not, it need not be read.
fn may_be(content: Option<&Content>, executable: bool, size: u64) -> bool {
    matches!(content, Some(Content::File { executable: expected, size: bytes, .. }) if (*expected, *bytes) == (executable, size))
}

/// Refuses changes that make the folder too large to be copied.
pub(crate) fn check_size(top: &Directory, changes: &[Change]) -> Result<(), FolderError> {
    if !changes.iter().any(|change| change.old.is_none() && change.new.is_some()) {
        return Ok(());
    }
    let (mut paths, mut bytes) = (HashSet::new(), 0);
    collect_paths(top, "", MAX_DEPTH, &mut paths, &mut bytes)?;
    for change in changes {
        if change.new.is_none() {
            paths.remove(change.path.as_str());
        } else {
            paths.extend(change.path.folders().chain([change.path.as_str()]).map(str::to_owned));
        }
    }
    if paths.len() > MAX_FILES || bytes > MAX_PATHS_BYTES { Err(FolderError::TooManyPaths) } else { Ok(()) }
}

/// Refuses changes in folders that do not allow them: after the commit point, they would stop all use of the folder.
pub(crate) fn check_access(top: &Directory, changes: &[Change], states: &[State]) -> Result<(), FolderError> {
    let to_do = changes.iter().zip(states).filter(|(_, state)| **state == State::ToDo);
    let parents: HashSet<&str> = to_do.map(|(change, _)| change.path.split().0.unwrap_or_default()).collect();
    for parent in parents {
        let mut path = parent;
        loop {
            match top.open(path) {
                Ok(folder) => break folder.check_writable().context("change files in", path)?,
                // The folder is made, in the first one above it that is there.
                Err(error) if !path.is_empty() && (error.kind() == io::ErrorKind::NotFound || is_blocked(&error)) => {
                    path = path.rsplit_once('/').map_or("", |(above, _)| above);
                }
                Err(error) => return Err(error).context("open the folder", path),
            }
        }
    }
    Ok(())
}

/// All paths in a folder and their bytes, until there are too many.
fn collect_paths(top: &Directory, path: &str, depth: usize, paths: &mut HashSet<String>, bytes: &mut usize) -> Result<(), FolderError> {
    let folder = top.open(path).context("open the folder", path)?;
    for (name, is_folder) in folder.list().context("list the folder", path)? {
        let name = name.to_string_lossy();
        let below = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
        if below == OWN_NAME || paths.len() > MAX_FILES || *bytes > MAX_PATHS_BYTES {
            continue;
        }
        // A folder that is no UTF-8 or too deep cannot be copied, whatever the changes are.
        if is_folder && depth > 0 && !below.contains(char::REPLACEMENT_CHARACTER) {
            collect_paths(top, &below, depth - 1, paths, bytes)?;
        }
        *bytes += below.len();
        paths.insert(below);
    }
    Ok(())
}

/// Whether a folder has nothing but folders, and files and links that are removed.
fn all_is_removed(top: &Directory, path: &str, removed: &HashSet<&str>, depth: usize) -> Result<bool, FolderError> {
    let folder = top.open(path).context("open the folder", path)?;
    folder.check_writable().context("change files in", path)?;
    for (name, is_folder) in folder.list().context("list the folder", path)? {
        let Some(name) = name.to_str() else { return Ok(false) };
        let below = format!("{path}/{name}");
        let is_removed =
            if is_folder { depth > 0 && all_is_removed(top, &below, removed, depth - 1)? } else { removed.contains(below.as_str()) };
        if !is_removed {
            return Ok(false);
        }
    }
    Ok(true)
}
