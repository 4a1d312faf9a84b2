//! The condition `QuotaApplied` of a Budget, which reports on its compute: the one place that makes it. Pure.
//!
//! The governor writes the rest of the status, and derives its own `Stalled` from a `QuotaApplied` with the reason
//! `ComputeConflict`. No condition may have two writers: if one of them left out a condition that it had applied,
//! fields of the other would be removed too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions::{reasons, types};
use crate::api::{Budget, BudgetStatus};
use crate::controller::conditions::{Builder, find};

/// The result of applying a Budget's compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The Budget sets no compute.
    Unset,
    /// Compute is in force, with these values.
    Applied(String),
    /// Compute is being applied: what it waits for.
    Waits(String),
    /// Compute is not in force: reason and message.
    Failed(&'static str, String),
    /// This older Budget binds instead.
    Conflict(String),
}

/// Our conditions, and whether they differ from the stored ones.
pub fn next_conditions(budget: &Budget, outcome: &Outcome, now: jiff::Timestamp) -> (Vec<Condition>, bool) {
    let stored = budget.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let to = Builder { stored, generation: budget.metadata.generation.unwrap_or(0), now };
    let conflict = |older: &str| {
        format!(
            "Budget/{older} is older and has spec.compute too. Only one Budget of a namespace may have it. Remove spec.compute from one of them"
        )
    };
    let told = |status: bool, reason: &str, message: String| to.build(types::QUOTA_APPLIED, status, reason, message);
    let next = match outcome {
        Outcome::Unset => Vec::new(),
        Outcome::Applied(words) => vec![told(true, reasons::APPLIED, words.clone())],
        Outcome::Waits(words) => vec![told(false, reasons::APPLYING, words.clone())],
        Outcome::Failed(reason, words) => vec![told(false, reason, words.clone())],
        Outcome::Conflict(older) => vec![told(false, reasons::COMPUTE_CONFLICT, conflict(older))],
    };
    let same = find(stored, types::QUOTA_APPLIED) == next.first();
    (next, !same)
}

/// The status to apply: only our own fields are in it.
pub fn applied(conditions: Vec<Condition>, epoch: i64) -> BudgetStatus {
    BudgetStatus { conditions, governor_epoch: Some(epoch), ..BudgetStatus::default() }
}

/// The change to report as an event: whether it is a warning, its reason and its note.
pub fn status_event(before: &Budget, next: &[Condition]) -> Option<(bool, String, String)> {
    let now = find(next, types::QUOTA_APPLIED)?;
    let was = before.status.as_ref().and_then(|status| find(&status.conditions, types::QUOTA_APPLIED));
    let same = was.is_some_and(|was| was.status == now.status && was.reason == now.reason);
    let passing = now.reason == reasons::APPLYING;
    (!same && !passing).then(|| (now.status != "True", now.reason.clone(), now.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn budget(conditions: &[Condition]) -> Budget {
        let mut budget: Budget = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget",
            "metadata": {"name": "b", "namespace": "n", "generation": 3}, "spec": {}, "status": {}}))
        .expect("a Budget");
        budget.status.as_mut().expect("a status").conditions = conditions.to_vec();
        budget
    }
    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).expect("a time")
    }
    fn foreign(type_: &str, reason: &str) -> Condition {
        let value: Value =
            json!({"type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(value).expect("a condition")
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let outcome = Outcome::Applied("ResourceQuota/spillway-b: pods 5".into());
        let (first, changed) = next_conditions(&budget(&[foreign("Ready", "Observed")]), &outcome, at(1));
        assert!(changed && first.len() == 1 && first[0].observed_generation == Some(3));
        let stored = [first, vec![foreign("Ready", "Observed")]].concat();
        assert!(!next_conditions(&budget(&stored), &outcome, at(9)).1, "only time has passed");
        assert!(next_conditions(&budget(&stored), &Outcome::Applied("more".into()), at(9)).1);
        assert_eq!(next_conditions(&budget(&stored), &Outcome::Unset, at(9)), (Vec::new(), true), "taken back");
        assert_eq!(next_conditions(&budget(&[foreign("Ready", "Observed")]), &Outcome::Unset, at(9)), (Vec::new(), false));
    }

    #[test]
    fn the_newer_one_names_the_older_and_leaves_what_others_say() {
        let stalled = foreign("Stalled", "ComputeConflict");
        let (told, changed) = next_conditions(&budget(std::slice::from_ref(&stalled)), &Outcome::Conflict("old".into()), at(1));
        assert!(changed && told.len() == 1 && told[0].type_ == "QuotaApplied" && told[0].status == "False");
        assert!(told[0].reason == "ComputeConflict" && told[0].message.contains("Budget/old"));
        let stored = budget(&[told, vec![stalled]].concat());
        assert!(!next_conditions(&stored, &Outcome::Conflict("old".into()), at(9)).1);
        assert!(next_conditions(&stored, &Outcome::Conflict("older".into()), at(9)).1, "another one binds now");
    }

    #[test]
    fn a_change_is_reported_once() {
        let refused = Outcome::Failed(reasons::QUOTA_REFUSED, "no".into());
        let (told, _) = next_conditions(&budget(&[]), &refused, at(1));
        assert_eq!(status_event(&budget(&[]), &told), Some((true, "QuotaRefused".into(), "no".into())));
        assert_eq!(status_event(&budget(&told), &told), None);
    }
}
