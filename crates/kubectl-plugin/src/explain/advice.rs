//! The advice for a reason. One table (`table`) has the reasons that an Agent or an AgentPool can have, and
//! others those of the changes of items (`changesets`), of the sandbox (`sandbox`) and of Toolsets (`toolsets`). Pure.
//!
//! A reason without an entry gets the advice of its condition type, because a newer operator may have more reasons than
//! this plugin knows.

mod changesets;
mod sandbox;
mod table;
mod toolsets;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions::types;
use changesets::CHANGESET_ADVICE;
use sandbox::SANDBOX_ADVICE;
use table::ADVICE_BY_REASON;
use toolsets::TOOLSET_ADVICE;

/// Advice for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// An action.
    Do(&'static str),
    /// No action is needed; the text says why.
    Nothing(&'static str),
}

use Advice::{Do, Nothing};

fn table() -> impl Iterator<Item = &'static (&'static str, Advice)> {
    ADVICE_BY_REASON.iter().chain(CHANGESET_ADVICE).chain(SANDBOX_ADVICE).chain(TOOLSET_ADVICE)
}

/// The advice of the table for a reason.
pub fn for_reason(reason: &str) -> Option<Advice> {
    // The reason of a violated rule is `RuleViolated/RULE`.
    let reason = reason.split('/').next().unwrap_or(reason);
    table().find(|(known, _)| *known == reason).map(|(_, advice)| *advice)
}

/// Whether a condition shows a problem, or explains a wait.
pub fn shows_problem(condition: &Condition) -> bool {
    match condition.type_.as_str() {
        types::RECONCILING
        | types::STALLED
        | types::BLOCKED
        | types::SCALED_TO_ZERO
        | types::AT_MAX
        | "Paused"
        | "GoodbyeRequested"
        | types::TOKENS_REQUESTED => condition.status == "True",
        types::READY => condition.status != "True",
        // SandboxEnforced, Heartbeating, BudgetAvailable, and types of later versions: True is good, and Ready shows Unknown
        // where it matters.
        _ => condition.status == "False",
    }
}

/// The advice for a condition for which [`shows_problem`] holds.
pub fn for_condition(condition: &Condition) -> Advice {
    for_reason(&condition.reason).unwrap_or(match condition.type_.as_str() {
        "Paused" => Do("`kubectl spillway resume {agent} -n {namespace}` resumes the agent"),
        "GoodbyeRequested" => Nothing("the agent said goodbye and leaves. The pool creates another agent if it wants one"),
        "Heartbeating" => {
            Do("the agent sends no heartbeats: check its node, and read `kubectl spillway logs {agent} --link -n {namespace}`")
        }
        "BudgetAvailable" => Do("raise the budget that the message names, or wait for its next window"),
        types::SANDBOX_ENFORCED => Do("the sandbox that the pool requires is not in force: fix what the message names"),
        types::STALLED => Do("change what the message names. The object does not continue without a change"),
        types::BLOCKED => Do("fix what the message names. The object then continues automatically"),
        _ => Nothing("this version of the plugin has no advice for this reason. Read the message of the condition"),
    })
}

/// Replaces the placeholders with names. A name that is not known becomes a word in capitals, which the user replaces.
pub fn with_names(advice: &str, names: &[(&str, Option<&str>)]) -> String {
    names.iter().fold(advice.to_owned(), |text, (place, name)| {
        let word = name.map_or_else(|| place.to_uppercase(), str::to_owned);
        text.replace(&format!("{{{place}}}"), &word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::agent_pool::Signal;
    use serde_json::json;

    /// The constants of the module `reasons`, read from its source. A list written by hand would miss new reasons.
    fn constants() -> Vec<&'static str> {
        let source = include_str!("../../../api/src/conditions.rs");
        let (_, module) = source.split_once("pub mod reasons {").expect("the module of the reasons");
        let values = module.lines().filter(|line| line.trim_start().starts_with("pub const")).filter_map(|line| line.split('"').nth(1));
        values.collect()
    }

    #[test]
    fn every_reason_has_advice() {
        let constants = constants();
        assert!(constants.len() > 30 && constants.contains(&"QuotaExceeded"), "{constants:?}");
        let missing: Vec<&str> = constants.into_iter().filter(|reason| for_reason(reason).is_none()).collect();
        assert!(missing.is_empty(), "without an entry in TABLE, explain has no advice on: {missing:?}");
    }

    #[test]
    fn every_signal_has_advice() {
        for signal in [
            Signal::HeartbeatLost,
            Signal::ProgramSilent,
            Signal::CrashLoop,
            Signal::OOMKilled,
            Signal::TokenBudgetExceeded,
            Signal::BudgetNearLimit,
            Signal::OperationTimeout,
            Signal::ChronicTimeout,
            Signal::ItemStalled,
            Signal::ItemPastTime,
            Signal::ObjectiveMissed,
            Signal::BadChangeset,
            Signal::RuleViolated,
            Signal::GangDivergence,
        ] {
            let name = json!(signal);
            assert!(for_reason(name.as_str().expect("a name")).is_some(), "{name}");
        }
    }

    #[test]
    fn no_reason_stands_twice_and_every_place_has_a_name() {
        let all: Vec<_> = table().collect();
        for (at, (reason, advice)) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|(other, _)| other != reason), "{reason} stands twice");
            let (Do(text) | Nothing(text)) = advice;
            let names = [("agent", Some("a")), ("pool", Some("p")), ("namespace", Some("n")), ("node", None), ("ended", None)];
            let text = with_names(text, &names);
            assert!(!text.contains(['{', '}']), "{reason}: {text}");
        }
    }

    #[test]
    fn what_is_not_known_has_advice_from_its_condition() {
        let condition = |type_: &str, status: &str| -> Condition {
            serde_json::from_value(
                json!({"type": type_, "status": status, "reason": "Novel", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
            )
            .expect("a condition")
        };
        assert!(matches!(for_condition(&condition("Paused", "True")), Do(text) if text.contains("resume {agent}")));
        assert!(matches!(for_condition(&condition("Novelty", "False")), Nothing(_)));
        assert!(
            shows_problem(&condition("Ready", "False"))
                && shows_problem(&condition("Ready", "Unknown"))
                && !shows_problem(&condition("Ready", "True"))
        );
        assert!(shows_problem(&condition("Paused", "True")) && !shows_problem(&condition("Paused", "False")));
        assert!(!shows_problem(&condition("SandboxEnforced", "Unknown")) && shows_problem(&condition("SandboxEnforced", "False")));
        assert_eq!(with_names("{pool} on {node}", &[("pool", Some("p")), ("node", None)]), "p on NODE");
    }
}
