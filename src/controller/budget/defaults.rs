//! `Budget/default` and `Breaker/default` of a namespace that has none. Each is created once, so that people have an
//! object to read and edit, and deleted with the last pool if it was never edited.
//!
//! Their specs are empty: unset fields have their usual defaults, and objects from Git can be applied over them without
//! a conflict. An annotation of the namespace's own ConfigMap, which outlives pools and is deleted with the namespace,
//! records that a default was created: if a person deletes it, it is not created again. The record is written after the
//! object. After a crash in between, the next reconcile finds the object by its own annotation and writes the record.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::waiting::DEFAULT_CREATION_DELAY;
use crate::api::names::{self, managers};
use crate::api::{AgentPool, Breaker, Budget};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::controller::stores::PoolObject;

/// A kind of which a namespace gets a default object.
pub trait DefaultedKind: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug {
    /// Annotation of the namespace's ConfigMap: the default was created once.
    const MADE_ANNOTATION: &'static str;

    /// The objects of a namespace that the cache shows: name, and whether it has our annotation.
    fn cached_objects(namespace: &str, context: &Context) -> Vec<(String, bool)>;
}

fn facts(object: &impl ResourceExt) -> (String, bool) {
    (object.name_any(), object.annotations().contains_key(names::DEFAULT_ANNOTATION))
}

impl DefaultedKind for Budget {
    const MADE_ANNOTATION: &'static str = names::DEFAULT_MADE_ANNOTATION;

    fn cached_objects(namespace: &str, context: &Context) -> Vec<(String, bool)> {
        context.stores.budgets_of(namespace).iter().map(|budget| facts(budget.as_ref())).collect()
    }
}

impl DefaultedKind for Breaker {
    const MADE_ANNOTATION: &'static str = names::DEFAULT_BREAKER_MADE_ANNOTATION;

    fn cached_objects(namespace: &str, context: &Context) -> Vec<(String, bool)> {
        context.stores.breakers_of(namespace).iter().map(|breaker| facts(breaker.as_ref())).collect()
    }
}

/// Creates `Budget/default` and `Breaker/default` where they are due. Returns when to check again.
pub async fn ensure(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<Option<Duration>, Error> {
    let budget = if pool.spec.budget_ref.is_some() { None } else { ensure_one::<Budget>(&key.namespace, context).await? };
    let breaker = ensure_one::<Breaker>(&key.namespace, context).await?;
    Ok([budget, breaker].into_iter().flatten().min())
}

async fn ensure_one<K: DefaultedKind>(namespace: &str, context: &Context) -> Result<Option<Duration>, Error> {
    let kind = K::kind(&());
    let known = K::cached_objects(namespace, context);
    let ours = known.iter().any(|(name, annotated)| name == names::DEFAULT_OBJECT_NAME && *annotated);
    if !known.is_empty() || marked::<K>(namespace, context) {
        context.waiting_namespaces.forget(&kind, namespace);
        if ours && !marked::<K>(namespace, context) {
            warn_on_error::<K>(mark::<K>(namespace, true, context).await)?;
        }
        return Ok(None);
    }
    if let Some(left) = context.waiting_namespaces.time_left(&kind, namespace) {
        return Ok(Some(left));
    }
    // A refused attempt is repeated after the same delay.
    context.waiting_namespaces.forget(&kind, namespace);
    warn_on_error::<K>(make::<K>(namespace, context).await)?;
    Ok(Some(DEFAULT_CREATION_DELAY))
}

/// Logs an error, except that of a lost leadership: a default is a convenience, and pools work without it.
fn warn_on_error<K: DefaultedKind>(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.class() == Class::LostLeadership => Err(error),
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), %error, "cannot create the default object of a namespace");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether the default was created once.
fn marked<K: DefaultedKind>(namespace: &str, context: &Context) -> bool {
    let map = context.stores.bundle(&ObjectKey { namespace: namespace.to_owned(), name: names::CA_CONFIG_MAP.to_owned() });
    map.is_some_and(|map| map.annotations().contains_key(K::MADE_ANNOTATION))
}

async fn mark<K: DefaultedKind>(namespace: &str, made: bool, context: &Context) -> Result<(), Error> {
    context.leadership.check()?;
    let value = if made { json!("true") } else { json!(null) };
    let api = context.api::<ConfigMap>(namespace);
    calls::annotate(&api, names::CA_CONFIG_MAP, managers::DEFAULTS, json!({K::MADE_ANNOTATION: value})).await?;
    Ok(())
}

async fn make<K: DefaultedKind>(namespace: &str, context: &Context) -> Result<(), Error> {
    let api = context.api::<K>(namespace);
    // Listed by metadata: an object that does not fit its type counts too.
    let any = api.list_metadata(&ListParams::default().limit(1)).await.map_err(Error::of("listing objects before creating a default"))?;
    if !any.items.is_empty() {
        return Ok(());
    }
    context.leadership.check()?;
    let body = json!({"metadata": {"namespace": namespace, "annotations": {names::DEFAULT_ANNOTATION: "true"}}, "spec": {}});
    calls::apply_gently(&api, names::DEFAULT_OBJECT_NAME, managers::DEFAULTS, body).await?;
    tracing::info!(namespace, kind = %K::kind(&()), "created the default object of a namespace, which has pools and had no object of this kind");
    mark::<K>(namespace, true, context).await
}

/// Deletes the default if we created it, it was never edited, and no pool is left. Returns whether it is deleted.
pub async fn remove_unused<K: DefaultedKind>(object: &K, key: &ObjectKey, context: &Context) -> Result<bool, Error> {
    let ours = key.name == names::DEFAULT_OBJECT_NAME && object.annotations().contains_key(names::DEFAULT_ANNOTATION);
    let pools = || context.stores.pools.state_filter(|pool| pool.namespace().as_deref() == Some(&key.namespace));
    if !ours || !pools().is_empty() {
        return Ok(false);
    }
    let api = context.api::<K>(&key.namespace);
    let live = api.get_metadata_opt(&key.name).await.map_err(Error::of("reading a default"))?;
    let Some(live) = live.filter(|live| live.metadata.uid == object.meta().uid && is_unedited(&live.metadata)) else { return Ok(false) };
    let any = context.api::<PoolObject>(&key.namespace).list(&ListParams::default().limit(1)).await.map_err(Error::of("listing pools"))?;
    if !any.items.is_empty() {
        return Ok(false);
    }
    context.leadership.confirm().await?;
    // The mark is removed before the deletion: after a crash here, the next pool of the namespace finds the object and
    // marks it again.
    warn_on_error::<K>(mark::<K>(&key.namespace, false, context).await)?;
    let (uid, version) = (live.metadata.uid.unwrap_or_default(), live.metadata.resource_version.unwrap_or_default());
    let gone = calls::delete_version(&api, &key.name, &uid, &version).await?;
    if gone {
        tracing::info!(namespace = %key.namespace, kind = %K::kind(&()), "deleted the default object of a namespace, which has no pools any more; the object was never edited");
    }
    Ok(gone)
}

/// Whether no other manager wrote anything except the status.
fn is_unedited(meta: &ObjectMeta) -> bool {
    let theirs = |entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        entry.subresource.as_deref() != Some("status") && entry.manager.as_deref() != Some(managers::DEFAULTS)
    };
    let fields = meta.managed_fields.as_ref();
    meta.generation == Some(1) && fields.is_some_and(|all| !all.iter().any(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn budget(generation: i64, managers: Value) -> ObjectMeta {
        serde_json::from_value(json!({"name": "default", "generation": generation, "managedFields": managers})).expect("metadata")
    }

    #[test]
    fn a_default_that_another_manager_wrote_is_kept() {
        let (ours, status) = (json!({"manager": "spillway-defaults"}), json!({"manager": "x", "subresource": "status"}));
        assert!(is_unedited(&budget(1, json!([ours, status]))));
        assert!(!is_unedited(&budget(2, json!([ours, status]))), "its spec was changed, by whomever");
        assert!(!is_unedited(&budget(1, json!([ours, {"manager": "kubectl"}]))), "a label, say");
        assert!(!is_unedited(&budget(1, Value::Null)), "nothing is known of who wrote it");
    }
}
