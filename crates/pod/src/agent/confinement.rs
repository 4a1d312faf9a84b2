//! The sandbox of the program, of hooks and of the steps of a changeset: the folders that they may use, and what happens where the node
//! cannot enforce what the pool requires. The rules are in `spillway_sandbox`.

use std::path::{Path, PathBuf};

use spillway_sandbox::container;
use spillway_sandbox::kernel::Kernel;
use spillway_wire::sandbox::SANDBOX_VARIABLE;

use super::options::Options;
use super::processes::Confinement;
use crate::{FILES_DIR, FIRST_LOOPBACK_PORT, LOOPBACK_PORTS, MIRROR_DIR};

/// The confinement of this container's processes. There is none if the controller gave no settings, as before sandboxes existed. `bin`:
/// the folder of our programs.
pub(super) fn prepare(options: &Options, bin: &Path) -> Confinement {
    let Some(settings) = std::env::var_os(SANDBOX_VARIABLE) else { return Confinement::None };
    let socket = options.socket.parent().unwrap_or(Path::new("/"));
    // The steps of a changeset copy the pool's files into each workspace.
    let readable = [bin, socket, Path::new(FILES_DIR)].map(Path::to_owned);
    let temporary = std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from);
    let mut writable = vec![options.data.clone(), MIRROR_DIR.into(), temporary, "/dev/shm".into()];
    // The kubelet starts us in the workspace.
    writable.extend(std::env::current_dir().ok().filter(|folder| folder != Path::new("/")));
    writable.extend(options.home.folder.clone());
    let ports: Vec<u16> = (FIRST_LOOPBACK_PORT..FIRST_LOOPBACK_PORT + LOOPBACK_PORTS).collect();
    let prepared = container::settings(&settings.to_string_lossy())
        .and_then(|settings| container::prepare(&settings, &Kernel::probe(), &readable, &writable, &ports));
    match prepared {
        Ok(sandbox) => Confinement::Sandbox(sandbox),
        Err(unavailable) => Confinement::Unavailable(unavailable),
    }
}
