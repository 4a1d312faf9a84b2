//! A folder of a volume, with Spillway's own files in it: the parts that copies and commits share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::beneath::Directory;
use crate::error::{Context as _, FolderError};
use crate::lock::{LOCK_TIMEOUT, MainLock};
use crate::path::{OWN_NAME, RelativePath};
use crate::scratch::{Scratch, remove_abandoned};
use crate::steps::{NoSteps, Steps};

/// The name of the folder of all work folders, in Spillway's own.
const WORK_NAME: &str = "work";

/// A folder of a volume, on which several agents work.
pub struct Folder {
    pub(crate) top: Directory,
    /// Spillway's own files.
    pub(crate) own: Directory,
    /// The work folders.
    pub(crate) work: Directory,
    lock_timeout: Duration,
}

impl Folder {
    /// Opens a folder of a volume, and makes the folders that are missing. The path of the volume is trusted. `folder` is a path
    /// below it, or empty for the volume itself.
    pub fn open(volume: &Path, folder: &str) -> Result<Self, FolderError> {
        Self::open_with(volume, folder, Arc::new(NoSteps))
    }

    pub(crate) fn open_with(volume: &Path, folder: &str, steps: Arc<dyn Steps>) -> Result<Self, FolderError> {
        if !folder.is_empty() {
            RelativePath::parse(folder).map_err(|error| FolderError::Path { path: folder.to_owned(), error })?;
        }
        let volume = Directory::trusted(volume, steps).context("open the volume", &volume.to_string_lossy())?;
        let top = volume.open_or_make(folder).context("open the folder", folder)?;
        let own = top.open_or_make_shared(OWN_NAME).context("open the folder", OWN_NAME)?;
        let work = own.open_or_make_shared(WORK_NAME).context("open the folder of work folders", WORK_NAME)?;
        Ok(Self { top, own, work, lock_timeout: LOCK_TIMEOUT })
    }

    /// Waits for other agents for this long, and not for [`LOCK_TIMEOUT`].
    #[must_use]
    pub fn with_lock_timeout(self, lock_timeout: Duration) -> Self {
        Self { lock_timeout, ..self }
    }

    /// Takes the main lock, removes the work folders of dead processes, and completes a commit that was interrupted.
    pub(crate) fn lock(&self) -> Result<MainLock, FolderError> {
        let lock = MainLock::take(&self.own, self.lock_timeout)?;
        // First: a volume may be full of work folders, and a commit may need room to be completed.
        remove_abandoned(&self.work, &lock)?;
        if self.recover(&lock)? {
            remove_abandoned(&self.work, &lock)?;
        }
        Ok(lock)
    }

    /// Makes a work folder.
    pub(crate) fn make_scratch(&self, lock: &MainLock) -> Result<Scratch, FolderError> {
        Scratch::make(&self.work, lock)
    }
}
