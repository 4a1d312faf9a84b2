//! Each attack works without a sandbox, and is refused in one. The attacks are a program of their own, so that they can also be run in
//! containers.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use spillway_sandbox::Sandbox;
use spillway_sandbox::grants::{Access, Container, Grant, grants};
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_wire::sandbox::{Requirement, SandboxSettings};

mod common;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spillway-attacks");

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
        let settings = SandboxSettings { landlock: required, syscalls: required, sidecar_ports_only: true, ..SandboxSettings::default() };
        let plan = plan(&settings, &Kernel::probe()).expect("this kernel can all");
        assert_eq!(plan.missing(&settings), [""; 0]);
        let program = PathBuf::from(PROGRAM).parent().expect("a folder").to_owned();
        let granted = grants(&Container::read().expect("a container"), &[program], &[self.inside()]);
        // The test's own folder may be below a folder of the image.
        let above = |grant: &Grant| grant.access != Access::List && self.outside().starts_with(&grant.path);
        let granted: Vec<_> = granted.into_iter().filter(|grant| !above(grant)).collect();
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

/// The attacks: a name, where it works without a sandbox, and what it would do.
fn attacks() -> Vec<[String; 3]> {
    let list = Command::new(PROGRAM).arg("--list").output().expect("a list");
    let parse = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().expect("three columns");
    String::from_utf8_lossy(&list.stdout).lines().map(parse).collect()
}

/// How the sandbox refused an attack, or `None` if it did not.
fn refusal(name: &str, output: &Output) -> Option<&'static str> {
    let text = say(output);
    let known = [
        ("os error 1)", "EPERM"),
        ("os error 9)", "EBADF"),
        ("os error 13)", "EACCES"),
        ("os error 16)", "EBUSY"),
        ("os error 18)", "EXDEV"),
        ("os error 38)", "ENOSYS"),
    ];
    let found = known.into_iter().find(|(ending, _)| text.ends_with(ending)).map(|(_, name)| name);
    match output.status.code() {
        Some(1) => found,
        // A call of 32-bit programs ends the process.
        _ => (name == "old-calls" && output.status.signal() == Some(libc::SIGSYS)).then_some("SIGSYS"),
    }
}

/// `SPILLWAY_WRITE=1` writes the table of the documentation.
#[test]
fn every_attack_works_without_a_sandbox_and_is_refused_in_one() {
    let attacks = attacks();
    assert!(attacks.len() > 70, "{attacks:?}");
    let is_root = rustix::process::geteuid().is_root();
    let (mut wrong, mut rows) = (Vec::new(), String::new());
    for [name, works_in, does] in &attacks {
        let user = (is_root && BY_A_USER.contains(&name.as_str())).then_some(USER);
        let free = Scene::new(user);
        let without = free.command(name).output().expect("it runs");
        let bound = Scene::new(user);
        let command = bound.command(name);
        let within = common::output(&bound.sandbox(), command);
        // Many attacks need an administrator to work at all.
        if is_root && without.status.success() != (works_in != "Nothing") {
            wrong.push(format!("{name}: without a sandbox it was {}", say(&without)));
        }
        let refused = refusal(name, &within);
        if refused.is_none() {
            wrong.push(format!("{name}: in the sandbox it {}", say(&within)));
        }
        let pod = if works_in == "Pod" { "works" } else { "refused" };
        rows.push_str(&format!("| `{name}` | {does} | {pod} | {} |\n", refused.unwrap_or_default()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    check_table(&rows);
}

/// Compares the rows with the table of the documentation, which begins and ends with these lines.
fn check_table(rows: &str) {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/attacks.md");
    let page = fs::read_to_string(PAGE).expect("the page");
    let (before, rest) = page.split_once("|---|---|---|---|\n").expect("a table");
    let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
    let end = if after.is_empty() { String::new() } else { format!("\n{after}") };
    let expected = format!("{before}|---|---|---|---|\n{rows}{end}");
    if std::env::var_os("SPILLWAY_WRITE").is_some() {
        fs::write(PAGE, &expected).expect("written");
    }
    let page = fs::read_to_string(PAGE).expect("the page");
    assert!(page == expected, "{PAGE} is stale: SPILLWAY_WRITE=1 cargo test --package spillway-sandbox --test attacks");
}
