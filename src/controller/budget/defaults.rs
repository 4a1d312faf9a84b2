//! `Budget/default` of a namespace whose pools name none: made once, so that there is an object to look at and to edit, and
//! removed with the last pool if nobody did.
//!
//! It says nothing: what is unset counts as everywhere, and whoever keeps Budgets in Git may apply theirs over it without a
//! conflict. That it was made is remembered on the namespace's own ConfigMap, which outlives pools and goes with the
//! namespace: a person who deletes the Budget does not get it again. It is made first and remembered then; a crash in between
//! is mended by the next look, which finds it with our annotation.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use crate::api::names::{self, managers};
use crate::api::{AgentPool, Budget};
use crate::cluster::clock::BootTime;
use crate::cluster::{Class, Error, calls};
use crate::controller::context::{Context, Key};
use crate::controller::stores::{BudgetObject, PoolObject};

/// So long a namespace is without any Budget before it gets one: whoever applies pools from Git applies Budgets with them.
const AFTER: Duration = Duration::from_secs(60);

/// Since when namespaces with a pool are without any Budget: in memory, for as long as we lead.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<HashMap<String, BootTime>>);

impl Waiting {
    /// How long until the namespace gets one; `None`: now.
    fn left(&self, namespace: &str) -> Option<Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.entry(namespace.to_owned()).or_insert_with(BootTime::now);
        AFTER.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    fn forget(&self, namespace: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }
}

/// Makes `Budget/default` where it is due. Gives back when to look again for it.
pub async fn ensure(pool: &AgentPool, key: &Key, context: &Context) -> Result<Option<Duration>, Error> {
    if pool.spec.budget_ref.is_some() {
        return Ok(None);
    }
    let namespace = &key.namespace;
    let budgets = context.stores.budgets_of(namespace);
    let unmarked =
        budgets.iter().any(|budget| budget.name_any() == names::DEFAULT && budget.annotations().contains_key(names::DEFAULT_ANNOTATION));
    if !budgets.is_empty() || marked(namespace, context) {
        context.waiting.forget(namespace);
        if unmarked && !marked(namespace, context) {
            gently(mark(namespace, true, context).await)?;
        }
        return Ok(None);
    }
    if let Some(left) = context.waiting.left(namespace) {
        return Ok(Some(left));
    }
    // A try that is refused comes again after as long.
    context.waiting.forget(namespace);
    gently(make(namespace, context).await)?;
    Ok(Some(AFTER))
}

/// It is a convenience: where it cannot be had, pools go on.
fn gently(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.class() == Class::LostLeadership => Err(error),
        Err(error) => {
            tracing::warn!(%error, "Budget/default could not be made");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether it was made once.
fn marked(namespace: &str, context: &Context) -> bool {
    let map = context.stores.bundle(&Key { namespace: namespace.to_owned(), name: names::CA_CONFIG_MAP.to_owned() });
    map.is_some_and(|map| map.annotations().contains_key(names::DEFAULT_MADE_ANNOTATION))
}

async fn mark(namespace: &str, made: bool, context: &Context) -> Result<(), Error> {
    context.leadership.check()?;
    let value = if made { json!("true") } else { json!(null) };
    let api = context.api::<ConfigMap>(namespace);
    calls::annotate(&api, names::CA_CONFIG_MAP, managers::DEFAULTS, json!({names::DEFAULT_MADE_ANNOTATION: value})).await?;
    Ok(())
}

async fn make(namespace: &str, context: &Context) -> Result<(), Error> {
    let api = context.api::<Budget>(namespace);
    let any = context.api::<BudgetObject>(namespace).list(&ListParams::default().limit(1)).await.map_err(Error::of("listing Budgets"))?;
    if !any.items.is_empty() {
        return Ok(());
    }
    context.leadership.check()?;
    let body = json!({"metadata": {"namespace": namespace, "annotations": {names::DEFAULT_ANNOTATION: "true"}}, "spec": {}});
    calls::apply_gently(&api, names::DEFAULT, managers::DEFAULTS, body).await?;
    tracing::info!(namespace, "made Budget/default: the pools of this namespace name no Budget, and there was none");
    mark(namespace, true, context).await
}

/// Removes `Budget/default` if we made it, nobody else wrote it, and no pool is left. Whether it is gone.
pub async fn remove_unused(budget: &Budget, key: &Key, context: &Context) -> Result<bool, Error> {
    let ours = key.name == names::DEFAULT && budget.annotations().contains_key(names::DEFAULT_ANNOTATION);
    let pools = || context.stores.pools.state_filter(|pool| pool.namespace().as_deref() == Some(&key.namespace));
    if !ours || !pools().is_empty() {
        return Ok(false);
    }
    let live = context.api::<Budget>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a Budget"))?;
    let Some(live) = live.filter(|live| live.metadata.uid == budget.metadata.uid && untouched(live)) else { return Ok(false) };
    let any = context.api::<PoolObject>(&key.namespace).list(&ListParams::default().limit(1)).await.map_err(Error::of("listing pools"))?;
    if !any.items.is_empty() {
        return Ok(false);
    }
    context.leadership.confirm().await?;
    // Before the deletion: should we end here, the next pool of the namespace finds the Budget and marks it again.
    gently(mark(&key.namespace, false, context).await)?;
    let (uid, version) = (live.uid().unwrap_or_default(), live.resource_version().unwrap_or_default());
    let gone = calls::delete_version(&context.api::<Budget>(&key.namespace), &key.name, &uid, &version).await?;
    if gone {
        tracing::info!(namespace = %key.namespace, "deleted Budget/default: the last pool is gone, and nobody had edited it");
    }
    Ok(gone)
}

/// Whether nobody but us wrote anything but its status.
fn untouched(budget: &Budget) -> bool {
    let theirs = |entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        entry.subresource.as_deref() != Some("status") && entry.manager.as_deref() != Some(managers::DEFAULTS)
    };
    let fields = budget.metadata.managed_fields.as_ref();
    budget.metadata.generation == Some(1) && fields.is_some_and(|all| !all.iter().any(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn budget(generation: i64, managers: Value) -> Budget {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget",
            "metadata": {"name": "default", "generation": generation, "managedFields": managers}, "spec": {}}))
        .expect("a Budget")
    }

    #[test]
    fn one_that_anybody_wrote_is_theirs() {
        let (ours, status) = (json!({"manager": "spillway-defaults"}), json!({"manager": "x", "subresource": "status"}));
        assert!(untouched(&budget(1, json!([ours, status]))));
        assert!(!untouched(&budget(2, json!([ours, status]))), "its spec was changed, by whomever");
        assert!(!untouched(&budget(1, json!([ours, {"manager": "kubectl"}]))), "a label, say");
        assert!(!untouched(&budget(1, Value::Null)), "nothing is known of who wrote it");
    }

    #[test]
    fn a_namespace_waits_from_the_first_look() {
        let waiting = Waiting::default();
        assert!(waiting.left("n").is_some_and(|left| left <= AFTER && !left.is_zero()));
    }
}
