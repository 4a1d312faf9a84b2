//! Copies this binary to the folder that the agent's container mounts. The copy appears whole or not at all, and may replace
//! an earlier one: a running process keeps its old file.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::files::temporary_path;
use crate::process::shells::{SH_ONLY_FOLDER, SHELLS_FOLDER, TIMED_SHELLS};

/// The binary's name.
pub const BINARY_NAME: &str = "spillway-agent";
/// Its name as the program's command.
pub const COMMAND_NAME: &str = "spillway";

/// Copies the running binary to `dir`, and links `spillway` and the timed shells to it.
pub fn install(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let (path, command) = (dir.join(BINARY_NAME), dir.join(COMMAND_NAME));
    let copy = temporary_path(&path);
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    fs::rename(&copy, &path)?;
    link(BINARY_NAME, &command)?;
    let shells = dir.join(SHELLS_FOLDER);
    fs::create_dir_all(&shells)?;
    TIMED_SHELLS.into_iter().try_for_each(|shell| link(&format!("../{BINARY_NAME}"), &shells.join(shell)))?;
    let only_sh = dir.join(SH_ONLY_FOLDER);
    fs::create_dir_all(&only_sh)?;
    link(&format!("../../{BINARY_NAME}"), &only_sh.join("sh"))
}

fn link(to: &str, path: &Path) -> io::Result<()> {
    let link = temporary_path(path);
    crate::files::remove(&link)?;
    symlink(to, &link)?;
    fs::rename(&link, path)
}
