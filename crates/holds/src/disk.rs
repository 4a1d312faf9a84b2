//! The file operations that a journal needs. They are few, so that a test can simulate a disk that is full, fails, or
//! stops at any step.
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

const LOCK_FILE: &str = "lock";

/// A folder of files.
pub trait Disk: Clone + Send + 'static {
    /// A file that is written from its start.
    type File: io::Write + Send;

    /// The content of a file. None: there is no such file.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Opens a file, or creates it. Its content and its space stay until they are overwritten or cut.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Truncates a file to `bytes`, and frees the rest of its space.
    fn cut(&self, file: &Self::File, bytes: u64) -> io::Result<()>;
    /// Allocates `bytes` of space for a file. Its content does not matter.
    fn reserve(&self, name: &str, bytes: u64) -> io::Result<()>;
    /// Renames a file, and replaces the file that had the name. Atomic.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, if it is there.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A folder that this process has locked: no two processes write one journal.
#[derive(Clone)]
pub struct Folder {
    path: PathBuf,
    _lock: Arc<File>,
}

impl Folder {
    /// Creates the folder if it does not exist, and locks it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path).with_context(|| format!("cannot create the folder of the journal, {}", path.display()))?;
        let lock = File::create(path.join(LOCK_FILE)).with_context(|| format!("cannot create the journal's lock in {}", path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("cannot lock the journal in {}: does another process use it?", path.display()))?;
        Ok(Self { path: path.to_owned(), _lock: Arc::new(lock) })
    }
}

impl Disk for Folder {
    type File = File;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.path.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).open(self.path.join(name))
    }

    fn cut(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn reserve(&self, name: &str, bytes: u64) -> io::Result<()> {
        Ok(fallocate(self.open(name)?, FallocateFlags::empty(), 0, bytes)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
