//! Extending a hold: a call that continues beyond its hold.

use super::estimate::{HoldRequest, MAX_CALL_TOKENS};
use super::hold::Step;
use super::holding::{HeldTokens, HoldAnswer};
use super::ledger::Ledger;
use super::node::Key;
use super::session::{HoldMark, SessionId, State};

impl Ledger {
    /// Extends the hold of a call to `output` tokens, all choices together. A repeat with the same number changes
    /// nothing. If it is refused, the call may finish: its usage is settled, and the excess is debt.
    pub fn extend(&mut self, now: i64, session: SessionId, id: u64, output: i64) -> HoldAnswer {
        self.advance(now);
        let output = output.clamp(0, MAX_CALL_TOKENS);
        let slot = match self.sessions.get(session.0).map(|found| (found.state, found.ring.get(id))) {
            Some((State::Attached, HoldMark::Open(slot))) => slot,
            Some((State::Attached, HoldMark::Unused | HoldMark::Closed)) => return HoldAnswer::Closed,
            Some((State::Awaited | State::Dead, _)) | None => return HoldAnswer::Unattached,
        };
        let (at, input, before) = (self.holds[slot].at, self.holds[slot].input, self.holds[slot].output);
        if output <= before {
            return HoldAnswer::Given(HeldTokens { at, input, output: before });
        }
        let mut steps = self.holds[slot].steps.clone();
        let known: Vec<usize> =
            (0..steps.len()).filter(|which| self.nodes[steps[*which].node].generation == steps[*which].generation).collect();
        // The increase at each place, in the weights of that place.
        let more = |ledger: &Self, step: &Step| {
            let weights = &ledger.nodes[step.node].spec.weights;
            weights.bound(input, output).saturating_sub(weights.bound(input, before))
        };
        let nodes: Vec<usize> = known.iter().map(|which| steps[*which].node).collect();
        let mut keys = Vec::new();
        for (before, which) in known.iter().enumerate() {
            let by = more(self, &steps[*which]);
            if !self.fits_more(slot, &nodes[..before], steps[*which].node, by) {
                let ask = HoldRequest { input: 0, output: by, min_output: by, choices: 1 };
                return HoldAnswer::Refused(self.refuse(&nodes, &ask, by, id));
            }
        }
        for which in &known {
            let by = more(self, &steps[*which]);
            self.request_raise(slot, steps[*which].node, by, &mut keys);
        }
        if !keys.is_empty() {
            return HoldAnswer::Write(keys);
        }
        for which in known {
            let by = more(self, &steps[which]);
            let Step { node, .. } = steps[which];
            steps[which].estimate = steps[which].estimate.saturating_add(by);
            for limit in 0..self.nodes[node].limits.len() {
                if self.nodes[node].limits[limit].born <= self.holds[slot].serial {
                    self.change(node, limit, at, |cell| {
                        cell.held = cell.held.saturating_add(by);
                        cell.active = true;
                    });
                }
            }
        }
        (self.holds[slot].output, self.holds[slot].steps) = (output, steps);
        self.look_crossed();
        HoldAnswer::Given(HeldTokens { at, input, output })
    }

    /// Whether one place has room for `by` more, in the windows of the hold.
    fn fits_more(&mut self, slot: usize, before: &[usize], node: usize, by: i64) -> bool {
        let (at, serial) = (self.holds[slot].at, self.holds[slot].serial);
        if !self.nodes[node].enforced() {
            return true;
        }
        (0..self.nodes[node].limits.len()).all(|which| {
            let relief = self.own_guarantees(before, node, which);
            let Some(limit) = self.nodes[node].limits.get_mut(which).filter(|limit| limit.born <= serial) else { return true };
            if limit.current.contains(at) {
                return by <= limit.free().saturating_add(relief);
            }
            // No new call uses a window that is over. If the window is not kept, its rest is unknown and counts as 0.
            limit.window_at(at).is_some_and(|cell| by <= cell.peak.saturating_sub(cell.committed()))
        })
    }

    /// Notes what must be written before one place can hold `by` more.
    fn request_raise(&mut self, slot: usize, node: usize, by: i64, keys: &mut Vec<Key>) {
        let (at, serial) = (self.holds[slot].at, self.holds[slot].serial);
        let record = self.nodes[node].record;
        let mut lacking = false;
        for limit in self.nodes[node].limits.iter_mut().filter(|limit| limit.born <= serial) {
            if let Some(cell) = limit.window_at(at).filter(|cell| cell.given_tokens().saturating_add(by) > cell.high) {
                cell.requested = cell.requested.saturating_add(by);
                lacking = true;
            }
        }
        if lacking {
            self.request_write(record, keys);
        }
    }
}
