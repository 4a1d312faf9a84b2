//! Attacks on other processes of the same user.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::WorksIn::{Node, Pod};
use crate::{Attack, Target, attack, call};

pub const ATTACKS: &[Attack] = &[
    attack("read-environment", Node, "read the environment of the supervisor", read_environment),
    attack("read-memory", Node, "open the memory of the supervisor", read_memory),
    attack("enter-root", Node, "reach files through the supervisor's root folder", enter_root),
    attack("open-descriptor", Node, "open a file that the supervisor has open", open_descriptor),
    attack("trace", Node, "attach to the supervisor as a debugger", trace),
    attack("seize", Node, "attach to the supervisor without stopping it", seize),
    attack("read-memory-by-call", Node, "read the supervisor's memory by process_vm_readv", read_memory_by_call),
    attack("write-memory-by-call", Node, "write the supervisor's memory by process_vm_writev", write_memory_by_call),
    attack("advise-memory", Node, "drop pages of the supervisor by process_madvise", advise_memory),
    attack("compare", Node, "compare kernel objects with the supervisor", compare),
    attack("take-descriptor", Node, "take an open file of the supervisor", take_descriptor),
    attack("signal", Pod, "signal the supervisor", signal),
    attack("signal-by-descriptor", Pod, "signal the supervisor through a descriptor", signal_by_descriptor),
    attack("renice", Pod, "lower the supervisor's priority", renice),
    attack("renice-user", Pod, "lower the priority of all processes of the user", renice_user),
    attack("reschedule", Pod, "run the supervisor only when nothing else runs", reschedule),
    attack("pin", Pod, "move the supervisor to one processor", pin),
    attack("limit", Pod, "lower the supervisor's limits", limit),
    attack("move-pages", Node, "move the supervisor's memory between nodes", move_pages),
    attack("own-memory-map", Pod, "lie about the places of its own memory (PR_SET_MM)", own_memory_map),
    attack("gain-privileges", Node, "gain privileges by a set-uid program", gain_privileges),
];

fn read_environment(target: &Target) -> io::Result<()> {
    fs::read(format!("/proc/{}/environ", target.pid)).map(drop)
}

fn read_memory(target: &Target) -> io::Result<()> {
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", target.pid))?;
    let map = fs::read_to_string(format!("/proc/{}/maps", target.pid))?;
    let at = map.split('-').next().and_then(|at| u64::from_str_radix(at, 16).ok()).ok_or(io::ErrorKind::NotFound)?;
    memory.read_exact_at(&mut [0; 8], at)
}

fn enter_root(target: &Target) -> io::Result<()> {
    File::open(format!("/proc/{}/root{}/secret", target.pid, target.outside.display())).map(drop)
}

fn open_descriptor(target: &Target) -> io::Result<()> {
    File::open(format!("/proc/{}/fd/0", target.pid)).map(drop)
}

fn trace(target: &Target) -> io::Result<()> {
    call!(libc::SYS_ptrace, libc::PTRACE_ATTACH, target.pid, 0, 0)?;
    // SAFETY: the status is not asked for.
    unsafe { libc::waitpid(target.pid, std::ptr::null_mut(), libc::__WALL) };
    call!(libc::SYS_ptrace, libc::PTRACE_DETACH, target.pid, 0, 0).map(drop)
}

fn seize(target: &Target) -> io::Result<()> {
    call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, target.pid, 0, 0).map(drop)
}

fn piece(at: usize) -> libc::iovec {
    libc::iovec { iov_base: at as *mut libc::c_void, iov_len: 8 }
}

/// An address of the other process that can be read and written.
fn writable_memory(target: &Target) -> usize {
    let map = fs::read_to_string(format!("/proc/{}/maps", target.pid)).unwrap_or_default();
    let line = map.lines().find(|line| line.contains(" rw-p "));
    line.and_then(|line| usize::from_str_radix(line.split('-').next()?, 16).ok()).unwrap_or(0x1000)
}

fn read_memory_by_call(target: &Target) -> io::Result<()> {
    let mut buffer = 0_u64;
    let (own, other) = (piece(&raw mut buffer as usize), piece(writable_memory(target)));
    call!(libc::SYS_process_vm_readv, target.pid, &raw const own, 1, &raw const other, 1, 0).map(drop)
}

/// Writes what it has read, if it could read.
fn write_memory_by_call(target: &Target) -> io::Result<()> {
    let mut buffer = 0_u64;
    let own = piece(&raw mut buffer as usize);
    let other = piece(writable_memory(target));
    let _ = call!(libc::SYS_process_vm_readv, target.pid, &raw const own, 1, &raw const other, 1, 0);
    call!(libc::SYS_process_vm_writev, target.pid, &raw const own, 1, &raw const other, 1, 0).map(drop)
}

fn pidfd(target: &Target) -> io::Result<libc::c_long> {
    call!(libc::SYS_pidfd_open, target.pid, 0)
}

fn advise_memory(target: &Target) -> io::Result<()> {
    let page = libc::iovec { iov_base: (writable_memory(target) & !4095) as *mut libc::c_void, iov_len: 4096 };
    call!(libc::SYS_process_madvise, pidfd(target)?, &raw const page, 1, libc::MADV_COLD, 0).map(drop)
}

fn compare(target: &Target) -> io::Result<()> {
    const KCMP_VM: i32 = 1;
    call!(libc::SYS_kcmp, std::process::id(), target.pid, KCMP_VM, 0, 0).map(drop)
}

fn take_descriptor(target: &Target) -> io::Result<()> {
    call!(libc::SYS_pidfd_getfd, pidfd(target)?, 0, 0).map(drop)
}

fn signal(target: &Target) -> io::Result<()> {
    call!(libc::SYS_kill, target.pid, libc::SIGCONT).map(drop)
}

fn signal_by_descriptor(target: &Target) -> io::Result<()> {
    call!(libc::SYS_pidfd_send_signal, pidfd(target)?, libc::SIGCONT, 0, 0).map(drop)
}

fn renice(target: &Target) -> io::Result<()> {
    call!(libc::SYS_setpriority, libc::PRIO_PROCESS, target.pid, 1).map(drop)
}

fn renice_user(_: &Target) -> io::Result<()> {
    // A user that runs nothing: the call is judged, and changes no process.
    const NOBODYS_USER: u32 = 4_000_000_000;
    match call!(libc::SYS_setpriority, libc::PRIO_USER, NOBODYS_USER, 1) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// The supervisor is the first process of its container. It gets what it has, so that nothing changes on another machine.
const SUPERVISOR: i32 = 1;

fn reschedule(_: &Target) -> io::Result<()> {
    let kind = call!(libc::SYS_sched_getscheduler, SUPERVISOR)?;
    let priority = 0;
    call!(libc::SYS_sched_setscheduler, SUPERVISOR, kind, &raw const priority).map(drop)
}

fn pin(_: &Target) -> io::Result<()> {
    let mut processors = [0_u64; 16];
    call!(libc::SYS_sched_getaffinity, SUPERVISOR, size_of_val(&processors), &raw mut processors)?;
    call!(libc::SYS_sched_setaffinity, SUPERVISOR, size_of_val(&processors), &raw const processors).map(drop)
}

fn limit(target: &Target) -> io::Result<()> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    call!(libc::SYS_prlimit64, target.pid, libc::RLIMIT_MSGQUEUE, 0, &raw mut limit)?;
    call!(libc::SYS_prlimit64, target.pid, libc::RLIMIT_MSGQUEUE, &raw const limit, 0).map(drop)
}

fn move_pages(target: &Target) -> io::Result<()> {
    call!(libc::SYS_move_pages, target.pid, 0, 0, 0, 0, 0).map(drop)
}

fn own_memory_map(_: &Target) -> io::Result<()> {
    const PR_SET_MM: i32 = 35;
    const PR_SET_MM_MAP_SIZE: i32 = 15;
    let mut size = 0_u32;
    call!(libc::SYS_prctl, PR_SET_MM, PR_SET_MM_MAP_SIZE, &raw mut size, 0, 0).map(drop)
}

fn gain_privileges(_: &Target) -> io::Result<()> {
    match call!(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}
