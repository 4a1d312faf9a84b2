//! The commit of changes in a folder: all of them or none, also if the process is killed or the power fails at any step.
//!
//! Everything that the commit needs is durable in a work folder before. The rename of that work folder to `commit` is the commit
//! point. From then on the commit is completed, by this process or by the next one that takes the main lock. It must not change
//! anything of the folder before all changes are checked, nor anything that is not in its changes.

use std::collections::BTreeSet;
use std::io::{self, BufReader};

use rustix::io::Errno;

use crate::beneath::{Directory, PathKind, is_blocked};
use crate::check::{State, check, check_access, check_size};
use crate::error::{Context as _, FolderError};
use crate::folder::Folder;
use crate::lock::MainLock;
use crate::path::RelativePath;
use crate::receive::{CHANGES_NAME, Staged, check_change};
use crate::record::{Change, Content, read_line};
use crate::scratch::random_name;

/// The name of the work folder of the commit under way, in Spillway's own folder.
const JOURNAL_NAME: &str = "commit";
/// The most paths that a conflict names.
const MAX_CONFLICT_PATHS: usize = 10;

/// The end of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The folder has all changes, and they are durable.
    Committed,
    /// Nothing was changed: these paths are not as the work on them began.
    Conflict {
        /// The first 10 paths.
        paths: Vec<RelativePath>,
        /// How many paths there are.
        total: usize,
    },
    /// Nothing was changed: the changes were withdrawn before the commit point.
    Withdrawn,
}

impl Folder {
    /// Makes changes in the folder. If all were made before, it is committed again, and nothing is changed. After an error, the
    /// changes may have been made, or be made later: the same changes can be received and committed again. `may_begin` is asked right
    /// before the commit point, because the wait for the lock may have been long.
    pub fn commit(&self, mut staged: Staged, may_begin: &dyn Fn() -> bool) -> Result<Outcome, FolderError> {
        // Before `staged` is removed, which may take long, the lock is released: parameters are dropped last.
        let lock = self.lock()?;
        let states = check(&self.top, &staged.changes)?;
        let conflicts = || staged.changes.iter().zip(&states).filter(|(_, state)| **state == State::Conflict);
        let total = conflicts().count();
        if total > 0 {
            let paths = conflicts().take(MAX_CONFLICT_PATHS).map(|(change, _)| change.path.clone()).collect();
            return Ok(Outcome::Conflict { paths, total });
        }
        if states.iter().all(|state| *state == State::Done) {
            return Ok(Outcome::Committed);
        }
        check_size(&self.top, &staged.changes)?;
        check_access(&self.top, &staged.changes, &states)?;
        // The process that made Spillway's own folder may have been killed before it was durable.
        self.top.sync().context("make durable the folder", "")?;
        self.sync_own()?;
        if !may_begin() {
            return Ok(Outcome::Withdrawn);
        }
        // Also if the rename fails: an error of NFS does not say whether it was made.
        staged.scratch.set_moved(true);
        let name = staged.scratch.name().to_owned();
        self.work.rename(&name, &self.own, JOURNAL_NAME, "begin the commit").context("begin the commit in", JOURNAL_NAME)?;
        self.complete(staged.scratch.folder(), &staged.changes, &states, &name, &lock)?;
        staged.scratch.set_moved(false);
        Ok(Outcome::Committed)
    }

    /// Completes a commit that was interrupted; returns whether there was one. It leaves a work folder.
    pub(crate) fn recover(&self, lock: &MainLock) -> Result<bool, FolderError> {
        let journal = match self.own.open(JOURNAL_NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            journal => journal.context("open the interrupted commit", JOURNAL_NAME)?,
        };
        let changes = read_changes(&journal)?;
        let states = check(&self.top, &changes)?;
        for (number, (change, state)) in changes.iter().zip(&states).enumerate() {
            let path = change.path.to_string();
            match (state, &change.new) {
                (State::Conflict, _) => {
                    let reason = "it is neither as it was before the commit, nor as the commit makes it";
                    return Err(FolderError::Stuck { path, reason });
                }
                (State::ToDo, Some(Content::File { .. })) => {
                    let found = journal.find(number.to_string().as_ref()).context("look at the new content of", &path)?;
                    if !matches!(found, PathKind::File { .. }) {
                        return Err(FolderError::Stuck { path, reason: "its new content is missing" });
                    }
                }
                _ => {}
            }
        }
        self.complete(&journal, &changes, &states, &random_name()?, lock).map(|()| true)
    }

    /// Makes the changes that are still to do, and ends the commit: its work folder gets this name.
    fn complete(&self, journal: &Directory, changes: &[Change], states: &[State], name: &str, _lock: &MainLock) -> Result<(), FolderError> {
        self.sync_own()?;
        let to_do = || changes.iter().zip(states).enumerate().filter(|(_, (_, state))| **state == State::ToDo);
        // The deepest first: the order of paths names a folder before the paths in it.
        for (change, state) in changes.iter().zip(states).rev().filter(|(change, _)| change.new.is_none()) {
            if *state == State::ToDo {
                self.remove(&change.path).context("remove", change.path.as_str())?;
            }
            // Also after a removal that was made before: the process may have been killed between the two.
            self.remove_empty_folders(&change.path)?;
        }
        for (number, (change, _)) in to_do() {
            if let Some(new) = &change.new {
                self.put(journal, number, &change.path, new).context("put the new content in", change.path.as_str())?;
            }
        }
        // Also those of changes that are done: the process that made them may have been killed before they were durable.
        let folders: BTreeSet<&str> = changes.iter().flat_map(|change| change.path.folders()).chain([""]).collect();
        for path in folders {
            match self.top.open(path) {
                // It was removed, or is a file now. The folder above has that record.
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_blocked(&error) => {}
                folder => folder.and_then(|folder| folder.sync()).context("make durable the folder", path)?,
            }
        }
        self.own.rename(JOURNAL_NAME, &self.work, name, "end the commit").context("end the commit in", JOURNAL_NAME)?;
        // Before the lock is released: the changes of a later commit must not meet this one again.
        self.sync_own()
    }

    fn sync_own(&self) -> Result<(), FolderError> {
        self.own.sync().and_then(|()| self.work.sync()).context("make durable", "the state of the commit")
    }

    fn remove(&self, path: &RelativePath) -> io::Result<()> {
        let (parent, name) = path.split();
        self.top.open(parent.unwrap_or_default())?.remove_file(name.as_ref())
    }

    /// Removes the folders above a path that are empty.
    fn remove_empty_folders(&self, path: &RelativePath) -> Result<(), FolderError> {
        for folder in path.folders() {
            let (parent, name) = folder.rsplit_once('/').unwrap_or(("", folder));
            let parent = match self.top.open(parent) {
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_blocked(&error) => continue,
                parent => parent.context("open the folder", parent_of(folder))?,
            };
            match parent.remove_folder(name.as_ref()) {
                // It is a file now.
                Ok(()) | Err(Errno::NOTDIR) => {}
                // It is not empty, or it is kept: no copy has empty folders.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY | Errno::ACCESS | Errno::PERM) => break,
                Err(error) => return Err(error).context("remove the folder", folder),
            }
        }
        Ok(())
    }

    /// Puts the new content of change `number` in its place.
    fn put(&self, journal: &Directory, number: usize, path: &RelativePath, new: &Content) -> io::Result<()> {
        let (parent, name) = path.split();
        let parent = self.top.open_or_make(parent.unwrap_or_default())?;
        if matches!(parent.find(name.as_ref())?, PathKind::Folder) {
            parent.remove_tree(name.as_ref(), true)?;
        }
        let staged = match new {
            Content::File { .. } => number.to_string(),
            Content::Link { target } => {
                let staged = format!("link-{number}");
                journal.remove_file(staged.as_ref())?;
                journal.make_link(target, &staged)?;
                staged
            }
        };
        journal.rename(&staged, &parent, name, "put a file in its place")
    }
}

fn parent_of(folder: &str) -> &str {
    folder.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The changes of an interrupted commit.
fn read_changes(journal: &Directory) -> Result<Vec<Change>, FolderError> {
    let stuck = || FolderError::Stuck { path: format!(".spillway/{JOURNAL_NAME}"), reason: "the record of its changes is damaged" };
    let PathKind::File { file, .. } = journal.find(CHANGES_NAME.as_ref()).context("open", CHANGES_NAME)? else { return Err(stuck()) };
    let (mut file, mut changes): (_, Vec<Change>) = (BufReader::new(file), Vec::new());
    loop {
        match read_line::<Change>(&mut file) {
            Ok(Some((_, change))) if check_change(&change, changes.last(), 0).is_ok() => changes.push(change),
            Ok(Some(_)) => return Err(stuck()),
            Ok(None) => return Ok(changes),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(stuck()),
            Err(error) => return Err(error).context("read", CHANGES_NAME),
        }
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
