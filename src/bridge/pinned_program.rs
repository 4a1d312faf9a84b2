//! The file of a program, as it was when its definition was loaded. A call does not start a file that was changed or replaced since.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use spillway_bridge::definition::{Definition, is_interpreter};

/// Bits of a mode: writable by the group, and by everybody.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit of a mode by which only the owner of a file removes it from its folder.
const STICKY: u32 = 0o1000;
/// The bits of a mode by which somebody may execute a file.
const EXECUTABLE: u32 = 0o111;

/// What tells a file from the one that was there before, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of the last change of its content or its attributes. Only the kernel sets them.
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino(), bytes: file.size(), changed: (file.ctime(), file.ctime_nsec()) }
    }
}

/// The file of a program.
#[derive(Clone, Debug)]
pub struct PinnedProgram {
    /// Its path, as the definition names it.
    named: PathBuf,
    /// Its path without links.
    path: PathBuf,
    identity: Identity,
    sha256: [u8; 32],
}

/// What is wrong with a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be read.
    #[error("{0} cannot be used: {1}")]
    Unusable(PathBuf, io::Error),
    /// It is no program.
    #[error("{0} is no executable file")]
    NotExecutable(PathBuf),
    /// It leads to a shell.
    #[error("{0} leads to {1}, which runs what its arguments say. Name the program itself, or set `interpreter: true`")]
    Interpreter(PathBuf, PathBuf),
    /// Others may replace it.
    #[error("{0} can be changed by other users: it must belong to root or to the user of the bridge, and only its owner may write to it")]
    ChangedByOthers(PathBuf),
    /// It is another one.
    #[error("{0} was changed since its definition was loaded")]
    Changed(PathBuf),
}

impl PinnedProgram {
    /// The program of a definition, as it is now.
    pub fn pin(definition: &Definition) -> Result<Self, ProgramError> {
        let named = definition.command.clone();
        let unusable = |error| ProgramError::Unusable(named.clone(), error);
        let path = fs::canonicalize(&named).map_err(unusable)?;
        let mut file = File::open(&path).map_err(unusable)?;
        let metadata = file.metadata().map_err(unusable)?;
        if !metadata.is_file() || metadata.mode() & EXECUTABLE == 0 {
            return Err(ProgramError::NotExecutable(named));
        }
        let leads_to_interpreter = path.file_name().and_then(|name| name.to_str()).is_none_or(is_interpreter);
        if leads_to_interpreter && !definition.interpreter {
            return Err(ProgramError::Interpreter(named, path));
        }
        check_writers(&path).map_err(unusable)?.map_or(Ok(()), |open| Err(ProgramError::ChangedByOthers(open)))?;
        let sha256 = hash(&mut file).map_err(unusable)?;
        Ok(Self { identity: Identity::of(&metadata), named, path, sha256 })
    }

    /// Whether the program is still the same one. Its content is read only if its attributes are different.
    pub fn check(&self) -> Result<(), ProgramError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => ProgramError::Changed(self.named.clone()),
            _ => ProgramError::Unusable(self.named.clone(), error),
        };
        let same_path = fs::canonicalize(&self.named).map_err(failed)? == self.path;
        check_writers(&self.path).map_err(failed)?.map_or(Ok(()), |open| Err(ProgramError::ChangedByOthers(open)))?;
        let mut file = File::open(&self.path).map_err(failed)?;
        let now = Identity::of(&file.metadata().map_err(failed)?);
        let same = now == self.identity
            || ((now.device, now.inode) == (self.identity.device, self.identity.inode) && hash(&mut file).map_err(failed)? == self.sha256);
        if same_path && same { Ok(()) } else { Err(ProgramError::Changed(self.named.clone())) }
    }
}

/// The file, or the folder on the way to it, that others than root and our own user may change.
fn check_writers(path: &Path) -> io::Result<Option<PathBuf>> {
    let own = rustix::process::geteuid().as_raw();
    for (distance, part) in path.ancestors().enumerate() {
        let found = fs::metadata(part)?;
        let removed_by_owners_alone = distance > 0 && found.mode() & STICKY != 0;
        let foreign = found.uid() != 0 && found.uid() != own;
        if foreign || (found.mode() & WRITABLE_BY_OTHERS != 0 && !removed_by_owners_alone) {
            return Ok(Some(part.to_owned()));
        }
    }
    Ok(None)
}

fn hash(file: &mut File) -> io::Result<[u8; 32]> {
    let mut hash = HashWriter(Sha256::new());
    io::copy(file, &mut hash)?;
    Ok(hash.0.finalize().into())
}

struct HashWriter(Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use spillway_bridge::definition::{Allowed, load};

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn write(&self, name: &str, content: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            path
        }
    }

    fn pin(path: &Path, more: &str) -> Result<PinnedProgram, ProgramError> {
        let allowed = Allowed { commands: None, credentials: Vec::new(), max_seconds: 60 };
        let text = format!("---\nname: p\ndescription: d\ncommand: {}\n{more}\n---\n", path.display());
        PinnedProgram::pin(&load(text.as_bytes(), &allowed).expect("it is valid"))
    }

    #[test]
    fn a_program_that_was_changed_or_replaced_is_found() {
        let folder = Folder::new();
        let path = folder.write("tool", "one", 0o755);
        let pinned = pin(&path, "").expect("a program");
        pinned.check().expect("it is the same");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).expect("a mode");
        pinned.check().expect("its content is the same");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("a mode");
        assert!(matches!(pinned.check(), Err(ProgramError::ChangedByOthers(_))), "others may change it now");
        folder.write("tool", "two", 0o755);
        assert!(matches!(pinned.check(), Err(ProgramError::Changed(_))), "the same file with another content");
        let pinned = pin(&path, "").expect("a program");
        folder.write("other", "two", 0o755);
        fs::rename(folder.0.path().join("other"), &path).expect("renamed");
        assert!(matches!(pinned.check(), Err(ProgramError::Changed(_))), "another file with the same content");
        let pinned = pin(&path, "").expect("a program");
        fs::remove_file(&path).expect("removed");
        assert!(matches!(pinned.check(), Err(ProgramError::Changed(_))));
        symlink(folder.write("target", "two", 0o755), &path).expect("a link");
        let pinned = pin(&path, "").expect("a link to a program");
        fs::remove_file(&path).expect("removed");
        symlink(folder.write("target-2", "two", 0o755), &path).expect("a link");
        assert!(matches!(pinned.check(), Err(ProgramError::Changed(_))), "the link leads elsewhere");
    }

    #[test]
    fn what_is_no_program_of_its_own_is_refused() {
        let folder = Folder::new();
        assert!(matches!(pin(&folder.0.path().join("missing"), ""), Err(ProgramError::Unusable(..))));
        assert!(matches!(pin(&folder.write("plain", "x", 0o644), ""), Err(ProgramError::NotExecutable(_))));
        fs::create_dir(folder.0.path().join("folder")).expect("a folder");
        assert!(matches!(pin(&folder.0.path().join("folder"), ""), Err(ProgramError::NotExecutable(_))));
        assert!(matches!(pin(&folder.write("open", "x", 0o775), ""), Err(ProgramError::ChangedByOthers(_))));
        let link = folder.0.path().join("harmless");
        symlink(folder.write("bash", "x", 0o755), &link).expect("a link");
        assert!(matches!(pin(&link, ""), Err(ProgramError::Interpreter(..))));
        pin(&link, "interpreter: true").expect("it is said explicitly");
        let path = folder.write("tool", "x", 0o755);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), None).expect("another owner");
            assert!(matches!(pin(&path, ""), Err(ProgramError::ChangedByOthers(_))));
            std::os::unix::fs::chown(&path, Some(0), None).expect("the owner");
        }
        fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
        assert!(
            matches!(pin(&path, ""), Err(ProgramError::ChangedByOthers(open)) if open == fs::canonicalize(folder.0.path()).expect("it"))
        );
    }
}
