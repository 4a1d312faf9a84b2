//! Running a command and watching it. What would be refused is decided by [`super::recording`], from the sandbox's own policy.
//!
//! What always holds: nothing is refused to the command, and its exit code is ours. All that it started ends with it. If we are killed, the
//! kernel ends the command itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use spillway_sandbox::filter::{Architecture, WatchedCalls};
use spillway_sandbox::grants::{Access, Container, grants};
use spillway_sandbox::profile::narrow_profile;
use spillway_sandbox::watch::{PendingListener, SystemCall, watch};
use tokio::signal::unix::{SignalKind, signal};

use super::files::{Exists, FileUsage, NamedFile, PathBase, named};
use super::recording::Recording;
use crate::process::not_started_code;
use crate::process::tree::{Exit, Reaped, Tree};
use crate::{BIN_DIR, DATA_DIR, FILES_DIR, MIRROR_DIR, SOCKET_DIR};

/// The longest path that the kernel takes.
const MAX_PATH_BYTES: usize = 4096;
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
    let recording = Recording::new(grants(&Container::read()?, &READABLE.map(PathBuf::from), &writable()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (code, recording) = match runtime.block_on(observe(command, refused_only, recording))? {
        Ok(seen) => seen,
        Err(code) => return Ok(code),
    };
    eprint!("{}", recording.report(!refused_only));
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

/// What was seen, and the exit code of the command. `Err`: the exit code for a command that cannot be started, which it says.
async fn observe(command: &[OsString], refused_only: bool, recording: Recording) -> io::Result<Result<(u8, Recording), u8>> {
    let [program, arguments @ ..] = command else { return Err(io::Error::other("there is no command")) };
    // Before the command starts, so that no SIGCHLD is missed.
    let mut children = signal(SignalKind::child())?;
    let (mut interrupt, mut quit) = (signal(SignalKind::interrupt())?, signal(SignalKind::quit())?);
    let (mut hangup, mut terminate) = (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?);
    let tree = Tree::new()?;
    let mut prepared = Command::new(program);
    prepared.args(arguments);
    let awaited = watch(&mut prepared, if refused_only { WatchedCalls::Refused } else { WatchedCalls::All })?;
    let watcher = thread::spawn(move || hear(awaited, recording));
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
    Ok(Ok((code, joined(watcher)?)))
}

fn exit_code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}

fn joined(watcher: thread::JoinHandle<io::Result<Recording>>) -> io::Result<Recording> {
    watcher.join().unwrap_or_else(|_| Err(io::Error::other("the watcher failed (this is a fault of Spillway)")))
}

/// Hears of all calls until the last watched process has ended.
fn hear(awaited: PendingListener, mut recording: Recording) -> io::Result<Recording> {
    let listener = awaited.listener()?;
    while let Some(call) = listener.next()? {
        note(&call, &mut recording);
        listener.go_on(&call)?;
    }
    Ok(recording)
}

fn note(call: &SystemCall, recording: &mut Recording) {
    let name = if call.native { Architecture::OWN.name(call.number) } else { return recording.foreign_call() };
    let Some(name) = name else { return recording.unknown_call(call.number) };
    recording.call(name, &call.arguments);
    for named in named(name, &call.arguments) {
        // The process may have ended, or named nothing that exists: then its call fails anyway.
        if let Some((path, access)) = resolve(call.thread, &named) {
            recording.file(path, access);
        }
    }
}

/// The file of a call, without links, and how it is used. `None`: the call fails, whatever the sandbox says.
fn resolve(thread: u32, named: &NamedFile) -> Option<(PathBuf, Access)> {
    let path = read_path(thread, named.path)?;
    if path.as_os_str().is_empty() {
        return None;
    }
    let start = match named.base {
        PathBase::WorkingDirectory => format!("/proc/{thread}/cwd"),
        PathBase::Descriptor(descriptor) => format!("/proc/{thread}/fd/{descriptor}"),
    };
    let whole = if path.is_absolute() { path } else { fs::read_link(start).ok()?.join(path) };
    let folder = || fs::canonicalize(whole.parent()?).ok();
    let (found, access) = match named.usage {
        FileUsage::File(access) => (fs::canonicalize(&whole).ok()?, access),
        FileUsage::Create => (fs::canonicalize(&whole).ok().or_else(folder)?, Access::Write),
        FileUsage::Entry(exists) => {
            let known = fs::symlink_metadata(&whole).is_ok();
            if (exists == Exists::Yes && !known) || (exists == Exists::No && known) {
                return None;
            }
            (folder()?, Access::Write)
        }
    };
    let access = if access == Access::Read && found.is_dir() { Access::List } else { access };
    Some((without_number(&found), access))
}

/// The folders of processes in /proc have numbers, which mean nothing in a report, and `self` is ours here.
fn without_number(path: &Path) -> PathBuf {
    let mut parts = path.components();
    let is_process =
        path.starts_with("/proc") && parts.nth(2).is_some_and(|part| part.as_os_str().to_string_lossy().parse::<u32>().is_ok());
    if is_process { Path::new("/proc/PID").join(parts.as_path()) } else { path.to_owned() }
}

/// The path at an address of a process.
fn read_path(thread: u32, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut bytes = vec![0; MAX_PATH_BYTES];
    // The memory behind the path may not exist: the first read goes to the end of its page.
    let page = MAX_PATH_BYTES - usize::try_from(address % MAX_PATH_BYTES as u64).ok()?;
    let mut length = memory.read_at(bytes.get_mut(..page)?, address).ok()?;
    if length == page && !bytes.iter().take(length).any(|byte| *byte == 0) {
        length += memory.read_at(bytes.get_mut(page..)?, address + page as u64).unwrap_or(0);
    }
    let end = bytes.iter().take(length).position(|byte| *byte == 0)?;
    bytes.truncate(end);
    Some(OsString::from_vec(bytes).into())
}
