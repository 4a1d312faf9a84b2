//! Types that several kinds share.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A reference to an object of a known kind in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How far a layer of Spillway acts. Each layer has a mode of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum Mode {
    /// The layer decides and acts.
    #[default]
    Enforce,
    /// The layer decides, publishes and counts what it would do, and never acts.
    Observe,
    /// The layer does nothing.
    Disabled,
}

/// The item that an agent holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentItem {
    /// Name of the WorkItem.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Uid of the WorkItem.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Epoch of the lease under which the agent holds it.
    pub epoch: i64,
}
