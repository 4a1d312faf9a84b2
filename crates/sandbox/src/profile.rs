//! The policy as a seccomp profile of container runtimes, and as a SeccompProfile object of the Security Profiles Operator.
//!
//! Both let a program have the network of its pod. The first is for `spec.sandbox.isolation.seccomp: Localhost`, where the node applies the
//! policy. A call that is newer than the profile gets ENOSYS from the runtime.
//!
//! The name of the node's file has a hash of its content. So a new policy is a new file: it never changes the profile of containers that
//! exist, and a pod gets exactly the policy that it was made for. This module does not touch files.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::condition::{Condition, Rule};
use crate::policy::{Allowed, MISSING, Network, allowed};

/// The folder of the profiles, below the kubelet's folder of seccomp profiles.
pub const PROFILE_FOLDER: &str = "spillway";
/// The bytes of the profile's file. They are those of the repository, and do not depend on how a build formats JSON. A test compares them
/// with [`oci_profile`].
pub const PROFILE_BYTES: &[u8] = include_bytes!("../profiles/agent-strict.json");
/// Number of hexadecimal digits of a version. It tells versions of one file apart, and keeps no attacker out: only root of the node can
/// write there.
const VERSION_DIGITS: usize = 8;
const NAME_PREFIX: &str = "agent-strict-";
const NAME_SUFFIX: &str = ".json";

/// The version of the profile of this build.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| version_of(PROFILE_BYTES));
    &VERSION
}

/// The version of a profile with these bytes: the first digits of their SHA-256.
pub fn version_of(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..VERSION_DIGITS].to_owned()
}

/// The name of the file of a version, in [`PROFILE_FOLDER`].
pub fn file_name(version: &str) -> String {
    format!("{NAME_PREFIX}{version}{NAME_SUFFIX}")
}

/// The version in the name of a file, if it is a name of [`file_name`].
pub fn version_in(name: &str) -> Option<&str> {
    let version = name.strip_prefix(NAME_PREFIX)?.strip_suffix(NAME_SUFFIX)?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (version.len() == VERSION_DIGITS && version.bytes().all(is_digit)).then_some(version)
}

/// The path of the profile of this build, below the kubelet's folder of seccomp profiles.
pub fn path() -> String {
    format!("{PROFILE_FOLDER}/{}", file_name(version()))
}

/// Calls that runc, a Go program, makes between the installation of a profile and the start of the program, and those of the start
/// itself. Some depend on the moment.
const START: &str = "arch_prctl brk capget capset chdir clone close close_range epoll_create1 epoll_ctl epoll_pwait eventfd2 execve exit \
                     exit_group fcntl fstat fstatfs futex getdents64 getegid geteuid getgid getpid getppid gettid getuid madvise mmap \
                     mprotect munmap nanosleep newfstatat openat openat2 prctl pread64 read readlinkat rt_sigaction rt_sigprocmask \
                     rt_sigreturn sched_getaffinity sched_yield setgid setgroups setuid sigaltstack statx tgkill write";

/// The profile, as the OCI runtime specification describes it.
pub fn oci_profile() -> Value {
    profile(|_| true)
}

/// A profile with only these calls of the policy, and those that start a program.
pub fn narrow_profile(used: &BTreeSet<&str>) -> Value {
    profile(|name| used.contains(name) || START.split_whitespace().any(|start| start == name))
}

fn profile(included: impl Fn(&str) -> bool) -> Value {
    json!({
        // A call that is not listed fails with EPERM, the default of this action.
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": entries(included),
    })
}

/// The same as an object of the Security Profiles Operator.
pub fn operator_profile() -> Value {
    json!({
        "apiVersion": "security-profiles-operator.x-k8s.io/v1beta1",
        "kind": "SeccompProfile",
        "metadata": {"name": "spillway-agent-strict"},
        "spec": oci_profile(),
    })
}

fn entries(included: impl Fn(&str) -> bool) -> Vec<Value> {
    let included = allowed(Network::Pod).iter().filter(|call| included(call.name));
    let (free, conditional): (Vec<&Allowed>, Vec<&Allowed>) = included.partition(|call| call.rules.is_empty());
    let free: Vec<&str> = free.iter().map(|call| call.name).collect();
    let mut entries = vec![json!({"names": free, "action": "SCMP_ACT_ALLOW"})];
    for call in conditional {
        entries.extend(call.rules.iter().map(|rule| entry(call.name, rule)));
    }
    entries.push(json!({"names": MISSING, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS}));
    entries
}

fn entry(name: &str, rule: &Rule) -> Value {
    let one = |Condition { argument, mask, value }: &Condition| json!({"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"});
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": rule.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_hash_of_the_content() {
        assert_eq!(version_of(b""), "e3b0c442");
        let name = file_name(version());
        assert_eq!(version_in(&name), Some(version()));
        assert_eq!(path(), format!("spillway/{name}"));
        assert_eq!(version().len(), 8);
    }

    #[test]
    fn other_names_have_no_version() {
        for name in [
            "agent-strict.json",
            "agent-strict-e3b0c44.json",
            "agent-strict-E3B0C442.json",
            ".agent-strict-e3b0c442.json",
            "agent-strict-e3b0c442.json.new",
            "x",
        ] {
            assert_eq!(version_in(name), None, "{name}");
        }
    }
}
