use super::*;
use crate::process::kind::Input;

const HOUR: Duration = Duration::from_secs(3600);

fn at(seconds: u64) -> BootTime {
    BootTime::from_millis(seconds * 1000)
}

fn process(pid: i32, parent: i32, seconds: u64) -> Process {
    Process { pid, parent, group: 10, session: 10, started: seconds * 1000, name: format!("p{pid}"), ..Process::default() }
}

/// A shell with a command, and with this standard input.
fn shell(pid: i32, parent: i32, seconds: u64, input: Input) -> Process {
    let words = format!("/bin/sh\0-c\0command {pid}\0");
    Process { name: "sh".into(), kind: Kind::of("sh", words.as_bytes(), None, input), ..process(pid, parent, seconds) }
}

/// A program with this name.
fn named(pid: i32, parent: i32, seconds: u64, name: &str) -> Process {
    Process { name: name.into(), kind: Kind::of(name, name.as_bytes(), None, Input::Other), ..process(pid, parent, seconds) }
}

/// Two minutes for a shell's command, an hour of silence for the rest.
fn limits() -> Limits {
    Limits { command: Duration::from_secs(120), silent: HOUR, untimed: TimeExemptions::default() }
}

fn call(begun: u64, seen: u64) -> ModelCalls {
    calls(begun, seen, &[], None)
}

/// The last call, conversations (first and last call, and the end of its answer), and the last call of an unknown conversation.
fn calls(begun: u64, seen: u64, conversations: &[(u64, u64, Option<u64>)], unknown: Option<u64>) -> ModelCalls {
    let of = |(first, begun, ended): &(u64, u64, Option<u64>)| Conversation {
        first: first * 1000,
        begun: begun * 1000,
        ended: ended.map(|ended| ended * 1000),
    };
    let conversations = conversations.iter().map(of).collect();
    let unknown = unknown.map(|unknown| unknown * 1000);
    ModelCalls { begun: begun * 1000, seen: seen * 1000, conversations, unknown, answered: None }
}

/// The supervisor (1), a launcher (10), the real program (11), a helper server (12), and a command (20) with a child (21).
fn table() -> Vec<Process> {
    vec![process(1, 0, 0), process(10, 1, 10), process(11, 10, 11), process(12, 11, 12), process(20, 11, 200), process(21, 20, 201)]
}

fn dog(begun: u64, seen: u64) -> Watchdog {
    let mut dog = Watchdog::default();
    dog.limit(limits());
    dog.set_model_calls(call(begun, seen));
    dog
}

/// The pids of the commands that are ended at this time.
fn ended(dog: &mut Watchdog, now: u64, table: &[Process]) -> Vec<i32> {
    dog.look(at(now), table, Some(10), &[])
        .iter()
        .filter_map(|action| match action {
            Action::Hung { pid, started: _, name: _, ended } => ended.then_some(*pid),
            Action::Ask(_) | Action::Kill(_) | Action::Unkillable(_) => None,
        })
        .collect()
}

fn members(pids: &[(i32, u64)]) -> BTreeMap<i32, u64> {
    pids.iter().map(|(pid, seconds)| (*pid, seconds * 1000)).collect()
}

#[test]
fn only_what_began_with_the_last_call_and_outlived_its_time_hangs() {
    let hung = |begun: u64, seen: u64, now: u64| ended(&mut dog(begun, seen), now, &table());
    assert_eq!(hung(100, 199, 3799), [] as [i32; 0], "its time is not over");
    assert_eq!(hung(100, 199, 3800), [20], "with its child, of which nothing more is said");
    assert_eq!(hung(100, 300, 3850), [] as [i32; 0], "a model's answer came meanwhile");
    assert_eq!(hung(300, 300, 9000), [] as [i32; 0], "the program went on after it had begun: a server that it keeps");
    let mut own = table();
    own[4].own_binary = true;
    assert!(ended(&mut dog(0, 0), 9000, &own).iter().all(|pid| *pid < 20), "it is timed");
}

#[test]
fn a_command_hangs_although_other_conversations_call_on() {
    // The command was started at 200, when the answer of a conversation had just ended.
    let waits = (100, 190, Some(199));
    let hung = |conversations: &[(u64, u64, Option<u64>)], unknown: Option<u64>, now: u64| -> Vec<i32> {
        let last = conversations.iter().map(|(_, begun, _)| *begun).chain(unknown).max().unwrap_or(0);
        let called = calls(last, now - 1, conversations, unknown);
        let mut dog = Watchdog::default();
        dog.limit(limits());
        dog.set_model_calls(called);
        ended(&mut dog, now, &table())
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
    dog.set_model_calls(calls(8000, 8000, &[(100, 190, Some(199)), (50, 8000, None)], None));
    assert_eq!(dog.wake(), Some(at(199 + 3600)));
    assert!(matches!(&dog.look(at(8000), &table(), Some(10), &[])[..], [Action::Hung { ended: true, .. }, Action::Ask(_)]));
    dog.program_started(at(150));
    dog.set_model_calls(calls(8000, 8000, &[(100, 120, Some(140)), (50, 8000, None)], Some(130)));
    let ours = calls(8000, 8000, &[(150, 8000, None)], None);
    assert_eq!((dog.model_calls.as_ref(), dog.wake()), (Some(&ours), Some(at(8000 + 3600))));
}

#[test]
fn a_shells_command_has_its_time_whatever_the_program_does_meanwhile() {
    // The shells of a launcher and of a helper, from before the first answer; a command, with the process that it waits for.
    let mut all = vec![process(1, 0, 0), process(10, 1, 10), shell(11, 10, 11, Input::Other), process(12, 11, 12)];
    all.extend([shell(13, 12, 150, Input::Program), shell(20, 12, 200, Input::Program), named(21, 20, 200, "sleep")]);
    let answered = |answered: u64| {
        let mut dog = dog(199, 199);
        assert_eq!(dog.wake(), Some(at(199 + 3600)), "no model answered yet");
        dog.set_model_calls(ModelCalls { answered: Some(answered * 1000), ..call(300, 319) });
        dog
    };
    let mut dog = answered(199);
    assert_eq!(ended(&mut dog, 319, &all), [] as [i32; 0], "a second is left");
    assert_eq!(dog.wake(), Some(at(320)), "it is ended at its time");
    let Some(Action::Hung { name, .. }) = dog.look(at(320), &all, Some(10), &[]).first().cloned() else { panic!("it hangs") };
    assert_eq!(name, "sh (sleep)");
    // The start of a process is exact to a hundredth of a second.
    let mut soon = self::dog(199, 199);
    soon.set_model_calls(ModelCalls { answered: Some(200_009), ..call(300, 319) });
    assert_eq!(ended(&mut soon, 320, &all), [20]);
    assert_eq!(ended(&mut answered(201), 9000, &all), [] as [i32; 0], "nothing was told of an answer before it");
    // The next program has its own first answer.
    let mut next = answered(199);
    next.program_started(at(10_000));
    next.set_model_calls(ModelCalls { answered: Some(9_999_000), ..call(9_999, 9_999) });
    assert_eq!((next.wake(), ended(&mut next, 20_000, &all)), (None, Vec::new()));
    // A pool without models waits for no answer.
    let mut without = Watchdog::default();
    without.limit(Limits { untimed: TimeExemptions { names: Vec::new(), until_answer: false }, ..limits() });
    assert_eq!((without.wake(), ended(&mut without, 320, &all)), (Some(at(0)), vec![11]), "the topmost");
}

#[test]
fn it_looks_often_enough_to_find_a_command_in_its_time() {
    for (command, each) in [(2, 1), (20, 5), (3600, 10)] {
        let mut dog = Watchdog::default();
        let untimed = TimeExemptions { names: Vec::new(), until_answer: false };
        dog.limit(Limits { command: Duration::from_secs(command), untimed, ..limits() });
        dog.look(at(100), &table(), Some(10), &[]);
        assert_eq!(dog.wake(), Some(at(100 + each)), "{command}");
    }
}

#[test]
fn what_reads_from_a_terminal_or_is_meant_to_stay_is_left_alone() {
    let all = |input| {
        let program = [process(1, 0, 0), process(10, 1, 10)];
        let server = [shell(20, 10, 200, input), named(21, 20, 200, "npm"), shell(22, 21, 200, input), named(23, 22, 200, "vite")];
        let other = named(30, 10, 200, "server");
        [&program[..], &server[..], &[other]].concat()
    };
    let dog = |names: &[&str]| {
        let mut dog = dog(199, 199);
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        dog.limit(Limits { untimed: TimeExemptions { names, until_answer: true }, ..limits() });
        dog.set_model_calls(ModelCalls { answered: Some(199_000), ..call(199, 199) });
        dog
    };
    let hung = |names: &[&str], input| ended(&mut dog(names), 9000, &all(input));
    assert_eq!(hung(&[], Input::Other), [20, 30]);
    assert_eq!(hung(&["vite"], Input::Other), [30], "and what is above it");
    assert_eq!(hung(&["npm", "server"], Input::Other), [] as [i32; 0], "and what is below it");
    assert_eq!(hung(&["server"], Input::Terminal), [] as [i32; 0]);
    let mut none = dog(&["*"]);
    assert_eq!((none.wake(), ended(&mut none, 9000, &all(Input::Other))), (None, Vec::new()));
}

#[test]
fn a_server_that_a_client_keeps_is_left_alone_and_a_command_below_it_is_not() {
    let program = [process(1, 0, 0), process(10, 1, 10), named(20, 10, 200, "codex-code-mode-host")];
    let below = [process(21, 20, 200), shell(22, 10, 200, Input::Other)];
    let mut dog = dog(199, 199);
    dog.set_model_calls(ModelCalls { answered: Some(199_000), ..call(199, 199) });
    assert_eq!(ended(&mut dog, 9000, &[&program[..], &below].concat()), [22, 21]);
}

#[test]
fn what_waits_for_a_command_that_was_given_a_time_is_left_alone_as_long() {
    let mut dog = Watchdog::default();
    dog.limit(Limits { untimed: TimeExemptions { names: Vec::new(), until_answer: false }, ..limits() });
    let above = [process(1, 0, 0), process(10, 1, 10), shell(20, 10, 200, Input::Other)];
    let hung = |dog: &mut Watchdog, below: &[Process]| ended(dog, 9000, &[&above[..], below].concat());
    let exec = |ours: bool, name: &str| [Process { own_binary: ours, name: name.into(), ..process(21, 20, 200) }];
    assert_eq!(hung(&mut dog.clone(), &exec(true, "sh")), [20], "a timed shell was given none");
    assert_eq!(hung(&mut dog.clone(), &exec(false, "spillway")), [20], "it only has its name");
    assert_eq!(hung(&mut dog, &exec(true, "spillway")), [] as [i32; 0]);
    assert_eq!(hung(&mut dog, &[]), [] as [i32; 0], "it is over, and its shell may be about to end");
    assert_eq!(hung(&mut dog, &[]), [20]);
}

#[test]
fn a_program_that_calls_no_model_is_never_judged() {
    let mut dog = Watchdog::default();
    dog.limit(limits());
    assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()));
    let mut dog = self::dog(100, 199);
    dog.program_started(at(150));
    dog.set_model_calls(call(100, 199));
    assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()), "it was another program's");
    let mut dog = self::dog(100, 199);
    dog.mode(BreakerMode::Off);
    assert_eq!((dog.wake(), dog.look(at(90_000), &table(), Some(10), &[])), (None, Vec::new()));
}

#[test]
fn what_hangs_is_asked_and_then_killed_until_nothing_is_left() {
    let mut dog = dog(100, 199);
    assert_eq!(dog.wake(), Some(at(199 + 3600)));
    let all = members(&[(20, 200), (21, 201)]);
    let hung = Action::Hung { pid: 20, started: 200_000, name: "p20 (p21)".into(), ended: true };
    assert_eq!(dog.look(at(3810), &table(), Some(10), &[]), [hung, Action::Ask(all.clone())]);
    assert_eq!((dog.wake(), dog.look(at(3811), &table(), Some(10), &[])), (Some(at(3812)), Vec::new()));
    // The parent ended when it was asked. A child made its own session and forked. A hook of ours runs at the same time.
    let mut later = table();
    later.retain(|one| one.pid != 20);
    later[4] = Process { parent: 1, group: 21, session: 21, ..process(21, 1, 201) };
    later.extend([process(22, 21, 3811), Process { group: 23, session: 23, ..process(23, 1, 3811) }, process(30, 1, 3811)]);
    let all = members(&[(21, 201), (22, 3811), (23, 3811)]);
    assert_eq!(dog.look(at(3812), &later, Some(10), &[30]), [Action::Kill(all)]);
    later.retain(|one| ![21, 22, 23].contains(&one.pid));
    assert_eq!((dog.look(at(3813), &later, Some(10), &[30]), dog.ending.is_some()), (Vec::new(), false));
    // A pid that belongs to another process by now does not count.
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
    assert_eq!(dog.look(at(3817), &table(), Some(10), &[]), [Action::Unkillable(2)]);
    assert_eq!(dog.look(at(3900), &table(), Some(10), &[]), []);
}

#[test]
fn what_is_only_observed_is_told_of_once_and_lives() {
    let mut dog = dog(100, 199);
    dog.mode(BreakerMode::Observe);
    assert_eq!(
        dog.look(at(3810), &table(), Some(10), &[]),
        [Action::Hung { pid: 20, started: 200_000, name: "p20 (p21)".into(), ended: false }]
    );
    assert_eq!(dog.look(at(3820), &table(), Some(10), &[]), []);
}
