//! Every state of the items of a namespace, and their holders, from a watch of the test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use spillway::api::WorkItem;
use spillway::api::work_item::WorkItemPhase;

use super::caller::{Answer, Caller, token_of};
use super::history::History;
use super::work::phase;
use super::{TestNamespace, eventually};

/// Records states from [`start`](Self::start) on.
#[derive(Clone)]
pub struct Witness {
    seen: Arc<Mutex<BTreeMap<String, Vec<WorkItem>>>>,
    _task: Arc<tokio::task::JoinHandle<()>>,
}

impl Witness {
    pub fn start(room: &TestNamespace) -> Self {
        let seen = Arc::new(Mutex::new(BTreeMap::<String, Vec<WorkItem>>::new()));
        let (api, writing) = (room.api::<WorkItem>(), seen.clone());
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Event::Apply(item) | Event::InitApply(item) = event.expect("the test's own watch holds") {
                    writing.lock().expect("not poisoned").entry(item.name_any()).or_default().push(item);
                }
            }
        });
        Self { seen, _task: Arc::new(task) }
    }

    /// Every state of an item, in order.
    pub fn states_of(&self, item: &str) -> Vec<WorkItem> {
        self.seen.lock().expect("not poisoned").get(item).cloned().unwrap_or_default()
    }

    /// Waits until a state of the item fits; the first such state.
    pub async fn wait_for_state(&self, item: &str, what: &str, fits: impl Fn(&WorkItem) -> bool) -> WorkItem {
        eventually(&format!("item {item} was {what}"), async || {
            let states = self.states_of(item);
            states.iter().find(|state| fits(state)).cloned().ok_or_else(|| format!("{:?}", states.last().map(|item| &item.status)))
        })
        .await
    }

    /// Items that were seen in phase Succeeded.
    pub fn succeeded(&self) -> usize {
        let all = self.seen.lock().expect("not poisoned");
        all.values().filter(|states| states.last().and_then(phase) == Some(WorkItemPhase::Succeeded)).count()
    }

    /// Checks that no item was finished twice, or changed after its end.
    pub fn each_was_finished_once(&self) {
        for (name, states) in self.seen.lock().expect("not poisoned").iter() {
            let mut ends: Vec<_> = states.iter().filter(|state| phase(state) == Some(WorkItemPhase::Succeeded)).map(end).collect();
            ends.dedup();
            assert!(ends.len() <= 1, "{name} was finished more than once: {ends:#?}");
            let after = states.iter().skip_while(|state| phase(state) != Some(WorkItemPhase::Succeeded));
            let phases: Vec<_> = after.map(phase).collect();
            assert!(phases.iter().all(|phase| *phase == Some(WorkItemPhase::Succeeded)), "{name}: {phases:?}");
        }
    }
}

/// The parts of a finished item that must not change.
fn end(item: &WorkItem) -> String {
    let status = item.status.clone().unwrap_or_default();
    format!("{:?} {:?} {:?} {:?}", status.completion_time, status.result, status.attempts, epoch(item))
}

/// The epoch of an item's last claim.
pub fn epoch(item: &WorkItem) -> i64 {
    item.status.as_ref().and_then(|status| status.lease.as_ref()?.lease_transitions).unwrap_or_default()
}

/// Whether it is leased under this epoch.
pub fn leased(item: &WorkItem, at: i64) -> bool {
    phase(item) == Some(WorkItemPhase::Leased) && epoch(item) == at
}

/// Uid of the pod that holds an item.
pub fn holder(item: &WorkItem) -> String {
    item.status.as_ref().and_then(|status| status.lease.as_ref()?.holder.clone()).expect("the item has a holder")
}

/// Failures, stalls and attempts of an item, and its epoch.
pub fn counts(item: &WorkItem) -> (i32, i32, i32, i64) {
    let status = item.status.clone().unwrap_or_default();
    (status.failures.unwrap_or(0), status.stalls.unwrap_or(0), status.attempts.unwrap_or(0), epoch(item))
}

/// The result of an item.
pub fn result(item: &WorkItem) -> Option<String> {
    item.status.as_ref().and_then(|status| status.result.as_deref()).map(|result| result.trim().to_owned())
}

impl TestNamespace {
    /// The pod that holds an item.
    pub async fn holder(&self, item: &WorkItem) -> Pod {
        let uid = holder(item);
        let pods = self.list::<Pod>().await;
        pods.into_iter().find(|pod| pod.uid().as_deref() == Some(&uid)).expect("the holder's pod is there")
    }

    /// A caller with the token of this pod, at the gateway.
    pub async fn as_pod(&self, pod: &Pod) -> Caller {
        Caller::anonymous_at_gateway(self).await.with_token(&token_of(self, pod).await)
    }
}

impl Caller {
    /// Reports, with this caller's token, that the item is done. Only the token identifies the caller.
    pub async fn completes(&self, item: &WorkItem, epoch: i64, result: &str) -> Answer {
        let path = format!("/agent/v1/work/{}/complete", item.uid().expect("a uid"));
        self.post(&path, json!({"epoch": epoch, "result": result})).await
    }
}

/// The version at which the API server learned that no process of a pod runs any more. On this cluster versions of all
/// kinds come from one counter, so they give the order of writes.
pub fn version_of_pod_end(history: &History, uid: &str) -> u64 {
    let states = history.pods(uid);
    let gone = states.iter().find(|pod| ended(pod)).unwrap_or_else(|| panic!("no state shows that the pod ended: {states:#?}"));
    version(gone)
}

/// Whether the kubelet reported the end of every container, or of the pod.
fn ended(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let containers: Vec<_> =
        status.container_statuses.into_iter().flatten().chain(status.init_container_statuses.into_iter().flatten()).collect();
    let terminated = |one: &k8s_openapi::api::core::v1::ContainerStatus| one.state.as_ref().is_some_and(|state| state.terminated.is_some());
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) || (!containers.is_empty() && containers.iter().all(terminated))
}

pub fn version<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).expect("a version")
}
