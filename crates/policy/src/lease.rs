//! When to take, keep or wait for leadership. Expiry is judged by how long *we* have seen the record unchanged on our own
//! clock, never by comparing another machine's clock to ours.

use std::time::Duration;

/// What to do about the Lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write ourselves in as a new holder.
    Acquire,
    /// Write a new renew time: we hold it.
    Renew,
    /// Somebody else holds it: look again after this long.
    Wait(Duration),
}

/// How the Lease is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long an unchanged record still protects its holder.
    pub duration: Duration,
    /// How long after the start of its last successful renewal a holder may still act. Below `duration`.
    pub renew_deadline: Duration,
    /// Between renewals, and between looks at somebody else's Lease.
    pub retry: Duration,
}

impl Timing {
    /// 15 s, 10 s, 2 s: the customary values of Kubernetes' own controllers.
    pub const DEFAULT: Self =
        Self { duration: Duration::from_secs(15), renew_deadline: Duration::from_secs(10), retry: Duration::from_secs(2) };
}

/// Decide about a Lease whose record has not changed for `unchanged_for` on our own clock.
pub fn decide(holder: Option<&str>, me: &str, unchanged_for: Duration, timing: &Timing) -> Step {
    match holder {
        None | Some("") => Step::Acquire,
        Some(holder) if holder == me => Step::Renew,
        Some(_) if unchanged_for >= timing.duration => Step::Acquire,
        Some(_) => Step::Wait((timing.duration - unchanged_for).min(timing.retry)),
    }
}

/// The owner epoch of a new leader: above every epoch ever written, even if the Lease was deleted (resource versions go
/// on rising) or the cluster was restored from a backup (they start low again, but the statuses came back).
pub fn owner_epoch(lease_resource_version: u64, highest_in_status: Option<i64>) -> i64 {
    let from_lease = i64::try_from(lease_resource_version).unwrap_or(i64::MAX);
    from_lease.max(highest_in_status.map_or(0, |epoch| epoch.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    const T: Timing = Timing::DEFAULT;

    #[test]
    fn a_free_lease_is_taken() {
        assert_eq!(decide(None, "a", Duration::ZERO, &T), Step::Acquire);
        assert_eq!(decide(Some(""), "a", Duration::ZERO, &T), Step::Acquire);
    }

    #[test]
    fn our_own_is_renewed_however_old() {
        assert_eq!(decide(Some("a"), "a", Duration::from_secs(99), &T), Step::Renew);
    }

    #[test]
    fn anothers_is_left_alone_until_it_expired_on_our_clock() {
        assert_eq!(decide(Some("b"), "a", Duration::ZERO, &T), Step::Wait(T.retry));
        assert_eq!(decide(Some("b"), "a", Duration::from_millis(14_500), &T), Step::Wait(Duration::from_millis(500)));
        assert_eq!(decide(Some("b"), "a", Duration::from_secs(15), &T), Step::Acquire);
    }

    #[test]
    fn a_holder_stops_before_another_may_start() {
        assert!(T.renew_deadline < T.duration);
    }

    #[test]
    fn the_epoch_rises_over_a_deleted_lease_and_over_a_restored_cluster() {
        assert_eq!(owner_epoch(900, None), 900);
        assert_eq!(owner_epoch(900, Some(100)), 900);
        assert_eq!(owner_epoch(12, Some(900)), 901);
    }
}
