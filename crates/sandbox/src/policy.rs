//! The system calls that a program may make, as data. [`filter`](crate::filter) and [`profile`](crate::profile) express the same
//! data for the kernel and for container runtimes.
//!
//! The calls are nearly those that container runtimes allow by default, without those that Landlock cannot see, that reach other
//! processes, or that only attack the kernel. A call that is not listed fails with EPERM; a call that programs try and do without fails
//! with ENOSYS, as on a kernel that does not have it.

use std::sync::LazyLock;

use crate::condition::{Rule, excluding, is, is_null, masked, without};

/// A call that may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Its name.
    pub name: &'static str,
    /// Rules of which one must hold for its arguments. Empty: it may always be made.
    pub rules: Vec<Rule>,
}

/// The network that a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Loopback and the routes of its pod, by TCP and UDP.
    Pod,
    /// The TCP ports of the sidecar. Landlock knows no datagrams.
    Sidecar,
}

/// Calls with ENOSYS. glibc uses `clone` where there is no `clone3`, whose flags no filter can read; programs do without the others.
pub const MISSING: [&str; 12] = [
    "clone3",
    "io_setup",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "listmount",
    "memfd_secret",
    "open_tree_attr",
    "statmount",
    "userfaultfd",
    "vmsplice",
    "name_to_handle_at",
];

/// Calls that may be made with any arguments, by what they are for.
const UNCONDITIONAL: [(&str, &str); 6] = [
    (
        "files and folders",
        "access cachestat chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 \
         fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock \
         fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat \
         inotify_add_watch inotify_init inotify_init1 inotify_rm_watch lchown lgetxattr link linkat listxattr listxattrat \
         llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat newfstatat open openat openat2 pread64 preadv preadv2 \
         pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat renameat2 \
         rmdir sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate \
         umask unlink unlinkat utime utimensat utimes write writev",
    ),
    (
        "memory",
        "brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect \
         mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages ",
    ),
    (
        "waiting, timers and pipes",
        "alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait \
         epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake \
         getitimer gettimeofday nanosleep pause pipe pipe2 poll ppoll pselect6 restart_syscall select setitimer time \
         timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime \
         times",
    ),
    (
        "processes and threads",
        "arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid geteuid \
         getgid getgroups getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid \
         gettid getuid ioprio_get kill pidfd_open pidfd_send_signal rseq rt_sigaction rt_sigpending rt_sigprocmask \
         rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max \
         sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
         sched_yield set_robust_list set_thread_area \
         set_tid_address setfsgid setfsuid setgid setgroups setpgid setregid setresgid setresuid setreuid setrlimit setsid \
         setuid sigaltstack signalfd signalfd4 sysinfo tgkill tkill uname uprobe uretprobe vfork wait4 waitid",
    ),
    ("its own sandboxes: a program may narrow what it has", "landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp"),
    (
        "sockets that exist, and the memory, queues and semaphores of its own user",
        "accept accept4 bind connect getpeername getsockname getsockopt listen mq_getsetattr mq_notify mq_open mq_timedreceive \
         mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd recvfrom recvmmsg recvmsg semctl semget semop semtimedop setsockopt \
         shmat shmctl shmdt shmget shutdown",
    ),
];

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
/// The bits of a socket's type, without its flags.
const SOCK_TYPE: u32 = 0xf;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
/// Data with the connection request, which no check of the connection sees.
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// New namespaces of every kind but that of time, whose bit `clone` uses for a signal.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
const CLONE_NEWTIME: u32 = 0x80;
/// Input and selections for a terminal, in the name of a person who uses it, and line disciplines, which load modules of the kernel.
const TERMINAL_ATTACKS: [u32; 3] = [0x5412, 0x541c, 0x5423];
/// The supervisor, which has the same user. Threads set their own scheduling by their numbers, so others cannot be told from them.
const SUPERVISOR: u32 = 1;
/// Changes of the places of the own memory, which the kernel believes.
const PR_SET_MM: u32 = 35;
const S_IFMT: u32 = 0o170_000;
/// Plain files, pipes and sockets; no devices.
const PLAIN_FILES: [u32; 4] = [0, 0o100_000, 0o010_000, 0o140_000];
/// Execution as Linux, with and without randomised addresses for 32-bit programs, and the question.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x20000, 0x20008, 0xffff_ffff];
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

/// The policy, sorted by name.
pub fn allowed(network: Network) -> &'static [Allowed] {
    static POD: LazyLock<Vec<Allowed>> = LazyLock::new(|| policy(Network::Pod));
    static SIDECAR: LazyLock<Vec<Allowed>> = LazyLock::new(|| policy(Network::Sidecar));
    match network {
        Network::Pod => &POD,
        Network::Sidecar => &SIDECAR,
    }
}

fn policy(network: Network) -> Vec<Allowed> {
    let names = UNCONDITIONAL.iter().flat_map(|(_, names)| names.split_whitespace());
    let mut all: Vec<Allowed> = names.map(|name| Allowed { name, rules: Vec::new() }).collect();
    let mut when = |name, rules| all.push(Allowed { name, rules });
    let kinds: &[(u32, u32)] = match network {
        // Programs make datagram sockets to list interfaces, to sort addresses, and to talk to themselves.
        Network::Pod => &[(SOCK_STREAM, IPPROTO_TCP), (SOCK_DGRAM, IPPROTO_UDP)],
        Network::Sidecar => &[(SOCK_STREAM, IPPROTO_TCP)],
    };
    let families = [AF_INET, AF_INET6].into_iter().flat_map(|family| kinds.iter().map(move |(kind, protocol)| (family, *kind, *protocol)));
    let internet = families.flat_map(|(family, kind, protocol)| {
        [0, protocol].map(|protocol| vec![is(0, family), masked(1, SOCK_TYPE, kind), is(2, protocol)])
    });
    // Routes and addresses, which programs read to know whether there is a network.
    let own = [vec![is(0, AF_UNIX)], vec![is(0, AF_NETLINK), is(2, 0)]];
    when("socket", own.into_iter().chain(internet).collect());
    when("socketpair", vec![vec![is(0, AF_UNIX)]]);
    when("sendto", vec![vec![without(3, MSG_FASTOPEN)]]);
    when("sendmsg", vec![vec![without(2, MSG_FASTOPEN)]]);
    when("sendmmsg", vec![vec![without(3, MSG_FASTOPEN)]]);
    when("clone", vec![vec![without(0, CLONE_NAMESPACES)]]);
    when("unshare", vec![vec![without(0, CLONE_NAMESPACES | CLONE_NEWTIME)]]);
    when("ioctl", excluding(1, &TERMINAL_ATTACKS));
    when("prctl", excluding(0, &[PR_SET_MM]));
    when("mknod", PLAIN_FILES.iter().map(|kind| vec![masked(1, S_IFMT, *kind)]).collect());
    when("mknodat", PLAIN_FILES.iter().map(|kind| vec![masked(2, S_IFMT, *kind)]).collect());
    when("personality", PERSONALITIES.iter().map(|value| vec![is(0, *value)]).collect());
    for name in ["sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"] {
        when(name, excluding(0, &[SUPERVISOR]));
    }
    // Priorities and limits are set for the caller alone.
    when("setpriority", vec![vec![is(0, PRIO_PROCESS), is(1, 0)]]);
    when("ioprio_set", vec![vec![is(0, IOPRIO_WHO_PROCESS), is(1, 0)]]);
    when("prlimit64", vec![vec![is(0, 0)], vec![is_null(2)]]);
    all.sort_by_key(|allowed| allowed.name);
    all
}

/// The error of a call, or `None` if it may be made.
pub fn verdict(network: Network, name: &str, arguments: &[u64; 6]) -> Option<i32> {
    if MISSING.contains(&name) {
        return Some(libc::ENOSYS);
    }
    let holds = |rule: &Rule| rule.iter().all(|condition| condition.holds(arguments));
    let found = allowed(network).iter().find(|allowed| allowed.name == name);
    let may = found.is_some_and(|allowed| allowed.rules.is_empty() || allowed.rules.iter().any(holds));
    if may { None } else { Some(libc::EPERM) }
}
