//! Tables and small histories of the sidecar's state, without a clock, a socket or a gateway.

use spillway_wire::agent::Directive;
use spillway_wire::command::{CommandBreakers, OpenGlobally};

use spillway_wire::link::Order;

use super::*;
use crate::samples;

#[path = "state/work_tests.rs"]
mod work_tests;

const LOOK_EACH: Duration = Duration::from_secs(60);

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn wanted(revision: &str, directive: Directive) -> DesiredState {
    DesiredState { revision: revision.into(), directive, notices: Vec::new(), item: None, commands: None }
}

fn settings() -> Settings {
    Settings {
        agent: "a-1".into(),
        display_name: "Ada".into(),
        heartbeat_period_seconds: 20,
        heartbeat_timeout_seconds: 1800,
        goodbye_timeout_seconds: 15,
        chat: false,
        canaries: vec!["10.0.0.1:443".into()],
        drain_hook: Vec::new(),
        checkpoint_hook: Vec::new(),
        warn_hook: Vec::new(),
        preflight_command: Vec::new(),
        preflight_seconds: None,
        work: None,
        commands: Default::default(),
        untimed: Default::default(),
        wanted: wanted("1", Directive::Run),
    }
}

fn said(program: Program) -> Report {
    Report::of(program)
}

fn reachable() -> Vec<String> {
    vec!["10.0.0.1:443".to_owned()]
}

fn new() -> Link {
    Link::new(at(0), LOOK_EACH, KeptState::default())
}

fn plan(link: &mut Link, now: u64) -> Vec<Action> {
    link.plan(at(now)).0
}

/// The orders among the actions.
fn orders(actions: &[Action]) -> Vec<Order> {
    let order = |action: &Action| match action {
        Action::Tell(order) => Some(order.clone()),
        Action::Register | Action::Report(_) | Action::Probe(_) | Action::RememberStart | Action::RememberSettings(_) | Action::Work(_) => {
            None
        }
    };
    actions.iter().filter_map(order).collect()
}

/// A sidecar whose program has started, at one second. The next report is due at 21 s, the next test of the canary at 61 s.
fn started() -> Link {
    let mut link = new();
    link.connected();
    link.on_program_report(at(0), said(Program::Waiting));
    plan(&mut link, 0);
    link.note_answer(at(0));
    link.registered(at(0), settings());
    plan(&mut link, 0);
    link.reported(at(0));
    link.probed(at(1_000), Vec::new());
    link.on_program_report(at(1_000), said(Program::Running));
    let actions = plan(&mut link, 1_000);
    assert!(orders(&actions).iter().any(|order| matches!(order, Order::Start(_))), "{actions:?}");
    link.reported(at(1_000));
    link
}

#[test]
fn it_registers_first_and_again_until_somebody_answers() {
    let mut link = new();
    link.connected();
    assert_eq!(plan(&mut link, 0), [Action::Register]);
    assert_eq!(plan(&mut link, 5_000), [], "one call at a time");
    link.call_failed(at(5_000), Duration::ZERO, 1.0);
    assert_eq!(link.plan(at(5_000)), (Vec::new(), at(5_100)));
    assert_eq!(plan(&mut link, 5_100), [Action::Register]);
    link.call_failed(at(5_100), Duration::from_secs(7), 1.0);
    assert_eq!(link.plan(at(5_200)).1, at(12_100), "the gateway may ask for more");
}

#[test]
fn the_backoff_ends_at_ten_seconds() {
    let mut link = new();
    for _ in 0..40 {
        plan(&mut link, 1_000_000);
        link.lane.busy = true;
        link.call_failed(at(0), Duration::ZERO, 1.0);
    }
    assert_eq!(link.lane.not_before, at(10_000));
}

#[test]
fn the_program_starts_after_registering_and_a_look_that_found_nothing() {
    let mut link = new();
    link.connected();
    plan(&mut link, 0);
    assert_eq!(link.revision(), None);
    assert!(matches!(link.registered(at(100), settings()), Action::RememberSettings(_)));
    let actions = plan(&mut link, 100);
    assert_eq!(actions[0], Action::Tell(Order::Wanted(wanted("1", Directive::Run))), "{actions:?}");
    assert_eq!(actions[1], Action::Probe(reachable()));
    assert!(matches!(&actions[2], Action::Report(report) if report.program == Program::Waiting));
    link.reported(at(110));

    // The program is held back, the address is reported, and the test is repeated each second.
    link.probed(at(350), reachable());
    let (actions, wake) = link.plan(at(350));
    assert_eq!((actions, wake), (Vec::new(), at(1_100)), "not more than one report a second");
    let actions = plan(&mut link, 1_100);
    assert!(matches!(&actions[..], [Action::Report(report)] if report.reachable == reachable()), "{actions:?}");
    link.reported(at(1_110));
    assert_eq!(plan(&mut link, 1_350), [Action::Probe(reachable())]);
    link.probed(at(1_400), Vec::new());
    let actions = plan(&mut link, 1_400);
    assert_eq!(actions, [Action::RememberStart, Action::Tell(Order::Start(Box::new(settings())))], "written down before it is told");
    assert_eq!(link.revision().as_deref(), Some("1"));
    assert_eq!(plan(&mut link, 1_500), [], "told once");
}

#[test]
fn a_program_that_must_not_run_gets_no_order_to_start() {
    for directive in [Directive::Stop, Directive::Drain] {
        let mut link = new();
        link.connected();
        plan(&mut link, 0);
        link.registered(at(0), Settings { wanted: wanted("1", directive), ..settings() });
        plan(&mut link, 0);
        link.probed(at(1), Vec::new());
        assert!(!link.plan(at(1)).0.iter().any(|action| matches!(action, Action::Tell(Order::Start(_)))), "{directive:?}");
    }
}

#[test]
fn a_look_from_before_the_registration_lets_nothing_start() {
    // A restarted sidecar runs the canary before it is registered, because the program may run.
    let mut link = Link::new(at(0), LOOK_EACH, KeptState { settings: Some(settings()), let_start: true, ..KeptState::default() });
    link.connected();
    assert_eq!(plan(&mut link, 0), [Action::Probe(reachable()), Action::Register]);
    link.registered(at(10), settings());
    link.probed(at(20), Vec::new());
    let actions = plan(&mut link, 20);
    assert_eq!(orders(&actions), [Order::Wanted(wanted("1", Directive::Run))]);
    assert!(actions.contains(&Action::Probe(reachable())), "the next look is due at once");
    link.probed(at(30), Vec::new());
    assert_eq!(orders(&plan(&mut link, 30)), [Order::Start(Box::new(settings()))], "the supervisor knows whether it started before");
}

#[test]
fn walls_that_fall_end_the_program_at_the_second_look() {
    let mut link = started();
    assert!(plan(&mut link, 61_000).contains(&Action::Probe(reachable())));
    link.reported(at(61_000));
    link.probed(at(61_250), reachable());
    assert!(plan(&mut link, 61_250).is_empty(), "once may be an engine that was restarted");
    assert_eq!(plan(&mut link, 62_250), [Action::Probe(reachable())]);
    link.probed(at(62_300), reachable());
    let actions = plan(&mut link, 62_300);
    assert_eq!(actions[0], Action::Tell(Order::WallsDown(reachable())));
    assert!(matches!(&actions[1], Action::Report(report) if report.reachable == reachable()), "{actions:?}");
    // A later test that reaches no address changes nothing.
    link.probed(at(63_300), Vec::new());
    link.disconnected();
    link.connected();
    assert_eq!(orders(&plan(&mut link, 63_300)).last(), Some(&Order::WallsDown(reachable())));
}

#[test]
fn one_look_that_finds_walls_open_is_forgotten() {
    let mut link = started();
    for (now, found) in [(61_000, reachable()), (62_000, Vec::new()), (122_000, reachable()), (123_000, Vec::new())] {
        plan(&mut link, now);
        link.probed(at(now), found);
        link.reported(at(now));
        assert_eq!(orders(&plan(&mut link, now)), [], "at {now}");
    }
}

#[test]
fn silence_from_everyone_ends_the_program_and_any_answer_is_none() {
    let over = 1_800_000;
    let mut link = started();
    link.note_answer(at(0));
    link.unanswered();
    link.unanswered();
    assert_eq!(orders(&plan(&mut link, over)), [], "a machine that slept asks first");
    link.unanswered();
    assert_eq!(orders(&plan(&mut link, over - 1)), []);
    let mut refused = link.clone();
    refused.note_answer(at(over - 1));
    refused.refused(at(over - 1), Code::GovernorAway);
    assert_eq!(orders(&plan(&mut refused, over)), [], "a refusal is an answer");
    assert_eq!(orders(&plan(&mut link, over)), [Order::Abandoned]);
    link.note_answer(at(over + 1));
    link.disconnected();
    link.connected();
    let told = orders(&plan(&mut link, over + 1));
    assert_eq!(told.last(), Some(&Order::Abandoned), "it stays");
    assert!(!told.iter().any(|order| matches!(order, Order::Start(_))));
}

#[test]
fn an_agent_that_never_registered_is_not_abandoned() {
    let mut link = new();
    link.connected();
    for _ in 0..10 {
        link.unanswered();
    }
    assert_eq!(orders(&plan(&mut link, u64::MAX / 2)), []);
}

#[test]
fn the_silence_goes_on_over_a_restart() {
    let remembered = KeptState { settings: Some(settings()), last_answer: Some(at(0)), let_start: true, ..KeptState::default() };
    let mut link = Link::new(at(1_799_000), LOOK_EACH, remembered.clone());
    link.connected();
    (0..3).for_each(|_| link.unanswered());
    assert_eq!(orders(&plan(&mut link, 1_800_000)), [Order::Abandoned]);
    // A stored time in the future can only come from another machine.
    let link = Link::new(at(5), LOOK_EACH, KeptState { last_answer: Some(at(9)), ..remembered });
    assert_eq!(link.last_answer(), at(5));
}

#[test]
fn being_no_agent_has_to_be_said_more_than_once() {
    for code in [Code::NotAnAgent, Code::AgentEnded] {
        let mut link = started();
        // Three times in one moment are one.
        for now in [10_000, 10_001, 10_002] {
            link.refused(at(now), code);
        }
        assert_eq!(orders(&plan(&mut link, 10_002)), []);
        link.refused(at(15_002), code);
        assert_eq!(orders(&plan(&mut link, 15_002)), []);
        let mut known = link.clone();
        known.accepted();
        known.refused(at(20_002), code);
        assert_eq!(orders(&plan(&mut known, 20_002)), [], "known in between");
        link.refused(at(20_002), code);
        assert_eq!(orders(&plan(&mut link, 20_002)), [Order::Wanted(wanted("1", Directive::Stop))]);
    }
}

#[test]
fn being_no_agent_for_a_minute_is_enough() {
    let mut link = started();
    link.refused(at(10_000), Code::NotAnAgent);
    assert_eq!(orders(&plan(&mut link, 69_999)), []);
    assert_eq!(orders(&plan(&mut link, 70_000)), [Order::Wanted(wanted("1", Directive::Stop))]);
}

#[test]
fn before_the_first_registration_nobody_knows_us_and_that_is_no_verdict() {
    let mut link = new();
    link.connected();
    for second in 0..1_000 {
        plan(&mut link, second * 1000);
        link.refused(at(second * 1000), Code::NotAnAgent);
        link.call_failed(at(second * 1000), Duration::ZERO, 0.5);
    }
    assert!(link.end.is_none());
    // Other refusals never end the program.
    let mut link = started();
    for second in 0..1_000 {
        link.refused(at(second * 1000), Code::InvalidToken);
    }
    assert!(link.end.is_none());
}

#[test]
fn reports_go_each_period_and_at_once_when_something_changed() {
    let mut link = started();
    assert_eq!(link.plan(at(2_000)), (Vec::new(), at(21_000)));
    let actions = plan(&mut link, 21_000);
    assert!(matches!(&actions[..], [Action::Report(report)] if report.silent_ms == 20_000), "it was silent since: {actions:?}");
    link.reported(at(21_000));
    link.note_question(Some("testing".into()));
    let told = Action::Tell(Order::Activity { action: Some("testing".into()), called: None });
    assert_eq!(link.plan(at(21_500)), (vec![told], at(22_000)), "not more than one a second");
    let actions = plan(&mut link, 22_000);
    assert!(matches!(&actions[..], [Action::Report(report)] if report.action.as_deref() == Some("testing")));
    // Lost: it is still news.
    link.call_failed(at(22_000), Duration::ZERO, 1.0);
    assert_eq!(link.plan(at(22_100)), (Vec::new(), at(23_000)));
    assert!(matches!(&plan(&mut link, 23_000)[..], [Action::Report(_)]));
    link.reported(at(23_000));
    for change in [
        Report { program: Program::Frozen, frozen_ms: 5, ..said(Program::Running) },
        Report { attached: true, ..said(Program::Frozen) },
        Report { notices_seen: 7, attached: true, ..said(Program::Frozen) },
    ] {
        let now = link.sent.as_ref().map_or(0, |(sent, _)| sent.millis()) + 1_000;
        link.on_program_report(at(now), change.clone());
        assert!(matches!(&plan(&mut link, now)[..], [Action::Report(_)]), "{change:?}");
        link.reported(at(now));
        assert!(link.all_reported(at(now)));
    }
}

#[test]
fn that_the_program_was_started_is_reported_at_once() {
    let mut link = new();
    link.connected();
    link.on_program_report(at(0), said(Program::Waiting));
    link.registered(at(0), settings());
    assert!(matches!(&plan(&mut link, 0)[..], [.., Action::Report(report)] if report.program == Program::Waiting));
    link.reported(at(10));
    link.probed(at(100), Vec::new());
    assert!(matches!(&orders(&plan(&mut link, 100))[..], [Order::Start(_)]));
    link.on_program_report(at(150), said(Program::Running));
    assert!(matches!(&plan(&mut link, 150)[..], [Action::Report(report)] if report.program == Program::Running));
}

#[test]
fn time_that_nobody_reports_counts_as_silent_and_frozen() {
    let mut link = started();
    link.on_program_report(at(2_000), Report { silent_ms: 500, frozen_ms: 100, ..said(Program::Frozen) });
    let report = link.report(at(10_000)).expect("known");
    assert_eq!((report.silent_ms, report.frozen_ms), (8_500, 8_100));
    link.on_program_report(at(10_000), Report { silent_ms: 9_000, ..said(Program::Running) });
    assert_eq!(link.report(at(11_000)).expect("known").frozen_ms, 0);
    link.ended(at(12_000));
    assert_eq!(link.report(at(12_000)).expect("known").program, Program::Ended);
}

#[test]
fn after_a_restart_nothing_is_said_of_a_program_before_its_supervisor_did() {
    let mut link = Link::new(at(0), LOOK_EACH, KeptState { let_start: true, action: Some("testing".into()), ..KeptState::default() });
    assert_eq!(plan(&mut link, 0), [Action::Register]);
    link.registered(at(0), settings());
    assert!(!plan(&mut link, 0).iter().any(|action| matches!(action, Action::Report(_))));
    link.connected();
    link.on_program_report(at(1), said(Program::Running));
    let actions = plan(&mut link, 1);
    assert!(actions.iter().any(|action| matches!(action, Action::Report(report) if report.action.as_deref() == Some("testing"))));
    assert!(!actions.contains(&Action::RememberStart));
}

#[test]
fn what_is_wanted_is_told_when_it_changed_and_on_every_new_connection() {
    let mut link = started();
    assert_eq!(link.wanted(wanted("1", Directive::Run)), None);
    assert!(matches!(link.wanted(wanted("2", Directive::Pause)), Some(Action::RememberSettings(_))));
    assert_eq!(orders(&plan(&mut link, 2_000)), [Order::Wanted(wanted("2", Directive::Pause))]);
    assert_eq!(orders(&plan(&mut link, 2_001)), []);
    link.disconnected();
    link.wanted(wanted("3", Directive::Run));
    assert_eq!(orders(&plan(&mut link, 2_002)), []);
    link.connected();
    assert!(matches!(&orders(&plan(&mut link, 2_003))[..], [Order::Start(settings)] if settings.wanted.revision == "3"));
}

#[test]
fn a_leader_that_says_nothing_of_breakers_changes_nothing_about_them() {
    let open = Some(OpenGlobally { forced: false, retry_after_milliseconds: 30_000 });
    let told = CommandBreakers { open_globally: open, ..samples::breakers() };
    let mut link = started();
    link.wanted(DesiredState { commands: Some(Box::new(told.clone())), ..wanted("1.2", Directive::Run) });
    let kept = |link: &Link| link.current().commands.map(|breakers| *breakers);
    link.wanted(wanted("2.1", Directive::Run));
    assert_eq!(kept(&link), Some(told.clone()));
    link.registered(at(2_000), settings());
    assert_eq!(kept(&link), Some(told.clone()));
    let closed = CommandBreakers { open_globally: None, ..told };
    link.wanted(DesiredState { commands: Some(Box::new(closed.clone())), ..wanted("2.2", Directive::Run) });
    assert_eq!(kept(&link), Some(closed));
}

#[test]
fn a_thousand_questions_are_two_words_to_the_supervisor() {
    let mut link = started();
    let told = |action: Option<&str>| Order::Activity { action: action.map(str::to_owned), called: None };
    let mut words = Vec::new();
    for millis in 2_000..3_000 {
        link.note_question((millis == 2_500).then(|| "testing".to_owned()));
        words.extend(orders(&plan(&mut link, millis)));
    }
    assert_eq!(words, [told(None)]);
    assert_eq!(orders(&plan(&mut link, 3_000)), [told(Some("testing"))], "what it said is not lost");
    assert_eq!(orders(&plan(&mut link, 9_000)), []);
}

#[test]
fn the_supervisor_is_told_when_a_model_was_called() {
    let mut link = started();
    let calls = |begun, seen, answered| ModelCalls { begun, seen, answered, ..ModelCalls::default() };
    link.note_model_calls(calls(2_000, 2_000, None));
    let told = |begun, seen, answered| Order::Activity { action: None, called: Some(calls(begun, seen, answered)) };
    assert_eq!(orders(&plan(&mut link, 2_000)), [told(2_000, 2_000, None)]);
    link.note_model_calls(calls(2_000, 2_700, None));
    assert_eq!(orders(&plan(&mut link, 3_000)), [told(2_000, 2_700, None)], "its answer came until then");
    link.note_model_calls(calls(4_000, 4_000, None));
    link.note_model_calls(calls(4_000, 4_100, None));
    assert_eq!(orders(&plan(&mut link, 4_200)), [told(4_000, 4_100, None)]);
    // Of several answers since the last note, the first one counts: a process that began later may come from a model.
    for (answered, began) in [(5_300, 5_400), (5_500, 5_600)] {
        link.note_model_calls(calls(4_000, answered, Some(answered)));
        link.note_model_calls(calls(began, began, None));
    }
    assert_eq!(orders(&plan(&mut link, 5_700)), [told(5_600, 5_600, Some(5_300))]);
    link.note_model_calls(calls(5_600, 6_800, None));
    assert_eq!(orders(&plan(&mut link, 6_800)), [told(5_600, 6_800, None)], "it is told once");
}

#[test]
fn what_the_breaker_of_commands_counted_is_reported_soon() {
    let mut link = started();
    link.set_command_counts(CommandCounts { failed: 1, opened: 0 });
    let actions = plan(&mut link, 2_100);
    assert!(matches!(&actions[..], [Action::Report(report)] if report.commands.failed == 1), "{actions:?}");
}

#[test]
fn the_state_of_the_breaker_of_commands_is_reported_soon() {
    let mut link = started();
    link.set_breaker_state(BreakerState::Open);
    let actions = plan(&mut link, 2_100);
    assert!(matches!(&actions[..], [Action::Report(report)] if report.breaker == BreakerState::Open), "{actions:?}");
}

#[test]
fn notices_are_remembered_once_and_not_without_bound() {
    let notice = |id| Notice { id, time: "T".into(), about: "A".into(), text: "x".into() };
    let mut link = started();
    for last in 1..=100 {
        link.wanted(DesiredState {
            revision: last.to_string(),
            directive: Directive::Run,
            notices: (1..=last).map(notice).collect(),
            commands: None,
            item: None,
        });
    }
    let ids: Vec<u64> = link.notices().iter().map(|notice| notice.id).collect();
    assert_eq!(ids, (37..=100).collect::<Vec<_>>());
}

#[test]
fn a_report_never_carries_more_than_it_may() {
    let mut link = new();
    plan(&mut link, 0);
    link.registered(at(0), settings());
    plan(&mut link, 0);
    link.probed(at(1), vec!["x".repeat(1000); 100]);
    let report = link.report(at(1)).expect("nothing was started");
    spillway_wire::body::BoundedBody::check(&report).expect("within its limits");
}
