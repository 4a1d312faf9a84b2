//! The timed shells: where they are, and how one is started that is timed already.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The folder, beside our binary.
pub const SHELLS_FOLDER: &str = "shells";
/// The same for an image that has no bash.
pub const SH_ONLY_FOLDER: &str = "shells/only-sh";
/// The shells.
pub const TIMED_SHELLS: [&str; 2] = ["sh", "bash"];
/// In the environment of what is timed: what runs within needs no other limit.
pub const TIMED_VARIABLE: &str = "SPILLWAY_TIMED";
/// In the environment of the shell that is timed, and of nothing that it starts: the process that times it.
pub const TIMED_BY_VARIABLE: &str = "SPILLWAY_TIMED_BY";

/// A shell that is killed when we are: whoever kills a shell expects that it is gone. It is ourselves once more, who becomes the real one
/// ([`end_with_timer`]): the kernel takes this wish from the process that has it alone.
pub fn below_timer(shell: &str, arguments: &[OsString]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(shell).args(arguments).env(TIMED_BY_VARIABLE, std::process::id().to_string());
    command
}

/// If a timer started us: asks the kernel to kill us when that ends.
pub fn end_with_timer() -> io::Result<()> {
    let Some(timer) = env::var_os(TIMED_BY_VARIABLE) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before we asked.
    let there = getppid().is_some_and(|pid| timer.to_str() == Some(pid.as_raw_nonzero().to_string().as_str()));
    if there { Ok(()) } else { Err(io::Error::other("the process that times this shell has ended")) }
}

/// `PATH` without our shells; none: it is not set.
pub fn plain_path() -> Option<OsString> {
    let own = env::current_exe().ok()?;
    let bin = own.parent()?;
    let ours = [SHELLS_FOLDER, SH_ONLY_FOLDER].map(|folder| bin.join(folder));
    let path = env::var_os("PATH")?;
    env::join_paths(env::split_paths(&path).filter(|folder| !ours.contains(folder))).ok()
}
