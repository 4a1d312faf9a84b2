//! The guarantees of a circuit, for random requests, results in any order, owners that crash and clocks that jump.

use proptest::prelude::*;

use super::admission;
use super::circuit::{Answer, Circuit, Completion, Counts, Kind, Moment, Outcome, Permit};
use super::persisted::PersistedCircuit;
use super::settings::{Guard, MAX_WAIT_MS, Settings};
use super::state::State;

const WALL: i64 = 1_790_000_000_000;
/// What one operation may take.
const WITHIN: u64 = 400;

#[derive(Clone, Debug)]
enum Step {
    Admit,
    /// A result of any permit given so far, reported before or not.
    Complete(usize, Outcome),
    Pass(u64),
    /// The owner dies. The wall clock has moved by this much when the next owner reads the record.
    Crash(i64),
}

fn doings() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        2 => Just(Outcome::Success),
        5 => prop_oneof![4 => Just(None), 1 => (0u64..5000).prop_map(Some)].prop_map(|retry_after| Outcome::Failure { retry_after }),
        1 => Just(Outcome::Neutral),
        1 => Just(Outcome::Dropped),
    ];
    let one = prop_oneof![
        6 => Just(Step::Admit),
        8 => (0usize..4, outcome).prop_map(|(which, outcome)| Step::Complete(which, outcome)),
        3 => (0u64..700).prop_map(Step::Pass),
        1 => prop_oneof![0i64..1000, -2000i64..0, Just(i64::MAX / 4), Just(i64::MIN / 4)].prop_map(Step::Crash),
    ];
    proptest::collection::vec(one, 1..150)
}

prop_compose! {
    fn settings()(threshold in 1u32..5, window in 100u64..3000, open in 1u64..1000, factor in 1u32..4, successes in 1u32..4, probes in 1u32..4, within in proptest::option::of(1u64..600)) -> Settings {
        Settings { threshold, window, open, factor, max_open: 2000, successes, probes, probe_within: within, ..Settings::of(Guard::Models) }
    }
}

/// A circuit, its callers and its record.
struct Simulation {
    circuit: Circuit,
    owner: u64,
    /// Permits, the newest last, and whether their results were reported.
    given: Vec<(Permit, bool)>,
    /// When failures were reported while it was closed.
    failures: Vec<u64>,
    stored: PersistedCircuit,
    now: u64,
    random: f64,
}

/// The circuit without its counters for metrics.
fn plain(circuit: &Circuit) -> Circuit {
    let mut plain = circuit.clone();
    plain.counts = Counts::default();
    plain
}

impl Simulation {
    fn new(settings: Settings, random: f64) -> Self {
        let circuit = Circuit::new(settings, 0);
        Self { circuit, owner: 0, given: Vec::new(), failures: Vec::new(), stored: PersistedCircuit::default(), now: 0, random }
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, random: self.random }
    }

    /// Asks for a permit, and stores what must be stored before it is given.
    fn admit(&mut self) -> Answer<Permit> {
        match self.circuit.admit(self.at(), WITHIN) {
            Answer::Store => {
                self.stored = self.circuit.to_persisted(self.now, WALL);
                self.circuit.stored(self.stored.epoch);
                self.circuit.admit(self.at(), WITHIN)
            }
            answer => answer,
        }
    }

    fn probing(&self) -> usize {
        let live = |(permit, told): &&(Permit, bool)| !told && (permit.owner, permit.epoch) == (self.owner, self.circuit.epoch());
        self.given.iter().filter(live).filter(|(permit, _)| permit.kind == Kind::Probe).count()
    }

    /// The longest retry time of a refusal.
    fn bound(&self) -> u64 {
        let Settings { max_open, probe_within, .. } = self.circuit.settings();
        [max_open + max_open / 10, probe_within.unwrap_or(WITHIN), 5000, 1000].into_iter().max().unwrap_or(MAX_WAIT_MS)
    }

    fn step(&mut self, doing: &Step) -> Result<(), TestCaseError> {
        let before = (self.circuit.state(), self.circuit.epoch());
        match doing {
            Step::Admit => {
                let open_until = self.circuit.to_persisted(self.now, 0).open_until.filter(|until| *until > 0);
                match self.admit() {
                    Answer::Permit(permit) => {
                        prop_assert_eq!(open_until, None, "B1");
                        self.given.push((permit, false));
                    }
                    Answer::Rejected(rejection) => prop_assert!((1..=self.bound()).contains(&rejection.retry_after), "B9: {rejection:?}"),
                    Answer::Store => prop_assert!(false, "it was stored"),
                }
            }
            Step::Complete(back, outcome) if *back < self.given.len() => {
                let which = self.given.len() - 1 - back;
                self.complete(which, *outcome)?;
            }
            Step::Pass(time) => {
                self.now += time;
                self.circuit.tick(self.at());
            }
            Step::Crash(passed) => {
                self.owner += 1;
                let wall = WALL.saturating_add(*passed);
                let settings = self.circuit.settings().clone();
                self.circuit = Circuit::load(settings.clone(), self.owner, &self.stored, self.at(), wall);
                let left = self.circuit.to_persisted(self.now, 0).open_until.unwrap_or(0);
                prop_assert!(left <= i64::try_from(settings.max_open).unwrap_or(0), "B7: {left} ms after a jump of the wall clock");
                self.failures.clear();
                return Ok(());
            }
            Step::Complete(..) => {}
        }
        self.check(before)
    }

    fn complete(&mut self, which: usize, outcome: Outcome) -> Result<(), TestCaseError> {
        let (permit, told) = self.given[which];
        let at = self.at();
        let mut ticked = self.circuit.clone();
        ticked.tick(at);
        let (closed, epoch) = (ticked.state() == State::Closed, ticked.epoch());
        let completed = self.circuit.complete(&permit, outcome, at);
        if told || (permit.owner, permit.epoch) != (self.owner, epoch) {
            prop_assert_eq!(completed, Completion::Late, "B3, B8");
            prop_assert!(plain(&self.circuit) == plain(&ticked), "B3, B8");
        } else {
            prop_assert_eq!(completed, Completion::Taken);
            if closed && matches!(outcome, Outcome::Failure { .. }) {
                self.failures.push(self.now);
                self.window()?;
            }
        }
        self.given[which].1 = true;
        Ok(())
    }

    /// B6: it is open exactly if enough failures count, up to one bucket more or less.
    fn window(&mut self) -> Result<(), TestCaseError> {
        let Settings { threshold, window, .. } = *self.circuit.settings();
        let within = |age: u64| self.failures.iter().filter(|at| self.now - **at < age).count();
        let open = self.circuit.state() == State::Open;
        prop_assert!(open || within(window) < threshold as usize, "B6: {} failures count", within(window));
        prop_assert!(!open || within(window.div_ceil(20) * 21) >= threshold as usize, "B6: only {} count", within(window));
        if open {
            self.failures.clear();
        }
        Ok(())
    }

    fn check(&self, (state, epoch): (State, u64)) -> Result<(), TestCaseError> {
        let Settings { probes, .. } = *self.circuit.settings();
        prop_assert!(self.probing() <= probes as usize, "B2");
        let rise = match (state, self.circuit.state()) {
            (State::Closed, State::Open) | (State::Open, State::HalfOpen) | (State::HalfOpen, State::Open) => 1,
            (State::HalfOpen, State::Closed) => 0,
            (before, after) => {
                prop_assert_eq!(before, after, "B5");
                0
            }
        };
        prop_assert_eq!(self.circuit.epoch(), epoch + rise, "B5");
        Ok(())
    }

    /// B4: no result is reported any more, and each caller asks again when it was told to.
    fn comes_back(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..4 {
            match self.admit() {
                Answer::Permit(_) => return Ok(()),
                Answer::Rejected(rejection) => self.now += rejection.retry_after,
                Answer::Store => {}
            }
        }
        prop_assert!(false, "B4: {:?}", self.circuit);
        Ok(())
    }
}

proptest! {
    #[test]
    fn b1_to_b9_hold_whatever_happens(settings in settings(), doings in doings(), random in 0.0f64..1.0) {
        let mut world = Simulation::new(settings, random);
        for doing in &doings {
            world.step(doing)?;
        }
        world.comes_back()?;
    }

    #[test]
    fn b7_only_its_own_clock_counts(settings in settings(), doings in doings(), shift in 0u64..1_000_000_000) {
        // The same at any time of its clock, except for the borders of buckets.
        let width = settings.window.div_ceil(20);
        let (mut one, mut other) = (Simulation::new(settings.clone(), 0.5), Simulation::new(settings, 0.5));
        other.now = shift / width * width;
        for doing in doings.iter().filter(|doing| !matches!(doing, Step::Crash(_))) {
            one.step(doing)?;
            other.step(doing)?;
            prop_assert_eq!(one.circuit.state(), other.circuit.state());
            prop_assert_eq!(one.circuit.to_persisted(one.now, WALL), other.circuit.to_persisted(other.now, WALL));
        }
    }

    #[test]
    fn b10_a_refusal_takes_nothing_anywhere(first in settings(), second in settings(), doings in doings()) {
        let mut circuits = [Simulation::new(first, 0.5), Simulation::new(second, 0.5)];
        let mut given: Vec<Vec<Permit>> = Vec::new();
        for (index, doing) in doings.iter().enumerate() {
            let at = Moment { now: circuits[0].now, random: 0.5 };
            match doing {
                Step::Admit => {
                    circuits.iter_mut().for_each(|world| world.circuit.tick(at));
                    let before: Vec<Circuit> = circuits.iter().map(|world| plain(&world.circuit)).collect();
                    let [one, other] = &mut circuits;
                    match admission::admit(&mut [&mut one.circuit, &mut other.circuit], at, WITHIN) {
                        Answer::Permit(permits) => given.push(permits),
                        Answer::Rejected(_) | Answer::Store => {
                            for (world, before) in circuits.iter().zip(&before) {
                                prop_assert!(plain(&world.circuit) == *before, "B10");
                            }
                        }
                    }
                    for world in &mut circuits {
                        let epoch = world.circuit.epoch();
                        world.circuit.stored(epoch);
                    }
                }
                Step::Complete(_, outcome) if !given.is_empty() => {
                    // One of the two fails more often than the other.
                    let permits = given.swap_remove(index % given.len());
                    for (which, (permit, world)) in permits.iter().zip(&mut circuits).enumerate() {
                        let outcome = if which == index % 2 { *outcome } else { Outcome::Neutral };
                        world.circuit.complete(permit, outcome, at);
                    }
                }
                Step::Pass(time) => circuits.iter_mut().for_each(|world| world.now += time),
                Step::Complete(..) | Step::Crash(_) => {}
            }
        }
    }
}
