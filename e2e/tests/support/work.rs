//! Queues, items, and pools that work on items.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase;
use spillway::api::{WorkItem, WorkQueue};

use super::{TestNamespace, check_state, eventually, node, within};

/// A program that takes its task from standard input and runs `script` with it in `$task`.
pub fn each_item(script: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", format!("read -r task; {script}")]})
}

/// A program that runs until [`TestNamespace::let_go`].
pub const UNTIL_TOLD: &str = "while [ ! -e /tmp/go-$SPILLWAY_ITEM ]; do sleep 1; done";

pub fn phase(item: &WorkItem) -> Option<WorkItemPhase> {
    item.status.as_ref().and_then(|status| status.phase)
}

impl TestNamespace {
    /// A minimal queue, with `spec` merged in.
    pub async fn apply_queue(&self, name: &str, spec: Value) -> WorkQueue {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": name}, "spec": spec});
        let params = PatchParams::apply("e2e").force();
        self.api::<WorkQueue>().patch(name, &params, &Patch::Apply(object)).await.expect("the queue is accepted")
    }

    /// A pool of workers on these queues.
    pub async fn apply_workers(&self, name: &str, queues: &[&str], script: &str, extra: Value) {
        let queues: Vec<Value> = queues.iter().map(|queue| json!({"name": queue})).collect();
        let mut spec = json!({"type": "worker", "queues": queues, "agent": each_item(script)});
        super::test_namespace::merge(&mut spec, extra);
        self.apply_pool(name, spec).await;
    }

    /// Makes an item with its queue and `spec`.
    pub async fn submit(&self, queue: &str, name: &str, spec: Value) -> WorkItem {
        let mut object = json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name}, "spec": {"queueRef": {"name": queue}},
        });
        super::test_namespace::merge(&mut object["spec"], spec);
        let item: WorkItem = serde_json::from_value(object).expect("an item");
        self.api::<WorkItem>().create(&PostParams::default(), &item).await.expect("the item is accepted")
    }

    /// Makes an item with metadata of its own.
    pub async fn submit_as(&self, metadata: Value, spec: Value) -> WorkItem {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": metadata, "spec": spec});
        let item: WorkItem = serde_json::from_value(object).expect("an item");
        self.api::<WorkItem>().create(&PostParams::default(), &item).await.expect("the item is accepted")
    }

    /// Ends an item whose program is [`UNTIL_TOLD`].
    pub async fn release_item(&self, name: &str) {
        let agent = holder(&self.wait_for_item_phase(name, WorkItemPhase::Leased).await);
        let ended = super::exec::sh(self, &agent, &format!("touch /tmp/go-{name}")).await;
        // The program may end before this command does, and the supervisor then kills all other processes.
        assert!(matches!(ended.code, 0 | 137), "{ended:?}");
    }

    pub async fn item(&self, name: &str) -> WorkItem {
        self.api::<WorkItem>().get(name).await.expect("the item is there")
    }

    pub async fn change_item(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api::<WorkItem>().patch(name, &PatchParams::default(), &patch).await.expect("the item is changed");
    }

    /// Waits until the item is in this phase.
    pub async fn wait_for_item_phase(&self, name: &str, wanted: WorkItemPhase) -> WorkItem {
        eventually(&format!("item {name} is {wanted:?}"), async || {
            let item = self.item(name).await;
            check_state(phase(&item) == Some(wanted), || format!("{:?}", item.status)).map(|()| item)
        })
        .await
    }

    /// Waits until every item has ended; the number of items in each phase.
    pub async fn wait_until_items_ended(&self, count: usize) -> BTreeMap<String, usize> {
        eventually(&format!("{count} items have ended"), async || {
            let items: Vec<WorkItem> = self.list().await;
            let mut phases = BTreeMap::new();
            for item in &items {
                *phases.entry(phase(item).map_or("-".to_owned(), |phase| format!("{phase:?}"))).or_default() += 1;
            }
            let over = items.iter().filter(|item| {
                let status = item.status.as_ref();
                status.is_some_and(|status| status.completion_time.is_some())
            });
            check_state(items.len() == count && over.count() == count, || format!("{phases:?}")).map(|()| phases)
        })
        .await
    }
}

/// Verb and agent of each attempt of an item.
pub fn attempts(item: &WorkItem) -> Vec<(String, String)> {
    let history = item.status.iter().flat_map(|status| status.attempt_history.iter().flatten());
    history.map(|attempt| (attempt.verb.clone(), attempt.agent.clone())).collect()
}

/// The name of the agent that holds an item.
pub fn holder(item: &WorkItem) -> String {
    item.status.as_ref().and_then(|status| status.lease.as_ref()?.agent.clone()).expect("the item has a holder")
}

/// Every state of the items of a namespace, with the time at which it was seen, in the order of the writes.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<(Timestamp, WorkItem)>>>);

impl Ledger {
    pub fn start(room: &TestNamespace) -> Self {
        let ledger = Self::default();
        let (api, seen) = (room.api::<WorkItem>(), ledger.0.clone());
        tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Event::Apply(item) | Event::InitApply(item) = event.expect("the test's own watch holds") {
                    seen.lock().expect("not poisoned").push((Timestamp::now(), item));
                }
            }
        });
        ledger
    }

    /// All states, the oldest first.
    pub fn all(&self) -> Vec<(Timestamp, WorkItem)> {
        self.0.lock().expect("not poisoned").clone()
    }

    /// The states of one item.
    pub fn states_of(&self, name: &str) -> Vec<WorkItem> {
        let all = self.0.lock().expect("not poisoned");
        all.iter().filter(|(_, item)| item.name_any() == name).map(|(_, item)| item.clone()).collect()
    }

    /// The last state of each item.
    pub fn last(&self) -> BTreeMap<String, WorkItem> {
        let all = self.0.lock().expect("not poisoned");
        all.iter().map(|(_, item)| (item.name_any(), item.clone())).collect()
    }

    /// Waits until `count` items are in a phase that fits.
    pub async fn wait_for_phases(&self, count: usize, what: &str, fits: impl Fn(WorkItemPhase) -> bool) {
        within(Duration::from_secs(600), &format!("{count} items are {what}"), async || {
            let now = self.last();
            let fit = now.values().filter(|item| phase(item).is_some_and(&fits)).count();
            check_state(fit == count, || format!("{fit} are")).map_err(|few| {
                let others = now.values().filter(|item| !phase(item).is_some_and(&fits));
                let others: Vec<_> = others.take(5).map(|item| format!("{} {:?}", item.name_any(), phase(item))).collect();
                format!("{few}; {others:?}")
            })
        })
        .await;
    }

    /// The recorded time of each item's first claim.
    pub fn claims(&self) -> BTreeMap<String, Timestamp> {
        let mut claims = BTreeMap::new();
        for (_, item) in self.all() {
            if let Some(time) = item.status.as_ref().and_then(|status| status.lease.as_ref()?.acquire_time.clone()) {
                claims.entry(item.name_any()).or_insert(time.0);
            }
        }
        claims
    }
}

/// The volumes of a namespace's claims. They are kept for reading after their claims are deleted, as with a retaining
/// storage class.
#[derive(Clone, Default)]
pub struct Volumes(Arc<Mutex<BTreeMap<String, PathBuf>>>);

impl Volumes {
    pub fn retain(room: &TestNamespace) -> Self {
        let kept = Self::default();
        let (client, namespace, volumes) = (room.client.clone(), room.namespace.clone(), kept.0.clone());
        tokio::spawn(async move {
            let api = Api::<PersistentVolume>::all(client);
            let mut events = watcher::watcher(api.clone(), watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let (Event::Apply(volume) | Event::InitApply(volume)) = event.expect("the test's own watch holds") else { continue };
                let (name, spec) = (volume.name_any(), volume.spec.unwrap_or_default());
                let ours = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.as_ref()).is_some_and(|of| *of == namespace);
                if ours && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") {
                    let patch = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
                    api.patch(&name, &PatchParams::default(), &patch).await.expect("the volume is retained");
                    volumes.lock().expect("not poisoned").insert(name, node::folder_of(&spec));
                }
            }
        });
        kept
    }

    /// The content of the file of this name, from each volume that has it.
    pub fn read(&self, file: &str) -> Vec<String> {
        let all = self.0.lock().expect("not poisoned");
        all.values().filter_map(|path| std::fs::read_to_string(path.join(file)).ok()).collect()
    }

    /// Removes them after their claims are deleted.
    pub async fn remove(self, client: Client) {
        let all = self.0.lock().expect("not poisoned").clone();
        for (name, path) in all {
            Api::<PersistentVolume>::all(client.clone()).delete(&name, &DeleteParams::default()).await.expect("the volume is deleted");
            std::fs::remove_dir_all(path).expect("its folder is removed");
        }
    }
}
