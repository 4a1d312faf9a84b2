//! The map of the crate: the programs inside an agent's pod, in one binary, and the same programs outside the cluster.
//!
//! The sidecar holds the pod's token and is the only egress. The supervisor is process 1 in the agent's container, starts the
//! program as its child, and holds no secret. Each command of the program asks the sidecar one question through a unix socket.
//!
//! What always holds: the program starts only after the agent is registered and the canary has found the network isolated. A
//! short outage of the sidecar, the gateway or the controller does not stop the program.
//!
//! | module | for | must not |
//! |---|---|---|
//! | [`link`] | the sidecar: calls to the gateway, canary, journal, unix socket, loopback ports | start or end the program |
//! | [`agent`] | the supervisor: starts, watches and ends the program and all its child processes | hold a secret, wait for others |
//! | [`command`] | the program's `spillway`: one question to the sidecar each; `exec`, `mcp`, `preflight`, `think` | hold a secret |
//! | [`process`] | running one command with all that it starts: time limit, output, end | ask whether the command may run |
//! | [`external`] | `spillway-agent run`: the sidecar and the supervisor outside the cluster | run anything but the given program |
//! | [`local_sandbox`] | `spillway-agent sandbox`: a command on a developer's machine, in a sandbox, without Kubernetes | talk to a cluster |
//! | [`record`] | what the sandbox refuses or would refuse, and `spillway-agent sandbox --record` | confine a command |
//! | [`install`] | copying the binary to the folder that the agent's container mounts | |
//! | `asked_body` | a request whose body is sent when the server asks for it | |
//! | [`clock`] | time since boot, and the wall clock for people | |
//! | [`files`] | small files that are written whole or not at all | |
//! | [`keep_alive`] | probes on TCP connections that may be silent for long | |
//! | [`lines`] | JSON over the unix socket, one object per line, of bounded length | |
//! | [`log`] | log lines of our own processes on standard error | |
//! | [`random`] | keys, and the jitter of retries, from the kernel | |
//! | `samples` | values that tests of several modules share | be part of the binary |

pub mod agent;
mod asked_body;
pub mod clock;
pub mod command;
pub mod external;
pub mod files;
pub mod install;
pub mod keep_alive;
pub mod lines;
pub mod link;
pub mod local_sandbox;
pub mod log;
pub mod process;
pub mod random;
pub mod record;
#[cfg(test)]
mod samples;

/// Folder of the binary, in both containers.
pub const BIN_DIR: &str = "/spillway/bin";
/// Folder of the sidecar's unix socket.
pub const SOCKET_DIR: &str = "/spillway/run";
/// The sidecar's unix socket.
pub const SOCKET_PATH: &str = "/spillway/run/link.sock";
/// The environment variable that names the socket outside a pod, where it has another path.
pub const SOCKET_VARIABLE: &str = "SPILLWAY_SOCKET";
/// Folder that the program may read and write, besides its workspace.
pub const DATA_DIR: &str = "/spillway/data";
/// The environment variable that names the data folder.
pub const DATA_DIR_VARIABLE: &str = "SPILLWAY_DATA_DIR";
/// Folder of the pool's files, as they are mounted. Programs get copies.
pub const FILES_DIR: &str = "/spillway/files";
/// The program's working directory.
pub const WORKSPACE_DIR: &str = "/workspace";
/// Folder of the repository that clones for items are made from, or of the steps' own files about the copy of a folder.
pub const MIRROR_DIR: &str = "/spillway/mirror";
/// The file of notices in the data folder.
pub const NOTICES_FILE: &str = "notices.jsonl";
/// Notices that the pod itself makes have higher numbers than this. The controller's notices have lower ones, and only those
/// are acknowledged by number.
pub const FIRST_POD_NOTICE_ID: u64 = 1_000_000_000_000;
/// Version of the programs in the pod.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The most bytes of a line that the sidecar accepts from the socket.
pub const MAX_LINE_BYTES: usize = spillway_wire::body::MAX_BODY_BYTES;
/// The most bytes of a line that the sidecar writes. The largest line has settings in which every hook has its greatest length.
pub const MAX_ORDER_BYTES: usize = 4 * 1024 * 1024;

/// Where the sidecar mounts the volume of the pool's folder.
pub const VOLUME_DIR: &str = "/spillway/volume";
/// Start of the URLs of Toolsets at the sidecar. The name of a Toolset follows.
pub const TOOLS_URL: &str = "http://127.0.0.1:4104/mcp/";
/// The URL of the pool's folder at the sidecar.
pub const FOLDER_URL: &str = "http://127.0.0.1:4106/folder";

/// The loopback port for models; the next five ports are for egress, git, tools, artifacts and the pool's folder.
pub const FIRST_LOOPBACK_PORT: u16 = 4101;
/// The number of these ports.
pub const LOOPBACK_PORTS: u16 = 6;
/// The environment variable with the URL of the sidecar's port for artifacts.
pub const ARTIFACTS_VARIABLE: &str = "SPILLWAY_ARTIFACTS_URL";
/// That URL in a pod.
pub const DEFAULT_ARTIFACTS_URL: &str = "http://127.0.0.1:4105/agent/v1/artifacts";

/// Processes and threads that a program may have at once, with all that it starts.
pub const MAX_PROCESSES: u64 = 4096;

/// The fields of a pool for commands that are timed although their program did not ask for it.
pub const COMMAND_FIELDS_HELP: &str =
    "spec.bulkhead.commandTimeoutSeconds of the agent's pool is the time limit; spec.agent.untimedCommands lists programs without one";

/// Exit code when the pod fails closed: the program must not run, so that it is not started or is ended.
pub const FAIL_CLOSED_EXIT_CODE: u8 = 78;
