//! What the sandboxes of agents refused, as their pods report it: a metric, and a signal for the agent's supervision. And what the pod
//! must enforce for an item.
//!
//! It must not decide what is refused: the pod does.

use spillway_conversion::sandbox::{AGENT_STRICT, LANDLOCK_REQUIRED, LINK_ONLY};

use super::caller::Caller;
use crate::api::Agent;
use crate::controller::Context;
use crate::policy::interventions::{Signal, Violation};
use crate::policy::work::entry::Entry;
use crate::wire::sandbox::{ItemSandbox, SandboxRefusals};

/// Refused system calls of one report that count for supervision. A rule cannot ask for more.
const MAX_REPORTED_REFUSALS: u64 = 256;
/// The most characters of the names in a message.
const MAX_NAMES_CHARS: usize = 256;

/// Counts what was refused since the agent's last report. A sandbox that only observes raises no signal.
pub fn counted(caller: &Caller, agent: &Agent, refusals: &SandboxRefusals, context: &Context) {
    let [calls, files] = context.live.refusals_counted(&caller.uid, [refusals.system_calls, refusals.files]);
    if (calls, files) == (0, 0) {
        return;
    }
    let (namespace, pool) = (&caller.key.namespace, &agent.spec.pool_ref.name);
    let exists = context.stores.pool(namespace, pool).is_some();
    context.metrics.sandbox_refused(namespace, Some(pool.as_str()).filter(|_| exists), calls, files);
    if calls == 0 || context.live.only_observes(&caller.uid) {
        return;
    }
    let words = message(refusals);
    for _ in 0..calls.min(MAX_REPORTED_REFUSALS) {
        context.live.raise(&caller.uid, Signal::RuleViolated(Violation::SandboxViolation), Some(words.clone()));
    }
    context.wake.agent(&caller.key);
}

fn message(refusals: &SandboxRefusals) -> String {
    let names: String = refusals.uses.join(", ").chars().take(MAX_NAMES_CHARS).collect();
    format!("the sandbox has refused {} system calls of the agent: {names}", refusals.system_calls)
}

/// What the pod must enforce for an item. The rest of the item's sandbox decides which pool gets the item, or limits egress.
pub fn required_of_pod(item: &Entry) -> ItemSandbox {
    let has = |guarantee: &str| item.spec.requires.sandbox.contains(guarantee);
    ItemSandbox { landlock: has(LANDLOCK_REQUIRED), syscalls: has(AGENT_STRICT), sidecar_ports_only: has(LINK_ONLY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_what_was_refused_within_its_bounds() {
        let refusals = SandboxRefusals { system_calls: 7, files: 0, uses: vec!["ptrace".into(), "unshare".into()] };
        assert_eq!(message(&refusals), "the sandbox has refused 7 system calls of the agent: ptrace, unshare");
        let long = SandboxRefusals { uses: vec!["x".repeat(200); 16], ..refusals };
        assert!(message(&long).len() < 320);
    }
}
