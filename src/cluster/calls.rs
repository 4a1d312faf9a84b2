//! The calls that controllers make, each one request with its preconditions.

use std::fmt::Debug;

use either::Either;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::background_writes::BackgroundWrite;
use super::{Class, Error};

/// Applies `status` as `manager`. With `resource_version` it is a compare-and-swap: any write in between is a conflict.
/// Fields that
/// `manager` applied before and leaves out now are removed.
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

/// Merges `body` into the status of an object. With `metadata.resourceVersion` in it, it is a compare-and-swap.
pub async fn patch_status<K>(api: &Api<K>, name: &str, body: &Value) -> Result<K, Error>
where
    K: Resource + DeserializeOwned,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await.map_err(Error::of_status_write("writing a status"))
}

/// As [`patch_status`], but as a background write ([`super::background_writes`]).
pub async fn show_status<K>(api: &Api<K>, name: &str, body: &Value) -> Result<K, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let request = Request::new(api.resource_url());
    let request = request.patch_subresource("status", name, &PatchParams::default(), &Patch::Merge(body));
    let sent = async {
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(BackgroundWrite);
        api.clone().into_client().request(request).await
    };
    sent.await.map_err(Error::of_status_write("showing a status"))
}

/// Applies `object` as `manager`, with force. Other fields of other managers stay.
pub async fn apply<K>(api: &Api<K>, object: &K, manager: &str) -> Result<K, Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    let name = object.meta().name.clone().unwrap_or_default();
    let mut body = serde_json::to_value(object).unwrap_or_default();
    body["apiVersion"] = Value::String(K::api_version(&kind).into_owned());
    body["kind"] = Value::String(K::kind(&kind).into_owned());
    let params = PatchParams::apply(manager).force();
    api.patch(&name, &params, &Patch::Apply(body)).await.map_err(Error::of("applying an object"))
}

/// Applies only the fields of `body` as `manager`, without force: a conflict if another manager has set one
/// differently.
pub async fn apply_gently<K>(api: &Api<K>, name: &str, manager: &str, mut body: Value) -> Result<K, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    body["apiVersion"] = Value::String(K::api_version(&kind).into_owned());
    body["kind"] = Value::String(K::kind(&kind).into_owned());
    body["metadata"]["name"] = Value::String(name.to_owned());
    api.patch(name, &PatchParams::apply(manager), &Patch::Apply(body)).await.map_err(Error::of("applying an object"))
}

/// Sets, or with null removes, annotations of the object `name`.
pub async fn annotate<K>(api: &Api<K>, name: &str, manager: &str, annotations: Value) -> Result<ObjectMeta, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    let body = json!({"metadata": {"annotations": annotations}});
    api.patch_metadata(name, &params, &Patch::Merge(body)).await.map(|object| object.metadata).map_err(Error::of("annotating an object"))
}

/// Turns an error into `None` if the object is gone, or its uid or version has changed.
fn none_if_changed<T>(error: Error) -> Result<Option<T>, Error> {
    match error.class() {
        Class::NotFound | Class::Conflict => Ok(None),
        Class::AlreadyExists | Class::QuotaExceeded | Class::Terminating | Class::Refused | Class::LostLeadership | Class::Unavailable => {
            Err(error)
        }
    }
}

/// Merges `spec` into that of the object `name`, only if the object still has this uid and this version. `Ok(None)`: it
/// has not.
pub async fn patch_spec<K>(
    api: &Api<K>,
    name: &str,
    (uid, version): (&str, &str),
    manager: &str,
    spec: Value,
) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let body = json!({"metadata": {"uid": uid, "resourceVersion": version}, "spec": spec});
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(name, &params, &Patch::Merge(body)).await.map_err(Error::of("changing a spec")) {
        Ok(object) => Ok(Some(object.metadata)),
        Err(error) => none_if_changed(error),
    }
}

/// Creates `object`.
pub async fn create<K>(api: &Api<K>, object: &K, manager: &str) -> Result<K, Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let params = PostParams { field_manager: Some(manager.to_owned()), ..Default::default() };
    api.create(&params, object).await.map_err(Error::of("creating an object"))
}

/// Deletes the object `name` only if it still has this uid. `Ok(None)`: it was gone already, or another object has its
/// name. A `grace_seconds` of 0 is never used: the object would disappear before its process.
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
        Err(error) => none_if_changed(error),
    }
}

/// Deletes the object `name` only if it still has this uid and version. True: it is gone. False: it was changed
/// meanwhile.
pub async fn delete_version<K>(api: &Api<K>, name: &str, uid: &str, version: &str) -> Result<bool, Error>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
    match api.delete(name, &params).await.map_err(Error::of("deleting an object")) {
        Ok(_) => Ok(true),
        Err(error) => match error.class() {
            Class::NotFound => Ok(true),
            Class::Conflict => Ok(false),
            Class::AlreadyExists
            | Class::QuotaExceeded
            | Class::Terminating
            | Class::Refused
            | Class::LostLeadership
            | Class::Unavailable => Err(error),
        },
    }
}

/// Sets the finalizers of the object with this uid and resource version. A conflict if either changed.
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
