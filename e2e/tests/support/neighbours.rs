//! Nodes without machines, in addition to the real one: the test renews their leases, and no pod runs on them. With
//! them the real node is one of several.

use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::TestNamespace;

/// Interval of renewals, at most that of kubelets.
const RENEW_EACH: Duration = Duration::from_secs(5);

/// The nodes. They exist until they are removed, or the test fails.
pub struct Neighbours {
    client: Client,
    names: Vec<String>,
    renewing: tokio::task::JoinHandle<()>,
}

impl Neighbours {
    /// Makes `count` nodes.
    pub async fn of(room: &TestNamespace, count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|at| format!("{}-beside-{at}", room.namespace)).collect();
        let client = room.client.clone();
        let neighbours = Self { renewing: tokio::spawn(renew(client.clone(), names.clone())), names, client };
        for name in &neighbours.names {
            let nodes = Api::<Node>::all(neighbours.client.clone());
            let taint = json!({"key": "e2e.spillway.dev/nobody", "effect": "NoExecute"});
            let node: Node = object(json!({"metadata": {"name": name}, "spec": {"unschedulable": true, "taints": [taint]}}));
            nodes.create(&PostParams::default(), &node).await.expect("a node");
            let now = jiff::Timestamp::now();
            let ready = json!({"type": "Ready", "status": "True", "reason": "Beside", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now});
            let status = Patch::Merge(json!({"status": {"conditions": [ready]}}));
            nodes.patch_status(name, &PatchParams::default(), &status).await.expect("a status");
        }
        neighbours
    }

    /// Removes them.
    pub async fn remove(mut self) {
        self.renewing.abort();
        for name in std::mem::take(&mut self.names) {
            Api::<Node>::all(self.client.clone()).delete(&name, &DeleteParams::default()).await.expect("the node is deleted");
            leases(&self.client).delete(&name, &DeleteParams::default()).await.expect("its lease is deleted");
        }
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.renewing.abort();
        // If they were left, they would be silent nodes for all later tests.
        if !self.names.is_empty() {
            let _ = Command::new("kubectl").args(["delete", "node", "--wait=false"]).args(&self.names).status();
            let _ = Command::new("kubectl").args(["-n", "kube-node-lease", "delete", "lease", "--wait=false"]).args(&self.names).status();
        }
    }
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "kube-node-lease")
}

/// Renews the leases of these nodes for ever.
async fn renew(client: Client, names: Vec<String>) {
    loop {
        for name in &names {
            // In the API server's format.
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
            let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now});
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec});
            let params = PatchParams::apply("e2e").force();
            let _ = leases(&client).patch(name, &params, &Patch::Apply(lease)).await; // another renewal follows soon
        }
        tokio::time::sleep(RENEW_EACH).await;
    }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of its kind")
}
