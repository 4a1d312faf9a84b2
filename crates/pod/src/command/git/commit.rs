//! The files of a workspace as one commit on the base of its item, and whether that commit may be pushed.
//!
//! Nothing of the program's own repository is used: not its index, not its commits, not its settings. No process of the program
//! runs at that time.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use spillway_wire::changeset::{ChangesetReport, PendingCommit, reasons};

use super::Git;
use super::changes::Changes;
use super::clone::{ADDRESS_DOMAIN, address};
use super::folder::open_up;
use super::mirror::{COMMIT_REPOSITORY, Mirror};
use crate::agent::changeset::{StepFailure, StepResult};
use crate::command::refusals;

/// The line of a commit's message that names its item. By it, a later attempt knows the commit of an earlier one.
const ITEM_TRAILER: &str = "Spillway-Item-Uid: ";

/// What the commit is made of.
#[derive(Clone, Debug)]
pub struct NewCommit {
    /// The mirror.
    pub mirror: Mirror,
    /// The workspace.
    pub workspace: PathBuf,
    /// The commit that the work began from.
    pub base: String,
    /// The branch to push to.
    pub branch: String,
    /// Name of the agent.
    pub agent: String,
    /// Name and uid of the item.
    pub item: (String, String),
    /// Paths that must not change.
    pub protect: Vec<String>,
    /// The most bytes of changed files.
    pub max_bytes: Option<u64>,
    /// Files of the pool in the workspace.
    pub files: Vec<PathBuf>,
}

/// The repository of the commit.
pub fn repository(mirror: &Mirror) -> PathBuf {
    mirror.folder.join(COMMIT_REPOSITORY)
}

impl NewCommit {
    /// Makes and judges the commit.
    pub fn make(&self) -> Result<StepResult, String> {
        self.mirror.check()?;
        open_up(&self.workspace).map_err(|error| format!("cannot read the workspace: {error}"))?;
        let repository = repository(&self.mirror);
        self.mirror.make_repository(&repository, &[])?;
        let git = self.git(&repository);
        git.run(&["read-tree", &self.base])?;
        // Before they are stored: the volume of the mirror may be too small for them.
        if let Some(failure) = self.too_large(self.changed_bytes(&git)?) {
            return Ok(StepResult::Refused(failure));
        }
        let tree = self.tree(&git)?;
        if git.output(&["rev-parse", "--verify", &format!("{}^{{tree}}", self.base)])? == tree {
            let report = ChangesetReport { base: self.base.clone(), branch: self.branch.clone(), ..ChangesetReport::default() };
            return Ok(StepResult::Unchanged(report));
        }
        let message =
            format!("{}\n\nSpillway-Item: {}\n{ITEM_TRAILER}{}\nSpillway-Agent: {}\n", self.item.0, self.item.0, self.item.1, self.agent);
        let commit = git.bytes(&["commit-tree", "-p", &self.base, &tree], message.as_bytes())?;
        let commit = String::from_utf8_lossy(&commit).trim().to_owned();
        let changes = Changes::between(&git, &self.base, &commit)?;
        if let Some(failure) = self.refused(&changes) {
            return Ok(StepResult::Refused(failure));
        }
        let old = match self.replaced(&git)? {
            Ok(old) => old,
            Err(failure) => return Ok(StepResult::Refused(failure)),
        };
        let report = ChangesetReport {
            base: self.base.clone(),
            commit: Some(commit.clone()),
            branch: self.branch.clone(),
            folder: String::new(),
            files: u32::try_from(changes.paths.len()).unwrap_or(u32::MAX),
            insertions: changes.insertions,
            deletions: changes.deletions,
        };
        Ok(StepResult::Made { commit: PendingCommit { old: old.unwrap_or_else(|| "0".repeat(commit.len())), new: commit }, report })
    }

    fn git(&self, repository: &Path) -> Git {
        let mut git =
            Git::isolated(repository).variable("GIT_WORK_TREE", &self.workspace).variable("GIT_INDEX_FILE", repository.join("index"));
        for (name, value) in [
            ("GIT_AUTHOR_NAME", self.agent.clone()),
            ("GIT_AUTHOR_EMAIL", address(&self.agent)),
            ("GIT_COMMITTER_NAME", self.agent.clone()),
            ("GIT_COMMITTER_EMAIL", address(&self.agent)),
        ] {
            git = git.variable(name, value);
        }
        git
    }

    /// The tree of the files. Those that the repository ignores and the pool's own are left as they are in the base.
    fn tree(&self, git: &Git) -> Result<String, String> {
        git.run(&["add", "--all", "--", "."])?;
        let own: Vec<&str> = self.files.iter().filter_map(|file| file.strip_prefix(&self.workspace).ok()?.to_str()).collect();
        for path in own {
            let entry = git.output(&["ls-tree", &self.base, "--", path])?;
            // MODE TYPE OBJECT<TAB>PATH
            let known =
                entry.split_once('\t').and_then(|(known, _)| known.split_once(' ')).map(|(mode, rest)| (mode, rest.rsplit(' ').next()));
            match known {
                Some((mode, Some(object))) => git.run(&["update-index", "--add", "--cacheinfo", mode, object, path])?,
                Some((_, None)) | None => git.run(&["update-index", "--force-remove", "--", path])?,
            }
        }
        Ok(git.output(&["write-tree"])?)
    }

    /// Why these changes must not be pushed, if so.
    fn refused(&self, changes: &Changes) -> Option<StepFailure> {
        refusals::protected(changes.paths.iter().map(String::as_str), &self.protect).or_else(|| self.too_large(changes.bytes))
    }

    fn too_large(&self, bytes: u64) -> Option<StepFailure> {
        refusals::too_large(bytes, self.max_bytes, "Files that are built belong into .gitignore")
    }

    /// Bytes of the files that would be added, if there is a limit.
    fn changed_bytes(&self, git: &Git) -> Result<u64, String> {
        if self.max_bytes.is_none() {
            return Ok(0);
        }
        let listed = git.bytes(&["ls-files", "-z", "--others", "--modified", "--exclude-standard"], b"")?;
        let paths = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let files = paths.map(|path| self.workspace.join(OsStr::from_bytes(path))).filter(|path| !self.files.contains(path));
        Ok(files.filter_map(|path| fs::symlink_metadata(path).ok()).filter(|found| !found.is_dir()).map(|found| found.len()).sum())
    }

    /// The commit of the branch on the server that this one may replace; `None`: there is no such branch.
    fn replaced(&self, git: &Git) -> Result<Result<Option<String>, StepFailure>, String> {
        let url = &self.mirror.url;
        let Some(there) = git.branch_at(url, &self.branch)? else { return Ok(Ok(None)) };
        if there == self.base {
            return Ok(Ok(Some(there)));
        }
        git.with_network(&[
            "fetch",
            "--quiet",
            "--no-write-fetch-head",
            "--depth=1",
            url,
            &format!("+refs/heads/{}:refs/there", self.branch),
        ])?;
        let message = git.output(&["log", "-1", "--format=%ce%n%B", "refs/there"])?;
        // A person who changed the commit is its committer.
        let is_ours = message.lines().next().is_some_and(|committer| committer.ends_with(ADDRESS_DOMAIN));
        if git.output(&["rev-parse", "refs/there"])? == there
            && is_ours
            && message.lines().any(|line| line == format!("{ITEM_TRAILER}{}", self.item.1))
        {
            return Ok(Ok(Some(there)));
        }
        let message = format!(
            "the branch {} has the commit {there} by now, and the work began from {}. The next attempt begins from the newest commit",
            self.branch, self.base
        );
        Ok(Err(StepFailure::new(reasons::CHANGESET_CONFLICT, message)))
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
