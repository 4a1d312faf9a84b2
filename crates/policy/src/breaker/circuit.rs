//! The state machine of a circuit: closed, open, half open.
//!
//! What always holds: no permit while the circuit is open, and no more probes at once than allowed. The epoch rises
//! with each opening and each half-opening. A result counts once, and only in the state and for the owner of its
//! permit. From every state time alone leads to a permit, unless a person must act.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{Rejection, RejectionCause};
use super::settings::{Force, MAX_WAIT_MS, Mode, Review, Settings};
use super::state::State;
use super::window::Window;

/// Permits of a closed circuit whose results are awaited. If there are more, the oldest is forgotten: its holder has
/// died, or its result comes too late to matter.
const MAX_AWAITED_PERMITS: usize = 4096;
/// The shortest retry time that a half-open circuit gives.
const MIN_RETRY_AFTER_MS: u64 = 1000;

/// The time, and a random number.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds of a clock that never jumps.
    pub now: u64,
    /// Uniform in [0, 1).
    pub random: f64,
}

/// The right to run one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permit {
    /// The owner of the circuit when it was given.
    pub owner: u64,
    /// The epoch in which it was given.
    pub epoch: u64,
    /// Its number; unique for one owner.
    pub id: u64,
    /// What its result is for.
    pub kind: Kind,
}

/// How the result of a permit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It is counted.
    Counted,
    /// It decides whether the circuit closes.
    Probe,
    /// It is ignored: the circuit would have refused in mode `Enforce`, is disabled, or is held by a person.
    Free,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It worked.
    Success,
    /// It failed in the way that the circuit guards against.
    Failure {
        /// The callee asks for no retry within this many milliseconds.
        retry_after: Option<u64>,
    },
    /// It says nothing about the guarded thing.
    Neutral,
    /// The result will never be known. A probe has failed then.
    Dropped,
}

/// The answer to a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer<T> {
    /// Run the operation, and report its result.
    Permit(T),
    /// Do not run it.
    Rejected(Rejection),
    /// The last opening is not durable yet: store it, call [`Circuit::stored`], and ask again.
    Store,
}

/// What became of a reported result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// It was used.
    Taken,
    /// It was reported before, or its permit is of an earlier epoch, of another owner, or unknown.
    Late,
}

/// Counters for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Closed to open.
    pub tripped: u64,
    /// Open to half open.
    pub tried: u64,
    /// Half open to open.
    pub reopened: u64,
    /// Half open to closed.
    pub closed: u64,
    /// Results that came too late.
    pub late: u64,
    /// Refusals.
    pub rejected: u64,
    /// Permits that would have been refused in mode `Enforce`.
    pub observed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Closed {
        window: Window,
        awaited: BTreeSet<u64>,
    },
    Open {
        until: u64,
    },
    HalfOpen {
        /// The deadline of each probe.
        probes: BTreeMap<u64, u64>,
        successes: u32,
    },
}

/// Whether a circuit would give a permit, before one is taken.
pub(super) enum Availability {
    Pass,
    Store,
    Reject(Rejection),
}

/// One circuit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Circuit {
    settings: Settings,
    owner: u64,
    epoch: u64,
    /// The highest epoch of all circuits that a person approves together.
    floor: u64,
    /// Openings in a row.
    opens: u32,
    phase: Phase,
    next: u64,
    /// Its last opening is not durable yet.
    unstored: bool,
    pub(super) counts: Counts,
}

impl Phase {
    fn closed(window: u64) -> Self {
        Self::Closed { window: Window::new(window), awaited: BTreeSet::new() }
    }

    pub(super) fn half_open() -> Self {
        Self::HalfOpen { probes: BTreeMap::new(), successes: 0 }
    }
}

impl Circuit {
    /// A new circuit, closed. `owner` is a number that no earlier owner of it had.
    pub fn new(settings: Settings, owner: u64) -> Self {
        let settings = settings.sound();
        let phase = Phase::closed(settings.window);
        Self { settings, owner, epoch: 0, floor: 0, opens: 0, phase, next: 0, unstored: false, counts: Counts::default() }
    }

    pub(super) fn resumed(mut self, epoch: u64, opens: u32, phase: Option<Phase>) -> Self {
        (self.epoch, self.opens) = (epoch, opens);
        self.phase = phase.unwrap_or(self.phase);
        self
    }

    /// Takes the result of the operation that `permit` was given for.
    pub fn complete(&mut self, permit: &Permit, outcome: Outcome, at: Moment) -> Completion {
        if permit.kind == Kind::Free {
            return Completion::Taken;
        }
        self.tick(at);
        if (permit.owner, permit.epoch) != (self.owner, self.epoch) || !self.take_awaited(permit.id) {
            self.counts.late = self.counts.late.saturating_add(1);
            return Completion::Late;
        }
        // While the circuit is disabled or a person holds it, results do not count.
        let outcome = if self.is_held() { Outcome::Neutral } else { outcome };
        match (&mut self.phase, outcome) {
            (Phase::Closed { window, .. }, Outcome::Failure { retry_after }) => {
                if window.add(at.now) >= self.settings.threshold {
                    self.trip(at, retry_after);
                }
            }
            (Phase::HalfOpen { .. }, Outcome::Failure { retry_after }) => self.trip(at, retry_after),
            (Phase::HalfOpen { .. }, Outcome::Dropped) => self.trip(at, None),
            (Phase::HalfOpen { successes, .. }, Outcome::Success) => {
                *successes = successes.saturating_add(1);
                if *successes >= self.settings.successes {
                    self.close();
                }
            }
            // Neutral: the probe has ended, so its place is free again.
            (Phase::HalfOpen { .. }, Outcome::Neutral)
            | (Phase::Closed { .. }, Outcome::Success | Outcome::Neutral | Outcome::Dropped)
            | (Phase::Open { .. }, Outcome::Success | Outcome::Failure { .. } | Outcome::Neutral | Outcome::Dropped) => {}
        }
        Completion::Taken
    }

    /// Applies what follows from time alone: a probe without a result by its deadline has failed.
    pub fn tick(&mut self, at: Moment) {
        if self.is_held() {
            return;
        }
        let overdue = match &self.phase {
            Phase::HalfOpen { probes, .. } => probes.values().any(|deadline| *deadline <= at.now),
            Phase::Closed { .. } | Phase::Open { .. } => false,
        };
        if overdue {
            self.trip(at, None);
        }
    }

    /// The opening of this epoch, and everything before it, is durable.
    pub fn stored(&mut self, epoch: u64) {
        self.unstored = self.unstored && epoch < self.epoch;
    }

    /// Whether an opening must be stored before any caller is answered.
    pub fn must_store(&self) -> bool {
        self.unstored
    }

    /// Changes the settings. What was counted stays.
    pub fn set(&mut self, settings: Settings, at: Moment) {
        let settings = settings.sound();
        if let Phase::Closed { window, .. } = &mut self.phase
            && settings.window != self.settings.window
        {
            *window = window.resized(settings.window, at.now);
        }
        self.settings = settings;
        if let Phase::Closed { window, .. } = &mut self.phase {
            let count = window.count(at.now);
            if count >= self.settings.threshold && !self.is_held() {
                self.trip(at, None);
            }
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it is open and a person must approve that it is tried again, even if its time is over.
    pub fn awaits_approval(&self) -> bool {
        let required = self.settings.review == Review::Required && self.settings.mode == Mode::Enforce;
        required && matches!(self.phase, Phase::Open { .. }) && !self.is_approved()
    }

    /// The number of probes at once, if the circuit is probed or may be.
    pub fn probes(&self) -> Option<u32> {
        let decides = self.settings.mode == Mode::Enforce && self.settings.force.is_none();
        (decides && self.state() != State::Closed).then_some(self.settings.probes)
    }

    /// The number of its owner.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// From now on it is stored in another place, where nothing of it is durable yet.
    pub fn mark_store_moved(&mut self) {
        self.unstored = matches!(self.phase, Phase::Open { .. });
    }

    /// Another circuit that is approved together with this one has reached this epoch.
    pub fn raise_epoch_floor(&mut self, epoch: u64) {
        self.floor = self.floor.max(epoch);
    }

    /// The reason if there would be no permit. Takes no permit, and counts no refusal.
    pub fn rejection(&mut self, at: Moment) -> Option<Rejection> {
        self.tick(at);
        match self.settings.mode {
            Mode::Disabled | Mode::Observe => None,
            Mode::Enforce => self.verdict(at.now).err(),
        }
    }

    /// Its state when it was last asked. It stays open after its time until the next request.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Closed { .. } => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::HalfOpen { .. } => State::HalfOpen,
        }
    }

    /// Rises with each opening and each half-opening.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Openings in a row.
    pub fn opens(&self) -> u32 {
        self.opens
    }

    /// Failures that count now.
    pub fn failures(&mut self, now: u64) -> u32 {
        match &mut self.phase {
            Phase::Closed { window, .. } => window.count(now),
            Phase::Open { .. } | Phase::HalfOpen { .. } => 0,
        }
    }

    /// It is closed without failures or awaited results, so only its number of openings is remembered.
    pub fn is_idle(&mut self, now: u64) -> bool {
        let awaits = match &self.phase {
            Phase::Closed { awaited, .. } => !awaited.is_empty(),
            Phase::Open { .. } | Phase::HalfOpen { .. } => true,
        };
        !awaits && self.failures(now) == 0
    }

    /// Nothing is under way, and time or the next request decides what follows: it is idle, or it may be tried again
    /// and no caller asks.
    pub fn is_unattended(&mut self, now: u64) -> bool {
        let tried = match &self.phase {
            Phase::Closed { .. } => return self.is_idle(now),
            Phase::Open { until } => *until <= now,
            Phase::HalfOpen { probes, .. } => probes.is_empty(),
        };
        tried && !self.unstored && self.settings.force.is_none() && !self.awaits_approval()
    }

    /// It is closed, and one more failure opens it.
    pub fn opens_next(&mut self, now: u64) -> bool {
        self.state() == State::Closed && self.failures(now).saturating_add(1) >= self.settings.threshold
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether there would be a permit. Changes only what follows from time.
    pub(super) fn availability(&mut self, at: Moment) -> Availability {
        self.tick(at);
        match self.settings.mode {
            // These modes refuse no call, so no caller relies on durable state.
            Mode::Disabled | Mode::Observe => return Availability::Pass,
            Mode::Enforce => {}
        }
        match self.verdict(at.now) {
            // The force of a person needs no record of ours.
            Err(rejection) if rejection.cause == RejectionCause::Forced => Availability::Reject(rejection),
            _ if self.unstored && self.settings.force.is_none() => Availability::Store,
            Err(rejection) => Availability::Reject(rejection),
            Ok(()) => Availability::Pass,
        }
    }

    /// Counts a refusal.
    pub(super) fn count_rejection(&mut self) {
        self.counts.rejected = self.counts.rejected.saturating_add(1);
    }

    /// Takes the permit, after [`Self::availability`] has passed.
    pub(super) fn issue_permit(&mut self, now: u64, within: u64) -> Permit {
        let refused = self.settings.mode != Mode::Disabled && self.verdict(now).is_err();
        if refused {
            self.counts.observed = self.counts.observed.saturating_add(1);
        }
        if refused || self.is_held() {
            return Permit { owner: self.owner, epoch: self.epoch, id: 0, kind: Kind::Free };
        }
        if matches!(self.phase, Phase::Open { .. }) {
            self.rise();
            self.counts.tried = self.counts.tried.saturating_add(1);
            self.phase = Phase::half_open();
        }
        self.next = self.next.saturating_add(1);
        let kind = match &mut self.phase {
            Phase::HalfOpen { probes, .. } => {
                let within = self.settings.probe_within.unwrap_or(within).clamp(1, MAX_WAIT_MS);
                probes.insert(self.next, now.saturating_add(within));
                Kind::Probe
            }
            Phase::Closed { awaited, .. } => {
                awaited.insert(self.next);
                if awaited.len() > MAX_AWAITED_PERMITS {
                    awaited.pop_first();
                }
                Kind::Counted
            }
            Phase::Open { .. } => Kind::Free, // not reached: it became half open above
        };
        Permit { owner: self.owner, epoch: self.epoch, id: self.next, kind }
    }

    /// Whether there is a permit, in any mode.
    fn verdict(&self, now: u64) -> Result<(), Rejection> {
        let Settings { guard, open, .. } = self.settings;
        let reject = |why, retry_after: u64| Err(Rejection { guard, cause: why, retry_after: retry_after.max(1) });
        match self.settings.force {
            Some(Force::Closed) => return Ok(()),
            Some(Force::Open) => return reject(RejectionCause::Forced, open),
            None => {}
        }
        match &self.phase {
            Phase::Closed { .. } => Ok(()),
            Phase::Open { until } if now < *until => reject(RejectionCause::Open, until - now),
            Phase::Open { .. } => match self.settings.review {
                Review::Required if !self.is_approved() => reject(RejectionCause::Review, open),
                Review::Required | Review::Auto => Ok(()),
            },
            Phase::HalfOpen { probes, successes } => {
                let trying = u32::try_from(probes.len()).unwrap_or(u32::MAX);
                if trying < self.settings.probes && successes.saturating_add(trying) < self.settings.successes {
                    return Ok(());
                }
                let earliest = probes.values().min().copied().unwrap_or(now);
                reject(RejectionCause::Probing, earliest.saturating_sub(now).max(MIN_RETRY_AFTER_MS))
            }
        }
    }

    /// Whether a person has approved this opening: it, or a later one of the circuits that are approved together. An
    /// epoch that none of them has reached approves nothing.
    fn is_approved(&self) -> bool {
        self.settings.approved.is_some_and(|approved| (self.epoch..=self.epoch.max(self.floor)).contains(&approved))
    }

    /// Sets the next epoch, above all that a person may have approved.
    fn rise(&mut self) {
        self.epoch = self.epoch.max(self.floor).max(self.settings.approved.unwrap_or(0)).saturating_add(1);
    }

    /// It is disabled, or a person holds it: results change nothing.
    fn is_held(&self) -> bool {
        self.settings.mode == Mode::Disabled || self.settings.force.is_some()
    }

    /// Removes the permit `id` from those whose results are awaited.
    fn take_awaited(&mut self, id: u64) -> bool {
        match &mut self.phase {
            Phase::Closed { awaited, .. } => awaited.remove(&id),
            Phase::HalfOpen { probes, .. } => probes.remove(&id).is_some(),
            Phase::Open { .. } => false,
        }
    }

    fn close(&mut self) {
        self.counts.closed = self.counts.closed.saturating_add(1);
        self.opens = 0;
        self.phase = Phase::closed(self.settings.window);
    }

    fn trip(&mut self, at: Moment, retry_after: Option<u64>) {
        let count = match self.phase {
            Phase::Closed { .. } | Phase::Open { .. } => &mut self.counts.tripped,
            Phase::HalfOpen { .. } => &mut self.counts.reopened,
        };
        *count = count.saturating_add(1);
        self.rise();
        self.opens = self.opens.saturating_add(1);
        self.unstored = true;
        let wait = open_for(&self.settings, self.opens, at.random).max(retry_after.unwrap_or(0).min(MAX_WAIT_MS));
        self.phase = Phase::Open { until: at.now.saturating_add(wait) };
    }
}

/// How long it stays open after the `opens`th opening in a row.
fn open_for(settings: &Settings, opens: u32, random: f64) -> u64 {
    let power = u64::from(settings.factor).saturating_pow(opens.saturating_sub(1));
    let wait = settings.open.saturating_mul(power).min(settings.max_open);
    // A tenth more or less, so that circuits that opened together are not tried together.
    let dice = (random.clamp(0.0, 1.0) * 1000.0) as u64;
    let spread = wait / 5;
    (wait - spread / 2).saturating_add(spread.saturating_mul(dice) / 1000).max(1)
}
