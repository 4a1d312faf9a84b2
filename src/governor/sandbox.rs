//! What the sandboxes of agents refused, as their pods report it: a metric, and a signal for the agent's supervision.
//!
//! It must not decide what is refused: the pod does.

use super::caller::Caller;
use super::sandbox_offer::reported;
use crate::api::Agent;
use crate::controller::Context;
use crate::policy::interventions::{Signal, Violation};
use crate::wire::sandbox::{OBSERVED_TIER, SandboxRefusals};

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
    let view = context.live.view(&caller.uid);
    let enforces = reported(agent, view.as_ref()).is_some_and(|(tier, _)| tier != OBSERVED_TIER);
    if calls == 0 || !enforces {
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
