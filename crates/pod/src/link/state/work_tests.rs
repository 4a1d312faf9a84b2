//! Tests of the sidecar's state about items: when they are claimed, and how they are reported. Tests of `SidecarWork` itself are
//! in `work_tests.rs`.

use spillway_wire::agent::{Preflight, PreflightState};

use super::*;
use crate::link::action::WorkAction;
use crate::link::retry::CallOutcome;

fn per_item() -> Settings {
    Settings { work: Some(samples::per_item()), ..settings() }
}

fn assignment() -> spillway_wire::work::Assignment {
    samples::assignment(3)
}

/// A sidecar of a pool with queues, whose program may start, at one second.
fn serving() -> (Link, Vec<Action>) {
    let mut link = new();
    link.connected();
    link.on_program_report(at(0), said(Program::Waiting));
    plan(&mut link, 0);
    link.registered(at(0), per_item());
    let before = plan(&mut link, 0);
    assert!(!before.iter().any(|action| matches!(action, Action::Work(_))), "not before the walls stand: {before:?}");
    link.reported(at(0));
    link.probed(at(1_000), Vec::new());
    let actions = plan(&mut link, 1_000);
    (link, actions)
}

#[test]
fn items_are_claimed_after_the_start_and_reported_as_held() {
    let (mut link, actions) = serving();
    assert!(
        matches!(&actions[..], [Action::RememberStart, Action::Tell(Order::Start(_)), Action::Work(WorkAction::Claim(25))]),
        "{actions:?}"
    );
    link.sidecar_work().on_claim_answer(at(2_000), CallOutcome::Done(Some(assignment())), Duration::ZERO, 1.0);
    let actions = plan(&mut link, 2_000);
    assert!(matches!(orders(&actions)[..], [Order::Item(_)]), "{actions:?}");
    let report = |actions: &[Action]| {
        actions.iter().find_map(|action| if let Action::Report(report) = action { Some(report.clone()) } else { None })
    };
    assert_eq!(report(&actions).expect("at once").held, Some(assignment().held));
    link.reported(at(2_000));
    // The start of a run is reported, but not at once, because runs may be many.
    link.on_program_report(at(2_100), Report { held: Some(assignment().held), ..said(Program::Running) });
    assert_eq!(report(&plan(&mut link, 2_100)), None);
    assert_eq!(report(&plan(&mut link, 3_000)).map(|report| report.program), Some(Program::Running));
    link.reported(at(3_000));
    assert!(link.all_told(at(3_000)) != link.is_connected(), "its end is awaited while somebody can tell it");
    link.finished(assignment().held, Outcome::Complete { result: None, changeset: None });
    assert!(plan(&mut link, 3_100).iter().any(|action| matches!(action, Action::Work(WorkAction::Finish(..)))));
    assert_eq!(report(&plan(&mut link, 23_000)).expect("due").held, Some(assignment().held), "until it is settled");
    link.sidecar_work().on_end_answer(at(23_000), &assignment().held, CallOutcome::Done(()), Duration::ZERO, 1.0);
    assert_eq!(link.report(at(23_001)).expect("known").held, None);
}

#[test]
fn an_agent_that_ends_or_pauses_claims_nothing() {
    type Change = fn(&mut Link);
    let changes: [Change; 4] = [
        |link| link.leave(at(1_500)),
        |link| drop(link.wanted(wanted("2", Directive::Pause))),
        |link| drop(link.wanted(wanted("2", Directive::Drain))),
        |link| link.end = Some(End::Abandoned),
    ];
    for change in changes {
        let (mut link, _) = serving();
        link.sidecar_work().on_claim_answer(at(1_500), CallOutcome::Done(None), Duration::ZERO, 1.0);
        change(&mut link);
        let actions = plan(&mut link, 5_000);
        assert!(!actions.iter().any(|action| matches!(action, Action::Work(WorkAction::Claim(_)))), "{actions:?}");
    }
}

#[test]
fn what_it_did_for_an_item_is_not_what_it_does_for_the_next() {
    let (mut link, _) = serving();
    link.progress(&Progress { action: "testing".into(), ..Progress::default() });
    link.progress(&Progress { percent: Some(40), ..Progress::default() });
    assert_eq!(link.report(at(2_000)).expect("known").action.as_deref(), Some("testing"), "a number alone takes no words away");
    link.finished(assignment().held, Outcome::Complete { result: None, changeset: None });
    assert_eq!(link.report(at(2_000)).expect("known").action, None);
}

#[test]
fn how_items_come_stays_as_it_was_when_the_program_was_let_start() {
    let (link, _) = serving();
    let run = |link: &Link| link.settings.as_ref().and_then(|settings| settings.work.as_ref()).map(|work| work.run);
    let other = per_item().work.map(|work| work::How { run: Run::LongRunning, ..work });
    for changed in [None, other] {
        let mut link = link.clone();
        link.registered(at(2_000), Settings { work: changed, ..per_item() });
        assert_eq!(run(&link), Some(Run::PerItem));
    }
    let mut link = link;
    let more = per_item().work.map(|work| work::How { max_turns: 9, ..work });
    link.registered(at(2_000), Settings { work: more.clone(), ..per_item() });
    assert_eq!(link.settings.as_ref().map(|settings| settings.work.clone()), Some(more), "all else may change");
    let mut fresh = new();
    fresh.registered(at(0), settings());
    fresh.registered(at(1), per_item());
    assert_eq!(run(&fresh), Some(Run::PerItem), "nothing was started yet");
}

/// The supervisor's report of its preflight.
fn checked(state: PreflightState) -> Report {
    Report { preflight: Some(Preflight { state, message: "no login".into() }), ..said(Program::Waiting) }
}

fn claims(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Work(WorkAction::Claim(_))))
}

#[test]
fn no_work_is_asked_for_before_the_preflight_passed() {
    let check = vec!["check".to_owned()];
    let long = per_item().work.map(|work| work::How { run: Run::LongRunning, ..work });
    let mut link = new();
    link.connected();
    link.on_program_report(at(0), said(Program::Waiting));
    plan(&mut link, 0);
    link.registered(at(0), Settings { preflight_command: check.clone(), ..per_item() });
    plan(&mut link, 0);
    link.reported(at(0));
    link.probed(at(1_000), Vec::new());
    let actions = plan(&mut link, 1_000);
    assert!(matches!(orders(&actions)[..], [Order::Start(_)]) && !claims(&actions), "{actions:?}");
    for (second, state) in [(2, PreflightState::Pending), (3, PreflightState::Failed)] {
        link.on_program_report(at(second * 1_000), checked(state));
        let actions = plan(&mut link, second * 1_000);
        assert!(!claims(&actions), "{state:?}: {actions:?}");
        let told = |action: &Action| matches!(action, Action::Report(report) if report.preflight == checked(state).preflight);
        assert!(actions.iter().any(told), "{state:?} is reported at once: {actions:?}");
        link.reported(at(second * 1_000));
    }
    // A program that asks anyway gets the reason.
    let mut asks = link.clone();
    asks.settings = Some(Settings { work: long, preflight_command: check, ..settings() });
    let Some(Answer::Refused(refusal)) = asks.next(at(3_000), 1, 25) else { panic!("it is refused at once") };
    assert_eq!(refusal.code, Code::PreflightNotPassed);
    assert!(refusal.message.contains("no login") && refusal.message.contains("agent.preflightCommand"), "{refusal}");
    link.on_program_report(at(4_000), checked(PreflightState::Passed));
    assert!(claims(&plan(&mut link, 4_000)));
    asks.on_program_report(at(4_000), checked(PreflightState::Passed));
    assert_eq!(asks.next(at(4_000), 1, 25), None, "it waits for an item");
}

#[test]
fn what_has_to_succeed_before_stays_as_it_was_when_the_program_was_let_start() {
    let (mut link, _) = serving();
    link.registered(at(2_000), Settings { preflight_command: vec!["check".into()], ..per_item() });
    link.sidecar_work().on_claim_answer(at(2_000), CallOutcome::Done(None), Duration::ZERO, 1.0);
    assert!(claims(&plan(&mut link, 5_000)), "its supervisor runs none now: nothing would ever pass");
}
