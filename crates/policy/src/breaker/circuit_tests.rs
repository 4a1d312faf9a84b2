//! The state machine, case by case.

use super::admission;
use super::circuit::{Answer, Circuit, Completion, Counts, Kind, Moment, Outcome, Permit};
use super::persisted::PersistedCircuit;
use super::refusal::RejectionCause;
use super::settings::{Force, Guard, Mode, Review, Settings};
use super::state::State;

const FAILURE: Outcome = Outcome::Failure { retry_after: None };
const WITHIN: u64 = 120_000;

/// The random number in the middle: nothing is added or taken away.
fn at(now: u64) -> Moment {
    Moment { now, random: 0.5 }
}

fn session() -> Circuit {
    Circuit::new(Settings::of(Guard::Session), 1)
}

#[track_caller]
fn permit(circuit: &mut Circuit, now: u64) -> Permit {
    match circuit.admit(at(now), WITHIN) {
        Answer::Permit(permit) => permit,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn rejected(circuit: &mut Circuit, now: u64) -> (RejectionCause, u64) {
    match circuit.admit(at(now), WITHIN) {
        Answer::Rejected(rejection) => (rejection.cause, rejection.retry_after),
        other => panic!("{other:?}"),
    }
}

fn fail(circuit: &mut Circuit, now: u64, times: u32) {
    for _ in 0..times {
        let permit = permit(circuit, now);
        assert_eq!(circuit.complete(&permit, FAILURE, at(now)), Completion::Taken);
    }
}

/// A circuit that its failures opened, and that is stored.
fn opened(settings: Settings, now: u64) -> Circuit {
    let threshold = settings.threshold;
    let mut circuit = Circuit::new(settings, 1);
    fail(&mut circuit, now, threshold);
    circuit.stored(circuit.epoch());
    circuit
}

#[test]
fn ten_failures_open_it_the_eleventh_is_refused_two_successes_close_it() {
    let mut circuit = session();
    fail(&mut circuit, 0, 9);
    assert_eq!((circuit.state(), circuit.failures(0)), (State::Closed, 9));
    fail(&mut circuit, 0, 1);
    assert_eq!((circuit.state(), circuit.epoch(), circuit.opens()), (State::Open, 1, 1));
    circuit.stored(1);
    assert_eq!(rejected(&mut circuit, 1), (RejectionCause::Open, 29_999));
    let first = permit(&mut circuit, 30_000);
    assert_eq!((first.kind, circuit.state(), circuit.epoch()), (Kind::Probe, State::HalfOpen, 2));
    assert_eq!(rejected(&mut circuit, 30_000), (RejectionCause::Probing, WITHIN), "one at a time");
    circuit.complete(&first, Outcome::Success, at(31_000));
    let second = permit(&mut circuit, 31_000);
    circuit.complete(&second, Outcome::Success, at(31_000));
    assert_eq!((circuit.state(), circuit.opens(), circuit.failures(31_000)), (State::Closed, 0, 0));
    fail(&mut circuit, 31_000, 9);
    assert_eq!(circuit.state(), State::Closed, "what it counted before counts no more");
    let counts = Counts { tripped: 1, tried: 1, closed: 1, rejected: 2, ..Counts::default() };
    assert_eq!(circuit.counts(), counts);
}

#[test]
fn what_is_no_failure_opens_nothing() {
    let mut circuit = session();
    for outcome in [Outcome::Neutral, Outcome::Success, Outcome::Dropped] {
        for _ in 0..100 {
            let permit = permit(&mut circuit, 0);
            circuit.complete(&permit, outcome, at(0));
        }
    }
    assert_eq!((circuit.state(), circuit.failures(0), circuit.epoch()), (State::Closed, 0, 0));
}

#[test]
fn an_opening_is_durable_before_anybody_hears_of_it() {
    let mut circuit = session();
    fail(&mut circuit, 0, 10);
    assert!(circuit.must_store());
    assert_eq!(circuit.admit(at(0), WITHIN), Answer::Store);
    circuit.stored(0);
    assert_eq!(circuit.admit(at(0), WITHIN), Answer::Store, "an earlier write says nothing of it");
    circuit.stored(1);
    assert_eq!(rejected(&mut circuit, 0).0, RejectionCause::Open);
}

#[test]
fn a_late_result_flips_nothing() {
    let mut circuit = session();
    let early = permit(&mut circuit, 0);
    fail(&mut circuit, 0, 10);
    circuit.stored(1);
    assert_eq!(circuit.complete(&early, FAILURE, at(1)), Completion::Late);
    let probe = permit(&mut circuit, 30_000);
    assert_eq!(circuit.complete(&early, FAILURE, at(30_000)), Completion::Late);
    assert_eq!(circuit.complete(&Permit { owner: 2, ..probe }, FAILURE, at(30_000)), Completion::Late);
    assert_eq!(circuit.complete(&probe, Outcome::Success, at(30_000)), Completion::Taken);
    assert_eq!(circuit.complete(&probe, Outcome::Success, at(30_000)), Completion::Late, "once");
    assert_eq!((circuit.state(), circuit.counts().late), (State::HalfOpen, 4));
}

#[test]
fn a_probe_fails_by_its_result_by_silence_and_by_its_holders_death() {
    for way in ["result", "silence", "late", "dropped"] {
        let mut circuit = opened(Settings::of(Guard::Session), 0);
        let probe = permit(&mut circuit, 30_000);
        match way {
            "result" => assert_eq!(circuit.complete(&probe, FAILURE, at(40_000)), Completion::Taken),
            "silence" => circuit.tick(at(150_000)),
            // The time of the probe was over before its result came.
            "late" => assert_eq!(circuit.complete(&probe, Outcome::Success, at(150_000)), Completion::Late),
            _ => assert_eq!(circuit.complete(&probe, Outcome::Dropped, at(40_000)), Completion::Taken),
        }
        assert_eq!((circuit.state(), circuit.epoch(), circuit.opens()), (State::Open, 3, 2), "{way}");
        assert!(circuit.must_store(), "{way}");
    }
}

#[test]
fn a_neutral_probe_makes_room_for_the_next() {
    let mut circuit = opened(Settings::of(Guard::Session), 0);
    let probe = permit(&mut circuit, 30_000);
    circuit.complete(&probe, Outcome::Neutral, at(30_000));
    assert_eq!(permit(&mut circuit, 30_000).kind, Kind::Probe);
}

#[test]
fn no_more_probes_than_successes_are_missing() {
    let mut circuit = opened(Settings { probes: 10, successes: 3, ..Settings::of(Guard::Session) }, 0);
    let probes: Vec<Permit> = (0..3).map(|_| permit(&mut circuit, 30_000)).collect();
    assert_eq!(rejected(&mut circuit, 30_000).0, RejectionCause::Probing);
    circuit.complete(&probes[0], Outcome::Success, at(30_000));
    assert_eq!(rejected(&mut circuit, 30_000).0, RejectionCause::Probing);
    for probe in &probes[1..] {
        circuit.complete(probe, Outcome::Success, at(30_000));
    }
    assert_eq!(circuit.state(), State::Closed);
}

#[test]
fn it_stays_open_longer_each_time_but_not_for_ever() {
    let mut circuit = opened(Settings { factor: 3, ..Settings::of(Guard::Session) }, 0);
    let mut now = 0;
    for wait in [30_000, 90_000, 270_000, 810_000, 900_000, 900_000] {
        assert_eq!(rejected(&mut circuit, now), (RejectionCause::Open, wait));
        now += wait;
        let probe = permit(&mut circuit, now);
        circuit.complete(&probe, FAILURE, at(now));
        circuit.stored(circuit.epoch());
    }
    for (random, wait) in [(0.0, 27_000), (0.999_9, 32_994), (7.0, 33_000), (f64::NAN, 27_000)] {
        let mut circuit = Circuit::new(Settings { threshold: 1, ..Settings::of(Guard::Session) }, 1);
        let permit = permit(&mut circuit, 0);
        circuit.complete(&permit, FAILURE, Moment { now: 0, random });
        circuit.stored(1);
        assert_eq!(rejected(&mut circuit, 0).1, wait, "{random}");
    }
}

#[test]
fn a_provider_may_ask_for_more_but_not_for_a_year() {
    for (asked, wait) in [(1, 60_000), (3_600_000, 3_600_000), (u64::MAX, 86_400_000)] {
        let mut circuit = Circuit::new(Settings { threshold: 1, ..Settings::of(Guard::Models) }, 1);
        let permit = permit(&mut circuit, 0);
        circuit.complete(&permit, Outcome::Failure { retry_after: Some(asked) }, at(0));
        circuit.stored(1);
        assert_eq!(rejected(&mut circuit, 0), (RejectionCause::Open, wait));
    }
}

#[test]
fn a_person_approves_one_opening() {
    let settings = Settings { review: Review::Required, ..Settings::of(Guard::Work) };
    let mut circuit = opened(settings.clone(), 0);
    assert_eq!(rejected(&mut circuit, 59_999).0, RejectionCause::Open);
    assert_eq!(rejected(&mut circuit, 10_000_000).0, RejectionCause::Review, "time is not enough");
    for approved in [0, 2, 100] {
        circuit.set(Settings { approved: Some(approved), ..settings.clone() }, at(10_000_000));
        assert_eq!(rejected(&mut circuit, 10_000_000).0, RejectionCause::Review, "{approved} is no opening");
    }
    let approved = Settings { approved: Some(1), ..settings };
    circuit.set(approved.clone(), at(10_000_000));
    // A new leader during the probe does not need another approval.
    let probe = permit(&mut circuit, 10_000_000);
    let mut next = Circuit::load(approved, 2, &circuit.to_persisted(10_000_000, 0), at(0), 0);
    assert_eq!(permit(&mut next, 0).kind, Kind::Probe);
    circuit.complete(&probe, FAILURE, at(10_000_000));
    circuit.stored(3);
    assert_eq!(rejected(&mut circuit, 20_000_000).0, RejectionCause::Review, "the next opening is another one");
}

#[test]
fn observed_it_refuses_nobody_and_counts_whom_it_would() {
    let settings = Settings { mode: Mode::Observe, ..Settings::of(Guard::Session) };
    let mut circuit = opened(settings.clone(), 0);
    assert_eq!(circuit.state(), State::Open);
    let free = permit(&mut circuit, 1);
    assert_eq!((free.kind, circuit.counts().observed), (Kind::Free, 1));
    circuit.complete(&free, FAILURE, at(1));
    let probe = permit(&mut circuit, 30_000);
    assert_eq!((probe.kind, permit(&mut circuit, 30_000).kind), (Kind::Probe, Kind::Free));
    circuit.complete(&probe, Outcome::Success, at(30_000));
    let probe = permit(&mut circuit, 30_000);
    circuit.complete(&probe, Outcome::Success, at(30_000));
    assert_eq!((circuit.state(), circuit.counts().observed, circuit.counts().rejected), (State::Closed, 2, 0));
    let mut off = opened(settings.clone(), 0);
    off.set(Settings { mode: Mode::Disabled, ..settings }, at(0));
    assert_eq!((permit(&mut off, 0).kind, off.counts().observed), (Kind::Free, 0));
}

#[test]
fn a_person_holds_it_open_or_closed() {
    let settings = Settings::of(Guard::Session);
    let mut circuit = session();
    circuit.set(Settings { force: Some(Force::Open), ..settings.clone() }, at(0));
    assert_eq!((rejected(&mut circuit, 0), circuit.state()), ((RejectionCause::Forced, 30_000), State::Closed));
    circuit.set(Settings { force: Some(Force::Closed), ..settings.clone() }, at(0));
    fail(&mut circuit, 0, 100);
    assert_eq!((circuit.state(), circuit.failures(0)), (State::Closed, 0));
    let mut open = opened(settings.clone(), 0);
    open.set(Settings { force: Some(Force::Closed), ..settings.clone() }, at(0));
    assert_eq!(permit(&mut open, 0).kind, Kind::Free);
    open.set(settings, at(0));
    assert_eq!(rejected(&mut open, 0), (RejectionCause::Open, 30_000), "it is as it was when it is let go");
}

#[test]
fn new_settings_count_what_was_counted() {
    let settings = Settings::of(Guard::Session);
    let mut circuit = session();
    fail(&mut circuit, 1000, 5);
    circuit.set(Settings { window: 600_000, ..settings.clone() }, at(1000));
    assert_eq!(circuit.failures(300_000), 5);
    circuit.set(Settings { window: 600_000, threshold: 5, ..settings.clone() }, at(300_000));
    assert_eq!(circuit.state(), State::Open);
    // Numbers that no schema allows do not stop it.
    let nothing = Settings { threshold: 0, window: 0, open: 0, factor: 0, max_open: 0, successes: 0, probes: 0, ..settings };
    let mut circuit = opened(Settings { threshold: 1, ..nothing }, 0);
    assert_eq!(rejected(&mut circuit, 0), (RejectionCause::Open, 1));
    let probe = permit(&mut circuit, 1);
    circuit.complete(&probe, Outcome::Success, at(1));
    assert_eq!(circuit.state(), State::Closed);
}

#[test]
fn an_open_circuit_survives_its_owner_whatever_the_wall_clock_says() {
    const WALL: i64 = 1_790_000_000_000;
    let settings = Settings::of(Guard::Session);
    let mut circuit = opened(settings.clone(), 5_000);
    let saved = circuit.to_persisted(10_000, WALL);
    assert_eq!(saved, PersistedCircuit { state: State::Open, epoch: 1, opens: 1, open_until: Some(WALL + 25_000) });
    assert!(saved.is_equivalent(&circuit.to_persisted(20_000, WALL + 99)), "time alone is no reason to write");
    let cases = [(0, 25_000), (20_000, 5_000), (-10_000_000_000, 900_000), (i64::MIN + WALL, 900_000)];
    for (passed, left) in cases {
        let mut next = Circuit::load(settings.clone(), 2, &saved, at(77), WALL.saturating_add(passed));
        assert_eq!(rejected(&mut next, 77), (RejectionCause::Open, left), "{passed}");
        assert_eq!((next.epoch(), next.opens()), (1, 1));
    }
    for passed in [25_000, 10_000_000_000] {
        let mut next = Circuit::load(settings.clone(), 2, &saved, at(77), WALL + passed);
        assert_eq!(permit(&mut next, 77).kind, Kind::Probe, "{passed}");
        assert_eq!(next.epoch(), 2);
    }
    let broken = PersistedCircuit { open_until: None, ..saved };
    assert_eq!(rejected(&mut Circuit::load(settings.clone(), 2, &broken, at(0), WALL), 0), (RejectionCause::Open, 900_000));
    // Half open: the probe of another owner does not count.
    let probe = permit(&mut circuit, 35_000);
    let mut next = Circuit::load(settings.clone(), 2, &circuit.to_persisted(35_000, WALL), at(0), WALL);
    assert_eq!((next.state(), next.epoch(), next.opens()), (State::HalfOpen, 2, 1));
    permit(&mut next, 0);
    assert_eq!(next.complete(&probe, FAILURE, at(0)), Completion::Late);
    // Closed: the counts are lost.
    let mut before = session();
    fail(&mut before, 0, 9);
    assert_eq!(Circuit::load(settings, 2, &before.to_persisted(0, WALL), at(0), WALL).failures(0), 0);
}

#[test]
fn several_circuits_give_all_or_nothing() {
    let mut session = opened(Settings { probes: 2, ..Settings::of(Guard::Session) }, 0);
    let mut global = opened(Settings { threshold: 1, open: 60_000, ..Settings::of(Guard::Commands) }, 0);
    let ask = |session: &mut Circuit, global: &mut Circuit, now| admission::admit(&mut [session, global], at(now), WITHIN);
    let Answer::Rejected(rejection) = ask(&mut session, &mut global, 30_000) else { panic!("the namespace's is open") };
    assert_eq!((rejection.guard, session.state(), session.epoch()), (Guard::Commands, State::Open, 1), "it has not begun to probe");
    let Answer::Permit(permits) = ask(&mut session, &mut global, 60_000) else { panic!("both may be tried") };
    assert_eq!(permits.iter().map(|permit| permit.kind).collect::<Vec<_>>(), [Kind::Probe, Kind::Probe]);
    let Answer::Rejected(rejection) = ask(&mut session, &mut global, 60_000) else { panic!("the namespace's is being tried") };
    assert_eq!(rejection.guard, Guard::Commands);
    // The session still has a free place for a probe: the refusal took none.
    assert_eq!(permit(&mut session, 60_000).kind, Kind::Probe);
    // An opening that is not stored delays a request for both.
    let mut other = Circuit::new(Settings { threshold: 1, ..Settings::of(Guard::Session) }, 1);
    fail(&mut other, 0, 1);
    assert_eq!(ask(&mut Circuit::new(Settings::of(Guard::Session), 1), &mut other, 0), Answer::Store);
}

#[test]
fn permits_that_nobody_gives_back_do_not_fill_it() {
    let mut circuit = session();
    let permits: Vec<Permit> = (0..5000).map(|_| permit(&mut circuit, 0)).collect();
    assert_eq!(circuit.complete(&permits[0], FAILURE, at(0)), Completion::Late);
    assert_eq!(circuit.complete(&permits[4999], FAILURE, at(0)), Completion::Taken);
}

#[test]
fn circuits_that_are_approved_together_have_no_epoch_twice() {
    let settings = Settings { threshold: 1, review: Review::Required, ..Settings::of(Guard::Work) };
    let (mut one, mut other) = (opened(settings.clone(), 0), Circuit::new(settings.clone(), 2));
    other.raise_epoch_floor(one.epoch());
    fail(&mut other, 0, 1);
    other.stored(other.epoch());
    one.raise_epoch_floor(other.epoch());
    assert_eq!((one.epoch(), other.epoch()), (1, 2));
    let late = at(10_000_000);
    for (approved, expected) in [(1, (true, false)), (3, (false, false)), (2, (true, true))] {
        let settings = Settings { approved: Some(approved), ..settings.clone() };
        one.set(settings.clone(), late);
        other.set(settings, late);
        let pass = (one.rejection(late).is_none(), other.rejection(late).is_none());
        assert_eq!(pass, expected, "approved up to {approved}; what none of them has reached is no approval");
    }
    assert_eq!(permit(&mut one, late.now).epoch, 3, "above what was approved");
}
