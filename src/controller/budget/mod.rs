//! The controller of Budgets: turns `spec.compute` into a ResourceQuota and a LimitRange of the namespace. The governor
//! counts tokens.
//!
//! The Budget owns both objects by an owner reference, so they are deleted with it. Which of several Budgets binds
//! follows from the Budgets alone (policy), so a crash, a stale cache or two leaders lead to the same objects: each
//! write contains the whole desired object, and a deletion names the uid. It must not take over a foreign object, or
//! write when nothing changed.

mod build;
mod defaults;
mod status;
mod waiting;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::{Context, NextLook, jittered};
use super::status_throttle::publish;
use super::stores::BudgetObject;
use crate::api::conditions::reasons;
use crate::api::names::managers;
use crate::api::shared::Mode;
use crate::api::{Budget, names};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::policy::compute::{Claimant, ComputeAction, act, binding};
use build::{ComputeObject, stored};
use status::Outcome;

pub use defaults::{ensure as ensure_defaults, remove_unused};
pub use waiting::WaitingNamespaces;

/// Name of this controller in metrics and logs.
pub const CONTROLLER_NAME: &str = "budget";
/// How often a Budget without events is reconciled, in case an event was missed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// Retry delay while the cache does not show our own last write. Usually the watch event of that write comes earlier.
const GATE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Reconciles one Budget: observe, plan, apply, write the status.
pub async fn reconcile(object: Arc<BudgetObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = ObjectKey::of(object.as_ref());
    let budget = match &object.0 {
        Ok(budget) => budget,
        Err(invalid) => {
            if context.is_new_error(CONTROLLER_NAME, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, budget = %key.name, error = %invalid.error, "a stored Budget does not fit its type; it is left alone");
                let note = format!(
                    "the stored object does not fit its type, so the operator ignores it. Apply the current CustomResourceDefinitions, then the object: {}",
                    invalid.error
                );
                context.events.warning(object.as_ref(), reasons::INVALID_OBJECT, "Validate", note).await;
            }
            return Ok(Action::await_change());
        }
    };
    if budget.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change()); // what it owns goes with it
    }
    context.reconcile(CONTROLLER_NAME, key.clone(), reconcile_budget(budget, &key, &context)).await
}

/// The action after a failed reconcile.
pub fn after_error(object: Arc<BudgetObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER_NAME, ObjectKey::of(object.as_ref()), error)
}

/// Forgets a deleted Budget.
pub fn forget(key: &ObjectKey, context: &Context) {
    context.forget(CONTROLLER_NAME, key);
    context.budget_gate.forget(key);
}

async fn reconcile_budget(budget: &Budget, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
    if !context.budget_gate.open(key, budget.metadata.resource_version.as_deref()) {
        context.metrics.gated(CONTROLLER_NAME);
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    if !seen(&context.stores.quotas, key, context) || !seen(&context.stores.ranges, key, context) {
        context.metrics.gated(CONTROLLER_NAME);
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    if defaults::remove_unused(budget, key, context).await? {
        return Ok(NextLook::OnChange);
    }
    let standing = compute_claim(budget, key, context);
    let binds = matches!(standing, ComputeClaim::Binds);
    let quota = apply_object::<ResourceQuota>(budget, binds, &context.stores.quotas, key, context).await?;
    let range = apply_object::<LimitRange>(budget, binds, &context.stores.ranges, key, context).await?;
    let outcome = outcome(standing, [quota, range]);
    write_conditions(budget, key, &outcome, context).await?;
    Ok(match outcome {
        Outcome::Failed(..) | Outcome::Waits(_) if binds => NextLook::WithBackoff,
        Outcome::Failed(..) | Outcome::Waits(_) | Outcome::Unset | Outcome::Applied(_) | Outcome::Conflict(_) => {
            NextLook::After(jittered(RESYNC_INTERVAL))
        }
    })
}

/// Whether the compute of a Budget binds its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ComputeClaim {
    /// The Budget sets no compute.
    Unset,
    /// The Budget sets compute, and its mode is not Enforce.
    Off,
    /// The Budget binds.
    Binds,
    /// This older Budget binds instead.
    Superseded(String),
}

fn compute_claim(budget: &Budget, key: &ObjectKey, context: &Context) -> ComputeClaim {
    if !sets_compute(budget) {
        return ComputeClaim::Unset;
    }
    if budget.spec.mode != Mode::Enforce {
        return ComputeClaim::Off;
    }
    let others = context.stores.budgets_of(&key.namespace);
    // The Budget itself is taken as it was read: the cache may contain another version, and its age never changes.
    let all = others.iter().filter_map(|other| other.0.as_ref().ok()).filter(|other| other.name_any() != key.name).chain([budget]);
    match binding(all.filter(|budget| claims(budget)).map(claimant)) {
        Some(first) if first.name != key.name => ComputeClaim::Superseded(first.name),
        Some(_) | None => ComputeClaim::Binds,
    }
}

fn sets_compute(budget: &Budget) -> bool {
    budget
        .spec
        .compute
        .as_ref()
        .is_some_and(|compute| ResourceQuota::desired(budget, compute).is_some() || LimitRange::desired(budget, compute).is_some())
}

fn claims(budget: &Budget) -> bool {
    sets_compute(budget) && budget.spec.mode == Mode::Enforce && budget.metadata.deletion_timestamp.is_none()
}

fn claimant(budget: &Budget) -> Claimant {
    Claimant { created: budget.creation_timestamp().map_or(i64::MAX, |time| time.0.as_second()), name: budget.name_any() }
}

/// The result for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ComputeOutcome {
    /// No object is desired, and we have none.
    None,
    /// The object is in force, with these values.
    InForce(String),
    /// An object with its name must be deleted first.
    Waits(String),
    /// The object is not in force: reason and message.
    Failed(&'static str, String),
}

/// Kind and name of an object of a Budget.
fn slot<K: ComputeObject>(key: &ObjectKey) -> (String, ObjectKey) {
    (K::kind(&()).into_owned(), ObjectKey { namespace: key.namespace.clone(), name: names::compute_name(&key.name) })
}

fn cached<K: ComputeObject + Clone + 'static>(cache: &Store<K>, key: &ObjectKey) -> Option<Arc<K>> {
    cache.get(&ObjectRef::new(&key.name).within(&key.namespace))
}

/// Whether the cache shows our own last write of an object.
fn seen<K: ComputeObject + Clone + 'static>(cache: &Store<K>, key: &ObjectKey, context: &Context) -> bool {
    let slot = slot::<K>(key);
    let version = cached(cache, &slot.1).and_then(|object| object.resource_version());
    context.compute_gate.open(&slot, version.as_deref())
}

/// Applies one object, or deletes it if it is not desired.
async fn apply_object<K>(
    budget: &Budget,
    binds: bool,
    cache: &Store<K>,
    key: &ObjectKey,
    context: &Context,
) -> Result<ComputeOutcome, Error>
where
    K: ComputeObject + Serialize + DeserializeOwned + Clone + Debug + 'static,
{
    let wanted = budget.spec.compute.as_ref().filter(|_| binds).and_then(|compute| K::desired(budget, compute));
    let slot = slot::<K>(key);
    let name = slot.1.name.clone();
    let seen = cached(cache, &slot.1);
    let api = context.api::<K>(&key.namespace);
    let mut stands = stored(seen.as_deref(), wanted.as_ref(), budget);
    if wanted.is_some() && seen.is_none() {
        // The watch shows only objects with our label. An apply would take over an object without it.
        let live = api.get_opt(&name).await.map_err(Error::of("reading an object of a Budget"))?;
        stands = stored(live.as_ref(), wanted.as_ref(), budget);
    }
    let there = format!("{}/{name}", slot.0);
    match act(wanted.is_some(), &stands) {
        ComputeAction::Keep => Ok(wanted.map_or(ComputeOutcome::None, |wanted| ComputeOutcome::InForce(wanted.description()))),
        ComputeAction::Wait => Ok(ComputeOutcome::Waits(format!("{there} is being deleted, and is created again afterwards"))),
        ComputeAction::Refuse => Ok(ComputeOutcome::Failed(
            reasons::NAME_TAKEN,
            format!("{there} exists and does not belong to this Budget. Delete it, or give the Budget another name"),
        )),
        ComputeAction::Delete(uid) => {
            context.leadership.confirm().await?;
            let deleted = calls::delete(&api, &name, &uid, None).await?;
            if let Some(meta) = deleted {
                context.compute_gate.deleted(slot, meta.resource_version.as_deref());
            }
            tracing::info!(namespace = %key.namespace, budget = %key.name, object = %there, "deleted an object that spec.compute of the Budget does not require");
            Ok(wanted.map_or(ComputeOutcome::None, |_| {
                ComputeOutcome::Waits(format!(
                    "{there} belongs to a former Budget of this name. It is being deleted, and is created again afterwards"
                ))
            }))
        }
        ComputeAction::Apply => {
            let Some(wanted) = wanted else { return Ok(ComputeOutcome::None) };
            context.leadership.check()?;
            match calls::apply(&api, &wanted, managers::COMPUTE).await {
                Ok(made) => {
                    context.compute_gate.wrote(slot, made.meta().resource_version.as_deref());
                    tracing::info!(namespace = %key.namespace, budget = %key.name, says = %wanted.description(), "applied spec.compute of a Budget");
                    Ok(ComputeOutcome::InForce(wanted.description()))
                }
                Err(error) => match error.class() {
                    Class::Refused | Class::QuotaExceeded | Class::Terminating => {
                        Ok(ComputeOutcome::Failed(reasons::QUOTA_REFUSED, error.message()))
                    }
                    Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => Err(error),
                },
            }
        }
    }
}

/// The common result for both objects.
fn outcome(standing: ComputeClaim, settled: [ComputeOutcome; 2]) -> Outcome {
    let mut there = Vec::new();
    let (mut waits, mut failed) = (None, None);
    for piece in settled {
        match piece {
            ComputeOutcome::None => {}
            ComputeOutcome::InForce(words) => there.push(words),
            ComputeOutcome::Waits(words) => waits = waits.or(Some(words)),
            ComputeOutcome::Failed(reason, words) => failed = failed.or(Some((reason, words))),
        }
    }
    match standing {
        ComputeClaim::Unset => Outcome::Unset,
        ComputeClaim::Off => {
            Outcome::Failed(reasons::NOT_ENFORCED, "spec.mode is not Enforce, so compute is neither limited nor counted".to_owned())
        }
        ComputeClaim::Superseded(older) => Outcome::Conflict(older),
        ComputeClaim::Binds => match (failed, waits) {
            (Some((reason, words)), _) => Outcome::Failed(reason, words),
            (None, Some(words)) => Outcome::Waits(words),
            (None, None) => Outcome::Applied(there.join("; ")),
        },
    }
}

/// Writes the conditions if they changed, and reports transitions as events.
async fn write_conditions(budget: &Budget, key: &ObjectKey, outcome: &Outcome, context: &Context) -> Result<(), Error> {
    let (next, changed) = status::next_conditions(budget, outcome, jiff::Timestamp::now());
    if !changed {
        return Ok(());
    }
    let news = status::status_event(budget, &next);
    let api = context.api::<Budget>(&key.namespace);
    let stored = publish(context, &api, budget, managers::COMPUTE, &status::applied(next, context.epoch)).await?;
    context.budget_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
    if let Some((warning, reason, note)) = news {
        if warning {
            context.events.warning(budget, &reason, "ApplyCompute", note).await;
        } else {
            context.events.normal(budget, &reason, "ApplyCompute", note).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_both_objects_is_reported() {
        let there = |words: &str| ComputeOutcome::InForce(words.to_owned());
        let failed = || ComputeOutcome::Failed(reasons::QUOTA_REFUSED, "no".into());
        let cases = [
            (ComputeClaim::Unset, [ComputeOutcome::None, ComputeOutcome::None], Outcome::Unset),
            (ComputeClaim::Binds, [there("q"), there("r")], Outcome::Applied("q; r".into())),
            (ComputeClaim::Binds, [there("q"), ComputeOutcome::None], Outcome::Applied("q".into())),
            (ComputeClaim::Binds, [ComputeOutcome::Waits("w".into()), there("r")], Outcome::Waits("w".into())),
            (ComputeClaim::Binds, [ComputeOutcome::Waits("w".into()), failed()], Outcome::Failed(reasons::QUOTA_REFUSED, "no".into())),
            (ComputeClaim::Superseded("old".into()), [ComputeOutcome::None, ComputeOutcome::None], Outcome::Conflict("old".into())),
        ];
        for (standing, settled, expected) in cases {
            assert_eq!(outcome(standing, settled), expected);
        }
    }
}
