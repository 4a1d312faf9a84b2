//! Whether an agent may act now, for models and for other destinations: it is not paused, and it holds the item that it names.

use crate::api::Agent;
use crate::controller::Context;
use crate::governor::caller::{Caller, is_paused};
use crate::governor::work::replay::replay_pending;
use crate::wire::agent::Directive;
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// Refuses an agent that is paused, or does not hold `item` any more.
pub fn may_act(caller: &Caller, agent: &Agent, item: Option<&LeaseRef>, context: &Context) -> Result<(), Refusal> {
    let paused = context.live.desired_state(&caller.uid).directive == Directive::Pause;
    if !context.work_index.is_ready() {
        return Err(Refusal::unavailable("the controller is still listing the WorkItems; try again"));
    }
    let holding = lease_of(caller, item, context);
    if context.replay_window_open() && item.is_some() && holding.as_ref() != item {
        return Err(replay_pending());
    }
    judge(agent, paused, item, holding.as_ref())
}

/// The lease of a call: the one that it names, if the pod holds that, else the one that the pod holds.
pub fn lease_of(caller: &Caller, named: Option<&LeaseRef>, context: &Context) -> Option<LeaseRef> {
    context.work_index.with(&caller.key.namespace, |work| {
        let named = named.cloned().filter(|lease| work.holds(&caller.uid, lease));
        named.or_else(|| work.holding(&caller.uid).map(|holding| holding.held))
    })
}

/// Whether an agent may act. Pure.
fn judge(agent: &Agent, paused: bool, named: Option<&LeaseRef>, held: Option<&LeaseRef>) -> Result<(), Refusal> {
    if paused || is_paused(agent) {
        let message = "this agent is paused: it may make no calls until it is resumed";
        return Err(Refusal::new(Code::NotWorking, message));
    }
    match named {
        Some(lease) if held != Some(lease) => {
            let message = "this agent does not hold the item of this call any more: its lease ended, or another agent holds the item";
            Err(Refusal::new(Code::NotWorking, message).field("item"))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn agent(spec: Value, conditions: Value) -> Agent {
        let mut spec = spec;
        spec["poolRef"] = json!({"name": "p"});
        let status = json!({"conditions": conditions});
        serde_json::from_value(
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": spec, "status": status}),
        )
        .expect("an Agent")
    }

    #[test]
    fn an_agent_that_is_paused_or_lost_its_item_does_not_act() {
        let free = agent(json!({}), json!([]));
        let paused =
            json!([{"type": "Paused", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let lease = |epoch| LeaseRef { uid: "u".into(), epoch };
        let code = |result: Result<(), Refusal>| result.err().map(|refusal| refusal.code);
        let refused = Some(Code::NotWorking);
        assert_eq!(code(judge(&free, false, None, None)), None);
        assert_eq!(code(judge(&free, false, None, Some(&lease(1)))), None, "it need not name the item that it holds");
        assert_eq!(code(judge(&free, false, Some(&lease(1)), Some(&lease(1)))), None);
        assert_eq!(code(judge(&free, false, Some(&lease(1)), Some(&lease(2)))), refused, "an earlier lease");
        assert_eq!(code(judge(&free, false, Some(&lease(1)), None)), refused);
        assert_eq!(code(judge(&free, true, None, None)), refused);
        assert_eq!(code(judge(&agent(json!({"paused": true}), json!([])), false, None, None)), refused);
        assert_eq!(code(judge(&agent(json!({}), paused), false, None, None)), refused, "as an earlier leader stored it");
    }
}
