//! The options of the supervisor.

use std::ffi::OsString;
use std::path::PathBuf;

use super::home::Home;

/// The command, and the paths that the supervisor uses.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program.
    pub command: Vec<OsString>,
    /// Variables of the supervisor's environment that the program gets.
    pub pass: Vec<String>,
    /// The program gets our terminal.
    pub tty: bool,
    /// Processes and threads that the program may have at once, with all that it starts. Only in a pod with its own user namespace.
    pub max_processes: u64,
    /// The program's data folder.
    pub data: PathBuf,
    /// The program's home, and the files that are copied before the first program starts.
    pub home: Home,
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// Outside the cluster: the pid of the process that started us. The program then gets our whole environment.
    pub parent: Option<i32>,
}
