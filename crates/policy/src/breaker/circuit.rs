//! The machine: closed, open, half open.
//!
//! What always holds: no permit while it is open; no more probes at once than it allows; the epoch rises with each opening
//! and each half-opening; a result counts once, and only in the state and for the owner that its permit was given in; time
//! alone leads from every state to a permit, unless a person has to act.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{Rejection, RejectionCause};
use super::settings::{Force, MAX_WAIT_MS, Mode, Review, Settings};
use super::state::State;
use super::window::Window;

/// Permits of a closed circuit whose results are awaited. Of more the oldest is forgotten: whoever holds it has died, or its
/// result comes too late to matter.
const MAX_AWAITED_PERMITS: usize = 4096;
/// Whoever meets a half-open circuit is not told to come back sooner.
const MIN_RETRY_AFTER_MS: u64 = 1000;

/// Now, and what the dice show: uniform in [0, 1).
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds of a clock that never jumps.
    pub now: u64,
    /// The dice.
    pub random: f64,
}

/// The right to act once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permit {
    /// Who kept the circuit when it was given.
    pub owner: u64,
    /// The epoch in which it was given.
    pub epoch: u64,
    /// Its number; of one owner no two are the same.
    pub id: u64,
    /// What its result is for.
    pub kind: Kind,
}

/// What the result of a permit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// To be counted.
    Counted,
    /// To decide whether things work again.
    Probe,
    /// Nothing: it would have been refused, or nobody asks.
    Free,
}

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It worked.
    Success,
    /// It failed in the way that the guard is there for.
    Failure {
        /// For so many milliseconds nobody should try again, says who failed.
        retry_after: Option<u64>,
    },
    /// It says nothing about what is guarded.
    Neutral,
    /// Nobody will ever know: a probe has failed then.
    Dropped,
}

/// The answer to whoever wants to act.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer<T> {
    /// Act, and tell what came of it.
    Permit(T),
    /// Do not act.
    Rejected(Rejection),
    /// The last opening is not durable yet: store it, say so, and ask again.
    Store,
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// It was taken.
    Taken,
    /// It was told before, or belongs to an earlier epoch or owner, or to nobody.
    Late,
}

/// What happened so far, for metrics.
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
    /// Permits that would have been refused if it were not only observed.
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
        /// Until when each has to have said something.
        probes: BTreeMap<u64, u64>,
        successes: u32,
    },
}

/// What a look at a circuit says, before anything is taken of it.
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
    /// A new one, closed. `owner` is whoever keeps it, by a number that nobody who kept it before has.
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

    /// What came of the operation that `permit` was given for.
    pub fn complete(&mut self, permit: &Permit, outcome: Outcome, at: Moment) -> Completion {
        if permit.kind == Kind::Free {
            return Completion::Taken;
        }
        self.tick(at);
        if (permit.owner, permit.epoch) != (self.owner, self.epoch) || !self.awaits(permit.id) {
            self.counts.late = self.counts.late.saturating_add(1);
            return Completion::Late;
        }
        // While a person or nobody holds it, results are nobody's.
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
            // Neutral: the place of a probe is free again, which it is by now.
            (Phase::HalfOpen { .. }, Outcome::Neutral)
            | (Phase::Closed { .. }, Outcome::Success | Outcome::Neutral | Outcome::Dropped)
            | (Phase::Open { .. }, Outcome::Success | Outcome::Failure { .. } | Outcome::Neutral | Outcome::Dropped) => {}
        }
        Completion::Taken
    }

    /// What follows from time alone: a probe that said nothing in its time has failed.
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

    /// Its last opening, and everything before, is durable.
    pub fn stored(&mut self, epoch: u64) {
        self.unstored = self.unstored && epoch < self.epoch;
    }

    /// Whether an opening has to be written before anybody is answered.
    pub fn must_store(&self) -> bool {
        self.unstored
    }

    /// It behaves otherwise from now on. What was counted stays.
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

    /// How it behaves.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// It is open, and a person has to approve that it is tried again, whenever its time is over.
    pub fn awaits_approval(&self) -> bool {
        let required = self.settings.review == Review::Required && self.settings.mode == Mode::Enforce;
        required && matches!(self.phase, Phase::Open { .. }) && !self.is_approved()
    }

    /// How many may try at once whether things work again, if that is being tried or may be.
    pub fn probes(&self) -> Option<u32> {
        let decides = self.settings.mode == Mode::Enforce && self.settings.force.is_none();
        (decides && self.state() != State::Closed).then_some(self.settings.probes)
    }

    /// Who keeps it.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// It is stored elsewhere from now on, where nothing of it is durable yet.
    pub fn elsewhere(&mut self) {
        self.unstored = matches!(self.phase, Phase::Open { .. });
    }

    /// Another circuit that is approved together with this one has reached this epoch.
    pub fn beside(&mut self, epoch: u64) {
        self.floor = self.floor.max(epoch);
    }

    /// Why there would be no permit, if there would be none; nothing is taken, and nobody counts as refused.
    pub fn refuses(&mut self, at: Moment) -> Option<Rejection> {
        self.tick(at);
        match self.settings.mode {
            Mode::Disabled | Mode::Observe => None,
            Mode::Enforce => self.verdict(at.now).err(),
        }
    }

    /// Its state, as it was last asked: one that is open beyond its time is open until somebody wants to act.
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

    /// It is closed, nothing failed, and nobody's result is awaited: nothing is remembered but how often it opened.
    pub fn is_idle(&mut self, now: u64) -> bool {
        let awaits = match &self.phase {
            Phase::Closed { awaited, .. } => !awaited.is_empty(),
            Phase::Open { .. } | Phase::HalfOpen { .. } => true,
        };
        !awaits && self.failures(now) == 0
    }

    /// Nothing is under way, and time or whoever asks next decides what follows: it is idle, or may be tried again and nobody
    /// does.
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

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether there would be a permit. Changes nothing but what follows from time.
    pub(super) fn look(&mut self, at: Moment) -> Availability {
        self.tick(at);
        match self.settings.mode {
            // Nobody is refused, so nobody relies on what is durable.
            Mode::Disabled | Mode::Observe => return Availability::Pass,
            Mode::Enforce => {}
        }
        match self.verdict(at.now) {
            // What a person holds needs no record of ours.
            Err(rejection) if rejection.why == RejectionCause::Forced => Availability::Reject(rejection),
            _ if self.unstored && self.settings.force.is_none() => Availability::Store,
            Err(rejection) => Availability::Reject(rejection),
            Ok(()) => Availability::Pass,
        }
    }

    /// Somebody was refused.
    pub(super) fn refused(&mut self) {
        self.counts.rejected = self.counts.rejected.saturating_add(1);
    }

    /// The permit, after a look that passed.
    pub(super) fn take(&mut self, now: u64, within: u64) -> Permit {
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
            Phase::Open { .. } => Kind::Free, // it is half open since a moment ago
        };
        Permit { owner: self.owner, epoch: self.epoch, id: self.next, kind }
    }

    /// Whether there is a permit, whatever the mode.
    fn verdict(&self, now: u64) -> Result<(), Rejection> {
        let Settings { guard, open, .. } = self.settings;
        let reject = |why, retry_after: u64| Err(Rejection { guard, why, retry_after: retry_after.max(1) });
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

    /// Whether a person has approved this opening: it, or a later one of those that are approved together. An epoch that none of
    /// them has reached approves nothing.
    fn is_approved(&self) -> bool {
        self.settings.approved.is_some_and(|approved| (self.epoch..=self.epoch.max(self.floor)).contains(&approved))
    }

    /// The next epoch: above all that a person may have approved.
    fn rise(&mut self) {
        self.epoch = self.epoch.max(self.floor).max(self.settings.approved.unwrap_or(0)).saturating_add(1);
    }

    /// Nobody asks it, or a person holds it: what happens changes nothing.
    fn is_held(&self) -> bool {
        self.settings.mode == Mode::Disabled || self.settings.force.is_some()
    }

    /// Takes the permit `id` off those whose results are awaited.
    fn awaits(&mut self, id: u64) -> bool {
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

/// How long it stays open the `opens`th time in a row.
fn open_for(settings: &Settings, opens: u32, random: f64) -> u64 {
    let power = u64::from(settings.factor).saturating_pow(opens.saturating_sub(1));
    let wait = settings.open.saturating_mul(power).min(settings.max_open);
    // A tenth more or less, so that those that opened together do not come back together.
    let dice = (random.clamp(0.0, 1.0) * 1000.0) as u64;
    let spread = wait / 5;
    (wait - spread / 2).saturating_add(spread.saturating_mul(dice) / 1000).max(1)
}
