//! Events about a rollback of the API server's store. Lost writes cannot be listed, so an event in each namespace names
//! the lost time.
//!
//! Replayed settles are applied by [`budget`](super::budget), replayed leases by [`work::replay`](super::work::replay).

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::AgentPool;
use crate::api::conditions::reasons;
use crate::controller::Context;
use crate::policy::lease::StoreRollback;

/// The action of these events.
pub const RECOVER_ACTION: &str = "Recover";

/// Sends the events if the store was rolled back. Never ends.
pub async fn run(context: Arc<Context>) {
    if let Some(rollback) = context.recent_rollback() {
        let note = note(rollback);
        tracing::error!(highest = rollback.highest, note, "this leader starts after a rollback of the API server's store");
        let namespaces: BTreeSet<String> = context.stores.pools.state().iter().filter_map(|pool| pool.namespace()).collect();
        for pool in namespaces.iter().filter_map(|namespace| first_pool(&context, namespace)) {
            context.events.alert(&pool, reasons::STORE_ROLLED_BACK, RECOVER_ACTION, note.clone()).await;
        }
    }
    std::future::pending().await
}

fn note(rollback: &StoreRollback) -> String {
    let time = |ms: i64| Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| format!("{time:.0}"));
    format!(
        "the cluster's store was rolled back: writes from {} to {} are lost, such as submitted items, Grants and changes of settings. \
         Gateways replay the ends of items and the tokens of calls that they remember. Apply your manifests again",
        time(rollback.since),
        time(rollback.detected)
    )
}

/// The first pool of a namespace by name. Events about the namespace refer to it.
pub fn first_pool(context: &Context, namespace: &str) -> Option<AgentPool> {
    let stored = context.stores.pools.state();
    let readable = stored.iter().filter_map(|pool| pool.0.as_ref().ok());
    let ours = readable.filter(|pool| pool.metadata.namespace.as_deref() == Some(namespace));
    ours.min_by(|one, other| one.metadata.name.cmp(&other.metadata.name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_names_the_lost_time() {
        let words = note(&StoreRollback { highest: 7, since: 1_790_000_000_000, detected: 1_790_000_076_000 });
        assert!(words.contains("from 2026-09-21T14:13:20Z to 2026-09-21T14:14:36Z are lost"), "{words}");
        assert!(words.len() < 1000);
    }
}
