//! Removes objects that belong to no artifact: of deleted items, of artifacts whose time is over, of uploads that a crash cut off.
//!
//! The governor judges each object. Gateways that sweep at the same time do no harm.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::sleep;

use super::ask_unused;
use super::store::{Store, log_text};
use crate::gateway::state::Gateway;
use crate::wire::artifact::{MAX_KEYS, StoreKey, StoredObject, UnusedObjects};

/// Between two tries to ask the governor.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Sweeps for ever. Without a store it waits for ever.
pub async fn sweep(gateway: Arc<Gateway>) {
    let Some(store) = &gateway.artifacts.store else { return std::future::pending().await };
    loop {
        match store.remove_cut_uploads().await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "rests of uploads that were cut off are removed"),
            Err(error) => tracing::warn!(%error, "the folder of artifacts cannot be searched for rests of uploads"),
        }
        match once(&gateway, store).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "objects that belong to no artifact are removed"),
            Err(error) => {
                tracing::warn!(%error, "the store of artifacts cannot be swept now; trying again");
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        // Not all gateways at the same moment.
        sleep(gateway.artifacts.sweep_interval.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

/// Sweeps once; returns the number of removed objects.
async fn once(gateway: &Gateway, store: &Store) -> anyhow::Result<usize> {
    let cluster = ask_unused(gateway, UnusedObjects::default()).await?.cluster;
    let mut objects = store.list(&cluster).chunks(MAX_KEYS);
    let mut all = 0;
    let mut removed = Vec::new();
    while let Some(found) = objects.next().await {
        let found = found.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| anyhow::anyhow!(log_text(&error)))?;
        let objects = found.into_iter().map(|(key, age)| StoredObject { key, age_seconds: age.as_secs() }).collect();
        let unused = ask_unused(gateway, UnusedObjects { objects, removed: std::mem::take(&mut removed) }).await?.unused;
        removed = remove(store, unused).await;
        all += removed.len();
    }
    if !removed.is_empty() {
        ask_unused(gateway, UnusedObjects { objects: Vec::new(), removed }).await?;
    }
    Ok(all)
}

/// Removes objects; returns those that are not in the store any more.
pub(super) async fn remove(store: &Store, keys: Vec<StoreKey>) -> Vec<StoreKey> {
    let mut removed = Vec::new();
    for key in keys {
        match store.remove(&key).await {
            Ok(()) => removed.push(key),
            Err(error) => {
                tracing::warn!(object = key.path(), error = log_text(&error), "an object cannot be removed from the store of artifacts now")
            }
        }
    }
    removed
}
