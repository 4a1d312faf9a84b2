//! Whether the program's terminal is used, from the times that the kernel keeps for it. They are exact to about 8 s.

use std::io;

use rustix::fs::fstat;

use crate::clock::BootTime;

/// The times of the terminal at the last check. Only their change counts: they follow the wall clock, which may jump.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    read: i64,
    written: i64,
}

/// The use of the terminal since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalUse {
    /// A person typed, and the program read the input.
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

    /// The use of the terminal since the last check.
    pub fn look(&mut self, now: BootTime) -> TerminalUse {
        let Ok(seen) = Self::open() else { return TerminalUse::default() };
        let used = TerminalUse { typed: (seen.read != self.read).then_some(now), written: (seen.written != self.written).then_some(now) };
        *self = seen;
        used
    }
}
