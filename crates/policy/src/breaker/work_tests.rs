//! Which results of an attempt are failures, and two pools under one project.

use super::*;
use crate::breaker::refusal::RejectionCause;
use crate::breaker::settings::Guard;

const FAILURE: Outcome = Outcome::Failure { retry_after: None };
const MINUTE: u64 = 60_000;
/// An opening may last a tenth longer than a minute.
const OVER: u64 = 67_000;

#[test]
fn only_what_came_to_nothing_fails() {
    let ended = |verb, spent, progressed| outcome(AttemptResult { verb, tokens_spent: spent, progressed });
    for verb in Verb::ALL {
        let expected = match verb {
            Verb::Complete => (Outcome::Success, Outcome::Success, Outcome::Success),
            Verb::Stalled => (FAILURE, FAILURE, FAILURE),
            Verb::Fail | Verb::Release | Verb::LeaseExpired => (Outcome::Neutral, FAILURE, Outcome::Neutral),
            Verb::CancelDone => (Outcome::Neutral, Outcome::Neutral, Outcome::Neutral),
        };
        assert_eq!((ended(verb, false, false), ended(verb, true, false), ended(verb, true, true)), expected, "{verb:?}");
    }
}

/// Pools and their project at one time.
struct Simulation {
    pools: Vec<Circuit>,
    project: Circuit,
    now: u64,
}

impl Simulation {
    fn of(pools: &[Settings]) -> Self {
        let pools = pools.iter().zip(1..).map(|(settings, owner)| Circuit::new(settings.clone(), owner)).collect();
        Self { pools, project: Circuit::new(Settings::of(Guard::Project), 0), now: 0 }
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, random: 0.5 }
    }

    fn admit(&mut self, pool: usize) -> Answer<Permits> {
        let at = self.at();
        loop {
            match admit(&mut self.pools[pool], &mut self.project, at, MINUTE) {
                // The owner of the circuits stores them.
                Answer::Store => [&mut self.pools[pool], &mut self.project].into_iter().for_each(|circuit| circuit.stored(circuit.epoch())),
                answer => return answer,
            }
        }
    }

    fn end(&mut self, pool: usize, permits: Permits, outcome: Outcome) {
        let at = self.at();
        self.pools[pool].complete(&permits.pool, outcome, at);
        if let Some(permit) = permits.project {
            self.project.complete(&permit, outcome, at);
        }
    }

    /// An attempt, from its beginning to its end.
    fn attempt(&mut self, pool: usize, outcome: Outcome) -> Permits {
        let Answer::Permit(permits) = self.admit(pool) else { panic!("it may begin") };
        self.end(pool, permits, outcome);
        permits
    }

    fn fail(&mut self, pool: usize, times: usize) {
        for _ in 0..times {
            self.attempt(pool, FAILURE);
        }
    }

    fn refused(&mut self, pool: usize) -> (Guard, RejectionCause) {
        match self.admit(pool) {
            Answer::Rejected(rejection) => (rejection.guard, rejection.cause),
            other => panic!("{other:?}"),
        }
    }

    fn states(&self) -> (Vec<State>, State) {
        (self.pools.iter().map(Circuit::state).collect(), self.project.state())
    }
}

fn plain() -> Settings {
    Settings::of(Guard::Work)
}

#[test]
fn three_time_outs_within_five_minutes_over_all_pools_stop_all_of_them() {
    let mut world = Simulation::of(&[plain(), plain(), plain()]);
    world.attempt(0, FAILURE);
    world.now += 2 * MINUTE;
    world.attempt(1, FAILURE);
    world.attempt(2, Outcome::Success);
    world.now += 2 * MINUTE;
    world.attempt(1, FAILURE);
    assert_eq!(world.states(), (vec![State::Closed; 3], State::Open), "no pool has three");
    for pool in 0..3 {
        assert_eq!(world.refused(pool), (Guard::Project, RejectionCause::Open), "{pool}");
    }
    // One attempt of any pool is the probe for all pools.
    world.now += OVER;
    let Answer::Permit(probe) = world.admit(2) else { panic!("it is tried") };
    assert_eq!(world.refused(0), (Guard::Project, RejectionCause::Probing));
    world.end(2, probe, Outcome::Success);
    assert_eq!(world.states(), (vec![State::Closed; 3], State::Closed));
    // Older failures do not count any more.
    let mut world = Simulation::of(&[plain(), plain()]);
    for pool in [0, 1, 0] {
        world.attempt(pool, FAILURE);
        world.now += 3 * MINUTE;
    }
    assert_eq!(world.project.state(), State::Closed);
}

#[test]
fn a_pool_that_goes_on_failing_stops_the_others_once() {
    let mut world = Simulation::of(&[plain(), plain()]);
    world.fail(0, 3);
    assert_eq!(world.states(), (vec![State::Open, State::Closed], State::Open));
    assert_eq!(world.refused(0), (Guard::Work, RejectionCause::Open), "its own is named");
    assert_eq!(world.refused(1), (Guard::Project, RejectionCause::Open));
    // From here on its attempts are probes of its own circuit only, whichever pool asks first.
    for _ in 0..20 {
        world.now += OVER;
        let probe = world.attempt(0, FAILURE);
        assert_eq!(probe.project, None);
        let other = world.attempt(1, Outcome::Success);
        assert!(other.project.is_some());
        assert_eq!(world.states(), (vec![State::Open, State::Closed], State::Closed));
    }
}

#[test]
fn a_pool_that_is_alone_closes_its_own_circuit_and_then_that_of_its_project() {
    let mut world = Simulation::of(&[plain()]);
    world.fail(0, 3);
    world.now += OVER;
    world.attempt(0, Outcome::Success);
    assert_eq!(world.states(), (vec![State::Closed], State::Open));
    world.attempt(0, Outcome::Success);
    assert_eq!(world.states(), (vec![State::Closed], State::Closed));
}

#[test]
fn a_rejection_leaks_no_permit_of_the_other_circuit() {
    let mut world = Simulation::of(&[plain(), plain()]);
    world.fail(0, 3);
    world.now += OVER;
    let Answer::Permit(probe) = world.admit(1) else { panic!("it is tried") };
    // The pool's own circuit may be probed too, and the project's has no place.
    let epoch = world.pools[0].epoch();
    assert_eq!(world.refused(0), (Guard::Project, RejectionCause::Probing));
    assert_eq!((world.pools[0].state(), world.pools[0].epoch()), (State::Open, epoch), "it has not begun to probe");
    world.end(1, probe, Outcome::Neutral);
    assert!(matches!(world.admit(0), Answer::Permit(_)));
}

#[test]
fn who_has_a_pool_only_observed_or_held_closed_is_not_bound_and_does_not_count() {
    let closed = Settings { force: Some(Force::Closed), ..plain() };
    for free in [Settings { mode: Mode::Observe, ..plain() }, Settings { mode: Mode::Disabled, ..plain() }, closed] {
        let mut world = Simulation::of(&[free.clone(), plain()]);
        world.fail(0, 9);
        assert_eq!(world.project.state(), State::Closed, "{free:?}");
        world.fail(1, 3);
        assert_eq!(world.project.state(), State::Open);
        assert_eq!(world.attempt(0, FAILURE).project, None, "{free:?}");
    }
}
