//! Changesets: the changes of one item to the repository or the folder of its pool, from a fresh clone or copy to a pushed branch or
//! a changed folder.
//!
//! The pod makes one commit of the files that the program leaves, and announces it. The gateway lets exactly this commit pass. Of a
//! folder, the sidecar makes exactly the changes that were announced.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};

/// Header of a push from the sidecar to the gateway: the announced commit, as [`PendingCommit`] writes it.
pub const COMMIT_HEADER: &str = "spillway-commit";
/// The most characters of the name of a branch.
const MAX_BRANCH_CHARS: usize = 400;
/// The most characters of the name of a folder.
const MAX_FOLDER_CHARS: usize = 1300;

/// Reasons for which an attempt at an item fails because of its changeset.
pub mod reasons {
    /// The workspace could not be cloned or copied.
    pub const WORKSPACE_NOT_PREPARED: &str = "WorkspaceNotPrepared";
    /// The commit could not be made or pushed, or the changes could not be made in the folder.
    pub const CHANGESET_NOT_COMMITTED: &str = "ChangesetNotCommitted";
    /// The branch has another commit than the one that the work began from, or the folder has other files.
    pub const CHANGESET_CONFLICT: &str = "ChangesetConflict";
    /// A protected path was changed.
    pub const PROTECTED_PATH: &str = "ProtectedPath";
    /// The changed files have too many bytes.
    pub const CHANGESET_TOO_LARGE: &str = "ChangesetTooLarge";
    /// The verify command failed.
    pub const CHANGESET_NOT_VERIFIED: &str = "ChangesetNotVerified";
    /// A folder of files has something that no folder may get: a pipe, a link that leaves the folder, a set-uid program.
    pub const FORBIDDEN_FILE: &str = "ForbiddenFile";
    /// All of them.
    pub const ALL: [&str; 7] = [
        WORKSPACE_NOT_PREPARED,
        CHANGESET_NOT_COMMITTED,
        CHANGESET_CONFLICT,
        PROTECTED_PATH,
        CHANGESET_TOO_LARGE,
        CHANGESET_NOT_VERIFIED,
        FORBIDDEN_FILE,
    ];
    /// The reasons for which the changes themselves are refused. They raise the signal BadChangeset.
    pub const REFUSED: [&str; 4] = [PROTECTED_PATH, CHANGESET_TOO_LARGE, CHANGESET_NOT_VERIFIED, FORBIDDEN_FILE];
}

/// How the pod makes changesets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChangesetSettings {
    /// Where they begin and end.
    #[serde(flatten)]
    pub target: ChangesetTarget,
    /// Paths that must not change. A path stands for all below it, and `*` for any characters of a name.
    #[serde(default)]
    pub protect: Vec<String>,
    /// The most bytes of the changed files together. None: there is no limit.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Command that must end with 0 before the changes are accepted. Empty: there is none.
    #[serde(default)]
    pub verify: Vec<String>,
    /// Seconds that this command may take.
    pub verify_seconds: u32,
    /// Files of the pool in the workspace, each with the path that it is copied from. They are no changes.
    #[serde(default)]
    pub files: Vec<(String, String)>,
}

/// Where changesets begin and end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum ChangesetTarget {
    /// A clone of a repository, and a branch of it.
    Repository {
        /// URL of the repository.
        remote: String,
        /// Branch, tag or commit that work begins from. None: the default branch.
        #[serde(default)]
        revision: Option<String>,
        /// Number of commits to fetch. None: all.
        #[serde(default)]
        depth: Option<u32>,
    },
    /// A copy of a folder, and the folder.
    Folder {
        /// Path of the folder in the volume that the sidecar mounts. Empty: the whole volume.
        folder: String,
    },
}

/// A commit that may be pushed, or the changes that may be made in a folder: SHA-256 of the list of its files, and of the list of
/// changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingCommit {
    /// The commit of the branch that it replaces; all zeros: the branch does not exist.
    pub old: String,
    /// The commit.
    pub new: String,
}

impl PendingCommit {
    /// The value of [`COMMIT_HEADER`].
    pub fn header_value(&self) -> String {
        format!("{} {}", self.old, self.new)
    }

    /// Reads the value of [`COMMIT_HEADER`].
    pub fn parse(text: &str) -> Option<Self> {
        let (old, new) = text.split_once(' ')?;
        let is_id = |id: &str| matches!(id.len(), 40 | 64) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_id(old) && is_id(new)).then(|| Self { old: old.to_owned(), new: new.to_owned() })
    }
}

/// The changeset of an item that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangesetReport {
    /// Commit that the work began from, or SHA-256 of the list of the folder's files.
    pub base: String,
    /// The pushed commit, or SHA-256 of the list of changes. None: no file was changed, and nothing was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The branch that was pushed. Empty: the changes are in a folder.
    pub branch: String,
    /// The folder that was changed, or would have been: the claim and the path. Empty: the changes are in a repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// Number of changed files.
    #[serde(default)]
    pub files: u32,
    /// Number of added lines.
    #[serde(default)]
    pub insertions: u64,
    /// Number of removed lines.
    #[serde(default)]
    pub deletions: u64,
}

impl BoundedBody for ChangesetReport {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("changeset.base", &self.base, 64)?;
        at_most("changeset.commit", self.commit.as_deref().unwrap_or_default(), 64)?;
        at_most("changeset.folder", &self.folder, MAX_FOLDER_CHARS)?;
        at_most("changeset.branch", &self.branch, MAX_BRANCH_CHARS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announced_commit_is_written_and_read_and_nothing_else_is() {
        let commit = PendingCommit { old: "0".repeat(40), new: "a1".repeat(20) };
        assert_eq!(PendingCommit::parse(&commit.header_value()), Some(commit));
        let long = format!("{} {}", "0".repeat(64), "b".repeat(64));
        assert!(PendingCommit::parse(&long).is_some());
        for bad in [
            "",
            "x",
            &"0".repeat(40),
            &format!("{} {}", "0".repeat(40), "A".repeat(40)),
            &format!("{} {} x", "0".repeat(40), "a".repeat(40)),
        ] {
            assert_eq!(PendingCommit::parse(bad), None, "{bad}");
        }
    }
}
