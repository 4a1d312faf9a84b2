//! The programs inside an agent's pod: one binary, started in three ways; and the same for an agent outside the cluster.
//!
//! The sidecar ([`link`]) holds the pod's token and is the only one that talks to the gateway. The supervisor ([`agent`]) is
//! PID 1 beside the program and holds no secret. The program's commands ([`command`]) ask the sidecar through a unix socket.
//! What always holds: the program starts only when the agent is registered and its walls stand, and it is not stopped because
//! one of us, the gateway or the controller is away for a while.
//!
//! | file | for |
//! |---|---|
//! | [`link`] | the sidecar: gateway, canary, journal, unix socket, loopback ports |
//! | [`agent`] | the supervisor: starts, measures, reaps, ends |
//! | [`command`] | `spillway goodbye`, `progress`, `notices`, `status`, `spawn`, `work`, `submit`, `exec`, `mcp`, `think` |
//! | [`process`] | runs one command with all that it starts |
//! | [`external`] | `spillway-agent run`: sidecar and supervisor outside the cluster |
//! | [`install`] | puts the binary where the agent's container finds it |
//! | [`clock`], [`files`], [`lines`], [`log`], [`random`] | what they share |

pub mod agent;
pub mod clock;
pub mod command;
pub mod external;
pub mod files;
pub mod install;
pub mod lines;
pub mod link;
pub mod log;
pub mod process;
pub mod random;
#[cfg(test)]
mod samples;

/// Where the binary is, in both containers.
pub const BIN_DIR: &str = "/spillway/bin";
/// The sidecar's unix socket.
pub const SOCKET_PATH: &str = "/spillway/run/link.sock";
/// The environment variable that names it where it is elsewhere: outside a pod.
pub const SOCKET_VARIABLE: &str = "SPILLWAY_SOCKET";
/// What the program may read and write beside its workspace.
pub const DATA_DIR: &str = "/spillway/data";
/// The environment variable that names it.
pub const DATA_DIR_VARIABLE: &str = "SPILLWAY_DATA_DIR";
/// The file of notices in it.
pub const NOTICES_FILE: &str = "notices.jsonl";
/// Notices that the pod itself makes have higher numbers than this, so that they are never taken for the controller's, which
/// are acknowledged by their numbers.
pub const FIRST_POD_NOTICE_ID: u64 = 1_000_000_000_000;
/// Version of the programs in the pod.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The most bytes of a line that the sidecar takes from the socket.
pub const MAX_LINE_BYTES: usize = spillway_wire::body::MAX_BODY_BYTES;
/// The most bytes of a line that the sidecar writes: settings with every hook at its largest.
pub const MAX_ORDER_BYTES: usize = 4 * 1024 * 1024;

/// The loopback port for models; egress, git and tools have the three that follow.
pub const FIRST_LOOPBACK_PORT: u16 = 4101;

/// Processes and threads that a program, with all it starts, may have at once.
pub const MAX_PROCESSES: u64 = 4096;

/// What people can set about commands that nobody asked to be timed.
pub const COMMAND_FIELDS_HELP: &str =
    "spec.bulkhead.commandTimeoutSeconds of the agent's pool is the time limit; spec.agent.untimedCommands lists programs without one";

/// Exit code where the pod fails closed: the program is not started, or is ended, because it must not run.
pub const FAIL_CLOSED_EXIT_CODE: u8 = 78;
