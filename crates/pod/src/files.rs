//! Small files that stay whole when another process reads them or a crash interrupts: written under another name, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::MemfdFlags;

/// The file operations, as a trait, so that a test can make each of them fail.
pub trait Steps: Send + Sync {
    /// A file that can be written.
    type File: io::Write;

    /// Creates an empty file at `path`, or truncates the existing one.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Self::File>;
    /// Renames `from` to `to`, and replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes `path`. A missing file is an error.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The operations of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Steps for System {
    type File = File;

    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Writes `bytes` to `path` as a whole or not at all.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    write_by(&System, path, bytes, mode)
}

/// [`write()`], with these operations. After a failure the temporary file is removed.
pub fn write_by(steps: &impl Steps, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let beside = temporary_path(path);
    let written = steps.create(&beside, mode).and_then(|mut file| file.write_all(bytes)).and_then(|()| steps.rename(&beside, path));
    if written.is_err() {
        let _ = steps.remove(&beside); // it may not be there
    }
    written
}

/// Reads `path`; an error if it has more than `most` bytes. `None`: there is no such file.
pub fn read(path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} has more than {most} bytes", path.display())));
    }
    Ok(Some(bytes))
}

/// Removes `path`. A missing file is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_by(&System, path)
}

/// [`remove()`], with these operations.
pub fn remove_by(steps: &impl Steps, path: &Path) -> io::Result<()> {
    match steps.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// `content` as standard input of a process. It is a file in memory and no pipe: a process that does not read it blocks no writer.
pub fn stdin_with(content: &[u8]) -> io::Result<Stdio> {
    if content.is_empty() {
        return Ok(Stdio::null());
    }
    let mut file = anonymous_file()?;
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// A file in memory, without a name. It ends with the last process that has it open.
pub fn anonymous_file() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("spillway", MemfdFlags::CLOEXEC)?))
}

/// The temporary name under which a file is written before it is renamed.
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = std::env::temp_dir().join(format!("spillway-files-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("x");
        assert_eq!(read(&path, 8).expect("no file"), None);
        write(&path, b"one", 0o600).expect("written");
        write(&path, b"two", 0o600).expect("written again");
        assert_eq!(read(&path, 8).expect("a file").as_deref(), Some(&b"two"[..]));
        assert!(read(&path, 2).is_err(), "a file over the limit is not read");
        remove(&path).expect("removed");
        remove(&path).expect("removed before");
        assert_eq!(fs::read_dir(&dir).expect("the folder").count(), 0, "nothing is left beside");
        fs::remove_dir(&dir).expect("removed");
    }
}
