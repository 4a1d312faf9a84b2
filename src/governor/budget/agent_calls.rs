//! Calls of agents about tokens: what is left of the budgets above them, and requests to people for more.
//!
//! It must not raise a limit. A request is shown by the status of the Agent, which its reconciler writes, and by an
//! event.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::calls;
use super::meter::{self, LimitedPlace};
use crate::api::{Agent, AgentPool};
use crate::controller::Context;
use crate::governor::caller::Caller;
use crate::governor::live::HumanRequest;
use crate::policy::budget::LimitView;
use crate::wire::Refusal;
use crate::wire::agent::Acknowledgement;
use crate::wire::budget::{AskTokens, Limit, RemainingTokens};
use crate::wire::shortage::LimitRoom;

/// How long the call waits until the request is stored: a status with only a new text is written at most every five
/// seconds. The agent calls again.
const TOKEN_REQUEST_STORE_TIMEOUT: Duration = Duration::from_secs(8);

/// Every limit that a call of the caller counts at, the nearest first.
pub fn left(caller: &Caller, agent: &Agent, pool: &AgentPool, context: &Context) -> Result<RemainingTokens, Refusal> {
    let places = calls::places(caller, agent, pool, context)?;
    let limits = context.meter.limits(&places);
    Ok(RemainingTokens { limits: limits.iter().flat_map(|limited| limited.views.iter().map(|view| limit(limited, view))).collect() })
}

fn limit(limited: &LimitedPlace, view: &LimitView) -> Limit {
    let LimitRoom { budget, name, limit, used, held, left, resets_at } = meter::room(&limited.key, view);
    Limit {
        budget,
        name,
        window: view.span.window.name().to_owned(),
        limit,
        used,
        held,
        left,
        resets: resets_at.and_then(|end| Timestamp::from_millisecond(end).ok()).map(|end| end.to_string()),
        enforced: limited.enforced,
        paused: view.paused,
    }
}

/// Asks people for more tokens for the caller, or withdraws the request.
pub async fn ask(caller: &Caller, agent: &Agent, request: &AskTokens, context: &Context) -> Result<Acknowledgement, Refusal> {
    context.live.ask(&caller.uid, human_request(agent, request));
    context.wake.agent(&caller.key);
    let stored = tokio::time::timeout(TOKEN_REQUEST_STORE_TIMEOUT, context.live.until_asks_are_stored(&caller.uid)).await;
    stored.map_err(|_| Refusal::unavailable("the request for tokens is not stored yet; try again"))?;
    tracing::info!(namespace = %caller.key.namespace, agent = %caller.key.name, tokens = request.tokens, "an agent asks for tokens");
    Ok(Acknowledgement {})
}

/// The request in one line, with the command that grants it.
fn human_request(agent: &Agent, AskTokens { tokens, reason }: &AskTokens) -> HumanRequest {
    if *tokens == 0 {
        return HumanRequest::Nothing;
    }
    let reason: Vec<&str> = reason.split_whitespace().collect();
    let (name, namespace) = (agent.name_any(), agent.namespace().unwrap_or_default());
    HumanRequest::Tokens(format!("{tokens} more: {} (`kubectl spillway grant agent/{name} {tokens} -n {namespace}`)", reason.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::{Key, Window};
    use serde_json::json;

    #[test]
    fn a_wish_is_one_line_and_says_how_it_is_granted() {
        let agent: Agent = serde_json::from_value(json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "namespace": "team"},
            "spec": {"poolRef": {"name": "p"}}
        }))
        .expect("an Agent");
        let ask = |tokens, reason: &str| human_request(&agent, &AskTokens { tokens, reason: reason.to_owned() });
        let words = "50000 more: two\u{2026} lines (`kubectl spillway grant agent/a 50000 -n team`)";
        assert_eq!(ask(50_000, " two\u{2026}\n\n\tlines "), HumanRequest::Tokens(words.to_owned()));
        assert_eq!(ask(0, "whatever"), HumanRequest::Nothing);
    }

    #[test]
    fn a_limit_says_when_it_begins_anew_and_whether_it_binds() {
        let key = Key::budget("team", "default");
        let view = LimitView {
            limit: "hourly".into(),
            span: Window::Hour.at(1_700_000_000_000),
            height: 100,
            used: 20,
            held: 30,
            lost: 4,
            unexplained: 0,
            debt: 1,
            reserved: 0,
            left: 45,
            least: 1,
            paused: false,
            reaping: false,
        };
        let limited = LimitedPlace { key, enforced: true, views: vec![view.clone()] };
        let said = limit(&limited, &view);
        assert_eq!((said.limit, said.used, said.held, said.left), (100, 25, 30, 45), "what is lost or owed counts as used");
        assert_eq!((said.window.as_str(), said.resets.as_deref()), ("Hour", Some("2023-11-14T23:00:00Z")));
        assert_eq!((said.budget.as_str(), said.enforced), ("Budget/default in team", true));
        let life = LimitView { span: Window::Lifetime.at(0), ..view };
        assert_eq!(limit(&limited, &life).resets, None);
    }
}
