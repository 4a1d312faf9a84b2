//! git in the agent's container: the clone of a pool's repository, and the changesets of items.
//!
//! git runs here as any command of the program does: with the same user, in the same container, without a credential.
//!
//! | file | for |
//! |---|---|
//! | [`checkout`] | a clone for each agent, before its program starts |
//! | [`mirror`] | the repository as the pod keeps it, from which clones are made |
//! | [`clone`] | a clone of the mirror for one item |
//! | [`commit`] | the files of a workspace as one commit, and its check |
//! | [`changes`] | what a commit changes |
//! | [`push`] | the push of that commit |
//! | [`folder`] | folders that a program left behind |
//! | [`seal`] | whether a program has changed a folder |
//! | `mod` | one run of git |

pub mod changes;
pub mod checkout;
pub mod clone;
pub mod commit;
pub mod folder;
pub mod mirror;
pub mod push;
pub mod seal;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;

use super::local_http::RETRY_PAUSES;

/// The most bytes of git's own words in an error.
const MAX_QUOTED_BYTES: usize = 400;
/// A home that does not exist.
const NO_HOME: &str = "/nonexistent";
/// Words of git about an answer that another try does not change.
const FINAL_WORDS: [&str; 7] =
    ["error: 403", "error: 404", "rejected]", "not our ref", "find remote ref", "does not appear to be a git repository", "not found"];

/// How git is run.
#[derive(Clone, Debug)]
pub struct Git {
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    /// Whether settings of the program's home and environment apply.
    own_settings: bool,
    /// Whether a command that needs the network is tried again here, because nobody else does.
    patient: bool,
}

impl Git {
    /// git in the folder `folder`, with the settings of the program too.
    pub fn in_folder(folder: &Path) -> Self {
        // A workspace is a volume, which belongs to root. Here, and not only in the environment, which a pool may replace.
        let safe = format!("safe.directory={}", folder.display());
        let arguments = ["-c", safe.as_str(), "-C"].map(OsString::from).into_iter().chain([folder.into()]).collect();
        Self { arguments, environment: Vec::new(), own_settings: true, patient: false }
    }

    /// git with this folder as its repository, and with no settings but those here: a program may have written any others.
    pub fn isolated(repository: &Path) -> Self {
        let settings = [
            "safe.directory=*",
            "init.defaultBranch=main",
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.excludesFile=/dev/null",
            "core.attributesFile=/dev/null",
            "core.useReplaceRefs=false",
            "gc.auto=0",
            "maintenance.auto=false",
            "protocol.allow=never",
            "protocol.http.allow=always",
            // A folder as the remote: tests use it. No URL of a program or a repository is used here.
            "protocol.file.allow=always",
            "submodule.recurse=false",
            // The sidecar is on loopback.
            "http.proxy=",
            "fetch.recurseSubmodules=false",
            "core.quotePath=false",
        ];
        let arguments = settings.into_iter().flat_map(|setting| ["-c".into(), setting.into()]).collect();
        Self { arguments, environment: vec![("GIT_DIR", repository.into())], own_settings: false, patient: true }
    }

    /// The same with this setting.
    #[must_use]
    pub fn setting(mut self, setting: &str) -> Self {
        self.arguments.extend(["-c".into(), setting.into()]);
        self
    }

    /// The same with this variable.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name, value.as_ref().to_owned()));
        self
    }

    /// Runs git, and drops its standard output.
    pub fn run(&self, words: &[&str]) -> Result<(), GitError> {
        self.output(words).map(drop)
    }

    /// Runs git; returns its standard output as text, without white space at its end.
    pub fn output(&self, words: &[&str]) -> Result<String, GitError> {
        Ok(String::from_utf8_lossy(&self.bytes(words, b"")?).trim_end().to_owned())
    }

    /// Runs git with `input`; returns its standard output.
    pub fn bytes(&self, words: &[&str], input: &[u8]) -> Result<Vec<u8>, GitError> {
        let output = self.start(words, input).map_err(|error| GitError::NotStarted(cannot_start(&error)))?;
        let _ = io::stderr().write_all(&output.stderr); // the reader of our words may have gone
        if output.status.success() {
            return Ok(output.stdout);
        }
        let name = words.first().copied().unwrap_or_default();
        let code = output.status.code().map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        Err(GitError::Failed { what: format!("git {name} ended with {code}"), words: last_words(&output.stderr) })
    }

    /// Runs git, which needs the network, until it succeeds or another try is of no use.
    pub fn with_network(&self, words: &[&str]) -> Result<String, GitError> {
        for pause in RETRY_PAUSES.into_iter().filter(|_| self.patient) {
            match self.output(words) {
                Err(error) if error.may_pass() => sleep(pause),
                ended => return ended,
            }
        }
        self.output(words)
    }

    fn start(&self, words: &[&str], input: &[u8]) -> io::Result<Output> {
        let mut command = Command::new("git");
        if !self.own_settings {
            for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GIT_")) {
                command.env_remove(name);
            }
            command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_ATTR_NOSYSTEM", "1");
            // A program may have left files of git, or pipes, in its home.
            command.env("HOME", NO_HOME).env("XDG_CONFIG_HOME", NO_HOME);
        }
        // Nobody answers a question, and files of large file storage cannot be fetched.
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_LFS_SKIP_SMUDGE", "1").env("LC_ALL", "C");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(&self.arguments).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        let writing = child.stdin.take().map(|mut stdin| {
            let input = input.to_vec();
            std::thread::spawn(move || stdin.write_all(&input))
        });
        let output = child.wait_with_output();
        let _ = writing.map(std::thread::JoinHandle::join); // git may read less
        output
    }

    /// The default branch of the repository at `url`, or `HEAD` if it has none; `None`: the repository has no commit.
    pub fn default_revision(&self, url: &str) -> Result<Option<String>, GitError> {
        let answer = self.with_network(&["ls-remote", "--symref", url, "HEAD"])?;
        // `ref: refs/heads/main<TAB>HEAD`, and the commit in a line of its own.
        let named = answer.lines().find_map(|line| line.strip_prefix("ref: refs/heads/")?.strip_suffix("\tHEAD"));
        Ok(named.or(Some("HEAD").filter(|_| !answer.trim().is_empty())).map(str::to_owned))
    }

    /// The commit of a branch of the repository at `url`, if there is such a branch.
    pub fn branch_at(&self, url: &str, name: &str) -> Result<Option<String>, GitError> {
        let full = format!("refs/heads/{name}");
        let answer = self.with_network(&["ls-remote", "--heads", url, &full])?;
        // git lists every ref with this end.
        Ok(answer.lines().find_map(|line| line.split_once('\t').filter(|(_, name)| *name == full)).map(|(commit, _)| commit.to_owned()))
    }
}

/// Why git did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GitError {
    /// It was not started.
    NotStarted(String),
    /// It failed.
    Failed {
        /// The command and its exit code.
        what: String,
        /// Its own words.
        words: String,
    },
}

impl GitError {
    /// Whether another try may succeed.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Failed { words, .. } if !FINAL_WORDS.iter().any(|last| words.contains(last)))
    }
}

impl std::fmt::Display for GitError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotStarted(why) => out.write_str(why),
            Self::Failed { what, words } if words.is_empty() => out.write_str(what),
            Self::Failed { what, words } => write!(out, "{what}: {words}"),
        }
    }
}

impl From<GitError> for String {
    fn from(error: GitError) -> Self {
        error.to_string()
    }
}

fn cannot_start(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "the image has no git, which spec.workspace.git needs: add git to the image".to_owned(),
        _ => format!("cannot start git: {error}"),
    }
}

/// The end of git's own words.
fn last_words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    text[text.ceil_char_boundary(text.len().saturating_sub(MAX_QUOTED_BYTES))..].to_owned()
}

#[cfg(test)]
pub mod samples {
    //! Repositories and folders for the tests of git.

    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder that is removed at the end of its test.
    pub struct Folder(pub PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = super::folder::empty(&self.0);
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// An empty folder.
    pub fn folder(name: &str) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("spillway-git-{}-{number}-{name}", std::process::id()));
        if path.exists() {
            super::folder::empty(&path).expect("emptied");
        }
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// Runs git as a program would; returns its output.
    pub fn git(folder: &Path, words: &[&str]) -> String {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(words);
        let output = command.output().expect("git is installed");
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A mirror in the folder `kept`, of the repository in the folder `remote`.
    pub fn mirror(kept: &Folder, remote: &Folder) -> super::mirror::Mirror {
        super::mirror::Mirror { folder: kept.0.clone(), url: format!("file://{}", remote.0.display()), seal: String::new() }
    }

    /// A repository with two commits on `main`, the first with the tag `v1`, and one on `side`. Returns the first commit.
    pub fn repository(folder: &Path) -> String {
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
}
