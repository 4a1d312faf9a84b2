//! Leadership by a Lease: taken and renewed by compare-and-swap, timed on our own clock, released on a clean stop.
//!
//! A leader that was suspended resumes with a valid client and old memory, so the Lease is checked before each action:
//! [`Leadership::check`] before an object is created, [`Leadership::confirm`] before an object is deleted. The loss of
//! the Lease ends the process, because no decision that was made under it may be carried out later.
//!
//! Resource versions of the Lease only rise. A lower one proves that the API server's store was rolled back, so the memory of this
//! process may be of writes that are lost. Its leadership ends, and it writes the rollback on the Lease for the next leader
//! (`docs/adr/0049-store-rollback.md`).
//!
//! This file acquires the Lease and grants the right to act. The task that renews is in `renewal`.

mod renewal;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::clock::BootTime;
use super::lease_rollback::{epoch_of, new_rollback, now, stored_rollback, version_of, written_at};
use crate::policy::lease::{Step, StoreRollback, Takeover, Timing, decide};
use crate::wire::governor::{ADDRESS_ANNOTATION, EPOCH_ANNOTATION, ROLLBACK_ANNOTATION};
use renewal::keep;

/// The Lease, and the identity of this process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Our name as holder. No two processes have the same, also not before and after a restart.
    pub holder: String,
    /// Address at which this process serves while it leads, as `ip:port`. It is written into the Lease for gateways
    /// that look for the leader.
    pub address: Option<String>,
}

/// A renewal that succeeded.
#[derive(Clone, Copy, Debug, Default)]
struct Renewal {
    began: BootTime,
    /// The version of the Lease that it wrote.
    version: u64,
}

/// The right to act as leader. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    last_renewal: watch::Receiver<Renewal>,
    confirm: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// Cancelled when this process must not act any more.
    stopped: CancellationToken,
    /// Cancelled after that, when the check for a rollback has ended.
    lost: CancellationToken,
    reports: Arc<Reports>,
    timing: Timing,
}

/// What the process reports to the task that keeps the Lease.
#[derive(Debug, Default)]
struct Reports {
    /// Our owner epoch; 0: it is not known yet.
    epoch: AtomicI64,
    /// The highest lost version, if a rollback was detected.
    lost_version: AtomicU64,
}

impl Leadership {
    /// Ok: this process leads, because its last successful renewal began within the renew deadline.
    pub fn check(&self) -> Result<(), Error> {
        let leading = !self.stopped.is_cancelled() && self.last_renewal.borrow().began.elapsed() < self.timing.renew_deadline;
        if leading { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// Ok: this process leads, proved by a renewal that began after this call. Concurrent callers share one renewal.
    pub async fn confirm(&self) -> Result<(), Error> {
        if self.stopped.is_cancelled() {
            return Err(Error::NotLeading);
        }
        let (done, proved) = oneshot::channel();
        self.confirm.send(done).map_err(|_| Error::NotLeading)?;
        proved.await.map_err(|_| Error::NotLeading)?;
        self.check()
    }

    /// The same for background work: waits up to `wait` for a renewal that another caller causes, and only then causes
    /// one.
    pub async fn confirm_within(&self, wait: Duration) -> Result<(), Error> {
        let (asked, mut renewals) = (BootTime::now(), self.last_renewal.clone());
        let renewed = async { renewals.wait_for(|renewal| renewal.began > asked).await.map(drop) };
        match tokio::time::timeout(wait, renewed).await {
            Ok(renewed) => renewed.map_err(|_| Error::NotLeading).and_then(|()| self.check()),
            Err(_) => self.confirm().await,
        }
    }

    /// The resource version of the Lease after its last renewal.
    pub fn version(&self) -> u64 {
        self.last_renewal.borrow().version
    }

    /// Sets our owner epoch.
    pub fn lead_as(&self, epoch: i64) {
        self.reports.epoch.store(epoch, Ordering::SeqCst);
    }

    /// A Lease that is held for the first ten seconds, for tests.
    #[cfg(test)]
    pub fn held() -> Self {
        let (_, last_renewal) = watch::channel(Renewal { began: BootTime::now(), version: 1 });
        let (confirm, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        std::thread::spawn(move || {
            while let Some(done) = asked.blocking_recv() {
                let _ = done.send(()); // the caller may be gone
            }
        });
        let stopped = CancellationToken::new();
        Self { last_renewal, confirm, lost: stopped.clone(), stopped, reports: Arc::default(), timing: Timing::DEFAULT }
    }

    /// Gives up leadership, because another leader's write was seen. A rollback of the store looks the same, so the
    /// keeper of the Lease checks for one before the process ends.
    pub fn abdicate(&self) {
        self.stopped.cancel();
    }

    /// The store was rolled back: this version existed, and a later read returned an older one.
    pub fn report_rollback(&self, version: u64) {
        tracing::error!(version, "the API server's store was rolled back: a version that existed is lost");
        self.reports.lost_version.fetch_max(version, Ordering::SeqCst);
        self.abdicate();
    }

    /// Ends when this process must not act any more.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Ends when leadership is lost and the check for a rollback of the store has ended.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// The result of acquiring the Lease.
#[derive(Debug)]
pub struct LeadershipTerm {
    /// The right to act.
    pub leadership: Leadership,
    /// Resource version of the write that acquired the Lease: the base of the owner epoch.
    pub resource_version: u64,
    /// The state of the Lease before that write.
    pub takeover: Takeover,
    /// The task that keeps the Lease. When it ends, the process must end.
    pub keeper: tokio::task::JoinHandle<()>,
}

/// The Lease as last read, and since when it is unchanged.
struct SeenLease {
    lease: Option<Lease>,
    version: Option<String>,
    unchanged_since: BootTime,
    /// The highest resource version seen.
    highest_version: u64,
    /// The highest resource version or owner epoch seen.
    highest: u64,
}

impl SeenLease {
    /// The state of the Lease for a takeover now.
    fn takeover(&self) -> Takeover {
        let Some(lease) = &self.lease else { return Takeover::default() };
        let (replaced, since) = (version_of(lease), written_at(lease));
        let fell = (replaced < self.highest_version).then(|| new_rollback(self.highest, lease, since));
        let rollback = fell.or_else(|| stored_rollback(lease)).filter(|rollback| rollback.is_recent(now()));
        Takeover { replaced, since, rollback }
    }

    /// Completes the takeover after the first write. If there was no Lease before, only its own version can show a rollback.
    fn won(&self, mut lease: Lease, takeover: Takeover) -> (Lease, Takeover) {
        if takeover.replaced > 0 {
            return (lease, takeover);
        }
        let (version, since) = (version_of(&lease), written_at(&lease));
        let rollback = (version < self.highest_version).then(|| new_rollback(self.highest, &lease, since));
        if let Some(rollback) = &rollback {
            // The next renewal writes it.
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(ROLLBACK_ANNOTATION.to_owned(), rollback.to_text());
        }
        (lease, Takeover { replaced: version, since, rollback })
    }
}

/// Waits until this process holds the Lease. Errors are logged and retried.
pub async fn acquire(client: Client, identity: Identity, timing: Timing, stop: CancellationToken) -> Option<LeadershipTerm> {
    let api: Api<Lease> = Api::namespaced(client, &identity.namespace);
    let mut seen = SeenLease { lease: None, version: None, unchanged_since: BootTime::now(), highest_version: 0, highest: 0 };
    let mut told = None;
    loop {
        // A read that hangs must not keep a standby from taking over.
        let looked =
            tokio::time::timeout(timing.renew_deadline, read_lease(&api, &identity, &mut seen)).await.unwrap_or(Err(Error::NotLeading));
        let wait = match looked {
            Err(error) => {
                tracing::warn!(%error, "cannot read the leader lease; retrying");
                timing.retry
            }
            Ok(()) => {
                let holder = seen.lease.as_ref().and_then(holder_of);
                match decide(holder, &identity.holder, seen.unchanged_since.elapsed(), &timing) {
                    Step::Wait(wait) => {
                        if told.as_deref() != holder {
                            tracing::info!(holder, "standing by for the leader");
                            told = holder.map(str::to_owned);
                        }
                        // The Lease is read twice as often as it is renewed: a standby follows a leader that stops
                        // cleanly within a second.
                        wait.min(timing.retry / 2)
                    }
                    // Names are unique, so a Lease with our own name before we took it is treated as free.
                    Step::Acquire | Step::Renew => {
                        let (began, takeover) = (BootTime::now(), seen.takeover());
                        let update = Update { acquire: true, epoch: 0, rollback: takeover.rollback.as_ref() };
                        let writing = write(&api, &identity, &timing, seen.lease.take(), &update);
                        match tokio::time::timeout(timing.renew_deadline, writing).await.unwrap_or(Err(Error::NotLeading)) {
                            Ok(lease) => {
                                let won = seen.won(lease, takeover);
                                return keep(api, identity, timing, won, began, stop);
                            }
                            Err(error) => {
                                tracing::debug!(%error, "cannot acquire the leader lease; retrying");
                                timing.retry / 2
                            }
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return None,
        }
    }
}

async fn read_lease(api: &Api<Lease>, identity: &Identity, seen: &mut SeenLease) -> Result<(), Error> {
    let lease = api.get_opt(&identity.name).await.map_err(Error::of("reading the leader lease"))?;
    let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
    if version != seen.version {
        seen.unchanged_since = BootTime::now();
        seen.version = version;
    }
    if let Some(lease) = &lease {
        // A leader has already detected this rollback.
        let known = stored_rollback(lease).is_some_and(|rollback| rollback.highest >= seen.highest_version);
        seen.highest_version = if known { version_of(lease) } else { seen.highest_version.max(version_of(lease)) };
        seen.highest = seen.highest.max(version_of(lease)).max(epoch_of(lease));
    }
    seen.lease = lease;
    Ok(())
}

fn holder_of(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// The changes of a write in addition to the holder and the renew time.
struct Update<'a> {
    /// The holder changes.
    acquire: bool,
    /// Our owner epoch; 0: it is not known yet.
    epoch: i64,
    rollback: Option<&'a StoreRollback>,
}

/// Writes this process as holder: a create if there is no Lease, else a replace at the version that was read. Any write
/// in between is a 409.
async fn write(api: &Api<Lease>, identity: &Identity, timing: &Timing, seen: Option<Lease>, update: &Update<'_>) -> Result<Lease, Error> {
    let now = MicroTime(jiff::Timestamp::now());
    let mut lease = seen.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(identity.name.clone()), namespace: Some(identity.namespace.clone()), ..Default::default() },
        spec: None,
    });
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if update.acquire {
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        spec.acquire_time = Some(now.clone());
    }
    spec.holder_identity = Some(identity.holder.clone());
    spec.lease_duration_seconds = Some(i32::try_from(timing.duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(now);
    let address = identity.address.clone().map(|address| (ADDRESS_ANNOTATION, address));
    let epoch = (update.epoch > 0).then(|| (EPOCH_ANNOTATION, update.epoch.to_string()));
    let rollback = update.rollback.map(|rollback| (ROLLBACK_ANNOTATION, rollback.to_text()));
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.remove(ROLLBACK_ANNOTATION);
    annotations.extend([address, epoch, rollback].into_iter().flatten().map(|(name, value)| (name.to_owned(), value)));
    let exists = lease.metadata.resource_version.is_some();
    if exists {
        api.replace(&identity.name, &PostParams::default(), &lease).await.map_err(Error::of("renewing the leader lease"))
    } else {
        api.create(&PostParams::default(), &lease).await.map_err(Error::of("creating the leader lease"))
    }
}
