//! The sandbox of the program, of hooks and of the steps of a changeset: the folders that they may use, and what happens where the node
//! cannot enforce what the pool requires. The rules are in `spillway_sandbox`.

use std::path::{Path, PathBuf};

use spillway_sandbox::Sandbox;
use spillway_sandbox::container::{self, Observation};
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::policy::Network;
use spillway_wire::sandbox::{ItemSandbox, SANDBOX_VARIABLE, SandboxMode, SandboxSettings, SandboxUnavailable, UnavailableReason};

use super::options::Options;
use super::processes::Confinement;
use super::refusal_counts::RefusalCounts;
use crate::{FILES_DIR, FIRST_LOOPBACK_PORT, LOOPBACK_PORTS, MIRROR_DIR};

/// The confinement of this container's processes. There is none if the controller gave no settings, as before sandboxes existed. `bin`:
/// the folder of our programs.
pub(super) fn prepare(options: &Options, bin: &Path) -> Confinement {
    let prepare = |settings: SandboxSettings| match settings.mode {
        SandboxMode::Observe => {
            let (readable, writable) = folders(options, bin);
            Ok(Confinement::Observed(RefusalCounts::new(container::observation(&settings, &Kernel::probe(), &readable, &writable)?)))
        }
        SandboxMode::Enforce => {
            // Landlock refuses uses of files without telling anybody. The filter has decided on each call that is counted: the narrowest
            // policy knows them all.
            let counts = RefusalCounts::new(Observation { network: Some(Network::Sidecar), grants: None });
            Ok(Confinement::Sandbox(sandbox(&settings, options, bin)?, counts))
        }
    };
    settings().map_or(Confinement::None, |settings| settings.and_then(prepare).unwrap_or_else(Confinement::Unavailable))
}

/// The confinement of the processes for an item that requires more than its pool.
pub(super) fn prepare_for_item(options: &Options, bin: &Path, item: ItemSandbox, pool: &Confinement) -> Confinement {
    let prepare = |settings: SandboxSettings| match pool {
        Confinement::Sandbox(_, counts) => Ok(Confinement::Sandbox(sandbox(&settings.narrowed(item), options, bin)?, counts.clone())),
        Confinement::Unavailable(unavailable) => Err(unavailable.clone()),
        Confinement::None | Confinement::Observed(_) => Err(unconfined()),
    };
    settings().unwrap_or_else(|| Err(unconfined())).and_then(prepare).unwrap_or_else(|unavailable| {
        let message = format!("the item requires more of the sandbox (spec.bulkhead.sandbox): {}", unavailable.message);
        Confinement::Unavailable(SandboxUnavailable { message, ..unavailable })
    })
}

/// The governor gives such an item to no pool whose sandbox does not refuse. The pool may have been different then.
fn unconfined() -> SandboxUnavailable {
    let message = "the sandbox of the agent's pool does not refuse anything".to_owned();
    SandboxUnavailable { reason: UnavailableReason::SandboxNotPrepared, message }
}

fn settings() -> Option<Result<SandboxSettings, SandboxUnavailable>> {
    std::env::var_os(SANDBOX_VARIABLE).map(|settings| container::settings(&settings.to_string_lossy()))
}

fn sandbox(settings: &SandboxSettings, options: &Options, bin: &Path) -> Result<Sandbox, SandboxUnavailable> {
    let (readable, writable) = folders(options, bin);
    let ports: Vec<u16> = (FIRST_LOOPBACK_PORT..FIRST_LOOPBACK_PORT + LOOPBACK_PORTS).collect();
    container::prepare(settings, &Kernel::probe(), &readable, &writable, &ports)
}

/// The folders that processes may read, besides the image, and those that they may write to.
fn folders(options: &Options, bin: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let socket = options.socket.parent().unwrap_or(Path::new("/"));
    // The steps of a changeset copy the pool's files into each workspace.
    let readable = [bin, socket, Path::new(FILES_DIR)].map(Path::to_owned);
    let temporary = std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from);
    let mut writable = vec![options.data.clone(), MIRROR_DIR.into(), temporary, "/dev/shm".into()];
    // The kubelet starts us in the workspace.
    writable.extend(std::env::current_dir().ok().filter(|folder| folder != Path::new("/")));
    writable.extend(options.home.folder.clone());
    (readable.to_vec(), writable)
}
