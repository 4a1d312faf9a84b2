//! What the leader Lease shows about a rollback of the API server's store.

use k8s_openapi::api::coordination::v1::Lease;

use crate::policy::lease::StoreRollback;
use crate::wire::governor::{EPOCH_ANNOTATION, ROLLBACK_ANNOTATION};

/// Wall-clock time in milliseconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// When the holder wrote this Lease. Now, if it has no renew time.
pub fn written_at(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map_or_else(now, |time| time.0.as_millisecond())
}

/// The resource version. 0 if it is not a number.
pub fn version_of(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn annotation<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The owner epoch of the holder. 0 if the Lease does not have it.
pub fn epoch_of(lease: &Lease) -> u64 {
    annotation(lease, EPOCH_ANNOTATION).and_then(|epoch| epoch.parse().ok()).unwrap_or(0)
}

/// The rollback that is written on the Lease.
pub fn stored_rollback(lease: &Lease) -> Option<StoreRollback> {
    annotation(lease, ROLLBACK_ANNOTATION).and_then(StoreRollback::from_text)
}

/// A rollback to this Lease: `highest` existed before, and writes after `since` are lost. It includes a recent rollback that the
/// Lease already carries.
pub fn new_rollback(highest: u64, lease: &Lease, since: i64) -> StoreRollback {
    let detected = now();
    let before = stored_rollback(lease).filter(|before| before.is_recent(detected));
    let (highest, since) = before.map_or((highest, since), |before| (highest.max(before.highest), since.min(before.since)));
    tracing::error!(highest, lease = version_of(lease), "the API server's store was rolled back: resource versions fell");
    StoreRollback { highest, since, detected }
}
