//! The paths of the sidecar's socket and of the data folder.

use std::path::PathBuf;

use clap::Args;

use crate::{DATA_DIR, DATA_DIR_VARIABLE, SOCKET_PATH, SOCKET_VARIABLE};

/// The paths of the sidecar's socket and of the data folder: fixed in a pod, and in the environment outside the cluster.
#[derive(Clone, Debug, Args)]
pub struct SidecarPaths {
    /// The sidecar's socket
    #[arg(long, global = true, hide = true, env = SOCKET_VARIABLE, default_value = SOCKET_PATH)]
    pub(super) ask_socket: PathBuf,
    /// The program's data folder
    #[arg(long, global = true, hide = true, env = DATA_DIR_VARIABLE, default_value = DATA_DIR)]
    pub(super) ask_data: PathBuf,
}

impl SidecarPaths {
    /// The paths from the environment, or else of a pod: for a timed shell, which has no arguments of ours.
    pub(super) fn of_pod() -> Self {
        let place = |variable: &str, usual: &str| std::env::var_os(variable).map_or_else(|| PathBuf::from(usual), PathBuf::from);
        Self { ask_socket: place(SOCKET_VARIABLE, SOCKET_PATH), ask_data: place(DATA_DIR_VARIABLE, DATA_DIR) }
    }
}
