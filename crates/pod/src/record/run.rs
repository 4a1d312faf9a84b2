//! Running a command and watching it.
//!
//! What always holds: nothing is refused to the command, and its exit code is ours. All that it started ends with it. If we are killed, the
//! kernel ends the command itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io, thread};

use rustix::process::Signal;
use spillway_sandbox::container::Observation;
use spillway_sandbox::filter::WatchedCalls;
use spillway_sandbox::grants::{Container, grants};
use spillway_sandbox::policy::Network;
use spillway_sandbox::profile::narrow_profile;
use spillway_sandbox::watch::watch;
use tokio::signal::unix::{SignalKind, signal};

use super::recording::Recording;
use super::watcher::{Answer, hear};
use crate::process::not_started_code;
use crate::process::tree::{Exit, Reaped, Tree};
use crate::{BIN_DIR, DATA_DIR, FILES_DIR, MIRROR_DIR, SOCKET_DIR};

/// The folders that a program may read in a pod, besides its image.
const READABLE: [&str; 3] = [BIN_DIR, SOCKET_DIR, FILES_DIR];

/// What to watch, and what to write.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Arguments {
    /// Watch only system calls that the sandbox refuses. This is nearly as fast as without watching, and no files are watched
    #[arg(long, requires = "record", conflicts_with = "profile")]
    refused_only: bool,
    /// Write a seccomp profile with only the system calls that the command made, as container runtimes read it
    #[arg(long, value_name = "FILE", requires = "record")]
    profile: Option<PathBuf>,
}

/// Runs the command, and prints the report to standard error. Returns the exit code of the command.
pub fn run(arguments: Arguments, command: &[OsString]) -> io::Result<u8> {
    let Arguments { refused_only, profile } = arguments;
    let grants = grants(&Container::read()?, &READABLE.map(PathBuf::from), &writable());
    let recording = Recording::new(Observation { network: Some(Network::Pod), grants: Some(grants) });
    let recording = Arc::new(Mutex::new(recording));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watched = if refused_only { WatchedCalls::Refused(Network::Pod, &[]) } else { WatchedCalls::All };
    let code = match runtime.block_on(observe(command, watched, recording.clone()))? {
        Ok(code) => code,
        Err(code) => return Ok(code),
    };
    let recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
    eprint!("{}", recording.report(watched));
    if let Some(file) = profile {
        let text = serde_json::to_string_pretty(&narrow_profile(recording.used())).map_err(io::Error::other)?;
        fs::write(&file, text + "\n").map_err(|error| io::Error::other(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(code)
}

/// The folders that a program may write to, as in a pod.
fn writable() -> Vec<PathBuf> {
    let temporary = std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let all =
        [Some(temporary), home, std::env::current_dir().ok(), Some("/dev/shm".into()), Some(DATA_DIR.into()), Some(MIRROR_DIR.into())];
    // The paths of calls are compared without links.
    all.into_iter().flatten().map(|path| fs::canonicalize(&path).unwrap_or(path)).collect()
}

/// The exit code of the command. `Err`: the exit code for a command that cannot be started, which it says.
async fn observe(command: &[OsString], watched: WatchedCalls, recording: Arc<Mutex<Recording>>) -> io::Result<Result<u8, u8>> {
    let [program, arguments @ ..] = command else { return Err(io::Error::other("there is no command")) };
    // Before the command starts, so that no SIGCHLD is missed.
    let mut children = signal(SignalKind::child())?;
    let (mut interrupt, mut quit) = (signal(SignalKind::interrupt())?, signal(SignalKind::quit())?);
    let (mut hangup, mut terminate) = (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?);
    let tree = Tree::new()?;
    let mut prepared = Command::new(program);
    prepared.args(arguments);
    let pending = watch(&mut prepared, watched)?;
    let watcher = thread::spawn(move || hear(pending, &recording, Answer::GoOn));
    let started = prepared.spawn();
    // The child's end of the socket, without which the watcher would wait for a command that did not start.
    drop(prepared);
    let main = match started {
        Ok(child) => i32::try_from(child.id()).unwrap_or(0),
        Err(error) => {
            eprintln!("error: cannot execute {}: {error}", program.display());
            return Ok(Err(not_started_code(&error)));
        }
    };
    let code = loop {
        match tree.reap() {
            Reaped::Ended(pid, exit) if pid == main => break exit_code(exit),
            Reaped::Ended(..) => {}
            Reaped::Empty => return Err(io::Error::other("the command cannot be waited for")),
            Reaped::Nothing => tokio::select! {
                _ = children.recv() => {}
                // A terminal sends its signals to the command too.
                _ = interrupt.recv() => {}
                _ = quit.recv() => {}
                _ = hangup.recv() => tree.signal_all(Signal::HUP),
                _ = terminate.recv() => tree.signal_all(Signal::TERM),
            },
        }
    };
    if !tree.end().await {
        return Err(io::Error::other("processes of the command cannot be killed, so there is no report"));
    }
    watcher.join().unwrap_or_else(|_| Err(io::Error::other("the watcher failed (this is a fault of Spillway)")))?;
    Ok(Ok(code))
}

fn exit_code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}
