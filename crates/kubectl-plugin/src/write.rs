//! Looking at one object, deciding, and writing what was decided by one merge patch. What was not looked at is never
//! changed: the patch carries either the uid of the object that was seen, or its version; in the second case another
//! writer in between means looking again.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::connect::Cluster;
use super::error::Error;
use crate::api::names::managers;

/// Looks at an object that others write at the same time. Each time somebody else was faster.
const MAX_WRITE_ATTEMPTS: usize = 8;

/// What is to be done about one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Change these fields of its spec.
    Write(Value),
    /// Nothing, and why.
    Leave(String),
    /// It cannot be done, and why.
    Refuse(String),
}

/// What a write depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteTarget {
    /// That it is the object that was seen, whatever else changed.
    Uid,
    /// That nothing of it changed.
    Version,
}

/// What was done about one object.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome<K> {
    /// It was changed, and is so now.
    Written(Box<K>),
    /// It was left as it is, and why.
    Left(Box<K>, String),
    /// It could not be done, in words that name it.
    Failed(String),
}

/// Looks at the object called `name`, decides and writes. `word` is what people call its kind.
///
/// # Errors
/// What every other object would meet too: no rights, no server.
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
            Decision::Leave(words) => return Ok(WriteOutcome::Left(Box::new(object), words)),
            Decision::Refuse(words) => return Ok(WriteOutcome::Failed(format!("{word} \"{name}\" {words}"))),
            Decision::Write(spec) => spec,
        };
        match api.patch(name, &params(), &Patch::Merge(patch(&object, on, spec))).await {
            Ok(written) => return Ok(WriteOutcome::Written(Box::new(written))),
            Err(kube::Error::Api(status)) if on == WriteTarget::Version && status.code == 409 => {}
            Err(kube::Error::Api(status)) if another(&status) => {
                return Ok(WriteOutcome::Failed(format!(
                    "{word} \"{name}\" was replaced by another of its name since we looked; that one was not changed"
                )));
            }
            Err(error) => return Ok(WriteOutcome::Failed(Error::of::<K>(&cluster.namespace, name)(error).to_string())),
        }
    }
    Ok(WriteOutcome::Failed(format!("{word} \"{name}\" is changed by others all the time, so it was not changed; try again")))
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

/// Whether the server refuses because the uid is not that of the stored object: a conflict, or a change of what is immutable.
fn another(status: &kube::core::Status) -> bool {
    let uid = |cause: &kube::core::response::StatusCause| cause.field == "metadata.uid";
    status.code == 409 || (status.code == 422 && status.details.as_ref().is_some_and(|details| details.causes.iter().any(uid)))
}
