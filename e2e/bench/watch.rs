//! Watches of the measuring program: events, and when they were seen.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use spillway::api::Agent;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::bench_namespace::BenchNamespace;

/// Receives the name of an object and the time at which it was seen.
pub type Sights = mpsc::UnboundedReceiver<(String, Instant)>;

/// Sends each new Agent.
pub async fn watch_new_agents(room: &BenchNamespace) -> anyhow::Result<Sights> {
    sights(room.api::<PartialObjectMeta<Agent>>(), |_| true).await
}

/// Sends each Agent with the condition `GoodbyeRequested`.
pub async fn goodbyes(room: &BenchNamespace) -> anyhow::Result<Sights> {
    let said = |agent: &Agent| {
        let conditions = agent.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "GoodbyeRequested" && condition.status == "True")
    };
    sights(room.api::<Agent>(), said).await
}

/// Sends each object for which `is` becomes true. Ends with its receiver.
async fn sights<K>(api: Api<K>, is: fn(&K) -> bool) -> anyhow::Result<Sights>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (tell, seen) = mpsc::unbounded_channel();
    let (listed, mut ready) = watch::channel(false);
    tokio::spawn(async move {
        let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
        let mut known = HashSet::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = tell.closed() => return,
            };
            let (Some(event), now) = (event, Instant::now()) else { return };
            match event {
                Ok(Event::InitApply(object)) if is(&object) => drop(known.insert(object.name_any())),
                Ok(Event::InitDone) => drop(listed.send_replace(true)),
                Ok(Event::Apply(object)) if is(&object) && known.insert(object.name_any()) => {
                    let _ = tell.send((object.name_any(), now)); // without a receiver the next round ends it
                }
                Ok(Event::Apply(_) | Event::InitApply(_) | Event::Delete(_) | Event::Init) => {}
                Err(error) => eprintln!("a watch broke: {error}"),
            }
        }
    });
    ready.wait_for(|listed| *listed).await?;
    Ok(seen)
}

/// Number of pods of a namespace that were seen Ready since the start of the watch.
pub struct ReadyPods {
    count: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl ReadyPods {
    /// Starts counting.
    pub fn start(room: &BenchNamespace) -> Self {
        let (tell, count) = watch::channel(0);
        let api: Api<Pod> = room.api();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
            let mut ready = HashSet::new();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                        if is_ready(&pod) && ready.insert(pod.name_any()) {
                            tell.send_replace(ready.len());
                        }
                    }
                    Ok(Event::Delete(_) | Event::Init | Event::InitDone) => {}
                    Err(error) => eprintln!("the watch of pods broke: {error}"),
                }
            }
        });
        Self { count, task }
    }

    /// Waits until `wanted` pods were seen.
    pub async fn reach(&mut self, wanted: usize, limit: Duration) -> anyhow::Result<Instant> {
        let seen =
            tokio::time::timeout(limit, self.count.wait_for(|count| *count >= wanted)).await.map(|seen| seen.map(|_| Instant::now()));
        match seen {
            Ok(seen) => Ok(seen?),
            Err(_) => anyhow::bail!("after {} s {} of {wanted} pods were Ready", limit.as_secs(), *self.count.borrow()),
        }
    }
}

impl Drop for ReadyPods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
