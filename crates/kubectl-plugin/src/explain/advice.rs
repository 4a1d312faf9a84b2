//! What to do about a reason, by one table (`table`) of all reasons that can stand on an Agent or an AgentPool. Pure.
//!
//! A reason without an entry still gets advice, from the condition it stands in: a newer operator may know more reasons
//! than this plugin.

mod table;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions::types;
use table::ADVICE_BY_REASON;

/// What a person may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// This.
    Do(&'static str),
    /// Nothing, and why.
    Nothing(&'static str),
}

use Advice::{Do, Nothing};

/// What the table says of a reason.
pub fn of(reason: &str) -> Option<Advice> {
    // Of a violated rule the reason names the rule too.
    let reason = reason.split('/').next().unwrap_or(reason);
    ADVICE_BY_REASON.iter().find(|(known, _)| *known == reason).map(|(_, advice)| *advice)
}

/// Whether a condition tells of something that is not as one would have it, or that explains a wait.
pub fn tells(condition: &Condition) -> bool {
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
        // SandboxEnforced, Heartbeating, BudgetAvailable, and what later versions may add: True is as it should be, and
        // Unknown is told by Ready where it matters.
        _ => condition.status == "False",
    }
}

/// What to do about a condition that tells something.
pub fn about(condition: &Condition) -> Advice {
    of(&condition.reason).unwrap_or(match condition.type_.as_str() {
        "Paused" => Do("`kubectl spillway resume {agent} -n {namespace}` lets it go on"),
        "GoodbyeRequested" => Nothing("it said goodbye and leaves; the pool makes another agent if it wants one"),
        "Heartbeating" => Do("nothing was heard from it: look at its node, and read `kubectl spillway logs {agent} --link -n {namespace}`"),
        "BudgetAvailable" => Do("raise the budget that the message names, or wait until its window turns"),
        types::SANDBOX_ENFORCED => Do("the sandbox that the pool requires is not in force: mend what the message names"),
        types::STALLED => Do("change what the message names: nothing goes on by itself"),
        types::BLOCKED => Do("mend what the message names: it then goes on by itself"),
        _ => Nothing("this version of the plugin knows no advice; the message says what there is"),
    })
}

/// Puts the names in. What is not known stays a word that a person replaces.
pub fn filled(advice: &str, names: &[(&str, Option<&str>)]) -> String {
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

    /// The constants of the module `reasons`, as they are written: a list made by hand would forget the next one.
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
        let missing: Vec<&str> = constants.into_iter().filter(|reason| of(reason).is_none()).collect();
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
            assert!(of(name.as_str().expect("a name")).is_some(), "{name}");
        }
    }

    #[test]
    fn no_reason_stands_twice_and_every_place_has_a_name() {
        for (at, (reason, advice)) in ADVICE_BY_REASON.iter().enumerate() {
            assert!(ADVICE_BY_REASON[..at].iter().all(|(other, _)| other != reason), "{reason} stands twice");
            let (Do(text) | Nothing(text)) = advice;
            let names = [("agent", Some("a")), ("pool", Some("p")), ("namespace", Some("n")), ("node", None), ("ended", None)];
            let text = filled(text, &names);
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
        assert!(matches!(about(&condition("Paused", "True")), Do(text) if text.contains("resume {agent}")));
        assert!(matches!(about(&condition("Novelty", "False")), Nothing(_)));
        assert!(tells(&condition("Ready", "False")) && tells(&condition("Ready", "Unknown")) && !tells(&condition("Ready", "True")));
        assert!(tells(&condition("Paused", "True")) && !tells(&condition("Paused", "False")));
        assert!(!tells(&condition("SandboxEnforced", "Unknown")) && tells(&condition("SandboxEnforced", "False")));
        assert_eq!(filled("{pool} on {node}", &[("pool", Some("p")), ("node", None)]), "p on NODE");
    }
}
