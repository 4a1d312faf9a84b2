//! The status of Toolsets while nothing serves them: `Ready` is False, with the reason `Unsupported`.
//!
//! It must not read the spec of a Toolset, which may be large: the metadata is enough.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use serde_json::{Value, json};

use super::context::Context;
use crate::api::Toolset;
use crate::api::conditions::{reasons, types};
use crate::api::names::managers;
use crate::api::unsupported::UNSUPPORTED_FIELDS;
use crate::cluster::{Class, calls};

/// Interval of the checks of all Toolsets.
const TOOLSET_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of Toolsets that one check writes, because other controllers write too.
const MAX_WRITES_PER_CHECK: usize = 50;

/// Writes the status of each Toolset once a generation, while we lead. Returns only with an error.
pub async fn run(context: Arc<Context>) -> anyhow::Result<()> {
    let mut told = HashMap::new();
    let mut looks = tokio::time::interval(TOOLSET_CHECK_INTERVAL);
    loop {
        looks.tick().await;
        context.leadership.check()?;
        let stored: Vec<ObjectMeta> = context.stores.toolsets.state().iter().map(|toolset| toolset.meta().clone()).collect();
        for metadata in due(&stored, &mut told) {
            let (namespace, name) = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default());
            let api = context.api::<Toolset>(namespace);
            match calls::apply_status(&api, name, managers::TOOLSET, None, &status(metadata)).await {
                Ok(_) => {}
                Err(error) if error.class() == Class::NotFound => {}
                Err(error) => {
                    tracing::warn!(namespace, toolset = name, %error, "cannot write the status of a Toolset; retrying");
                    told.remove(metadata.uid.as_deref().unwrap_or_default());
                }
            }
        }
    }
}

/// The Toolsets whose status was not written for their generation yet. Forgets those that are deleted.
fn due<'a>(stored: &'a [ObjectMeta], told: &mut HashMap<String, i64>) -> Vec<&'a ObjectMeta> {
    told.retain(|uid, _| stored.iter().any(|metadata| metadata.uid.as_deref() == Some(uid)));
    let mut due = Vec::new();
    for metadata in stored {
        let (uid, generation) = (metadata.uid.clone().unwrap_or_default(), metadata.generation.unwrap_or(0));
        if due.len() < MAX_WRITES_PER_CHECK && told.get(&uid) != Some(&generation) {
            told.insert(uid, generation);
            due.push(metadata);
        }
    }
    due
}

/// The status. It depends neither on the leader nor on the time, so it is written once.
fn status(metadata: &ObjectMeta) -> Value {
    let generation = metadata.generation.unwrap_or(0);
    let message = UNSUPPORTED_FIELDS.iter().find(|field| field.kind == "Toolset").map(|field| field.message()).unwrap_or_default();
    json!({
        "observedGeneration": generation,
        "conditions": [{
            "type": types::READY,
            "status": "False",
            "reason": reasons::UNSUPPORTED,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": metadata.creation_timestamp,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ToolsetStatus;

    fn metadata(uid: &str, generation: i64) -> ObjectMeta {
        let metadata = json!({"name": uid, "uid": uid, "generation": generation, "creationTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(metadata).expect("metadata")
    }

    fn names(due: &[&ObjectMeta]) -> Vec<String> {
        due.iter().filter_map(|metadata| metadata.name.clone()).collect()
    }

    #[test]
    fn each_is_written_once_a_generation_and_few_in_one_check() {
        let mut told = HashMap::new();
        let first = [metadata("a", 1), metadata("b", 1)];
        assert_eq!(names(&due(&first, &mut told)), ["a", "b"]);
        assert_eq!(names(&due(&first, &mut told)), [] as [&str; 0]);
        assert_eq!(names(&due(&[metadata("a", 2)], &mut told)), ["a"]);
        assert_eq!(told.len(), 1, "what is gone is forgotten");
        let many: Vec<ObjectMeta> = (0..2 * MAX_WRITES_PER_CHECK).map(|number| metadata(&number.to_string(), 1)).collect();
        assert_eq!(
            (due(&many, &mut told).len(), due(&many, &mut told).len(), due(&many, &mut told).len()),
            (MAX_WRITES_PER_CHECK, MAX_WRITES_PER_CHECK, 0)
        );
    }

    #[test]
    fn its_status_says_that_nothing_serves_it() {
        let status: ToolsetStatus = serde_json::from_value(status(&metadata("a", 3))).expect("a status");
        let ready = &status.conditions[0];
        assert_eq!((ready.type_.as_str(), ready.status.as_str(), ready.reason.as_str()), ("Ready", "False", "Unsupported"));
        assert!(ready.message.contains("nothing serves Toolsets") && status.observed_generation == Some(3), "{}", ready.message);
    }
}
