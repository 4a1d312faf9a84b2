//! Agents whose pods are never scheduled. Their identity is real: an Agent, its pod, and a token that is bound to the
//! pod. They need no processor time, so there can be enough of them for hundreds of calls at once.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use spillway::api::Agent;

use super::caller::{Caller, token_of};
use super::{TestNamespace, check_state, eventually, test_namespace};

/// One of them.
pub struct Standin {
    /// Name of the Agent.
    pub name: String,
    /// The agent as a caller of the namespace's gateway, from an address of its own.
    pub caller: Caller,
}

impl TestNamespace {
    /// A minimal pool of `count` of them, with `extra` merged into its spec.
    pub async fn standins(&self, pool: &str, count: usize, extra: Value) -> Vec<Standin> {
        let mut spec = json!({"replicas": count, "scheduling": {"nodeSelector": {"no-such": "label"}}});
        test_namespace::merge(&mut spec, extra);
        self.apply_pool(pool, spec).await;
        self.standins_of(pool, count).await
    }

    /// Waits until the pool has `count` of them; these.
    pub async fn standins_of(&self, pool: &str, count: usize) -> Vec<Standin> {
        let with_pods = async || {
            let agents = self.list::<Agent>().await.into_iter().filter(|agent| agent.spec.pool_ref.name == pool);
            let recorded = agents.filter(|agent| agent.status.as_ref().is_some_and(|status| status.pod_ref.is_some()));
            recorded.map(|agent| agent.name_any()).collect::<Vec<_>>()
        };
        let names = eventually(&format!("{count} agents of {pool} have pods"), async || {
            let names = with_pods().await;
            check_state(names.len() == count, || format!("{}", names.len())).map(|()| names)
        })
        .await;
        let gateway = Caller::anonymous_at_gateway(self).await;
        let mut all = Vec::new();
        for (name, at) in names.into_iter().zip(1_u16..) {
            let pod = self.api::<Pod>().get(&name).await.expect("its pod");
            // A gateway reviews only a few unknown tokens of one address.
            let [high, low] = at.to_be_bytes();
            let source = IpAddr::from(Ipv4Addr::new(127, 77, high, low));
            all.push(Standin { caller: gateway.with_token(&token_of(self, &pod).await).with_source(source), name });
        }
        all
    }
}
