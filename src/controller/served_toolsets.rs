//! The addresses of the bridges of Toolsets, in memory. The controller of Toolsets fills it, and the governor answers gateways from it.
//!
//! It holds at most one entry for each Toolset, and no entry for a Toolset without a Service. A new leader fills it with its first
//! look at each Toolset.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cluster::ObjectKey;

/// The bridge of one Toolset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedToolset {
    /// Address of its Service.
    pub address: SocketAddr,
    /// ServiceAccount of its pods, in the namespace of the Toolset.
    pub service_account: String,
    /// Seconds in which a person can approve a call.
    pub approval_timeout_seconds: i32,
}

/// The bridges of all Toolsets.
#[derive(Debug, Default)]
pub struct ServedToolsets(Mutex<HashMap<ObjectKey, ServedToolset>>);

impl ServedToolsets {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, ServedToolset>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bridge of a Toolset.
    pub fn get(&self, toolset: &ObjectKey) -> Option<ServedToolset> {
        self.lock().get(toolset).cloned()
    }

    /// Records the bridge of a Toolset.
    pub fn set(&self, toolset: ObjectKey, served: ServedToolset) {
        self.lock().insert(toolset, served);
    }

    /// Forgets the bridge of a Toolset.
    pub fn remove(&self, toolset: &ObjectKey) {
        self.lock().remove(toolset);
    }

    /// Forgets the bridges of Toolsets that do not exist.
    pub fn retain(&self, existing: &HashSet<ObjectKey>) {
        self.lock().retain(|toolset, _| existing.contains(toolset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_bridges_of_toolsets_that_exist() {
        let key = |name: &str| ObjectKey { namespace: "team".into(), name: name.into() };
        let served =
            ServedToolset { address: ([10, 0, 0, 1], 443).into(), service_account: "a-toolset".into(), approval_timeout_seconds: 900 };
        let toolsets = ServedToolsets::default();
        toolsets.set(key("a"), served.clone());
        toolsets.set(key("b"), served.clone());
        toolsets.set(key("c"), served.clone());
        toolsets.remove(&key("c"));
        toolsets.retain(&HashSet::from([key("a"), key("c")]));
        assert_eq!([toolsets.get(&key("a")), toolsets.get(&key("b")), toolsets.get(&key("c"))], [Some(served), None, None]);
    }
}
