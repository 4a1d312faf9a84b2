//! A simulated leader for tests of sessions.
use std::collections::BTreeSet;

use spillway_wire::meter::{Begin, Quality, Settles};

#[derive(Clone, Default)]
/// A leader that gives, counts and closes holds, as a session sees it.
pub struct Leader {
    pub attached: bool,
    pub open: BTreeSet<u64>,
    pub closed: BTreeSet<u64>,
    pub floor: u64,
    pub received: u64,
    /// The last stored settle; and the charged holds.
    pub durable: u64,
    pub charged: Vec<(u64, u64, Quality)>,
}

impl Leader {
    /// Another leader takes over. It has only the stored state.
    pub fn replaced(&mut self) {
        let durable = self.durable;
        self.charged.retain(|(seq, _, _)| *seq <= durable);
        *self = Self { received: durable, durable, charged: std::mem::take(&mut self.charged), ..Self::default() };
    }

    pub fn settle(&mut self, seq: u64, hold: u64, quality: Quality) {
        if seq <= self.received {
            return;
        }
        assert_eq!(seq, self.received + 1, "settles come without gaps");
        self.received = seq;
        self.closed.insert(hold);
        if self.open.remove(&hold) {
            assert!(self.charged.iter().all(|(_, known, _)| *known != hold), "{hold} is charged twice");
            self.charged.push((seq, hold, quality));
        }
    }

    pub fn begin(&mut self, begin: &Begin) -> u64 {
        for (told, seq) in begin.settles.iter().zip(begin.acked + 1..) {
            if seq > self.received && !self.closed.contains(&told.open.id) {
                self.open.insert(told.open.id);
            }
            self.settle(seq, told.open.id, told.quality);
        }
        let kept: BTreeSet<u64> = begin.open.iter().map(|open| open.id).collect();
        self.open.extend(kept.difference(&self.closed));
        self.open.retain(|id| *id >= begin.next_hold || kept.contains(id));
        (self.attached, self.floor) = (true, self.floor.max(begin.next_hold));
        self.durable
    }

    pub fn tell(&mut self, settles: &Settles) -> Option<u64> {
        if !self.attached {
            return None;
        }
        settles.settles.iter().for_each(|settle| self.settle(settle.seq, settle.hold, settle.quality));
        self.floor = self.floor.max(settles.floor);
        self.open.retain(|id| *id >= settles.floor);
        Some(self.durable)
    }

    /// None: the session must begin first. Some(false): the hold is closed.
    pub fn hold(&mut self, id: u64) -> Option<bool> {
        if !self.attached {
            return None;
        }
        let free = !self.closed.contains(&id) && (id >= self.floor || self.open.contains(&id));
        if free {
            self.open.insert(id);
        }
        Some(free)
    }
}

/// A pseudo-random generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
