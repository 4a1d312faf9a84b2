//! Bytes from one place to another, with the side that failed. It knows no files.

use std::io::{self, Read, Write};

use crate::record::copy_bytes;

/// The side of a transfer that failed.
#[derive(Debug)]
pub(crate) enum TransferError {
    /// The bytes could not be read, or are too few.
    Read(io::Error),
    /// The bytes could not be written.
    Write(io::Error),
}

/// Copies exactly `size` bytes, and gives each piece to `seen`.
pub(crate) fn transfer(from: &mut dyn Read, to: &mut dyn Write, size: u64, seen: impl FnMut(&[u8])) -> Result<(), TransferError> {
    let mut source = Source { from, failed: false };
    copy_bytes(&mut source, to, size, seen).map_err(
        |error| {
            if source.failed { TransferError::Read(error) } else { TransferError::Write(error) }
        },
    )
}

/// A reader that remembers that it failed or ended.
struct Source<'a> {
    from: &'a mut dyn Read,
    failed: bool,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.from.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => {
                    self.failed = !matches!(result, Ok(count) if count > 0);
                    return result;
                }
            }
        }
    }
}
