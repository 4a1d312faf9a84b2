//! System calls of a child between fork and exec. They allocate nothing and take no lock, so that they are safe in a child of a process
//! with several threads.

#![expect(unsafe_code, reason = "the kernel's interface for filters; each use says why it is safe")]

use std::io::{self, IoSlice};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::filter::Program;

/// The flag by which only a deadly signal interrupts a call that its watcher has heard of. Before that, each signal does: the call then fails
/// with EINTR, or begins again if the handler of the signal says so.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

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
pub(crate) fn call(number: libc::c_long, [first, second, third]: [u64; 3]) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(number, first, second, third) })
}

pub(crate) fn check(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Installs a program with a listener on this thread. It makes only system calls. It needs Linux 5.19: before that each signal interrupts
/// a call that waits.
///
/// The value of the listener is not closed: to close it would be a call that nobody answers yet. The kernel closes it when the child
/// starts the program.
pub(crate) fn install_with_listener(program: &Program) -> io::Result<ManuallyDrop<OwnedFd>> {
    listener(install_program(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE)?)
}

/// The same for any kernel with listeners.
pub(crate) fn install_with_any_listener(program: &Program) -> io::Result<ManuallyDrop<OwnedFd>> {
    match install_with_listener(program) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            listener(install_program(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?)
        }
        result => result,
    }
}

fn listener(descriptor: libc::c_long) -> io::Result<ManuallyDrop<OwnedFd>> {
    let listener = RawFd::try_from(descriptor).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel made this descriptor for us.
    Ok(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(listener) }))
}

/// Sends the watcher a listener. It makes only system calls.
pub(crate) fn send(socket: &OwnedFd, listener: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}
