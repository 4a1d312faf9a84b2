//! Signals that a started program ignores. It decides about no program: the launcher on a laptop says which.

#![expect(unsafe_code, reason = "the child's own system calls between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The command starts with these signals ignored, and so do its children, until one of them handles a signal itself.
pub fn ignore(command: &mut Command, signals: &'static [libc::c_int]) {
    let install = move || {
        for signal in signals {
            // SAFETY: the call has no pointers, and is safe in a child between fork and exec.
            if unsafe { libc::signal(*signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: `install` only makes system calls on memory that exists since before the fork.
    unsafe {
        command.pre_exec(install);
    }
}

/// The signals by which a terminal or a person asks a process to end.
pub const END_SIGNALS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_program_ignores_the_signals() {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -TERM $$; kill -INT $$; exit 7"]);
        ignore(&mut command, &END_SIGNALS);
        assert_eq!(command.status().expect("it runs").code(), Some(7));
    }
}
