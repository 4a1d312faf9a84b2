//! Artifacts: the files that agents keep with their items, and the limits on them. It decides nothing about them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The most artifacts of one item.
pub const MAX_ARTIFACTS: usize = 32;
/// The most bytes in any field: far above any real store, and far below what could overflow a sum.
const MAX_BYTES: i64 = 1 << 50;

/// Limits on the artifacts of items.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactLimits {
    /// Maximum size of one artifact, in bytes. Defaults to 1 GiB. 0 refuses every artifact.
    #[schemars(range(min = 0, max = MAX_BYTES))]
    pub max_file_bytes: Option<i64>,
    /// Maximum size of all artifacts of the namespace together, in bytes. Defaults to 10 GiB. If the Budget has a parent, the limit applies
    /// only when its agents store an artifact.
    #[schemars(range(min = 0, max = MAX_BYTES))]
    pub max_total_bytes: Option<i64>,
    /// Seconds for which an artifact is kept. Defaults to 604800 (7 days). It is deleted earlier if its item is deleted.
    #[schemars(range(min = 60, max = 315_360_000))]
    pub retention_seconds: Option<i64>,
}

/// A file that an agent has kept with its item.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemArtifact {
    /// Name of the artifact, unique in its item.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Size in bytes.
    #[schemars(range(min = 0))]
    pub bytes: i64,
    /// SHA-256 of the content, as 64 hexadecimal digits.
    #[schemars(length(min = 64, max = 64))]
    pub sha256: String,
    /// Identifies the object in the store.
    #[schemars(length(min = 1, max = 32))]
    pub id: String,
    /// Epoch of the lease under which it was stored.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// When it was stored.
    pub creation_time: Time,
    /// When it is deleted.
    pub expiration_time: Time,
}
