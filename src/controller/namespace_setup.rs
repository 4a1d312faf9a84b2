//! The objects that a namespace needs before its first agent's pod: the NetworkPolicy (no ingress, egress to the
//! gateway alone), and the ConfigMap with the certificates that pods trust. Reconcilers of pools create and repair
//! them. Reconcilers of Agents require them.
//!
//! Both have no owner and stay when the last pool is deleted: with an owner, the policy could be deleted while pods
//! still terminate.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::supervised::Supervised;
use crate::api::names;
use crate::cluster::{Error, ObjectKey, calls};
use crate::wire::CA_FILE;

/// The NetworkPolicy for the agents of `namespace`.
fn policy(namespace: &str, supervised: &Supervised) -> NetworkPolicy {
    let port = NetworkPolicyPort { protocol: Some("TCP".into()), port: Some(IntOrString::Int(supervised.port)), end_port: None };
    let out = NetworkPolicyEgressRule { ports: Some(vec![port]), to: Some(vec![supervised.peer.clone()]) };
    let agents = LabelSelectorRequirement { key: names::AGENT_LABEL.into(), operator: "Exists".into(), values: None };
    NetworkPolicy {
        metadata: ours(namespace, names::AGENTS_NETWORK_POLICY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: None, match_expressions: Some(vec![agents]) }),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: None,
            egress: Some(vec![out]),
        }),
    }
}

/// The ConfigMap with the certificates that pods of `namespace` trust.
fn trust(namespace: &str, bundle: String) -> ConfigMap {
    ConfigMap { metadata: ours(namespace, names::CA_CONFIG_MAP), data: Some([(CA_FILE.to_owned(), bundle)].into()), ..ConfigMap::default() }
}

fn ours(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some([(names::MANAGED_BY_LABEL.to_owned(), names::MANAGED_BY.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// Whether both objects of `namespace` exist and are up to date, according to the caches.
pub fn is_ready(namespace: &str, context: &Context) -> bool {
    encloses(namespace, context) && trusts(namespace, context)
}

fn encloses(namespace: &str, context: &Context) -> bool {
    let stored = context.stores.policy(&ObjectKey { namespace: namespace.to_owned(), name: names::AGENTS_NETWORK_POLICY.to_owned() });
    stored.is_some_and(|stored| stored.spec == policy(namespace, &context.supervised).spec)
}

fn trusts(namespace: &str, context: &Context) -> bool {
    let Some(bundle) = context.bundle() else { return false };
    let stored = context.stores.bundle(&ObjectKey { namespace: namespace.to_owned(), name: names::CA_CONFIG_MAP.to_owned() });
    stored.as_ref().and_then(|map| map.data.as_ref()?.get(CA_FILE)).is_some_and(|stored| *stored == bundle)
}

/// Creates and repairs the objects. Writes nothing if they are up to date, or if the cache does not show our last write
/// yet.
pub async fn ensure(namespace: &str, context: &Context) -> Result<(), Error> {
    if !encloses(namespace, context) {
        let wall = policy(namespace, &context.supervised);
        let stored = context.stores.policy(&ObjectKey { namespace: namespace.to_owned(), name: names::AGENTS_NETWORK_POLICY.to_owned() });
        write(wall, stored.and_then(|stored| stored.resource_version()), context).await?;
    }
    if let Some(bundle) = context.bundle().filter(|_| !trusts(namespace, context)) {
        let stored = context.stores.bundle(&ObjectKey { namespace: namespace.to_owned(), name: names::CA_CONFIG_MAP.to_owned() });
        write(trust(namespace, bundle), stored.and_then(|stored| stored.resource_version()), context).await?;
    }
    Ok(())
}

async fn write<K>(object: K, seen: Option<String>, context: &Context) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let key = ObjectKey::of(&object);
    if !context.namespace_setup_gate.open(&key, seen.as_deref()) {
        return Ok(());
    }
    context.leadership.check()?;
    let made = calls::apply(&context.api::<K>(&key.namespace), &object, names::managers::POOL).await?;
    context.namespace_setup_gate.wrote(key, made.meta().resource_version.as_deref());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_policy_allows_no_ingress_and_egress_to_the_gateway_alone() {
        let peer = serde_json::from_value(json!({"ipBlock": {"cidr": "10.0.0.1/32"}})).expect("a peer");
        let supervised = Supervised {
            gateway: "10.0.0.1:8443".into(),
            peer,
            port: 8443,
            controller: Default::default(),
            image: "i".into(),
            pull_policy: "Never".into(),
            pull_secrets: Vec::new(),
            canaries: vec![],
            dns: Vec::new(),
        };
        let wall = policy("n", &supervised);
        assert_eq!((wall.metadata.name.as_deref(), wall.metadata.owner_references), (Some("spillway-agents"), None));
        assert_eq!(
            json!(wall.spec),
            json!({"podSelector": {"matchExpressions": [{"key": "spillway.dev/agent", "operator": "Exists"}]}, "policyTypes": ["Ingress", "Egress"],
                "egress": [{"ports": [{"protocol": "TCP", "port": 8443}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}]})
        );
    }
}
