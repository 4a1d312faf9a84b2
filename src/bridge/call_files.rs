//! The artifacts that programs get. A gateway brings them for a request that is under way, and the call of the program takes them.
//!
//! What always holds: a file is whole, and has the size and the hash that the gateway named. All files together are bounded. Those of a
//! request that does not come are removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use spillway_bridge::audit::RecordedFile;
use tokio::io::AsyncWriteExt as _;

use super::private_folder::{make_private, remove};
use crate::wire::artifact::is_name;
use crate::wire::text::hex;

/// The most bytes of all files that wait for their calls.
pub const MAX_WAITING_BYTES: u64 = 1024 * 1024 * 1024;
/// How long a file waits for its call. The gateway brings it again if it is gone.
const KEEP: Duration = Duration::from_secs(120);
/// The most characters of the id of a request.
const MAX_REQUEST_CHARS: usize = 64;
/// Name of the folder of the files that wait.
const FOLDER: &str = "waiting-files";

/// The files that wait for their calls.
#[derive(Debug)]
pub struct CallFiles {
    folder: PathBuf,
    max_bytes: u64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By the ids of requests, and by names.
    requests: BTreeMap<String, BTreeMap<String, WaitingFile>>,
    /// Of all files, also those that are being written.
    bytes: u64,
    /// Each file has a number in its path.
    last: u64,
}

#[derive(Clone, Debug)]
struct WaitingFile {
    path: PathBuf,
    recorded: RecordedFile,
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileRefused {
    /// The gateway made a mistake, or the content was changed on its way.
    #[error("{0}")]
    Wrong(&'static str),
    /// There is no space for it now.
    #[error("the files that wait for programs of this bridge have as many bytes as they may")]
    Full,
    /// It did not come whole.
    #[error("the file did not come whole: {0}")]
    CutOff(axum::Error),
    /// It cannot be written.
    #[error("the file cannot be written: {0}")]
    Disk(#[from] io::Error),
}

/// Bytes that are set aside for a file, until it waits.
struct Reserved<'a> {
    files: &'a CallFiles,
    bytes: u64,
    path: PathBuf,
}

impl CallFiles {
    /// Keeps files in a folder below this one.
    pub fn new(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        let folder = folder.join(FOLDER);
        make_private(&folder)?;
        Ok(Self { folder, max_bytes, waiting: Mutex::default() })
    }

    /// Takes a file for a request. It replaces an earlier one of this name.
    pub async fn bring(self: &Arc<Self>, request: &str, name: &str, expected: RecordedFile, content: Body) -> Result<(), FileRefused> {
        if !is_request_id(request) || !is_name(name) {
            return Err(FileRefused::Wrong("the path of a file is /files/REQUEST/NAME"));
        }
        let reserved = self.reserve(expected.bytes)?;
        write(&reserved.path, &expected, content).await?;
        self.keep(reserved, request, name, expected);
        let (files, request) = (self.clone(), request.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(KEEP).await;
            files.forget(&request);
        });
        Ok(())
    }

    /// The artifacts of a request that are here, of these names, and the names of the others.
    pub fn find<'a>(&self, request: &str, names: impl Iterator<Item = &'a str>) -> (BTreeMap<String, RecordedFile>, Vec<String>) {
        let waiting = self.lock();
        let of_request = waiting.requests.get(request);
        let (mut here, mut missing) = (BTreeMap::new(), Vec::new());
        for name in names {
            match of_request.and_then(|files| files.get(name)) {
                Some(file) => drop(here.insert(name.to_owned(), file.recorded.clone())),
                None => missing.push(name.to_owned()),
            }
        }
        (here, missing)
    }

    /// Moves the files of a request into the folder of its call. Those that it did not ask for are removed.
    pub fn hand_over(&self, request: &str, expected: &BTreeMap<String, RecordedFile>, folder: &Path) -> io::Result<()> {
        let files = self.lock().requests.remove(request).unwrap_or_default();
        let moved = expected.iter().try_for_each(|(name, recorded)| match files.get(name) {
            // A second request with this id may have brought another file meanwhile.
            Some(file) if file.recorded == *recorded => std::fs::rename(&file.path, folder.join(name)),
            Some(_) | None => Err(io::Error::other(format!("the artifact {name} is not here any more"))),
        });
        self.end(files);
        moved
    }

    /// Removes the files of a request.
    pub fn forget(&self, request: &str) {
        let files = self.lock().requests.remove(request).unwrap_or_default();
        self.end(files);
    }

    fn end(&self, files: BTreeMap<String, WaitingFile>) {
        for WaitingFile { path, recorded } in files.into_values() {
            remove_file(&path);
            self.lock().release(recorded.bytes);
        }
    }

    fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, FileRefused> {
        let mut waiting = self.lock();
        let total = waiting.bytes.checked_add(bytes).filter(|total| *total <= self.max_bytes).ok_or(FileRefused::Full)?;
        waiting.bytes = total;
        waiting.last += 1;
        let path = self.folder.join(waiting.last.to_string());
        Ok(Reserved { files: self, bytes, path })
    }

    fn keep(&self, mut reserved: Reserved<'_>, request: &str, name: &str, recorded: RecordedFile) {
        let path = std::mem::take(&mut reserved.path);
        reserved.bytes = 0; // they are those of the waiting file now
        let mut waiting = self.lock();
        let file = WaitingFile { path, recorded };
        if let Some(earlier) = waiting.requests.entry(request.to_owned()).or_default().insert(name.to_owned(), file) {
            waiting.release(earlier.recorded.bytes);
            remove_file(&earlier.path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallFiles {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

impl Waiting {
    fn release(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.files.lock().release(self.bytes);
        // A file that waits has given its path away.
        if !self.path.as_os_str().is_empty() {
            remove_file(&self.path);
        }
    }
}

/// Whether a gateway gives a request this id.
fn is_request_id(text: &str) -> bool {
    (1..=MAX_REQUEST_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn remove_file(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "a file that waited for a program cannot be removed");
    }
}

async fn write(path: &Path, expected: &RecordedFile, content: Body) -> Result<(), FileRefused> {
    let mut file = tokio::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).await?;
    let (mut content, mut digest, mut arrived) = (content.into_data_stream(), Sha256::new(), 0_u64);
    while let Some(part) = content.try_next().await.map_err(FileRefused::CutOff)? {
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

    fn files(max_bytes: u64) -> (tempfile::TempDir, Arc<CallFiles>) {
        let folder = tempfile::tempdir().expect("a folder");
        let files = CallFiles::new(folder.path(), max_bytes).expect("a folder below");
        (folder, Arc::new(files))
    }

    fn left(files: &CallFiles) -> usize {
        std::fs::read_dir(&files.folder).expect("the folder").count()
    }

    #[tokio::test]
    async fn a_call_gets_the_files_that_were_brought_for_its_request() {
        let (folder, files) = files(100);
        for (request, name, content) in [("1", "a.txt", "old"), ("1", "a.txt", "one"), ("1", "b", "more"), ("2", "a.txt", "two")] {
            files.bring(request, name, recorded(content), Body::from(content)).await.expect("taken");
        }
        let (here, missing) = files.find("1", ["a.txt", "c"].into_iter());
        assert_eq!((here.clone(), missing), ([("a.txt".to_owned(), recorded("one"))].into(), vec!["c".to_owned()]));
        files.hand_over("1", &here, folder.path()).expect("handed over");
        assert_eq!(std::fs::read_to_string(folder.path().join("a.txt")).expect("a file"), "one");
        assert_eq!((files.find("1", ["b"].into_iter()).1.len(), files.lock().bytes, left(&files)), (1, 3, 1), "the rest is removed");
        files.hand_over("1", &here, folder.path()).expect_err("once");
        files.forget("2");
        assert_eq!((files.lock().bytes, left(&files)), (0, 0));
    }

    #[tokio::test]
    async fn what_is_wrong_or_too_much_leaves_nothing() {
        let (_folder, files) = files(5);
        for (request, name) in [("", "a"), ("../x", "a"), ("1", "../a"), ("1", ".a"), ("1", "")] {
            files.bring(request, name, recorded("x"), Body::from("x")).await.expect_err(name);
        }
        for (said, content) in [("abc", "ab"), ("ab", "abc"), ("abc", "abd"), ("abcdef", "abcdef")] {
            files.bring("1", "a", recorded(said), Body::from(content)).await.expect_err(content);
            assert_eq!((files.lock().bytes, left(&files)), (0, 0), "{content}");
        }
        files.bring("1", "a", recorded("abc"), Body::from("abc")).await.expect("taken");
        assert!(matches!(files.bring("2", "a", recorded("abc"), Body::from("abc")).await, Err(FileRefused::Full)));
        assert!(matches!(
            files.bring("2", "a", RecordedFile { bytes: u64::MAX, ..recorded("") }, Body::empty()).await,
            Err(FileRefused::Full)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn files_of_a_request_that_does_not_come_are_removed() {
        let (_folder, files) = files(100);
        files.bring("1", "a", recorded("abc"), Body::from("abc")).await.expect("taken");
        tokio::time::sleep(KEEP * 2).await;
        assert_eq!((files.lock().bytes, left(&files)), (0, 0));
    }
}
