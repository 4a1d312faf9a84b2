//! The program's home and the pool's files. They are made before the first program starts.
//!
//! A scratch volume belongs to root, and its group may write to it. Some programs refuse such a home. Others write files beside
//! their settings, which is impossible in a mounted folder of root. So the home is a new folder in the volume, and files are
//! copied.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::files;

/// The most bytes of one file: a ConfigMap has at most 1 MiB.
const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The home and the files to make.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// The program's home.
    pub folder: Option<PathBuf>,
    /// For each file of the pool, its path and the path of its copy.
    pub files: Vec<(PathBuf, PathBuf)>,
}

impl Home {
    /// A home, and the files of a list of paths: each file, and then its copy.
    pub fn new(folder: Option<PathBuf>, paths: &[PathBuf]) -> Self {
        Self { folder, files: paths.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect() }
    }

    /// Makes the home and copies the files. A copy of an earlier process is replaced.
    pub fn make(&self) -> io::Result<()> {
        let Self { folder, files } = self;
        if let Some(folder) = folder {
            own(folder).map_err(|error| about("make the home folder", folder, &error))?;
        }
        files.iter().try_for_each(|(from, to)| copy(from, to).map_err(|error| about("copy a file of the pool to", to, &error)))
    }
}

/// Makes a folder that only its owner may access. The mode is set again, because `mkdir` keeps the set-group-ID bit of the parent.
fn own(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let content = files::read(from, MAX_FILE_BYTES)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", from.display())))?;
    if let Some(folder) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    files::write(to, &content, 0o600)
}

fn about(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_its_owners_alone_and_files_can_be_written_beside() {
        let volume = std::env::temp_dir().join(format!("spillway-home-{}", std::process::id()));
        fs::create_dir_all(&volume).expect("a volume");
        // As the kubelet leaves a scratch volume.
        fs::set_permissions(&volume, Permissions::from_mode(0o2777)).expect("open");
        let mounted = volume.join("mounted");
        fs::write(&mounted, "model = 1").expect("a file");
        fs::set_permissions(&mounted, Permissions::from_mode(0o444)).expect("read-only");
        let (folder, settings) = (volume.join("home"), volume.join("home/.tool/config.toml"));
        let home = Home { folder: Some(folder.clone()), files: vec![(mounted.clone(), settings.clone())] };
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        for _ in 0..2 {
            home.make().expect("made");
            assert_eq!((mode(&folder), mode(&settings)), (0o700, 0o600));
            assert_eq!(fs::read_to_string(&settings).expect("copied"), "model = 1");
            fs::write(&settings, "changed").expect("the program may change it");
            fs::write(settings.with_file_name("history.db"), "x").expect("and write beside it");
        }
        let missing = Home { folder: None, files: vec![(volume.join("none"), settings)] };
        let words = missing.make().expect_err("nothing to copy").to_string();
        assert!(words.contains("config.toml") && words.contains("none does not exist"), "{words}");
        fs::remove_dir_all(&volume).expect("removed");
    }
}
