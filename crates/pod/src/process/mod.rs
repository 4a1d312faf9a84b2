//! Running one command with all that it starts: its time limit, its output, its end.
//!
//! What always holds: the call returns when the command's own process has ended, not when its pipes close. When the time is over,
//! every process that it started dies, in any session or group, also if it is stopped or keeps forking. Only processes below us
//! are signalled. The kept output is bounded.
//!
//! This module neither asks whether the command may run, nor reports its end.
//!
//! | file | for |
//! |---|---|
//! | [`run`](mod@run) | one command, from its start to its result |
//! | [`tree`] | the processes below us: finding, signalling, reaping |
//! | [`capture`] | the beginning and the end of an output |
//! | [`kind`] | the kind of a process, from its command line and its environment |
//! | [`shells`] | the timed shells: their folders, and how one is started |

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

pub mod capture;
pub mod kind;
pub mod run;
pub mod shells;
pub mod tree;

pub use run::{Job, KeptBytes, ProcessEnd, RunResult, RunTarget, run};

/// The exit code of a process, as a shell reports it: 128 plus the number of the signal that ended it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// The exit code for a command that cannot be started, as a shell has it.
pub fn not_started_code(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_that_of_a_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(not_started_code(&io::ErrorKind::NotFound.into()), 127);
        assert_eq!(not_started_code(&io::ErrorKind::PermissionDenied.into()), 126);
    }
}
