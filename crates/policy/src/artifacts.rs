//! Artifacts of one namespace: whether a file may be stored with an item, and which objects of the store belong to no artifact.
//!
//! An artifact counts when it is in the record of its item. A file that is being uploaded counts too, from the permission on. An object
//! that an artifact has left (replaced, or its item deleted) counts until it is removed from the store: an agent that replaces its
//! files must not fill the store.
//!
//! Invariant: the object of an artifact in a record, before its time is over, is never unused.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::work::item::UnixMillis;

/// The longest time from the permission to store a file to its artifact.
pub const MAX_UPLOAD: Duration = Duration::from_secs(3600);
/// How old an unknown object must be to be unused: a later leader does not know the uploads that an earlier one permitted.
const UNKNOWN_OBJECT_AGE: Duration = Duration::from_secs(2 * 3600);
/// How long an object that was left counts, if nobody reports its removal.
const LEFT_OBJECT_TTL: Duration = Duration::from_secs(2 * 3600);
/// Uploads of one namespace at once, and objects of it that were left and are remembered.
const MAX_REMEMBERED: usize = 4096;

/// A limit, and the object and field that set it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit {
    /// The number.
    pub most: u64,
    /// What set it.
    pub source: String,
}

/// The limits on the artifacts that an agent stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of one artifact, in bytes.
    pub file: Limit,
    /// Of all artifacts of the namespace, in bytes.
    pub total: Limit,
    /// For how long an artifact is kept.
    pub retention: Duration,
    /// Of the artifacts of one item.
    pub of_item: usize,
}

/// An artifact in the record of its item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its name, unique in its item.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of the content, as hexadecimal digits.
    pub sha256: String,
    /// Identifies its object.
    pub id: String,
    /// Epoch of the lease under which it was stored.
    pub epoch: i64,
    /// When it was stored.
    pub created: UnixMillis,
    /// When it is deleted.
    pub expires: UnixMillis,
}

/// Why a file may not be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The file is too large.
    FileTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: Limit,
    },
    /// The artifacts of the namespace would be too large.
    NamespaceFull {
        /// The size of the file.
        bytes: u64,
        /// What is counted without it.
        used: u64,
        /// The limit.
        limit: Limit,
    },
    /// The item has as many artifacts as an item may have.
    ItemFull(usize),
    /// Too many uploads are under way.
    TooManyUploads,
}

impl fmt::Display for Denial {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileTooLarge { bytes, limit } => {
                write!(to, "the file has {bytes} bytes, and {} allows {}", limit.source, limit.most)
            }
            Self::NamespaceFull { bytes, used, limit } => write!(
                to,
                "the file has {bytes} bytes, the artifacts of the namespace have {used}, and {} allows {}: delete items with artifacts, or \
                 raise the limit",
                limit.source, limit.most
            ),
            Self::ItemFull(most) => write!(to, "the item has {most} artifacts, and an item may not have more: put files into an archive"),
            Self::TooManyUploads => write!(to, "too many uploads are under way in this namespace; try again"),
        }
    }
}

/// Bytes that count since a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    bytes: u64,
    since: UnixMillis,
}

/// The artifacts of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Artifacts {
    /// By uid of the item.
    items: HashMap<String, Vec<Artifact>>,
    /// Uploads under way, by id.
    uploads: HashMap<String, Counted>,
    /// Objects that no artifact has any more, by id.
    left: HashMap<String, Counted>,
}

impl Artifacts {
    /// The artifacts of an item.
    pub fn of(&self, item: &str) -> &[Artifact] {
        self.items.get(item).map_or(&[], Vec::as_slice)
    }

    /// The artifact of this name, if its time is not over.
    pub fn get(&self, item: &str, name: &str, now: UnixMillis) -> Option<&Artifact> {
        self.of(item).iter().find(|artifact| artifact.name == name && artifact.expires > now)
    }

    /// Whether nothing is known that still counts.
    pub fn is_idle(&self, now: UnixMillis) -> bool {
        let young = |all: &HashMap<String, Counted>, ttl| all.values().any(|counted| now.since(counted.since) < ttl);
        self.items.is_empty() && !young(&self.uploads, MAX_UPLOAD) && !young(&self.left, LEFT_OBJECT_TTL)
    }

    /// The bytes that count: of artifacts, of uploads under way, and of objects that were left.
    pub fn used(&self, now: UnixMillis) -> u64 {
        let stored = self.items.values().flatten().filter(|artifact| artifact.expires > now).map(|artifact| artifact.bytes);
        let open = self.uploads.values().filter(|upload| now.since(upload.since) < MAX_UPLOAD).map(|upload| upload.bytes);
        let left = self.left.values().filter(|left| now.since(left.since) < LEFT_OBJECT_TTL).map(|left| left.bytes);
        stored.chain(open).chain(left).fold(0, u64::saturating_add)
    }

    /// Records the artifacts of an item as they are stored.
    pub fn observe(&mut self, item: &str, artifacts: Vec<Artifact>, now: UnixMillis) {
        for artifact in &artifacts {
            self.uploads.remove(&artifact.id);
        }
        let before = if artifacts.is_empty() { self.items.remove(item) } else { self.items.insert(item.to_owned(), artifacts) };
        let kept: Vec<String> = self.of(item).iter().map(|artifact| artifact.id.clone()).collect();
        for artifact in before.into_iter().flatten().filter(|artifact| !kept.contains(&artifact.id)) {
            self.leave(artifact.id, artifact.bytes, now);
        }
    }

    /// An object is in no record any more.
    fn leave(&mut self, id: String, bytes: u64, now: UnixMillis) {
        self.left.retain(|_, left| now.since(left.since) < LEFT_OBJECT_TTL);
        if self.left.len() < MAX_REMEMBERED {
            self.left.insert(id, Counted { bytes, since: now });
        }
    }

    /// Permits an upload under this id, and counts it from now on.
    pub fn begin(&mut self, limits: &Limits, item: &str, name: &str, bytes: u64, id: &str, now: UnixMillis) -> Result<(), Denial> {
        self.uploads.retain(|_, upload| now.since(upload.since) < MAX_UPLOAD);
        if self.uploads.len() >= MAX_REMEMBERED {
            return Err(Denial::TooManyUploads);
        }
        self.judge(limits, item, name, bytes, None, now)?;
        self.uploads.insert(id.to_owned(), Counted { bytes, since: now });
        Ok(())
    }

    /// The artifacts of an item with this one, which replaces one of the same name. It is judged again: the limits may have changed, and
    /// this leader may not have permitted the upload.
    pub fn with(&self, limits: &Limits, item: &str, artifact: Artifact, now: UnixMillis) -> Result<Vec<Artifact>, Denial> {
        self.judge(limits, item, &artifact.name, artifact.bytes, Some(&artifact.id), now)?;
        let others = self.of(item).iter().filter(|known| known.name != artifact.name && known.expires > now);
        let mut all: Vec<Artifact> = others.cloned().collect();
        all.push(artifact);
        Ok(all)
    }

    fn judge(&self, limits: &Limits, item: &str, name: &str, bytes: u64, own: Option<&str>, now: UnixMillis) -> Result<(), Denial> {
        if bytes > limits.file.most {
            return Err(Denial::FileTooLarge { bytes, limit: limits.file.clone() });
        }
        if self.of(item).iter().filter(|known| known.name != name && known.expires > now).count() >= limits.of_item {
            return Err(Denial::ItemFull(limits.of_item));
        }
        // The artifact of the same name is replaced. Its object counts until the new one is in the record.
        let own = own.and_then(|id| self.uploads.get(id)).map_or(0, |upload| upload.bytes);
        let used = self.used(now).saturating_sub(own);
        if used.saturating_add(bytes) > limits.total.most {
            return Err(Denial::NamespaceFull { bytes, used, limit: limits.total.clone() });
        }
        Ok(())
    }

    /// Whether the object of an item, this old, belongs to no artifact and to no upload.
    pub fn is_unused(&self, item: &str, id: &str, age: Duration, now: UnixMillis) -> bool {
        if let Some(artifact) = self.of(item).iter().find(|artifact| artifact.id == id) {
            return artifact.expires <= now;
        }
        let uploading = self.uploads.get(id).is_some_and(|upload| now.since(upload.since) < MAX_UPLOAD);
        self.left.contains_key(id) || (age >= UNKNOWN_OBJECT_AGE && !uploading)
    }

    /// An object was removed from the store, or its upload ended before it was there.
    pub fn removed(&mut self, id: &str) {
        self.uploads.remove(id);
        self.left.remove(id);
    }
}

#[cfg(test)]
#[path = "artifacts_tests.rs"]
mod tests;
