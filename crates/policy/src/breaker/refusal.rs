//! The words of a refusal: which breaker, and when to try again.

use std::fmt;

use super::settings::Guard;

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectionCause {
    /// There were too many failures.
    Open,
    /// It is half open, and its probes have not ended.
    Probing,
    /// A person must approve the next attempt.
    Review,
    /// A person holds it open.
    Forced,
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// What the circuit protects.
    pub guard: Guard,
    /// The cause.
    pub cause: RejectionCause,
    /// Milliseconds after which another attempt may pass; never 0. It is an estimate if a person must act.
    pub retry_after: u64,
}

impl RejectionCause {
    /// As one word, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Probing => "probing",
            Self::Review => "review",
            Self::Forced => "forced",
        }
    }
}

impl Rejection {
    /// Names the breaker. `about`: the pool, the namespace, or the provider and class of models that the circuit is
    /// for.
    pub fn name(&self, about: &str) -> String {
        match self.guard {
            Guard::Session => "bash circuit breaker open for session".to_owned(),
            Guard::Commands => "bash circuit breaker open globally".to_owned(),
            Guard::Work => format!("work circuit breaker open for {about}"),
            Guard::Project => format!("work circuit breaker open for all pools of namespace {about}"),
            Guard::Models => format!("model circuit breaker open for {about}"),
        }
    }
}

/// The text after the name: the cause, and when to try again.
impl fmt::Display for Rejection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.retry_after.div_ceil(1000);
        match self.cause {
            RejectionCause::Open => write!(out, "too many failures; do not retry within {seconds} s"),
            RejectionCause::Probing => write!(out, "its probes have not ended yet; do not retry within {seconds} s"),
            RejectionCause::Review => write!(out, "a person must approve the next attempt; do not retry"),
            RejectionCause::Forced => write!(out, "a person holds it open; do not retry"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_breaker_and_when_to_come_back() {
        let say = |guard, why| {
            let rejection = Rejection { guard, cause: why, retry_after: 29_001 };
            format!("{}: {rejection}", rejection.name("drones"))
        };
        let cases = [
            (Guard::Session, RejectionCause::Open, "bash circuit breaker open for session: too many failures; do not retry within 30 s"),
            (Guard::Commands, RejectionCause::Forced, "bash circuit breaker open globally: a person holds it open; do not retry"),
            (
                Guard::Work,
                RejectionCause::Review,
                "work circuit breaker open for drones: a person must approve the next attempt; do not retry",
            ),
            (
                Guard::Project,
                RejectionCause::Open,
                "work circuit breaker open for all pools of namespace drones: too many failures; do not retry within 30 s",
            ),
        ];
        for (guard, why, expected) in cases {
            assert_eq!(say(guard, why), expected);
        }
    }
}
