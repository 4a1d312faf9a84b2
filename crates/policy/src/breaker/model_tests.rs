//! Checks every state of a very small model that can be reached in a few steps: a circuit that two failures open and
//! two probes close, callers whose results come in any order, twice, late or never, and an owner that dies and is
//! followed by another one that knows only the record.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::circuit::{Answer, Circuit, Completion, Counts, Kind, Moment, Outcome, Permit};
use super::persisted::PersistedCircuit;
use super::settings::{Guard, Settings};
use super::state::State;

/// Steps from the first state: enough to open the circuit, probe it, fail, and probe it again under another owner.
const STEPS: u32 = 10;
/// Permits that are not completed, and owners. More of them only add states.
const OUT: usize = 3;
const OWNERS: u64 = 2;
const OPEN: u64 = 2;
const WITHIN: u64 = 3;
const RESULTS: [Outcome; 4] = [Outcome::Success, Outcome::Failure { retry_after: None }, Outcome::Neutral, Outcome::Dropped];

#[derive(Clone, PartialEq, Eq, Hash)]
struct Simulation {
    circuit: Circuit,
    stored: PersistedCircuit,
    /// Permits whose results were not reported yet.
    out: Vec<Permit>,
    /// The last permit whose result was reported.
    told: Option<Permit>,
    owner: u64,
    now: u64,
}

fn settings() -> Settings {
    Settings { threshold: 2, window: 20, open: OPEN, max_open: OPEN, successes: 2, probes: 2, ..Settings::of(Guard::Session) }
}

impl Simulation {
    fn new() -> Self {
        Self { circuit: Circuit::new(settings(), 0), stored: PersistedCircuit::default(), out: Vec::new(), told: None, owner: 0, now: 0 }
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, random: 0.5 }
    }

    /// The state after a request for a permit, on a copy.
    fn admit(&self) -> Self {
        let mut after = self.clone();
        match after.circuit.admit(self.at(), WITHIN) {
            Answer::Permit(permit) => {
                let open =
                    matches!(self.circuit.to_persisted(self.now, 0), PersistedCircuit { state: State::Open, open_until: Some(1..), .. });
                assert!(!open, "B1");
                after.out.push(permit);
            }
            Answer::Rejected(rejection) => {
                assert!(!self.circuit.must_store(), "nobody hears of what is not durable");
                assert!((1..=1000).contains(&rejection.retry_after), "B9");
            }
            Answer::Store => {
                after.stored = after.circuit.to_persisted(self.now, 0);
                after.circuit.stored(after.stored.epoch);
            }
        }
        after
    }

    fn tell(&self, permit: Permit, outcome: Outcome) -> Self {
        let mut after = self.clone();
        let completed = after.circuit.complete(&permit, outcome, self.at());
        let known = self.out.contains(&permit) && permit.owner == self.owner;
        assert!(known || completed == Completion::Late, "B3, B8");
        after.out.retain(|other| *other != permit);
        after.told = Some(permit);
        after
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.out.len() < OUT {
            all.push(self.admit());
        }
        for permit in self.out.iter().copied().chain(self.told) {
            all.extend(RESULTS.map(|outcome| self.tell(permit, outcome)));
        }
        for time in [1, OPEN] {
            let mut after = self.clone();
            after.now += time;
            all.push(after);
        }
        if self.owner + 1 < OWNERS {
            let mut after = self.clone();
            after.owner += 1;
            after.circuit = Circuit::load(settings(), after.owner, &self.stored, self.at(), 0);
            all.push(after);
        }
        all.iter_mut().for_each(|after| after.circuit.counts = Counts::default());
        all
    }

    fn check(&self, after: &Self) {
        let live = |permit: &&Permit| (permit.owner, permit.epoch) == (after.owner, after.circuit.epoch());
        let probes = after.out.iter().filter(live).filter(|permit| permit.kind == Kind::Probe).count();
        assert!(probes <= 2, "B2");
        if after.owner == self.owner {
            let edge = (self.circuit.state(), after.circuit.state());
            let rise = after.circuit.epoch() - self.circuit.epoch();
            let legal = match edge {
                (State::Closed, State::Open) | (State::Open, State::HalfOpen) | (State::HalfOpen, State::Open) => rise == 1,
                (State::HalfOpen, State::Closed) => rise == 0,
                (before, after) => before == after && rise == 0,
            };
            assert!(legal, "B5: {edge:?} and the epoch rises by {rise}");
        }
        after.comes_back();
    }

    /// B4: from any state, time alone leads to a permit.
    fn comes_back(&self) {
        let mut last = self.clone();
        last.now += WITHIN;
        last.circuit.tick(last.at());
        last.circuit.stored(last.circuit.epoch());
        last.now += OPEN;
        assert!(matches!(last.circuit.admit(last.at(), WITHIN), Answer::Permit(_)), "B4");
    }
}

#[test]
fn every_state_that_a_few_steps_reach_keeps_the_promises() {
    let hasher = RandomState::new();
    let first = Simulation::new();
    let mut seen = HashSet::from([hasher.hash_one(&first)]);
    let mut ahead = VecDeque::from([(first, 0)]);
    let mut reached = HashSet::new();
    while let Some((world, depth)) = ahead.pop_front() {
        for after in world.next() {
            world.check(&after);
            reached.insert((after.circuit.state(), after.owner));
            if depth + 1 < STEPS && seen.insert(hasher.hash_one(&after)) {
                ahead.push_back((after, depth + 1));
            }
        }
    }
    println!("{} states", seen.len());
    assert!(seen.len() > 5000, "the world is smaller than was thought: {}", seen.len());
    assert_eq!(reached.len(), 6, "each state under each owner: {reached:?}");
}
