use std::cell::RefCell;

use super::*;
use crate::samples::breakers;

const LIMITS: CommandLimits = CommandLimits { timeout_seconds: 120, max_timeout_seconds: 600 };

fn time(seconds: u64) -> BootTime {
    BootTime::from_millis(seconds * 1000)
}

/// Runs a command for its whole time limit, with this end.
fn run(commands: &mut Commands, seconds: &mut u64, how: CommandEnd, written: &RefCell<Vec<KeptBreaker>>) -> Option<CommandRejected> {
    let keep = |kept: &KeptBreaker| written.borrow_mut().push(*kept);
    match commands.begin(time(*seconds), 0.5, BeginCommand::default(), keep) {
        Begin::Answer(Reply::CommandBegun(CommandBegun { permit, timeout_milliseconds, untimed: _ })) => {
            *seconds += timeout_milliseconds / 1000;
            commands.end(time(*seconds), 0.5, CommandEnded { permit, how }, keep);
            None
        }
        Begin::Answer(Reply::CommandRejected(rejected)) => Some(rejected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn slow_time_outs_add_up_and_the_breaker_outlives_the_sidecar() {
    let written = RefCell::default();
    let mut seconds = 1000;
    let mut commands = Commands::new(time(seconds), None, None, None);
    commands.limit(time(seconds), LIMITS);
    for _ in 0..10 {
        assert_eq!(commands.state(), BreakerState::Closed);
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None);
    }
    assert_eq!(commands.state(), BreakerState::Open);
    let rejected = run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written).expect("it is open");
    assert_eq!(rejected.retry_after_milliseconds, 30_000);
    assert_eq!(rejected.message, "bash circuit breaker open for session: too many failures; do not retry within 30 s");
    // Another process, ten seconds later.
    let kept = serde_json::to_value(written.borrow().last().expect("it was written")).expect("JSON");
    assert_eq!(
        kept,
        serde_json::json!({"state": "Open", "epoch": 1, "opens": 1, "openUntil": (seconds + 30) * 1000, "counts": {"failed": 10, "opened": 1}})
    );
    assert_eq!(commands.counts(), CommandCounts { failed: 10, opened: 1 });
    let read = || serde_json::from_value::<KeptBreaker>(kept.clone()).ok();
    seconds += 10;
    let mut next = Commands::new(time(seconds), Some(LIMITS), None, read());
    assert_eq!(next.state(), BreakerState::Open);
    let rejected = run(&mut next, &mut seconds, CommandEnd::Exited(0), &written).expect("it is open still");
    assert_eq!(rejected.retry_after_milliseconds, 20_000);
    seconds += 20;
    for state in [BreakerState::HalfOpen, BreakerState::Closed] {
        assert_eq!(run(&mut next, &mut seconds, CommandEnd::Exited(0), &written), None);
        assert_eq!(next.state(), state);
    }
    let states: Vec<KeptState> = written.borrow().iter().map(|kept| kept.state).collect();
    assert_eq!(states, [KeptState::Open, KeptState::HalfOpen, KeptState::Closed], "each change once");
    assert_eq!(next.counts(), CommandCounts { failed: 10, opened: 1 }, "what was counted goes on");
}

#[test]
fn a_command_gets_what_it_asks_for_up_to_the_most() {
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    for (asked, given) in [(None, 120_000), (Some(5), 5), (Some(500_000), 500_000), (Some(86_400_000), 600_000)] {
        let reply = commands.begin(time(0), 0.5, BeginCommand { timeout_milliseconds: asked, unasked: None }, |_| {});
        let Begin::Answer(Reply::CommandBegun(begun)) = reply else { panic!("{reply:?}") };
        assert_eq!(begun.timeout_milliseconds, given, "{asked:?}");
    }
}

#[test]
fn a_command_that_asked_for_no_time_is_timed_where_a_model_may_have_wanted_it() {
    let unasked = |commands: &mut Commands, program_started| {
        let command = BeginCommand { timeout_milliseconds: None, unasked: Some(ObservedCommand { program_started }) };
        match commands.begin(time(100), 0.5, command, |_| {}) {
            Begin::Answer(Reply::CommandBegun(begun)) => Some(begun.timeout_milliseconds),
            Begin::Answer(Reply::CommandUntimed) => None,
            other => panic!("{other:?}"),
        }
    };
    let mut commands = Commands::new(time(0), None, None, None);
    commands.set_exemptions(TimeExemptions { names: Vec::new(), until_answer: false });
    assert_eq!(unasked(&mut commands, 0), None, "how long it may take is not known yet");
    commands.limit(time(0), LIMITS);
    assert_eq!(unasked(&mut commands, 0), Some(120_000), "a pool without models");
    commands.set_exemptions(TimeExemptions::default());
    assert_eq!(unasked(&mut commands, 0), None, "no model answered yet: it is the program, or a helper of it");
    commands.note_model_answer(time(50));
    assert_eq!(unasked(&mut commands, 50_001), None, "that was an answer to an earlier program");
    assert_eq!(unasked(&mut commands, 50_000), Some(120_000));
    for mode in [BreakerMode::Observe, BreakerMode::Off] {
        commands.apply_breakers(time(100), Some(&CommandBreakers { mode, ..breakers() }));
        assert_eq!(unasked(&mut commands, 0), None, "{mode:?} ends nothing");
        let asked = commands.begin(time(100), 0.5, BeginCommand::default(), |_| {});
        assert!(matches!(asked, Begin::Answer(Reply::CommandBegun(_))), "who asks for a time has one: {asked:?}");
    }
    commands.apply_breakers(time(100), Some(&breakers()));
    commands.set_exemptions(TimeExemptions { names: vec!["*".into()], until_answer: false });
    assert_eq!(unasked(&mut commands, 0), None, "the pool wants none timed");
}

#[test]
fn a_command_is_told_which_programs_are_meant_to_stay() {
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    commands.set_exemptions(TimeExemptions { names: vec!["vite".into()], until_answer: true });
    let reply = commands.begin(time(0), 0.5, BeginCommand::default(), |_| {});
    assert!(matches!(&reply, Begin::Answer(Reply::CommandBegun(begun)) if begun.untimed == ["vite"]), "{reply:?}");
}

#[test]
fn what_says_no_is_not_broken() {
    let written = RefCell::default();
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    for how in [CommandEnd::Exited(1), CommandEnd::Signalled, CommandEnd::Cancelled, CommandEnd::Exited(0)] {
        for _ in 0..100 {
            assert_eq!(run(&mut commands, &mut 0, how, &written), None, "{how:?}");
        }
    }
    assert!(written.borrow().is_empty(), "nothing changed");
}

#[test]
fn it_behaves_as_people_said_last() {
    let written = RefCell::default();
    let mut seconds = 1000;
    let mut commands = Commands::new(time(seconds), Some(LIMITS), None, None);
    commands.apply_breakers(time(seconds), Some(&breakers()));
    for how in [CommandEnd::Exited(42), CommandEnd::TimedOut, CommandEnd::NotStarted] {
        assert_eq!(run(&mut commands, &mut seconds, how, &written), None, "{how:?}");
    }
    let rejected = run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written).expect("three are enough");
    assert_eq!(rejected.retry_after_milliseconds, 5_000);
    commands.apply_breakers(time(seconds), Some(&CommandBreakers { mode: BreakerMode::Observe, ..breakers() }));
    assert_eq!(run(&mut commands, &mut seconds, CommandEnd::Exited(1), &written), None, "it is only observed");
    commands.apply_breakers(time(seconds), Some(&CommandBreakers { force: Some(BreakerForce::Open), ..breakers() }));
    let rejected = run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written).expect("a person holds it");
    assert!(rejected.message.contains("a person holds it open"), "{}", rejected.message);
    commands.apply_breakers(time(seconds), Some(&CommandBreakers { force: Some(BreakerForce::Closed), ..breakers() }));
    assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None);
    commands.apply_breakers(time(seconds), None);
    assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None, "what was said before holds");
    // The settings of an empty Breaker.
    let (failure_threshold, open_milliseconds, success_threshold) = (10, 30_000, 2);
    let defaults = CommandBreakers { failure_threshold, open_milliseconds, success_threshold, ..breakers() };
    commands.apply_breakers(time(seconds), Some(&defaults));
    seconds += 30;
    for _ in 0..2 {
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written), None);
    }
    for _ in 0..9 {
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None, "ten are needed again");
    }
}

#[test]
fn while_the_breaker_of_the_namespace_is_open_nothing_runs_and_then_one_is_tried() {
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    let open = |wait| Some(OpenGlobally { forced: false, retry_after_milliseconds: wait });
    let begin = |commands: &mut Commands, seconds| commands.begin(time(seconds), 0.5, BeginCommand::default(), |_| {});
    commands.apply_breakers(time(0), Some(&CommandBreakers { open_globally: open(30_000), ..breakers() }));
    let Begin::Answer(Reply::CommandRejected(rejected)) = begin(&mut commands, 10) else { panic!("it is open") };
    assert_eq!(rejected.retry_after_milliseconds, 20_000);
    assert_eq!(rejected.message, "bash circuit breaker open globally: too many failures; do not retry within 20 s");
    // The next leader does not know the state of the breaker yet.
    commands.apply_breakers(time(11), None);
    assert!(matches!(begin(&mut commands, 11), Begin::Answer(Reply::CommandRejected(_))), "it is open until somebody says that it is not");
    // Its time is over: the governor is asked, and refuses.
    let Begin::Try(first) = begin(&mut commands, 30) else { panic!("it is to be tried") };
    let Begin::Answer(Reply::CommandRejected(second)) = begin(&mut commands, 30) else { panic!("one question at a time") };
    assert!(second.message.contains("its probes have not ended yet") && second.retry_after_milliseconds == 1000, "{second:?}");
    let no = CommandRejected { message: "no".into(), retry_after_milliseconds: 2_000 };
    assert_eq!(commands.on_governor_answer(time(30), 0.5, first, Some(Err(no.clone()))), Reply::CommandRejected(no));
    assert!(matches!(begin(&mut commands, 31), Begin::Answer(Reply::CommandRejected(_))), "nobody is asked before that");
    // The governor gives a permit: the end is reported to it, and counts nowhere else.
    let Begin::Try(second) = begin(&mut commands, 32) else { panic!("it is to be tried") };
    assert!(second.command.id > first.command.id);
    let permit = CommandPermit { owner: 9, epoch: 8, id: 7 };
    let begun = commands.on_governor_answer(time(32), 0.5, second, Some(Ok(permit)));
    assert_eq!(begun, Reply::CommandBegun(CommandBegun { permit: second.command, timeout_milliseconds: 120_000, untimed: Vec::new() }));
    let ended = CommandEnded { permit: second.command, how: CommandEnd::TimedOut };
    let told = EndTry { permit, outcome: TryOutcome::Failure };
    assert_eq!(commands.end(time(33), 0.5, ended, |_| {}), Some(told));
    assert_eq!(commands.end(time(33), 0.5, ended, |_| {}), None, "once");
    assert_eq!(commands.counts().failed, 0);
    // No answer comes: the command runs without a permit.
    let Begin::Try(third) = begin(&mut commands, 34) else { panic!("it is to be tried") };
    assert!(matches!(commands.on_governor_answer(time(34), 0.5, third, None), Reply::CommandBegun(_)));
    let ended = CommandEnded { permit: third.command, how: CommandEnd::TimedOut };
    assert_eq!((commands.end(time(35), 0.5, ended, |_| {}), commands.counts().failed), (None, 1));
    // The breaker is closed: the governor is not asked.
    commands.apply_breakers(time(40), Some(&breakers()));
    assert!(matches!(begin(&mut commands, 40), Begin::Answer(Reply::CommandBegun(_))));
}

#[test]
fn rights_to_try_whose_commands_never_end_are_bounded() {
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    for id in 0..10 * MAX_PENDING_PROBES as u64 {
        let command = TryCommand { command: CommandPermit { owner: 1, epoch: 1, id }, timeout_milliseconds: 1_000 };
        commands.on_governor_answer(time(0), 0.5, command, Some(Ok(CommandPermit { owner: 9, epoch: 8, id })));
    }
    assert_eq!(commands.governor_permits.len(), MAX_PENDING_PROBES);
}

#[test]
fn a_command_that_nobody_timed_counts_like_one_that_timed_out() {
    let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
    for _ in 0..10 {
        commands.note_hung_command(time(1), 0.5, |_| {});
    }
    let reply = commands.begin(time(2), 0.5, BeginCommand::default(), |_| {});
    assert!(matches!(reply, Begin::Answer(Reply::CommandRejected(_))), "{reply:?}");
    commands.note_hung_command(time(2), 0.5, |_| {});
    assert_eq!(commands.counts(), CommandCounts { failed: 10, opened: 1 }, "what comes while it is open says nothing new");
}
