//! What the kernel can enforce for us. It only asks.

#![expect(unsafe_code, reason = "two system calls that the standard library does not have")]

use std::io;

/// Landlock, as the kernel answers a question for its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// It is there, with this version of its interface.
    Version(u32),
    /// The kernel was built without it, or is none of Linux (gVisor).
    NotBuilt,
    /// The kernel has it, and it was switched off when the node started.
    NotEnabled,
    /// Another filter refuses its calls. The error is the number that the filter gives.
    Refused(i32),
}

/// What the kernel can enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Landlock.
    pub landlock: Landlock,
    /// Filters of system calls.
    pub seccomp: bool,
    /// Whether this process is in another user namespace than the node.
    pub user_namespace: bool,
}

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const ASK_VERSION: u64 = 1;

impl Kernel {
    /// Asks the kernel.
    pub fn probe() -> Self {
        // SAFETY: the kernel reads no memory: the pointer is null, and its length is zero.
        let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0_u64, 0_u64, ASK_VERSION) };
        // Before the next call, which may replace the error.
        let landlock = landlock(version, || io::Error::last_os_error().raw_os_error().unwrap_or(0));
        let action = libc::SECCOMP_RET_ERRNO;
        // SAFETY: the kernel reads one number behind the pointer.
        let available = unsafe { libc::syscall(libc::SYS_seccomp, u64::from(libc::SECCOMP_GET_ACTION_AVAIL), 0_u64, &raw const action) };
        Self { landlock, seccomp: available >= 0, user_namespace: has_user_namespace() }
    }
}

/// Whether this process is in another user namespace than the node.
pub fn has_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_initial(&map))
}

/// Whether the map of users is that of the node: each user is itself.
fn is_initial(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn landlock(version: libc::c_long, error: impl FnOnce() -> i32) -> Landlock {
    match u32::try_from(version) {
        Ok(version) => Landlock::Version(version),
        Err(_) => match error() {
            libc::ENOSYS => Landlock::NotBuilt,
            libc::EOPNOTSUPP => Landlock::NotEnabled,
            other => Landlock::Refused(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_a_kernel_is_one_of_four() {
        assert_eq!(landlock(7, || unreachable!("there is no error")), Landlock::Version(7));
        assert_eq!(landlock(-1, || libc::ENOSYS), Landlock::NotBuilt);
        assert_eq!(landlock(-1, || libc::EOPNOTSUPP), Landlock::NotEnabled);
        assert_eq!(landlock(-1, || libc::EPERM), Landlock::Refused(libc::EPERM));
    }

    #[test]
    fn only_a_user_namespace_of_our_own_is_not_the_nodes() {
        assert!(is_initial("         0          0 4294967295\n"));
        assert!(!is_initial("0 65536 65536\n") && !is_initial("10001 10001 1\n") && !is_initial("0 0 65536\n"));
    }
}
