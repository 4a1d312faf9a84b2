//! The timed shells, `sh` and `bash`: links to our binary, in the first folder of the program's `PATH`.
//!
//! A shell with a command (`bash -lc "make test"`) asks the sidecar. If the sidecar says so, it runs with a time limit, as
//! `spillway exec --keep` does. Every other shell becomes the real shell at once: a shell for a person, one that runs a script,
//! the agent's own program, and a shell within a timed command. If the sidecar does not answer, the shell also becomes the real
//! one, and the watch-dog sees it. A shell that is started by its path is seen by the watch-dog only.
//!
//! A caller ends the shell as any other: a signal that ends us also ends the real shell, SIGKILL too.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, getppid};

use super::exec;
use super::output::print_to_stderr;
use super::place::SidecarPaths;
use crate::process::kind;
use crate::process::shells::{self, TIMED_BY_VARIABLE, TIMED_SHELLS, TIMED_VARIABLE};

/// The shell as which we were called, if it is one.
pub fn called_shell(name: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(name?).file_name()?.as_bytes();
    // A login shell has a dash before its name.
    let name = name.strip_prefix(b"-").unwrap_or(name);
    TIMED_SHELLS.into_iter().find(|shell| shell.as_bytes() == name)
}

/// Runs the shell that was called by `name`; returns the exit code, unless the real shell replaces this process.
pub fn run(shell: &'static str, name: &OsStr, arguments: Vec<OsString>) -> u8 {
    if let Err(error) = shells::end_with_timer() {
        print_to_stderr(&format!("error: {shell} was not run: {error}"));
        return 126;
    }
    let asks = getppid() != Some(Pid::INIT)
        && env::var_os(TIMED_VARIABLE).is_none()
        && kind::runs_command(arguments.iter().map(|argument| argument.as_bytes()))
        && !io::stdin().is_terminal();
    if asks && let Some(code) = exec::run_timed_shell(&SidecarPaths::of_pod(), shell, &arguments) {
        return code;
    }
    exec_real_shell(shell, name, &arguments)
}

/// Whether a file can be executed.
pub fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| is_executable(&found))
}

fn exec_real_shell(shell: &str, name: &OsStr, arguments: &[OsString]) -> u8 {
    let Some(real) = find(shell) else {
        print_to_stderr(&format!("error: {shell} was not found on the PATH"));
        return 127;
    };
    // The name says whether it is a login shell; the folder does not matter.
    let name = Path::new(name).file_name().unwrap_or(name);
    let error = Command::new(&real).arg0(name).args(arguments).env_remove(TIMED_BY_VARIABLE).exec();
    print_to_stderr(&format!("error: {}: {error}", real.display()));
    126
}

/// The real shell: the first on the `PATH` that is not our binary.
fn find(shell: &str) -> Option<PathBuf> {
    let own = fs::metadata("/proc/self/exe").ok();
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/bin", "/usr/bin"].map(PathBuf::from);
    let all = env::split_paths(&path).chain(usual).map(|folder| folder.join(shell));
    let is_real = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| is_executable(&found) && !same(&found, own.as_ref()));
    all.into_iter().find(is_real)
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn same(one: &Metadata, other: Option<&Metadata>) -> bool {
    other.is_some_and(|other| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_know_what_we_were_called() {
        let cases = [
            ("/spillway/bin/shells/sh", Some("sh")),
            ("bash", Some("bash")),
            ("-bash", Some("bash")),
            ("zsh", None),
            ("spillway", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(called_shell(Some(OsStr::new(name))), expected, "{name}");
        }
        assert_eq!(called_shell(None), None);
    }
}
