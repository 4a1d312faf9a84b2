//! A namespace of a benchmark's own, and what benchmarks do in it. Nothing is removed: the cluster goes with the run.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use spillway::api::AgentPool;

use crate::operator::Operator;

/// Where agents of a pool run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// On KWOK's: pods are objects only, and are Ready as soon as they have a node.
    Fake,
    /// On the real one: with kubelet, containerd and processes.
    Real,
}

/// A namespace of a benchmark's own, held to Pod Security `restricted`.
pub struct Room {
    /// The measuring program's client.
    pub client: Client,
    /// Its name.
    pub namespace: String,
}

impl Room {
    /// A new one, with its ServiceAccount.
    pub async fn open(name: &str) -> anyhow::Result<Self> {
        let client = Client::try_default().await?;
        let namespace = format!("b-{name}-{:06x}", rand::random::<u32>() & 0xff_ffff);
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace, "labels": labels}}))?;
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
        let room = Self { client, namespace };
        within(Duration::from_secs(60), "the namespace has its ServiceAccount", async || {
            room.api::<ServiceAccount>().get("default").await?;
            Ok(())
        })
        .await?;
        Ok(room)
    }

    /// The API of a kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// An operator that serves this namespace only and leads it.
    pub async fn leader(&self) -> anyhow::Result<Operator> {
        let operator = Operator::start(self, "one")?;
        operator.leads(self).await?;
        Ok(operator)
    }

    /// Applies a pool of so many demo agents (`spec.scaling.min`).
    pub async fn apply_pool(&self, name: &str, agents: usize, nodes: Nodes) -> anyhow::Result<()> {
        let scheduling = match nodes {
            Nodes::Fake => json!({"nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}),
            Nodes::Real => json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
        };
        // KWOK's nodes have no storage to reserve.
        let requests = json!({"cpu": "5m", "memory": "8Mi", "ephemeral-storage": "0"});
        let resources = json!({"requests": requests, "limits": {"cpu": "100m", "memory": "32Mi", "ephemeral-storage": "64Mi"}});
        let object = json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name},
            "spec": {
                "type": "free", "scaling": {"min": agents, "max": 10000}, "scheduling": scheduling,
                "agent": {"image": "localhost/spillway/demo-agent:dev", "resources": resources},
            },
        });
        let params = PatchParams::apply("bench").force();
        self.api::<AgentPool>().patch(name, &params, &Patch::Apply(object)).await?;
        Ok(())
    }

    /// Sets how many agents the pool wants.
    pub async fn resize(&self, name: &str, agents: usize) -> anyhow::Result<()> {
        let change: Value = json!({"spec": {"scaling": {"min": agents}}});
        self.api::<AgentPool>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Waits until the pool says, of its current generation, that it is Ready with so many agents.
    pub async fn settled(&self, name: &str, agents: usize, limit: Duration) -> anyhow::Result<()> {
        within(limit, &format!("pool {name} is Ready with {agents} agents"), async || {
            let pool = self.api::<AgentPool>().get(name).await?;
            let status = pool.status.unwrap_or_default();
            let ready = status.conditions.iter().any(|condition| {
                condition.type_ == "Ready" && condition.status == "True" && condition.observed_generation == pool.metadata.generation
            });
            let there = status.agents.unwrap_or(0);
            anyhow::ensure!(ready && usize::try_from(there).ok() == Some(agents), "{there} agents, Ready: {ready}, {:?}", status.reason);
            Ok(())
        })
        .await
    }
}

/// Waits until `look` succeeds; after `limit` its last error is the answer.
pub async fn within<F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let started = Instant::now();
    while let Err(last) = look().await {
        anyhow::ensure!(started.elapsed() < limit, "after {} s still waiting until {what}; last seen: {last:#}", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
