//! Puts this binary where the agent's container finds it. Whole or not at all, and over itself as often as one likes: a
//! running copy keeps its old file.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::files::beside;
use crate::process::shells::{FOLDER, FOLDER_OF_SH, SHELLS};

/// The binary's name.
pub const NAME: &str = "spillway-agent";
/// Its name as the program's command.
pub const COMMAND: &str = "spillway";

/// Copies the running binary to `dir`, and links `spillway` and the timed shells to it.
pub fn install(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let (path, command) = (dir.join(NAME), dir.join(COMMAND));
    let copy = beside(&path);
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    fs::rename(&copy, &path)?;
    link(NAME, &command)?;
    let shells = dir.join(FOLDER);
    fs::create_dir_all(&shells)?;
    SHELLS.into_iter().try_for_each(|shell| link(&format!("../{NAME}"), &shells.join(shell)))?;
    let only_sh = dir.join(FOLDER_OF_SH);
    fs::create_dir_all(&only_sh)?;
    link(&format!("../../{NAME}"), &only_sh.join("sh"))
}

fn link(to: &str, path: &Path) -> io::Result<()> {
    let link = beside(path);
    crate::files::remove(&link)?;
    symlink(to, &link)?;
    fs::rename(&link, path)
}
