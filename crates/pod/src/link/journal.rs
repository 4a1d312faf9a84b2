//! What must survive the sidecar's own restart: in a memory-backed folder that nobody else mounts.
//!
//! A goodbye that no gateway took yet, the item in hand and how it ended, what the program says it does, the supervisor's
//! key, the settings, the breaker of commands, when somebody last answered. Each is a file, written beside and renamed. One that cannot be read counts as absent: the sidecar then asks
//! again, which every call allows.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use spillway_wire::agent::{Goodbye, Settings};

use super::commands;
use super::state::Remembered;
use super::work::Kept;
use crate::clock::BootTime;
use crate::{files, link_says};

const GOODBYE: &str = "goodbye.json";
const ACTION: &str = "action.json";
const WORK: &str = "work.json";
const SETTINGS: &str = "settings.json";
const COMMANDS: &str = "commands.json";
const KEY: &str = "key";
const STARTED: &str = "started";
const HEARD: &str = "heard";
/// Larger than any file of ours.
const MOST: usize = crate::MAX_ORDER;

/// The folder.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// In `folder`, which exists.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// What an earlier process left.
    pub fn remembered(&self) -> Remembered {
        let heard = self.bytes(HEARD).and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
        Remembered {
            settings: self.json::<Settings>(SETTINGS),
            heard: heard.map(BootTime::from_millis),
            let_start: self.bytes(STARTED).is_some(),
            action: self.json::<String>(ACTION),
            work: self.json::<Kept>(WORK).unwrap_or_default(),
        }
    }

    /// A goodbye that no gateway took yet.
    pub fn goodbye(&self) -> Option<Goodbye> {
        self.json(GOODBYE)
    }

    /// The key that the supervisor has.
    pub fn key(&self) -> Option<String> {
        self.bytes(KEY).and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// The breaker of commands.
    pub fn commands(&self) -> Option<commands::Kept> {
        self.json(COMMANDS)
    }

    /// Keeps the breaker of commands.
    pub fn keep_commands(&self, kept: &commands::Kept) {
        self.say(COMMANDS, self.write_json(COMMANDS, kept));
    }

    /// Keeps a goodbye.
    pub fn keep_goodbye(&self, goodbye: &Goodbye) -> io::Result<()> {
        self.write_json(GOODBYE, goodbye)
    }

    /// The goodbye was taken.
    pub fn forget_goodbye(&self) {
        self.say(GOODBYE, files::remove(&self.folder.join(GOODBYE)));
    }

    /// Keeps what the program says it does.
    pub fn keep_action(&self, action: &str) -> io::Result<()> {
        self.write_json(ACTION, &action)
    }

    /// What the program said it does was about an item that ended.
    pub fn forget_action(&self) {
        self.say(ACTION, files::remove(&self.folder.join(ACTION)));
    }

    /// Keeps the item in hand, and what became of the one before.
    pub fn keep_work(&self, work: &Kept) {
        self.say(WORK, self.write_json(WORK, work));
    }

    /// Keeps the supervisor's key.
    pub fn keep_key(&self, key: &str) -> io::Result<()> {
        self.write(KEY, key.as_bytes())
    }

    /// Keeps the settings.
    pub fn keep_settings(&self, settings: &Settings) {
        self.say(SETTINGS, self.write_json(SETTINGS, settings));
    }

    /// Keeps that the program was let start.
    pub fn keep_start(&self) {
        self.say(STARTED, self.write(STARTED, b""));
    }

    /// Keeps when somebody last answered.
    pub fn keep_heard(&self, heard: BootTime) {
        self.say(HEARD, self.write(HEARD, heard.millis().to_string().as_bytes()));
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(value)?)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        files::write(&self.folder.join(name), bytes, 0o600)
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let read = serde_json::from_slice(&self.bytes(name)?);
        read.inspect_err(|error| link_says!("{} in the journal is not used: {error}", name)).ok()
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let path: &Path = &self.folder.join(name);
        files::read(path, MOST).inspect_err(|error| link_says!("{} in the journal cannot be read: {error}", name)).ok().flatten()
    }

    /// Without its journal the sidecar goes on; only its own restart would then lose something.
    fn say(&self, name: &str, written: io::Result<()>) {
        if let Err(error) = written {
            link_says!("{name} cannot be written to the journal: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_there_and_what_is_broken_is_absent() {
        let folder = std::env::temp_dir().join(format!("spillway-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let journal = Journal::new(folder.clone());
        let nothing = journal.remembered();
        assert!(
            nothing.settings.is_none()
                && nothing.heard.is_none()
                && !nothing.let_start
                && nothing.action.is_none()
                && nothing.work == Kept::default()
        );
        journal.keep_goodbye(&Goodbye { reason: "done".into() }).expect("kept");
        journal.keep_action("testing").expect("kept");
        journal.keep_start();
        journal.keep_heard(BootTime::from_millis(77));
        std::fs::write(folder.join(SETTINGS), b"{\"agent\": ").expect("half a file");
        let again = Journal::new(folder.clone());
        assert_eq!(again.goodbye().map(|goodbye| goodbye.reason).as_deref(), Some("done"));
        let remembered = again.remembered();
        assert!(remembered.settings.is_none() && remembered.let_start);
        assert_eq!((remembered.heard, remembered.action.as_deref()), (Some(BootTime::from_millis(77)), Some("testing")));
        again.forget_goodbye();
        assert!(journal.goodbye().is_none());
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
