//! The processes of a pod on the node, where the tests run as root. So a test can do what no process inside the pod
//! can: stop the sidecar, or kill the supervisor.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use rustix::process::{Pid, Signal, kill_process};

/// The cluster's command `run` sets it if the node has files of its own.
const ROOT_VARIABLE: &str = "SPILLWAY_NODE_ROOT";

/// A process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID on the node.
    pub pid: i32,
    /// Its parent's PID.
    pub parent: i32,
    pub command: String,
    /// Its state, one letter as in `stat`.
    pub state: char,
}

/// Whether the node has files of its own. The node of the local cluster has those of the machine.
pub fn has_own_files() -> bool {
    std::env::var_os(ROOT_VARIABLE).is_some()
}

/// A file of the node, with its absolute path there.
pub fn file(path: &Path) -> PathBuf {
    let root = std::env::var_os(ROOT_VARIABLE).unwrap_or_else(|| "/".into());
    Path::new(&root).join(path.strip_prefix("/").expect("an absolute path"))
}

/// The folder of a volume of the node. Provisioners make either kind.
pub fn folder_of(volume: &PersistentVolumeSpec) -> PathBuf {
    let local = volume.local.as_ref().map(|local| &local.path);
    let path = local.or(volume.host_path.as_ref().map(|host| &host.path)).expect("a folder of the node");
    file(Path::new(path))
}

/// Every process of the pod with this uid, by its control group.
pub fn of_pod(uid: &str) -> Vec<Process> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut found: Vec<Process> = all.filter_map(|entry| look(&entry.path(), uid)).collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// `None`: it belongs to another pod, or has ended meanwhile.
fn look(folder: &Path, uid: &str) -> Option<Process> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    let groups = std::fs::read_to_string(folder.join("cgroup")).ok()?;
    // The systemd driver replaces dashes by underscores.
    if ![uid.to_owned(), uid.replace('-', "_")].iter().any(|uid| groups.contains(&format!("pod{uid}"))) {
        return None;
    }
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    let command = std::fs::read(folder.join("cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    Some(Process { pid, parent, command, state })
}

/// The sidecar.
pub fn link(uid: &str) -> Option<Process> {
    of_pod(uid).into_iter().find(|process| process.command == "/spillway-agent link")
}

/// PID 1 of the agent's container.
pub fn supervisor(uid: &str) -> Option<Process> {
    of_pod(uid).into_iter().find(|process| process.command.starts_with("/spillway/bin/spillway-agent agent "))
}

/// The program: the supervisor's first child.
pub fn program(uid: &str) -> Option<Process> {
    let supervisor = supervisor(uid)?;
    of_pod(uid).into_iter().find(|process| process.parent == supervisor.pid)
}

pub fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.pid).expect("a process has a number");
    kill_process(pid, signal).unwrap_or_else(|error| panic!("{process:?}: {error}"));
}
