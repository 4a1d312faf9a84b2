//! A volume of the node that a test can fill: a tmpfs of a few kilobytes, which pods mount through a claim. It is mounted where the
//! kubelet sees it, in the kubelet's mount namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::TestNamespace;

/// The volume, which has the name of its claim.
pub struct SmallVolume {
    pub claim: String,
    path: PathBuf,
    kubelet: String,
    client: kube::Client,
}

impl SmallVolume {
    /// A volume of so many kibibytes, and a claim of the namespace that is bound to it.
    pub async fn create(namespace: &TestNamespace, kibibytes: u32) -> Self {
        let name = format!("{}-small", namespace.namespace);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&path).expect("a folder");
        let volume = Self { claim: name.clone(), path, kubelet: kubelet(), client: namespace.client.clone() };
        let folder = volume.path.display().to_string();
        volume.on_node(&["mount", "-t", "tmpfs", "-o", &format!("size={kibibytes}k,mode=777"), "tmpfs", &folder]);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": ""});
        let capacity = json!({"storage": "1Mi"});
        let object = json!({"metadata": {"name": name}, "spec": {"accessModes": spec["accessModes"], "capacity": capacity, "hostPath": {"path": folder},
            "claimRef": {"namespace": namespace.namespace, "name": name}}});
        let object: PersistentVolume = serde_json::from_value(object).expect("a volume");
        Api::all(namespace.client.clone()).create(&PostParams::default(), &object).await.expect("a new volume");
        let mut claim = json!({"metadata": {"name": name}, "spec": spec});
        claim["spec"]["resources"] = json!({"requests": capacity});
        claim["spec"]["volumeName"] = json!(name);
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
        namespace.api().create(&PostParams::default(), &claim).await.expect("a new claim");
        volume
    }

    fn on_node(&self, words: &[&str]) -> Output {
        let output = Command::new("nsenter").arg(format!("--mount=/proc/{}/ns/mnt", self.kubelet)).args(words).output();
        output.expect("nsenter")
    }

    /// Path of a file of the volume, for [`Self::run`].
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Path of a file of the volume, for programs of the machine.
    pub fn file_from_outside(&self, name: &str) -> String {
        format!("/proc/{}/root{}", self.kubelet, self.file(name))
    }

    /// Runs a program of the node where the volume is mounted; returns what it prints.
    pub fn run(&self, words: &[&str]) -> Result<String, String> {
        let output = self.on_node(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Fills the volume. The last page of a file that is there may have room for some bytes.
    pub fn fill(&self) {
        let file = format!("of={}", self.file("fill"));
        assert!(self.run(&["dd", "if=/dev/zero", &file, "bs=4096"]).is_err_and(|words| words.contains("No space left")), "it is full");
    }

    /// Makes room again.
    pub fn make_room(&self) {
        self.run(&["rm", &self.file("fill")]).expect("removed");
    }

    /// Removes the volume. Its few kilobytes stay mounted until the kubelet's mount namespace ends, with the cluster.
    pub async fn remove(self) {
        let volumes = Api::<PersistentVolume>::all(self.client.clone());
        volumes.delete(&self.claim, &DeleteParams::default()).await.expect("deleted");
    }
}

/// The PID of the kubelet in the network of this cluster.
fn kubelet() -> String {
    let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network("self");
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().into_string().ok());
    let is_kubelet = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "kubelet\n");
    pids.find(|pid| is_kubelet(pid) && network(pid) == own).expect("the kubelet of the local cluster")
}
