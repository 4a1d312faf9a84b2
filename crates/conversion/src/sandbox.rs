//! What the sandbox of a pool guarantees, and what an item asks of it. It must not decide what a node can enforce: the pod does.

use std::collections::BTreeSet;

use crate::api::agent_pool::{Egress, IsolationMode, Loopback, Requirement, RunMode, Sandbox, SeccompProfile};
use crate::api::{AgentPoolSpec, WorkItemSpec};
use crate::policy::egress::{HostPattern, ItemEgress};

/// The program does not start without Landlock.
pub const LANDLOCK_REQUIRED: &str = "isolation.landlock: Required";
/// The program does not start without the filter of system calls.
pub const AGENT_STRICT: &str = "isolation.seccomp: AgentStrict";
/// The program reaches only the ports of its sidecar.
pub const LINK_ONLY: &str = "outputs.loopback: LinkOnly";
/// The agent reaches fewer destinations.
pub const FEWER_DESTINATIONS: &str = "outputs.egress";

/// The guarantees that a pool's agents can give an item. A program that runs for one item is started in the sandbox of that item. One that
/// runs all the time has its sandbox already, and its connections too. A sandbox that only observes guarantees nothing. Agents outside the
/// cluster have no sandbox and their own network.
pub fn offered(spec: &AgentPoolSpec) -> BTreeSet<String> {
    let isolation = spec.sandbox.clone().unwrap_or_default().isolation.unwrap_or_default();
    let observes = isolation.mode == Some(IsolationMode::Observe);
    let strict = matches!(isolation.seccomp, Some(SeccompProfile::AgentStrict | SeccompProfile::Localhost));
    let per_item = spec.agent.run == RunMode::PerItem;
    let all = [
        ((per_item || isolation.landlock == Some(Requirement::Required)) && !observes, LANDLOCK_REQUIRED),
        ((per_item || strict) && !observes, AGENT_STRICT),
        (per_item && !observes, LINK_ONLY),
        (per_item, FEWER_DESTINATIONS),
    ];
    named(&all)
}

/// The guarantees that the sandbox of an item requires.
pub fn required(sandbox: &Sandbox) -> BTreeSet<String> {
    let isolation = sandbox.isolation.clone().unwrap_or_default();
    let outputs = sandbox.outputs.clone().unwrap_or_default();
    let all = [
        (isolation.landlock == Some(Requirement::Required), LANDLOCK_REQUIRED),
        (isolation.seccomp == Some(SeccompProfile::AgentStrict), AGENT_STRICT),
        (outputs.loopback == Some(Loopback::LinkOnly), LINK_ONLY),
        (matches!(outputs.egress, Some(Egress::None | Egress::AllowList)), FEWER_DESTINATIONS),
    ];
    named(&all)
}

fn named(all: &[(bool, &str)]) -> BTreeSet<String> {
    all.iter().filter(|(holds, _)| *holds).map(|(_, name)| (*name).to_owned()).collect()
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
            offered(&spec).into_iter().collect::<Vec<_>>()
        };
        let all = [LANDLOCK_REQUIRED, AGENT_STRICT, FEWER_DESTINATIONS, LINK_ONLY];
        assert_eq!(of("PerItem", json!({})), all);
        assert_eq!(of("LongRunning", json!({})), [""; 0], "its program has started already");
        assert_eq!(of("LongRunning", json!({"isolation": {"landlock": "Required"}})), [LANDLOCK_REQUIRED]);
        assert_eq!(of("LongRunning", json!({"isolation": {"seccomp": "Localhost"}})), [AGENT_STRICT]);
        let observed = json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict", "mode": "Observe"}});
        assert_eq!(of("LongRunning", observed.clone()), [""; 0]);
        assert_eq!(of("PerItem", observed), [FEWER_DESTINATIONS]);
    }

    #[test]
    fn an_item_only_narrows() {
        let item = |sandbox: Value| -> WorkItemSpec {
            serde_json::from_value(json!({"queueRef": {"name": "q"}, "payload": "p", "bulkhead": {"sandbox": sandbox}})).expect("a spec")
        };
        let required = |sandbox: Value| required(item_sandbox(&item(sandbox)).expect("a sandbox")).into_iter().collect::<Vec<_>>();
        for nothing in [
            json!({}),
            json!({"isolation": {"landlock": "Preferred", "seccomp": "RuntimeDefault"}, "outputs": {"loopback": "Open"}}),
            json!({"isolation": {"landlock": "Disabled"}}),
        ] {
            assert_eq!(required(nothing), [""; 0]);
        }
        let all =
            json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}, "outputs": {"loopback": "LinkOnly", "egress": "None"}});
        assert_eq!(required(all), [LANDLOCK_REQUIRED, AGENT_STRICT, FEWER_DESTINATIONS, LINK_ONLY]);
        let egress = |outputs: Value| item_egress(&item(json!({"outputs": outputs})));
        assert_eq!(egress(json!({"egress": "Open"})), None);
        assert_eq!(egress(json!({})), None);
        assert_eq!(egress(json!({"egress": "None"})), Some(Box::new(ItemEgress { allow: Vec::new(), sets: Vec::new() })));
        let listed = egress(json!({"egress": "AllowList", "allow": ["api.example.org:443"], "allowSets": ["s"]})).expect("a limit");
        assert_eq!((listed.allow.len(), listed.sets), (1, vec!["s".to_owned()]));
    }
}
