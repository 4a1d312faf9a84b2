//! The repository as the pod keeps it: a bare one, in a volume of its own, which each item brings up to date.
//!
//! A program can write to it, as to all that its user owns. So the supervisor, which no program can read, keeps its seal, and a
//! mirror that a program has changed is not used: the next item makes it anew. It holds nothing that the remote does not have.

use std::path::{Path, PathBuf};
use std::{fs, io, iter};

use super::seal::seal;
use super::{Git, GitError, folder};
use crate::command::output::print_to_stderr;

/// The repository of an item's commit, in the folder of the mirror. It is not part of the mirror.
pub const COMMIT_REPOSITORY: &str = "changeset.git";
/// With more files of packs, the mirror is tidied. A pack has three.
const MAX_PACK_FILES: usize = 150;
/// The file that says where a history with a depth ends.
const SHALLOW_FILE: &str = "shallow";

/// The mirror.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// Its folder.
    pub folder: PathBuf,
    /// URL of the repository, at the sidecar.
    pub url: String,
    /// The seal of its last update; empty: there was none.
    pub seal: String,
}

/// A commit of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseCommit {
    /// The commit.
    pub commit: String,
    /// The branch, if the revision is one.
    pub branch: Option<String>,
}

impl Mirror {
    /// git with this repository.
    pub fn git(&self) -> Git {
        Git::isolated(&self.folder)
    }

    /// Whether it is as the last update left it.
    pub fn is_intact(&self) -> bool {
        !self.seal.is_empty() && self.current_seal().is_ok_and(|now| now == self.seal)
    }

    /// Fails if a program has changed it.
    pub fn check(&self) -> Result<(), String> {
        if self.is_intact() {
            return Ok(());
        }
        Err("the program changed the mirror of the repository, which it may only read. The next attempt has a new one".to_owned())
    }

    /// Makes an empty repository in `folder`, which uses the objects of the mirror and of `others`.
    pub fn make_repository(&self, folder: &Path, others: &[&Path]) -> Result<(), String> {
        folder::remove(folder).map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
        Git::isolated(folder).run(&["init", "--quiet", "--bare"])?;
        self.share(folder, others).map_err(|error| format!("cannot use the mirror: {error}"))
    }

    fn share(&self, repository: &Path, others: &[&Path]) -> io::Result<()> {
        let sources = iter::once(self.folder.as_path()).chain(others.iter().copied());
        let lines: String = sources.map(|source| format!("{}\n", source.join("objects").display())).collect();
        fs::write(repository.join("objects/info/alternates"), lines)?;
        let shallow = self.folder.join(SHALLOW_FILE);
        if shallow.exists() { fs::copy(shallow, repository.join(SHALLOW_FILE)).map(drop) } else { Ok(()) }
    }

    fn current_seal(&self) -> Result<String, String> {
        let sealed = seal(&self.folder, COMMIT_REPOSITORY).map_err(|error| format!("cannot read the mirror: {error}"))?;
        sealed.ok_or_else(|| "the mirror holds something else than files and folders".to_owned())
    }

    /// Brings the mirror up to date, and seals it anew; returns the commit of this revision, or of the default branch.
    pub fn update(&mut self, revision: Option<&str>, depth: Option<u32>) -> Result<BaseCommit, String> {
        if !self.is_intact() {
            // A program has changed it, or an update was killed.
            folder::empty(&self.folder).map_err(|error| format!("cannot empty the mirror {}: {error}", self.folder.display()))?;
        }
        let base = self.fetch(revision, depth)?;
        self.tidy();
        self.seal = self.current_seal()?;
        Ok(base)
    }

    /// Each update adds a pack, and many are slow.
    fn tidy(&self) {
        let packs = fs::read_dir(self.folder.join("objects/pack")).map_or(0, Iterator::count);
        if packs > MAX_PACK_FILES
            && let Err(error) = self.git().run(&["gc", "--quiet", "--prune=now"])
        {
            print_to_stderr(&format!("the mirror is not tidied: {error}"));
        }
    }

    fn fetch(&self, revision: Option<&str>, depth: Option<u32>) -> Result<BaseCommit, String> {
        let git = self.git();
        git.run(&["init", "--quiet", "--bare"])?;
        let default = if revision.is_none() { git.default_revision(&self.url)? } else { None };
        let Some(revision) = revision.or(default.as_deref()) else {
            return Err("the repository has no commit to begin from: push a first one".to_owned());
        };
        let depth_word = depth.map(|depth| format!("--depth={depth}"));
        let fetched = |refs: &str| {
            let mut words = vec!["fetch", "--quiet", "--no-write-fetch-head", "--prune", "--force"];
            words.extend(depth_word.as_deref());
            words.extend([self.url.as_str(), refs]);
            git.with_network(&words)
        };
        let is_branch = git.branch_at(&self.url, revision)?.is_some();
        if depth.is_none() {
            fetched("+refs/heads/*:refs/heads/*")?;
        }
        if is_branch {
            let full = format!("refs/heads/{revision}");
            if depth.is_some() {
                // With a depth only one branch is fetched, as `git clone` does.
                fetched(&format!("+{full}:{full}"))?;
            }
            let commit = commit_of(&git, &full)?;
            return Ok(BaseCommit { commit, branch: Some(revision.to_owned()) });
        }
        let full = "refs/spillway/base";
        fetched(&format!("+{revision}:{full}"))?;
        Ok(BaseCommit { commit: commit_of(&git, full)?, branch: None })
    }
}

fn commit_of(git: &Git, name: &str) -> Result<String, GitError> {
    git.output(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::command::git::samples::{folder, git, mirror, repository};

    #[test]
    fn a_revision_is_found_and_the_second_update_brings_what_is_new() {
        let (remote, kept) = (folder("mirror-remote"), folder("mirror"));
        let first = repository(&remote.0);
        let mut mirror = mirror(&kept, &remote);
        let second = git(&remote.0, &["rev-parse", "main"]);
        let main = BaseCommit { commit: second.clone(), branch: Some("main".into()) };
        assert_eq!(mirror.update(None, None), Ok(main.clone()));
        for revision in ["v1", first.as_str()] {
            assert_eq!(mirror.update(Some(revision), None), Ok(BaseCommit { commit: first.clone(), branch: None }), "{revision}");
        }
        git(&remote.0, &["commit", "--quiet", "--allow-empty", "--message", "three"]);
        let third = git(&remote.0, &["rev-parse", "main"]);
        assert_eq!(mirror.update(Some("main"), Some(1)), Ok(BaseCommit { commit: third, branch: Some("main".into()) }));
        assert!(mirror.is_intact());
        let error = mirror.update(Some("absent"), None).expect_err("there is no such branch");
        assert!(error.contains("absent"), "{error}");
    }

    #[test]
    fn whatever_a_program_left_in_it_is_known_and_not_used() {
        let (remote, kept) = (folder("mirror-remote2"), folder("mirror2"));
        repository(&remote.0);
        let mut mirror = mirror(&kept, &remote);
        let expected = mirror.update(None, None).expect("a mirror");
        let write = |path: &str| fs::write(kept.0.join(path), "x").expect("written");
        let changes: [&dyn Fn(); 6] = [
            &|| write("config"),
            &|| write("refs/heads/main.lock"),
            &|| fs::create_dir_all(kept.0.join("objects/info/alternates")).expect("a folder"),
            &|| fs::remove_dir_all(kept.0.join("objects")).and_then(|()| symlink("/nonexistent", kept.0.join("objects"))).expect("a link"),
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, kept.0.join("shallow"), rustix::fs::Mode::from_raw_mode(0o600)).expect("a pipe"),
            &|| folder::empty(&kept.0).expect("emptied"),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            change();
            assert!(!mirror.is_intact(), "{number}");
            assert_eq!(mirror.update(None, None), Ok(expected.clone()), "{number}");
            assert!(mirror.is_intact(), "{number}");
        }
    }

    #[test]
    fn an_empty_repository_says_what_to_do() {
        let (remote, kept) = (folder("mirror-remote3"), folder("mirror3"));
        git(&remote.0, &["init", "--quiet", "--initial-branch=main"]);
        assert!(mirror(&kept, &remote).update(None, None).is_err_and(|error| error.contains("push a first one")));
    }
}
