//! One limit and its windows: how much is spent, held and free in each. It does not know other limits.
//!
//! All amounts are weighed tokens, never below 0, and saturate.

use std::collections::VecDeque;

use super::estimate::MAX_LIMIT_TOKENS;
use super::node::{Chunk, Debt, Grant, LimitSpec};
use super::persisted::PersistedWindow;
use super::thresholds::Latches;
use super::window::Span;

/// Old windows that are kept for late settles.
pub const MAX_PAST_WINDOWS: usize = 4;

/// The counters of one window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowCounter {
    pub span: Span,
    pub start: i64,
    /// `i64::MAX`: never.
    pub end: i64,
    /// Spent, as settled.
    pub used: i64,
    /// Held for calls in flight.
    pub held: i64,
    /// Charged for gateways that went away.
    pub lost: i64,
    /// Given by earlier leaders, and not explained by any session yet.
    pub unexplained: i64,
    /// Debt from earlier windows.
    pub debt: i64,
    /// Unspent guarantees of all children, which siblings of the caller may still claim.
    pub reserved: i64,
    /// The durable amount: no hold is given beyond it.
    pub high: i64,
    /// The durable amount after the write that is under way.
    pub raising: Option<i64>,
    /// Tokens of requests that wait for a higher durable amount.
    pub requested: i64,
    /// Holds were given since the durable amount was last raised.
    pub active: bool,
    /// The highest value of the limit in this window.
    pub peak: i64,
}

impl WindowCounter {
    pub fn new(span: Span) -> Self {
        Self {
            span,
            start: span.start(),
            end: span.end().unwrap_or(i64::MAX),
            used: 0,
            held: 0,
            lost: 0,
            unexplained: 0,
            debt: 0,
            reserved: 0,
            high: 0,
            raising: None,
            requested: 0,
            active: false,
            peak: 0,
        }
    }

    fn restored(saved: &PersistedWindow) -> Self {
        let [used, lost, carried, high, peak] =
            [saved.used, saved.lost, saved.debt, saved.high, saved.peak].map(|tokens| tokens.clamp(0, i64::MAX / 4));
        let rest = high.saturating_sub(used).saturating_sub(lost).max(0);
        // Nothing is given from the amount that another leader made durable, because that leader may still be writing.
        // Our own first write of the record is compared with what we read, and fails if that changed.
        Self { used, lost, debt: carried, peak, unexplained: rest, ..Self::new(saved.span) }
    }

    /// Tokens that are spent, whatever happens to the holds.
    pub fn spent(&self) -> i64 {
        self.used.saturating_add(self.lost).saturating_add(self.unexplained).saturating_add(self.debt)
    }

    /// All tokens that were given in this window.
    pub fn given_tokens(&self) -> i64 {
        self.used.saturating_add(self.lost).saturating_add(self.unexplained).saturating_add(self.held)
    }

    /// All tokens that count against the limit.
    pub fn committed(&self) -> i64 {
        self.given_tokens().saturating_add(self.debt)
    }

    pub fn contains(&self, time: i64) -> bool {
        self.start <= time && time < self.end
    }
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Limit {
    pub spec: LimitSpec,
    /// Holds with a smaller serial number did not count here.
    pub born: u64,
    pub grants: Vec<Grant>,
    /// The limit now, with grants.
    pub height: i64,
    /// Indexes of the parent's limits at which its guarantee counts.
    pub lifts: Vec<usize>,
    pub current: WindowCounter,
    /// The oldest first.
    pub old: VecDeque<WindowCounter>,
    pub latches: Latches,
    pub chunk: i64,
    pub raised: i64,
}

impl Limit {
    pub fn new(spec: LimitSpec, born: u64, now: i64) -> Self {
        let cell = WindowCounter::new(spec.window.at(now));
        let mut limit = Self {
            spec,
            born,
            grants: Vec::new(),
            height: 0,
            lifts: Vec::new(),
            current: cell,
            old: VecDeque::new(),
            latches: Latches::default(),
            chunk: 0,
            raised: i64::MIN,
        };
        limit.refresh(now);
        limit
    }

    /// Loads its persisted windows. All of them have begun by `now`: see `Ledger::load`.
    pub fn restore(&mut self, saved: &[PersistedWindow], now: i64, debt: Debt) {
        let ours = saved.iter().filter(|saved| saved.limit == self.spec.name && saved.span.window == self.spec.window);
        let mut cells: Vec<WindowCounter> = ours.map(WindowCounter::restored).collect();
        cells.sort_by_key(|cell| cell.span);
        cells.dedup_by_key(|cell| cell.span);
        let Some(last) = cells.pop() else { return };
        self.current = last;
        self.old = cells.into();
        while self.old.len() > MAX_PAST_WINDOWS {
            self.old.pop_front();
        }
        self.roll(now, debt);
    }

    /// The window of this time, if it is kept.
    pub fn window_at(&mut self, time: i64) -> Option<&mut WindowCounter> {
        if self.current.contains(time) {
            return Some(&mut self.current);
        }
        self.old.iter_mut().find(|cell| cell.contains(time))
    }

    /// The old windows and the present one.
    pub fn cells(&self) -> impl Iterator<Item = &WindowCounter> {
        self.old.iter().chain(std::iter::once(&self.current))
    }

    /// As [`Self::cells`].
    pub fn cells_mut(&mut self) -> impl Iterator<Item = &mut WindowCounter> {
        self.old.iter_mut().chain(std::iter::once(&mut self.current))
    }

    /// The part of its guarantee that is not used.
    pub fn unspent(&self) -> i64 {
        self.spec.guaranteed.saturating_sub(self.current.given_tokens()).max(0)
    }

    /// Tokens that are free for a caller without a guarantee here.
    pub fn free(&self) -> i64 {
        self.height.saturating_sub(self.current.committed()).saturating_sub(self.current.reserved)
    }

    /// The next time at which it changes without a call.
    pub fn wake(&self, now: i64) -> i64 {
        let times = self.grants.iter().flat_map(|grant| [Some(grant.from), grant.until]).flatten();
        times.filter(|time| *time > now).fold(self.current.end, i64::min)
    }

    /// Computes its height again.
    pub fn refresh(&mut self, now: i64) {
        let counts = self.grants.iter().filter(|grant| grant.counts(self.current.span, now));
        let granted = counts.fold(0_i64, |sum, grant| sum.saturating_add(grant.tokens.max(0)));
        self.height = self.spec.tokens.clamp(0, MAX_LIMIT_TOKENS).saturating_add(granted).min(2 * MAX_LIMIT_TOKENS);
        self.current.peak = self.current.peak.max(self.height);
    }

    /// Enters the window of `now`. Windows in between were not used.
    pub fn roll(&mut self, now: i64, debt: Debt) {
        if now >= self.current.end {
            let next = WindowCounter::new(self.spec.window.at(now));
            let mut old = std::mem::replace(&mut self.current, next);
            (old.reserved, old.requested, old.active) = (0, 0, false);
            self.old.push_back(old);
            if self.old.len() > MAX_PAST_WINDOWS {
                // A hold in this window is settled without effect: its estimate was spent with the window.
                self.old.pop_front();
            }
            self.latches.clear();
        }
        self.refresh(now);
        self.carry_debt(debt);
    }

    /// Moves debt from each window into the next one. An unused window pays it off.
    pub fn carry_debt(&mut self, debt: Debt) {
        let pays = self.spec.tokens.max(0);
        let mut before: Option<(Span, i64)> = None;
        for cell in self.old.iter_mut().chain(std::iter::once(&mut self.current)) {
            if let Some((span, excess)) = before {
                let between = cell.span.index.saturating_sub(span.index).saturating_sub(1);
                cell.debt = match debt {
                    Debt::CarryOver => excess.saturating_sub(between.saturating_mul(pays)).max(0),
                    Debt::Forgive => 0,
                };
            }
            before = Some((cell.span, cell.spent().saturating_sub(cell.peak).max(0)));
        }
    }

    /// The amount that the next write makes durable for the present window. `pace`: how often this record may be
    /// written.
    pub fn raise(&mut self, now: i64, chunk: Chunk, pace: i64, enforced: bool) -> i64 {
        let (own, wanted) = (self.current.given_tokens(), self.current.requested);
        if wanted == 0 && self.current.held == 0 && !self.current.active {
            return own;
        }
        let (least, most) = ((self.height / 64).max(1), (self.height / 4).max(1));
        if wanted > 0 {
            let passed = now.saturating_sub(self.raised);
            if passed < pace {
                self.chunk = self.chunk.saturating_mul(2);
            } else if passed > pace.saturating_mul(4) {
                self.chunk /= 2;
            }
            self.raised = now;
        }
        self.chunk = self.chunk.clamp(least, most);
        let step = match chunk {
            Chunk::Adaptive => self.chunk,
            Chunk::Quarter => most,
            Chunk::Whole => self.height,
        };
        let high = own.saturating_add(wanted).saturating_add(step);
        if enforced { high.min(self.height.saturating_sub(self.current.debt)).max(own) } else { high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::window::Window;

    const HOUR: i64 = 3_600_000;

    fn limit(tokens: i64) -> Limit {
        Limit::new(LimitSpec { name: "hourly".into(), window: Window::Hour, tokens, guaranteed: 0 }, 0, 0)
    }

    #[test]
    fn debt_goes_into_the_next_window_and_unused_ones_pay_it_off() {
        let mut hourly = limit(100);
        hourly.current.used = 350;
        hourly.roll(HOUR, Debt::CarryOver);
        assert_eq!((hourly.current.debt, hourly.free()), (250, -150));
        hourly.roll(3 * HOUR, Debt::CarryOver);
        assert_eq!(hourly.current.debt, 50, "the second paid 100 by not being used, the third likewise");
        // A late settle moves its own window and what follows from it.
        hourly.window_at(0).expect("it is kept").used -= 30;
        hourly.carry_debt(Debt::CarryOver);
        assert_eq!(hourly.current.debt, 20);
        hourly.carry_debt(Debt::Forgive);
        assert_eq!(hourly.current.debt, 0);
    }

    #[test]
    fn four_old_windows_are_kept_and_debt_outlives_them() {
        let mut hourly = limit(100);
        hourly.current.used = 1000;
        for hour in 1..=6 {
            hourly.roll(hour * HOUR, Debt::CarryOver);
        }
        assert_eq!(hourly.old.len(), MAX_PAST_WINDOWS);
        assert!(hourly.window_at(HOUR).is_none());
        assert_eq!(hourly.current.debt, 1000 - 6 * 100);
    }

    #[test]
    fn what_was_granted_for_a_part_of_a_window_is_no_debt() {
        let mut hourly = limit(100);
        hourly.grants = vec![Grant { id: "a".into(), limit: "hourly".into(), tokens: 50, from: 0, until: Some(10) }];
        hourly.refresh(5);
        assert_eq!((hourly.height, hourly.wake(5)), (150, 10));
        hourly.current.used = 140;
        hourly.refresh(10);
        assert_eq!((hourly.height, hourly.wake(10)), (100, HOUR));
        hourly.roll(HOUR, Debt::CarryOver);
        assert_eq!(hourly.current.debt, 0);
    }

    #[test]
    fn steps_grow_when_they_are_taken_often_and_never_beyond_the_limit() {
        let mut hourly = limit(6400);
        hourly.current.requested = 10;
        assert_eq!(hourly.raise(0, Chunk::Adaptive, 1000, true), 10 + 100);
        for (now, step) in [(100, 200), (200, 400), (300, 800), (400, 1600), (500, 1600), (9000, 800), (99_000, 400)] {
            assert_eq!(hourly.raise(now, Chunk::Adaptive, 1000, true), 10 + step, "{now}");
        }
        assert_eq!(hourly.raise(99_100, Chunk::Whole, 1000, true), 6400, "not above the limit");
        hourly.current.used = 7000;
        assert_eq!(hourly.raise(99_200, Chunk::Adaptive, 1000, true), 7000, "nor below what is spent");
        (hourly.current.requested, hourly.current.used) = (0, 50);
        assert_eq!(hourly.raise(99_300, Chunk::Adaptive, 1000, true), 50, "nothing is kept raised where nothing happens");
    }

    #[test]
    fn what_was_given_and_not_explained_counts_as_spent() {
        let span = Window::Hour.at(0);
        let saved = PersistedWindow { limit: "hourly".into(), span, peak: 100, used: 20, held: 7, lost: 5, debt: 0, high: 60 };
        let mut hourly = limit(100);
        hourly.restore(&[saved.clone(), PersistedWindow { limit: "other".into(), ..saved }], 0, Debt::CarryOver);
        assert_eq!((hourly.current.unexplained, hourly.free()), (35, 40));
    }
}
