//! The settings of the sandbox around an agent's program, from the spec of its pool, and the profile of its container with the nodes that
//! have it. It does not decide what a node can enforce: the pod does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SeccompProfile as ContainerProfile;
use spillway_sandbox::profile;

use crate::api::AgentPoolSpec;
use crate::api::agent_pool::{Isolation, IsolationMode, Loopback, Outputs, Requirement as Asked, Sandbox, SeccompProfile, Software};
use crate::api::names;
use crate::wire::sandbox::{Requirement, SandboxMode, SandboxSettings};

/// Whether the node applies Spillway's profile to the agent's container. That profile refuses, so that it is not for a sandbox that observes.
fn has_node_profile(spec: &AgentPoolSpec) -> bool {
    let isolation = spec.sandbox.as_ref().and_then(|sandbox| sandbox.isolation.as_ref());
    isolation
        .is_some_and(|isolation| isolation.seccomp == Some(SeccompProfile::Localhost) && isolation.mode != Some(IsolationMode::Observe))
}

/// The profile of the agent's container. None: that of the pod.
pub(super) fn container_profile(spec: &AgentPoolSpec) -> Option<ContainerProfile> {
    has_node_profile(spec).then(|| ContainerProfile { type_: "Localhost".into(), localhost_profile: Some(profile::path()) })
}

/// The labels of nodes that can run the pods of a pool: those that it lists, and that of the profile. Kubernetes requires all of them.
pub(super) fn node_selector(spec: &AgentPoolSpec) -> BTreeMap<String, String> {
    let mut selector = spec.scheduling.as_ref().and_then(|scheduling| scheduling.node_selector.clone()).unwrap_or_default();
    if has_node_profile(spec) {
        selector.insert(names::node_profile_label(profile::version()), names::NODE_PROFILE_INSTALLED.to_owned());
    }
    selector
}

/// The value of the variable of both containers.
pub(super) fn variable(spec: &AgentPoolSpec) -> String {
    // JSON can express each value of the type.
    serde_json::to_string(&settings(spec.sandbox.as_ref())).unwrap_or_default()
}

fn settings(sandbox: Option<&Sandbox>) -> SandboxSettings {
    let Sandbox { changeset: _, isolation, outputs, software } = sandbox.cloned().unwrap_or_default();
    let Isolation { landlock, seccomp, user_namespace, mode } = isolation.unwrap_or_default();
    let Outputs { egress: _, allow: _, allow_sets: _, loopback } = outputs.unwrap_or_default();
    let Software { require_digest: _, path } = software.unwrap_or_default();
    let landlock = match landlock {
        None | Some(Asked::Preferred) => Requirement::Preferred,
        Some(Asked::Required) => Requirement::Required,
        Some(Asked::Disabled) => Requirement::Disabled,
    };
    let syscalls = match seccomp {
        None => Requirement::Preferred,
        // The node's profile narrows the supervisor too, and does not take the place of the filter.
        Some(SeccompProfile::AgentStrict | SeccompProfile::Localhost) => Requirement::Required,
        Some(SeccompProfile::RuntimeDefault) => Requirement::Disabled,
    };
    let mode = match mode {
        None | Some(IsolationMode::Enforce) => SandboxMode::Enforce,
        Some(IsolationMode::Observe) => SandboxMode::Observe,
    };
    let sidecar_ports_only = loopback == Some(Loopback::LinkOnly);
    // The pod tests it: an API server or a node may have no user namespaces.
    let user_namespace = user_namespace == Some(Asked::Required);
    SandboxSettings { landlock, syscalls, sidecar_ports_only, readable: path.unwrap_or_default(), mode, user_namespace }
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
            mode: SandboxMode::Enforce,
            user_namespace: false,
        };
        assert_eq!(of(all), expected);
        assert_eq!(of(json!({"isolation": {"landlock": "Disabled", "seccomp": "RuntimeDefault"}})), SandboxSettings::disabled());
        let node = of(json!({"isolation": {"seccomp": "Localhost"}}));
        assert_eq!((node.syscalls, node.landlock), (Requirement::Required, Requirement::Preferred), "the filter in the pod stays");
        assert_eq!(of(json!({"isolation": {"landlock": "Preferred"}, "outputs": {"loopback": "Open"}})), SandboxSettings::default());
        let namespace = |asked: &str| of(json!({"isolation": {"userNamespace": asked}}));
        assert!(namespace("Required").user_namespace && !namespace("Preferred").user_namespace && !namespace("Disabled").user_namespace);
        let observed = of(json!({"isolation": {"landlock": "Required", "mode": "Observe"}}));
        assert_eq!((observed.landlock, observed.mode), (Requirement::Required, SandboxMode::Observe));
    }

    #[test]
    fn the_profile_of_the_node_is_that_of_this_version_on_nodes_that_have_it() {
        let spec = |sandbox: Value, scheduling: Value| -> AgentPoolSpec {
            let agent = json!({"image": "x", "command": ["y"]});
            serde_json::from_value(json!({"type": "free", "agent": agent, "sandbox": sandbox, "scheduling": scheduling})).expect("a spec")
        };
        let localhost = json!({"isolation": {"seccomp": "Localhost"}});
        let label = format!("seccomp.spillway.dev/agent-strict-{}", profile::version());
        let own = spec(localhost.clone(), json!({}));
        let made = container_profile(&own).expect("a profile");
        assert_eq!(
            (made.type_.as_str(), made.localhost_profile),
            ("Localhost", Some(format!("spillway/agent-strict-{}.json", profile::version())))
        );
        assert_eq!(json!(node_selector(&own)), json!({&label: "installed"}));
        // The labels that the pool lists are required too. It cannot list another value for ours.
        let more = spec(localhost, json!({"nodeSelector": {"disk": "ssd", &label: "no"}}));
        assert_eq!(json!(node_selector(&more)), json!({"disk": "ssd", &label: "installed"}));
        for isolation in
            [json!({"seccomp": "AgentStrict"}), json!({"seccomp": "RuntimeDefault"}), json!({"seccomp": "Localhost", "mode": "Observe"})]
        {
            let other = spec(json!({"isolation": isolation}), json!({"nodeSelector": {"disk": "ssd"}}));
            assert_eq!(container_profile(&other), None);
            assert_eq!(json!(node_selector(&other)), json!({"disk": "ssd"}));
        }
    }
}
