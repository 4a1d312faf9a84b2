//! The files of a workspace, as the program left them.
//!
//! No link is followed. Folders and files that their owner cannot read are made readable: the program may have closed them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use spillway_folder::path::{OWN_NAME, RelativePath};
use spillway_folder::record::{Content, copy_bytes};
use spillway_wire::text::hex;

use crate::command::refusals::shown;

/// The most files of a workspace.
const MAX_FILES: usize = spillway_folder::MAX_FILES;
/// The permission bits by which a program runs with other rights.
const SET_ID_BITS: u32 = 0o6000;
/// The permission bit by which its owner runs a file.
const EXECUTABLE_BIT: u32 = 0o100;

/// Why the files of a workspace cannot be listed.
#[derive(Debug)]
pub enum ListError {
    /// A file that no folder may get: its path and the reason.
    Forbidden(String),
    /// A file cannot be read.
    Unreadable(String),
}

/// The files and links below `root` by their paths, without those in `skipped`.
pub fn list(root: &Path, skipped: &[PathBuf]) -> Result<BTreeMap<RelativePath, Content>, ListError> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, &error))? {
            let path = entry.map_err(|error| unreadable(&folder, &error))?.path();
            if skipped.contains(&path) {
                continue;
            }
            let about = fs::symlink_metadata(&path).map_err(|error| unreadable(&path, &error))?;
            let kind = about.file_type();
            if kind.is_dir() {
                if entry_is_own(&path) {
                    return Err(forbidden(&path, root, "this name is Spillway's own"));
                }
                allow(&path, about.permissions().mode(), 0o700)?;
                open.push(path);
                continue;
            }
            let name = relative(&path, root)?;
            let content = if kind.is_symlink() {
                link(&path, &name, root)?
            } else if kind.is_file() {
                file(&path, about.permissions().mode(), root)?
            } else {
                return Err(forbidden(&path, root, special_kind(kind)));
            };
            found.insert(name, content);
            if found.len() > MAX_FILES {
                return Err(ListError::Forbidden(format!("the workspace has more than {MAX_FILES} files")));
            }
        }
    }
    Ok(found)
}

/// Whether a folder has the name of Spillway's own files. Folders without files are not seen elsewhere.
fn entry_is_own(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == OWN_NAME)
}

fn link(path: &Path, name: &RelativePath, root: &Path) -> Result<Content, ListError> {
    let target = fs::read_link(path).map_err(|error| unreadable(path, &error))?;
    match target.to_str().filter(|target| name.link_stays_below(target)) {
        Some(target) => Ok(Content::Link { target: target.to_owned() }),
        None => Err(forbidden(path, root, "it is a symbolic link that leaves the folder. A link must be relative and stay below it")),
    }
}

fn file(path: &Path, mode: u32, root: &Path) -> Result<Content, ListError> {
    if mode & SET_ID_BITS != 0 {
        return Err(forbidden(path, root, "it is a set-uid or set-gid file"));
    }
    allow(path, mode, 0o400)?;
    let (size, sha256) = digest(path, &mut io::sink()).map_err(|error| unreadable(path, &error))?;
    Ok(Content::File { executable: mode & EXECUTABLE_BIT != 0, size, sha256 })
}

/// Opens a plain file. Nothing else is opened, such as a pipe, which would be waited for.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "it is no plain file")) }
}

/// What is in the way of a file of the pool: a folder above it that is none. The copy of that file would follow a link.
pub fn obstacle(root: &Path, files: &[PathBuf]) -> Option<String> {
    let above = |file: &PathBuf| {
        let folders = file.parent()?.ancestors().take_while(|folder| *folder != root).filter(|folder| folder.starts_with(root));
        folders.filter(|folder| fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir())).last().map(Path::to_owned)
    };
    let path = files.iter().find_map(above)?;
    let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
    Some(format!("{} must be a folder: the pool has a file below it (spec.agent.files)", shown(&name)))
}

/// Copies a file to `out`; returns its size and SHA-256.
pub fn digest(path: &Path, out: &mut dyn io::Write) -> io::Result<(u64, String)> {
    let mut file = open_plain(path)?;
    let (size, mut digest) = (file.metadata()?.len(), Sha256::new());
    copy_bytes(&mut file, out, size, |piece| digest.update(piece))?;
    Ok((size, hex(&digest.finalize())))
}

fn special_kind(kind: fs::FileType) -> &'static str {
    if kind.is_fifo() {
        "it is a named pipe"
    } else if kind.is_socket() {
        "it is a socket"
    } else {
        "it is a device"
    }
}

fn relative(path: &Path, root: &Path) -> Result<RelativePath, ListError> {
    let text = path.strip_prefix(root).ok().and_then(Path::to_str).ok_or_else(|| forbidden(path, root, "its name is not UTF-8"))?;
    RelativePath::parse(text).map_err(|error| forbidden(path, root, &error.to_string()))
}

/// Adds these rights of the owner, if one is missing.
fn allow(path: &Path, mode: u32, rights: u32) -> Result<(), ListError> {
    if mode & rights == rights {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o777 | rights)).map_err(|error| unreadable(path, &error))
}

fn forbidden(path: &Path, root: &Path, why: &str) -> ListError {
    let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    ListError::Forbidden(format!("{} cannot be put into the folder: {why}", shown(&name)))
}

fn unreadable(path: &Path, error: &io::Error) -> ListError {
    ListError::Unreadable(format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;
    use crate::command::git::folder;
    use crate::command::git::samples::folder;

    #[test]
    fn files_and_links_are_listed_whatever_their_names_and_rights_are() {
        let root = folder("files");
        fs::create_dir_all(root.0.join("closed/below")).expect("folders");
        fs::write(root.0.join("closed/below/-rf\n*"), "x").expect("a file");
        fs::write(root.0.join("run"), "").expect("a file");
        fs::set_permissions(root.0.join("run"), Permissions::from_mode(0o100)).expect("closed");
        fs::set_permissions(root.0.join("closed/below"), Permissions::from_mode(0o000)).expect("closed");
        symlink("../run", root.0.join("closed/link")).expect("a link");
        fs::write(root.0.join("pool"), "x").expect("a file");
        let found = list(&root.0, &[root.0.join("pool")]).expect("listed");
        let names: Vec<&str> = found.keys().map(RelativePath::as_str).collect();
        assert_eq!(names, ["closed/below/-rf\n*", "closed/link", "run"]);
        let contents: Vec<&Content> = found.values().collect();
        assert!(matches!(contents[0], Content::File { executable: false, size: 1, .. }));
        assert!(matches!(contents[1], Content::Link { target } if target == "../run"));
        assert!(matches!(contents[2], Content::File { executable: true, size: 0, .. }));
    }

    #[test]
    fn only_a_real_folder_may_be_above_a_file_of_the_pool() {
        let root = folder("obstacle");
        let files = [root.0.join("AGENTS.md"), root.0.join("docs/sub/AGENTS.md"), PathBuf::from("/home/agent/x/y")];
        assert_eq!(obstacle(&root.0, &files), None);
        fs::create_dir(root.0.join("docs")).expect("a folder");
        assert_eq!(obstacle(&root.0, &files), None);
        symlink("other", root.0.join("docs/sub")).expect("a link");
        assert!(obstacle(&root.0, &files).is_some_and(|why| why.starts_with("docs/sub must be a folder")));
        folder::remove(&root.0.join("docs")).expect("removed");
        fs::write(root.0.join("docs"), "").expect("a file");
        assert!(obstacle(&root.0, &files).is_some_and(|why| why.starts_with("docs must be a folder")));
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let root = folder("plain");
        let pipe = root.0.join("pipe");
        mkfifoat(CWD, &pipe, Mode::from_raw_mode(0o600)).expect("a pipe");
        assert_eq!(open_plain(&pipe).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
        symlink("/etc/passwd", root.0.join("link")).expect("a link");
        assert!(open_plain(&root.0.join("link")).is_err());
    }

    #[test]
    fn what_no_folder_may_get_is_named() {
        let refusal = |make: &dyn Fn(&Path)| {
            let root = folder("files-bad");
            make(&root.0);
            match list(&root.0, &[]) {
                Err(ListError::Forbidden(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let to = |target: &'static str| move |root: &Path| symlink(target, root.join("bad")).expect("a link");
        let pipe = |root: &Path| mkfifoat(CWD, root.join("bad"), Mode::from_raw_mode(0o600)).expect("a pipe");
        assert!(refusal(&pipe).contains("bad cannot be put into the folder: it is a named pipe"));
        assert!(refusal(&|root| drop(UnixListener::bind(root.join("bad")).expect("a socket"))).contains("a socket"));
        let set_id = |root: &Path| {
            fs::write(root.join("bad"), "").expect("a file");
            fs::set_permissions(root.join("bad"), Permissions::from_mode(0o4755)).expect("set");
        };
        assert!(refusal(&set_id).contains("set-uid"));
        assert!(refusal(&to("/etc/passwd")).contains("leaves the folder"));
        assert!(refusal(&to("../x")).contains("leaves the folder"));
        assert!(refusal(&|root| fs::write(root.join(OsStr::from_bytes(b"\xff")), "").expect("a file")).contains("not UTF-8"));
        assert!(refusal(&|root| fs::create_dir(root.join(OWN_NAME)).expect("a folder")).contains("Spillway's own"));
    }
}
