//! The end of a simulated history: everything is settled as far as possible, and the real spending is compared with the
//! ledger.

use std::collections::BTreeMap;

use super::super::estimate::Weights;
use super::super::ledger::Ledger;
use super::super::node::{Key, LimitSpec};
use super::Simulation;

impl Simulation {
    /// Settles and writes everything, without further faults.
    pub fn quiet(&mut self) {
        self.take_over(0);
        self.network.clear();
        for round in 0..3 {
            for index in 0..self.gateways.len() {
                self.gateways[index].silent = false;
                if self.gateways[index].alive {
                    if self.gateways[index].session.is_none() || round == 0 {
                        self.begin(index as u32);
                        self.drain();
                    }
                    let open: Vec<u64> = self.gateways[index].open.keys().copied().collect();
                    open.into_iter().for_each(|id| self.finish_call(index, id, 3));
                    self.tell_again(index as u32);
                    self.drain();
                    self.heartbeat(index as u32);
                }
            }
            // A silent gateway is dead after a minute. Everything is written after half a minute.
            self.ticks += 31_000;
            self.wall += 1000;
            self.tick();
            (0..self.gateways.len()).for_each(|index| self.heartbeat(index as u32));
            for _ in 0..4 {
                let now = self.now(0) + 31_000;
                while let Some(key) = self.leaders[0].ledger.due(now).first().cloned() {
                    let now = self.now(0);
                    let draft = self.leaders[0].ledger.draft(now, &key).expect("it is due");
                    self.leaders[0].drafts.push(draft);
                    self.outcome(7 << 4);
                }
                self.drain();
            }
        }
    }

    fn drain(&mut self) {
        while !self.network.is_empty() {
            let message = self.network.remove(0);
            self.receive(message);
        }
    }

    /// The most that was really spent in each window of a limit.
    pub fn truth(&self, key: &Key, limit: &LimitSpec, weights: &Weights) -> BTreeMap<i64, i64> {
        let mut truth = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.open.path.contains(key)) {
            let bound = weights.bound(call.open.input, call.open.output);
            let spent = call.usage.map_or(bound, |(usage, quality)| quality.charged(weights.charge(&usage), bound));
            *truth.entry(limit.window.at(call.open.at).index).or_insert(0) += spent;
        }
        truth
    }

    /// I3, I13: for all histories, no window of any limit has more than its limit.
    pub fn check_spent(&self) {
        for (key, limit, weights) in &self.limits {
            for (index, spent) in self.truth(key, limit, weights) {
                assert!(spent <= limit.tokens, "I3: {spent} of {} at {key}, {} {index}", limit.tokens, limit.name);
            }
        }
    }

    /// Checks that the state of each leader is consistent in itself.
    pub fn check_books(&self) {
        for leader in self.leaders.iter().filter(|leader| !leader.ledger.unlinked) {
            // A hold that was charged because its gateway was dead may count once more at the leader after the next.
            // Then too much is counted, never too little.
            audit(&leader.ledger, !self.may.exceed && !self.may.die);
        }
    }
}

/// Computes the sums again from the holds.
pub fn audit(ledger: &Ledger, within: bool) {
    let open: Vec<_> = ledger.sessions.iter().flat_map(|session| session.ring.iter()).map(|(_, slot)| &ledger.holds[slot]).collect();
    for (index, node) in ledger.nodes.iter().enumerate() {
        for limit in &node.limits {
            for cell in limit.cells() {
                let ours = open.iter().filter(|hold| cell.contains(hold.at) && hold.serial >= limit.born);
                let here = |lost: bool| {
                    let steps = ours.clone().filter(|hold| hold.lost == lost).flat_map(|hold| &hold.steps);
                    steps.filter(|step| step.node == index && step.generation == node.generation).map(|step| step.estimate).sum::<i64>()
                };
                assert_eq!(cell.held, here(false), "I1: held at {} is what its holds hold", node.spec.key);
                assert!(cell.lost >= here(true), "I1: lost at {}", node.spec.key);
                assert!(cell.used >= 0 && cell.unexplained >= 0 && cell.debt >= 0);
                // Holds of an earlier leader are covered by its durable amount, from which this leader gives nothing.
                assert!(
                    !within || cell.high == 0 || cell.given_tokens() <= cell.high.max(cell.raising.unwrap_or(0)).max(limit.height),
                    "durable first: {cell:?}"
                );
            }
            let below = ledger.nodes.iter().filter(|child| child.guards && child.parent == Some(index));
            let position = node.limits.iter().position(|other| other.spec.name == limit.spec.name).expect("it is there");
            let unspent: i64 =
                below.flat_map(|child| &child.limits).filter(|child| child.lifts.contains(&position)).map(|child| child.unspent()).sum();
            assert_eq!(limit.current.reserved, unspent, "I8: what is kept at {} is what is unspent below", node.spec.key);
        }
    }
}
