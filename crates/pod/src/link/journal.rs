//! The journal: state that must survive a restart of the sidecar, in a memory-backed folder that no other container mounts.
//!
//! It has a goodbye that no gateway has accepted, the item in hand and its end, the program's current action, the supervisor's
//! key, the settings, the breaker of commands, and the time of the last answer. Each is a file that is written under another name
//! and renamed. A file that cannot be read counts as absent: the sidecar then asks again, which every call allows.
//!
//! A value that cannot be written is remembered here, and written as soon as possible. Meanwhile no caller gets the answer that
//! it is kept.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use spillway_wire::agent::{Goodbye, Settings};

use super::commands;
use super::kept_state::{KeptState, KeptWork};
use crate::clock::BootTime;
use crate::files::{self, Steps, System};
use crate::link_says;

const GOODBYE_FILE: &str = "goodbye.json";
const ACTION_FILE: &str = "action.json";
const WORK_FILE: &str = "work.json";
const SETTINGS_FILE: &str = "settings.json";
const COMMANDS_FILE: &str = "commands.json";
const KEY_FILE: &str = "key";
const STARTED_FILE: &str = "started";
const LAST_HEARD_FILE: &str = "heard";
/// The most bytes that are read of a file. Our files are smaller.
const MAX_JOURNAL_FILE_BYTES: usize = crate::MAX_ORDER_BYTES;

/// The journal, in its folder.
#[derive(Debug)]
pub struct Journal<S: Steps = System> {
    folder: PathBuf,
    steps: S,
    /// Values that could not be written, by the name of the file; `None`: the file must be removed.
    pending_writes: Mutex<BTreeMap<&'static str, Option<Vec<u8>>>>,
}

impl Journal {
    /// The journal in `folder`, which exists.
    pub fn new(folder: PathBuf) -> Self {
        Self::by(System, folder)
    }
}

impl<S: Steps> Journal<S> {
    /// The journal in `folder`, which exists, with these file operations.
    pub fn by(steps: S, folder: PathBuf) -> Self {
        Self { folder, steps, pending_writes: Mutex::default() }
    }

    fn pending_writes(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<Vec<u8>>>> {
        self.pending_writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all values are written.
    pub fn is_fully_written(&self) -> bool {
        self.pending_writes().is_empty()
    }

    /// Tries again to write the values that could not be written; returns whether all are written now.
    pub fn catch_up(&self) -> bool {
        let mut late = self.pending_writes();
        if !late.is_empty() {
            late.retain(|name, bytes| self.put(name, bytes.as_deref()).is_err());
            if late.is_empty() {
                link_says!("the journal can be written again");
            }
        }
        late.is_empty()
    }

    /// The state that an earlier process kept.
    pub fn remembered(&self) -> KeptState {
        let heard = self.bytes(LAST_HEARD_FILE).and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
        KeptState {
            settings: self.json::<Settings>(SETTINGS_FILE),
            last_answer: heard.map(BootTime::from_millis),
            let_start: self.bytes(STARTED_FILE).is_some(),
            action: self.json::<String>(ACTION_FILE),
            work: self.json::<KeptWork>(WORK_FILE).unwrap_or_default(),
        }
    }

    /// The goodbye that no gateway has accepted.
    pub fn goodbye(&self) -> Option<Goodbye> {
        self.json(GOODBYE_FILE)
    }

    /// The key that the supervisor has.
    pub fn key(&self) -> Option<String> {
        self.bytes(KEY_FILE).and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// The breaker of commands.
    pub fn commands(&self) -> Option<commands::KeptBreaker> {
        self.json(COMMANDS_FILE)
    }

    /// Keeps the breaker of commands.
    pub fn keep_commands(&self, kept: &commands::KeptBreaker) {
        self.log_failure(COMMANDS_FILE, self.write_json(COMMANDS_FILE, kept));
    }

    /// Keeps a goodbye.
    pub fn keep_goodbye(&self, goodbye: &Goodbye) -> io::Result<()> {
        self.write_json(GOODBYE_FILE, goodbye)
    }

    /// Forgets the goodbye, because a gateway has accepted or refused it.
    pub fn forget_goodbye(&self) {
        self.log_failure(GOODBYE_FILE, self.keep(GOODBYE_FILE, None));
    }

    /// Keeps the program's current action.
    pub fn keep_action(&self, action: &str) -> io::Result<()> {
        self.write_json(ACTION_FILE, &action)
    }

    /// Forgets the program's action, because its item has ended.
    pub fn forget_action(&self) {
        self.log_failure(ACTION_FILE, self.keep(ACTION_FILE, None));
    }

    /// Keeps the item in hand, and the end of the item before.
    pub fn keep_work(&self, work: &KeptWork) {
        self.log_failure(WORK_FILE, self.write_json(WORK_FILE, work));
    }

    /// Keeps the supervisor's key.
    pub fn keep_key(&self, key: &str) -> io::Result<()> {
        self.write(KEY_FILE, key.as_bytes())
    }

    /// Keeps the settings.
    pub fn keep_settings(&self, settings: &Settings) {
        self.log_failure(SETTINGS_FILE, self.write_json(SETTINGS_FILE, settings));
    }

    /// Keeps that the program may start.
    pub fn keep_start(&self) {
        self.log_failure(STARTED_FILE, self.write(STARTED_FILE, b""));
    }

    /// Keeps the time of the last answer.
    pub fn keep_heard(&self, heard: BootTime) {
        self.log_failure(LAST_HEARD_FILE, self.write(LAST_HEARD_FILE, heard.millis().to_string().as_bytes()));
    }

    fn write_json(&self, name: &'static str, value: &impl Serialize) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(value)?)
    }

    fn write(&self, name: &'static str, bytes: &[u8]) -> io::Result<()> {
        self.keep(name, Some(bytes))
    }

    fn keep(&self, name: &'static str, bytes: Option<&[u8]>) -> io::Result<()> {
        let done = self.put(name, bytes);
        match &done {
            Ok(()) => self.pending_writes().remove(name),
            Err(_) => self.pending_writes().insert(name, bytes.map(<[u8]>::to_vec)),
        };
        done
    }

    fn put(&self, name: &str, bytes: Option<&[u8]>) -> io::Result<()> {
        let path = self.folder.join(name);
        match bytes {
            Some(bytes) => files::write_by(&self.steps, &path, bytes, 0o600),
            None => files::remove_by(&self.steps, &path),
        }
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let read = serde_json::from_slice(&self.bytes(name)?);
        read.inspect_err(|error| link_says!("{} in the journal is ignored: {error}", name)).ok()
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let path: &Path = &self.folder.join(name);
        files::read(path, MAX_JOURNAL_FILE_BYTES)
            .inspect_err(|error| link_says!("{} in the journal cannot be read: {error}", name))
            .ok()
            .flatten()
    }

    /// Logs a failure to write. The sidecar continues: the value is lost only if it restarts before it [catches up](Self::catch_up).
    fn log_failure(&self, name: &str, written: io::Result<()>) {
        if let Err(error) = written {
            link_says!("{name} cannot be written to the journal: {error}");
        }
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
