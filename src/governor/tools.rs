//! Tools: which Toolsets an agent may call, by its pool, where their bridges are, and whether a person has approved a call.
//!
//! It must not read a request of MCP: bridges do.

use kube::ResourceExt;
use serde_json::Value;

use super::caller::{Caller, identify};
use super::{approvals, lease_check};
use crate::api::AgentPoolSpec;
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::interventions::{Signal, Violation};
use crate::wire::tools::{ToolStep, ToolsetRequest, ToolsetTarget};
use crate::wire::{Code, Refusal, body};

/// The reason of a denial: the pool does not list the Toolset.
const NOT_LISTED: &str = "NotListed";
/// Seconds after which a program may call a Toolset again that has no bridge yet.
const RETRY_SECONDS: u32 = 5;

/// Answers a gateway's question for an agent. A call that a bridge rejected counts for the agent's supervision.
pub async fn of_agent(caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let agent = identify(caller, context).await?;
    if agent.spec.external.is_some() {
        return Err(Refusal::new(Code::NotAllowed, "agents outside the cluster start a bridge of their own (spillway bridge)"));
    }
    let ToolsetRequest { toolset, item, step } = body::read(bytes)?;
    let to_approve = match step {
        ToolStep::Rejected => {
            let words = format!("Toolset/{toolset} rejected a call");
            context.live.raise(&caller.uid, Signal::RuleViolated(Violation::ToolRejected), Some(words));
            context.wake.agent(&caller.key);
            return Ok(Value::Null);
        }
        ToolStep::Call => None,
        ToolStep::Approval(call) => Some(call),
    };
    lease_check::may_act(caller, &agent, item.as_ref(), context)?;
    let stored = context.stores.pool(&caller.key.namespace, &agent.spec.pool_ref.name);
    let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok());
    let pool = pool.ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))?;
    if !lists(&pool.spec, &toolset) {
        let message = format!("Toolset/{toolset} is denied: spec.toolsets of AgentPool/{} does not list it", pool.name_any());
        return Err(Refusal::new(Code::ToolsDenied, message).reason(NOT_LISTED));
    }
    let served = context.toolsets.get(&ObjectKey { namespace: caller.key.namespace.clone(), name: toolset.clone() });
    let served = served.ok_or_else(|| {
        let message = format!("Toolset/{toolset} is not served now: its condition Ready says why");
        Refusal::new(Code::DestinationUnreachable, message).retry_after(RETRY_SECONDS)
    })?;
    if let Some(call) = to_approve {
        // The gateway names the item that it told to the bridge. An item that the agent has taken since is another one.
        let asked = approvals::ApprovalRequest { toolset, call, item, timeout_seconds: served.approval_timeout_seconds };
        return Ok(serde_json::json!(approvals::ask(caller, &agent, asked, context).await?));
    }
    let held = lease_check::lease_of(caller, item.as_ref(), context);
    let target = ToolsetTarget { address: served.address.to_string(), service_account: served.service_account, item: held };
    Ok(serde_json::json!(target))
}

fn lists(spec: &AgentPoolSpec, toolset: &str) -> bool {
    spec.toolsets.iter().flatten().any(|listed| listed.name == toolset)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_gives_the_toolsets_that_it_lists() {
        let spec = |toolsets: Value| -> AgentPoolSpec {
            let spec = json!({"type": "t", "agent": {"image": "i", "command": ["c"]}, "toolsets": toolsets});
            serde_json::from_value(spec).expect("a pool")
        };
        let both = spec(json!([{"name": "deploy"}, {"name": "data"}]));
        assert!(lists(&both, "deploy") && lists(&both, "data") && !lists(&both, "deplo") && !lists(&both, ""));
        assert!(!lists(&spec(json!(null)), "deploy"));
    }
}
