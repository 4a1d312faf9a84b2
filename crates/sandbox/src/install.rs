//! A sandbox around a command. Everything is made ready in the parent; between fork and exec the child makes a few system calls, which
//! allocate nothing and take no lock, so that they are safe in a child of a process with several threads.

#![expect(unsafe_code, reason = "the child's own system calls between fork and exec; each says why it is safe")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use crate::filter::{Architecture, Program, program};
use crate::grants::Grant;
use crate::plan::Plan;
use crate::policy::Network;
use crate::rules::{self, RulesError};

/// A prepared sandbox. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    ruleset: Option<OwnedFd>,
    program: Option<Program>,
}

impl Sandbox {
    /// Prepares the sandbox of a plan. `ports`: see [`rules::ruleset`].
    pub fn prepare(plan: &Plan, grants: &[Grant], ports: &[u16]) -> Result<Self, RulesError> {
        let ruleset = plan.landlock.map(|version| rules::ruleset(plan, version, grants, ports)).transpose()?;
        let network = if plan.sidecar_ports_only { Network::Sidecar } else { Network::Pod };
        let program = plan.syscalls.then(|| program(Architecture::OWN, network));
        Ok(Self(Arc::new(Prepared { ruleset, program })))
    }

    /// Puts the command into this sandbox. If that fails when the command is started, it is not started.
    pub fn confine(&self, command: &mut Command) {
        let prepared = self.0.clone();
        // SAFETY: `install` only makes system calls on memory that exists since before the fork.
        unsafe {
            command.pre_exec(move || prepared.install());
        }
    }
}

impl Prepared {
    fn install(&self) -> io::Result<()> {
        // The standard library's own descriptor for errors of exec must live until then. Linux before 5.11 cannot close the others so, and
        // old profiles of runtimes do not know the call; the supervisor's own are closed at exec anyway.
        match call(libc::SYS_close_range, [3, u32::MAX.into(), libc::CLOSE_RANGE_CLOEXEC.into()]) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => {}
            other => other?,
        }
        // A core dump would copy the memory of the program to the disk. The limit of one byte, and not of none, also stops the kernel from
        // starting a program of the node that collects dumps.
        let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the kernel reads one `rlimit` behind the pointer.
        check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }.into())?;
        deny_new_privileges()?;
        if let Some(ruleset) = &self.ruleset {
            call(libc::SYS_landlock_restrict_self, [u64::from(ruleset.as_raw_fd().unsigned_abs()), 0, 0])?;
        }
        if let Some(program) = &self.program {
            install_program(program, 0)?;
        }
        Ok(())
    }
}

/// Set-uid programs give no rights any more, which is what the kernel wants of those who install a sandbox without privileges.
pub(crate) fn deny_new_privileges() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) }.into())
}

/// Installs the program on this thread. Returns the kernel's answer, which is a descriptor if the flags ask for one.
pub(crate) fn install_program(program: &Program, flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the steps of the `sock_fprog`.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    check(answer).map(|()| answer)
}

/// A system call whose arguments are numbers.
fn call(number: libc::c_long, [first, second, third]: [u64; 3]) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(number, first, second, third) })
}

pub(crate) fn check(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
