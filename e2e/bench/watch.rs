//! Watches of the measuring program's own: what happened, and when it was seen.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use spillway::api::Agent;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::room::Room;

/// Tells each Agent that is new, with when it was seen. Ends with its receiver.
pub async fn births(room: &Room) -> anyhow::Result<mpsc::UnboundedReceiver<(String, Instant)>> {
    let (tell, born) = mpsc::unbounded_channel();
    let (listed, mut ready) = watch::channel(false);
    let api: Api<PartialObjectMeta<Agent>> = room.api();
    tokio::spawn(async move {
        let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
        let mut known = HashSet::new();
        while let Some(event) = events.next().await {
            let seen = Instant::now();
            match event {
                Ok(Event::InitApply(agent)) => drop(known.insert(agent.name_any())),
                Ok(Event::InitDone) => drop(listed.send_replace(true)),
                Ok(Event::Apply(agent)) if known.insert(agent.name_any()) => {
                    if tell.send((agent.name_any(), seen)).is_err() {
                        return;
                    }
                }
                Ok(Event::Apply(_) | Event::Delete(_) | Event::Init) => {}
                Err(error) => eprintln!("the watch of Agents broke: {error}"),
            }
        }
    });
    ready.wait_for(|listed| *listed).await?;
    Ok(born)
}

/// How many pods of a room were ever seen Ready, counted from the start of the watch.
pub struct ReadyPods {
    count: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl ReadyPods {
    /// Starts counting.
    pub fn start(room: &Room) -> Self {
        let (tell, count) = watch::channel(0);
        let api: Api<Pod> = room.api();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
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

    /// Waits until so many were seen.
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
