//! What the supervisor is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use super::home::Home;

/// What to run, and where everything is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program.
    pub command: Vec<OsString>,
    /// Variables of our own environment that the program gets.
    pub pass: Vec<String>,
    /// The program has our terminal.
    pub tty: bool,
    /// Processes and threads that the program and all that it starts may have at once, in a user namespace of their own.
    pub max_processes: u64,
    /// The program's data folder.
    pub data: PathBuf,
    /// The program's home, and files that are copied before anything is started.
    pub home: Home,
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// Outside the cluster: who started us. What we start has all of our environment then.
    pub parent: Option<i32>,
}
