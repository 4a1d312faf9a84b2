//! Reads one object, decides, and writes the decision as one merge patch. The patch carries either the uid or the resource
//! version of the object that was read, so no other object, or no other version, is changed. If another writer changed the
//! version meanwhile, the object is read again.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::connect::Cluster;
use super::error::Error;
use crate::api::names::managers;

/// The most attempts at an object that other writers change at the same time.
const MAX_WRITE_ATTEMPTS: usize = 8;

/// The decision on one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Change these fields of its spec.
    Write(Value),
    /// Change nothing, with the reason.
    Leave(String),
    /// The change is not possible, with the reason.
    Refuse(String),
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteTarget {
    /// The object has the uid that was read. Other changes do not matter.
    Uid,
    /// The object has the resource version that was read.
    Version,
}

/// The result for one object.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome<K> {
    /// The object after the change.
    Written(Box<K>),
    /// The unchanged object, with the reason.
    Unchanged(Box<K>, String),
    /// An error message that names the object.
    Failed(String),
}

/// Reads the object `name`, decides and writes. `word` is the name of its kind in messages.
///
/// # Errors
/// Errors that every other object would have too, such as missing rights or no answer from the server.
pub async fn settle<K>(
    cluster: &Cluster,
    word: &str,
    name: &str,
    on: WriteTarget,
    decide: impl Fn(&K) -> Decision,
) -> Result<WriteOutcome<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = cluster.api::<K>();
    for _ in 0..MAX_WRITE_ATTEMPTS {
        let object = match api.get(name).await.map_err(Error::of::<K>(&cluster.namespace, name)) {
            Ok(object) => object,
            Err(error @ Error::NotFound { .. }) => return Ok(WriteOutcome::Failed(error.to_string())),
            Err(error) => return Err(error),
        };
        let spec = match decide(&object) {
            Decision::Leave(words) => return Ok(WriteOutcome::Unchanged(Box::new(object), words)),
            Decision::Refuse(words) => return Ok(WriteOutcome::Failed(format!("{word} \"{name}\" {words}"))),
            Decision::Write(spec) => spec,
        };
        match api.patch(name, &params(), &Patch::Merge(patch(&object, on, spec))).await {
            Ok(written) => return Ok(WriteOutcome::Written(Box::new(written))),
            Err(kube::Error::Api(status)) if on == WriteTarget::Version && status.code == 409 => {}
            Err(kube::Error::Api(status)) if is_other_object(&status) => {
                return Ok(WriteOutcome::Failed(format!(
                    "{word} \"{name}\" was replaced by another one with the same name meanwhile; the new one was not changed"
                )));
            }
            Err(error) => return Ok(WriteOutcome::Failed(Error::of::<K>(&cluster.namespace, name)(error).to_string())),
        }
    }
    Ok(WriteOutcome::Failed(format!("other writers keep changing {word} \"{name}\", so it was not changed; try again")))
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(managers::PLUGIN.to_owned()), ..PatchParams::default() }
}

fn patch(object: &impl Resource<DynamicType = ()>, on: WriteTarget, spec: Value) -> Value {
    let (key, value) = match on {
        WriteTarget::Uid => ("uid", object.uid()),
        WriteTarget::Version => ("resourceVersion", object.resource_version()),
    };
    json!({"metadata": Map::from_iter([(key.to_owned(), json!(value))]), "spec": spec})
}

/// Whether the server refuses because the stored object has another uid: a conflict, or a change of an immutable field.
fn is_other_object(status: &kube::core::Status) -> bool {
    let uid = |cause: &kube::core::response::StatusCause| cause.field == "metadata.uid";
    status.code == 409 || (status.code == 422 && status.details.as_ref().is_some_and(|details| details.causes.iter().any(uid)))
}
