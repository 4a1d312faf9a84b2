//! Plans in the agents' API: many items that are submitted at once and depend on each other.
//!
//! A plan is accepted as a whole or not at all. None of its items is given out before all of them exist.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::Submit;

/// Maximum number of steps of a plan.
pub const MAX_PLAN_STEPS: usize = 100;
/// Maximum number of characters of a step's key.
const MAX_STEP_KEY_CHARS: usize = 63;

/// `POST /agent/v1/plan`: submits many items at once. It can be repeated with the same `Idempotency-Key` header, which
/// is unique for the caller, or the same `dedupKey`, which is unique for the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Deduplication key: at most one plan with the same key exists. A repeated request, for instance after the loss of
    /// another agent, gets the same plan.
    #[serde(default)]
    pub dedup_key: Option<String>,
    /// The steps, at most 100, in any order.
    pub steps: Vec<Step>,
}

/// One item of a [`Plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// Name of the step within the plan, at most 63 characters.
    pub key: String,
    /// Keys of the steps that must have succeeded before this one starts.
    #[serde(default)]
    pub after: Vec<String>,
    /// The item. Its own `after` names items outside the plan. It must not have a `dedupKey`.
    pub item: Submit,
}

impl BoundedBody for Plan {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("dedupKey", self.dedup_key.as_deref().unwrap_or_default(), 253)?;
        if self.steps.is_empty() || self.steps.len() > MAX_PLAN_STEPS {
            return Err(("steps", format!("must have 1 to {MAX_PLAN_STEPS} entries, but has {}", self.steps.len())));
        }
        let mut keys = BTreeSet::new();
        for Step { key, after, item } in &self.steps {
            at_most("steps.key", key, MAX_STEP_KEY_CHARS)?;
            if key.is_empty() {
                return Err(("steps.key", "must not be empty".into()));
            }
            if !keys.insert(key.as_str()) {
                return Err(("steps.key", format!("step {key:?} occurs twice")));
            }
            if after.len() + item.after.len() > 32 {
                return Err((
                    "steps.after",
                    format!("step {key:?} must wait for at most 32 items, but waits for {}", after.len() + item.after.len()),
                ));
            }
            // The key could belong to an item of another plan. This step would then wait for that item in vain.
            if item.dedup_key.is_some() {
                return Err(("steps.item.dedupKey", format!("step {key:?} must not have a dedupKey: set the one of the plan")));
            }
            item.check().map_err(|(field, trouble)| (step_field_path(field), format!("step {key:?}: {trouble}")))?;
        }
        for Step { key, after, .. } in &self.steps {
            if let Some(unknown) = after.iter().find(|other| !keys.contains(other.as_str())) {
                return Err(("steps.after", format!("step {key:?} waits for {unknown:?}, which is not a step of the plan")));
            }
        }
        self.find_cycle()
            .map_or(Ok(()), |key| Err(("steps.after", format!("step {key:?} waits for itself, directly or through other steps"))))
    }
}

/// The path of a field of a step's item.
fn step_field_path(field: &str) -> &'static str {
    match field {
        "queue" => "steps.item.queue",
        "type" => "steps.item.type",
        "group" => "steps.item.group",
        "concurrencyKey" => "steps.item.concurrencyKey",
        "after" => "steps.item.after",
        "requires.tools" => "steps.item.requires.tools",
        "requires.models" => "steps.item.requires.models",
        "requires.urls" => "steps.item.requires.urls",
        "requires.accounts" => "steps.item.requires.accounts",
        "requires.volumes" => "steps.item.requires.volumes",
        "requires.repositories" => "steps.item.requires.repositories",
        _ => "steps.item",
    }
}

impl Plan {
    /// Returns a step that waits for itself, directly or through other steps.
    fn find_cycle(&self) -> Option<&str> {
        let mut left: BTreeMap<&str, BTreeSet<&str>> =
            self.steps.iter().map(|step| (step.key.as_str(), step.after.iter().map(String::as_str).collect())).collect();
        while let Some((&free, _)) = left.iter().find(|(_, after)| after.iter().all(|key| !left.contains_key(key))) {
            left.remove(free);
        }
        left.keys().next().copied()
    }
}

/// An accepted plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Name of the plan: `spec.plan.id` of its items.
    pub plan: String,
    /// Its items, in the order of the steps.
    pub items: Vec<PlannedItem>,
}

/// An item of an accepted plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedItem {
    /// Key of the step.
    pub key: String,
    /// Name of the item.
    pub name: String,
    /// Uid of the item.
    pub uid: String,
    /// Queue of the item.
    pub queue: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::read;

    fn step(key: &str, after: &[&str]) -> Step {
        let item = Submit { queue: Some("bugs".into()), ..Submit::default() };
        Step { key: key.into(), after: after.iter().map(|key| (*key).to_owned()).collect(), item }
    }

    fn refused(steps: Vec<Step>) -> String {
        let text = serde_json::to_string(&Plan { steps, dedup_key: None }).expect("JSON");
        read::<Plan>(text.as_bytes()).expect_err("refused").field.expect("a field")
    }

    #[test]
    fn a_plan_that_could_not_be_carried_out_is_refused_by_name() {
        assert_eq!(refused(vec![]), "steps");
        assert_eq!(refused((0..=MAX_PLAN_STEPS).map(|at| step(&at.to_string(), &[])).collect()), "steps");
        assert_eq!(refused(vec![step("a", &[]), step("a", &[])]), "steps.key");
        assert_eq!(refused(vec![step("", &[])]), "steps.key");
        assert_eq!(refused(vec![step("a", &["b"])]), "steps.after");
        assert_eq!(refused(vec![step("a", &["a"])]), "steps.after");
        assert_eq!(refused(vec![step("x", &[]), step("a", &["b", "x"]), step("b", &["a"])]), "steps.after");
        let keyed = Submit { queue: Some("bugs".into()), dedup_key: Some("one".into()), ..Submit::default() };
        assert_eq!(refused(vec![Step { item: keyed, ..step("a", &[]) }]), "steps.item.dedupKey");
        assert_eq!(refused(vec![Step { item: Submit::default(), ..step("a", &[]) }]), "steps.item.queue");
    }

    #[test]
    fn a_plan_of_many_that_wait_for_one_another_is_taken() {
        let steps = vec![step("a", &[]), step("b", &["a"]), step("c", &["a"]), step("d", &["b", "c"])];
        let plan = Plan { steps, dedup_key: Some("issue-7".into()) };
        assert_eq!(read::<Plan>(serde_json::to_string(&plan).expect("JSON").as_bytes()), Ok(plan));
    }
}
