//! Processes that resolve names by a hosts file of their own. The tests and the benchmarks share this file.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The command of a program. With a hosts file it has a mount namespace of its own, and the same process.
pub fn command(program: impl AsRef<OsStr>, hosts: Option<&Path>) -> Command {
    let Some(hosts) = hosts else { return Command::new(program) };
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(hosts).arg(program.as_ref());
    command
}
