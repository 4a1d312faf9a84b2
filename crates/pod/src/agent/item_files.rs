//! The files in the program's data folder for the task and the result.
//!
//! The program may write any file there, also at the same time as we do. So no link is followed, only a plain file is read, and
//! not more of it than a result may have. The folder itself is opened before the program starts, and is a mount that the
//! program cannot exchange.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use spillway_wire::work::MAX_RESULT_BYTES;

use super::notices::clear;

/// The file with the task.
pub const PAYLOAD_FILE: &str = "payload";
/// The file with the result.
pub const RESULT_FILE: &str = "result";

/// The folder.
#[derive(Debug)]
pub struct ItemFiles {
    folder: OwnedFd,
}

impl ItemFiles {
    /// Opens `folder`.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: open(folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// Writes a new file of this name, and replaces anything that has the name.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        clear(&self.folder, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&self.folder, name, flags, Mode::from_raw_mode(0o644))?).write_all(content)
    }

    /// The content of the result file, at most one byte longer than a result. Empty if there is no plain file of that name.
    pub fn result(&self) -> Vec<u8> {
        self.read(RESULT_FILE).unwrap_or_default()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        // NONBLOCK: opening a pipe must not wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty())?;
        let mut bytes = Vec::new();
        if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile {
            File::from(file).take(MAX_RESULT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_pipes_and_folders_are_neither_followed_nor_waited_for() {
        let folder = std::env::temp_dir().join(format!("spillway-papers-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (result, victim) = (folder.join(RESULT_FILE), folder.join("victim"));
        fs::write(&victim, "mine").expect("written");
        let item_files = ItemFiles::open(&folder).expect("the folder");
        assert_eq!(item_files.result(), b"", "there is none");
        let hostile: [&dyn Fn(); 3] = [
            &|| symlink(&victim, &result).expect("a link"),
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, &result, Mode::from_raw_mode(0o666)).expect("a pipe"),
            &|| fs::create_dir_all(result.join("full")).expect("a folder with something in it"),
        ];
        for make in hostile {
            make();
            assert_eq!(item_files.result(), b"");
            item_files.put(RESULT_FILE, b"").expect("made anew");
            fs::write(&result, "done").expect("the program writes");
            assert_eq!(item_files.result(), b"done");
            fs::remove_file(&result).expect("a plain file");
        }
        assert_eq!(fs::read_to_string(&victim).expect("the victim"), "mine");
        fs::write(&result, vec![b'x'; 100_000]).expect("written");
        assert_eq!(item_files.result().len(), MAX_RESULT_BYTES + 1, "no more is read");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
