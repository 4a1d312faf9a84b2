//! `spillway bridge install`: copies this executable to a folder, so that a container with another image can run it. The copy appears
//! whole or not at all.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Name of the copy.
pub const INSTALLED_NAME: &str = "spillway";

/// The arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct InstallArguments {
    /// Folder of the copy. It is made if it does not exist
    folder: PathBuf,
}

impl InstallArguments {
    /// Copies this executable.
    pub fn install(&self) -> anyhow::Result<()> {
        install(&self.folder).with_context(|| format!("cannot install this program to {}", self.folder.display()))
    }
}

fn install(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let copy = folder.join(format!(".{INSTALLED_NAME}.new"));
    // What an interrupted attempt left cannot be written to.
    match fs::remove_file(&copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::copy("/proc/self/exe", &copy)?;
    // Its users may run it, and nobody may change it: the bridge refuses programs that others can change.
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o555))?;
    fs::rename(&copy, folder.join(INSTALLED_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_this_program_and_replaces_an_older_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("bin");
        install(&bin).expect("installed");
        fs::copy(bin.join(INSTALLED_NAME), bin.join(".spillway.new")).expect("as an interrupted attempt leaves it");
        install(&bin).expect("installed again");
        let copy = fs::metadata(bin.join(INSTALLED_NAME)).expect("the copy");
        let own = fs::metadata("/proc/self/exe").expect("this program");
        assert_eq!((copy.len(), copy.permissions().mode() & 0o777), (own.len(), 0o555));
        assert_eq!(fs::read_dir(&bin).expect("a folder").count(), 1);
    }
}
