//! A folder of a volume that several agents change, each in a copy of its own: the copy of a folder, and the changes that are made
//! in it whole or not at all.
//!
//! What always holds: nothing outside the folder is read or written, whatever links are in it. A change is made only where the
//! folder still has what the work on it began from. After a crash at any point, the next use of the folder finds all changes of a
//! commit, or none. It does not decide who may change a folder.
//!
//! | file | for |
//! |---|---|
//! | [`path`] | paths below a folder |
//! | [`record`] | what is at a path, and how it is sent |
//! | [`folder`] | a folder of a volume, with Spillway's own files in it |
//! | [`snapshot`] | a consistent copy of a folder, as a stream |
//! | [`receive`] | changes, from a stream into a work folder |
//! | `check` | whether changes can be made in the folder as it is |
//! | [`commit`] | the commit of changes, and its completion after a crash |
//! | [`limits`] | bounds |
//! | [`lock`] | the main lock of a folder |
//! | `scratch` | private work folders |
//! | `beneath` | a folder as a file descriptor, and what is beneath it |
//! | `transfer` | bytes from one place to another |
//! | `steps` | the steps of changes, at which tests stop the program |
//! | [`error`] | errors, with messages for people |

mod beneath;
mod check;
pub mod commit;
pub mod error;
pub mod folder;
pub mod limits;
pub mod lock;
pub mod path;
pub mod receive;
pub mod record;
mod scratch;
pub mod snapshot;
mod steps;
mod transfer;

#[cfg(test)]
mod samples;

pub use commit::Outcome;
pub use error::FolderError;
pub use folder::Folder;
pub use limits::{MAX_CHANGES, MAX_FILES};
pub use lock::LOCK_TIMEOUT;
pub use receive::Staged;
pub use snapshot::Snapshot;
