//! Puts the repository of the pool into the workspace, before the program starts.
//!
//! git runs here as any command of the program does: with the same user, in the same container, without a credential. A run that was
//! killed is begun anew by the next one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
        self.git(&["init", "--quiet"])?;
        self.git(&["config", "remote.origin.url", &self.remote])?;
        self.git(&["config", "remote.origin.fetch", &format!("+refs/heads/*:{REMOTE_BRANCHES}/*")])?;
        let Some(revision) = self.revision.clone().map_or_else(|| self.default_revision(), |revision| Ok(Some(revision)))? else {
            return written(&marker); // the repository is empty
        };
        let is_branch = self.has_branch(&revision)?;
        if self.depth.is_none() {
            self.fetch(&[])?;
        }
        if is_branch {
            let start = format!("{REMOTE_BRANCHES}/{revision}");
            if self.depth.is_some() {
                // With a depth only one branch is fetched, as `git clone` does.
                self.fetch(&[&format!("+refs/heads/{revision}:{start}")])?;
            }
            self.git(&["checkout", "--quiet", "--force", "-B", &revision, "--track", &start])?;
        } else {
            self.fetch(&[&revision])?;
            self.git(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"])?;
        }
        self.files.make().map_err(|error| format!("{error} (spec.agent.files)"))?;
        written(&marker)
    }

    fn fetch(&self, refs: &[&str]) -> Result<(), String> {
        let depth = self.depth.map(|depth| format!("--depth={depth}"));
        let mut words = vec!["fetch", "--quiet"];
        words.extend(depth.as_deref());
        words.push("origin");
        words.extend(refs);
        self.git(&words)
    }

    /// The default branch, or `HEAD` if the remote has none; `None`: the repository has no commit.
    fn default_revision(&self) -> Result<Option<String>, String> {
        let answer = self.output(&["ls-remote", "--symref", "origin", "HEAD"])?;
        // `ref: refs/heads/main<TAB>HEAD`, and the commit in a line of its own.
        let named = answer.lines().find_map(|line| line.strip_prefix("ref: refs/heads/")?.strip_suffix("\tHEAD"));
        Ok(named.or(Some("HEAD").filter(|_| !answer.trim().is_empty())).map(str::to_owned))
    }

    fn has_branch(&self, name: &str) -> Result<bool, String> {
        let full = format!("refs/heads/{name}");
        // git lists every ref with this end.
        Ok(self.output(&["ls-remote", "--heads", "origin", &full])?.lines().any(|line| line.split('\t').nth(1) == Some(full.as_str())))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("git");
        // Here, and not only in the environment, which a pool may replace. A workspace is a volume, which belongs to root.
        command.arg("-c").arg(format!("safe.directory={}", self.into.display()));
        if let Some(url) = &self.sidecar_url {
            command.arg("-c").arg(format!("url.{url}.insteadOf={}", self.remote));
        }
        // Nobody answers a question, and files of large file storage cannot be fetched.
        command.arg("-C").arg(&self.into).args(words).stdin(Stdio::null()).env("GIT_TERMINAL_PROMPT", "0").env("GIT_LFS_SKIP_SMUDGE", "1");
        command
    }

    fn git(&self, words: &[&str]) -> Result<(), String> {
        let status = self.command(words).status().map_err(|error| cannot_start(&error))?;
        if status.success() { Ok(()) } else { Err(failed(words, status.code())) }
    }

    fn output(&self, words: &[&str]) -> Result<String, String> {
        let output = self.command(words).stderr(Stdio::inherit()).output().map_err(|error| cannot_start(&error))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(words, output.status.code()))
        }
    }
}

fn written(marker: &Path) -> Result<(), String> {
    fs::write(marker, b"").map_err(|error| format!("cannot write {}: {error}", marker.display()))
}

fn cannot_start(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "the image has no git, which spec.workspace.git needs: add git to the image".to_owned(),
        _ => format!("cannot start git: {error}"),
    }
}

fn failed(words: &[&str], code: Option<i32>) -> String {
    let what = words.first().copied().unwrap_or_default();
    let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    format!("git {what} ended with {code}, so the workspace has no clone (spec.workspace.git)")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn folder(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("spillway-checkout-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn git(folder: &Path, words: &[&str]) -> String {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(words);
        let output = command.output().expect("git is installed");
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A repository with two commits on `main`, the first with the tag `v1`, and one on `side`.
    fn repository(folder: &Path) -> String {
        git(folder, &["init", "--quiet", "--initial-branch=main"]);
        git(folder, &["config", "uploadpack.allowAnySHA1InWant", "true"]);
        for (name, after) in [("one", &["tag", "v1"][..]), ("two", &["branch", "side"])] {
            fs::write(folder.join("file"), name).expect("a file");
            git(folder, &["add", "."]);
            git(folder, &["commit", "--quiet", "--message", name]);
            git(folder, after);
        }
        git(folder, &["rev-parse", "v1"])
    }

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
        assert!(!checkout(&remote.0, &into.0, None, None).has_branch("absent").expect("an answer"), "another branch ends so");
    }

    #[test]
    fn an_empty_repository_is_an_empty_workspace() {
        let (remote, into) = (folder("remote3"), folder("into3"));
        git(&remote.0, &["init", "--quiet", "--initial-branch=main"]);
        checkout(&remote.0, &into.0, None, None).run().expect("a clone without a commit");
        assert!(into.0.join(".git").exists());
    }
}
