use super::*;
use crate::agent::processes::Exit;

const GOOD: Exit = Exit { code: 0, killed: false };
const BAD: Exit = Exit { code: 3, killed: false };

fn at(seconds: u64) -> BootTime {
    BootTime::from_millis(seconds * 1000)
}

fn begun() -> (Preflight, Vec<Action>) {
    let mut preflight = Preflight::default();
    let actions = preflight.begin(at(0), vec!["check".into()], DEFAULT_PREFLIGHT_TIMEOUT);
    (preflight, actions)
}

fn run() -> Vec<Action> {
    vec![Action::Run(vec!["check".into()])]
}

/// The current run ends with `exit`, and no process of it is left.
fn ends(preflight: &mut Preflight, now: BootTime, exit: Exit, tail: &str) -> Vec<Action> {
    assert_eq!(preflight.on(now, RunEvent::Ended(exit)), [Action::KillAll], "whatever it left behind goes with it");
    assert_eq!(preflight.on(now, RunEvent::Copied), [], "not before nothing is left");
    assert_eq!(preflight.on(now, RunEvent::Empty), []);
    assert_eq!(preflight.on(now, RunEvent::Copied), [Action::Judge]);
    preflight.judge(now, tail)
}

fn state(preflight: &Preflight) -> PreflightState {
    preflight.reported_state().expect("it was asked for").state
}

#[test]
fn without_a_command_the_program_is_started_at_once_and_nothing_is_told() {
    let mut preflight = Preflight::default();
    assert_eq!(preflight.reported_state(), None);
    assert_eq!(preflight.begin(at(0), Vec::new(), DEFAULT_PREFLIGHT_TIMEOUT), [Action::Start]);
    assert_eq!((preflight.reported_state(), preflight.wake()), (None, None));
    assert_eq!(
        preflight.begin(at(1), vec!["later".into()], DEFAULT_PREFLIGHT_TIMEOUT),
        [],
        "what is asked for after the start counts for the next pod"
    );
}

#[test]
fn the_program_is_started_when_it_passed_and_once() {
    let (mut preflight, actions) = begun();
    assert_eq!((actions, state(&preflight)), (run(), PreflightState::Pending));
    assert_eq!(preflight.begin(at(1), vec!["check".into()], DEFAULT_PREFLIGHT_TIMEOUT), [], "a sidecar that came again says it again");
    assert_eq!(ends(&mut preflight, at(2), GOOD, "all is well"), [Action::Start]);
    assert_eq!(
        (preflight.reported_state(), preflight.wake()),
        (Some(Told { state: PreflightState::Passed, message: String::new() }), None)
    );
    for event in [RunEvent::Ended(BAD), RunEvent::Empty, RunEvent::Copied, RunEvent::Tick] {
        assert_eq!(preflight.on(at(9_999), event), []);
    }
}

#[test]
fn it_is_run_again_later_and_later_and_has_failed_meanwhile() {
    let (mut preflight, _) = begun();
    let mut now = 0;
    for pause in [10, 20, 40, 80, 120, 120, 120] {
        assert_eq!(ends(&mut preflight, at(now), BAD, "no login"), []);
        let told = preflight.reported_state().expect("told");
        assert_eq!(told, Told { state: PreflightState::Failed, message: "the preflight command ended with exit code 3: no login".into() });
        assert_eq!(preflight.wake(), Some(at(now + pause)));
        assert_eq!(preflight.on(at(now + pause - 1), RunEvent::Tick), []);
        now += pause;
        assert_eq!(preflight.on(at(now), RunEvent::Tick), run());
        assert_eq!(state(&preflight), PreflightState::Failed, "until another run says otherwise");
    }
    assert_eq!(ends(&mut preflight, at(now), GOOD, ""), [Action::Start]);
    assert_eq!(preflight.failure(), None);
}

#[test]
fn a_run_that_asks_for_ever_is_killed_and_killed_again_until_nothing_is_left() {
    let (mut preflight, _) = begun();
    assert_eq!(preflight.on(at(29), RunEvent::Tick), []);
    assert_eq!(preflight.on(at(30), RunEvent::Tick), [Action::KillAll]);
    assert!(preflight.clearing());
    assert_eq!(preflight.on(at(30), RunEvent::Ended(Exit { code: 137, killed: true })), [], "that it was killed is no news");
    assert_eq!(preflight.on(at(31), RunEvent::Tick), [Action::KillAll]);
    assert_eq!(preflight.on(at(31), RunEvent::Empty), []);
    // The reader of our output has stopped: the run is judged anyway.
    assert_eq!(preflight.on(at(33), RunEvent::Tick), [Action::Judge]);
    preflight.judge(at(33), "may I? [y/N]");
    assert_eq!(preflight.failure(), Some("the preflight command did not end within 30 s and was killed: may I? [y/N]"));
    assert_eq!(preflight.wake(), Some(at(43)));
}

#[test]
fn what_cannot_be_started_fails_like_any_other_and_its_words_are_bounded() {
    let (mut preflight, _) = begun();
    assert_eq!(preflight.on(at(0), RunEvent::NotStarted("no such file".into())), [Action::Judge]);
    preflight.judge(at(0), "");
    assert_eq!(preflight.failure(), Some("the preflight command was not started: no such file"));
    assert_eq!(preflight.on(at(10), RunEvent::Tick), run());
    ends(&mut preflight, at(11), BAD, &"\u{20ac}".repeat(5_000));
    assert_eq!(preflight.failure().map(|words| words.chars().count()), Some(Told::MAX_MESSAGE_CHARS));
}

#[test]
fn success_of_a_run_that_was_killed_is_none() {
    let (mut preflight, _) = begun();
    preflight.on(at(30), RunEvent::Tick);
    preflight.on(at(30), RunEvent::Ended(GOOD));
    preflight.on(at(30), RunEvent::Empty);
    assert_eq!(preflight.on(at(30), RunEvent::Copied), [Action::Judge]);
    assert_eq!(preflight.judge(at(30), ""), [], "it took too long, however it ended then");
    assert_eq!(state(&preflight), PreflightState::Failed);
}
