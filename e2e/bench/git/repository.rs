//! git as a program: repositories of a given size, and commands that are timed.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::models::seconds;
use crate::report::float;

/// Bytes of a MiB.
pub const MIB: usize = 1024 * 1024;
/// Files in one folder.
const FILES_PER_FOLDER: usize = 100;
/// Settings of the repositories. Nothing is compressed or compared, because random bytes gain nothing by it, and every push is
/// stored as one pack. git does not wait for the disk.
const SETTINGS: [(&str, &str); 7] = [
    ("core.bigFileThreshold", "1m"),
    ("core.compression", "0"),
    ("core.fsync", "none"),
    ("gc.auto", "0"),
    ("http.receivepack", "true"),
    ("receive.autogc", "false"),
    ("receive.unpackLimit", "1"),
];

/// The files of a repository, all of random bytes.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Number of files.
    pub files: usize,
    /// Bytes of each of them.
    pub file_bytes: usize,
}

impl Contents {
    /// The size of all files together, in MiB.
    pub fn mib(self) -> f64 {
        float(self.files) * float(self.file_bytes) / float(MIB)
    }
}

/// git without the settings of this machine, and with these.
pub fn git(settings: &[String]) -> Command {
    let mut command = isolated("git");
    command.args(settings.iter().flat_map(|setting| ["-c", setting.as_str()]));
    command
}

/// A program that runs git, without the settings of this machine.
pub fn isolated(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    // Such as GIT_SSL_CAINFO, which would replace the setting.
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GIT_")) {
        command.env_remove(name);
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "bench").env(format!("GIT_{role}_EMAIL"), "bench@example.test");
    }
    // A proxy of this machine is not measured.
    command.env("no_proxy", "*").env("NO_PROXY", "*").stdin(Stdio::null());
    command
}

/// Runs a command; its standard output. An error has the last line that the command wrote.
pub async fn run(mut command: Command) -> anyhow::Result<String> {
    let output = tokio::task::spawn_blocking(move || command.output()).await?.context("git does not start")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let words = text(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}", words.lines().last().unwrap_or("git failed without a word"));
    Ok(text(&output.stdout))
}

/// Waits until the disk has all that was written before.
pub async fn sync_disk() -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(rustix::fs::sync).await?)
}

/// Runs a command after [`sync_disk`]; its seconds, and its standard output.
pub async fn timed(command: Command) -> anyhow::Result<(f64, String)> {
    sync_disk().await?;
    let began = Instant::now();
    let output = run(command).await?;
    Ok((seconds(began), output))
}

/// Runs git in a folder.
pub async fn git_in(folder: &Path, words: &[&str]) -> anyhow::Result<String> {
    let mut command = git(&[]);
    command.arg("-C").arg(folder).args(words);
    run(command).await.with_context(|| format!("git {} in {}", words.first().copied().unwrap_or_default(), folder.display()))
}

/// An empty folder. Its former content is removed.
pub fn empty_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// An empty repository of the server.
pub async fn make_bare(folder: &Path) -> anyhow::Result<()> {
    empty_folder(folder)?;
    git_in(folder, &["init", "--quiet", "--bare", "--initial-branch=main"]).await?;
    configure(folder).await
}

/// A repository with a working copy and one commit of these files; the commit.
pub async fn make_commit(folder: &Path, contents: Contents) -> anyhow::Result<String> {
    empty_folder(folder)?;
    git_in(folder, &["init", "--quiet", "--initial-branch=main"]).await?;
    configure(folder).await?;
    let Contents { files, file_bytes } = contents;
    let root = folder.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0_u8; file_bytes];
        for number in 0..files {
            rand::fill(&mut bytes[..]);
            let below = root.join(format!("{:03}", number / FILES_PER_FOLDER));
            fs::create_dir_all(&below)?;
            fs::write(below.join(format!("{:02}", number % FILES_PER_FOLDER)), &bytes)?;
        }
        std::io::Result::Ok(())
    });
    written.await?.context("the files of a repository")?;
    git_in(folder, &["add", "."]).await?;
    git_in(folder, &["commit", "--quiet", "--message", "files"]).await?;
    git_in(folder, &["rev-parse", "HEAD"]).await
}

/// A repository of the server with one commit of these files on `main`; the commit. `work` is used meanwhile.
pub async fn make_served(bare: &Path, work: &Path, contents: Contents) -> anyhow::Result<String> {
    let commit = make_commit(work, contents).await?;
    make_bare(bare).await?;
    git_in(work, &["push", "--quiet", &bare.to_string_lossy(), "main"]).await?;
    fs::remove_dir_all(work)?;
    Ok(commit)
}

async fn configure(folder: &Path) -> anyhow::Result<()> {
    for (name, value) in SETTINGS {
        git_in(folder, &["config", name, value]).await?;
    }
    Ok(())
}
