//! Pieces that several kinds share.

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

/// What a layer does with its findings. Layers can be turned down one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum Mode {
    /// Decide and act.
    #[default]
    Enforce,
    /// Decide, publish and count what would have been done, act never.
    Observe,
    /// Do nothing.
    Disabled,
}
