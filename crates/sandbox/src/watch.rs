//! Watching the system calls of a command, and of all that it starts, without refusing any. The kernel asks the watcher before each call,
//! and the watcher lets it go on. A watched command is not confined: this is for people who want to know what a program needs.
//!
//! A call waits until the watcher has answered. When the watcher has ended, calls fail with ENOSYS.

#![expect(unsafe_code, reason = "the kernel's interface for watchers; each use says why it is safe")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::filter::{Architecture, Program, WatchedCalls, watching};
use crate::install::{check, deny_new_privileges, install_program};

/// The lowest descriptor of the socket over which the child sends the listener. Programs rarely have as many descriptors, and what is sent
/// over this one is not seen.
const LOWEST_SOCKET: RawFd = 500;

/// The flag by which only a deadly signal interrupts a call that its watcher has heard of. Before that, each signal does: the call then fails
/// with EINTR, or begins again if the handler of the signal says so.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// A system call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    id: u64,
    /// The thread that makes it.
    pub thread: u32,
    /// Its number.
    pub number: u32,
    /// Whether it has the numbers of this architecture: 32-bit programs have others.
    pub native: bool,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// The listener of a command that is about to start.
#[derive(Debug)]
pub struct PendingListener(UnixStream);

/// Hears of the calls of a command.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// Lets the command be watched. If that fails when the command is started, it is not started. The kernel ends it with the thread that
/// starts it. Its first call waits, and `spawn` with it,
/// until another thread hears of it.
pub fn watch(command: &mut Command, watched: WatchedCalls) -> io::Result<PendingListener> {
    let (ours, childs) = UnixStream::pair()?;
    let childs = rustix::io::fcntl_dupfd_cloexec(childs, LOWEST_SOCKET)?;
    let program = watching(Architecture::OWN, watched, childs.as_raw_fd().unsigned_abs());
    // SAFETY: `begin` only makes system calls, on memory of its stack and on what exists since before the fork.
    unsafe {
        command.pre_exec(move || begin(&program, &childs));
    }
    Ok(PendingListener(ours))
}

/// In the child: installs the program, and sends the listener to the watcher.
fn begin(program: &Program, socket: &OwnedFd) -> io::Result<()> {
    // It would go on without its watcher, and its calls would fail.
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into())?;
    deny_new_privileges()?;
    let listener = match install_program(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE) {
        // Linux before 5.19.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install_program(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?,
        result => result?,
    };
    let listener = RawFd::try_from(listener).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel made this descriptor for us. It is closed when the child starts the program, like this value, which is forgotten
    // because to close it would be a call that nobody answers yet.
    let listener = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(listener) });
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}

impl PendingListener {
    /// Waits until the child has sent the listener. Fails if the child cannot be started.
    pub fn listener(self) -> io::Result<Listener> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let sent = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let listener = Listener(sent.ok_or_else(|| io::Error::other("the command did not start"))?);
        // Faster, on kernels that know it: the processor of the caller goes on with the watcher.
        // SAFETY: the argument is a number.
        let _ = unsafe { libc::ioctl(listener.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNCHRONOUS_WAKE_UP) };
        Ok(listener)
    }
}

/// The flag of [`libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS`].
const SYNCHRONOUS_WAKE_UP: u64 = 1;

impl Listener {
    /// Waits for the next call. `None`: all watched processes have ended.
    pub fn next(&self) -> io::Result<Option<SystemCall>> {
        loop {
            let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if !ready[0].revents().contains(PollFlags::IN) {
                return Ok(None);
            }
            // SAFETY: all fields are numbers, and the kernel wants zeros.
            let mut heard: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes one value of this type.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut heard) } == 0 {
                let libc::seccomp_notif { id, pid, data, .. } = heard;
                let native = data.arch == Architecture::OWN.audit_number();
                return Ok(Some(SystemCall { id, thread: pid, number: data.nr.unsigned_abs(), native, arguments: data.args }));
            }
            let error = io::Error::last_os_error();
            // A signal interrupted us, or ended the caller.
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) {
                return Err(error);
            }
        }
    }

    /// Lets the call go on.
    pub fn go_on(&self, call: &SystemCall) -> io::Result<()> {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(0);
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads one value of this type.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // A signal ended the caller, or interrupted its call.
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        }
    }
}
