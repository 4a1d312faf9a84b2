//! The settings of the sandbox around an agent's program, from the spec of its pool. It does not decide what a node can enforce: the pod
//! does.

use crate::api::AgentPoolSpec;
use crate::api::agent_pool::{Isolation, Loopback, Outputs, Requirement as Asked, Sandbox, SeccompProfile, Software};
use crate::wire::sandbox::{Requirement, SandboxSettings};

/// The value of the variable of both containers.
pub(super) fn variable(spec: &AgentPoolSpec) -> String {
    // JSON can express each value of the type.
    serde_json::to_string(&settings(spec.sandbox.as_ref())).unwrap_or_default()
}

fn settings(sandbox: Option<&Sandbox>) -> SandboxSettings {
    let Sandbox { changeset: _, isolation, outputs, software } = sandbox.cloned().unwrap_or_default();
    let Isolation { landlock, seccomp, user_namespace: _ } = isolation.unwrap_or_default();
    let Outputs { egress: _, allow: _, allow_sets: _, loopback } = outputs.unwrap_or_default();
    let Software { require_digest: _, path } = software.unwrap_or_default();
    let landlock = match landlock {
        None | Some(Asked::Preferred) => Requirement::Preferred,
        Some(Asked::Required) => Requirement::Required,
        Some(Asked::Disabled) => Requirement::Disabled,
    };
    let syscalls = match seccomp {
        None => Requirement::Preferred,
        Some(SeccompProfile::AgentStrict) => Requirement::Required,
        // The node's own profile applies instead.
        Some(SeccompProfile::RuntimeDefault | SeccompProfile::Localhost) => Requirement::Disabled,
    };
    SandboxSettings { landlock, syscalls, sidecar_ports_only: loopback == Some(Loopback::LinkOnly), readable: path.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_field_of_the_pool_reaches_the_pod() {
        let of = |sandbox: Value| settings(Some(&serde_json::from_value(sandbox).expect("a sandbox")));
        assert_eq!(settings(None), SandboxSettings::default(), "whatever the node can");
        let all = json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}, "outputs": {"loopback": "LinkOnly"}, "software": {"path": ["/data/tools"]}});
        let expected = SandboxSettings {
            landlock: Requirement::Required,
            syscalls: Requirement::Required,
            sidecar_ports_only: true,
            readable: vec!["/data/tools".into()],
        };
        assert_eq!(of(all), expected);
        assert_eq!(of(json!({"isolation": {"landlock": "Disabled", "seccomp": "RuntimeDefault"}})), SandboxSettings::disabled());
        assert_eq!(of(json!({"isolation": {"landlock": "Preferred"}, "outputs": {"loopback": "Open"}})), SandboxSettings::default());
    }
}
