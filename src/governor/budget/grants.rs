//! Grants: tokens that a person adds to a limit. The start time is stored before the tokens count, as the time of the
//! condition Applied: so each Grant counts once, in the same window, whoever leads.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::Grant;
use crate::api::conditions::{reasons, types};
use crate::controller::conditions::{Builder, find};
use crate::policy::budget::share::LEAF_LIMIT_NAME;
use crate::policy::budget::{self, Key, Window};

/// The target of a Grant, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The target does not exist.
    Missing,
    /// The target has no limit of this name.
    NoSuchLimit,
    /// A Grant in this namespace may not raise the target.
    NotPermitted,
    /// A limit with this window.
    Limit(Key, Window),
}

/// The decision on a Grant.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantDecision {
    /// The conditions to be written.
    pub conditions: Vec<Condition>,
    /// The tokens that count, and their place. Set only if the stored status says that they count.
    pub counts: Option<(Key, budget::Grant)>,
}

/// Judges a Grant. Pure.
pub fn judge(grant: &Grant, target: &Target, now: Timestamp) -> GrantDecision {
    let none = Vec::new();
    let stored = grant.status.as_ref().map_or(&none, |status| &status.conditions);
    let build = Builder { stored, generation: grant.metadata.generation.unwrap_or(0), now: whole_second(now) };
    let since = find(stored, types::APPLIED).filter(|applied| applied.status == "True").map(|applied| applied.last_transition_time.0);
    let until = grant.spec.until_time.as_ref().map(|time| time.0);
    let late = until.is_some_and(|until| until <= now);
    let name = format!("{:?}/{}", grant.spec.target_ref.kind, grant.spec.target_ref.name);
    let limit = grant.spec.limit_name.clone().unwrap_or_else(|| LEAF_LIMIT_NAME.to_owned());
    let tokens = grant.spec.tokens;
    let applied = match (since, target) {
        // Applied stays true once it was: the tokens are spent, or will be.
        (Some(_), _) => build.build(types::APPLIED, true, reasons::GRANTED, format!("{tokens} tokens are added to the limit {limit}")),
        (None, Target::Missing) => build.build(
            types::APPLIED,
            false,
            reasons::TARGET_MISSING,
            format!("{name} (spec.targetRef) does not exist. The Grant applies as soon as it exists"),
        ),
        (None, Target::NoSuchLimit) => {
            build.build(types::APPLIED, false, reasons::LIMIT_MISSING, format!("{name} has no limit named {limit} (spec.limitName)"))
        }
        (None, Target::NotPermitted) => {
            let message = format!("{name} is not part of this namespace: create the Grant in the namespace that Spillway runs in");
            build.build(types::APPLIED, false, reasons::NOT_PERMITTED, message)
        }
        (None, Target::Limit(..)) if late => {
            build.build(types::APPLIED, false, reasons::TIME_OVER, "spec.untilTime was over before the Grant was applied")
        }
        (None, Target::Limit(..)) => {
            build.build(types::APPLIED, true, reasons::GRANTED, format!("{tokens} tokens are added to the limit {limit}"))
        }
    };
    let from = since.map(|since| since.as_millisecond());
    let counts = match (from, target) {
        (Some(from), Target::Limit(key, _)) => {
            let until = until.map(|until| until.as_millisecond());
            Some((key.clone(), budget::Grant { id: grant.uid().unwrap_or_default(), limit, tokens, from, until }))
        }
        (Some(_) | None, _) => None,
    };
    let window_over = match (from, until, target) {
        (Some(from), None, Target::Limit(_, window)) => window.at(from).end().is_some_and(|end| end <= now.as_millisecond()),
        (_, _, _) => false,
    };
    let expired = if late || window_over {
        build.build(types::EXPIRED, true, reasons::TIME_OVER, "the tokens of the Grant do not count any more")
    } else {
        build.build(types::EXPIRED, false, reasons::NOT_OVER, "the Grant has not expired")
    };
    GrantDecision { conditions: vec![applied, expired], counts }
}

/// Conditions have whole seconds: the decision must use the time that is stored.
fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Whether two lists of conditions are equal, except for messages and times.
pub fn same(one: &[Condition], other: &[Condition]) -> bool {
    let says = |condition: &Condition| (condition.type_.clone(), condition.status.clone(), condition.reason.clone());
    one.len() == other.len() && one.iter().map(says).eq(other.iter().map(says))
}

/// The status to be applied.
pub fn status(grant: &Grant, conditions: &[Condition]) -> crate::api::grant::GrantStatus {
    crate::api::grant::GrantStatus { observed_generation: grant.metadata.generation, conditions: conditions.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn grant(status: &[Condition], until: Option<i64>) -> Grant {
        let until = until.map(|until| Time(Timestamp::from_second(until).expect("a time")));
        serde_json::from_value(json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "Grant",
            "metadata": {"name": "g", "namespace": "team", "uid": "u", "generation": 1},
            "spec": {"targetRef": {"kind": "Budget", "name": "default"}, "limitName": "hourly", "tokens": 50, "untilTime": until},
            "status": {"conditions": status}
        }))
        .expect("a Grant")
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("a time")
    }

    fn said(judged: &GrantDecision) -> Vec<(String, String)> {
        judged.conditions.iter().map(|condition| (condition.status.clone(), condition.reason.clone())).collect()
    }

    #[test]
    fn it_counts_from_when_it_is_stored_and_in_that_window_whoever_leads() {
        let limit = Target::Limit(Key::budget("team", "default"), Window::Hour);
        let first = judge(&grant(&[], None), &limit, at(3_599_900));
        assert_eq!((said(&first)[0].clone(), first.counts), (("True".into(), "Granted".into()), None), "not before it is stored");
        let again = judge(&grant(&first.conditions, None), &limit, at(3_600_500));
        let (key, counts) = again.counts.clone().expect("it is stored");
        assert_eq!((key, counts.from, counts.tokens, counts.until), (Key::budget("team", "default"), 3_599_000, 50, None));
        assert_eq!(again.conditions[0], first.conditions[0], "and it stays when it was");
        assert_eq!(said(&again)[1], ("True".into(), "TimeOver".into()), "its window is over");
        assert!(same(&first.conditions, &judge(&grant(&first.conditions, None), &limit, at(3_599_950)).conditions));
    }

    #[test]
    fn what_cannot_count_says_why_and_what_counted_stays_applied() {
        let limit = Target::Limit(Key::budget("team", "default"), Window::Lifetime);
        let reason = |target: &Target, until| said(&judge(&grant(&[], until), target, at(5000)))[0].1.clone();
        assert_eq!(reason(&Target::Missing, None), "TargetMissing");
        assert_eq!(reason(&Target::NoSuchLimit, None), "LimitMissing");
        assert_eq!(reason(&Target::NotPermitted, None), "NotPermitted");
        assert_eq!(reason(&limit, Some(5)), "TimeOver", "late before it began");
        let applied = judge(&grant(&[], Some(9)), &limit, at(5000)).conditions;
        let gone = judge(&grant(&applied, Some(9)), &Target::Missing, at(6000));
        assert_eq!((said(&gone)[0].0.as_str(), gone.counts), ("True", None));
        assert_eq!(said(&judge(&grant(&applied, Some(9)), &limit, at(9000)))[1].0, "True");
    }
}
