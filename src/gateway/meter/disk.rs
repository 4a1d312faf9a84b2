//! What a journal asks of its folder: little enough that a test can play a disk that is full, breaks, or stops at any step.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

const LOCK_FILE: &str = "lock";

/// A folder of files.
pub trait Disk: Clone + Send + 'static {
    /// A file that is written from its start on.
    type File: io::Write + Send;

    /// All of a file; none: there is no such file.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Opens a file, which need not exist. What is in it stays, and so does its room, until it is written over or cut.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Leaves so many bytes of a file, and gives the room of the others back.
    fn cut(&self, file: &Self::File, bytes: u64) -> io::Result<()>;
    /// Makes a file have so many bytes of room, whatever is in it.
    fn reserve(&self, name: &str, bytes: u64) -> io::Result<()>;
    /// Gives a file the name of another one, which is gone then. Happens whole or not at all.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, if it is there.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A folder, which is ours while we live: no two processes write one journal.
#[derive(Clone)]
pub struct Folder {
    path: PathBuf,
    _lock: Arc<File>,
}

impl Folder {
    /// Makes it, if need be, and locks it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path).with_context(|| format!("making the folder of the journal, {}", path.display()))?;
        let lock = File::create(path.join(LOCK_FILE)).with_context(|| format!("locking the journal in {}", path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another process has the journal in {}", path.display()))?;
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
