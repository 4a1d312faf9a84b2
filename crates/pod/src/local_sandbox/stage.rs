//! The first process in the sandbox, which has the number 1 there. It puts the sandbox of pods around the command, starts it, passes
//! the launcher's signals on, reaps processes, and forwards the port of the bridge. It has no filter of system calls itself, so no
//! other process may trace it. When it ends, the kernel ends all processes of the sandbox.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, kill_process, set_dumpable_behavior, wait};
use spillway_sandbox::Sandbox;
use spillway_sandbox::grants::{Access, Grant};
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_sandbox::signals::END_SIGNALS;
use spillway_wire::sandbox::{Requirement, SandboxSettings};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use super::LAUNCH_FAILED;
use super::bridge::forward_port;
use super::bubblewrap::{BRIDGE_SOCKET, CONTROL_SOCKET, STAGE_FOLDER};
use crate::process::{exit_code, not_started_code};

/// Folders of devices, which are the sandbox's own.
const DEVICE_FOLDER: &str = "/dev";

/// The first process in the sandbox.
#[derive(Debug, clap::Args)]
pub struct StageArguments {
    /// Port that leads to the bridge
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Folder that the command may write to (repeatable)
    #[arg(long, value_name = "DIR")]
    write: Vec<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs until the command has ended; returns its exit code.
pub fn run_stage(arguments: StageArguments) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    runtime.block_on(stage(arguments)).unwrap_or_else(|error| failed(&error.to_string()))
}

fn failed(why: &str) -> u8 {
    eprintln!("error: the command is not started: {why}");
    LAUNCH_FAILED
}

async fn stage(arguments: StageArguments) -> io::Result<u8> {
    let StageArguments { port, write, command } = arguments;
    let folder = Path::new(STAGE_FOLDER);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The launcher knows by this connection that the sandbox is made.
    let mut launcher = UnixStream::connect(folder.join(CONTROL_SOCKET)).await?;
    let mut children = signal(SignalKind::child())?;
    // A signal for the whole terminal reaches the command too, which decides. Handlers, unlike ignored signals, end at exec.
    let _handlers = END_SIGNALS.into_iter().map(|number| signal(SignalKind::from_raw(number))).collect::<io::Result<Vec<_>>>()?;
    if let Some(port) = port {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        tokio::spawn(forward_port(listener, folder.join(BRIDGE_SOCKET)));
    }
    let (program, rest) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut prepared = Command::new(program);
    prepared.args(rest);
    sandbox(&write)?.confine(&mut prepared);
    let child = match prepared.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("error: cannot execute {}: {error}", program.to_string_lossy());
            return Ok(not_started_code(&error));
        }
    };
    loop {
        if let Some(code) = reap(child.id())? {
            return Ok(code);
        }
        tokio::select! {
            _ = children.recv() => {}
            number = launcher.read_u8() => match number {
                Ok(number) => send(child.id(), number),
                // The launcher has ended, and the command ends with us.
                Err(_) => return Ok(LAUNCH_FAILED),
            },
        }
    }
}

/// Reaps all processes that have ended, which are the command and processes that lost their parent. Returns the exit code of the
/// command if it is among them.
fn reap(command: u32) -> io::Result<Option<u8>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
        if pid.as_raw_nonzero().get().unsigned_abs() == command {
            return Ok(Some(exit_code(ExitStatus::from_raw(status.as_raw()))));
        }
    }
    Ok(None)
}

/// Sends one of the signals that ask a process to end.
fn send(pid: u32, number: u8) {
    let known = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
    let signal = known.into_iter().find(|signal| signal.as_raw() == i32::from(number));
    if let (Some(signal), Some(pid)) = (signal, i32::try_from(pid).ok().and_then(Pid::from_raw)) {
        let _ = kill_process(pid, signal); // it may have ended
    }
}

/// The sandbox of pods. Landlock is a second limit behind bubblewrap's view of the files, where the kernel has it; the filter of
/// system calls is the only one.
fn sandbox(write: &[PathBuf]) -> io::Result<Sandbox> {
    let settings = SandboxSettings { syscalls: Requirement::Required, ..SandboxSettings::default() };
    let plan =
        plan(&settings, &Kernel::probe()).map_err(|_| io::Error::other("the kernel has no seccomp filters, which the sandbox needs"))?;
    let grant = |access| move |path: &Path| Grant { path: path.to_owned(), access };
    let read = std::iter::once(Path::new("/")).map(grant(Access::Read));
    let write = write.iter().map(PathBuf::as_path).chain([Path::new(DEVICE_FOLDER)]).map(grant(Access::Write));
    Sandbox::prepare(&plan, &read.chain(write).collect::<Vec<_>>(), &[]).map_err(io::Error::other)
}
