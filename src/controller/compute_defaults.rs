//! Default compute resources of the containers of users. Pure.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Default quantities, by resource.
pub type ComputeDefaults = [(&'static str, &'static str); 3];

/// The resources that are set, completed with defaults: a container without limits could use the whole node.
pub fn complete(set: Option<&ResourceRequirements>, limits: ComputeDefaults, requests: ComputeDefaults) -> ResourceRequirements {
    let mut resources = set.cloned().unwrap_or_default();
    let completed = resources.limits.get_or_insert_default();
    for (name, value) in limits {
        completed.entry(name.to_owned()).or_insert_with(|| Quantity(value.to_owned()));
    }
    let completed = resources.requests.get_or_insert_default();
    for (name, value) in requests {
        let limited = set.is_some_and(|set| set.limits.as_ref().is_some_and(|limits| limits.contains_key(name)));
        // A limit that was set may be below our default request, which the API server would refuse. Then no request is
        // set, and Kubernetes uses the limit.
        if !limited {
            completed.entry(name.to_owned()).or_insert_with(|| Quantity(value.to_owned()));
        }
    }
    resources
}
