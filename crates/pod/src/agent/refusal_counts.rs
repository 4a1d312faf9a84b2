//! Counts of what the sandbox refuses to the processes that we start, or would refuse. A thread for each start counts until the last process
//! of that start has ended. The threads decide nothing: the filter does, or nothing is refused.

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use spillway_sandbox::Sandbox;
use spillway_sandbox::container::Observation;
use spillway_sandbox::filter::WatchedCalls;
use spillway_sandbox::policy::Network;
use spillway_sandbox::watch::{PendingListener, watch};
use spillway_wire::sandbox::SandboxRefusals;

use crate::agent_says;
use crate::record::files;
use crate::record::recording::Recording;
use crate::record::watcher::{Answer, hear};

/// Stack of a thread. It holds a path or two.
const STACK_BYTES: usize = 256 * 1024;

/// The counts.
#[derive(Clone, Debug)]
pub struct RefusalCounts {
    watched: WatchedCalls,
    recording: Arc<Mutex<Recording>>,
}

impl RefusalCounts {
    /// Nothing was refused yet. `sandbox`: what refuses, or would refuse.
    pub fn new(sandbox: Observation) -> Self {
        let names = if sandbox.grants.is_some() { files::calls() } else { &[] };
        let watched = WatchedCalls::Refused(sandbox.network.unwrap_or(Network::Pod), names);
        Self { watched, recording: Arc::new(Mutex::new(Recording::new(sandbox))) }
    }

    /// Puts the command into a sandbox, and counts what the filter refuses to it and to all that it starts.
    pub fn confine(&self, sandbox: &Sandbox, command: &mut Command) -> io::Result<()> {
        self.count(sandbox.confine_and_report(command)?, Answer::Refuse)
    }

    /// Counts what the sandbox would refuse to the command and to all that it starts. They are not confined.
    pub fn observe(&self, command: &mut Command) -> io::Result<()> {
        self.count(watch(command, self.watched)?, Answer::GoOn)
    }

    /// The thread must be there before the command starts: the first call of the command may wait for it.
    fn count(&self, pending: PendingListener, answer: Answer) -> io::Result<()> {
        let recording = self.recording.clone();
        let counting = move || {
            if let Err(error) = hear(pending, &recording, answer) {
                agent_says!("refused system calls are not counted any more, and fail with ENOSYS: {error}");
            }
        };
        thread::Builder::new().name("refusals".to_owned()).stack_size(STACK_BYTES).spawn(counting).map(drop)
    }

    /// The counts so far.
    pub fn refusals(&self) -> SandboxRefusals {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).refusals()
    }

    /// All that was counted, for people.
    pub fn report(&self) -> String {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).report(self.watched)
    }
}
