//! The circuit breakers of programs: those of one caller, and of all callers together. They are those of
//! [commands](spillway_policy::breaker) in pods, with the same defaults: a program that hangs or does not start is a failure, and its exit
//! code is not. Pure: the time and random numbers come in. Openings are in memory, as the bridge's calls are.

use std::collections::BTreeMap;

use spillway_policy::breaker::commands::{End, outcome};
use spillway_policy::breaker::{Answer, Circuit, Guard, Moment, Permit, Rejection, Settings, admission};

/// The most callers that have a circuit of their own. Others count in the circuit of all.
const MAX_CALLERS: usize = 10_000;
/// There is one owner: this process.
const OWNER: u64 = 0;

/// The circuits.
#[derive(Debug)]
pub struct Breakers {
    all: Circuit,
    callers: BTreeMap<String, Circuit>,
}

/// The permits of a call that runs.
#[derive(Debug)]
pub struct BreakerPermits {
    caller: String,
    all: Permit,
    own: Option<Permit>,
}

impl Default for Breakers {
    fn default() -> Self {
        Self { all: Circuit::new(Settings::of(Guard::Commands), OWNER), callers: BTreeMap::new() }
    }
}

impl Breakers {
    /// Admits a call that takes `within` milliseconds at most. An admitted call must [end](Self::end).
    pub fn begin(&mut self, caller: &str, within: u64, at: Moment) -> Result<BreakerPermits, Rejection> {
        self.all.tick(at);
        if !self.callers.contains_key(caller) {
            if self.callers.len() >= MAX_CALLERS {
                self.callers.retain(|_, circuit| !circuit.is_idle(at.now));
            }
            if self.callers.len() < MAX_CALLERS {
                let settings = Settings::of(Guard::Session).with_effective_window(within);
                self.callers.insert(caller.to_owned(), Circuit::new(settings, OWNER));
            }
        }
        let mut circuits = vec![&mut self.all];
        if let Some(own) = self.callers.get_mut(caller) {
            own.tick(at);
            circuits.push(own);
        }
        circuits.iter_mut().for_each(|circuit| keep(circuit));
        match admission::admit(&mut circuits, at, within) {
            Answer::Permit(permits) => {
                let mut permits = permits.into_iter();
                let all = permits.next();
                // One circuit gives one permit.
                all.map(|all| BreakerPermits { caller: caller.to_owned(), all, own: permits.next() }).ok_or_else(probing)
            }
            Answer::Rejected(rejection) => Err(rejection),
            // All openings were kept just before.
            Answer::Store => Err(probing()),
        }
    }

    /// An admitted call is over.
    pub fn end(&mut self, permits: &BreakerPermits, end: End, at: Moment) {
        let outcome = outcome(end, &[]);
        self.all.complete(&permits.all, outcome, at);
        keep(&mut self.all);
        if let Some((circuit, permit)) = self.callers.get_mut(&permits.caller).zip(permits.own.as_ref()) {
            circuit.complete(permit, outcome, at);
            keep(circuit);
        }
    }
}

/// An opening is durable as long as this process is.
fn keep(circuit: &mut Circuit) {
    if circuit.must_store() {
        circuit.stored(circuit.epoch());
    }
}

fn probing() -> Rejection {
    Rejection { guard: Guard::Commands, cause: spillway_policy::breaker::RejectionCause::Probing, retry_after: 1000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: u64 = 1000;

    fn at(now: u64) -> Moment {
        Moment { now, random: 0.5 }
    }

    fn fail(breakers: &mut Breakers, caller: &str, times: u32, now: u64) {
        for _ in 0..times {
            let permits = breakers.begin(caller, WITHIN, at(now)).expect("a permit");
            breakers.end(&permits, End::TimedOut, at(now));
        }
    }

    #[test]
    fn a_caller_whose_programs_hang_is_stopped_for_a_while_and_no_other_is() {
        let mut breakers = Breakers::default();
        fail(&mut breakers, "a", 10, 0);
        let rejection = breakers.begin("a", WITHIN, at(1)).expect_err("it is open");
        assert_eq!(rejection.guard, Guard::Session);
        assert!((27_000..=33_000).contains(&rejection.retry_after), "{rejection:?}");
        let permits = breakers.begin("b", WITHIN, at(1)).expect("another caller");
        breakers.end(&permits, End::Exited(1), at(2));
        // Two probes that work close it.
        for now in [40_000, 41_000] {
            let permits = breakers.begin("a", WITHIN, at(now)).expect("a probe");
            breakers.begin("a", WITHIN, at(now)).expect_err("one at a time");
            breakers.end(&permits, End::Exited(0), at(now));
        }
        fail(&mut breakers, "a", 9, 50_000);
        breakers.begin("a", WITHIN, at(50_000)).expect("it is closed");
    }

    #[test]
    fn many_callers_whose_programs_hang_stop_all() {
        let mut breakers = Breakers::default();
        (0..10).for_each(|caller| fail(&mut breakers, &caller.to_string(), 5, 0));
        assert_eq!(breakers.begin("new", WITHIN, at(1)).expect_err("it is open").guard, Guard::Commands);
        breakers.begin("new", WITHIN, at(60_000)).expect("a probe");
    }

    #[test]
    fn exit_codes_and_cancelled_calls_are_no_failures() {
        let mut breakers = Breakers::default();
        for end in [End::Exited(1), End::Signalled, End::Cancelled].repeat(50) {
            let permits = breakers.begin("a", WITHIN, at(0)).expect("a permit");
            breakers.end(&permits, end, at(0));
        }
    }

    #[test]
    fn the_number_of_callers_is_bounded() {
        let mut breakers = Breakers::default();
        let mut running = Vec::new();
        for caller in 0..MAX_CALLERS + 5 {
            running.push(breakers.begin(&caller.to_string(), WITHIN, at(0)).expect("a permit"));
        }
        assert_eq!(breakers.callers.len(), MAX_CALLERS);
        running.iter().for_each(|permits| breakers.end(permits, End::Exited(0), at(1)));
        breakers.begin("late", WITHIN, at(1_000_000)).expect("a permit");
        assert_eq!(breakers.callers.len(), 1, "idle ones are forgotten");
    }
}
