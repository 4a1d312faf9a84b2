//! Bounds of a folder and of the changes of a commit. A sidecar keeps the changes, and for a moment the paths of the folder, in memory.

/// The most files, links and folders of a folder.
pub const MAX_FILES: usize = 100_000;
/// The most bytes of all paths of a folder that is changed.
pub const MAX_PATHS_BYTES: usize = 16 * 1024 * 1024;
/// The most folders above a path.
pub const MAX_DEPTH: usize = 64;
/// The most changes of one commit.
pub const MAX_CHANGES: usize = 20_000;
/// The most bytes of their lines together.
pub const MAX_LINES_BYTES: usize = 16 * 1024 * 1024;
