//! The main lock of a folder, which one process at a time holds on all nodes. A process that dies releases it.
//!
//! It must not be held while anything is waited for that another party decides: a reader, or a sender.

use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::beneath::Directory;
use crate::error::{Context as _, FolderError};

/// How long the main lock is waited for.
pub const LOCK_TIMEOUT: Duration = Duration::from_mins(10);
/// The name of its file.
const LOCK_NAME: &str = "lock";
/// The first pause between two tries, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The main lock, until it is dropped.
pub(crate) struct MainLock {
    _file: File,
}

impl MainLock {
    /// Takes the lock of the folder with these own files.
    pub fn take(own: &Directory, timeout: Duration) -> Result<Self, FolderError> {
        let file = own.open_or_make_lock(LOCK_NAME).context("open the lock", LOCK_NAME)?;
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        while !try_lock(&file).context("take the lock", LOCK_NAME)? {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(FolderError::Locked { seconds: timeout.as_secs() });
            }
            sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(Self { _file: file })
    }
}

/// Takes the lock of a file, if it is free.
pub(crate) fn try_lock(file: &File) -> Result<bool, Errno> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
