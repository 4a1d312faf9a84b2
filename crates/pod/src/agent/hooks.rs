//! The hooks of a pool: commands that run before the agent's end, for a notice, and before its work is paused. Each hook runs
//! beside the program, has a time limit, and is killed at the limit. The supervisor's loop waits for no hook.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use spillway_wire::agent::{Checkpoint, CheckpointState};

use super::item;
use super::life::Event;
use super::supervisor::{Hook, Supervisor};
use crate::agent_says;
use crate::clock::BootTime;

/// Time limit of one run of the warn hook.
const WARN_HOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of one run of the checkpoint hook. The governor waits longer for its result.
const CHECKPOINT_HOOK_TIMEOUT: Duration = Duration::from_secs(120);
/// Notices that wait for the warn hook. If there are more, the oldest is dropped.
pub(super) const MAX_PENDING_WARNINGS: usize = 32;

impl Supervisor {
    /// Processes that we started beside the program. They are no orphans.
    pub(super) fn helper_pids(&self) -> Vec<i32> {
        let hooks = [self.warning.as_ref(), self.checkpointing.as_ref().map(|(hook, _)| hook)].map(|hook| hook.map(|hook| hook.pid));
        [self.preflight_pid, self.step_pid, self.drain].into_iter().chain(hooks).flatten().collect()
    }

    pub(super) fn drain(&mut self, command: &[String]) {
        match self.start_hook(command, b"") {
            Ok(pid) => self.drain = Some(pid),
            Err(error) => {
                agent_says!("the drain hook cannot be started: {error}");
                self.on(Event::HookEnded);
            }
        }
    }

    fn start_hook(&self, command: &[String], input: &[u8]) -> io::Result<i32> {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        self.init.start_hook(&command, &self.environment(), input)
    }

    /// Runs the warn hook for one notice at a time, while the program runs.
    pub(super) fn warn(&mut self, now: BootTime) {
        if let Some(hook) = &mut self.warning {
            if now >= hook.until {
                agent_says!("the warn hook takes longer than {} s and is killed", WARN_HOOK_TIMEOUT.as_secs());
                self.init.kill_group(hook.pid);
                hook.until = now.after(WARN_HOOK_TIMEOUT);
            }
            return;
        }
        if self.program.is_none() || self.life.ending() {
            return;
        }
        while let Some(notice) = self.warnings.pop_front() {
            if self.warn_hook.is_empty() {
                continue;
            }
            let input = crate::lines::line(&notice).unwrap_or_default();
            match self.start_hook(&self.warn_hook, &input) {
                Ok(pid) => {
                    self.warning = Some(Hook { pid, until: now.after(WARN_HOOK_TIMEOUT) });
                    return;
                }
                Err(error) => agent_says!("the warn hook cannot be started: {error}"),
            }
        }
    }

    /// Runs the checkpoint hook for the item in hand, before the item is paused.
    pub(super) fn take_checkpoint(&mut self, now: BootTime, pause: i64) {
        let Some(held) = self.items.held() else { return };
        self.checkpoint = Some(Checkpoint { held, pause, state: CheckpointState::Running, message: String::new() });
        if self.checkpoint_hook.is_empty() {
            return self.checkpointed(Ok(CheckpointState::NoHook));
        }
        match self.start_hook(&self.checkpoint_hook, b"") {
            Ok(pid) => self.checkpointing = Some((Hook { pid, until: now.after(CHECKPOINT_HOOK_TIMEOUT) }, false)),
            Err(error) => self.checkpointed(Err(format!("cannot be started: {error}"))),
        }
    }

    /// Takes the end of a process, if it is the checkpoint hook; returns whether it is.
    pub(super) fn take_checkpoint_end(&mut self, pid: i32, code: u8) -> bool {
        let Some((_, late)) = self.checkpointing.take_if(|(hook, _)| hook.pid == pid) else { return false };
        self.checkpointed(match code {
            0 => Ok(CheckpointState::Taken),
            _ if late => Err(format!("took longer than {} s and was killed", CHECKPOINT_HOOK_TIMEOUT.as_secs())),
            code => Err(format!("ended with exit code {code}")),
        });
        true
    }

    /// Stores the result of the checkpoint.
    fn checkpointed(&mut self, came: Result<CheckpointState, String>) {
        if let Some(checkpoint) = &mut self.checkpoint {
            match came {
                Ok(state) => checkpoint.state = state,
                Err(why) => {
                    agent_says!("the checkpoint hook {why}");
                    (checkpoint.state, checkpoint.message) = (CheckpointState::Failed, why.chars().take(256).collect());
                }
            }
        }
        self.on_item(item::Event::CheckpointEnded);
    }

    /// Kills the checkpoint hook at its time limit.
    pub(super) fn hasten_checkpoint(&mut self, now: BootTime) {
        if let Some((hook, late)) = self.checkpointing.as_mut().filter(|(hook, _)| now >= hook.until) {
            *late = true;
            self.init.kill_group(hook.pid);
            hook.until = now.after(WARN_HOOK_TIMEOUT);
        }
    }
}
