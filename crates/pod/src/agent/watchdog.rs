//! The watch-dog: commands that hang and that nobody times, because the program starts them by itself. Pure.
//!
//! A model's answer makes an agent run a command, and what the command said goes into the next call. So a process hangs that was
//! started below the program after its last call of a model had begun, and has lived since for longer than a command may while no
//! model was called. What was started before is no command that the program waits for: a launcher's real program and the helper
//! servers of a program were there before it called a model for the first time, and a server that an agent started went into a call
//! that followed. A program that never calls a model is never judged.
//!
//! A program may hold several conversations at a time, such as those of agents within it: while one waits for a command the others
//! call on. So a process hangs too that was started when the answer of one conversation had just ended, which has made no call since;
//! if all calls since then went on with other conversations that were there before. A call of which that is not known, and one that
//! begins a conversation, may be the one that followed.
//!
//! What always holds: nothing is ended but what hangs and what is below it; the program itself is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_wire::command::BreakerMode;
use spillway_wire::link::{Conversation, ModelCalls};

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

/// A command that an answer asked for is started at most so long (milliseconds) after its end ...
const STARTED_AFTER: u64 = 2_000;
/// ... or so long before it: a client reads that it is the end before the connection ends.
const STARTED_BEFORE: u64 = 1_000;

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
    called: Option<ModelCalls>,
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

    /// The calls of models so far.
    pub fn called(&mut self, called: ModelCalls) {
        let since = self.since.millis();
        if called.begun < since {
            return;
        }
        let ModelCalls { begun, seen, conversations, unknown } = called;
        let ours = |one: Conversation| (one.begun >= since).then(|| Conversation { first: one.first.max(since), ..one });
        let conversations = conversations.into_iter().filter_map(ours).collect();
        self.called = Some(ModelCalls { begun, seen, conversations, unknown: unknown.filter(|unknown| *unknown >= since) });
    }

    /// When to look next; none: there is nothing to look for.
    pub fn wake(&self) -> Option<BootTime> {
        if let Some(ending) = &self.ending {
            return Some(ending.kill_at);
        }
        let (most, called) = (self.most?, self.called.as_ref()?);
        // A command that was asked for by the answer that ended first is the first that may hang.
        let first = called.conversations.iter().filter_map(|one| one.ended).fold(called.seen, u64::min);
        let due = BootTime::from_millis(first).after(most).after(SLACK);
        (self.mode != BreakerMode::Off).then(|| due.max(self.look_at))
    }

    /// Looks at all processes. `own`: what is started by us beside the program, which is nobody's orphan.
    pub fn look(&mut self, now: BootTime, table: &[Process], program: Option<i32>, own: &[i32]) -> Vec<Action> {
        if self.ending.is_some() {
            return self.go_on(now, table, program, own);
        }
        self.look_at = now.after(LOOK_EACH);
        let (Some(most), Some(called), Some(program)) = (self.most, &self.called, program) else { return Vec::new() };
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
    let had_just_ended = |ended: u64| ended <= started.saturating_add(STARTED_BEFORE) && started <= ended.saturating_add(STARTED_AFTER);
    let waits = |one: &Conversation| one.begun < started && one.ended.is_some_and(had_just_ended);
    let of_another = |one: &Conversation| one.begun <= started || one.first <= started;
    called.unknown.is_none_or(|unknown| unknown <= started)
        && called.conversations.iter().all(of_another)
        && called.conversations.iter().any(waits)
}

/// The topmost processes below `program` that hang.
pub fn hung<'t>(table: &'t [Process], program: i32, called: &ModelCalls, now: BootTime, limit: Duration) -> Vec<&'t Process> {
    let limit = crate::clock::millis(limit);
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
            if hangs(one.started, called, now.millis(), limit) {
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
        dog.called(calls(begun, seen, &[], None));
        dog
    }

    /// The last call, conversations (first and last call, and the end of its answer), and the last call that is of none that is known.
    fn calls(begun: u64, seen: u64, conversations: &[(u64, u64, Option<u64>)], unknown: Option<u64>) -> ModelCalls {
        let of = |(first, begun, ended): &(u64, u64, Option<u64>)| Conversation {
            first: first * 1000,
            begun: begun * 1000,
            ended: ended.map(|ended| ended * 1000),
        };
        let conversations = conversations.iter().map(of).collect();
        ModelCalls { begun: begun * 1000, seen: seen * 1000, conversations, unknown: unknown.map(|unknown| unknown * 1000) }
    }

    fn members(pids: &[(i32, u64)]) -> BTreeMap<i32, u64> {
        pids.iter().map(|(pid, seconds)| (*pid, seconds * 1000)).collect()
    }

    #[test]
    fn only_what_began_with_the_last_call_and_outlived_its_time_hangs() {
        let hung = |begun: u64, seen: u64, now: u64| -> Vec<i32> {
            super::hung(&table(), 10, &calls(begun, seen, &[], None), at(now), HOUR).iter().map(|one| one.pid).collect()
        };
        assert_eq!(hung(100, 199, 3799), [] as [i32; 0], "its time is not over");
        assert_eq!(hung(100, 199, 3800), [20], "with its child, of which nothing more is said");
        assert_eq!(hung(100, 300, 3850), [] as [i32; 0], "a model's answer came meanwhile");
        assert_eq!(hung(300, 300, 9000), [] as [i32; 0], "the program went on after it had begun: a server that it keeps");
        let mut own = table();
        own[4].ours = true;
        let never = ModelCalls::default();
        assert!(super::hung(&own, 10, &never, at(9000), HOUR).iter().all(|one| one.pid < 20), "it is timed");
    }

    #[test]
    fn a_command_hangs_although_other_conversations_call_on() {
        // The command was started at 200, when the answer of a conversation had just ended.
        let waits = (100, 190, Some(199));
        let hung = |conversations: &[(u64, u64, Option<u64>)], unknown: Option<u64>, now: u64| -> Vec<i32> {
            let last = conversations.iter().map(|(_, begun, _)| *begun).chain(unknown).max().unwrap_or(0);
            let called = calls(last, now - 1, conversations, unknown);
            super::hung(&table(), 10, &called, at(now), HOUR).iter().map(|one| one.pid).collect()
        };
        let found = [20];
        assert_eq!(hung(&[waits, (50, 150, None)], None, 9000), found, "one that began before runs on");
        assert_eq!(hung(&[waits, (50, 8990, None)], None, 9000), found, "another conversation calls again and again");
        assert_eq!(hung(&[waits, (50, 8990, Some(8995))], Some(120), 9000), found, "what was called before it says nothing");
        assert_eq!(hung(&[waits, (50, 3799, None)], None, 3799), [] as [i32; 0], "its time is not over");
        assert_eq!(hung(&[(100, 300, Some(310)), (50, 8990, None)], None, 9000), [] as [i32; 0], "its conversation went on: a server");
        assert_eq!(hung(&[waits, (300, 8990, None)], None, 9000), [] as [i32; 0], "its conversation may have begun anew");
        assert_eq!(hung(&[waits, (50, 8990, None)], Some(300), 9000), [] as [i32; 0], "nobody knows what that call went on with");
        assert_eq!(hung(&[(100, 110, Some(120)), (50, 8990, None)], None, 9000), [] as [i32; 0], "another answer ended long before it");
        assert_eq!(hung(&[(100, 190, None), (50, 8990, None)], None, 9000), [] as [i32; 0], "its answer goes on");
        // A client reads the end of its answer before the connection ends.
        assert_eq!(hung(&[(100, 190, Some(201)), (50, 8990, None)], None, 9000), found);
    }

    #[test]
    fn the_watch_dog_looks_when_the_first_command_may_hang_and_forgets_what_another_program_called() {
        let mut dog = self::dog(100, 199);
        dog.called(calls(8000, 8000, &[(100, 190, Some(199)), (50, 8000, None)], None));
        assert_eq!(dog.wake(), Some(at(199 + 3610)));
        assert!(matches!(&dog.look(at(8000), &table(), Some(10), &[])[..], [Action::Hung { ended: true, .. }, Action::Ask(_)]));
        dog.program_started(at(150));
        dog.called(calls(8000, 8000, &[(100, 120, Some(140)), (50, 8000, None)], Some(130)));
        let ours = calls(8000, 8000, &[(150, 8000, None)], None);
        assert_eq!((dog.called.as_ref(), dog.wake()), (Some(&ours), Some(at(8000 + 3610))));
    }

    #[test]
    fn a_program_that_calls_no_model_is_never_judged() {
        let mut dog = Watchdog::default();
        dog.limit(HOUR);
        assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()));
        let mut dog = self::dog(100, 199);
        dog.program_started(at(150));
        dog.called(calls(100, 199, &[], None));
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
