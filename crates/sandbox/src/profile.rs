//! The policy as a seccomp profile of container runtimes, and as a SeccompProfile object of the Security Profiles Operator.
//!
//! Both let a program have the network of its pod. Both are for `spec.sandbox.isolation.seccomp: Localhost`, where the node applies the policy. A call of the runtime's own that is newer
//! than the profile gets ENOSYS from the runtime.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::condition::{Condition, Rule};
use crate::policy::{Allowed, MISSING, Network, allowed};

/// The profile's file name below the kubelet's folder of seccomp profiles.
pub const PROFILE_NAME: &str = "spillway/agent-strict.json";

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
