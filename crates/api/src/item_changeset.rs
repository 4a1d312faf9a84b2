//! The changes of an item in its status. It decides nothing about them.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// State of the changes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum ChangesetState {
    /// An agent works on the item.
    Open,
    /// The changes are a commit on the branch, or are made in the folder.
    Committed,
    /// There are no changes, or they were dropped.
    Discarded,
    /// The branch had another commit than the one that the work began from, or the folder other files.
    Conflict,
}

/// The changes of an item, in a pool with `sandbox.changeset`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemChangeset {
    /// State: an agent works on the item (`Open`), the changes are a commit on the branch or are made in the folder (`Committed`),
    /// there are none or they were dropped (`Discarded`), or the branch had another commit than the one that the work began from, or
    /// the folder other files (`Conflict`).
    pub state: ChangesetState,
    /// Epoch of the attempt's lease.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// URL of the repository.
    #[schemars(length(max = 1024))]
    pub remote: Option<String>,
    /// Branch of the changes.
    #[schemars(length(max = 400))]
    pub branch: Option<String>,
    /// Folder of the changes: the name of the PersistentVolumeClaim, and the path in its volume.
    #[schemars(length(max = 1300))]
    pub folder: Option<String>,
    /// Commit that the work began from. Of a folder: SHA-256 of the list of its files.
    #[schemars(length(max = 64))]
    pub base: Option<String>,
    /// Commit with the changes. Of a folder: SHA-256 of the list of changes.
    #[schemars(length(max = 64))]
    pub commit: Option<String>,
    /// Number of changed files.
    pub files: Option<i64>,
    /// Number of added lines. Lines of a folder's files are not counted.
    pub insertions: Option<i64>,
    /// Number of removed lines.
    pub deletions: Option<i64>,
    /// Reason for the state, as text.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

impl ItemChangeset {
    /// A changeset of which nothing else is known.
    pub fn new(state: ChangesetState, epoch: i64) -> Self {
        Self {
            state,
            epoch,
            remote: None,
            branch: None,
            folder: None,
            base: None,
            commit: None,
            files: None,
            insertions: None,
            deletions: None,
            message: None,
        }
    }
}
