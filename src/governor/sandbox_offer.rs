//! What an agent's sandbox is, as its pod reported it, and what it can give to an item. Pure.
//!
//! It must not decide what a node can enforce: the pod does.

use spillway_conversion::sandbox::{AGENT_STRICT, LANDLOCK_REQUIRED, LINK_ONLY};

use super::live::View;
use crate::api::agent_pool::RunMode;
use crate::api::{Agent, AgentPoolSpec};
use crate::policy::work::entry::Entry;
use crate::policy::work::requires::PoolOffer;
use crate::wire::sandbox::{self as wire, ItemSandbox, OBSERVED_TIER};

/// What the pod must enforce for an item. A program that runs all the time has its sandbox already: `offered_by` judges that.
pub fn required_of_pod(item: &Entry, pool: &AgentPoolSpec) -> ItemSandbox {
    let has = |guarantee: &str| pool.agent.run == RunMode::PerItem && item.spec.requires.sandbox.contains(guarantee);
    ItemSandbox { landlock: has(LANDLOCK_REQUIRED), syscalls: has(AGENT_STRICT), sidecar_ports_only: has(LINK_ONLY) }
}

/// The guarantees of a pool that this agent can give. Its pod has the sandbox that the pool had when the pod was made.
pub fn offered_by(agent: &Agent, view: Option<&View>, pool: &AgentPoolSpec, mut offer: PoolOffer) -> PoolOffer {
    let known = reported(agent, view);
    let lacks = |guarantee: &str| known.as_ref().is_none_or(|(_, missing)| missing.iter().any(|name| name == guarantee));
    let observes = known.as_ref().is_none_or(|(tier, _)| tier == OBSERVED_TIER);
    let started = pool.agent.run == RunMode::LongRunning;
    if observes || (started && lacks(wire::LANDLOCK)) {
        offer.sandbox.remove(LANDLOCK_REQUIRED);
    }
    if observes || (started && lacks(wire::AGENT_STRICT)) {
        offer.sandbox.remove(AGENT_STRICT);
    }
    if observes {
        offer.sandbox.remove(LINK_ONLY);
    }
    offer
}

/// The tier and the missing guarantees of an agent: as its pod reported to us, or to the leader before us.
pub fn reported(agent: &Agent, view: Option<&View>) -> Option<(String, Vec<String>)> {
    let ours = view.and_then(|view| view.sandbox.as_ref()).map(|sandbox| (sandbox.tier.clone(), sandbox.missing.clone()));
    ours.or_else(|| {
        let stored = agent.status.as_ref()?.sandbox.as_ref()?;
        Some((stored.tier.clone(), stored.missing.clone().unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use spillway_conversion::sandbox::{FEWER_DESTINATIONS, offered};

    use super::*;

    #[test]
    fn an_agent_gives_what_its_own_pod_has() {
        let pool = |run: &str| -> AgentPoolSpec {
            let agent = json!({"image": "x", "command": ["y"], "run": run});
            serde_json::from_value(
                json!({"type": "worker", "agent": agent, "sandbox": {"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}}}),
            )
            .expect("a spec")
        };
        let agent = |sandbox: Value| -> Agent {
            serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"},
                "spec": {"poolRef": {"name": "p"}}, "status": {"sandbox": sandbox}}))
            .expect("an Agent")
        };
        let offer = |run: &str, sandbox: Value| {
            let spec = pool(run);
            let offer = PoolOffer { sandbox: offered(&spec), ..PoolOffer::default() };
            offered_by(&agent(sandbox), None, &spec, offer).sandbox.into_iter().collect::<Vec<_>>()
        };
        let all = [LANDLOCK_REQUIRED, AGENT_STRICT, FEWER_DESTINATIONS, LINK_ONLY];
        assert_eq!(
            offer("PerItem", json!({"tier": "Pod", "missing": ["Landlock", "AgentStrict"]})),
            all,
            "it is started anew for each item"
        );
        assert_eq!(offer("PerItem", json!({"tier": "Observed", "missing": ["Landlock"]})), [FEWER_DESTINATIONS]);
        assert_eq!(offer("PerItem", Value::Null), [FEWER_DESTINATIONS], "nothing is known");
        assert_eq!(offer("LongRunning", json!({"tier": "Landlock-7"})), [LANDLOCK_REQUIRED, AGENT_STRICT]);
        // The pool required less when the agent was made.
        assert_eq!(offer("LongRunning", json!({"tier": "AgentStrict", "missing": ["Landlock"]})), [AGENT_STRICT]);
        assert_eq!(offer("LongRunning", json!({"tier": "Observed", "missing": ["Landlock"]})), [""; 0]);
    }
}
