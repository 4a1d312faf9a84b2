//! The artifacts that programs get. A gateway brings them for a request that is under way, and the call of the program takes them.
//!
//! What always holds: a file is whole, and has the size and the hash that the gateway named. All files together are bounded, and so are those
//! of one agent, until the call has ended. Files that no call takes are removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::{StreamExt as _, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use spillway_bridge::audit::RecordedFile;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::private_folder::{make_private, remove};
use crate::wire::artifact::is_name;
use crate::wire::text::hex;

/// The most bytes of files, until their calls have ended. The volume of a Toolset's bridge has twice as many, for the programs too.
pub const FILE_LIMITS: FileLimits = FileLimits { all: 1024 * 1024 * 1024, of_agent: 512 * 1024 * 1024 };
/// How long the files of a request wait for the call, from the last one on. The gateway brings them again if they are gone.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the gateway may send nothing of a file.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the rest of a file is read that is not taken: a gateway that still sends would not see the answer.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);
/// The most characters of the id of a request.
const MAX_REQUEST_CHARS: usize = 64;
/// Name of the folder of files, in the folder of all calls and in that of one.
const FOLDER: &str = "artifacts";

/// The most bytes of files.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// Of all agents.
    pub all: u64,
    /// Of one agent.
    pub of_agent: u64,
}

/// The files that wait for their calls.
#[derive(Debug)]
pub struct CallFiles {
    folder: PathBuf,
    limits: FileLimits,
    bytes: Arc<Mutex<BTreeMap<String, u64>>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By the ids of requests.
    requests: BTreeMap<String, RequestFiles>,
    /// Each file has a number in its path.
    last: u64,
}

#[derive(Debug)]
struct RequestFiles {
    files: BTreeMap<String, StoredFile>,
    until: Instant,
}

/// A file, which is removed when this is dropped.
#[derive(Debug)]
struct StoredFile {
    path: PathBuf,
    recorded: RecordedFile,
    _bytes: ReservedBytes,
}

/// Bytes of an agent, until this is dropped.
#[derive(Debug)]
struct ReservedBytes {
    of_agents: Arc<Mutex<BTreeMap<String, u64>>>,
    agent: String,
    bytes: u64,
}

/// The files of one call, by name. They count until this is dropped.
#[derive(Debug, Default)]
pub struct TakenFiles(BTreeMap<String, StoredFile>);

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileRefused {
    /// The gateway made a mistake, or the content was changed on its way.
    #[error("{0}")]
    Wrong(&'static str),
    /// It is larger than the files of one agent may be.
    #[error("it has more bytes than all files of an agent may have for its calls, which is {0}")]
    TooLarge(u64),
    /// There is no space for it now.
    #[error("the files of calls of this agent, or of all agents, have as many bytes as they may")]
    Full,
    /// It did not come whole.
    #[error("the file did not come whole: {0}")]
    CutOff(String),
    /// It cannot be written.
    #[error("the file cannot be written: {0}")]
    Disk(#[from] io::Error),
}

impl CallFiles {
    /// Keeps files in a folder below this one.
    pub fn new(folder: &Path, limits: FileLimits) -> io::Result<Self> {
        let folder = folder.join(FOLDER);
        make_private(&folder)?;
        Ok(Self { folder, limits, bytes: Arc::default(), waiting: Mutex::default() })
    }

    /// Takes no files.
    pub fn none() -> Self {
        Self { folder: PathBuf::new(), limits: FileLimits { all: 0, of_agent: 0 }, bytes: Arc::default(), waiting: Mutex::default() }
    }

    /// Takes a file for a request of an agent. It replaces an earlier one of this name.
    pub async fn bring(
        self: &Arc<Self>,
        (agent, request): (&str, &str),
        name: &str,
        expected: RecordedFile,
        content: Body,
    ) -> Result<(), FileRefused> {
        let mut content = content.into_data_stream();
        let stored = self.store((agent, request), name, expected, &mut content).await;
        let stored = match stored {
            Ok(stored) => stored,
            Err(refused) => {
                let _ = timeout(DISCARD_TIMEOUT, content.for_each(|_| std::future::ready(()))).await; // the answer comes in any case
                return Err(refused);
            }
        };
        let until = Instant::now() + WAIT_TIMEOUT;
        let replaced = {
            let mut waiting = self.lock();
            let of_request = waiting.requests.entry(request.to_owned()).or_insert_with(|| RequestFiles { files: BTreeMap::new(), until });
            of_request.until = until;
            of_request.files.insert(name.to_owned(), stored)
        };
        drop(replaced);
        tokio::spawn(self.clone().forget_later(request.to_owned(), until));
        Ok(())
    }

    /// The files of a request with these names, or the names of those that are not here. It has no files afterwards.
    pub fn take<'a>(&self, request: &str, names: impl Iterator<Item = &'a str>) -> Result<TakenFiles, Vec<String>> {
        let mut files = BTreeMap::new();
        {
            let mut waiting = self.lock();
            let of_request = waiting.requests.get(request);
            let mut missing: Vec<String> = Vec::new();
            let mut wanted: Vec<&str> = Vec::new();
            for name in names {
                wanted.push(name);
                if !of_request.is_some_and(|found| found.files.contains_key(name)) && !missing.iter().any(|known| known == name) {
                    missing.push(name.to_owned());
                }
            }
            if !missing.is_empty() {
                return Err(missing);
            }
            if let Some(RequestFiles { files: found, .. }) = waiting.requests.remove(request) {
                files = found;
            }
            drop(waiting);
            files.retain(|name, _| wanted.contains(&name.as_str()));
        }
        Ok(TakenFiles(files))
    }

    /// Writes a file that is not waiting yet.
    async fn store(
        &self,
        (agent, request): (&str, &str),
        name: &str,
        expected: RecordedFile,
        content: &mut BodyDataStream,
    ) -> Result<StoredFile, FileRefused> {
        if !is_request_id(request) || !is_name(name) {
            return Err(FileRefused::Wrong("the path of a file is /files/REQUEST/NAME"));
        }
        let bytes = self.reserve(agent, expected.bytes)?;
        let path = {
            let mut waiting = self.lock();
            waiting.last += 1;
            self.folder.join(waiting.last.to_string())
        };
        let stored = StoredFile { path, recorded: expected, _bytes: bytes };
        write(&stored.path, &stored.recorded, content).await?;
        Ok(stored)
    }

    fn reserve(&self, agent: &str, bytes: u64) -> Result<ReservedBytes, FileRefused> {
        let FileLimits { all, of_agent } = self.limits;
        if bytes > of_agent || all == 0 {
            return Err(FileRefused::TooLarge(of_agent));
        }
        let mut of_agents = locked(&self.bytes);
        let total: u64 = of_agents.values().sum();
        let own = of_agents.get(agent).copied().unwrap_or_default();
        if total + bytes > all || own + bytes > of_agent {
            return Err(FileRefused::Full);
        }
        of_agents.insert(agent.to_owned(), own + bytes);
        drop(of_agents);
        Ok(ReservedBytes { of_agents: self.bytes.clone(), agent: agent.to_owned(), bytes })
    }

    /// Removes the files of a request when no call has taken them, and no more came meanwhile.
    async fn forget_later(self: Arc<Self>, request: String, until: Instant) {
        sleep_until(until).await;
        let forgotten = {
            let mut waiting = self.lock();
            let is_due = waiting.requests.get(&request).is_some_and(|found| found.until <= until);
            if is_due { waiting.requests.remove(&request) } else { None }
        };
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallFiles {
    fn drop(&mut self) {
        if self.limits.all > 0 {
            remove(&self.folder);
        }
    }
}

impl TakenFiles {
    /// Where a file is after [`Self::move_into`].
    pub fn path(folder: &Path, name: &str) -> PathBuf {
        folder.join(FOLDER).join(name)
    }

    /// The files, as they are recorded.
    pub fn recorded(&self) -> BTreeMap<String, RecordedFile> {
        self.0.iter().map(|(name, file)| (name.clone(), file.recorded.clone())).collect()
    }

    /// Moves the files into the folder of a call. They have a folder of their own in it: programs look for settings where they start.
    pub fn move_into(&self, folder: &Path) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        make_private(&folder.join(FOLDER))?;
        self.0.iter().try_for_each(|(name, file)| std::fs::rename(&file.path, Self::path(folder, name)))
    }
}

impl Drop for StoredFile {
    fn drop(&mut self) {
        // One that was moved is not here any more.
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "a file for a program cannot be removed");
        }
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        let mut of_agents = locked(&self.of_agents);
        let left = of_agents.get(&self.agent).copied().unwrap_or_default().saturating_sub(self.bytes);
        if left == 0 {
            of_agents.remove(&self.agent);
        } else {
            of_agents.insert(self.agent.clone(), left);
        }
    }
}

fn locked(of_agents: &Mutex<BTreeMap<String, u64>>) -> MutexGuard<'_, BTreeMap<String, u64>> {
    of_agents.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a gateway gives a request this id.
fn is_request_id(text: &str) -> bool {
    (1..=MAX_REQUEST_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

async fn write(path: &Path, expected: &RecordedFile, content: &mut BodyDataStream) -> Result<(), FileRefused> {
    let mut file = tokio::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).await?;
    let (mut digest, mut arrived) = (Sha256::new(), 0_u64);
    loop {
        let part = timeout(IDLE_TIMEOUT, content.try_next()).await.map_err(|_| FileRefused::CutOff("nothing came for 30 s".to_owned()))?;
        let Some(part) = part.map_err(|error| FileRefused::CutOff(error.to_string()))? else { break };
        arrived = arrived.saturating_add(part.len() as u64);
        if arrived > expected.bytes {
            return Err(FileRefused::Wrong("the file is larger than the gateway said"));
        }
        digest.update(&part);
        file.write_all(&part).await?;
    }
    file.flush().await?;
    if arrived < expected.bytes {
        return Err(FileRefused::Wrong("the file is smaller than the gateway said"));
    }
    if hex(&digest.finalize()) != expected.sha256 {
        return Err(FileRefused::Wrong("the content does not have the hash that the gateway named"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(content: &str) -> RecordedFile {
        RecordedFile { sha256: hex(&Sha256::digest(content.as_bytes())), bytes: content.len() as u64 }
    }

    fn files(all: u64, of_agent: u64) -> (tempfile::TempDir, Arc<CallFiles>) {
        let folder = tempfile::tempdir().expect("a folder");
        let files = CallFiles::new(folder.path(), FileLimits { all, of_agent }).expect("a folder below");
        (folder, Arc::new(files))
    }

    /// The bytes that count, and the files on the disk.
    fn held(files: &CallFiles) -> (u64, usize) {
        (locked(&files.bytes).values().sum(), std::fs::read_dir(&files.folder).expect("the folder").count())
    }

    async fn bring(files: &Arc<CallFiles>, request: &str, name: &str, content: &'static str) -> Result<(), FileRefused> {
        files.bring(("agent", request), name, recorded(content), Body::from(content)).await
    }

    #[tokio::test]
    async fn a_call_gets_the_files_that_were_brought_for_its_request() {
        let (folder, files) = files(100, 100);
        for (request, name, content) in [("1", "a.txt", "old"), ("1", "a.txt", "one"), ("1", "b", "more"), ("2", "a.txt", "two")] {
            bring(&files, request, name, content).await.expect("taken");
        }
        assert_eq!(held(&files), (10, 3));
        assert_eq!(files.take("1", ["a.txt", "c", "c"].into_iter()).expect_err("one is missing"), ["c"]);
        let taken = files.take("1", ["a.txt", "a.txt"].into_iter()).expect("the file");
        assert_eq!(taken.recorded(), [("a.txt".to_owned(), recorded("one"))].into());
        assert_eq!(held(&files), (6, 2), "what the call does not name is removed");
        taken.move_into(folder.path()).expect_err("the folder of the calls is not that of one call");
        let own = folder.path().join("call");
        make_private(&own).expect("a folder");
        taken.move_into(&own).expect("moved");
        assert_eq!(std::fs::read_to_string(TakenFiles::path(&own, "a.txt")).expect("a file"), "one");
        assert_eq!(held(&files), (6, 1), "it counts until the call has ended");
        drop(taken);
        assert_eq!(held(&files), (3, 1));
        files.take("1", ["a.txt"].into_iter()).expect_err("a file is for one call");
        assert!(files.take("1", std::iter::empty()).expect("none").recorded().is_empty());
    }

    #[tokio::test]
    async fn what_is_wrong_or_too_much_leaves_nothing() {
        let (_folder, files) = files(8, 5);
        for (request, name) in [("", "a"), ("../x", "a"), ("1", "../a"), ("1", ".a"), ("1", "")] {
            bring(&files, request, name, "x").await.expect_err(name);
        }
        for (said, content) in [("abc", "ab"), ("ab", "abc"), ("abc", "abd")] {
            files.bring(("agent", "1"), "a", recorded(said), Body::from(content)).await.expect_err(content);
            assert_eq!(held(&files), (0, 0), "{content}");
        }
        assert!(matches!(bring(&files, "1", "a", "abcdef").await, Err(FileRefused::TooLarge(5))));
        bring(&files, "1", "a", "abc").await.expect("taken");
        assert!(matches!(bring(&files, "2", "a", "abc").await, Err(FileRefused::Full)), "the agent has too much");
        files.bring(("other", "3"), "a", recorded("abcd"), Body::from("abcd")).await.expect("another agent has its own share");
        assert!(matches!(bring(&files, "2", "a", "ab").await, Err(FileRefused::Full)), "all have too much");
        assert_eq!(held(&files), (7, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_no_call_takes_are_removed() {
        let (_folder, files) = files(100, 100);
        bring(&files, "1", "a", "abc").await.expect("taken");
        tokio::time::sleep(WAIT_TIMEOUT / 2).await;
        bring(&files, "1", "b", "abc").await.expect("taken");
        tokio::time::sleep(WAIT_TIMEOUT * 3 / 4).await;
        assert_eq!(held(&files), (6, 2), "the last file renews the time");
        tokio::time::sleep(WAIT_TIMEOUT).await;
        assert_eq!(held(&files), (0, 0));
    }
}
