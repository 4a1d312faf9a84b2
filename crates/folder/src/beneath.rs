//! A folder as a file descriptor, and what is at the paths beneath it.
//!
//! It must not leave the folder: no symbolic link is followed, no other volume is entered, and no pipe or device is opened. All
//! changes of the file system go through here, so that each is a step (see [`crate::steps`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::limits::MAX_FILES;
use crate::path::RelativePath;
use crate::record::BUFFER_BYTES;
use crate::steps::Steps;

/// How each folder is entered.
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How each file is opened. `NONBLOCK`: a pipe is never waited for.
const FILE_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const SET_ID_BITS: u32 = 0o6000;
const OWNER_EXECUTE_BIT: u32 = 0o100;
/// Rights of Spillway's own folders and files: the pods of a volume share a group.
const SHARED_FOLDER_MODE: u32 = 0o770;
const SHARED_FILE_MODE: u32 = 0o660;
/// The most folders in each other that are removed.
const MAX_REMOVED_DEPTH: usize = 128;

/// A folder.
pub(crate) struct Directory {
    fd: OwnedFd,
    steps: Arc<dyn Steps>,
}

/// What is at a path.
pub(crate) enum PathKind {
    /// Nothing.
    Nothing,
    /// A plain file, open for reading.
    File {
        /// Whether its owner may run it.
        executable: bool,
        /// Its bytes.
        size: u64,
        /// The file.
        file: File,
    },
    /// A symbolic link, with its target.
    Link(String),
    /// A folder.
    Folder,
    /// Anything else, in words.
    Other(&'static str),
    /// Nothing, because there is a file or link in the place of this folder above it.
    Blocked(String),
}

impl Directory {
    /// Opens a folder by a trusted path.
    pub fn trusted(path: &Path, steps: Arc<dyn Steps>) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd, steps })
    }

    /// Opens the folder at this path beneath. An empty path is the folder itself.
    pub fn open(&self, path: &str) -> io::Result<Self> {
        let path = if path.is_empty() { "." } else { path };
        let fd = rustix::fs::openat2(&self.fd, path, FOLDER_FLAGS, Mode::empty(), RESOLVE)?;
        Ok(Self { fd, steps: Arc::clone(&self.steps) })
    }

    /// Opens the folder at this path beneath, and makes the folders that are missing.
    pub fn open_or_make(&self, path: &str) -> io::Result<Self> {
        match self.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let mut folder = self.open("")?;
        for name in path.split('/') {
            folder = match folder.open(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    folder.make(name, 0o777)?;
                    folder.sync()?;
                    folder.open(name)?
                }
                opened => opened?,
            };
        }
        Ok(folder)
    }

    /// Opens a folder of Spillway's own, and makes it if it is missing.
    pub fn open_or_make_shared(&self, name: &str) -> io::Result<Self> {
        let folder = match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make(name, SHARED_FOLDER_MODE)?;
                self.sync()?;
                self.open(name)?
            }
            opened => opened?,
        };
        folder.share(&folder.fd, SHARED_FOLDER_MODE)?;
        Ok(folder)
    }

    /// Opens a lock file for reading and writing, and makes it if it is missing.
    pub fn open_or_make_lock(&self, name: &str) -> io::Result<File> {
        self.steps.reached("make a lock file")?;
        let flags = FILE_FLAGS | OFlags::RDWR | OFlags::CREATE;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(SHARED_FILE_MODE))?;
        if !is_plain_file(&rustix::fs::fstat(&fd)?) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
        }
        self.share(&fd, SHARED_FILE_MODE)?;
        Ok(fd.into())
    }

    /// Opens a lock file that exists for reading and writing.
    pub fn open_lock(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.fd, name, FILE_FLAGS | OFlags::RDWR, Mode::empty())?;
        if is_plain_file(&rustix::fs::fstat(&fd)?) { Ok(fd.into()) } else { Err(Errno::INVAL.into()) }
    }

    /// Gives the group the rights that the umask took away. Only the owner can; it has done so if it was not killed before.
    fn share(&self, fd: &OwnedFd, rights: u32) -> io::Result<()> {
        let mode = rustix::fs::fstat(fd)?.st_mode & 0o7777;
        if mode & rights != rights {
            self.steps.reached("give the group its rights")?;
            match rustix::fs::fchmod(fd, Mode::from_raw_mode(mode | rights)) {
                Err(Errno::PERM | Errno::OPNOTSUPP) => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn make(&self, name: &str, mode: u32) -> io::Result<()> {
        self.steps.reached("make a folder")?;
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            // Another agent has made it.
            Err(Errno::EXIST) => Ok(()),
            result => Ok(result?),
        }
    }

    /// The names in it, each with whether it is a folder, and of more than [`MAX_FILES`] any so many and one. Walked in this order, the paths below it are in the order of their bytes.
    pub fn list(&self) -> io::Result<Vec<(OsString, bool)>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() > MAX_FILES {
                break;
            }
            let name = OsString::from_vec(name.to_vec());
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Another agent has removed it. Only work folders change while they are listed.
                    Err(Errno::NOENT) => continue,
                    stat => FileType::from_raw_mode(stat?.st_mode),
                },
                kind => kind,
            };
            names.push((name, kind == FileType::Directory));
        }
        names.sort_by_cached_key(|(name, is_folder)| [name.as_bytes(), if *is_folder { b"/" } else { b"" }].concat());
        Ok(names)
    }

    /// What has this name in it.
    pub fn find(&self, name: &OsStr) -> io::Result<PathKind> {
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(PathKind::Nothing),
            stat => stat?,
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_mode & SET_ID_BITS != 0 => PathKind::Other("a set-user-ID or set-group-ID file"),
            FileType::RegularFile => self.open_file(name)?,
            FileType::Symlink => match rustix::fs::readlinkat(&self.fd, name, Vec::new())?.into_string() {
                Ok(target) => PathKind::Link(target),
                Err(_) => PathKind::Other("a symbolic link whose target is not UTF-8"),
            },
            FileType::Directory => PathKind::Folder,
            FileType::Fifo => PathKind::Other("a pipe"),
            FileType::Socket => PathKind::Other("a socket"),
            _ => PathKind::Other("a device"),
        })
    }

    /// What is at this path beneath.
    pub fn find_at(&self, path: &RelativePath) -> io::Result<PathKind> {
        let (parent, name) = path.split();
        match self.open(parent.unwrap_or_default()) {
            Ok(folder) => folder.find(name.as_ref()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PathKind::Nothing),
            Err(error) if is_blocked(&error) => {
                let is_in_the_way = |folder: &&str| self.open(folder).err().as_ref().is_some_and(is_blocked);
                let folder = path.folders().filter(is_in_the_way).last();
                folder.map_or(Err(error), |folder| Ok(PathKind::Blocked(folder.to_owned())))
            }
            Err(error) => Err(error),
        }
    }

    fn open_file(&self, name: &OsStr) -> io::Result<PathKind> {
        let fd = rustix::fs::openat(&self.fd, name, FILE_FLAGS | OFlags::RDONLY, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if !is_plain_file(&stat) {
            return Ok(PathKind::Other("a file that changes its kind"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        Ok(PathKind::File { executable: stat.st_mode & OWNER_EXECUTE_BIT != 0, size, file: fd.into() })
    }

    /// Fails if names in it cannot be made and removed.
    pub fn check_writable(&self) -> io::Result<()> {
        Ok(rustix::fs::accessat(&self.fd, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty())?)
    }

    /// The most bytes of a name in its file system.
    pub fn max_name_bytes(&self) -> io::Result<usize> {
        Ok(usize::try_from(rustix::fs::fstatvfs(&self.fd)?.f_namemax).unwrap_or(usize::MAX))
    }

    /// Makes a new file for writing.
    pub fn create(&self, name: &str, executable: bool) -> io::Result<File> {
        self.steps.reached("make a file")?;
        let mode = Mode::from_raw_mode(if executable { 0o777 } else { 0o666 });
        let flags = FILE_FLAGS | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(rustix::fs::openat(&self.fd, name, flags, mode)?.into())
    }

    /// Makes a new file executable or not, where its folder's rules made it otherwise. Returns whether the file system keeps it.
    pub fn keeps_executable(&self, file: &File, executable: bool) -> io::Result<bool> {
        let is_executable = || Ok::<_, Errno>(rustix::fs::fstat(file)?.st_mode & OWNER_EXECUTE_BIT != 0);
        if is_executable()? != executable {
            self.steps.reached("change the mode of a file")?;
            rustix::fs::fchmod(file, Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode & 0o777 ^ OWNER_EXECUTE_BIT))?;
        }
        Ok(is_executable()? == executable)
    }

    /// Makes a symbolic link.
    pub fn make_link(&self, target: &str, name: &str) -> io::Result<()> {
        self.steps.reached("make a symbolic link")?;
        Ok(rustix::fs::symlinkat(target, &self.fd, name)?)
    }

    /// Gives a file of this folder a second name in another one.
    pub fn hard_link(&self, name: &OsStr, folder: &Self, new_name: &str) -> rustix::io::Result<()> {
        self.steps.reached("make a hard link")?;
        rustix::fs::linkat(&self.fd, name, &folder.fd, new_name, AtFlags::empty())
    }

    /// Moves a file, a link or a folder, over what is there.
    pub fn rename(&self, name: &str, folder: &Self, new_name: &str, step: &'static str) -> io::Result<()> {
        self.steps.reached(step)?;
        Ok(rustix::fs::renameat(&self.fd, name, &folder.fd, new_name)?)
    }

    /// Removes a file or link, if it is there.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        self.steps.reached("remove a file")?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Removes a folder that is empty, if it is there.
    pub fn remove_folder(&self, name: &OsStr) -> rustix::io::Result<()> {
        self.steps.reached("remove a folder")?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    /// Removes a folder and all that is in it, or removes only folders and fails if there are files.
    pub fn remove_tree(&self, name: &OsStr, only_folders: bool) -> io::Result<()> {
        self.remove_tree_to(name, only_folders, MAX_REMOVED_DEPTH)
    }

    fn remove_tree_to(&self, name: &OsStr, only_folders: bool, depth: usize) -> io::Result<()> {
        let fd = match rustix::fs::openat2(&self.fd, name, FOLDER_FLAGS, Mode::empty(), RESOLVE) {
            // Another agent removes it at the same time.
            Err(Errno::NOENT) => return Ok(()),
            fd => fd?,
        };
        let folder = Self { fd, steps: Arc::clone(&self.steps) };
        loop {
            let names = folder.list()?;
            let is_whole = names.len() <= MAX_FILES;
            for (below, is_folder) in names {
                if is_folder {
                    folder.remove_tree_to(&below, only_folders, depth.checked_sub(1).ok_or(Errno::LOOP)?)?;
                } else if only_folders {
                    return Err(Errno::NOTEMPTY.into());
                } else {
                    folder.remove_file(&below)?;
                }
            }
            if is_whole {
                return Ok(self.remove_folder(name)?);
            }
        }
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> io::Result<()> {
        self.steps.reached("make a folder durable")?;
        match self.steps.sync(self.fd.as_fd()) {
            // The file system has no such call for folders.
            Err(Errno::INVAL) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Makes a file durable.
    pub fn sync_file(&self, file: &File) -> io::Result<()> {
        self.steps.reached("make a file durable")?;
        Ok(self.steps.sync(file.as_fd())?)
    }
}

/// Whether a folder could not be opened because it, or a folder above it, is none.
pub(crate) fn is_blocked(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOTDIR | Errno::LOOP))
}

fn is_plain_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & SET_ID_BITS == 0
}

/// The bytes of a file, and their SHA-256.
pub(crate) fn hash(mut file: File) -> io::Result<(u64, String)> {
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((size, spillway_wire::text::hex(&hash.finalize()))),
            Ok(count) => {
                hash.update(buffer.get(..count).unwrap_or_default());
                size += u64::try_from(count).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
