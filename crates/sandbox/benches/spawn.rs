//! What the sandbox costs: the time to start `/bin/true` and to wait for its end, bare and with each part. Prints numbers:
//! `cargo bench -p spillway-sandbox --bench spawn`.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use spillway_sandbox::Sandbox;
use spillway_sandbox::container::prepare;
use spillway_sandbox::filter::WatchedCalls;
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::policy::Network;
use spillway_sandbox::watch::{PendingListener, watch};
use spillway_wire::sandbox::{Requirement, SandboxSettings};

/// Starts of each kind, in turns, so that a change of the machine's load meets all kinds.
const ROUNDS: usize = 3000;

fn sandbox(landlock: Requirement, syscalls: Requirement) -> Sandbox {
    let settings = SandboxSettings { landlock, syscalls, ..SandboxSettings::default() };
    let writable: Vec<PathBuf> = ["/tmp", "/dev/shm"].map(PathBuf::from).to_vec();
    prepare(&settings, &Kernel::probe(), &[], &writable, &[]).expect("this kernel can all")
}

fn start(sandbox: Option<&Sandbox>) -> Duration {
    let mut command = Command::new("/bin/true");
    if let Some(sandbox) = sandbox {
        sandbox.confine(&mut command);
    }
    let began = Instant::now();
    assert!(command.status().expect("it starts").success());
    began.elapsed()
}

/// As the supervisor starts a program: a thread refuses what the filter refuses.
fn start_reported(sandbox: &Sandbox) -> Duration {
    let mut command = Command::new("/bin/true");
    let began = Instant::now();
    let pending = sandbox.confine_and_report(&mut command).expect("it can be reported");
    let watcher = thread::spawn(move || refuse(pending));
    let mut child = command.spawn().expect("it starts");
    drop(command);
    assert!(child.wait().expect("it ends").success());
    let took = began.elapsed();
    watcher.join().expect("it ends");
    took
}

fn refuse(pending: PendingListener) {
    let listener = pending.listener().expect("no error").expect("a listener");
    while let Some(call) = listener.next().expect("a call") {
        listener.refuse(&call).expect("refused");
    }
}

/// Commands that one shell starts, as the programs of agents do: the sandbox is inherited, and not installed again.
const COMMANDS: usize = 1000;

fn shell(sandbox: Option<&Sandbox>) -> Duration {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("i=0; while [ $i -lt {COMMANDS} ]; do /bin/true; i=$((i+1)); done")]);
    if let Some(sandbox) = sandbox {
        sandbox.confine(&mut command);
    }
    let began = Instant::now();
    assert!(command.status().expect("it starts").success());
    began.elapsed()
}

/// The same while a watcher hears of calls.
fn watched_shell(watched: WatchedCalls) -> Duration {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("i=0; while [ $i -lt {COMMANDS} ]; do /bin/true; i=$((i+1)); done")]);
    let awaited = watch(&mut command, watched).expect("it can be watched");
    let watcher = thread::spawn(move || {
        let listener = awaited.listener().expect("no error").expect("a listener");
        while let Some(call) = listener.next().expect("a call") {
            listener.go_on(&call).expect("it goes on");
        }
    });
    let began = Instant::now();
    assert!(command.status().expect("it starts").success());
    let took = began.elapsed();
    watcher.join().expect("it ends");
    took
}

fn main() {
    let (on, off) = (Requirement::Required, Requirement::Disabled);
    let began = Instant::now();
    let both = sandbox(on, on);
    println!("preparing the sandbox of a container: {:.2} ms", began.elapsed().as_secs_f64() * 1000.0);
    let kinds = [
        ("bare", None),
        // Only what `confine` itself does: fork instead of posix_spawn, and closing descriptors.
        ("without Landlock and seccomp", Some(sandbox(off, off))),
        ("Landlock", Some(sandbox(on, off))),
        ("AgentStrict", Some(sandbox(off, on))),
        ("both", Some(both)),
    ];
    let mut times: Vec<Vec<Duration>> = kinds.iter().map(|_| Vec::with_capacity(ROUNDS)).collect();
    let mut reported = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        reported.extend(kinds.last().and_then(|(_, both)| both.as_ref()).map(start_reported));
        for ((_, sandbox), times) in kinds.iter().zip(&mut times) {
            times.push(start(sandbox.as_ref()));
        }
    }
    times.push(reported);
    times.iter_mut().for_each(|times| times.sort());
    let at = |times: &[Duration], share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000_000.0;
    let bare = at(&times[0], 0.5);
    println!("{:<30} {:>10} {:>10} {:>8}", "start and end of /bin/true", "p50 us", "p99 us", "x bare");
    for (name, times) in kinds.iter().map(|(name, _)| *name).chain(["both, refused calls counted"]).zip(&times) {
        println!("{name:<30} {:>10.0} {:>10.0} {:>8.2}", at(times, 0.5), at(times, 0.99), at(times, 0.5) / bare);
    }
    println!("{:<30} {:>10} {:>8}", "a command of a shell", "us", "x bare");
    let mut bare = None;
    for (name, sandbox) in &kinds {
        let mut all: Vec<Duration> = (0..5).map(|_| shell(sandbox.as_ref())).collect();
        all.sort();
        let each = all[all.len() / 2].as_secs_f64() * 1_000_000.0 / COMMANDS as f64;
        println!("{name:<30} {each:>10.0} {:>8.2}", each / *bare.get_or_insert(each));
    }
    for (name, watched) in [("recorded", WatchedCalls::All), ("recorded, refused calls only", WatchedCalls::Refused(Network::Pod, &[]))] {
        let mut all: Vec<Duration> = (0..5).map(|_| watched_shell(watched)).collect();
        all.sort();
        let each = all[all.len() / 2].as_secs_f64() * 1_000_000.0 / COMMANDS as f64;
        println!("{name:<30} {each:>10.0} {:>8.2}", each / bare.unwrap_or(each));
    }
}
