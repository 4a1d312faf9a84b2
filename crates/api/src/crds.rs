//! All CustomResourceDefinitions, as they are generated into `crds/` and the chart.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{CustomResourceExt, Resource};
use serde_json::json;

/// Every CRD of the group, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        crate::Agent::crd(),
        crate::AgentPool::crd(),
        crate::Breaker::crd(),
        crate::Budget::crd(),
        crate::ClusterBudget::crd(),
        crate::Grant::crd(),
        crate::Toolset::crd(),
        crate::WorkItem::crd(),
        crate::WorkQueue::crd(),
    ];
    for crd in &mut all {
        finish(crd);
    }
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}

/// Their plural names, in the same order, without their schemas: making those takes tens of milliseconds.
pub fn plurals() -> [Cow<'static, str>; 9] {
    [
        crate::AgentPool::plural(&()),
        crate::Agent::plural(&()),
        crate::Breaker::plural(&()),
        crate::Budget::plural(&()),
        crate::ClusterBudget::plural(&()),
        crate::Grant::plural(&()),
        crate::Toolset::plural(&()),
        crate::WorkItem::plural(&()),
        crate::WorkQueue::plural(&()),
    ]
}

/// What the derive cannot say: a new object must not look finished to anybody who waits for a condition, so its status
/// begins with an observedGeneration that no generation equals.
fn finish(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        no_null_enums(schema);
        if let Some(status) = schema.properties.as_mut().and_then(|properties| properties.get_mut("status")) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
            status.nullable = None;
        }
        // The same of the number behind /scale: a nullable one that is null is refused.
        if version.subresources.as_ref().is_some_and(|subresources| subresources.scale.is_some())
            && let Some(spec) = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec"))
            && let Some(replicas) = spec.properties.as_mut().and_then(|properties| properties.get_mut("replicas"))
        {
            replicas.nullable = None;
        }
    }
}

/// Null for an enum: the API server refuses it if the field is `nullable`, even where the enum lists null; if it is not, a
/// create or replace takes null for "left out". So enums are not nullable.
fn no_null_enums(schema: &mut JSONSchemaProps) {
    if schema.enum_.is_some() {
        schema.nullable = None;
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        no_null_enums(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => no_null_enums(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(no_null_enums),
        None => {}
    }
}
