//! Carries out the actions of the [watch-dog](super::watchdog), which finds hanging commands without a time limit.

use std::time::Duration;

use rustix::process::Signal;
use spillway_wire::agent::{DesiredState, Settings};
use spillway_wire::command::{BreakerMode, CommandLimits};

use super::supervisor::Supervisor;
use super::watchdog::Limits;
use super::{processes, watchdog};
use crate::clock::BootTime;
use crate::{COMMAND_FIELDS_HELP, agent_says};

/// The most rounds in a row that find new processes to stop. After them everything is killed anyway.
const MAX_STOP_ROUNDS: usize = 64;

/// The time limits of commands, from the settings. With a terminal the limit for silence is longer, because the program may wait
/// for a person and not for a command.
pub(super) fn limits_of(settings: &Settings, tty: bool) -> Limits {
    let CommandLimits { timeout_seconds, max_timeout_seconds } = settings.commands;
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let silent = seconds(if tty { max_timeout_seconds } else { timeout_seconds });
    Limits { command: seconds(timeout_seconds), silent, untimed: settings.untimed.clone() }
}

/// The mode of the watch-dog: whether it ends hanging commands.
pub(super) fn mode_of(wanted: &DesiredState) -> BreakerMode {
    wanted.commands.as_ref().map(|breakers| breakers.mode).unwrap_or_default()
}

impl Supervisor {
    /// When the watch-dog must look next; only while a program runs and is not being ended.
    pub(super) fn next_watchdog_check(&self) -> Option<BootTime> {
        self.watchdog.wake().filter(|_| self.program.is_some() && !self.life.ending())
    }

    /// Finds hanging commands without a time limit, and ends them.
    pub(super) fn watch(&mut self, now: BootTime) {
        if self.next_watchdog_check().is_none_or(|due| now < due) {
            return;
        }
        let own = self.helper_pids();
        for action in self.watchdog.look(now, &self.init.table(), self.program, &own) {
            match action {
                watchdog::Action::Hung { pid, started, name, ended } => {
                    self.hung = self.hung.saturating_add(1);
                    let what = format!("{name} ran longer than the time limit of commands ({COMMAND_FIELDS_HELP})");
                    if ended {
                        agent_says!("{what}: it is ended, with all processes that it started");
                        let told = format!("{what}: it was ended, with all processes that it started");
                        // The caller reads the command's standard error, so that a model gets the message.
                        processes::write_to_stderr_of(pid, started, &told);
                        self.notice(now, "CommandHung", told);
                    } else {
                        agent_says!("{what}: it is not ended, because the mode of the breaker is Observe");
                    }
                }
                watchdog::Action::Ask(all) => all.into_iter().for_each(|(pid, started)| {
                    processes::signal(pid, started, Signal::TERM);
                    // A stopped process reacts only to this signal and to SIGKILL.
                    processes::signal(pid, started, Signal::CONT);
                }),
                watchdog::Action::Kill(mut all) => {
                    // First all processes are stopped, so that none can fork, until a round finds no new process.
                    for _ in 0..MAX_STOP_ROUNDS {
                        all.iter().for_each(|(pid, started)| processes::signal(*pid, *started, Signal::STOP));
                        let found = self.watchdog.with_descendants(&self.init.list(), &all, self.program, &own);
                        let before = all.len();
                        all.extend(found);
                        if all.len() == before {
                            break;
                        }
                    }
                    all.into_iter().for_each(|(pid, started)| processes::signal(pid, started, Signal::KILL));
                }
                watchdog::Action::Unkillable(left) => agent_says!("{left} processes of a command that hung cannot be killed"),
            }
        }
    }
}
