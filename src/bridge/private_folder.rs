//! Private folders: that of the bridge, and in it one for each call.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The folder of the private folders of calls. It is removed with its content.
#[derive(Debug)]
pub struct WorkFolder(PathBuf);

impl WorkFolder {
    /// Makes it in this folder, or in the one for temporary files.
    pub fn make(parent: Option<PathBuf>) -> anyhow::Result<Self> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let name: String = spillway_pod::random::key()?.chars().take(16).collect();
        let folder = parent.join(format!("spillway-bridge-{name}"));
        make_private(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Sandboxes know files by their paths without links.
        Ok(Self(fs::canonicalize(folder)?))
    }

    /// Its path, without links.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// A folder that only our user can read.
pub fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}

/// Removes a folder with all that is in it, or logs why it cannot.
pub fn remove(folder: &Path) {
    let removed = fs::remove_dir_all(folder).or_else(|_| {
        // A program may close its own folders.
        open_folders(folder);
        fs::remove_dir_all(folder)
    });
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, folder = %folder.display(), "the private folder of a call cannot be removed");
    }
}

/// Gives us the rights to all folders in this one. It follows no link.
fn open_folders(folder: &Path) {
    let mut ahead = vec![folder.to_owned()];
    while let Some(folder) = ahead.pop() {
        // What cannot be opened is not removed, which is said.
        let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        let entries = fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        ahead.extend(entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
}
