//! What of a circuit is durable, and what a new owner makes of it.
//!
//! An open circuit survives its owner, for fail-over is routine here; what it counted does not. The wall clock stands in the
//! record only: how long a circuit is open still is measured once, when it is read, and never believed beyond the longest
//! that it may be open.

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
    /// It says the same: that time passed, or that the wall clock jumped, is no reason to write.
    pub fn says(&self, other: &Self) -> bool {
        (self.state, self.epoch, self.opens) == (other.state, other.epoch, other.opens)
    }
}

impl Circuit {
    /// What is to be written of it now; by the wall clock it is `wall`.
    pub fn saved(&self, now: u64, wall: i64) -> PersistedCircuit {
        let open_until = match self.phase() {
            Phase::Open { until } => {
                let left = i64::try_from(until.saturating_sub(now)).unwrap_or(i64::MAX);
                Some(wall.saturating_add(left))
            }
            Phase::Closed { .. } | Phase::HalfOpen { .. } => None,
        };
        PersistedCircuit { state: self.state(), epoch: self.epoch(), opens: self.opens(), open_until }
    }

    /// A circuit as `owner` finds it in a record. Permits that an earlier owner gave count for nothing any more; a probe of its
    /// own that still runs is not waited for.
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
