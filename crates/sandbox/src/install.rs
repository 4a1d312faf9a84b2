//! A sandbox around a command. Everything is made ready in the parent; between fork and exec the child makes a few system calls, which
//! allocate nothing and take no lock, so that they are safe in a child of a process with several threads.

#![expect(unsafe_code, reason = "the child's own system calls between fork and exec; each says why it is safe")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use crate::child::{call, check, deny_new_privileges, install_program, install_with_listener, send};
use crate::filter::{Architecture, Program, program, reporting};
use crate::grants::Grant;
use crate::plan::Plan;
use crate::policy::Network;
use crate::rules::{self, RulesError};
use crate::watch::PendingListener;

/// A prepared sandbox. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    ruleset: Option<OwnedFd>,
    program: Option<Program>,
    /// The same program for a command whose refused calls are counted.
    reporting: Option<Program>,
}

impl Sandbox {
    /// Prepares the sandbox of a plan. `ports`: see [`rules::ruleset`].
    pub fn prepare(plan: &Plan, grants: &[Grant], ports: &[u16]) -> Result<Self, RulesError> {
        let ruleset = plan.landlock.map(|version| rules::ruleset(plan, version, grants, ports)).transpose()?;
        let network = if plan.sidecar_ports_only { Network::Sidecar } else { Network::Pod };
        let (program, reporting) = match plan.syscalls {
            true => (Some(program(Architecture::OWN, network)), Some(reporting(Architecture::OWN, network))),
            false => (None, None),
        };
        Ok(Self(Arc::new(Prepared { ruleset, program, reporting })))
    }

    /// Puts the command into this sandbox. If that fails when the command is started, it is not started.
    pub fn confine(&self, command: &mut Command) {
        let prepared = self.0.clone();
        // SAFETY: `install` only makes system calls on memory that exists since before the fork.
        unsafe {
            command.pre_exec(move || prepared.install(None));
        }
    }

    /// As [`Sandbox::confine`], and another thread must refuse what the filter refuses, so that it can count. Without that thread a refused
    /// call waits, and fails with ENOSYS when the listener is closed.
    pub fn confine_and_report(&self, command: &mut Command) -> io::Result<PendingListener> {
        let prepared = self.0.clone();
        let (pending, socket) = PendingListener::pair()?;
        // SAFETY: as above.
        unsafe {
            command.pre_exec(move || prepared.install(Some(&socket)));
        }
        Ok(pending)
    }
}

impl Prepared {
    /// `watcher`: the socket over which the listener is sent.
    fn install(&self, watcher: Option<&OwnedFd>) -> io::Result<()> {
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
        let Some(program) = &self.program else { return Ok(()) };
        if let Some((socket, reporting)) = watcher.zip(self.reporting.as_ref()) {
            match install_with_listener(reporting) {
                Ok(listener) => {
                    // Other processes of the user may have as many descriptors under way as the kernel lets one user have. Without the watcher,
                    // refused calls fail with ENOSYS, and are not counted.
                    let _ = send(socket, listener.as_fd());
                    return Ok(());
                }
                // The kernel or the container runtime leaves no place for a listener: refused calls are not counted.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EBUSY | libc::ENOSYS)) => {}
                Err(error) => return Err(error),
            }
        }
        install_program(program, 0).map(drop)
    }
}
