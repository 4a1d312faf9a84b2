//! A namespace of a test's own, and operations in it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Mutex;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spillway::api::{Agent, AgentPool, WorkItem};

use super::operator::{GATEWAY, free_port};
use super::{Operator, check_state, eventually};

/// Address of the one real node, which the operators share. A node with a full disk starts no pod, and each test would
/// wait for its pods in vain.
async fn address_of_the_node(client: &Client) -> IpAddr {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.expect("nodes").items;
    let conditions = nodes.iter().filter_map(|node| node.status.as_ref()?.conditions.as_ref()).flatten();
    let full = conditions.filter(|one| one.type_ == "DiskPressure" && one.status == "True").count();
    assert_eq!(full, 0, "the node's disk is full (DiskPressure): free disk space, and run the tests again");
    let addresses = nodes.into_iter().filter_map(|node| node.status?.addresses).flatten();
    let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP").expect("a node with an address");
    internal.address.parse().expect("an address")
}

/// A namespace of a test's own, with Pod Security `restricted`.
pub struct TestNamespace {
    pub client: Client,
    pub namespace: String,
    /// Address of the node, which the operators share.
    pub node: IpAddr,
    /// Address of this namespace's gateway.
    pub gateway: SocketAddr,
    serving: Mutex<Option<Operator>>,
}

impl TestNamespace {
    pub async fn open(name: &str) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::try_default().await.expect("a cluster: run this by `make e2e`");
        let namespace = format!("t-{name}-{:06x}", rand::random::<u32>() & 0xff_ffff);
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace, "labels": labels}})).expect("a namespace");
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.expect("a new namespace");
        let node = address_of_the_node(&client).await;
        let gateway = SocketAddr::new(node, free_port(node));
        let room = Self { client, namespace, node, gateway, serving: Mutex::default() };
        eventually("the namespace has its ServiceAccount", async || {
            room.api::<ServiceAccount>().get("default").await.map_err(|error| error.to_string())
        })
        .await;
        room.gateways_token().await;
        room.start_gateway("gateway");
        room
    }

    /// The gateway's own ServiceAccount and its token for the governor, as the kubelet would mount it.
    async fn gateways_token(&self) {
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": GATEWAY}})).expect("an account");
        let accounts = self.api::<ServiceAccount>();
        accounts.create(&PostParams::default(), &account).await.expect("a ServiceAccount");
        let request: TokenRequest =
            serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": ["spillway.dev/governor"], "expirationSeconds": 7200}}))
                .expect("a request");
        let answer = accounts.create_token_request(GATEWAY, &PostParams::default(), &request).await.expect("a token");
        std::fs::write(self.token_file(), answer.status.and_then(|status| status.token).expect("a token")).expect("a file for the token");
    }

    /// File with the gateway's token for the governor.
    pub fn token_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.token", self.namespace))
    }

    /// Starts the namespace's gateway, after it was stopped.
    pub fn start_gateway(&self, name: &str) {
        *self.serving.lock().expect("one at a time") = Some(Operator::gateway(self, name));
    }

    /// Kills the namespace's gateway.
    pub fn kill_gateway(&self) {
        *self.serving.lock().expect("one at a time") = None;
    }

    /// The peak memory of the namespace's gateway, in kB.
    pub fn gateway_memory_peak(&self) -> u64 {
        self.serving.lock().expect("one at a time").as_ref().expect("it runs").memory_peak()
    }

    /// Removes all objects while the operator still runs (it must leave none), then the namespace. A failed test does
    /// not call it, so its objects stay for inspection.
    pub async fn close(self) {
        let all = ListParams::default();
        self.api::<AgentPool>().delete_collection(&DeleteParams::default(), &all).await.expect("the pools are deleted");
        self.api::<Agent>().delete_collection(&DeleteParams::default(), &all).await.expect("the Agents are deleted");
        self.api::<WorkItem>().delete_collection(&DeleteParams::default(), &all).await.expect("the items are deleted");
        self.empty().await;
        let all = Api::<Namespace>::all(self.client.clone());
        all.delete(&self.namespace, &DeleteParams::default()).await.expect("the namespace is deleted");
        self.kill_gateway();
        // Each journal reserves megabytes, and there are more than a hundred tests.
        let _ = std::fs::remove_dir_all(self.journal());
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// An operator that serves this namespace only.
    pub fn operator(&self, name: &str) -> Operator {
        Operator::start(self, name, None)
    }

    /// A minimal pool of demo agents of type free, with `extra` merged into its spec.
    pub async fn apply_pool(&self, name: &str, extra: Value) -> AgentPool {
        let resources = json!({"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}});
        let mut object = json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name},
            "spec": {"type": "free", "agent": {"image": "localhost/spillway/demo-agent:dev", "command": ["/bin/demo-agent"], "resources": resources}},
        });
        merge(&mut object["spec"], extra);
        let params = PatchParams::apply("e2e").force();
        self.api::<AgentPool>().patch(name, &params, &Patch::Apply(object)).await.expect("the pool is accepted")
    }

    pub async fn pool(&self, name: &str) -> AgentPool {
        self.api::<AgentPool>().get(name).await.expect("the pool is there")
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug,
        K::DynamicType: Default,
    {
        self.api::<K>().list(&ListParams::default()).await.expect("a list").items
    }

    /// Waits until the condition `type_` of the pool has this status for the current generation; returns its reason and message.
    pub async fn pool_says(&self, name: &str, type_: &str, status: &str) -> (String, String) {
        eventually(&format!("pool {name} says {type_}={status}"), async || {
            let pool = self.pool(name).await;
            let conditions = pool.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            let found =
                conditions.iter().find(|condition| condition.type_ == type_ && condition.observed_generation == pool.metadata.generation);
            match found {
                Some(found) if found.status == status => Ok((found.reason.clone(), found.message.clone())),
                _ => Err(format!("{conditions:?}")),
            }
        })
        .await
    }

    /// Waits until exactly `count` pods run and are Ready, and no others exist.
    pub async fn pods_ready(&self, count: usize) -> Vec<Pod> {
        eventually(&format!("{count} pods are ready"), async || {
            let pods: Vec<Pod> = self.list().await;
            let live: Vec<Pod> = pods.into_iter().filter(is_live).collect();
            let ready = live.iter().filter(|pod| is_ready(pod)).count();
            check_state(ready == count && live.len() == count, || format!("{ready} ready of {} live", live.len())).map(|()| live)
        })
        .await
    }

    /// Waits until the namespace holds no pool, Agent or pod.
    pub async fn empty(&self) {
        eventually("nothing is left", async || {
            let left: Vec<String> =
                self.names::<AgentPool>().await.into_iter().chain(self.names::<Agent>().await).chain(self.names::<Pod>().await).collect();
            check_state(left.is_empty(), || left.join(", "))
        })
        .await;
    }

    async fn names<K>(&self) -> Vec<String>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.list::<K>().await.iter().map(|object| format!("{}/{}", K::kind(&()), object.name_any())).collect()
    }
}

/// Whether a pod's processes may run.
pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value))
        }
        (into, from) => *into = from,
    }
}
