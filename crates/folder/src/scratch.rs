//! Private work folders, each with a lock that its owner holds while it lives.
//!
//! It must not remove a work folder whose owner lives. Work folders are made and looked at only with the main lock held: so no
//! process sees one whose owner has not locked it yet.

use std::fs::File;
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::beneath::Directory;
use crate::error::{Context as _, FolderError};
use crate::lock::{MainLock, try_lock};

/// The name of the lock in a work folder.
const LOCK_NAME: &str = "lock";

/// A work folder. It is removed when it is dropped.
pub(crate) struct Scratch {
    /// The folder of all work folders.
    work: Directory,
    name: String,
    folder: Directory,
    /// None: it is released.
    lock: Option<File>,
    /// Whether it has become something else, which is kept.
    is_moved: bool,
}

impl Scratch {
    /// Makes a work folder.
    pub fn make(work: &Directory, _lock: &MainLock) -> Result<Self, FolderError> {
        let name = random_name()?;
        let folder = work.open_or_make_shared(&name).context("make the work folder", &name)?;
        let work = work.open("").context("open the work folders of", "")?;
        let mut scratch = Self { work, name, folder, lock: None, is_moved: false };
        let lock = scratch.folder.open_or_make_lock(LOCK_NAME).context("make the lock of the work folder", &scratch.name)?;
        if !try_lock(&lock).context("lock the work folder", &scratch.name)? {
            return Err(FolderError::Locked { seconds: 0 });
        }
        scratch.lock = Some(lock);
        Ok(scratch)
    }

    /// The folder.
    pub fn folder(&self) -> &Directory {
        &self.folder
    }

    /// Its name among the work folders.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records that it is no work folder any more, or is one again.
    pub fn set_moved(&mut self, is_moved: bool) {
        self.is_moved = is_moved;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The lock goes first: NFS keeps a removed file that is open, and so its folder.
        self.lock = None;
        if !self.is_moved {
            // Best effort: the next user of the folder removes what is left.
            let _ = self.work.remove_tree(self.name.as_ref(), false);
        }
    }
}

/// A name that no other work folder has.
pub(crate) fn random_name() -> Result<String, FolderError> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty()).context("draw a name for", "a work folder")?;
    Ok(spillway_wire::text::hex(&bytes))
}

/// Removes each work folder whose owner has died.
pub(crate) fn remove_abandoned(work: &Directory, _lock: &MainLock) -> Result<(), FolderError> {
    for (name, _) in work.list().context("list the work folders of", "")? {
        // Nothing else makes names here that are not UTF-8.
        let Some(name) = name.to_str() else { continue };
        let is_owned = match work.open(name).and_then(|folder| folder.open_lock(LOCK_NAME)) {
            Ok(lock) => !try_lock(&lock).context("take the lock of the work folder", name)?,
            // Its owner died before the lock was made, or it is being removed. Any other error says nothing about the owner.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if !is_owned {
            // Best effort: a work folder that stays only needs space.
            let _ = work.remove_tree(name.as_ref(), false);
        }
    }
    Ok(())
}
