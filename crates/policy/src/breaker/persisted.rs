//! The durable state of a circuit, and how a new owner loads it.
//!
//! An open circuit survives its owner, because a change of owner is normal here. Its counts do not. The wall clock is
//! used only in the record. How long a circuit is still open is computed once, when the record is read, and is never
//! longer than the longest time that it may be open.

use super::circuit::{Circuit, Moment, Phase};
use super::settings::Settings;
use super::state::State;

/// The record of a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PersistedCircuit {
    /// Its state.
    pub state: State,
    /// Rises with each opening and each half-opening.
    pub epoch: u64,
    /// Openings in a row.
    pub opens: u32,
    /// Until when it is open, by the wall clock (milliseconds since 1970).
    pub open_until: Option<i64>,
}

impl PersistedCircuit {
    /// Whether both records are equivalent. Time that passed, or a jump of the wall clock, is no reason to write.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        (self.state, self.epoch, self.opens) == (other.state, other.epoch, other.opens)
    }
}

impl Circuit {
    /// The record to write now; `wall` is the time of the wall clock.
    pub fn to_persisted(&self, now: u64, wall: i64) -> PersistedCircuit {
        let open_until = match self.phase() {
            Phase::Open { until } => {
                let left = i64::try_from(until.saturating_sub(now)).unwrap_or(i64::MAX);
                Some(wall.saturating_add(left))
            }
            Phase::Closed { .. } | Phase::HalfOpen { .. } => None,
        };
        PersistedCircuit { state: self.state(), epoch: self.epoch(), opens: self.opens(), open_until }
    }

    /// A circuit that `owner` loads from a record. Permits of earlier owners do not count any more, and their probes
    /// are not awaited.
    pub fn load(settings: Settings, owner: u64, saved: &PersistedCircuit, at: Moment, wall: i64) -> Self {
        let mut circuit = Self::new(settings, owner);
        let PersistedCircuit { state, epoch, opens, open_until } = *saved;
        let max_open = circuit.settings().max_open;
        let phase = match state {
            State::Closed => return circuit.resumed(epoch, 0, None),
            State::HalfOpen => Phase::half_open(),
            State::Open => {
                let left = open_until.map_or(max_open, |until| u64::try_from(until.saturating_sub(wall)).unwrap_or(0));
                Phase::Open { until: at.now.saturating_add(left.min(max_open)) }
            }
        };
        circuit = circuit.resumed(epoch, opens, Some(phase));
        circuit
    }
}
