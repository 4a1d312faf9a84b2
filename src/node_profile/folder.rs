//! The files of the profile in the kubelet's folder. It writes only the version of this build, and never removes or changes another file: the
//! hash in the name says what a file has to contain.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use spillway_sandbox::profile::{PROFILE_BYTES, PROFILE_FOLDER, file_name, version, version_in, version_of};

/// More than any profile has. A larger file is none.
const MAX_PROFILE_BYTES: u64 = 1 << 20;
/// Everyone may read the profile: it is no secret.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// Writes the profile of this build if it is not there, or not intact, and reads it back. A reader sees the whole file or none.
pub fn install(root: &Path) -> io::Result<()> {
    let folder = root.join(PROFILE_FOLDER);
    let path = folder.join(file_name(version()));
    if is_intact(&path, version()) {
        return Ok(());
    }
    if !folder.is_dir() {
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, Permissions::from_mode(FOLDER_MODE))?;
    }
    let new = folder.join(format!(".{}.new", file_name(version())));
    // Remains of a process that ended in between.
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
    file.write_all(PROFILE_BYTES)?;
    // The umask may have narrowed it.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(&folder)?.sync_all()?;
    if is_intact(&path, version()) {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} has another content than was written", path.display())))
    }
}

/// The versions whose files are in the folder, with the content that their names promise.
pub fn find_intact(root: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(root.join(PROFILE_FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        if let Some(version) = entry.file_name().to_str().and_then(version_in)
            && is_intact(&entry.path(), version)
        {
            found.insert(version.to_owned());
        }
    }
    Ok(found)
}

/// Whether the path is a plain file, not a link, whose content has this version. A file that cannot be read is not intact.
fn is_intact(path: &Path, version: &str) -> bool {
    let plain = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_PROFILE_BYTES);
    plain && fs::read(path).is_ok_and(|bytes| version_of(&bytes) == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_changed_profile_is_written_and_an_intact_one_is_left_alone() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(find_intact(root.path()).expect("readable").is_empty());
        install(root.path()).expect("written");
        let path = root.path().join(spillway_sandbox::profile::path());
        assert_eq!(fs::read(&path).expect("the file"), PROFILE_BYTES);
        let meta = fs::metadata(&path).expect("the file");
        assert_eq!(meta.permissions().mode() & 0o777, 0o644);
        assert_eq!(find_intact(root.path()).expect("readable"), [version().to_owned()].into());

        let before = meta.modified().expect("a time");
        install(root.path()).expect("nothing to do");
        assert_eq!(fs::metadata(&path).expect("the file").modified().expect("a time"), before);

        fs::write(&path, "{\"defaultAction\": \"SCMP_ACT_ALLOW\"}").expect("changed");
        assert!(find_intact(root.path()).expect("readable").is_empty(), "a weaker profile has no label");
        // A process that was killed left its file.
        fs::write(root.path().join(PROFILE_FOLDER).join(format!(".{}.new", file_name(version()))), "half").expect("remains");
        install(root.path()).expect("written again");
        assert_eq!(fs::read(&path).expect("the file"), PROFILE_BYTES);
        assert_eq!(fs::read_dir(root.path().join(PROFILE_FOLDER)).expect("the folder").count(), 1, "nothing else is left");
    }

    #[test]
    fn files_of_other_versions_count_if_they_are_intact_and_stay() {
        let root = tempfile::tempdir().expect("a folder");
        install(root.path()).expect("written");
        let folder = root.path().join(PROFILE_FOLDER);
        let old = version_of(b"an old profile");
        fs::write(folder.join(file_name(&old)), "an old profile").expect("written");
        fs::write(folder.join(file_name("00000000")), "cut off").expect("written");
        fs::write(folder.join("mine.json"), "{}").expect("written");
        std::os::unix::fs::symlink(folder.join(file_name(&old)), folder.join(file_name("11111111"))).expect("a link");
        install(root.path()).expect("nothing to do");
        assert_eq!(find_intact(root.path()).expect("readable"), [old, version().to_owned()].into());
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 5, "no file is removed");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join(PROFILE_FOLDER), "a file").expect("written");
        install(root.path()).expect_err("no folder");
        find_intact(root.path()).expect_err("no folder");
        install(&root.path().join("missing")).expect_err("the kubelet's folder is missing");
    }
}
