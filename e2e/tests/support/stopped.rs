//! Stops sidecars of pods, the node's kubelet, or the API server, until the guard is dropped, also by a failed test.
//! And restores etcd from a copy.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::{Pid, Signal, kill_process};

use super::node;

/// A stopped sidecar of a pod: the pod reports nothing any more, and its program continues.
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
        let _ = kill_process(self.0, Signal::CONT); // its pod may have ended meanwhile
    }
}

/// The kubelet of the local cluster's one node. All tests' pods run there, so a test that stops it must run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It is stopped, and then continued.
    Stopped,
    /// It is killed, and then restarted.
    Killed,
}

/// A kubelet that is away until this is dropped.
pub struct Away(Kubelet);

impl Kubelet {
    /// Stops or kills it.
    pub fn stop_or_kill(self) -> Away {
        cluster(&[if self == Self::Stopped { "pause" } else { "kill" }, "kubelet"]);
        Away(self)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        match self.0 {
            Kubelet::Stopped => cluster(&["resume", "kubelet"]),
            Kubelet::Killed => cluster(&["up"]), // starts dead components
        }
    }
}

/// The local cluster's API server. All tests use it, so a test that stops it must run alone.
pub struct ApiServer(());

impl ApiServer {
    /// Stops it until this is dropped. Connections stay open without answers.
    pub fn stop() -> Self {
        cluster(&["pause", "apiserver"]);
        Self(())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        cluster(&["resume", "apiserver"]);
    }
}

/// A copy of the local cluster's etcd. All tests use it, so a test that restores it must run alone.
pub struct Etcd(PathBuf);

impl Etcd {
    /// Copies etcd's data into this file. etcd is stopped for a short time.
    pub fn take_copy(file: &Path) -> Self {
        cluster(&["snapshot", &file.to_string_lossy()]);
        Self(file.to_owned())
    }

    /// Restores the cluster from it. All components of the cluster restart. The test's own processes continue.
    pub fn restored(self) {
        cluster(&["restore", &self.0.to_string_lossy()]);
        let _ = std::fs::remove_file(&self.0); // it is not needed any more
    }
}

fn cluster(words: &[&str]) {
    let ended =
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/cluster/cluster")).args(words).output().expect("e2e/cluster/cluster");
    assert!(ended.status.success(), "cluster {}: {}", words.join(" "), String::from_utf8_lossy(&ended.stderr));
}
