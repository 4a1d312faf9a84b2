//! The watch-dog: it finds commands that hang without another time limit, because the program starts them itself. Pure.
//!
//! A model's answer makes an agent run a command, and the next call contains the output of the command. Two rules follow:
//!
//! - A shell with a command (`/bin/sh -c`) below the program, or the program that this shell became, has the pool's time limit for
//!   commands, independent of what the program does meanwhile. This begins with the first answer of a model to the program.
//!   Earlier processes are the real program of a launcher, or helper servers. In a pool without models it begins at once.
//! - Any other process hangs if it was started after the last model call had begun, and has lived for the time limit while no
//!   model was called: the program waits for it. A server that an agent started is followed by another call, and so does not
//!   hang. This rule does not apply to a program that never calls a model.
//!
//! Exempt are processes that read from a terminal, programs that the pool lists as meant to stay, and processes below our own
//! programs, which have their own time limit. A process that waits for one of them is exempt too, such as a shell in which
//! `spillway exec` runs.
//!
//! A program may have several conversations at once, such as those of agents within it. While one waits for a command, the others
//! make calls. So a process also hangs if it was started just after the end of an answer in one conversation, this conversation
//! has made no call since, and all calls since belong to other conversations that existed before. A call of an unknown
//! conversation, or the first call of a new one, may belong to the waiting conversation.
//!
//! What always holds: only hanging processes and the processes below them are ended, never the program itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_wire::command::{BreakerMode, TimeExemptions};
use spillway_wire::link::{Conversation, ModelCalls};

use crate::clock::{BootTime, millis};
use crate::install::COMMAND_NAME;
use crate::process::kind::Kind;
use crate::process::tree::PROC_TICK_MS;

/// Servers that a client of models starts after an answer, keeps until it ends, and runs commands beside: it does not wait for them.
/// Codex fails the model's command when it loses this one.
const SERVERS_OF_CLIENTS: [&str; 1] = ["codex-code-mode-host"];
/// Longest and shortest time between two checks of processes while nothing is being ended. Between these bounds it is a part of the
/// time limit of commands. A command that is already known is ended exactly at its limit.
const PROCESS_CHECK_INTERVALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1));
/// Checks within the time limit of a command.
const CHECKS_PER_COMMAND_TIME: u32 = 4;
/// Between SIGTERM and SIGKILL, as for a timed command.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// A process that cannot be killed for this long is given up: it is blocked in the kernel.
const UNKILLABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two rounds of SIGKILL.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// A command that an answer asked for is started at most this many milliseconds after the end of the answer ...
const MAX_START_AFTER_ANSWER_MS: u64 = 2_000;
/// ... or this many before: a client reads the end of the answer before the connection ends.
const MAX_START_BEFORE_ANSWER_MS: u64 = 1_000;

/// A process, as the kernel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// The pid of its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// When it was started, in milliseconds since boot.
    pub started: u64,
    /// Its name.
    pub name: String,
    /// It runs our own binary.
    pub own_binary: bool,
    /// Its kind, unless it runs our own binary.
    pub kind: Kind,
}

/// The time limits of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The command of a shell.
    pub command: Duration,
    /// Any other process, while no model is called. It is longer if the program may wait for a person.
    pub silent: Duration,
    /// The commands without a time limit.
    pub untimed: TimeExemptions,
}

/// An action for the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask these processes to end: their pids, and when they were started.
    Ask(BTreeMap<i32, u64>),
    /// Stop these processes, list again, and kill all.
    Kill(BTreeMap<i32, u64>),
    /// A command hung.
    Hung {
        /// Its pid.
        pid: i32,
        /// When it was started.
        started: u64,
        /// Its name, and the name of the process that it waits for.
        name: String,
        /// Whether it is ended. Otherwise it is only observed.
        ended: bool,
    },
    /// This number of processes cannot be killed.
    Unkillable(usize),
}

/// The processes that are being ended.
#[derive(Clone, Debug)]
struct Ending {
    members: BTreeMap<i32, u64>,
    /// Orphans that were started later are taken for children of these processes.
    since: u64,
    kill_at: BootTime,
    give_up: BootTime,
}

/// The watch-dog.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    limits: Option<Limits>,
    mode: BreakerMode,
    /// The model calls of the program.
    model_calls: Option<ModelCalls>,
    /// When a model first answered the program (milliseconds since boot).
    first_answer: Option<u64>,
    /// When the program was started. A call that began earlier belongs to an earlier program.
    since: BootTime,
    look_at: BootTime,
    ending: Option<Ending>,
    /// Processes that were reported and not ended.
    observed: BTreeMap<i32, u64>,
    /// Processes that were exempt at the last check. When the process that they waited for has ended, they may be about to end.
    exempt: BTreeMap<i32, u64>,
}

impl Watchdog {
    /// Sets the time limits of commands.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// Sets the mode: end hanging commands, only report them, or do nothing.
    pub fn mode(&mut self, mode: BreakerMode) {
        self.mode = mode;
    }

    /// Another program was started: earlier model calls do not belong to it.
    pub fn program_started(&mut self, now: BootTime) {
        (self.model_calls, self.first_answer, self.ending, self.since) = (None, None, None, now);
        self.observed.clear();
        self.exempt.clear();
    }

    /// Takes the model calls so far.
    pub fn set_model_calls(&mut self, called: ModelCalls) {
        let since = self.since.millis();
        let ModelCalls { begun, seen, conversations, unknown, answered } = called;
        self.first_answer = self.first_answer.or(answered.filter(|answered| *answered >= since));
        if begun < since {
            return;
        }
        let ours = |one: Conversation| (one.begun >= since).then(|| Conversation { first: one.first.max(since), ..one });
        let conversations = conversations.into_iter().filter_map(ours).collect();
        self.model_calls =
            Some(ModelCalls { begun, seen, conversations, unknown: unknown.filter(|unknown| *unknown >= since), answered: None });
    }

    /// When the next check is due; `None`: no process can hang yet.
    pub fn wake(&self) -> Option<BootTime> {
        if let Some(ending) = &self.ending {
            return Some(ending.kill_at);
        }
        let limits = self.limits.as_ref().filter(|limits| self.mode != BreakerMode::Off && !limits.untimed.exempts_every_command())?;
        // A command that the earliest answer asked for is the first one that may hang.
        let first = |called: &ModelCalls| called.conversations.iter().filter_map(|one| one.ended).fold(called.seen, u64::min);
        let silent = self.model_calls.as_ref().map(|called| BootTime::from_millis(first(called)).after(limits.silent));
        let commands = self.commands_since(limits).map(|_| self.look_at);
        let due = [silent, commands].into_iter().flatten().min()?;
        Some(due.max(self.look_at))
    }

    /// Since when a shell's command has the time limit; `None`: not yet.
    fn commands_since(&self, limits: &Limits) -> Option<u64> {
        // The start of a process is exact to a tick.
        let answered = self.first_answer.map(|answered| answered.saturating_sub(PROC_TICK_MS));
        if limits.untimed.until_answer { answered } else { Some(0) }
    }

    /// Checks all processes. `own`: processes that the supervisor started beside the program; they are no orphans.
    pub fn look(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        if self.ending.is_some() {
            return self.continue_ending(now, table, program, own);
        }
        let (Some(limits), Some(program)) = (&self.limits, program) else {
            self.look_at = now.after(PROCESS_CHECK_INTERVALS.0);
            return Vec::new();
        };
        let commands_since = self.commands_since(limits);
        let ProgramProcesses { hung: mut roots, exempt: left, next } =
            Judge { table, limits, commands_since, model_calls: self.model_calls.as_ref(), now }.below(program);
        let each = (limits.command / CHECKS_PER_COMMAND_TIME).clamp(PROCESS_CHECK_INTERVALS.1, PROCESS_CHECK_INTERVALS.0);
        self.look_at = next.map_or(now.after(each), |next| now.after(each).min(next));
        let alive = |pid: &i32, started: &mut u64| table.iter().any(|one| one.pid == *pid && one.started == *started);
        self.observed.retain(alive);
        let left = std::mem::replace(&mut self.exempt, left);
        roots.retain(|one| ![&self.observed, &left].into_iter().any(|all| all.get(&one.pid) == Some(&one.started)));
        if roots.is_empty() || self.mode == BreakerMode::Off || limits.untimed.exempts_every_command() {
            return Vec::new();
        }
        let ended = self.mode == BreakerMode::Enforce;
        let mut actions: Vec<Action> =
            roots.iter().map(|one| Action::Hung { pid: one.pid, started: one.started, name: title(table, one), ended }).collect();
        let roots: BTreeMap<i32, u64> = roots.into_iter().map(|one| (one.pid, one.started)).collect();
        if !ended {
            self.observed.extend(roots);
            return actions;
        }
        let members = descendants(table, &roots, &excluded(program, own));
        actions.push(Action::Ask(members.clone()));
        let kill_at = now.after(KILL_GRACE);
        self.ending = Some(Ending { members, since: now.millis(), kill_at, give_up: kill_at.after(UNKILLABLE_TIMEOUT) });
        actions
    }

    fn continue_ending(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        let Some(ending) = &mut self.ending else { return Vec::new() };
        // A process that lost its parent since is taken for one of them: no other process leaves orphans in these moments.
        let orphans = table.iter().filter(|one| one.parent == 1 && one.started >= ending.since);
        let mut roots = ending.members.clone();
        roots.extend(orphans.map(|one| (one.pid, one.started)));
        let mut excluded: BTreeSet<i32> = own.iter().copied().chain([1]).collect();
        excluded.extend(program);
        ending.members = descendants(table, &roots, &excluded);
        if ending.members.is_empty() {
            self.ending = None;
            return Vec::new();
        }
        if now < ending.kill_at {
            return Vec::new();
        }
        if now >= ending.give_up {
            let left = ending.members.len();
            // They are observed from now on, so that they are not reported again.
            self.observed.append(&mut ending.members);
            self.ending = None;
            return vec![Action::Unkillable(left)];
        }
        ending.kill_at = now.after(KILL_INTERVAL);
        vec![Action::Kill(ending.members.clone())]
    }

    /// All processes that must be killed with these, in the current table.
    pub fn with_descendants(&self, table: &[Process], these: &BTreeMap<i32, u64>, program: Option<i32>, own: &[i32]) -> BTreeMap<i32, u64> {
        let mut all: BTreeSet<i32> = own.iter().copied().chain([1]).collect();
        all.extend(program);
        descendants(table, these, &all)
    }
}

fn excluded(program: i32, own: &[i32]) -> BTreeSet<i32> {
    own.iter().copied().chain([1, program]).collect()
}

/// Whether a process that was started at `started` hangs at `now`; all times in milliseconds.
fn hangs(started: u64, called: &ModelCalls, now: u64, limit: u64) -> bool {
    let for_long = |since: u64| now.saturating_sub(since) >= limit;
    if !for_long(started) {
        return false;
    }
    if started >= called.begun {
        return for_long(called.seen) || waits_for(started, called);
    }
    waits_for(started, called)
}

/// Whether a conversation waits for a process that was started at `started`, independent of other conversations.
fn waits_for(started: u64, called: &ModelCalls) -> bool {
    let had_just_ended = |ended: u64| {
        ended <= started.saturating_add(MAX_START_BEFORE_ANSWER_MS) && started <= ended.saturating_add(MAX_START_AFTER_ANSWER_MS)
    };
    let waits = |one: &Conversation| one.begun < started && one.ended.is_some_and(had_just_ended);
    let of_another = |one: &Conversation| one.begun <= started || one.first <= started;
    called.unknown.is_none_or(|unknown| unknown <= started)
        && called.conversations.iter().all(of_another)
        && called.conversations.iter().any(waits)
}

/// The facts by which processes are judged.
struct Judge<'a> {
    table: &'a [Process],
    limits: &'a Limits,
    commands_since: Option<u64>,
    model_calls: Option<&'a ModelCalls>,
    now: BootTime,
}

/// The processes below a program.
struct ProgramProcesses<'a> {
    /// The topmost processes that hang.
    hung: Vec<&'a Process>,
    /// Processes that would hang, and are exempt.
    exempt: BTreeMap<i32, u64>,
    /// When the time limit of the next shell's command ends.
    next: Option<BootTime>,
}

impl<'a> Judge<'a> {
    fn below(&self, program: i32) -> ProgramProcesses<'a> {
        let mut children: BTreeMap<i32, Vec<&Process>> = BTreeMap::new();
        self.table.iter().for_each(|one| children.entry(one.parent).or_default().push(one));
        let mut found = ProgramProcesses { hung: Vec::new(), exempt: BTreeMap::new(), next: None };
        let mut seen = BTreeSet::from([program]);
        let mut ahead: Vec<&Process> = self.table.iter().filter(|one| one.pid == program).collect();
        while let Some(parent) = ahead.pop() {
            for one in children.get(&parent.pid).into_iter().flatten() {
                // Processes below our own programs have their own time limit, or are meant to wait.
                if !seen.insert(one.pid) || one.own_binary {
                    continue;
                }
                let wanted = self.commands_since.is_some_and(|since| one.started >= since);
                let command = wanted && one.kind.is_command(&parent.kind);
                let due = BootTime::from_millis(one.started).after(self.limits.command);
                if command && due > self.now {
                    found.next = Some(found.next.map_or(due, |next| next.min(due)));
                }
                let hangs = (command && due <= self.now) || self.is_silent(one);
                if !hangs {
                    ahead.push(one);
                } else if one.kind.at_terminal() || self.is_exempt(one, &children) {
                    found.exempt.insert(one.pid, one.started);
                } else {
                    found.hung.push(one);
                }
            }
        }
        found
    }

    /// Whether the program has waited for the process for too long.
    fn is_silent(&self, one: &Process) -> bool {
        let (now, limit) = (self.now.millis(), millis(self.limits.silent));
        !one.kind.is_one_of(&SERVERS_OF_CLIENTS) && self.model_calls.is_some_and(|called| hangs(one.started, called, now, limit))
    }

    /// Whether the process, or one below it, is meant to stay or has its own time limit.
    fn is_exempt(&self, one: &Process, children: &BTreeMap<i32, Vec<&Process>>) -> bool {
        let names = &self.limits.untimed.names;
        let mut seen = BTreeSet::from([one.pid]);
        let mut ahead = vec![one];
        while let Some(one) = ahead.pop() {
            // Not the timed shells: they have the same time limit as the process that waits for them.
            if one.kind.is_one_of(names) || (one.own_binary && one.name == COMMAND_NAME) {
                return true;
            }
            ahead.extend(children.get(&one.pid).into_iter().flatten().filter(|child| seen.insert(child.pid)));
        }
        false
    }
}

/// The name of a process for people, with the name of a child that it waits for.
fn title(table: &[Process], one: &Process) -> String {
    let child = table.iter().find(|child| child.parent == one.pid && child.name != one.name);
    child.map_or_else(|| one.name.clone(), |child| format!("{} ({})", one.name, child.name))
}

/// The `roots` that still exist, all processes below them, and all in the process groups and sessions that they made.
fn descendants(table: &[Process], roots: &BTreeMap<i32, u64>, excluded: &BTreeSet<i32>) -> BTreeMap<i32, u64> {
    let mut found: BTreeMap<i32, u64> = table
        .iter()
        .filter(|one| roots.get(&one.pid) == Some(&one.started) && !excluded.contains(&one.pid))
        .map(|one| (one.pid, one.started))
        .collect();
    loop {
        // A group or session has the pid of the process that made it, which may have ended.
        let theirs =
            |number: i32| number > 1 && !excluded.contains(&number) && (found.contains_key(&number) || roots.contains_key(&number));
        let new: Vec<(i32, u64)> = table
            .iter()
            .filter(|one| !found.contains_key(&one.pid) && !excluded.contains(&one.pid))
            .filter(|one| found.contains_key(&one.parent) || theirs(one.group) || theirs(one.session))
            .map(|one| (one.pid, one.started))
            .collect();
        if new.is_empty() {
            return found;
        }
        found.extend(new);
    }
}

#[cfg(test)]
#[path = "watchdog_tests.rs"]
mod tests;
