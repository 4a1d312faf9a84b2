//! What stands still until it is let go: sidecars of pods, the node's kubelet, and the API server. A test that fails lets go too.
//! And an etcd that is restored from a copy.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::{Pid, Signal, kill_process};

use super::node;

/// The sidecar of a pod: nothing of the pod is heard of any more, and its program goes on.
pub struct Link(Pid);

impl Link {
    /// Stops it.
    pub fn of(pod: &Pod) -> Self {
        let link = node::link(&pod.uid().expect("a uid")).unwrap_or_else(|| panic!("{} has a sidecar", pod.name_any()));
        node::signal(&link, Signal::STOP);
        Self(Pid::from_raw(link.pid).expect("a process has a number"))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT); // its pod may have been ended meanwhile
    }
}

/// The kubelet of the local cluster's one node. Everybody's pods live there: a test that takes it away must be alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It stands still, and goes on.
    Stopped,
    /// It is killed, and another one started.
    Killed,
}

/// It is away until this is dropped.
pub struct Away(Kubelet);

impl Kubelet {
    /// Takes it away.
    pub fn away(self) -> Away {
        cluster(&[if self == Self::Stopped { "pause" } else { "kill" }, "kubelet"]);
        Away(self)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        match self.0 {
            Kubelet::Stopped => cluster(&["resume", "kubelet"]),
            Kubelet::Killed => cluster(&["up"]), // starts what is dead
        }
    }
}

/// The local cluster's API server: everybody's. A test that takes it away must be alone.
pub struct ApiServer(());

impl ApiServer {
    /// Stops it until this is dropped. Connections stay open, and nobody answers on them.
    pub fn away() -> Self {
        cluster(&["pause", "apiserver"]);
        Self(())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        cluster(&["resume", "apiserver"]);
    }
}

/// A copy of the local cluster's etcd: everybody's. A test that restores it must be alone.
pub struct Etcd(PathBuf);

impl Etcd {
    /// Copies etcd's data into this file. Etcd stands still for a moment.
    pub fn copied(file: &Path) -> Self {
        cluster(&["snapshot", &file.to_string_lossy()]);
        Self(file.to_owned())
    }

    /// Restores the cluster from it. API server, kubelet and all other components restart; the test's own processes go on.
    pub fn restored(self) {
        cluster(&["restore", &self.0.to_string_lossy()]);
        let _ = std::fs::remove_file(&self.0); // nobody needs it any more
    }
}

fn cluster(words: &[&str]) {
    let ended =
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/cluster/cluster")).args(words).output().expect("e2e/cluster/cluster");
    assert!(ended.status.success(), "cluster {}: {}", words.join(" "), String::from_utf8_lossy(&ended.stderr));
}
