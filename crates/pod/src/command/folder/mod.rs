//! The steps of the changeset of a folder, in the agent's container: the copy of the folder, its comparison after the program, and
//! the request to the sidecar to make the changes.
//!
//! The volume of the folder is mounted in the sidecar alone. No program runs at that time. Nothing of a step is executed.
//!
//! | file | for |
//! |---|---|
//! | [`copy`] | a fresh copy of the folder in the workspace, and its manifest |
//! | [`files`] | the files of a workspace |
//! | [`compare`] | the changes of a workspace, as they are sent |
//! | [`apply`] | sending them to the sidecar |
//! | [`port`] | the sidecar's port for the folder |

pub mod apply;
pub mod compare;
pub mod copy;
pub mod files;
pub mod port;

/// The manifest of the copy, in the folder of a step's own files.
const MANIFEST_NAME: &str = "manifest";
/// The list of changes.
const CHANGES_NAME: &str = "changes";
/// The folder with the content of changed files, each named for the number of its change.
const CONTENTS_NAME: &str = "contents";
