//! The steps of changes on the file system. They do nothing in production; tests stop the program at any of them.

use std::os::fd::BorrowedFd;

use rustix::io::Result;

/// Is told about each step before it is made.
pub(crate) trait Steps: Send + Sync {
    /// Called before each system call that changes something. An error stops the program there.
    fn reached(&self, _step: &'static str) -> Result<()> {
        Ok(())
    }

    /// Makes a file or folder durable.
    fn sync(&self, file: BorrowedFd<'_>) -> Result<()> {
        rustix::fs::fsync(file)
    }
}

/// The steps in production.
pub(crate) struct NoSteps;

impl Steps for NoSteps {}
