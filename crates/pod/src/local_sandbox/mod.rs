//! `spillway-agent sandbox`: a command on a developer's machine in a sandbox of its own, without Kubernetes.
//!
//! On Linux, bubblewrap gives the command its own view of the files and its own namespaces. In there, our binary is started again
//! and puts the sandbox of pods around the command: the same system calls, by the same code. On macOS, Seatbelt takes the place of
//! both.
//!
//! What always holds: credentials are hidden, whatever the workspace and the mounts are, and so are unix sockets that exist; only listed variables of the environment
//! reach the command; without the filter of system calls the command is not started; the command ends with the launcher.
//!
//! | file | for |
//! |---|---|
//! | `config` | the configuration file |
//! | `sockets` | the unix sockets of the machine |
//! | `policy` | what is visible, hidden and writable, the network and the environment; pure |
//! | `bubblewrap` | the policy as arguments of bubblewrap; pure |
//! | `seatbelt` | the policy as a profile of macOS; pure |
//! | `bridge` | the bridge: its URL, the check, forwarding |
//! | `started_bridge` | a bridge that the launcher starts |
//! | `run` | the launcher, outside the sandbox |
//! | `stage` | the first process in the sandbox, which confines and starts the command |

mod bridge;
mod bubblewrap;
mod config;
#[cfg(test)]
mod golden_tests;
mod policy;
#[cfg(test)]
mod policy_tests;
mod run;
mod seatbelt;
mod sockets;
mod stage;
mod started_bridge;

pub use run::{Arguments, run};
pub use stage::{StageArguments, run_stage};

/// Exit code if the launcher itself fails, as `env` and container runtimes have it.
const LAUNCH_FAILED: u8 = 125;
