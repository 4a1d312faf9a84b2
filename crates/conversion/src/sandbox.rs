//! What the sandbox of a pool guarantees, and what an item asks of it. It must not decide what a node can enforce: the pod does.

use std::collections::BTreeSet;

use crate::api::agent_pool::{Egress, IsolationMode, Loopback, Requirement, RunMode, Sandbox, SeccompProfile};
use crate::api::{AgentPoolSpec, WorkItemSpec};
use crate::policy::egress::{HostPattern, ItemEgress};

/// The guarantees of the sandbox that a pool's agents have, and those that they can have for an item: a program that runs for one item is
/// started in the sandbox of that item. A sandbox that only observes guarantees nothing.
pub fn offered(spec: &AgentPoolSpec) -> BTreeSet<String> {
    let own = spec.sandbox.clone().unwrap_or_default();
    let enforces = own.isolation.as_ref().and_then(|isolation| isolation.mode) != Some(IsolationMode::Observe);
    let narrow = ITEM_GUARANTEES.into_iter().filter(|_| enforces && spec.agent.run == RunMode::PerItem);
    let kept = |guarantee: &String| enforces || !NODE_GUARANTEES.contains(&guarantee.as_str());
    guarantees(&own).into_iter().filter(kept).chain(narrow.map(str::to_owned)).collect()
}

/// The program does not start without Landlock.
pub const LANDLOCK_REQUIRED: &str = "isolation.landlock: Required";
/// The program does not start without the filter of system calls.
pub const AGENT_STRICT: &str = "isolation.seccomp: AgentStrict";
/// The program reaches only the ports of its sidecar.
pub const LINK_ONLY: &str = "outputs.loopback: LinkOnly";
const LOCALHOST: &str = "isolation.seccomp: Localhost";
/// Guarantees that an agent can have for one item.
const ITEM_GUARANTEES: [&str; 3] = [LANDLOCK_REQUIRED, AGENT_STRICT, LINK_ONLY];
/// Guarantees that a sandbox does not have that only observes.
const NODE_GUARANTEES: [&str; 4] = [LANDLOCK_REQUIRED, AGENT_STRICT, LOCALHOST, LINK_ONLY];

/// The guarantees that a sandbox requires.
pub fn guarantees(sandbox: &Sandbox) -> BTreeSet<String> {
    let Sandbox { changeset: _, isolation, outputs, software } = sandbox;
    let isolation = isolation.clone().unwrap_or_default();
    let loopback = outputs.as_ref().and_then(|outputs| outputs.loopback);
    let digest = software.as_ref().and_then(|software| software.require_digest);
    // A node that has the profile has the filter in the pod too.
    let strict = matches!(isolation.seccomp, Some(SeccompProfile::AgentStrict | SeccompProfile::Localhost));
    let all = [
        (isolation.landlock == Some(Requirement::Required), LANDLOCK_REQUIRED),
        (strict, AGENT_STRICT),
        (isolation.seccomp == Some(SeccompProfile::Localhost), LOCALHOST),
        (isolation.user_namespace == Some(Requirement::Required), "isolation.userNamespace: Required"),
        (loopback == Some(Loopback::LinkOnly), LINK_ONLY),
        (digest == Some(true), "software.requireDigest: true"),
    ];
    all.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name.to_owned()).collect()
}

/// The sandbox of an item, where it is narrower than its pool's.
pub fn item_sandbox(spec: &WorkItemSpec) -> Option<&Sandbox> {
    spec.bulkhead.as_ref()?.sandbox.as_ref()
}

/// The destinations that an item opens, if it narrows those of its pool. `Open` narrows nothing.
pub fn item_egress(spec: &WorkItemSpec) -> Option<Box<ItemEgress>> {
    let outputs = item_sandbox(spec)?.outputs.as_ref()?;
    let allow = || outputs.allow.iter().flatten().filter_map(|text| HostPattern::parse(text).ok()).collect();
    match outputs.egress {
        None | Some(Egress::Open) => None,
        Some(Egress::None) => Some(ItemEgress { allow: Vec::new(), sets: Vec::new() }),
        Some(Egress::AllowList) => Some(ItemEgress { allow: allow(), sets: outputs.allow_sets.clone().unwrap_or_default() }),
    }
    .map(Box::new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_program_that_runs_for_one_item_can_have_the_sandbox_of_the_item() {
        let of = |run: &str, sandbox: Value| {
            let agent = json!({"image": "x", "command": ["y"], "run": run});
            let spec = serde_json::from_value(json!({"type": "worker", "agent": agent, "sandbox": sandbox})).expect("a spec");
            offered(&spec).into_iter().collect::<Vec<_>>().join(", ")
        };
        let all = "isolation.landlock: Required, isolation.seccomp: AgentStrict, outputs.loopback: LinkOnly";
        assert_eq!(of("PerItem", json!({})), all);
        assert_eq!(of("LongRunning", json!({})), "", "its program has started already");
        assert_eq!(of("LongRunning", json!({"isolation": {"landlock": "Required"}})), "isolation.landlock: Required");
        let node = json!({"isolation": {"seccomp": "Localhost", "userNamespace": "Required"}});
        assert_eq!(
            of("LongRunning", node.clone()),
            "isolation.seccomp: AgentStrict, isolation.seccomp: Localhost, isolation.userNamespace: Required"
        );
        let mut observed = node;
        observed["isolation"]["mode"] = json!("Observe");
        assert_eq!(of("PerItem", observed), "isolation.userNamespace: Required");
    }

    #[test]
    fn an_item_only_narrows() {
        let item = |sandbox: Value| -> WorkItemSpec {
            serde_json::from_value(json!({"queueRef": {"name": "q"}, "payload": "p", "bulkhead": {"sandbox": sandbox}})).expect("a spec")
        };
        let required = |sandbox: Value| guarantees(item_sandbox(&item(sandbox)).expect("a sandbox")).into_iter().collect::<Vec<_>>();
        for nothing in [
            json!({}),
            json!({"isolation": {"landlock": "Preferred", "seccomp": "RuntimeDefault"}, "outputs": {"loopback": "Open"}}),
            json!({"isolation": {"landlock": "Disabled"}}),
        ] {
            assert_eq!(required(nothing), [""; 0]);
        }
        let all = json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}, "outputs": {"loopback": "LinkOnly"}});
        assert_eq!(required(all), ITEM_GUARANTEES);
        let egress = |outputs: Value| item_egress(&item(json!({"outputs": outputs})));
        assert_eq!(egress(json!({"egress": "Open"})), None);
        assert_eq!(egress(json!({})), None);
        assert_eq!(egress(json!({"egress": "None"})), Some(Box::new(ItemEgress { allow: Vec::new(), sets: Vec::new() })));
        let listed = egress(json!({"egress": "AllowList", "allow": ["api.example.org:443"], "allowSets": ["s"]})).expect("a limit");
        assert_eq!((listed.allow.len(), listed.sets), (1, vec!["s".to_owned()]));
    }
}
