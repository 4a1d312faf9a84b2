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
    /// Another process holds it: look again after this long.
    Wait(Duration),
}

/// How the Lease is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long an unchanged record still protects its holder.
    pub duration: Duration,
    /// How long after the start of its last successful renewal a holder may still act. Below `duration`.
    pub renew_deadline: Duration,
    /// Time between renewals, and between looks at another holder's Lease.
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
/// on rising) or the cluster was restored from a backup (they start low again, but the statuses came back, and `rollback` knows
/// the highest epoch that did not).
pub fn owner_epoch(lease_resource_version: u64, highest_in_status: Option<i64>, rollback: Option<&StoreRollback>) -> i64 {
    let from_lease = i64::try_from(lease_resource_version).unwrap_or(i64::MAX);
    let lost = rollback.map_or(0, |rollback| i64::try_from(rollback.highest).unwrap_or(i64::MAX).saturating_add(1));
    from_lease.max(highest_in_status.map_or(0, |epoch| epoch.saturating_add(1))).max(lost)
}

/// How long gateways keep what a leader acknowledged, and how long after a rollback leaders accept it again.
pub const REPLAY_HISTORY_TTL: Duration = Duration::from_secs(600);

/// By how much the wall clocks of two leaders and the time of a renewal may differ, in milliseconds.
const MAX_CLOCK_SKEW_MS: i64 = 5_000;

/// A rollback of the cluster's store: it was restored from a backup, or it lost writes that it had acknowledged. It is kept as an
/// annotation of the Lease for later leaders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRollback {
    /// The highest resource version or owner epoch that is known to have existed before.
    pub highest: u64,
    /// Writes after this time are lost. Milliseconds since 1970.
    pub since: i64,
    /// When it was detected. Milliseconds since 1970.
    pub detected: i64,
}

impl StoreRollback {
    /// The value of the annotation.
    pub fn to_text(&self) -> String {
        let Self { highest, since, detected } = self;
        format!("{highest}/{since}/{detected}")
    }

    /// Parses the value of the annotation.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (highest, since, detected) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { highest, since, detected })
    }

    /// Whether a write that was acknowledged `age_ms` milliseconds ago may be lost. `now` in milliseconds since 1970.
    pub fn has_lost(&self, now: i64, age_ms: u64) -> bool {
        now.saturating_sub_unsigned(age_ms) >= self.since.saturating_sub(MAX_CLOCK_SKEW_MS)
    }

    /// Whether it was detected less than [`REPLAY_HISTORY_TTL`] ago. `now` in milliseconds since 1970.
    pub fn is_recent(&self, now: i64) -> bool {
        Duration::from_millis(now.saturating_sub(self.detected).unsigned_abs()) < REPLAY_HISTORY_TTL
    }
}

/// The last leader that a gateway had a connection to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenLeader {
    /// Its owner epoch; 0: there was none.
    pub epoch: i64,
    /// The highest resource version of its Lease that it sent.
    pub version: u64,
}

/// The state of the Lease when a leader took it over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takeover {
    /// The version of the Lease that the leader's first write replaced. No earlier leader has written a higher one.
    pub replaced: u64,
    /// When that version was written. Milliseconds since 1970.
    pub since: i64,
    /// A recent rollback of the store.
    pub rollback: Option<StoreRollback>,
}

impl Takeover {
    /// Whether an earlier leader had a higher version of the Lease than the leader with owner epoch `epoch` took over: then the store
    /// was rolled back in between, and the leader does not know it.
    pub fn missed_rollback(&self, epoch: i64, seen: SeenLeader) -> bool {
        let known = self.rollback.as_ref().map_or(0, |rollback| rollback.highest).max(self.replaced);
        seen.epoch > 0 && seen.epoch != epoch && seen.version > known
    }
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
        assert_eq!(owner_epoch(900, None, None), 900);
        assert_eq!(owner_epoch(900, Some(100), None), 900);
        assert_eq!(owner_epoch(12, Some(900), None), 901);
        let rollback = StoreRollback { highest: 2000, since: 0, detected: 0 };
        assert_eq!(owner_epoch(12, Some(900), Some(&rollback)), 2001, "above those that are lost");
        assert_eq!(owner_epoch(12, Some(3000), Some(&rollback)), 3001);
    }

    #[test]
    fn a_rollback_survives_its_annotation_and_is_recent_for_a_while() {
        let rollback = StoreRollback { highest: u64::MAX, since: -5, detected: 1_000_000 };
        assert_eq!(StoreRollback::from_text(&rollback.to_text()), Some(rollback.clone()));
        for text in ["", "1", "1/2", "a/2/3", "1/2/3/4", "-1/2/3"] {
            assert_eq!(StoreRollback::from_text(text), None, "{text}");
        }
        let after = |seconds: i64| rollback.is_recent(rollback.detected + seconds * 1000);
        assert_eq!([after(0), after(599), after(600), after(-599), after(-600)], [true, true, false, true, false]);
    }

    #[test]
    fn what_was_written_before_the_lost_time_is_not_lost() {
        let rollback = StoreRollback { highest: 1, since: 1_000_000, detected: 1_060_000 };
        let lost = |age_ms| rollback.has_lost(1_100_000, age_ms);
        assert_eq!([lost(0), lost(100_000), lost(105_000), lost(105_001), lost(u64::MAX)], [true, true, true, false, false]);
    }

    #[test]
    fn a_leader_that_replaced_an_older_version_than_a_gateway_saw_missed_a_rollback() {
        let fresh = Takeover { replaced: 1000, since: 0, rollback: None };
        let seen = |epoch, version| SeenLeader { epoch, version };
        assert!(!fresh.missed_rollback(1001, SeenLeader::default()), "there was no leader before");
        assert!(!fresh.missed_rollback(1001, seen(7, 1000)) && fresh.missed_rollback(1001, seen(7, 1001)));
        assert!(!fresh.missed_rollback(1001, seen(1001, 5000)), "it is its own Lease, renewed since");
        let knows = Takeover { rollback: Some(StoreRollback { highest: 2000, since: 0, detected: 0 }), ..fresh };
        assert!(!knows.missed_rollback(2001, seen(7, 2000)) && knows.missed_rollback(2001, seen(7, 2001)));
    }
}
