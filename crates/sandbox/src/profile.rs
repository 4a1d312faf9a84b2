//! The policy as a seccomp profile of container runtimes, and as a SeccompProfile object of the Security Profiles Operator.
//!
//! Both let a program have the network of its pod. Both are for `spec.sandbox.isolation.seccomp: Localhost`, where the node applies the policy. A call of the runtime's own that is newer
//! than the profile gets ENOSYS from the runtime.

use serde_json::{Value, json};

use crate::condition::{Condition, Rule};
use crate::policy::{Allowed, MISSING, Network, allowed};

/// The profile's file name below the kubelet's folder of seccomp profiles.
pub const PROFILE_NAME: &str = "spillway/agent-strict.json";

/// The profile, as the OCI runtime specification describes it.
pub fn oci_profile() -> Value {
    json!({
        // A call that is not listed fails with EPERM, the default of this action.
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": entries(),
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

fn entries() -> Vec<Value> {
    let (free, conditional): (Vec<&Allowed>, Vec<&Allowed>) = allowed(Network::Pod).iter().partition(|call| call.rules.is_empty());
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
