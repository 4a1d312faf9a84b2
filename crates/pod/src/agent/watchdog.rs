//! The watch-dog: commands that hang and that nobody times, because the program starts them by itself. Pure.
//!
//! A model's answer makes an agent run a command, and what the command said goes into the next call. So a process hangs that was
//! started below the program after its last call of a model had begun, and has lived since for longer than a command may while no
//! model was called. What was started before is no command that the program waits for: a launcher's real program and the helper
//! servers of a program were there before it called a model for the first time, and a server that an agent started went into a call
//! that followed. A program that never calls a model is never judged.
//!
//! What always holds: nothing is ended but what hangs and what is below it; the program itself is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_wire::command::BreakerMode;
use spillway_wire::link::ModelCall;

use crate::clock::BootTime;

/// Between two looks at processes while nothing is being ended.
const LOOK_EACH: Duration = Duration::from_secs(10);
/// Between being asked to end and being killed, as for a command that is timed.
const GRACE: Duration = Duration::from_secs(2);
/// What cannot be killed for so long is left: the kernel holds it.
const UNKILLABLE: Duration = Duration::from_secs(5);
/// Between two kills.
const KILL_EACH: Duration = Duration::from_millis(20);
/// A command that is timed is ended by whoever times it: it has so long for that beyond the longest time there is.
const SLACK: Duration = Duration::from_secs(10);

/// A process, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        /// Its name.
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
    most: Option<Duration>,
    mode: BreakerMode,
    called: Option<ModelCall>,
    /// When the program was started: a call that had begun before was another one's.
    since: BootTime,
    look_at: BootTime,
    ending: Option<Ending>,
    /// What was told of and not ended.
    observed: BTreeMap<i32, u64>,
}

impl Watchdog {
    /// The longest that a command may take.
    pub fn limit(&mut self, most: Duration) {
        self.most = Some(most);
    }

    /// Whether it ends what hangs, only tells of it, or does nothing.
    pub fn mode(&mut self, mode: BreakerMode) {
        self.mode = mode;
    }

    /// Another program was started: whatever called a model before was not it.
    pub fn program_started(&mut self, now: BootTime) {
        (self.called, self.ending, self.since) = (None, None, now);
        self.observed.clear();
    }

    /// The program called a model.
    pub fn called(&mut self, called: ModelCall) {
        if called.begun >= self.since.millis() {
            self.called = Some(called);
        }
    }

    /// When to look next; none: there is nothing to look for.
    pub fn wake(&self) -> Option<BootTime> {
        if let Some(ending) = &self.ending {
            return Some(ending.kill_at);
        }
        let (most, called) = (self.most?, self.called?);
        let due = BootTime::from_millis(called.seen).after(most).after(SLACK);
        (self.mode != BreakerMode::Off).then(|| due.max(self.look_at))
    }

    /// Looks at all processes. `own`: what is started by us beside the program, which is nobody's orphan.
    pub fn look(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        if self.ending.is_some() {
            return self.go_on(now, table, program, own);
        }
        self.look_at = now.after(LOOK_EACH);
        let (Some(most), Some(called), Some(program)) = (self.most, self.called, program) else { return Vec::new() };
        let alive = |pid: &i32, started: &mut u64| table.iter().any(|one| one.pid == *pid && one.started == *started);
        self.observed.retain(alive);
        let limit = most + SLACK;
        let roots: Vec<&Process> =
            hung(table, program, called, now, limit).into_iter().filter(|one| self.observed.get(&one.pid) != Some(&one.started)).collect();
        if roots.is_empty() || self.mode == BreakerMode::Off {
            return Vec::new();
        }
        let ended = self.mode == BreakerMode::Enforce;
        let mut actions: Vec<Action> = roots.iter().map(|one| Action::Hung { name: one.name.clone(), ended }).collect();
        let roots: BTreeMap<i32, u64> = roots.into_iter().map(|one| (one.pid, one.started)).collect();
        if !ended {
            self.observed.extend(roots);
            return actions;
        }
        let members = tree(table, &roots, &excluded(program, own));
        actions.push(Action::Ask(members.clone()));
        let kill_at = now.after(GRACE);
        self.ending = Some(Ending { members, since: now.millis(), kill_at, give_up: kill_at.after(UNKILLABLE) });
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
        ending.kill_at = now.after(KILL_EACH);
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

/// The topmost processes below `program` that hang.
pub fn hung(table: &[Process], program: i32, called: ModelCall, now: BootTime, limit: Duration) -> Vec<&Process> {
    let limit = crate::clock::millis(limit);
    if now.millis().saturating_sub(called.seen) < limit {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([program]);
    let mut ahead = vec![program];
    while let Some(parent) = ahead.pop() {
        for one in table.iter().filter(|one| one.parent == parent) {
            if !seen.insert(one.pid) {
                continue;
            }
            // What our own programs run has a time of its own, or is to wait.
            if one.ours {
                continue;
            }
            if one.started >= called.begun && now.millis().saturating_sub(one.started) >= limit {
                found.push(one);
            } else {
                ahead.push(one.pid);
            }
        }
    }
    found
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
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> BootTime {
        BootTime::from_millis(seconds * 1000)
    }

    fn process(pid: i32, parent: i32, seconds: u64) -> Process {
        Process { pid, parent, group: 10, session: 10, started: seconds * 1000, name: format!("p{pid}"), ours: false }
    }

    /// The supervisor (1), a launcher (10), the real program (11), a helper server (12), and a command (20) with a child (21).
    fn table() -> Vec<Process> {
        vec![process(1, 0, 0), process(10, 1, 10), process(11, 10, 11), process(12, 11, 12), process(20, 11, 200), process(21, 20, 201)]
    }

    fn dog(begun: u64, seen: u64) -> Watchdog {
        let mut dog = Watchdog::default();
        dog.limit(HOUR);
        dog.called(ModelCall { begun: begun * 1000, seen: seen * 1000 });
        dog
    }

    fn members(pids: &[(i32, u64)]) -> BTreeMap<i32, u64> {
        pids.iter().map(|(pid, seconds)| (*pid, seconds * 1000)).collect()
    }

    #[test]
    fn only_what_began_with_the_last_call_and_outlived_its_time_hangs() {
        let hung = |begun: u64, seen: u64, now: u64| -> Vec<i32> {
            let called = ModelCall { begun: begun * 1000, seen: seen * 1000 };
            super::hung(&table(), 10, called, at(now), HOUR).iter().map(|one| one.pid).collect()
        };
        assert_eq!(hung(100, 199, 3799), [] as [i32; 0], "its time is not over");
        assert_eq!(hung(100, 199, 3800), [20], "with its child, of which nothing more is said");
        assert_eq!(hung(100, 300, 3850), [] as [i32; 0], "a model's answer came meanwhile");
        assert_eq!(hung(300, 300, 9000), [] as [i32; 0], "the program went on after it had begun: a server that it keeps");
        let mut own = table();
        own[4].ours = true;
        assert!(super::hung(&own, 10, ModelCall { begun: 0, seen: 0 }, at(9000), HOUR).iter().all(|one| one.pid < 20), "it is timed");
    }

    #[test]
    fn a_program_that_calls_no_model_is_never_judged() {
        let mut dog = Watchdog::default();
        dog.limit(HOUR);
        assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()));
        let mut dog = self::dog(100, 199);
        dog.program_started(at(150));
        dog.called(ModelCall { begun: 100_000, seen: 199_000 });
        assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()), "it was another program's");
        let mut dog = self::dog(100, 199);
        dog.mode(BreakerMode::Off);
        assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()));
    }

    #[test]
    fn what_hangs_is_asked_and_then_killed_until_nothing_is_left() {
        let mut dog = dog(100, 199);
        assert_eq!(dog.wake(), Some(at(199 + 3610)));
        let all = members(&[(20, 200), (21, 201)]);
        let hung = Action::Hung { name: "p20".into(), ended: true };
        assert_eq!(dog.look(at(3810), &table(), Some(10), &[]), [hung, Action::Ask(all.clone())]);
        assert_eq!((dog.wake(), dog.look(at(3811), &table(), Some(10), &[])), (Some(at(3812)), Vec::new()));
        // Its parent ended when it was asked, a child left for a session of its own and forked; a hook of ours runs beside.
        let mut later = table();
        later.retain(|one| one.pid != 20);
        later[4] = Process { parent: 1, group: 21, session: 21, ..process(21, 1, 201) };
        later.extend([process(22, 21, 3811), Process { group: 23, session: 23, ..process(23, 1, 3811) }, process(30, 1, 3811)]);
        let all = members(&[(21, 201), (22, 3811), (23, 3811)]);
        assert_eq!(dog.look(at(3812), &later, Some(10), &[30]), [Action::Kill(all)]);
        later.retain(|one| ![21, 22, 23].contains(&one.pid));
        assert_eq!((dog.look(at(3813), &later, Some(10), &[30]), dog.ending.is_some()), (Vec::new(), false));
        // A number that is somebody else's by now is not it.
        let mut dog = self::dog(100, 199);
        dog.look(at(3810), &table(), Some(10), &[]);
        let mut reused = table();
        reused.truncate(4);
        reused.push(process(20, 12, 3700));
        assert_eq!((dog.look(at(3812), &reused, Some(10), &[]), dog.ending.is_some()), (Vec::new(), false));
    }

    #[test]
    fn what_cannot_be_killed_is_told_of_once() {
        let mut dog = dog(100, 199);
        dog.look(at(3810), &table(), Some(10), &[]);
        assert!(matches!(&dog.look(at(3812), &table(), Some(10), &[])[..], [Action::Kill(_)]));
        assert_eq!(dog.look(at(3817), &table(), Some(10), &[]), [Action::Left(2)]);
        assert_eq!(dog.look(at(3900), &table(), Some(10), &[]), []);
    }

    #[test]
    fn what_is_only_observed_is_told_of_once_and_lives() {
        let mut dog = dog(100, 199);
        dog.mode(BreakerMode::Observe);
        assert_eq!(dog.look(at(3810), &table(), Some(10), &[]), [Action::Hung { name: "p20".into(), ended: false }]);
        assert_eq!(dog.look(at(3820), &table(), Some(10), &[]), []);
    }
}
