//! `spillway changeset`: the steps of an item's changeset. The supervisor runs them, one at a time, while no program runs. Each
//! writes its result to standard output, as one line of JSON.
//!
//! It must not decide how an item ends.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use spillway_wire::changeset::PendingCommit;

use super::folder::apply::apply;
use super::folder::compare::Comparison;
use super::folder::copy::copy;
use super::git::clone::clone;
use super::git::commit::NewCommit;
use super::git::mirror::Mirror;
use super::git::push::push;
use super::output::{print, print_to_stderr};
use crate::agent::changeset::StepResult;
use crate::agent::home::Home;
use crate::{FOLDER_URL, MIRROR_DIR, WORKSPACE_DIR};

/// Where the repository is.
#[derive(Debug, Args)]
pub struct MirrorArguments {
    /// URL of the repository at the sidecar
    #[arg(long, env = "SPILLWAY_GIT_URL")]
    url: String,
    /// Folder of the mirror
    #[arg(long, value_name = "DIR", default_value = MIRROR_DIR)]
    mirror: PathBuf,
    /// Seal of the mirror, as the last `prepare` wrote it [default: the mirror is not used]
    #[arg(long, default_value = "")]
    seal: String,
}

/// The workspace, and the files that the pool puts into it.
#[derive(Debug, Args)]
pub struct WorkspaceArguments {
    /// Workspace
    #[arg(long, value_name = "DIR", default_value = WORKSPACE_DIR)]
    workspace: PathBuf,
    /// File of the pool, and its path in the workspace, which is no change (repeatable)
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    file: Vec<PathBuf>,
}

impl WorkspaceArguments {
    /// The files that the pool puts into the workspace.
    fn home(&self) -> Home {
        Home::new(None, &self.file)
    }

    /// Their paths in the workspace.
    fn copies(&self) -> Vec<PathBuf> {
        self.file.chunks_exact(2).map(|pair| pair[1].clone()).collect()
    }
}

/// Where the folder is.
#[derive(Debug, Args)]
pub struct FolderArguments {
    /// URL of the folder at the sidecar
    #[arg(long, hide = true, default_value = FOLDER_URL)]
    url: String,
    /// Folder for files of the steps, such as the manifest of the copy
    #[arg(long, value_name = "DIR", default_value = MIRROR_DIR)]
    own: PathBuf,
}

/// The steps.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Empty the workspace, and make a clone of the repository in it
    Prepare {
        /// Where the repository is
        #[command(flatten)]
        mirror: MirrorArguments,
        /// The workspace
        #[command(flatten)]
        workspace: WorkspaceArguments,
        /// URL of the repository, as the clone names it
        #[arg(long, value_name = "URL")]
        remote: String,
        /// Name of the agent, for its own commits
        #[arg(long, value_name = "NAME")]
        agent: String,
        /// Branch, tag or commit [default: the default branch]
        #[arg(long = "ref", value_name = "REF")]
        revision: Option<String>,
        /// Number of commits to fetch [default: all]
        #[arg(long, value_name = "N")]
        depth: Option<u32>,
    },
    /// Make one commit of the files in the workspace, and test whether it may be pushed
    Commit {
        /// Where the repository is
        #[command(flatten)]
        mirror: MirrorArguments,
        /// The workspace
        #[command(flatten)]
        workspace: WorkspaceArguments,
        /// Commit that the work began from
        #[arg(long, value_name = "COMMIT")]
        base: String,
        /// Branch to push to
        #[arg(long, value_name = "BRANCH")]
        branch: String,
        /// Name of the agent
        #[arg(long, value_name = "NAME")]
        agent: String,
        /// Name of the item
        #[arg(long, value_name = "NAME")]
        item: String,
        /// Uid of the item
        #[arg(long, value_name = "UID")]
        item_uid: String,
        /// Path that must not change (repeatable)
        #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
        protect: Vec<String>,
        /// Maximum number of bytes of the changed files
        #[arg(long, value_name = "N")]
        max_bytes: Option<u64>,
    },
    /// Push the commit
    Push {
        /// Where the repository is
        #[command(flatten)]
        mirror: MirrorArguments,
        /// Branch to push to
        #[arg(long, value_name = "BRANCH")]
        branch: String,
        /// Commit of the branch on the server; zeros: there is no such branch
        #[arg(long, value_name = "COMMIT")]
        old: String,
        /// Commit to push
        #[arg(long, value_name = "COMMIT")]
        new: String,
    },
    /// Empty the workspace, and make a copy of the pool's folder in it
    Copy {
        /// Where the folder is
        #[command(flatten)]
        folder: FolderArguments,
        /// The workspace
        #[command(flatten)]
        workspace: WorkspaceArguments,
    },
    /// Find the changes in the workspace since it was copied, and test whether they may be made
    Compare {
        /// Where the folder is
        #[command(flatten)]
        folder: FolderArguments,
        /// The workspace
        #[command(flatten)]
        workspace: WorkspaceArguments,
        /// SHA-256 of the manifest of the copy
        #[arg(long, value_name = "SHA256")]
        base: String,
        /// Claim and path of the folder, for the report
        #[arg(long, value_name = "CLAIM/PATH")]
        name: String,
        /// Path that must not change (repeatable)
        #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
        protect: Vec<String>,
        /// Maximum number of bytes of the changed files
        #[arg(long, value_name = "N")]
        max_bytes: Option<u64>,
    },
    /// Make the changes in the pool's folder
    Apply {
        /// Where the folder is
        #[command(flatten)]
        folder: FolderArguments,
    },
}

/// Runs a step; returns the exit code.
pub fn run(verb: Verb) -> u8 {
    match step(verb) {
        Ok(result) => {
            print(&serde_json::to_string(&result).unwrap_or_default());
            0
        }
        Err(error) => {
            print_to_stderr(&error);
            1
        }
    }
}

fn step(verb: Verb) -> Result<StepResult, String> {
    let mirror_of = |arguments: MirrorArguments| Mirror { folder: arguments.mirror, url: arguments.url, seal: arguments.seal };
    match verb {
        Verb::Copy { folder, workspace } => {
            let base = copy(&folder.url, &workspace.workspace, &folder.own, &workspace.home())?;
            Ok(StepResult::Prepared { base, seal: String::new() })
        }
        Verb::Compare { folder, workspace, base, name, protect, max_bytes } => {
            let files = workspace.copies();
            Comparison { workspace: workspace.workspace, own: folder.own, base, folder: name, protect, max_bytes, files }.make()
        }
        Verb::Apply { folder } => apply(&folder.url, &folder.own),
        Verb::Prepare { mirror, workspace, remote, agent, revision, depth } => {
            let mut mirror = mirror_of(mirror);
            let found = mirror.update(revision.as_deref(), depth)?;
            clone(&mirror, &workspace.workspace, &found, &remote, &agent, &workspace.home())?;
            Ok(StepResult::Prepared { base: found.commit, seal: mirror.seal })
        }
        Verb::Commit { mirror, workspace, base, branch, agent, item, item_uid, protect, max_bytes } => {
            let (mirror, files, workspace) = (mirror_of(mirror), workspace.copies(), workspace.workspace);
            let commit = NewCommit { mirror, workspace, base, branch, agent, item: (item, item_uid), protect, max_bytes, files };
            commit.make()
        }
        Verb::Push { mirror, branch, old, new } => push(&mirror_of(mirror), &branch, &PendingCommit { old, new }),
    }
}
