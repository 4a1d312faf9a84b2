//! The timed shells: their folders, and how a shell is started that is timed already.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The folder of the timed shells, beside our binary.
pub const SHELLS_FOLDER: &str = "shells";
/// The folder for an image that has no bash.
pub const SH_ONLY_FOLDER: &str = "shells/only-sh";
/// The names of the timed shells.
pub const TIMED_SHELLS: [&str; 2] = ["sh", "bash"];
/// The variable in the environment of a timed command. Shells within it need no other limit.
pub const TIMED_VARIABLE: &str = "SPILLWAY_TIMED";
/// The variable with the pid of the process that times a shell. Only that shell has it, and no process that it starts.
pub const TIMED_BY_VARIABLE: &str = "SPILLWAY_TIMED_BY";

/// A shell that is killed when we are, because a caller that kills a shell expects that it ends. It is started as our own binary,
/// which calls [`end_with_timer`] and becomes the real shell: a process can set its parent-death signal only for itself.
pub fn timed_shell_command(shell: &str, arguments: &[OsString]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(shell).args(arguments).env(TIMED_BY_VARIABLE, std::process::id().to_string());
    command
}

/// If a process that times us started us, asks the kernel to kill us when it ends.
pub fn end_with_timer() -> io::Result<()> {
    let Some(timer) = env::var_os(TIMED_BY_VARIABLE) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // That process may have ended before this call.
    let there = getppid().is_some_and(|pid| timer.to_str() == Some(pid.as_raw_nonzero().to_string().as_str()));
    if there { Ok(()) } else { Err(io::Error::other("the process that times this shell has ended")) }
}

/// `PATH` without the timed shells; `None` if it is not set.
pub fn plain_path() -> Option<OsString> {
    let own = env::current_exe().ok()?;
    let bin = own.parent()?;
    let ours = [SHELLS_FOLDER, SH_ONLY_FOLDER].map(|folder| bin.join(folder));
    let path = env::var_os("PATH")?;
    env::join_paths(env::split_paths(&path).filter(|folder| !ours.contains(folder))).ok()
}
