//! Errors of a folder, with messages for people. It decides nothing: the caller tries again, or shows the message.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

use crate::limits::{MAX_CHANGES, MAX_DEPTH, MAX_FILES};
use crate::path::{PathError, RelativePath};

/// Why a folder could not be copied or changed.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A system call failed.
    #[error("cannot {action} {path:?}: {error}{}", advice(.error))]
    Io {
        /// The action, as a verb with its object.
        action: &'static str,
        /// The path below the folder, or the path of the volume.
        path: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The main lock was not free for too long.
    #[error("another agent has used the folder for longer than {seconds} seconds; try again later")]
    Locked {
        /// The time limit.
        seconds: u64,
    },
    /// The path of the folder, or a path in it, is not allowed.
    #[error("the path {path:?} is not allowed: {error}")]
    Path {
        /// The path.
        path: String,
        /// The reason.
        #[source]
        error: PathError,
    },
    /// The folder has too many paths.
    #[error("the folder has more than {MAX_FILES} files, links and folders, or their paths are too long; use a smaller folder")]
    TooManyPaths,
    /// A path is below too many folders.
    #[error("the path {path:?} is below more than {MAX_DEPTH} folders; move it up")]
    TooDeep {
        /// The path.
        path: String,
    },
    /// The folder has something that is neither a plain file nor a link nor a folder.
    #[error("the path {path:?} is {kind}, which cannot be copied; remove it")]
    Unsupported {
        /// The path.
        path: String,
        /// Its kind, in words.
        kind: &'static str,
    },
    /// A symbolic link points to a place outside the folder.
    #[error("the symbolic link {path:?} points outside the folder, to {target:?}; remove it")]
    LinkLeaves {
        /// The path.
        path: String,
        /// The target.
        target: String,
    },
    /// A name, or the target of a link, is not UTF-8.
    #[error("the path {path:?} has a name or a target that is not UTF-8; rename or remove it")]
    NotUtf8 {
        /// The path, with a replacement for each byte that is not UTF-8.
        path: String,
    },
    /// The stream of changes could not be read.
    #[error("the stream of changes cannot be read: {0}")]
    Input(#[source] io::Error),
    /// The stream of the copy could not be written.
    #[error("the stream of the copy cannot be written: {0}")]
    Output(#[source] io::Error),
    /// The stream has a change that is not allowed.
    #[error("the change of {path:?} is not allowed: {reason}")]
    InvalidChange {
        /// The path.
        path: RelativePath,
        /// The reason.
        reason: &'static str,
    },
    /// The content of a file is not the content that its line names.
    #[error("the content of {path:?} does not have the SHA-256 of its line")]
    WrongContent {
        /// The path.
        path: RelativePath,
    },
    /// The file system does not keep whether a file is executable.
    #[error("the file system of the volume does not keep whether a file is executable, which changes need; use another one")]
    NoExecutableBit,
    /// The changes do not have the expected digest.
    #[error("the changes do not have the expected digest")]
    WrongDigest,
    /// There are too many changes, or their lines are too long.
    #[error("there are more than {MAX_CHANGES} changes, or their paths are too long; make fewer changes")]
    TooManyChanges,
    /// The changed files have too many bytes.
    #[error("the changed files have more than {limit} bytes; make smaller changes")]
    TooLarge {
        /// The most bytes.
        limit: u64,
    },
    /// A commit was interrupted, and cannot be completed.
    #[error(
        "an interrupted commit cannot be completed because of {path:?}: {reason}. \
         A person must look at the folder; nothing else is changed in it before"
    )]
    Stuck {
        /// The path.
        path: String,
        /// The reason.
        reason: &'static str,
    },
}

impl FolderError {
    /// Whether another try fails as well, until a person changes the folder, its volume, or the changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Io { error, .. } => is_denied(error),
            Self::Locked { .. } | Self::Input(_) | Self::Output(_) => false,
            // The stream may have been cut off between two changes, or a file was written while it was sent.
            Self::WrongDigest | Self::WrongContent { .. } => false,
            _ => true,
        }
    }
}

/// Whether the system refuses the access.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Advice for a person.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM) => "; the volume must be writable for the group 10001 (fsGroup)",
        Some(Errno::ROFS) => "; the volume must not be read-only",
        Some(Errno::NOSPC | Errno::DQUOT) => "; the volume is full: make room, or make it larger",
        Some(Errno::XDEV) => "; another volume is mounted there, which is never entered",
        Some(Errno::LOOP | Errno::NOTDIR) => "; a file or a symbolic link is in the place of a folder: remove it",
        Some(Errno::NOSYS) => "; the node needs Linux 5.6 or later",
        _ => "",
    }
}

/// Adds the action and the path to an error of the system.
pub(crate) trait Context<T> {
    /// The error with them.
    fn context(self, action: &'static str, path: &str) -> Result<T, FolderError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, action: &'static str, path: &str) -> Result<T, FolderError> {
        let path = if path.is_empty() { "." } else { path };
        self.map_err(|error| FolderError::Io { action, path: path.to_owned(), error: error.into() })
    }
}
