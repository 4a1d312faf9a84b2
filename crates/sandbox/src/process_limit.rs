//! How many processes and threads a started program may have, with all that it starts. It decides about no program: the supervisor says
//! which.

#![expect(unsafe_code, reason = "the child's own system call between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The command starts with this limit, and cannot raise it. The kernel counts all processes of the user in the user namespace. The child sets
/// the limit before it starts the program, so that no process of the program is without it.
pub fn limit_processes(command: &mut Command, most: u64) {
    let install = move || {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the kernel reads one `rlimit` behind the pointer, and the call is safe in a child between fork and exec.
        if unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: `install` only makes a system call on memory of its stack.
    unsafe {
        command.pre_exec(install);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_program_has_the_limit_and_cannot_raise_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "grep -q '^Max processes *100 *100 ' /proc/self/limits && exit 7"]);
        limit_processes(&mut command, 100);
        assert_eq!(command.status().expect("it runs").code(), Some(7));
    }
}
