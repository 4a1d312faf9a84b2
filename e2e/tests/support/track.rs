//! The number of pods of a namespace that exist at once, from a watch of the test.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};

use super::TestNamespace;
use super::test_namespace::is_live;

#[derive(Default)]
struct SeenObjects {
    live: BTreeSet<String>,
    ever: BTreeSet<String>,
    most: usize,
}

/// Counts from [`start`](Self::start) on.
#[derive(Clone)]
pub struct Pods {
    seen: Arc<Mutex<SeenObjects>>,
    _task: Arc<tokio::task::JoinHandle<()>>,
}

impl Pods {
    pub fn start(room: &TestNamespace) -> Self {
        let seen = Arc::new(Mutex::new(SeenObjects::default()));
        let api: Api<Pod> = room.api();
        let counted = seen.clone();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let mut seen = counted.lock().expect("not poisoned");
                match event.expect("the test's own watch holds") {
                    Event::Apply(pod) | Event::InitApply(pod) => {
                        let uid = pod.uid().expect("a uid");
                        seen.ever.insert(uid.clone());
                        if is_live(&pod) {
                            seen.live.insert(uid)
                        } else {
                            seen.live.remove(&uid)
                        };
                    }
                    Event::Delete(pod) => {
                        seen.live.remove(&pod.uid().expect("a uid"));
                    }
                    Event::Init | Event::InitDone => {}
                }
                seen.most = seen.most.max(seen.live.len());
            }
        });
        Self { seen, _task: Arc::new(task) }
    }

    /// The most pods at once.
    pub fn most_at_once(&self) -> usize {
        self.seen.lock().expect("not poisoned").most
    }

    /// The number of all pods so far.
    pub fn total(&self) -> usize {
        self.seen.lock().expect("not poisoned").ever.len()
    }
}
