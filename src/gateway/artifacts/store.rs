//! The store of artifacts: a folder of a volume, or a bucket. An object is whole or absent, and never changes.
//!
//! It must not know who may store or read an object.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, GetResultPayload, ObjectStore, ObjectStoreExt as _, RetryConfig, WriteMultipart};
use sha2::{Digest as _, Sha256};
use tokio_util::io::ReaderStream;

use super::http::StoreHttp;
use super::settings::{Bucket, StoreSettings};
use crate::wire::artifact::StoreKey;
use crate::wire::text::hex;

/// Bytes of a part of an upload: the least that S3 takes.
pub const PART_BYTES: usize = 5 * 1024 * 1024;
/// Parts of one upload that are on their way.
pub const PARTS_AT_ONCE: usize = 2;
/// Bytes of a file that are read at once.
const READ_BYTES: usize = 256 * 1024;
/// How long a request that fails is tried again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often.
const MAX_RETRIES: usize = 5;
/// The most characters of an error in the log, and of the code in it.
const MAX_LOGGED_CHARS: usize = 400;
const MAX_CODE_CHARS: usize = 64;
/// Age of the rest of an upload that a crash cut off, before it is removed from a volume.
const CUT_UPLOAD_AGE: Duration = Duration::from_hours(24);

/// The store.
#[derive(Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// The folder, for a volume.
    folder: Option<PathBuf>,
}

/// The content of an object.
pub type Content = BoxStream<'static, io::Result<Bytes>>;

/// An object that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content, as hexadecimal digits.
    pub sha256: String,
}

/// Why an upload failed.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The program sent less than it said, or its connection broke.
    #[error("the file was cut off: {0}")]
    CutOff(String),
    /// The program sent more than it said.
    #[error("the file has more bytes than the request says")]
    TooLong,
    /// The store failed.
    #[error("the store of artifacts failed: {0}")]
    Store(#[from] object_store::Error),
}

/// An upload under way.
enum Upload {
    /// Of a small object, which is sent at once.
    Whole(Vec<u8>),
    /// In parts.
    Parts(WriteMultipart),
}

impl Upload {
    /// Adds a piece, which is copied: pieces that are kept would keep the buffers alive that they were read into.
    async fn write(&mut self, piece: &[u8]) -> Result<(), object_store::Error> {
        match self {
            Self::Whole(whole) => whole.extend_from_slice(piece),
            Self::Parts(parts) => {
                parts.wait_for_capacity(PARTS_AT_ONCE).await?;
                parts.write(piece);
            }
        }
        Ok(())
    }
}

impl Store {
    /// Opens the store. Nothing is read yet.
    pub fn open(settings: &StoreSettings) -> anyhow::Result<Self> {
        match settings {
            StoreSettings::Volume { path } => {
                let objects = LocalFileSystem::new_with_prefix(path).with_context(|| format!("the folder {}", path.display()))?;
                // Items without artifacts leave no folders.
                let objects = objects.with_automatic_cleanup(true).with_fsync(true);
                Ok(Self { objects: Arc::new(objects), folder: Some(path.clone()) })
            }
            StoreSettings::S3(bucket) => Ok(Self { objects: open_bucket(bucket)?, folder: None }),
        }
    }

    /// Stores an object of exactly `bytes` bytes. After an error nothing of it is left.
    pub async fn upload<E: std::fmt::Display>(
        &self,
        key: &StoreKey,
        bytes: u64,
        mut content: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Uploaded, UploadError> {
        let path = Path::from(key.path());
        let mut upload = if bytes <= PART_BYTES as u64 {
            Upload::Whole(Vec::new())
        } else {
            Upload::Parts(WriteMultipart::new_with_chunk_size(self.objects.put_multipart(&path).await?, PART_BYTES))
        };
        let read = read(bytes, &mut content, &mut upload).await;
        match (read, upload) {
            (Ok(uploaded), Upload::Whole(whole)) => {
                self.objects.put(&path, whole.into()).await?;
                Ok(uploaded)
            }
            (Ok(uploaded), Upload::Parts(upload)) => {
                upload.finish().await?;
                Ok(uploaded)
            }
            (Err(error), Upload::Whole(_)) => Err(error),
            (Err(error), Upload::Parts(upload)) => {
                if let Err(left) = upload.abort().await {
                    tracing::warn!(object = key.path(), error = log_text(&left), "an upload that failed may have left parts in the store");
                }
                Err(error)
            }
        }
    }

    /// The content of an object. None: there is no such object.
    pub async fn read(&self, key: &StoreKey) -> Result<Option<Content>, object_store::Error> {
        let found = match self.objects.get(&Path::from(key.path())).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(match found.payload {
            GetResultPayload::File(file, _) => ReaderStream::with_capacity(tokio::fs::File::from_std(file), READ_BYTES).boxed(),
            GetResultPayload::Stream(stream) => stream.map_err(io::Error::from).boxed(),
        }))
    }

    /// Removes an object, if it is there.
    pub async fn remove(&self, key: &StoreKey) -> Result<(), object_store::Error> {
        match self.objects.delete(&Path::from(key.path())).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }

    /// All objects of a cluster, with their ages.
    pub fn list(&self, cluster: &str) -> BoxStream<'static, Result<(StoreKey, Duration), object_store::Error>> {
        let found = self.objects.list(Some(&Path::from(cluster)));
        let ours = found.try_filter_map(|object| {
            let age = SystemTime::now().duration_since(object.last_modified.into()).unwrap_or_default();
            std::future::ready(Ok(StoreKey::parse(object.location.as_ref()).map(|key| (key, age))))
        });
        ours.boxed()
    }

    /// Removes the rests of uploads that a crash cut off, from a volume. A bucket has rules of its own for them.
    pub async fn remove_cut_uploads(&self) -> io::Result<usize> {
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        tokio::task::spawn_blocking(move || remove_cut_uploads_in(&folder, CUT_UPLOAD_AGE)).await.map_err(io::Error::other)?
    }
}

fn open_bucket(settings: &Bucket) -> anyhow::Result<Arc<dyn ObjectStore>> {
    settings.check().map_err(|wrong| anyhow::anyhow!("the bucket: {wrong}"))?;
    check_credentials(|name| std::env::var(name).ok())?;
    let Bucket { bucket, region, endpoint, prefix, virtual_hosted, ca_bundle } = settings;
    let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_retry(retry)
        .with_virtual_hosted_style_request(virtual_hosted.unwrap_or_default())
        .with_allow_http(endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")))
        // One request for each object: the answer to one for many is read with the names that the server sends.
        .with_disable_bulk_delete(true)
        .with_http_connector(StoreHttp::new(ca_bundle.as_deref().unwrap_or_default())?);
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        // It comes before the variables of the environment.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    // The debug form of the builder has the credentials: it is never printed.
    let opened = builder.build().with_context(|| format!("the bucket {bucket}"))?;
    Ok(match prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => Arc::new(PrefixStore::new(opened, prefix)),
        None => Arc::new(opened),
    })
}

/// Refuses credentials that cannot be in a header, such as those that end with a line break.
fn check_credentials(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<()> {
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
        let is_odd = |value: &String| value.is_empty() || !value.chars().all(|char| char.is_ascii_graphic());
        anyhow::ensure!(
            !variable(name).as_ref().is_some_and(is_odd),
            "{name} is empty, or has a space or a line break: make its Secret again"
        );
    }
    Ok(())
}

/// The words of an error for the log, without what a server said: it may repeat a credential.
pub fn log_text(error: &object_store::Error) -> String {
    let text = error.to_string();
    let own = text.split('<').next().unwrap_or_default();
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let code: String = code.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).take(MAX_CODE_CHARS).collect();
    format!("{}{code}", own.chars().take(MAX_LOGGED_CHARS).collect::<String>())
}

/// Reads exactly `bytes` bytes into an upload, as fast as the store takes them.
async fn read<E: std::fmt::Display>(
    bytes: u64,
    content: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    upload: &mut Upload,
) -> Result<Uploaded, UploadError> {
    let (mut arrived, mut digest) = (0_u64, Sha256::new());
    while let Some(part) = content.next().await {
        let part = part.map_err(|error| UploadError::CutOff(error.to_string()))?;
        arrived = arrived.saturating_add(part.len() as u64);
        if arrived > bytes {
            return Err(UploadError::TooLong);
        }
        digest.update(&part);
        upload.write(&part).await?;
    }
    if arrived < bytes {
        return Err(UploadError::CutOff(format!("{arrived} of {bytes} bytes arrived")));
    }
    Ok(Uploaded { bytes, sha256: hex(&digest.finalize()) })
}

/// Files of uploads under way have names with a `#`, which no key has.
fn remove_cut_uploads_in(folder: &std::path::Path, age: Duration) -> io::Result<usize> {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            removed += remove_cut_uploads_in(&entry.path(), age)?;
        } else if entry.file_name().to_string_lossy().contains('#') && entry.metadata()?.modified()?.elapsed().unwrap_or_default() >= age {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
