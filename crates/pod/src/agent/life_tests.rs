//! Small histories of the program's life, without a process.

use spillway_wire::agent::DesiredState;

use super::*;
use crate::samples;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn settings(drain_hook: &[&str]) -> Settings {
    Settings {
        agent: "a-1".into(),
        display_name: "Ada".into(),
        heartbeat_period_seconds: 20,
        heartbeat_timeout_seconds: 1800,
        goodbye_timeout_seconds: 15,
        chat: false,
        canaries: Vec::new(),
        drain_hook: drain_hook.iter().map(|word| (*word).to_owned()).collect(),
        warn_hook: Vec::new(),
        checkpoint_hook: Vec::new(),
        preflight_command: Vec::new(),
        preflight_seconds: None,
        work: None,
        commands: Default::default(),
        untimed: Default::default(),
        wanted: DesiredState::default(),
    }
}

fn wanted(directive: Directive) -> Event {
    Event::Order(Order::Wanted(DesiredState { revision: "2".into(), directive, notices: Vec::new(), item: None, commands: None }))
}

fn running(drain_hook: &[&str]) -> Life {
    let mut life = Life::default();
    assert_eq!(life.on(at(0), Event::Order(Order::Start(Box::new(settings(drain_hook))))), [Action::Start]);
    life
}

/// The actions, without log lines.
fn done(life: &mut Life, now: u64, event: Event) -> Vec<Action> {
    let mut actions = life.on(at(now), event);
    actions.retain(|action| !matches!(action, Action::Log(_)));
    actions
}

#[test]
fn it_starts_once_and_only_when_told() {
    let mut life = Life::default();
    for event in [wanted(Directive::Run), wanted(Directive::Pause), wanted(Directive::Drain), Event::Empty, Event::Tick] {
        assert_eq!(life.on(at(0), event), []);
    }
    let start = || Event::Order(Order::Start(Box::new(settings(&[]))));
    assert_eq!(life.on(at(1), start()), [Action::Start]);
    assert_eq!(life.on(at(2), start()), [], "a sidecar that was restarted says it again");
}

#[test]
fn what_must_not_run_is_not_started() {
    let closed: [Event; 3] =
        [wanted(Directive::Stop), Event::Order(Order::Abandoned), Event::Order(Order::WallsDown(vec!["10.0.0.1:443".into()]))];
    for event in closed {
        let mut life = Life::default();
        let actions = life.on(at(0), event.clone());
        assert!(matches!(&actions[..], [Action::Log(_), Action::Leave(FAIL_CLOSED_EXIT_CODE)]), "{event:?}: {actions:?}");
        assert_eq!(life.on(at(1), Event::Order(Order::Start(Box::new(settings(&[]))))), [], "nor later");
    }
    assert_eq!(Life::default().on(at(0), Event::Terminate), [Action::Leave(143)]);
}

#[test]
fn a_program_that_cannot_be_started_ends_the_container() {
    assert_eq!(running(&[]).on(at(0), Event::NotStarted(127)), [Action::Leave(127)]);
}

#[test]
fn its_end_takes_what_it_leaves_behind_along() {
    let mut life = running(&[]);
    assert_eq!(life.on(at(1_000), Event::Ended(3)), [Action::AskAll]);
    assert_eq!(life.wake(), Some(at(3_000)));
    let mut clean = life.clone();
    assert_eq!(clean.on(at(1_001), Event::Empty), [Action::Leave(3)]);
    assert_eq!(life.on(at(3_000), Event::Tick), [Action::KillAll]);
    assert_eq!(life.on(at(3_050), Event::Tick), [Action::KillAll], "again: it may have forked");
    assert_eq!(life.on(at(3_060), Event::Empty), [Action::Leave(3)]);
    assert_eq!(life.on(at(3_070), Event::Empty), [], "it leaves once");
}

#[test]
fn what_cannot_be_killed_does_not_hold_the_container() {
    let mut life = running(&[]);
    life.on(at(0), Event::Ended(0));
    life.on(at(2_000), Event::Tick);
    assert!(matches!(&life.on(at(7_000), Event::Tick)[..], [Action::Log(_), Action::Leave(0)]));
}

#[test]
fn the_grace_is_for_the_hook_then_for_the_program_then_over() {
    let mut life = running(&["drain"]);
    assert_eq!(life.on(at(0), Event::Terminate), [Action::DrainHook(vec!["drain".into()])]);
    assert_eq!(life.wake(), Some(at(7_500)), "half of the grace");
    let mut quick = life.clone();
    assert_eq!(quick.on(at(100), Event::HookEnded), [Action::AskAll]);
    assert_eq!(quick.wake(), Some(at(14_000)), "a second before the kubelet kills us");
    assert_eq!(life.on(at(7_500), Event::Tick), [Action::AskAll], "a hook that hangs does not take it all");
    assert_eq!(life.on(at(7_600), Event::Ended(0)), [], "the end of one is not the end of all");
    assert_eq!(life.on(at(14_000), Event::Tick), [Action::KillAll]);
    assert_eq!(life.on(at(14_001), Event::Empty), [Action::Leave(0)]);
    // The program's end while the hook runs waits for the hook.
    let mut life = running(&["drain"]);
    life.on(at(0), Event::Terminate);
    assert_eq!(life.on(at(10), Event::Ended(7)), []);
    assert_eq!(life.on(at(20), Event::HookEnded), [Action::AskAll]);
    assert_eq!(life.on(at(20), Event::Empty), [Action::Leave(7)]);
}

#[test]
fn a_second_sigterm_hastens() {
    let mut life = running(&["drain"]);
    life.on(at(0), Event::Terminate);
    assert_eq!(life.on(at(10), Event::Terminate), [Action::AskAll]);
    assert_eq!(life.on(at(20), Event::Terminate), [Action::KillAll]);
    assert_eq!(life.on(at(30), Event::Terminate), []);
    life.on(at(31), Event::Ended(137));
    assert_eq!(life.on(at(31), Event::Empty), [Action::Leave(137)]);
}

#[test]
fn a_grace_of_a_second_still_asks_before_it_kills() {
    let mut life = Life::default();
    life.on(at(0), Event::Order(Order::Start(Box::new(Settings { goodbye_timeout_seconds: 1, ..settings(&[]) }))));
    assert_eq!(life.on(at(0), Event::Terminate), [Action::AskAll]);
    assert_eq!(life.wake(), Some(at(500)));
}

#[test]
fn being_told_to_stop_takes_two_seconds() {
    let mut life = running(&["drain"]);
    assert_eq!(done(&mut life, 0, wanted(Directive::Stop)), [Action::DrainHook(vec!["drain".into()])]);
    assert_eq!(done(&mut life, 1_000, Event::Tick), [Action::AskAll]);
    assert_eq!(done(&mut life, 1_500, wanted(Directive::Stop)), [], "said again, it takes no longer");
    assert_eq!(life.wake(), Some(at(2_000)));
    // The kubelet's SIGTERM, which comes too, makes it no longer and is no second one.
    assert_eq!(done(&mut life, 1_600, Event::Terminate), []);
    assert_eq!(life.wake(), Some(at(2_000)));
    assert_eq!(done(&mut life, 2_000, Event::Tick), [Action::KillAll]);
    life.on(at(2_000), Event::Ended(143));
    assert_eq!(done(&mut life, 2_001, Event::Empty), [Action::Leave(143)]);
}

#[test]
fn fallen_walls_end_it_at_once_and_silence_with_its_grace() {
    let mut life = running(&["drain"]);
    assert_eq!(done(&mut life, 0, Event::Order(Order::WallsDown(vec!["x:1".into()]))), [Action::AskAll], "no hook runs outside walls");
    assert_eq!(life.wake(), Some(at(2_000)));
    life.on(at(1), Event::Ended(0));
    assert_eq!(done(&mut life, 1, Event::Empty), [Action::Leave(FAIL_CLOSED_EXIT_CODE)]);
    let mut life = running(&["drain"]);
    assert_eq!(done(&mut life, 0, Event::Order(Order::Abandoned)), [Action::DrainHook(vec!["drain".into()])]);
    assert_eq!(done(&mut life, 1, Event::Order(Order::WallsDown(Vec::new()))), [Action::AskAll], "what is worse hastens");
    assert_eq!(life.wake(), Some(at(2_001)));
}

#[test]
fn a_drain_a_pause_and_a_lost_sidecar_end_nothing() {
    let mut life = running(&["drain"]);
    for event in [wanted(Directive::Drain), wanted(Directive::Pause), wanted(Directive::Run), Event::Empty, Event::Tick, Event::HookEnded] {
        assert_eq!(life.on(at(1_000_000_000), event), []);
    }
    assert_eq!(life.wake(), None);
}

fn serving() -> Life {
    let work = samples::per_item();
    let mut life = Life::default();
    assert_eq!(life.on(at(0), Event::Order(Order::Start(Box::new(Settings { work: Some(work), ..settings(&["drain"]) })))), []);
    life
}

#[test]
fn a_program_that_is_run_for_each_item_may_end_each_time() {
    let mut life = serving();
    for _ in 0..3 {
        life.busy();
        assert_eq!(life.on(at(10), Event::Ended(1)), []);
        assert_eq!(life.on(at(10), Event::Empty), []);
    }
    assert_eq!(life.wake(), None);
}

#[test]
fn between_two_items_there_is_nobody_to_drain() {
    let mut life = serving();
    life.busy();
    life.on(at(0), Event::Ended(0));
    assert_eq!(life.on(at(1), Event::Terminate), [Action::AskAll], "a warning's hook may run");
    assert_eq!(life.on(at(1), Event::Empty), [Action::Leave(143)]);
}

#[test]
fn with_an_item_in_hand_it_ends_as_any_program() {
    let mut life = serving();
    life.busy();
    assert_eq!(life.on(at(0), Event::Terminate), [Action::DrainHook(vec!["drain".into()])]);
    assert_eq!(life.on(at(10), Event::HookEnded), [Action::AskAll]);
    assert_eq!(life.on(at(20), Event::Ended(3)), []);
    assert_eq!(life.on(at(20), Event::Empty), [Action::Leave(3)]);
    let mut life = serving();
    life.busy();
    assert_eq!(done(&mut life, 0, Event::Order(Order::WallsDown(Vec::new()))), [Action::AskAll]);
    assert_eq!(done(&mut life, 2_000, Event::Tick), [Action::KillAll]);
    life.on(at(2_001), Event::Ended(137));
    assert_eq!(done(&mut life, 2_001, Event::Empty), [Action::Leave(FAIL_CLOSED_EXIT_CODE)]);
}
