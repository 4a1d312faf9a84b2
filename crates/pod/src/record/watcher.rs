//! Hearing of the system calls of processes: their names, and the files that they name. What is refused is decided by
//! [`super::recording`], from the sandbox's own policy.
//!
//! Each call waits until it is answered. If the watcher ends, further calls fail.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use spillway_sandbox::filter::Architecture;
use spillway_sandbox::grants::Access;
use spillway_sandbox::watch::{PendingListener, SystemCall};

use super::files::{Exists, FileUsage, NamedFile, PathBase, named};
use super::recording::Recording;

/// The longest path that the kernel takes.
const MAX_PATH_BYTES: usize = 4096;

/// What the processes do after the watcher has heard of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// They make the call.
    GoOn,
    /// The call fails with EPERM.
    Refuse,
}

/// Hears of calls until the last watched process has ended. Without a listener there is nothing to hear.
pub fn hear(pending: PendingListener, recording: &Mutex<Recording>, answer: Answer) -> io::Result<()> {
    let Some(listener) = pending.listener()? else { return Ok(()) };
    while let Some(call) = listener.next()? {
        note(&call, recording, answer);
        match answer {
            Answer::GoOn => listener.go_on(&call)?,
            Answer::Refuse => listener.refuse(&call)?,
        }
    }
    Ok(())
}

fn note(call: &SystemCall, recording: &Mutex<Recording>, answer: Answer) {
    let recording = || recording.lock().unwrap_or_else(PoisonError::into_inner);
    let name = if call.native { Architecture::OWN.name(call.number) } else { return recording().foreign_call() };
    let Some(name) = name else { return recording().unknown_call(call.number) };
    recording().call(name, &call.arguments);
    if answer == Answer::Refuse {
        return;
    }
    for named in named(name, &call.arguments) {
        // The process may have ended, or named nothing that exists: then its call fails anyway.
        if let Some((path, access)) = resolve(call.thread, &named) {
            recording().file(path, access);
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
