//! Whether somebody uses the program's terminal: the times that the kernel keeps for it, about 8 s exact.

use std::io;

use rustix::fs::fstat;

use crate::clock::BootTime;

/// The terminal, as it was last seen. Only that its times change counts: they are the wall clock's, which may jump.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    read: i64,
    written: i64,
}

/// What happened on it since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalUse {
    /// Somebody typed, and the program read it.
    pub typed: Option<BootTime>,
    /// The program wrote.
    pub written: Option<BootTime>,
}

impl Terminal {
    /// The terminal that is our standard input.
    pub fn open() -> io::Result<Self> {
        let stat = fstat(io::stdin())?;
        Ok(Self { read: stat.st_atime, written: stat.st_mtime })
    }

    /// What happened on it since the last look.
    pub fn look(&mut self, now: BootTime) -> TerminalUse {
        let Ok(seen) = Self::open() else { return TerminalUse::default() };
        let used = TerminalUse { typed: (seen.read != self.read).then_some(now), written: (seen.written != self.written).then_some(now) };
        *self = seen;
        used
    }
}
