//! The session of a gateway: its numbers, its log for a new leader, and its state. Data only; `session_lifecycle` has
//! its beginning, death and return.
//!
//! A session is a gateway's pod. It numbers its holds, so that a repeat gets the same answer and a late request gets
//! none. It numbers its settles, so that each counts once, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::estimate::{Quality, Usage};
use super::hold::Settle;
use super::node::Key;

/// A session is dead after this many milliseconds of served time without a report.
pub const SESSION_TIMEOUT_MS: u64 = 60_000;
/// A dead session that comes back within this many milliseconds of served time is credited with what it did not spend.
pub const DEAD_SESSION_TTL_MS: u64 = 3_600_000;
/// The largest distance between the numbers of the oldest open hold and the newest hold.
const MAX_HOLD_NUMBER_SPREAD: u64 = 1 << 20;

/// A session, as this leader knows it. Never reused for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) usize);

/// A hold in the gateway's journal: all that another leader needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournaledHold {
    /// Its number in the session, from 1.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The places that it counts at.
    pub path: Arc<[Key]>,
    /// Tokens of input that it covers.
    pub input: i64,
    /// Tokens of output that it covers, all choices together.
    pub output: i64,
}

/// A settle in the gateway's journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournaledSettle {
    /// The hold that it ends.
    pub hold: JournaledHold,
    /// The usage of the call.
    pub usage: Usage,
    /// How well the usage is known.
    pub quality: Quality,
}

impl JournaledSettle {
    /// The settle under this number.
    pub fn settle(&self, seq: u64) -> Settle {
        let Self { hold: JournaledHold { id, input, output, .. }, usage, quality } = self;
        Settle { seq, hold: *id, usage: *usage, quality: *quality, input: *input, output: *output }
    }
}

/// All that a gateway knows when its session begins, or begins again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionLog {
    /// Every hold with a smaller number that is not in `open` is closed, or was never answered and will never be used.
    pub next_hold: u64,
    /// The last settle that any leader acknowledged.
    pub acked: u64,
    /// The settles after it, in order: their numbers are `acked + 1`, `acked + 2` and so on.
    pub settles: Vec<JournaledSettle>,
    /// The open holds.
    pub open: Vec<JournaledHold>,
    /// The store was rolled back: a record that does not contain a settle, or does not know the session, has lost it.
    pub rolled_back: bool,
    /// In that case, settles that earlier leaders acknowledged, with their numbers, in order.
    pub replayed: Vec<(u64, JournaledSettle)>,
}

/// The state of a hold's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HoldMark {
    Unused,
    Closed,
    Open(usize),
}

/// The numbers of a session's holds, from the oldest that is not closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    base: u64,
    pub(super) marks: VecDeque<HoldMark>,
}

impl Ring {
    pub fn get(&self, id: u64) -> HoldMark {
        let Some(offset) = id.checked_sub(self.base) else { return HoldMark::Closed };
        if offset >= MAX_HOLD_NUMBER_SPREAD {
            return HoldMark::Closed;
        }
        usize::try_from(offset).ok().and_then(|offset| self.marks.get(offset)).copied().unwrap_or(HoldMark::Unused)
    }

    /// A number below the base, or too far above it, stays closed.
    pub fn set(&mut self, id: u64, mark: HoldMark) {
        let Some(offset) =
            id.checked_sub(self.base).filter(|offset| *offset < MAX_HOLD_NUMBER_SPREAD).and_then(|offset| usize::try_from(offset).ok())
        else {
            return;
        };
        if offset >= self.marks.len() {
            self.marks.resize(offset + 1, HoldMark::Unused);
        }
        if let Some(place) = self.marks.get_mut(offset) {
            *place = mark;
        }
        self.forward();
    }

    fn forward(&mut self) {
        while self.marks.front() == Some(&HoldMark::Closed) {
            self.marks.pop_front();
            self.base += 1;
        }
    }

    /// Closes all numbers below `floor` that are not open, and returns the open ones.
    pub fn close_below(&mut self, floor: u64) -> Vec<(u64, usize)> {
        let open: Vec<_> = self.iter().filter(|(id, _)| *id < floor).collect();
        let last = floor.saturating_sub(self.base).min(MAX_HOLD_NUMBER_SPREAD);
        if !self.marks.is_empty() && usize::try_from(last).is_ok_and(|last| last > self.marks.len()) {
            self.marks.resize(usize::try_from(last).unwrap_or(0), HoldMark::Unused);
        }
        for (_, mark) in (0..last).zip(self.marks.iter_mut()) {
            if *mark == HoldMark::Unused {
                *mark = HoldMark::Closed;
            }
        }
        self.forward();
        if self.marks.is_empty() {
            self.base = self.base.max(floor);
        }
        open
    }

    /// The open holds.
    pub fn iter(&self) -> impl Iterator<Item = (u64, usize)> {
        self.marks.iter().zip(self.base..).filter_map(|(mark, id)| match mark {
            HoldMark::Open(slot) => Some((id, *slot)),
            HoldMark::Unused | HoldMark::Closed => None,
        })
    }

    /// The numbers of a session that is new to this leader.
    pub fn start(base: u64) -> Self {
        Self { base, marks: VecDeque::new() }
    }
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// It is in some record, and has not reported.
    Awaited,
    /// It has reported what it knows.
    Attached,
    /// It was silent for too long, or it has ended.
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub name: String,
    pub state: State,
    /// When it last reported, in served time.
    pub last_report: u64,
    /// The last settle that is counted.
    pub received: u64,
    /// The last settle that the gateway knows to be acknowledged: it will not send it again.
    pub confirmed: u64,
    pub ring: Ring,
    /// Records that it is a member of.
    pub records: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_once_and_late_ones_are_closed() {
        let mut ring = Ring::start(1);
        assert_eq!(
            (ring.get(0), ring.get(1), ring.get(1 + MAX_HOLD_NUMBER_SPREAD)),
            (HoldMark::Closed, HoldMark::Unused, HoldMark::Closed)
        );
        ring.set(2, HoldMark::Open(7));
        ring.set(3, HoldMark::Closed);
        assert_eq!(
            (ring.get(1), ring.get(2), ring.get(3), ring.get(4)),
            (HoldMark::Unused, HoldMark::Open(7), HoldMark::Closed, HoldMark::Unused)
        );
        assert_eq!(ring.close_below(3), [(2, 7)], "an open one is told, not closed");
        assert_eq!((ring.get(1), ring.get(2)), (HoldMark::Closed, HoldMark::Open(7)));
        ring.set(2, HoldMark::Closed);
        assert_eq!((ring.base, ring.marks.len()), (4, 0), "what is closed takes no room");
        ring.set(5, HoldMark::Open(1));
        assert_eq!(ring.close_below(9), [(5, 1)]);
        assert_eq!(
            (ring.get(4), ring.get(5), ring.get(8), ring.get(9)),
            (HoldMark::Closed, HoldMark::Open(1), HoldMark::Closed, HoldMark::Unused)
        );
        ring.set(5, HoldMark::Closed);
        assert_eq!(ring.close_below(10), []);
        assert_eq!((ring.get(9), ring.get(10)), (HoldMark::Closed, HoldMark::Unused));
        ring.set(u64::MAX, HoldMark::Open(1));
        assert_eq!(ring.marks.len(), 0, "a number from nowhere is not believed");
    }

    #[test]
    fn a_session_keeps_no_more_marks_than_its_spread() {
        let mut ring = Ring::start(1);
        for id in 1..=2 * MAX_HOLD_NUMBER_SPREAD {
            ring.set(id, HoldMark::Open(0));
        }
        assert_eq!(ring.marks.len(), usize::try_from(MAX_HOLD_NUMBER_SPREAD).expect("small"));
    }
}
