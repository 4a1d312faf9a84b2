//! The attacks on the sandbox in containers of runc alone, with every capability of the node's administrator: which of them the profile of system calls stops without
//! Kubernetes, without Landlock, and without the filter in the pod. The control is the same container without the profile.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/sandbox/profiles/agent-strict.json");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/attacks.md");

/// A process outside the containers, and the folders of a container. Containers share the processes and the network of the node, so
/// that attacks find their targets.
struct Scene {
    folder: tempfile::TempDir,
    victim: Child,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "bundle/rootfs/usr",
            "bundle/rootfs/etc",
            "bundle/rootfs/proc",
            "bundle/rootfs/dev",
            "bundle/rootfs/attack",
            "attack/inside",
            "attack/outside",
        ] {
            fs::create_dir_all(folder.path().join(name)).expect("a folder");
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), folder.path().join("bundle/rootfs").join(name)).expect("a link");
        }
        for name in ["secret", "long", "remove"] {
            fs::write(folder.path().join("attack/outside").join(name), "secret").expect("a file");
        }
        fs::copy(program(), folder.path().join("attack/spillway-attacks")).expect("a program");
        let victim = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("a victim");
        Self { folder, victim }
    }

    /// Runs an attack in a container of its own.
    fn run(&self, attack: &str, profile: Option<&Value>) -> Output {
        let bundle = self.folder.path().join("bundle");
        fs::write(bundle.join("config.json"), self.config(attack, profile).to_string()).expect("a configuration");
        let name = format!("spillway-attack-{}", self.victim.id());
        let output = Command::new("runc").args(["run", "--bundle"]).arg(&bundle).arg(&name).stdin(Stdio::null()).output();
        output.expect("runc runs: `e2e/cluster/cluster run` has it in its path")
    }

    fn config(&self, attack: &str, profile: Option<&Value>) -> Value {
        let capabilities = capabilities();
        let bind = |source: &Path, target: &str, access: &str| json!({"destination": target, "type": "bind", "source": source, "options": ["rbind", access]});
        let mut config = json!({
            "ociVersion": "1.2.0",
            "root": {"path": "rootfs"},
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/attack/spillway-attacks", attack],
                "env": [
                    "PATH=/usr/bin", "ATTACK_INSIDE=/attack/inside", "ATTACK_OUTSIDE=/attack/outside", "ATTACK_PORT=9", "ATTACK_SOCKET=none",
                    "ATTACK_DESCRIPTOR=100", format!("ATTACK_PID={}", self.victim.id()),
                ],
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities, "inheritable": capabilities},
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666"]},
                bind(Path::new("/usr"), "/usr", "ro"), bind(Path::new("/etc"), "/etc", "ro"),
                bind(&self.folder.path().join("attack"), "/attack", "rw"),
            ],
            "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": [{"allow": true, "access": "rwm"}]}},
        });
        if let Some(profile) = profile {
            config["linux"]["seccomp"] = profile.clone();
        }
        config
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

/// The kernel's names, in the order of their bits.
const CAPABILITIES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE \
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE \
    SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND \
    AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// All capabilities that this machine gives to its administrator.
fn capabilities() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").expect("our status");
    let ours = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("our capabilities");
    let ours = u64::from_str_radix(ours.trim(), 16).expect("a number");
    let names = CAPABILITIES.split_whitespace().enumerate();
    names.filter(|(bit, _)| ours >> bit & 1 == 1).map(|(_, name)| format!("CAP_{name}")).collect()
}

/// The attacks were built with the operator.
fn program() -> PathBuf {
    let operator = PathBuf::from(std::env::var("SPILLWAY_BINARY").expect("SPILLWAY_BINARY names the operator"));
    operator.with_file_name("spillway-attacks")
}

fn attacks() -> Vec<String> {
    let list = Command::new(program()).arg("--list").output().expect("a list");
    String::from_utf8_lossy(&list.stdout).lines().filter_map(|line| Some(line.split('\t').next()?.to_owned())).collect()
}

/// The page says which attacks only the other parts of the sandbox stop. `SPILLWAY_WRITE=1` writes that.
fn check_page(left: &BTreeSet<String>) {
    const BEGIN: &str = "The profile alone does not stop: ";
    let names: Vec<String> = left.iter().map(|name| format!("`{name}`")).collect();
    let line = format!("{BEGIN}{}.", names.join(", "));
    let page = fs::read_to_string(PAGE).expect("the page");
    let stated = page.lines().find(|line| line.starts_with(BEGIN)).expect("the page has the line").to_owned();
    if std::env::var_os("SPILLWAY_WRITE").is_some() {
        fs::write(PAGE, page.replace(&stated, &line)).expect("written");
        return;
    }
    assert_eq!(stated, line, "{PAGE} is stale: run this test with SPILLWAY_WRITE=1");
}

#[test]
fn the_profile_alone_stops_every_attack_by_a_system_call() {
    let profile: Value = serde_json::from_str(&fs::read_to_string(PROFILE).expect("the profile")).expect("JSON");
    let (mut works, mut left) = (0, BTreeSet::new());
    for attack in attacks() {
        // Each container has its own scene, because attacks remove files and stop processes.
        let without = Scene::new().run(&attack, None);
        let within = Scene::new().run(&attack, Some(&profile));
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
        println!("{attack}\t{} {}\t{} {}", without.status, text(&without), within.status, text(&within));
        let began = |output: &Output| !text(output).is_empty() || output.status.code() == Some(159);
        assert!(began(&without) && began(&within), "{attack} did not run: {without:?} {within:?}");
        works += usize::from(without.status.success());
        if within.status.success() {
            left.insert(attack);
        }
    }
    assert!(works > 50, "only {works} attacks work in the container without the profile");
    check_page(&left);
}
