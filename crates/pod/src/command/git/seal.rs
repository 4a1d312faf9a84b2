//! The seal of a folder: a hash of all its files, by which a later step knows that no program has changed it.
//!
//! Times are not part of it: git sets them when a clone uses an object of the folder again.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use spillway_wire::text::hex;

/// The bytes of one read.
const BUFFER_BYTES: usize = 256 * 1024;

/// The seal of `folder`, without the entry `except` at its top. `None`: it holds something else than files and folders.
pub fn seal(folder: &Path, except: &str) -> io::Result<Option<String>> {
    let mut hash = Sha256::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        let mut entries = fs::read_dir(&next)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if next == folder && entry.file_name() == except {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = path.strip_prefix(folder).unwrap_or(&path).as_os_str().as_bytes();
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            if kind.is_dir() {
                hash.update([0]);
                open.push(path);
            } else if kind.is_file() {
                hash.update([1]);
                hash.update(entry.metadata()?.len().to_le_bytes());
                add(&mut hash, &mut File::open(&path)?)?;
            } else {
                return Ok(None);
            }
        }
    }
    Ok(Some(hex(&hash.finalize())))
}

/// Adds the content of a file.
fn add(hash: &mut Sha256, file: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        hash.update(buffer.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;
    use crate::command::git::samples::folder;

    #[test]
    fn a_seal_changes_with_any_file_name_or_folder_and_not_with_times() {
        let root = folder("seal");
        let of = || seal(&root.0, "left").expect("readable").expect("files and folders");
        let empty = of();
        fs::create_dir(root.0.join("a")).expect("a folder");
        let with_folder = of();
        fs::write(root.0.join("a/b"), "12").expect("a file");
        let with_file = of();
        assert!(empty != with_folder && with_folder != with_file);
        fs::write(root.0.join("a/b"), "12").expect("the same again");
        fs::write(root.0.join("left"), "x").expect("a file");
        assert_eq!(of(), with_file);
        fs::write(root.0.join("a/b"), "13").expect("a file");
        assert_ne!(of(), with_file);
        fs::rename(root.0.join("a/b"), root.0.join("b")).expect("renamed");
        fs::write(root.0.join("b"), "12").expect("a file");
        assert_ne!(of(), with_file);
        symlink("b", root.0.join("link")).expect("a link");
        assert_eq!(seal(&root.0, "left").expect("readable"), None);
        fs::remove_file(root.0.join("link")).expect("removed");
        mkfifoat(CWD, root.0.join("pipe"), Mode::from_raw_mode(0o600)).expect("a pipe");
        assert_eq!(seal(&root.0, "left").expect("it is not opened"), None);
    }
}
