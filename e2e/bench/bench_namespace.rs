//! A namespace of a benchmark's own, and operations in it. Nothing is removed, because the cluster is removed after the
//! run.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use spillway::api::AgentPool;

use crate::operator::{Operator, free_port};
use crate::report::folder;

/// Name of the gateway's ServiceAccount in every benchmark's namespace, and of the file with its token.
pub const GATEWAY: &str = "gateway";
const PATIENCE: Duration = Duration::from_secs(60);

/// The nodes that a pool's agents run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// KWOK's nodes: pods are objects only, and are Ready as soon as they have a node.
    Fake,
    /// The real node, with kubelet, containerd and processes.
    Real,
}

/// A namespace of a benchmark's own, with Pod Security `restricted`.
#[derive(Clone)]
pub struct BenchNamespace {
    /// The measuring program's client.
    pub client: Client,
    /// Its name.
    pub namespace: String,
    /// Address of the real node, which the operators share.
    pub node: IpAddr,
    /// The address of the namespace's gateway, once it is started.
    pub gateway: SocketAddr,
    folder: PathBuf,
}

impl BenchNamespace {
    /// A new one, with its ServiceAccount and the gateway's.
    pub async fn open(name: &str) -> anyhow::Result<Self> {
        let client = Client::try_default().await?;
        let namespace = format!("b-{name}-{:06x}", rand::random::<u32>() & 0xff_ffff);
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace, "labels": labels}}))?;
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
        let node = address_of_the_node(&client).await?;
        let gateway = SocketAddr::new(node, free_port(node)?);
        let folder = folder(&format!("rooms/{namespace}"))?;
        let room = Self { client, namespace, node, gateway, folder };
        within(PATIENCE, "the namespace has its ServiceAccount", async || {
            room.api::<ServiceAccount>().get("default").await?;
            Ok(())
        })
        .await?;
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": GATEWAY}}))?;
        room.api::<ServiceAccount>().create(&PostParams::default(), &account).await?;
        let token = room.token(GATEWAY, &json!({"audiences": ["spillway.dev/governor"], "expirationSeconds": 7200})).await?;
        std::fs::write(room.folder.join(GATEWAY), token)?;
        Ok(room)
    }

    /// A token of one of its ServiceAccounts, as the kubelet would mount it.
    pub async fn token(&self, account: &str, spec: &Value) -> anyhow::Result<String> {
        let request: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": spec}))?;
        let answer = self.api::<ServiceAccount>().create_token_request(account, &PostParams::default(), &request).await?;
        answer.status.and_then(|status| status.token).context("a token")
    }

    /// Folder for tokens and certificates of this namespace. They are worthless once the cluster is gone.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The API of a kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// An operator that serves this namespace only: a controller that leads, and a gateway that is connected to it.
    pub async fn start_operators(&self) -> anyhow::Result<(Operator, Operator)> {
        let controller = Operator::start(self, "one")?;
        let gateway = Operator::gateway(self, GATEWAY)?;
        controller.leads(self).await?;
        gateway.ready().await?;
        Ok((controller, gateway))
    }

    /// Applies a pool of `agents` demo agents (`spec.scaling.min`).
    pub async fn apply_pool(&self, name: &str, agents: usize, nodes: Nodes) -> anyhow::Result<()> {
        self.apply_program(name, agents, nodes, &["/bin/demo-agent"]).await
    }

    /// The same with another program of the demo agent's image.
    pub async fn apply_program(&self, name: &str, agents: usize, nodes: Nodes, command: &[&str]) -> anyhow::Result<()> {
        self.apply(name, nodes, command, json!({"type": "free", "scaling": {"min": agents, "max": 10000}})).await
    }

    /// Applies a pool of `agents` workers on KWOK nodes. They take items from this queue, and stay when it is empty.
    pub async fn apply_workers(&self, name: &str, agents: usize, queue: &str) -> anyhow::Result<()> {
        let scaling = json!({"min": agents, "max": 10000, "workAware": false});
        self.apply(name, Nodes::Fake, &["/bin/demo-agent"], json!({"type": "worker", "scaling": scaling, "queues": [{"name": queue}]}))
            .await
    }

    /// Applies a pool with `spec`, to which this adds the agents' program and their nodes.
    pub async fn apply(&self, name: &str, nodes: Nodes, command: &[&str], spec: Value) -> anyhow::Result<()> {
        self.apply_limited(name, nodes, command, "100m", spec).await
    }

    /// The same with this limit of processor time for the program's container.
    pub async fn apply_limited(&self, name: &str, nodes: Nodes, command: &[&str], cpu: &str, mut spec: Value) -> anyhow::Result<()> {
        spec["scheduling"] = match nodes {
            Nodes::Fake => json!({"nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}),
            Nodes::Real => json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
        };
        // KWOK's nodes have no storage to reserve.
        let requests = json!({"cpu": "5m", "memory": "8Mi", "ephemeral-storage": "0"});
        let resources = json!({"requests": requests, "limits": {"cpu": cpu, "memory": "32Mi", "ephemeral-storage": "64Mi"}});
        spec["agent"] = json!({"image": "localhost/spillway/demo-agent:dev", "command": command, "resources": resources});
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name}, "spec": spec});
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

    /// Waits until the pool is Ready with `agents` agents, at its current generation.
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

async fn address_of_the_node(client: &Client) -> anyhow::Result<IpAddr> {
    let real = ListParams::default().labels("type!=kwok");
    let nodes = Api::<Node>::all(client.clone()).list(&real).await?.items;
    let mut addresses = nodes.into_iter().filter_map(|node| node.status?.addresses).flatten();
    let internal = addresses.find(|address| address.type_ == "InternalIP").context("a real node with an address")?;
    Ok(internal.address.parse()?)
}

/// Waits until `look` succeeds. After `limit` it fails with the last error of `look`.
pub async fn within<T, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let started = Instant::now();
    loop {
        let last = match look().await {
            Ok(found) => return Ok(found),
            Err(last) => last,
        };
        anyhow::ensure!(started.elapsed() < limit, "still waiting after {} s until {what}; last seen: {last:#}", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
