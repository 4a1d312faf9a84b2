//! When the internal certificates are renewed. Pure: it knows validity times, not certificates.
//!
//! A new authority is published before it signs anything, and the old one is trusted for a day after that. So each
//! certificate is trusted at any time by all that are up to date.

use std::time::Duration;

/// How long an authority is valid.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a serving certificate is valid.
pub const SERVING_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a new authority is published before it signs. Kubelets bring a changed ConfigMap into pods within minutes.
pub const AUTHORITY_PUBLISH_DELAY: Duration = Duration::from_secs(3600);
/// How long an old authority is trusted after the new one signs.
pub const OLD_AUTHORITY_TTL: Duration = Duration::from_secs(24 * 3600);

/// One authority, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// When it was made.
    pub made: i64,
    /// When it ends.
    pub ends: i64,
}

/// The existing authorities. The first one signs until the second was published for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Now, in seconds since 1970.
    pub now: i64,
    /// The older authority.
    pub first: Option<Authority>,
    /// The newer one, during a change.
    pub second: Option<Authority>,
}

/// What to do about authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// Make the first one (again).
    MakeFirst,
    /// Make a second one beside it.
    MakeSecond,
    /// Drop the first one. The second is the only one from then on.
    DropFirst,
}

/// Which authority signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    /// The first.
    First,
    /// The second.
    Second,
}

/// Decide about authorities.
pub fn step(facts: &Facts) -> Step {
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let Facts { now, first, second } = *facts;
    match (first, second) {
        (None, None) => Step::MakeFirst,
        (None, Some(_)) => Step::DropFirst,
        (Some(first), None) if now >= first.ends => Step::MakeFirst,
        // After two thirds of its life: months are left if no leader runs for long.
        (Some(first), None) if now >= first.made + (first.ends - first.made) / 3 * 2 => Step::MakeSecond,
        (Some(first), Some(second))
            if now >= first.ends || now >= second.made + seconds(AUTHORITY_PUBLISH_DELAY) + seconds(OLD_AUTHORITY_TTL) =>
        {
            Step::DropFirst
        }
        (Some(_), None | Some(_)) => Step::Keep,
    }
}

/// Decide who signs.
pub fn signer(facts: &Facts) -> Signer {
    match (facts.first, facts.second) {
        (Some(first), Some(second)) => {
            let told = facts.now.saturating_sub(second.made) >= i64::try_from(AUTHORITY_PUBLISH_DELAY.as_secs()).unwrap_or(i64::MAX);
            if told || facts.now >= first.ends { Signer::Second } else { Signer::First }
        }
        (None, Some(_)) => Signer::Second,
        (Some(_) | None, None) => Signer::First,
    }
}

/// Whether a serving certificate is renewed: half of its life is over, or another authority signs now.
pub fn renew(now: i64, made: i64, ends: i64, by_signer: bool) -> bool {
    !by_signer || now >= made + (ends - made) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;
    fn authority(made: i64) -> Authority {
        Authority { made, ends: made + 365 * DAY }
    }

    #[test]
    fn a_year_hour_by_hour_keeps_every_valid_certificate_trusted() {
        let (mut first, mut second) = (None, None);
        let mut serving: Option<(Authority, i64, i64)> = None;
        for hour in 0..24 * 800 {
            let now = hour * 3600;
            match step(&Facts { now, first, second }) {
                Step::Keep => {}
                Step::MakeFirst => first = Some(authority(now)),
                Step::MakeSecond => second = Some(authority(now)),
                Step::DropFirst => (first, second) = (second, None),
            }
            let facts = Facts { now, first, second };
            let by = if signer(&facts) == Signer::First { first } else { second }.expect("somebody signs");
            if serving.is_none_or(|(signed, made, ends)| renew(now, made, ends, signed == by)) {
                serving = Some((by, now, now + 30 * DAY));
            }
            let (signed, _, ends) = serving.expect("a certificate");
            assert!(now < ends && now < signed.ends, "hour {hour}: expired");
            assert!([first, second].contains(&Some(signed)), "hour {hour}: nobody trusts it");
            if let Some(second) = second.filter(|second| *second == signed) {
                assert!(now - second.made >= 3600, "hour {hour}: signed before it was told");
            }
        }
    }

    #[test]
    fn an_authority_that_ended_while_nobody_led_is_made_anew_at_once() {
        let first = Some(authority(0));
        assert_eq!(step(&Facts { now: 366 * DAY, first, second: None }), Step::MakeFirst);
        assert_eq!(step(&Facts { now: 366 * DAY, first, second: Some(authority(366 * DAY)) }), Step::DropFirst);
    }
}
