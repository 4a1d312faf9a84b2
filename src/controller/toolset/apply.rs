//! Keeps one object of a Toolset on the API server as it is desired. Writes nothing if nothing differs, and takes over no object of
//! another owner.
//!
//! Whether something differs is not decided by comparing desired and stored fields: the API server adds defaults and writes
//! quantities in another form. Instead the object as it was stored by our last apply is remembered by its hash.

use std::collections::HashMap;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::status::ObjectsState;
use crate::api::conditions::reasons;
use crate::api::names::{self, managers};
use crate::cluster::{Class, Error, calls};
use crate::controller::Context;

/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 32;

/// The hashes of one object: as we applied it, and as it was stored by that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedHashes {
    desired: String,
    stored: String,
}

/// The objects that were applied for one Toolset, by kind.
#[derive(Clone, Debug, Default)]
pub struct AppliedObjects(HashMap<String, AppliedHashes>);

/// Who owns a stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    /// The Toolset, or nobody although we made it: someone removed the owner.
    Ours,
    /// A deleted Toolset of the same name, or it is being deleted itself.
    Former,
    /// Somebody else.
    Foreign,
}

fn ownership(stored: &ObjectMeta, toolset_uid: &str) -> Ownership {
    let owner = stored.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let labelled = stored.labels.as_ref().and_then(|labels| labels.get(names::MANAGED_BY_LABEL)).is_some_and(|by| by == names::MANAGED_BY);
    match owner {
        _ if stored.deletion_timestamp.is_some() => Ownership::Former,
        Some(owner) if owner.uid == toolset_uid => Ownership::Ours,
        Some(owner) if owner.kind == "Toolset" && owner.api_version.starts_with("spillway.dev/") => Ownership::Former,
        None if labelled => Ownership::Ours,
        Some(_) | None => Ownership::Foreign,
    }
}

/// A hash of an object without the fields that change by themselves.
fn hash(object: &impl Serialize) -> String {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
        if let Some(metadata) = object.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
    }
    names::short_hash(&[&value.to_string()], HASH_DIGITS)
}

/// Applies `desired` if the stored object differs from it. `Err` in the inner result: the state of the Toolset's objects that follows
/// from an object that is not in force.
pub async fn keep<K>(
    desired: &K,
    toolset_uid: &str,
    applied: &mut AppliedObjects,
    context: &Context,
) -> Result<Result<K, ObjectsState>, Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let (namespace, name) = (desired.namespace().unwrap_or_default(), desired.name_any());
    let kind = K::kind(&()).into_owned();
    let api = context.api::<K>(&namespace);
    let stored = api.get_opt(&name).await.map_err(Error::of("reading an object of a Toolset"))?;
    let wanted = hash(desired);
    if let Some(stored) = stored {
        match ownership(stored.meta(), toolset_uid) {
            Ownership::Ours => {}
            Ownership::Former => {
                let message = format!("{kind}/{name} is being deleted, and is created again afterwards");
                return Ok(Err(ObjectsState::Waiting(message)));
            }
            Ownership::Foreign => {
                let message =
                    format!("{kind}/{name} exists and does not belong to this Toolset. Delete it, or give the Toolset another name");
                return Ok(Err(ObjectsState::Failed(reasons::NAME_TAKEN, message)));
            }
        }
        if applied.0.get(&kind) == Some(&AppliedHashes { desired: wanted.clone(), stored: hash(&stored) }) {
            return Ok(Ok(stored));
        }
    }
    context.leadership.check()?;
    match calls::apply(&api, desired, managers::TOOLSET).await {
        Ok(made) => {
            let known = applied.0.insert(kind.clone(), AppliedHashes { desired: wanted, stored: hash(&made) });
            tracing::info!(namespace, object = name, kind, first = known.is_none(), "applied an object of a Toolset");
            Ok(Ok(made))
        }
        Err(error) => match error.class() {
            Class::Refused | Class::QuotaExceeded | Class::Terminating => {
                let message = format!("{kind}/{name} cannot be applied: {}", error.message());
                Ok(Err(ObjectsState::Failed(reasons::OBJECT_REFUSED, message)))
            }
            Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn owned_by(owner: Value, labels: Value) -> Ownership {
        let owners = if owner.is_null() { json!([]) } else { json!([owner]) };
        ownership(&serde_json::from_value(json!({"ownerReferences": owners, "labels": labels})).expect("metadata"), "uid-1")
    }

    #[test]
    fn only_our_own_objects_are_written() {
        let owner = |kind: &str, version: &str, uid: &str| json!({"apiVersion": version, "kind": kind, "name": "x", "uid": uid, "controller": true});
        let ours = json!({"app.kubernetes.io/managed-by": "spillway"});
        assert_eq!(owned_by(owner("Toolset", "spillway.dev/v1alpha1", "uid-1"), json!({})), Ownership::Ours);
        assert_eq!(owned_by(owner("Toolset", "spillway.dev/v1alpha1", "uid-0"), ours.clone()), Ownership::Former);
        assert_eq!(owned_by(owner("Toolset", "example.org/v1", "uid-0"), ours.clone()), Ownership::Foreign);
        assert_eq!(owned_by(json!(null), ours), Ownership::Ours, "its owner was removed");
        assert_eq!(owned_by(json!(null), json!({})), Ownership::Foreign);
        let deleted = serde_json::from_value(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})).expect("metadata");
        assert_eq!(ownership(&deleted, "uid-1"), Ownership::Former);
    }

    #[test]
    fn a_hash_changes_with_what_was_applied_alone() {
        let object = |version: &str, port: u16, status: &str| json!({"metadata": {"name": "a", "resourceVersion": version, "managedFields": [version]}, "spec": {"port": port}, "status": status});
        assert_eq!(hash(&object("1", 1, "a")), hash(&object("2", 1, "b")));
        assert_ne!(hash(&object("1", 1, "a")), hash(&object("1", 2, "a")));
    }
}
