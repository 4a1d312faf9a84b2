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

pub mod capture;
pub mod kind;
pub mod run;
pub mod shells;
pub mod tree;

pub use run::{Job, ProcessEnd, RunResult, RunTarget, run};
