//! Builds the objects of a Toolset. Pure.
//!
//! The pod meets Pod Security `restricted` whatever the Toolset says. It runs the programs of the Toolset's image, and the bridge of
//! our own image: an init container copies its static executable into the pod. There is one pod, and a new one starts when the old one
//! has ended: an audit log has one writer, and the answers to idempotency keys are in its memory.

mod pod;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{Service, ServiceAccount, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::egress::{EgressTargets, NameAddresses};
use crate::api::owner::owner;
use crate::api::{Toolset, names};
use crate::controller::supervised::Supervised;

/// Port of the Service.
pub const SERVICE_PORT: u16 = 443;
/// Port of the bridge in its pod. The chart's NetworkPolicies allow the gateways and the controller to connect to it.
pub const BRIDGE_PORT: u16 = 8444;
/// Old ReplicaSets that are kept, for `kubectl rollout undo`.
const REVISION_HISTORY: i32 = 3;

/// Name of the ServiceAccount of the pods.
pub fn account_name(toolset: &Toolset) -> String {
    toolset.spec.service_account_name.clone().unwrap_or_else(|| names::toolset_object(&toolset.name_any()))
}

/// The Toolset's own ServiceAccount, without permissions; `None` if the spec names another. One that was made before the spec named
/// another stays until the Toolset is deleted.
pub fn service_account(toolset: &Toolset) -> Option<ServiceAccount> {
    toolset.spec.service_account_name.is_none().then(|| ServiceAccount {
        metadata: metadata(toolset),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    })
}

/// The Service, by which gateways reach the bridge.
pub fn service(toolset: &Toolset) -> Service {
    let port = ServicePort {
        name: Some("https".into()),
        protocol: Some("TCP".into()),
        port: SERVICE_PORT.into(),
        target_port: Some(IntOrString::Int(BRIDGE_PORT.into())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        type_: Some("ClusterIP".into()),
        selector: Some(names::toolset_labels(&toolset.name_any())),
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    Service { metadata: metadata(toolset), spec: Some(spec), status: None }
}

/// The NetworkPolicy of the pods. Only gateways and the controller connect to the bridge, and its programs reach what `targets` allows.
/// An annotation keeps the known addresses for a new leader.
pub fn network_policy(toolset: &Toolset, targets: &EgressTargets, known: &NameAddresses, supervised: &Supervised) -> NetworkPolicy {
    let annotations = known.to_annotation().map(|addresses| [(names::ADDRESSES_ANNOTATION.to_owned(), addresses)].into());
    let port = NetworkPolicyPort { protocol: Some("TCP".into()), port: Some(IntOrString::Int(BRIDGE_PORT.into())), end_port: None };
    let callers =
        NetworkPolicyIngressRule { ports: Some(vec![port]), from: Some(vec![supervised.peer.clone(), supervised.controller.clone()]) };
    NetworkPolicy {
        metadata: ObjectMeta { annotations, ..metadata(toolset) },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(toolset)),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: Some(vec![callers]),
            egress: Some(targets.rules(known, &supervised.dns)),
        }),
    }
}

/// The Deployment of the bridge. `definitions` names the ConfigMaps with their uids: one that was created again replaces the pod.
pub fn deployment(toolset: &Toolset, definitions: &str, supervised: &Supervised) -> Deployment {
    Deployment {
        metadata: metadata(toolset),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            revision_history_limit: Some(REVISION_HISTORY),
            selector: selector(toolset),
            // Two bridges at once would write one audit log, and run a call twice that is repeated with its idempotency key.
            strategy: Some(DeploymentStrategy { type_: Some("Recreate".into()), rolling_update: None }),
            template: pod::template(toolset, definitions, supervised),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn selector(toolset: &Toolset) -> LabelSelector {
    LabelSelector { match_labels: Some(names::toolset_labels(&toolset.name_any())), match_expressions: None }
}

fn metadata(toolset: &Toolset) -> ObjectMeta {
    let mut labels = names::toolset_labels(&toolset.name_any());
    labels.insert(names::MANAGED_BY_LABEL.to_owned(), names::MANAGED_BY.to_owned());
    ObjectMeta {
        name: Some(names::toolset_object(&toolset.name_any())),
        namespace: toolset.namespace(),
        labels: Some(labels),
        owner_references: Some(vec![owner::<Toolset>(&toolset.metadata)]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
