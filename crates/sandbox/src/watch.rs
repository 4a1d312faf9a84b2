//! Hearing of the system calls of a command, and of all that it starts. The kernel asks the watcher before each of these calls, and the
//! watcher lets it go on or refuses it. A command that is only watched is not confined: the watcher cannot know what a call does, because
//! the program may change the memory that the call points to. In a sandbox ([`crate::install`]) the watcher hears only of calls that the
//! filter refuses, and counts them.
//!
//! A call waits until the watcher has answered. When the watcher has ended, calls fail with ENOSYS.

#![expect(unsafe_code, reason = "the kernel's interface for watchers; each use says why it is safe")]

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::child::{check, deny_new_privileges, install_with_any_listener, send};
use crate::filter::{Architecture, Program, WatchedCalls, watching};

/// The lowest descriptor of the socket over which the child sends the listener. Programs rarely have as many descriptors, and what is sent
/// over this one is not seen.
const LOWEST_SOCKET: RawFd = 500;

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
    let (pending, childs) = PendingListener::pair()?;
    let program = watching(Architecture::OWN, watched, childs.as_raw_fd().unsigned_abs());
    // SAFETY: `begin` only makes system calls, on memory of its stack and on what exists since before the fork.
    unsafe {
        command.pre_exec(move || begin(&program, &childs));
    }
    Ok(pending)
}

/// In the child: installs the program, and sends the listener to the watcher.
fn begin(program: &Program, socket: &OwnedFd) -> io::Result<()> {
    // It would go on without its watcher, and its calls would fail.
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into())?;
    deny_new_privileges()?;
    let listener = install_with_any_listener(program)?;
    send(socket, listener.as_fd())
}

impl PendingListener {
    /// A listener that a child is to send, and the child's end of the socket.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, childs) = UnixStream::pair()?;
        Ok((Self(ours), rustix::io::fcntl_dupfd_cloexec(childs, LOWEST_SOCKET)?))
    }

    /// Waits until the child has sent the listener. `None`: there is none, because the child could not be started or its kernel has no
    /// listener for it. This thread gets no signals from now on, because the kernel interrupts it in places where that cannot be told from
    /// an end.
    pub fn listener(self) -> io::Result<Option<Listener>> {
        block_signals()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let sent = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let Some(listener) = sent.map(Listener) else {
            return match received.bytes {
                0 => Ok(None),
                _ => Err(io::Error::other("the listener was sent, and this process has no place for its descriptor")),
            };
        };
        // Faster, on kernels that know it: the processor of the caller goes on with the watcher.
        // SAFETY: the argument is a number.
        let _ = unsafe { libc::ioctl(listener.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNCHRONOUS_WAKE_UP) };
        Ok(Some(listener))
    }
}

/// Blocks all signals for this thread.
fn block_signals() -> io::Result<()> {
    // SAFETY: `sigfillset` writes one `sigset_t`, which `pthread_sigmask` reads.
    let error = unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
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
            let events = ready[0].revents();
            if !events.contains(PollFlags::IN) {
                if events.contains(PollFlags::HUP) {
                    return Ok(None);
                }
                // The kernel says so when a signal comes while others use the listener.
                continue;
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
        self.answer(libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags })
    }

    /// Lets the call fail with EPERM.
    pub fn refuse(&self, call: &SystemCall) -> io::Result<()> {
        self.answer(libc::seccomp_notif_resp { id: call.id, val: 0, error: -libc::EPERM, flags: 0 })
    }

    fn answer(&self, mut answer: libc::seccomp_notif_resp) -> io::Result<()> {
        loop {
            // SAFETY: the kernel reads one value of this type.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // A signal ended the caller, or interrupted its call.
                Some(libc::ENOENT) => return Ok(()),
                _ => return Err(error),
            }
        }
    }
}
