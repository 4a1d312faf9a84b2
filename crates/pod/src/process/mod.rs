//! Running one command with all that it starts: its time, its output, its end.
//!
//! What always holds: the call returns when the command's own process has ended, not when its pipes close; when its time is
//! over everything dies that it started, whatever session or group that is in, whether it was stopped or forks on; nothing
//! that is not below us is ever signalled; what is kept of the output has a bound.
//!
//! It asks nobody whether the command may run, and tells nobody how it ended.
//!
//! | file | for |
//! |---|---|
//! | [`run`](mod@run) | one command, from its start to its result |
//! | [`tree`] | what is below us: finding, signalling, reaping |
//! | [`capture`] | the beginning and the end of an output |
//! | [`kind`] | what a process is, by its words and its environment |
//! | [`shells`] | the timed shells: where they are, and how one is started |

pub mod capture;
pub mod kind;
pub mod run;
pub mod shells;
pub mod tree;

pub use run::{Job, ProcessEnd, RunResult, RunTarget, run};
