//! All CustomResourceDefinitions, as they are generated into `crds/` and the chart.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{CustomResourceExt, Resource};
use serde_json::json;

/// All CRDs of the group, in the order of their names.
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
        apply_conventions(crd);
    }
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}

/// Plural names of all kinds, in the same order, without their schemas, because those take tens of milliseconds to create.
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

/// Settings that the derive macro cannot express. A client that waits for a condition must not take a new object for a finished one.
/// Therefore the status of a new object begins with an observedGeneration that no generation equals.
fn apply_conventions(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        make_enums_not_nullable(schema);
        join_description_lines(schema);
        if let Some(status) = schema.properties.as_mut().and_then(|properties| properties.get_mut("status")) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
            status.nullable = None;
        }
        // The API server refuses null for the field behind /scale if the field is nullable.
        if version.subresources.as_ref().is_some_and(|subresources| subresources.scale.is_some())
            && let Some(spec) = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec"))
            && let Some(replicas) = spec.properties.as_mut().and_then(|properties| properties.get_mut("replicas"))
        {
            replicas.nullable = None;
        }
    }
}

/// Joins the lines of each paragraph in the descriptions. `kubectl explain` breaks lines itself, and keeps those that are there.
fn join_description_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        let paragraphs = description.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        join_description_lines(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => join_description_lines(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(join_description_lines),
        None => {}
    }
}

/// Makes enums not nullable. The API server refuses null for an enum in a `nullable` field, even if the enum lists null. In a field that is
/// not nullable, a create or replace treats null as absent.
fn make_enums_not_nullable(schema: &mut JSONSchemaProps) {
    if schema.enum_.is_some() {
        schema.nullable = None;
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        make_enums_not_nullable(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => make_enums_not_nullable(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(make_enums_not_nullable),
        None => {}
    }
}
