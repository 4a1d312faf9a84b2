//! Folders that a program left behind: they are emptied, or made readable, whatever is in them.
//!
//! No process of the program runs at that time. Nothing outside the folder is touched: no link is followed.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

/// From this length on, a folder is moved up before it is entered: the kernel takes no path of more than 4,096 bytes.
const MAX_PATH_BYTES: usize = 2048;
/// Start of the name of a folder that was moved up.
const MOVED_PREFIX: &str = ".spillway-moved-";
/// The name of a repository's own folder.
const REPOSITORY_NAME: &str = ".git";

/// Removes all that is in `root`.
pub fn empty(root: &Path) -> io::Result<()> {
    let mut moved = 0;
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.last().cloned() {
        // A volume's own folder belongs to root, and is open already.
        if folder != root {
            fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        }
        let mut below = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            } else if entry.path().as_os_str().len() > MAX_PATH_BYTES {
                moved += 1;
                let path = root.join(format!("{MOVED_PREFIX}{moved}"));
                fs::set_permissions(entry.path(), Permissions::from_mode(0o700))?;
                fs::rename(entry.path(), &path)?;
                below.push(path);
            } else {
                below.push(entry.path());
            }
        }
        if below.is_empty() {
            open.pop();
            if folder != root {
                fs::remove_dir(&folder)?;
            }
        }
        open.append(&mut below);
    }
    Ok(())
}

/// Makes `root` readable for git. Nested repositories lose their own folder, so that git reads their files, and runs nothing of
/// theirs. Files that are neither plain files nor links are removed: git would wait for a pipe.
pub fn open_up(root: &Path) -> io::Result<()> {
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let is_repository = entry.file_name().eq_ignore_ascii_case(REPOSITORY_NAME);
            // The program's own repository, which git leaves out.
            if folder == root && entry.file_name() == REPOSITORY_NAME {
                continue;
            }
            if kind.is_dir() {
                make_open(&path, 0o700)?;
                if is_repository {
                    empty(&path)?;
                    fs::remove_dir(&path)?;
                } else {
                    open.push(path);
                }
            } else if is_repository || kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
                fs::remove_file(&path)?;
            } else if kind.is_file() {
                make_open(&path, 0o600)?;
            }
        }
    }
    Ok(())
}

/// Removes a file or a folder, if there is one.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => empty(path).and_then(|()| fs::remove_dir(path)),
        Ok(_) => fs::remove_file(path),
    }
}

/// Adds these rights of the owner, if one is missing.
fn make_open(path: &Path, rights: u32) -> io::Result<()> {
    let mode = fs::symlink_metadata(path)?.permissions().mode();
    if mode & rights == rights { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 | rights)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkdirat, mkfifoat};

    use super::*;
    use crate::command::git::samples::folder;

    #[test]
    fn a_folder_is_emptied_whatever_is_in_it() {
        let (root, outside) = (folder("empty"), folder("outside"));
        fs::write(outside.0.join("mine"), "x").expect("a file");
        symlink(&outside.0, root.0.join("link")).expect("a link");
        fs::create_dir_all(root.0.join("a/b")).expect("folders");
        fs::write(root.0.join("a/b/file"), "x").expect("a file");
        mkfifoat(CWD, root.0.join("pipe"), Mode::from_raw_mode(0o600)).expect("a pipe");
        // Deeper than a path can name, with a folder without rights at its end.
        let mut below = rustix::fs::open(&root.0, rustix::fs::OFlags::DIRECTORY, Mode::empty()).expect("opened");
        for _ in 0..60 {
            mkdirat(&below, "d".repeat(100), Mode::from_raw_mode(0o700)).expect("a folder");
            below = rustix::fs::openat(&below, "d".repeat(100), rustix::fs::OFlags::DIRECTORY, Mode::empty()).expect("opened");
        }
        mkdirat(&below, "closed", Mode::empty()).expect("a folder");
        fs::set_permissions(root.0.join("a"), Permissions::from_mode(0o000)).expect("closed");
        empty(&root.0).expect("emptied");
        assert_eq!(fs::read_dir(&root.0).expect("read").count(), 0);
        assert_eq!(fs::read_to_string(outside.0.join("mine")).expect("untouched"), "x");
    }

    #[test]
    fn what_git_would_wait_for_or_run_is_removed() {
        let root = folder("open");
        for path in [".git", "plain", "nested/.git/hooks", "other/.GIT"] {
            fs::create_dir_all(root.0.join(path)).expect("a folder");
        }
        fs::write(root.0.join("nested/file"), "x").expect("a file");
        fs::write(root.0.join("plain/.git"), "gitdir: /elsewhere").expect("a file");
        fs::write(root.0.join("plain/run"), "x").expect("a file");
        mkfifoat(CWD, root.0.join("nested/.gitignore"), Mode::from_raw_mode(0o600)).expect("a pipe");
        fs::set_permissions(root.0.join("plain/run"), Permissions::from_mode(0o111)).expect("closed");
        fs::set_permissions(root.0.join("nested"), Permissions::from_mode(0o100)).expect("closed");
        open_up(&root.0).expect("opened");
        let there = |path: &str| fs::symlink_metadata(root.0.join(path)).ok().map(|found| found.permissions().mode() & 0o777);
        assert_eq!((there("plain/run"), there("nested")), (Some(0o711), Some(0o700)));
        assert!(there(".git").is_some() && there("nested/file").is_some() && there("other").is_some());
        for gone in ["nested/.git", "other/.GIT", "plain/.git", "nested/.gitignore"] {
            assert_eq!(there(gone), None, "{gone}");
        }
    }
}
