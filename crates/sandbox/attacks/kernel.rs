//! Attacks on the kernel's interfaces.

use std::ffi::CString;
use std::io;

use crate::WorksIn::{Node, Nothing, Pod};
use crate::{Attack, Target, attack, call};

pub const ATTACKS: &[Attack] = &[
    attack("mount", Node, "mount a file system", mount),
    attack("unmount", Node, "unmount a file system", unmount),
    attack("new-mount-api", Node, "open a file system to mount", new_mount_api),
    attack("new-user-namespace", Node, "become root of a namespace of its own", new_user_namespace),
    attack("new-network-namespace", Node, "make a network of its own", new_network_namespace),
    attack("clone-namespace", Node, "start a child in a namespace of its own", clone_namespace),
    attack("clone3", Node, "start a child by the call whose flags no filter can read", clone3),
    attack("enter-namespace", Node, "enter a namespace of the node", enter_namespace),
    attack("change-root", Node, "change its root folder", change_root),
    attack("pivot-root", Node, "change the root of all processes", pivot_root),
    attack("io-uring", Node, "make calls through a queue that no filter sees", io_uring),
    attack("aio", Pod, "make file operations through the old queue", aio),
    attack("userfaultfd", Node, "stop the kernel in the middle of a copy", userfaultfd),
    attack("bpf", Node, "load a program into the kernel", bpf),
    attack("add-key", Node, "put a key into the kernel", add_key),
    attack("keyctl", Node, "read keys of the user", keyctl),
    attack("perf", Node, "watch the processor", perf),
    attack("open-by-handle", Node, "open a file by its number, outside every folder", open_by_handle),
    attack("name-to-handle", Pod, "learn the number of a file", name_to_handle),
    attack("vmsplice", Pod, "give pages of its memory to a pipe", vmsplice),
    attack("secret-memory", Pod, "hide memory from the kernel", secret_memory),
    attack("segment-table", Pod, "change its table of segments", segment_table),
    attack("own-listener", Pod, "let its own refused calls go on", own_listener),
    attack("kernel-log", Node, "read the kernel's log", kernel_log),
    attack("quota", Node, "ask for the quotas of a disk", quota),
    attack("set-clock", Node, "set the clock", set_clock),
    attack("swap", Node, "take memory from the node", swap),
    attack("personality", Node, "switch off the random places of its memory", personality),
    attack("old-calls", Pod, "make a call of 32-bit programs", old_calls),
    attack("x32-calls", Nothing, "make a call of the x32 interface", x32_calls),
    attack("future-calls", Nothing, "make a call that is newer than the policy", future_calls),
    attack("line-discipline", Pod, "make the kernel load a module for its terminal", line_discipline),
    attack("terminal-input", Node, "type into the terminal of a person", terminal_input),
];

/// What the kernel says of a call with arguments that make no sense: it was made if the kernel looked at the arguments.
fn reached(answer: io::Result<libc::c_long>, expected: &[i32]) -> io::Result<()> {
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|number| expected.contains(&number)) => Ok(()),
        other => other.map(drop),
    }
}

fn text(text: &str) -> io::Result<CString> {
    Ok(CString::new(text)?)
}

fn mount(target: &Target) -> io::Result<()> {
    let (none, folder, kind) = (text("none")?, text(&format!("{}/absent", target.inside.display()))?, text("tmpfs")?);
    reached(call!(libc::SYS_mount, none.as_ptr(), folder.as_ptr(), kind.as_ptr(), 0, 0), &[libc::ENOENT])
}

fn unmount(target: &Target) -> io::Result<()> {
    let folder = text(&format!("{}", target.inside.display()))?;
    reached(call!(libc::SYS_umount2, folder.as_ptr(), 0), &[libc::EINVAL])
}

fn new_mount_api(_: &Target) -> io::Result<()> {
    let kind = text("tmpfs")?;
    call!(libc::SYS_fsopen, kind.as_ptr(), 0).map(drop)
}

fn new_user_namespace(_: &Target) -> io::Result<()> {
    call!(libc::SYS_unshare, libc::CLONE_NEWUSER).map(drop)
}

fn new_network_namespace(_: &Target) -> io::Result<()> {
    call!(libc::SYS_unshare, libc::CLONE_NEWNET).map(drop)
}

fn clone_namespace(_: &Target) -> io::Result<()> {
    // The kernel refuses these two together after the filter, so that no child is made.
    reached(call!(libc::SYS_clone, libc::CLONE_NEWNS | libc::CLONE_FS, 0, 0, 0, 0), &[libc::EINVAL])
}

fn clone3(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_clone3, 0, 0), &[libc::EINVAL])
}

fn enter_namespace(_: &Target) -> io::Result<()> {
    let own = std::fs::File::open("/proc/self/ns/net")?;
    call!(libc::SYS_setns, std::os::fd::AsRawFd::as_raw_fd(&own), libc::CLONE_NEWNET).map(drop)
}

fn change_root(target: &Target) -> io::Result<()> {
    let folder = text(&format!("{}", target.inside.display()))?;
    call!(libc::SYS_chroot, folder.as_ptr()).map(drop)
}

fn pivot_root(target: &Target) -> io::Result<()> {
    let folder = text(&format!("{}/absent", target.inside.display()))?;
    reached(call!(libc::SYS_pivot_root, folder.as_ptr(), folder.as_ptr()), &[libc::ENOENT])
}

fn io_uring(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_io_uring_setup, 1, 0), &[libc::EFAULT])
}

fn aio(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_io_setup, 1, 0), &[libc::EFAULT])
}

fn userfaultfd(_: &Target) -> io::Result<()> {
    call!(libc::SYS_userfaultfd, 1).map(drop)
}

fn bpf(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_bpf, 0, 0, 0), &[libc::EINVAL, libc::E2BIG])
}

fn add_key(_: &Target) -> io::Result<()> {
    const SESSION_KEYRING: i32 = -3;
    let (kind, name, value) = (text("user")?, text("spillway-attack")?, *b"x");
    call!(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), value.as_ptr(), 1, SESSION_KEYRING).map(drop)
}

fn keyctl(_: &Target) -> io::Result<()> {
    const GET_KEYRING_ID: i32 = 0;
    const USER_KEYRING: i32 = -4;
    call!(libc::SYS_keyctl, GET_KEYRING_ID, USER_KEYRING, 1).map(drop)
}

fn perf(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_perf_event_open, 0, 0, -1, -1, 0), &[libc::EFAULT])
}

fn open_by_handle(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_open_by_handle_at, -1, 0, 0), &[libc::EFAULT, libc::EBADF])
}

fn name_to_handle(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_name_to_handle_at, libc::AT_FDCWD, 0, 0, 0, 0), &[libc::EFAULT])
}

fn vmsplice(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_vmsplice, -1, 0, 0, 0), &[libc::EBADF])
}

fn secret_memory(_: &Target) -> io::Result<()> {
    // The flag is none that the kernel knows, so that no memory is made.
    reached(call!(libc::SYS_memfd_secret, 0x40), &[libc::EINVAL])
}

fn segment_table(_: &Target) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    return call!(libc::SYS_modify_ldt, 0, 0, 0).map(drop);
    #[cfg(not(target_arch = "x86_64"))]
    Ok(())
}

/// Of two filters that ask somebody about a call, the kernel hears the newer one.
fn own_listener(target: &Target) -> io::Result<()> {
    const SET_FILTER: libc::c_long = 1;
    const NEW_LISTENER: libc::c_long = 8;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(libc::SYS_modify_ldt).unwrap_or(0);
    let steps = [step(0x20, 0, 0, 0), step(0x15, 0, 1, number), step(0x06, 0, 0, 0x7fc0_0000), step(0x06, 0, 0, 0x7fff_0000)];
    let program = libc::sock_fprog { len: 4, filter: steps.as_ptr().cast_mut() };
    call!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
    let listener = i32::try_from(call!(libc::SYS_seccomp, SET_FILTER, NEW_LISTENER, &raw const program)?).unwrap_or(-1);
    std::thread::spawn(move || -> io::Result<()> {
        // SAFETY: all fields are numbers, and the kernel wants zeros.
        let mut heard: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        call!(libc::SYS_ioctl, listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut heard)?;
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(0);
        let mut answer = libc::seccomp_notif_resp { id: heard.id, val: 0, error: 0, flags };
        call!(libc::SYS_ioctl, listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer).map(drop)
    });
    segment_table(target)
}

fn kernel_log(_: &Target) -> io::Result<()> {
    const SIZE_OF_BUFFER: i32 = 10;
    call!(libc::SYS_syslog, SIZE_OF_BUFFER, 0, 0).map(drop)
}

fn quota(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_quotactl, 0, 0, 0, 0), &[libc::EINVAL, libc::ENODEV, libc::ENOENT, libc::EFAULT, libc::ENOTBLK])
}

fn set_clock(_: &Target) -> io::Result<()> {
    reached(call!(libc::SYS_clock_settime, -1, 0), &[libc::EINVAL, libc::EFAULT])
}

fn swap(target: &Target) -> io::Result<()> {
    let file = text(&format!("{}/absent", target.inside.display()))?;
    reached(call!(libc::SYS_swapon, file.as_ptr(), 0), &[libc::ENOENT])
}

fn personality(_: &Target) -> io::Result<()> {
    const NO_RANDOM_PLACES: u32 = 0x0040_0000;
    call!(libc::SYS_personality, NO_RANDOM_PLACES).map(drop)
}

/// `getpid` by the door of 32-bit programs.
fn old_calls(_: &Target) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut answer: i64 = 20;
        // SAFETY: the call has no arguments; the kernel may change the registers r8 to r11.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") answer, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        if answer == i64::from(std::process::id()) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSYS)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Ok(())
}

fn x32_calls(_: &Target) -> io::Result<()> {
    const X32: libc::c_long = 0x4000_0000;
    call!(X32 | libc::SYS_getpid).map(drop)
}

fn future_calls(_: &Target) -> io::Result<()> {
    call!(1000).map(drop)
}

/// A terminal of its own.
fn terminal() -> io::Result<libc::c_int> {
    // SAFETY: new descriptors, and a name that lives until it is used.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        if master < 0 || libc::grantpt(master) < 0 || libc::unlockpt(master) < 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let terminal = libc::open(libc::ptsname(master), libc::O_RDWR);
        if terminal < 0 { Err(io::ErrorKind::Unsupported.into()) } else { Ok(terminal) }
    }
}

fn terminal_input(_: &Target) -> io::Result<()> {
    call!(libc::SYS_ioctl, terminal()?, libc::TIOCSTI, b"x".as_ptr()).map(drop)
}

fn line_discipline(_: &Target) -> io::Result<()> {
    const N_GSM0710: libc::c_int = 21;
    let number = N_GSM0710;
    // The node's kernel may have no such module.
    reached(call!(libc::SYS_ioctl, terminal()?, libc::TIOCSETD, &raw const number), &[libc::EINVAL])
}
