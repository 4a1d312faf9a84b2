//! `sh` and `bash` with a time limit: they stand in the folder `shells` beside our binary, for a pool whose program has that
//! folder on its `PATH`.
//!
//! Only a shell that is given a command (`bash -lc "make test"`) is timed, as `spillway exec --keep` does it. Every other one
//! becomes the real shell at once: one for a person, one that runs a script, the agent's own program, which the supervisor
//! starts, and whatever runs within a timed command. What a launcher or a helper server is cannot be told from outside: that
//! is why the folder is not on the `PATH` by itself.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, getppid};

use super::exec::ExecArguments;
use super::{Place, Verb, run_verb, tell};
use crate::process::run::TIMED;

/// The folder, beside our binary.
pub const FOLDER: &str = "shells";
/// The shells.
pub const SHELLS: [&str; 2] = ["sh", "bash"];

/// The shell that we were called as, if it is one.
pub fn called(name: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(name?).file_name()?.as_bytes();
    // A shell for a login is called with a dash before its name.
    let name = name.strip_prefix(b"-").unwrap_or(name);
    SHELLS.into_iter().find(|shell| shell.as_bytes() == name)
}

/// Runs the shell; gives the exit code, if we are still there.
pub fn run(shell: &str, arguments: Vec<OsString>) -> u8 {
    let Some(real) = find(shell) else {
        tell(&format!("error: there is no {shell}"));
        return 127;
    };
    let by_supervisor = getppid() == Some(Pid::INIT);
    if by_supervisor || env::var_os(TIMED).is_some() || !is_command(&arguments) {
        let error = Command::new(&real).args(arguments).exec();
        tell(&format!("error: {}: {error}", real.display()));
        return 126;
    }
    let command = std::iter::once(real.into_os_string()).chain(arguments).collect();
    run_verb(&Place::of_pod(), Verb::Exec(ExecArguments::of_shell(command)))
}

/// The real one: the first on the `PATH` that is not ourselves.
fn find(shell: &str) -> Option<PathBuf> {
    let own = fs::metadata("/proc/self/exe").ok();
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/bin", "/usr/bin"].map(PathBuf::from);
    let all = env::split_paths(&path).chain(usual).map(|folder| folder.join(shell));
    let is_real = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| runs(&found) && !same(&found, own.as_ref()));
    all.into_iter().find(is_real)
}

fn runs(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn same(one: &Metadata, other: Option<&Metadata>) -> bool {
    other.is_some_and(|other| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Whether a shell with these arguments runs one command and ends.
fn is_command(arguments: &[OsString]) -> bool {
    let mut arguments = arguments.iter().map(|argument| argument.as_bytes());
    while let Some(argument) = arguments.next() {
        match argument {
            b"--" | b"-" => return false,
            [b'-', b'-', ..] => {}
            [b'-', letters @ ..] if letters.contains(&b'c') => return true,
            // The name of an option follows.
            [b'-' | b'+', .., b'o' | b'O'] => drop(arguments.next()),
            [b'-' | b'+', ..] => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shell_with_a_command_is_timed() {
        let cases: [(&[&str], bool); 12] = [
            (&["-c", "make"], true),
            (&["-lc", "make"], true),
            (&["-e", "-o", "pipefail", "-c", "make"], true),
            (&["--norc", "-c", "make"], true),
            (&["+x", "-c", "make"], true),
            (&["script.sh", "-c"], false),
            (&["-o", "-c"], false),
            (&["--", "-c"], false),
            (&["-", "-c"], false),
            (&["-i"], false),
            (&["-s"], false),
            (&[], false),
        ];
        for (arguments, expected) in cases {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(is_command(&arguments), expected, "{arguments:?}");
        }
    }

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
            assert_eq!(called(Some(OsStr::new(name))), expected, "{name}");
        }
        assert_eq!(called(None), None);
    }
}
