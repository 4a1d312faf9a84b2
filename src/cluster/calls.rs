//! The calls that controllers make, each one request with its preconditions.

use std::fmt::Debug;

use either::Either;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Class, Error};

/// Applies `status` as `manager`. With `resource_version` it is a compare-and-swap: anybody's write in between is a
/// conflict. What `manager` applied before and leaves out now is removed.
pub async fn apply_status<K>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    resource_version: Option<&str>,
    status: &impl Serialize,
) -> Result<K, Error>
where
    K: Resource + DeserializeOwned,
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    let mut metadata = json!({"name": name});
    if let Some(version) = resource_version {
        metadata["resourceVersion"] = Value::String(version.to_owned());
    }
    let object = json!({"apiVersion": K::api_version(&kind), "kind": K::kind(&kind), "metadata": metadata, "status": status});
    let params = PatchParams::apply(manager).force();
    api.patch_status(name, &params, &Patch::Apply(object)).await.map_err(Error::of_status_write("applying a status"))
}

/// Creates `object`.
pub async fn create<K>(api: &Api<K>, object: &K, manager: &str) -> Result<K, Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let params = PostParams { field_manager: Some(manager.to_owned()), ..Default::default() };
    api.create(&params, object).await.map_err(Error::of("creating an object"))
}

/// Deletes the object `name` only if it still is the one with this uid. `Ok(None)`: it was gone already, or another object
/// has its name. `grace_seconds` of 0 is never used: the object would vanish before its process.
pub async fn delete<K>(api: &Api<K>, name: &str, uid: &str, grace_seconds: Option<u32>) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let params = DeleteParams {
        grace_period_seconds: grace_seconds.map(|seconds| seconds.max(1)),
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..Default::default()
    };
    match api.delete(name, &params).await.map_err(Error::of("deleting an object")) {
        Ok(Either::Left(object)) => Ok(Some(object.meta().clone())),
        Ok(Either::Right(_)) => Ok(None),
        Err(error) => match error.class() {
            Class::NotFound | Class::Conflict => Ok(None),
            Class::AlreadyExists
            | Class::QuotaExceeded
            | Class::Terminating
            | Class::Refused
            | Class::LostLeadership
            | Class::Unavailable => Err(error),
        },
    }
}

/// Sets the finalizers of the object with this uid and resource version; a conflict if either changed.
pub async fn set_finalizers<K>(api: &Api<K>, meta: &ObjectMeta, finalizers: Vec<String>) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let name = meta.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}});
    match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::of("changing finalizers")) {
        Ok(object) => Ok(Some(object.metadata)),
        Err(error) => match error.class() {
            Class::NotFound => Ok(None),
            Class::AlreadyExists
            | Class::Conflict
            | Class::QuotaExceeded
            | Class::Terminating
            | Class::Refused
            | Class::LostLeadership
            | Class::Unavailable => Err(error),
        },
    }
}
