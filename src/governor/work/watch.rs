//! The watches of items and queues. They start before any decision: a leader assigns nothing before it has listed
//! everything.
//!
//! An object that does not fit its type is logged and ignored, and affects no other object. Payloads are never kept.

use std::collections::{HashMap, HashSet};

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

use super::queues::Queues;
use super::work_index::WorkIndex;
use crate::api::{WorkItem, WorkQueue};
use crate::cluster::ObjectKey;
use crate::cluster::watch::{Tolerant, config};

/// Starts both watches on `tasks`. With `namespace`, only that namespace is watched.
pub fn start(tasks: &mut JoinSet<()>, client: &Client, namespace: Option<&str>, work_index: &WorkIndex, queues: &Queues) {
    tasks.spawn(watch_items(scoped(client, namespace), work_index.clone()));
    tasks.spawn(watch_queues(scoped(client, namespace), work_index.clone(), queues.clone()));
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<Tolerant<K>>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

async fn watch_items(api: Api<Tolerant<WorkItem>>, work_index: WorkIndex) {
    let mut events = watcher::watcher(api, config()).default_backoff().boxed();
    // Items that were known when a list began: an item that came since is not in the list, but exists.
    let (mut known, mut seen) = (HashSet::new(), HashSet::new());
    // A list has no order, so its version is known at its end.
    let mut listed = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                known = work_index.known();
                seen.clear();
                listed.clear();
            }
            Ok(Event::InitApply(item)) => {
                seen.insert(item.uid().unwrap_or_default());
                let to: &mut u64 = listed.entry(item.namespace().unwrap_or_default()).or_default();
                *to = version(&item).max(*to);
                observe(&work_index, &item);
            }
            Ok(Event::InitDone) => {
                known.retain(|(_, _, uid)| !seen.contains(uid));
                work_index.items_listed(&known);
                listed.drain().for_each(|(namespace, to)| work_index.watched(&namespace, to));
            }
            Ok(Event::Apply(item)) => {
                observe(&work_index, &item);
                work_index.watched(&item.namespace().unwrap_or_default(), version(&item));
            }
            Ok(Event::Delete(item)) => {
                work_index.forget(&item.namespace().unwrap_or_default(), &item.name_any(), &item.uid().unwrap_or_default());
            }
            Err(error) => tracing::warn!(%error, "the watch of WorkItems failed and is restarted"),
        }
    }
}

fn version(item: &Tolerant<WorkItem>) -> u64 {
    item.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn observe(work_index: &WorkIndex, item: &Tolerant<WorkItem>) {
    match &item.0 {
        Ok(item) => work_index.observe(item),
        Err(invalid) => {
            let (namespace, name) = (item.namespace().unwrap_or_default(), item.name_any());
            tracing::error!(namespace, item = name, error = %invalid.error, "a stored WorkItem does not fit its type; it is left alone");
        }
    }
}

async fn watch_queues(api: Api<Tolerant<WorkQueue>>, work_index: WorkIndex, queues: Queues) {
    let mut events = watcher::watcher(api, config()).default_backoff().boxed();
    let mut gone = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => gone = queues.keys(),
            Ok(Event::InitApply(queue) | Event::Apply(queue)) => {
                let key = ObjectKey::of(&queue);
                gone.remove(&key);
                match queue.0 {
                    Ok(queue) => {
                        work_index.observe_queue(&key.namespace, &key.name, Some(&queue));
                        queues.know(key, queue);
                    }
                    Err(invalid) => {
                        tracing::error!(namespace = %key.namespace, queue = %key.name, error = %invalid.error, "a stored WorkQueue does not fit its type; it is left alone");
                    }
                }
            }
            Ok(Event::InitDone) => {
                for key in gone.drain() {
                    work_index.observe_queue(&key.namespace, &key.name, None);
                    queues.forget(&key);
                }
                work_index.queues_listed();
            }
            Ok(Event::Delete(queue)) => {
                let key = ObjectKey::of(&queue);
                work_index.observe_queue(&key.namespace, &key.name, None);
                queues.forget(&key);
            }
            Err(error) => tracing::warn!(%error, "the watch of WorkQueues failed and is restarted"),
        }
    }
}
