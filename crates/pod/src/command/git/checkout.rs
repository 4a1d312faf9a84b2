//! Puts the repository of the pool into the workspace, before the program starts.
//!
//! A run that was killed is begun anew by the next one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Git, GitError};
use crate::agent::home::Home;

/// The file, below `.git`, that says that the workspace is complete. The program's own changes are never overwritten.
const MARKER: &str = "spillway-checked-out";
/// Where the branches of the remote are kept.
const REMOTE_BRANCHES: &str = "refs/remotes/origin";

/// What is checked out, and where.
#[derive(Clone, Debug)]
pub struct Checkout {
    /// URL of the repository.
    pub remote: String,
    /// Branch, tag, full ref or commit; `None`: the default branch.
    pub revision: Option<String>,
    /// Commits of the branch; `None`: all of all branches.
    pub depth: Option<u32>,
    /// URL of the repository at the sidecar.
    pub sidecar_url: Option<String>,
    /// The workspace.
    pub into: PathBuf,
    /// Files of the pool in the workspace, which replace those of the repository.
    pub files: Home,
}

impl Checkout {
    /// Makes the clone, unless it is complete already. The error is for the pool's owner; git's own words are in the output.
    pub fn run(&self) -> Result<(), String> {
        let marker = self.into.join(".git").join(MARKER);
        if marker.exists() {
            return Ok(());
        }
        // A run that was killed leaves locks, and no other process runs now.
        match fs::remove_dir_all(self.into.join(".git")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(format!("cannot remove an incomplete clone: {error}")),
            Ok(()) | Err(_) => {}
        }
        self.clone_repository().map_err(|error| format!("{error}, so the workspace has no clone (spec.workspace.git)"))?;
        self.files.make().map_err(|error| format!("{error} (spec.agent.files)"))?;
        written(&marker)
    }

    /// The clone, or an empty repository if the remote has no commit.
    fn clone_repository(&self) -> Result<(), GitError> {
        let git = self.git();
        git.run(&["init", "--quiet"])?;
        git.run(&["config", "remote.origin.url", &self.remote])?;
        git.run(&["config", "remote.origin.fetch", &format!("+refs/heads/*:{REMOTE_BRANCHES}/*")])?;
        let Some(revision) = self.revision.clone().map_or_else(|| git.default_revision("origin"), |revision| Ok(Some(revision)))? else {
            return Ok(());
        };
        let is_branch = git.branch_at("origin", &revision)?.is_some();
        if self.depth.is_none() {
            self.fetch(&[])?;
        }
        if is_branch {
            let start = format!("{REMOTE_BRANCHES}/{revision}");
            if self.depth.is_some() {
                // With a depth only one branch is fetched, as `git clone` does.
                self.fetch(&[&format!("+refs/heads/{revision}:{start}")])?;
            }
            git.run(&["checkout", "--quiet", "--force", "-B", &revision, "--track", &start])
        } else {
            self.fetch(&[&revision])?;
            git.run(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"])
        }
    }

    fn fetch(&self, refs: &[&str]) -> Result<(), GitError> {
        let depth = self.depth.map(|depth| format!("--depth={depth}"));
        let mut words = vec!["fetch", "--quiet"];
        words.extend(depth.as_deref());
        words.push("origin");
        words.extend(refs);
        self.git().run(&words)
    }

    fn git(&self) -> Git {
        let git = Git::in_folder(&self.into);
        match &self.sidecar_url {
            Some(url) => git.setting(&format!("url.{url}.insteadOf={}", self.remote)),
            None => git,
        }
    }
}

fn written(marker: &Path) -> Result<(), String> {
    fs::write(marker, b"").map_err(|error| format!("cannot write {}: {error}", marker.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::git::samples::{folder, git, repository};

    fn checkout(remote: &Path, into: &Path, revision: Option<&str>, depth: Option<u32>) -> Checkout {
        let remote = format!("file://{}", remote.display());
        Checkout { remote, revision: revision.map(str::to_owned), depth, sidecar_url: None, into: into.to_owned(), files: Home::default() }
    }

    #[test]
    fn a_branch_a_tag_and_a_commit_are_checked_out() {
        let remote = folder("remote");
        let first = repository(&remote.0);
        let cases = [
            (None, None, "two", "main", 2),
            (Some("main"), Some(1), "two", "main", 1),
            (Some("side"), None, "two", "side", 2),
            (Some("v1"), Some(1), "one", "HEAD", 1),
            (Some(first.as_str()), None, "one", "HEAD", 1),
            (Some(first.as_str()), Some(1), "one", "HEAD", 1),
        ];
        for (number, (revision, depth, content, branch, commits)) in cases.into_iter().enumerate() {
            let into = folder(&format!("into-{number}"));
            let wanted = checkout(&remote.0, &into.0, revision, depth);
            wanted.run().expect("a clone");
            assert_eq!(fs::read_to_string(into.0.join("file")).expect("the file"), content, "{revision:?}");
            assert_eq!(git(&into.0, &["rev-parse", "--abbrev-ref", "HEAD"]), branch, "{revision:?}");
            assert_eq!(git(&into.0, &["rev-list", "--count", "HEAD"]), commits.to_string(), "{revision:?} {depth:?}");
            fs::write(into.0.join("file"), "mine").expect("a change of the program");
            wanted.run().expect("it is complete");
            assert_eq!(fs::read_to_string(into.0.join("file")).expect("the file"), "mine", "it is left alone");
        }
    }

    #[test]
    fn a_run_that_was_killed_is_begun_anew_and_a_failure_names_the_command() {
        let (remote, into) = (folder("remote2"), folder("into2"));
        repository(&remote.0);
        // As after a kill: part of a clone, and a file that the repository has too.
        git(&into.0, &["init", "--quiet"]);
        fs::write(into.0.join("file"), "part").expect("a file");
        for lock in ["index.lock", "config.lock", "HEAD.lock"] {
            fs::write(into.0.join(".git").join(lock), "").expect("a lock");
        }
        checkout(&remote.0, &into.0, None, None).run().expect("a clone");
        assert_eq!(fs::read_to_string(into.0.join("file")).expect("the file"), "two");
        let other = folder("other2");
        let error = checkout(&remote.0, &other.0, Some("absent"), None).run().expect_err("there is no such branch");
        assert!(error.contains("git fetch ended with exit code 128") && error.contains("spec.workspace.git"), "{error}");
        let nowhere = checkout(Path::new("/nonexistent"), &other.0, None, None).run().expect_err("there is no such repository");
        assert!(nowhere.contains("git ls-remote ended with exit code 128"), "{nowhere}");
    }

    #[test]
    fn files_of_the_pool_replace_those_of_the_repository_or_there_is_no_clone() {
        let (remote, into, pool) = (folder("remote4"), folder("into4"), folder("pool4"));
        repository(&remote.0);
        fs::write(pool.0.join("content"), "the pool's").expect("a file");
        let wanted = |to: &str| {
            let files = Home { folder: None, files: vec![(pool.0.join("content"), into.0.join(to))] };
            Checkout { files, ..checkout(&remote.0, &into.0, None, None) }
        };
        let error = wanted("file/below").run().expect_err("the repository has a file where the pool needs a folder");
        assert!(error.contains("file/below") && error.contains("spec.agent.files"), "{error}");
        wanted("file").run().expect("a clone");
        assert_eq!(fs::read_to_string(into.0.join("file")).expect("the file"), "the pool's");
    }

    #[test]
    fn a_remote_without_a_default_branch_is_checked_out_at_its_commit() {
        let (remote, into) = (folder("remote5"), folder("into5"));
        repository(&remote.0);
        git(&remote.0, &["branch", "other/refs/heads/absent"]);
        git(&remote.0, &["checkout", "--quiet", "--detach", "v1"]);
        checkout(&remote.0, &into.0, None, Some(1)).run().expect("a clone");
        assert_eq!(fs::read_to_string(into.0.join("file")).expect("the file"), "one");
        assert!(
            checkout(&remote.0, &into.0, None, None).git().branch_at("origin", "absent").expect("an answer").is_none(),
            "another branch ends so"
        );
    }

    #[test]
    fn an_empty_repository_is_an_empty_workspace() {
        let (remote, into) = (folder("remote3"), folder("into3"));
        git(&remote.0, &["init", "--quiet", "--initial-branch=main"]);
        checkout(&remote.0, &into.0, None, None).run().expect("a clone without a commit");
        assert!(into.0.join(".git").exists());
    }
}
