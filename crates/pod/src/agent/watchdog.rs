//! The watch-dog: commands that hang and that nobody times, because the program starts them by itself. Pure.
//!
//! A model's answer makes an agent run a command, and what the command said goes into the next call. What that comes to:
//!
//! - A shell that was given a command (`/bin/sh -c`), or what it became, below the program and after a model answered it for the first
//!   time, has the pool's time for commands, whatever the program does meanwhile. What was started before is the real program of a
//!   launcher, or a helper server. In a pool without models no answer is waited for.
//! - Any other process hangs that was started after the last call of a model had begun, and has lived for as long as a command may
//!   while no model was called: the program waits for it. A server that an agent started went into a call that followed. A program
//!   that never calls a model is not judged so.
//!
//! Left alone is what reads from a terminal, what is meant to stay by the pool's word, and what our own programs run, which has a time of
//! its own; and what waits for that: a shell in which `spillway exec` runs.
//!
//! A program may hold several conversations at a time, such as those of agents within it: while one waits for a command the others
//! call on. So a process hangs too that was started when the answer of one conversation had just ended, which has made no call since;
//! if all calls since then went on with other conversations that were there before. A call of which that is not known, and one that
//! begins a conversation, may be the one that followed.
//!
//! What always holds: nothing is ended but what hangs and what is below it; the program itself is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_wire::command::{BreakerMode, TimeExemptions};
use spillway_wire::link::{Conversation, ModelCalls};

use crate::clock::{BootTime, millis};
use crate::install::COMMAND_NAME;
use crate::process::kind::Kind;
use crate::process::tree::PROC_TICK_MS;

/// Longest and shortest time between two looks at processes while nothing is being ended; between them a part of what a command may
/// take. One that is known is ended at its time.
const PROCESS_CHECK_INTERVALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1));
/// Looks in the time that a command has.
const CHECKS_PER_COMMAND_TIME: u32 = 4;
/// Between being asked to end and being killed, as for a command that is timed.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// What cannot be killed for so long is left: the kernel holds it.
const UNKILLABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two kills.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// A command that an answer asked for is started at most so long (milliseconds) after its end ...
const MAX_START_AFTER_ANSWER_MS: u64 = 2_000;
/// ... or so long before it: a client reads that it is the end before the connection ends.
const MAX_START_BEFORE_ANSWER_MS: u64 = 1_000;

/// A process, as the kernel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its process group's.
    pub group: i32,
    /// Its session's.
    pub session: i32,
    /// When it was started, in milliseconds since boot.
    pub started: u64,
    /// Its name.
    pub name: String,
    /// It is one of our own programs.
    pub ours: bool,
    /// What it is, unless it is ours.
    pub kind: Kind,
}

/// How long commands may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A command.
    pub command: Duration,
    /// What is no shell's, while no model is called. More where the program may wait for a person.
    pub silent: Duration,
    /// Which commands have no time.
    pub untimed: TimeExemptions,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask these, by their numbers and when they were started, to end.
    Ask(BTreeMap<i32, u64>),
    /// Stop these, look again, and kill all.
    Kill(BTreeMap<i32, u64>),
    /// A command hung.
    Hung {
        /// Its number.
        pid: i32,
        /// When it was started.
        started: u64,
        /// Its name, and that of what it waits for.
        name: String,
        /// It is ended; otherwise it is only observed.
        ended: bool,
    },
    /// These cannot be killed.
    Left(usize),
}

/// What is being ended.
#[derive(Clone, Debug)]
struct Ending {
    members: BTreeMap<i32, u64>,
    /// Since when orphans are taken for theirs.
    since: u64,
    kill_at: BootTime,
    give_up: BootTime,
}

/// The watch-dog.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    limits: Option<Limits>,
    mode: BreakerMode,
    /// The calls of models that the program made.
    called: Option<ModelCalls>,
    /// When a model first answered the program (milliseconds since boot).
    answered: Option<u64>,
    /// When the program was started: a call that had begun before was another one's.
    since: BootTime,
    look_at: BootTime,
    ending: Option<Ending>,
    /// What was told of and not ended.
    observed: BTreeMap<i32, u64>,
    /// What the last look left alone: when what it waited for is over, it may be about to end.
    left: BTreeMap<i32, u64>,
}

impl Watchdog {
    /// How long commands may take.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// Whether it ends what hangs, only tells of it, or does nothing.
    pub fn mode(&mut self, mode: BreakerMode) {
        self.mode = mode;
    }

    /// Another program was started: whatever called a model before was not it.
    pub fn program_started(&mut self, now: BootTime) {
        (self.called, self.answered, self.ending, self.since) = (None, None, None, now);
        self.observed.clear();
        self.left.clear();
    }

    /// The calls of models so far.
    pub fn called(&mut self, called: ModelCalls) {
        let since = self.since.millis();
        let ModelCalls { begun, seen, conversations, unknown, answered } = called;
        self.answered = self.answered.or(answered.filter(|answered| *answered >= since));
        if begun < since {
            return;
        }
        let ours = |one: Conversation| (one.begun >= since).then(|| Conversation { first: one.first.max(since), ..one });
        let conversations = conversations.into_iter().filter_map(ours).collect();
        self.called = Some(ModelCalls { begun, seen, conversations, unknown: unknown.filter(|unknown| *unknown >= since), answered: None });
    }

    /// When to look next; none: there is nothing to look for.
    pub fn wake(&self) -> Option<BootTime> {
        if let Some(ending) = &self.ending {
            return Some(ending.kill_at);
        }
        let limits = self.limits.as_ref().filter(|limits| self.mode != BreakerMode::Off && !limits.untimed.all())?;
        // What was asked for by the answer that ended first is the first that may hang.
        let first = |called: &ModelCalls| called.conversations.iter().filter_map(|one| one.ended).fold(called.seen, u64::min);
        let silent = self.called.as_ref().map(|called| BootTime::from_millis(first(called)).after(limits.silent));
        let commands = self.commands_since(limits).map(|_| self.look_at);
        let due = [silent, commands].into_iter().flatten().min()?;
        Some(due.max(self.look_at))
    }

    /// Since when a shell that was given a command runs one for the program; none: not yet.
    fn commands_since(&self, limits: &Limits) -> Option<u64> {
        // When a process was started is known to a tick.
        let answered = self.answered.map(|answered| answered.saturating_sub(PROC_TICK_MS));
        if limits.untimed.until_answer { answered } else { Some(0) }
    }

    /// Looks at all processes. `own`: what is started by us beside the program, which is nobody's orphan.
    pub fn look(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        if self.ending.is_some() {
            return self.go_on(now, table, program, own);
        }
        let (Some(limits), Some(program)) = (&self.limits, program) else {
            self.look_at = now.after(PROCESS_CHECK_INTERVALS.0);
            return Vec::new();
        };
        let commands_since = self.commands_since(limits);
        let ProgramProcesses { hung: mut roots, left, next } =
            Judge { table, limits, commands_since, called: self.called.as_ref(), now }.below(program);
        let each = (limits.command / CHECKS_PER_COMMAND_TIME).clamp(PROCESS_CHECK_INTERVALS.1, PROCESS_CHECK_INTERVALS.0);
        self.look_at = next.map_or(now.after(each), |next| now.after(each).min(next));
        let alive = |pid: &i32, started: &mut u64| table.iter().any(|one| one.pid == *pid && one.started == *started);
        self.observed.retain(alive);
        let left = std::mem::replace(&mut self.left, left);
        roots.retain(|one| ![&self.observed, &left].into_iter().any(|all| all.get(&one.pid) == Some(&one.started)));
        if roots.is_empty() || self.mode == BreakerMode::Off || limits.untimed.all() {
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
        let members = tree(table, &roots, &excluded(program, own));
        actions.push(Action::Ask(members.clone()));
        let kill_at = now.after(KILL_GRACE);
        self.ending = Some(Ending { members, since: now.millis(), kill_at, give_up: kill_at.after(UNKILLABLE_TIMEOUT) });
        actions
    }

    fn go_on(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        let Some(ending) = &mut self.ending else { return Vec::new() };
        // Who lost its parent since is taken for theirs: nobody else starts and leaves processes in these moments.
        let orphans = table.iter().filter(|one| one.parent == 1 && one.started >= ending.since);
        let mut roots = ending.members.clone();
        roots.extend(orphans.map(|one| (one.pid, one.started)));
        let mut excluded: BTreeSet<i32> = own.iter().copied().chain([1]).collect();
        excluded.extend(program);
        ending.members = tree(table, &roots, &excluded);
        if ending.members.is_empty() {
            self.ending = None;
            return Vec::new();
        }
        if now < ending.kill_at {
            return Vec::new();
        }
        if now >= ending.give_up {
            let left = ending.members.len();
            // Not again: it would be told of for ever.
            self.observed.append(&mut ending.members);
            self.ending = None;
            return vec![Action::Left(left)];
        }
        ending.kill_at = now.after(KILL_INTERVAL);
        vec![Action::Kill(ending.members.clone())]
    }

    /// Who has to be killed with these, as it is found now.
    pub fn with_these(&self, table: &[Process], these: &BTreeMap<i32, u64>, program: Option<i32>, own: &[i32]) -> BTreeMap<i32, u64> {
        let mut all: BTreeSet<i32> = own.iter().copied().chain([1]).collect();
        all.extend(program);
        tree(table, these, &all)
    }
}

fn excluded(program: i32, own: &[i32]) -> BTreeSet<i32> {
    own.iter().copied().chain([1, program]).collect()
}

/// Whether a process that was started at this time hangs at `now`; all in milliseconds.
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

/// Whether a conversation waits for a process that was started at this time, whatever others do.
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

/// What is known when processes are judged.
struct Judge<'a> {
    table: &'a [Process],
    limits: &'a Limits,
    commands_since: Option<u64>,
    called: Option<&'a ModelCalls>,
    now: BootTime,
}

/// What is below a program.
struct ProgramProcesses<'a> {
    /// The topmost processes that hang.
    hung: Vec<&'a Process>,
    /// Those that would, and are left alone.
    left: BTreeMap<i32, u64>,
    /// When the next shell's command will have had its time.
    next: Option<BootTime>,
}

impl<'a> Judge<'a> {
    fn below(&self, program: i32) -> ProgramProcesses<'a> {
        let mut children: BTreeMap<i32, Vec<&Process>> = BTreeMap::new();
        self.table.iter().for_each(|one| children.entry(one.parent).or_default().push(one));
        let mut found = ProgramProcesses { hung: Vec::new(), left: BTreeMap::new(), next: None };
        let mut seen = BTreeSet::from([program]);
        let mut ahead: Vec<&Process> = self.table.iter().filter(|one| one.pid == program).collect();
        while let Some(parent) = ahead.pop() {
            for one in children.get(&parent.pid).into_iter().flatten() {
                // What our own programs run has a time of its own, or is to wait.
                if !seen.insert(one.pid) || one.ours {
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
                } else if one.kind.at_terminal() || self.stays(one, &children) {
                    found.left.insert(one.pid, one.started);
                } else {
                    found.hung.push(one);
                }
            }
        }
        found
    }

    /// The program waits for it, for too long.
    fn is_silent(&self, one: &Process) -> bool {
        let (now, limit) = (self.now.millis(), millis(self.limits.silent));
        self.called.is_some_and(|called| hangs(one.started, called, now, limit))
    }

    /// It, or something below it, is meant to stay, or was given a time of its own.
    fn stays(&self, one: &Process, children: &BTreeMap<i32, Vec<&Process>>) -> bool {
        let names = &self.limits.untimed.names;
        let mut seen = BTreeSet::from([one.pid]);
        let mut ahead = vec![one];
        while let Some(one) = ahead.pop() {
            // Not our shells: those have the same time as what waits for them.
            if one.kind.is_one_of(names) || (one.ours && one.name == COMMAND_NAME) {
                return true;
            }
            ahead.extend(children.get(&one.pid).into_iter().flatten().filter(|child| seen.insert(child.pid)));
        }
        false
    }
}

/// The name of a process for people: of a shell also what it waits for.
fn title(table: &[Process], one: &Process) -> String {
    let child = table.iter().find(|child| child.parent == one.pid && child.name != one.name);
    child.map_or_else(|| one.name.clone(), |child| format!("{} ({})", one.name, child.name))
}

/// `roots` that are still there, what is below them, and what is in the groups and sessions that they made.
fn tree(table: &[Process], roots: &BTreeMap<i32, u64>, excluded: &BTreeSet<i32>) -> BTreeMap<i32, u64> {
    let mut found: BTreeMap<i32, u64> = table
        .iter()
        .filter(|one| roots.get(&one.pid) == Some(&one.started) && !excluded.contains(&one.pid))
        .map(|one| (one.pid, one.started))
        .collect();
    loop {
        // A group or session has the number of who made it, who may be gone.
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
