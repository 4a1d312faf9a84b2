//! Each attack works without a sandbox, and is refused in one. The attacks are a program of their own, so that they can also be run in
//! containers.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use spillway_sandbox::Sandbox;
use spillway_sandbox::grants::{grants, read_image};
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_wire::sandbox::{Requirement, SandboxSettings};

const PROGRAM: &str = env!("CARGO_BIN_EXE_spillway-attacks");

/// Attacks that this kernel answers alike with and without a sandbox, so that only the sandbox's answer can be tested.
const WITHOUT_CONTROL: [&str; 2] = ["x32-calls", "future-calls"];

/// Attacks on what the kernel never hides from an administrator of the node: they are made by another user.
const BY_A_USER: [&str; 1] = ["read-environment"];
const USER: u32 = 65_534;

/// What the attacks are aimed at.
struct Scene {
    folder: tempfile::TempDir,
    victim: Child,
    port: TcpListener,
    socket: (String, UnixListener),
    descriptor: OwnedFd,
    /// The user of attacker and victim, if it is not ours.
    user: Option<u32>,
}

impl Scene {
    fn new(user: Option<u32>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["inside", "outside"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        for name in ["secret", "long", "remove"] {
            fs::write(folder.path().join("outside").join(name), "secret").expect("a file");
        }
        let mut victim = Command::new("sleep");
        victim.arg("1000").stdin(Stdio::null());
        user.map(|user| victim.uid(user));
        let victim = victim.spawn().expect("a victim");
        let name = format!("spillway-victim-{}", victim.id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let descriptor = fs::File::open(folder.path().join("outside/secret")).expect("a file");
        // Unlike a clone of the standard library, it stays open at exec.
        let descriptor = rustix::io::dup(&descriptor).expect("a descriptor");
        Self {
            folder,
            victim,
            port: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"),
            socket: (name, UnixListener::bind_addr(&address).expect("a socket")),
            descriptor,
            user,
        }
    }

    fn command(&self, attack: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg(attack)
            .env("ATTACK_OUTSIDE", self.outside())
            .env("ATTACK_INSIDE", self.inside())
            .env("ATTACK_PID", self.victim.id().to_string())
            .env("ATTACK_DESCRIPTOR", self.descriptor.as_raw_fd().to_string())
            .env("ATTACK_PORT", self.port.local_addr().expect("an address").port().to_string())
            .env("ATTACK_SOCKET", &self.socket.0);
        self.user.map(|user| command.uid(user));
        command
    }

    fn inside(&self) -> PathBuf {
        self.folder.path().join("inside")
    }

    fn outside(&self) -> PathBuf {
        self.folder.path().join("outside")
    }

    fn sandbox(&self) -> Sandbox {
        let required = Requirement::Required;
        let settings = SandboxSettings { landlock: required, syscalls: required, sidecar_ports_only: true, readable: Vec::new() };
        let plan = plan(&settings, &Kernel::probe()).expect("this kernel can all");
        assert_eq!(plan.missing(&settings), [""; 0]);
        let program = PathBuf::from(PROGRAM).parent().expect("a folder").to_owned();
        let granted = grants(&read_image().expect("an image"), &[program], &[self.inside()]);
        // The test's own folder may be below a folder of the image.
        let granted: Vec<_> = granted.into_iter().filter(|grant| !self.outside().starts_with(&grant.path)).collect();
        Sandbox::prepare(&plan, &granted, &[4101]).expect("a sandbox")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

fn say(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if text.is_empty() { format!("{}", output.status) } else { text }
}

fn names() -> Vec<String> {
    let list = Command::new(PROGRAM).arg("--list").output().expect("a list");
    String::from_utf8_lossy(&list.stdout).lines().filter_map(|line| Some(line.split('\t').next()?.to_owned())).collect()
}

#[test]
fn every_attack_works_without_a_sandbox_and_is_refused_in_one() {
    let names = names();
    assert!(names.len() > 70, "{names:?}");
    let is_root = rustix::process::geteuid().is_root();
    let mut wrong = Vec::new();
    for name in &names {
        let user = (is_root && BY_A_USER.contains(&name.as_str())).then_some(USER);
        let free = Scene::new(user);
        let without = free.command(name).output().expect("it runs");
        let bound = Scene::new(user);
        let mut command = bound.command(name);
        bound.sandbox().confine(&mut command);
        let within = command.output().expect("it runs");
        // Many attacks need an administrator to work at all.
        if is_root && !without.status.success() && !WITHOUT_CONTROL.contains(&name.as_str()) {
            wrong.push(format!("{name}: without a sandbox it was {}", say(&without)));
        }
        // A call of 32-bit programs ends the process.
        let refused = within.status.code() == Some(1) || (name == "old-calls" && within.status.signal() == Some(libc::SIGSYS));
        if !refused {
            wrong.push(format!("{name}: in the sandbox it {}", say(&within)));
        }
        let _ = writeln!(std::io::stdout(), "{name}\t{}\t{}", say(&without), say(&within));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
