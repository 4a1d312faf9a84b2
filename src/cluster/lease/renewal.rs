//! The task that keeps an acquired Lease: it renews the Lease, checks for a rollback of the store when the Lease is
//! lost, and releases the Lease on a clean stop. It never acquires a Lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Identity, Leadership, LeadershipTerm, Renewal, Reports, Update, holder_of, write};
use crate::cluster::clock::BootTime;
use crate::cluster::lease_rollback::{new_rollback, now, stored_rollback, version_of, written_at};
use crate::cluster::{Class, Error};
use crate::policy::lease::{StoreRollback, Takeover, Timing};
use crate::wire::governor::ROLLBACK_ANNOTATION;

/// Between two attempts to renew when the API server does not answer.
const RENEW_RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long a leader that lost the Lease checks for a rollback of the store. It is at most half of the time until
/// another leader may act.
const ROLLBACK_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the task for a Lease that was just acquired.
pub(super) fn keep(
    api: Api<Lease>,
    identity: Identity,
    timing: Timing,
    (lease, takeover): (Lease, Takeover),
    began: BootTime,
    stop: CancellationToken,
) -> Option<LeadershipTerm> {
    let resource_version = lease.metadata.resource_version.as_deref()?.parse().ok()?;
    let since = takeover.since;
    let (renewed, last_renewal) = watch::channel(Renewal { began, version: resource_version });
    let (confirm, confirmations) = mpsc::unbounded_channel();
    let (stopped, lost, reports) = (CancellationToken::new(), CancellationToken::new(), Arc::new(Reports::default()));
    let leadership = Leadership { last_renewal, confirm, stopped: stopped.clone(), lost: lost.clone(), reports: reports.clone(), timing };
    let keeper = tokio::spawn(async move {
        let mut keeper = Keeper { api, identity, timing, lease, since, renewed, confirmations, reports, stop };
        match keeper.run(&stopped).await {
            Exit::Stopped => keeper.release().await,
            Exit::Lost => {
                stopped.cancel(); // before the first await
                keeper.check_rollback().await;
            }
        }
        stopped.cancel();
        lost.cancel();
    });
    Some(LeadershipTerm { leadership, resource_version, takeover, keeper })
}

/// Why the keeper stops renewing.
enum Exit {
    /// The process was asked to stop.
    Stopped,
    /// The Lease is lost.
    Lost,
}

/// The task that renews.
struct Keeper {
    api: Api<Lease>,
    identity: Identity,
    timing: Timing,
    lease: Lease,
    /// When the replaced Lease had been written.
    since: i64,
    renewed: watch::Sender<Renewal>,
    confirmations: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    reports: Arc<Reports>,
    stop: CancellationToken,
}

impl Keeper {
    async fn run(&mut self, stopped: &CancellationToken) -> Exit {
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.timing.retry) => {}
                Some(asked) = self.confirmations.recv() => waiting.push(asked),
                () = stopped.cancelled() => return Exit::Lost,
                () = self.stop.cancelled() => return Exit::Stopped,
            }
            while let Ok(asked) = self.confirmations.try_recv() {
                waiting.push(asked);
            }
            if let Err(error) = self.renew().await {
                tracing::error!(%error, "the leader lease is lost");
                return Exit::Lost;
            }
            for asked in waiting.drain(..) {
                let _ = asked.send(()); // the caller may be gone
            }
        }
    }

    /// Checks whether the Lease was lost because the store was rolled back. If so, writes that on the Lease and frees
    /// it: this process was its last holder, also if the store shows another one now.
    async fn check_rollback(&mut self) {
        let looking = async {
            loop {
                let found = match self.api.get_opt(&self.identity.name).await {
                    Ok(Some(found)) => found,
                    // There is no Lease to write on. Gateways report the highest version that they saw to the next
                    // leader.
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(%error, "cannot read the leader lease to check for a rollback; retrying");
                        tokio::time::sleep(RENEW_RETRY_DELAY).await;
                        continue;
                    }
                };
                let (ours, reported) = (version_of(&self.lease), self.reports.lost_version.load(Ordering::SeqCst));
                let fell = version_of(&found) < ours || reported > 0;
                if !fell || self.was_taken_over(&found) {
                    return;
                }
                let epoch = u64::try_from(self.reports.epoch.load(Ordering::SeqCst)).unwrap_or(0);
                // A rollback that only others can see happened before we took the Lease over.
                let since = if version_of(&found) < ours { written_at(&found) } else { self.since };
                let rollback = new_rollback(ours.max(reported).max(epoch), &found, since);
                match self.free(found, Some(&rollback)).await {
                    Ok(_) => return,
                    Err(error) => tracing::warn!(%error, "cannot write the rollback on the leader lease; retrying"),
                }
                tokio::time::sleep(RENEW_RETRY_DELAY).await;
            }
        };
        let most = self.timing.duration.saturating_sub(self.timing.renew_deadline) / 2;
        if tokio::time::timeout(ROLLBACK_CHECK_TIMEOUT.min(most), looking).await.is_err() {
            tracing::warn!("the check for a rollback of the API server's store did not end in time");
        }
    }

    /// Whether another process took the Lease after our last renewal. Compares wall clocks, so that a leader that slept does not free
    /// the Lease of its successor.
    fn was_taken_over(&self, found: &Lease) -> bool {
        let taken = found.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref());
        let renewed = self.lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        let later = taken.zip(renewed).is_some_and(|(taken, renewed)| taken.0 > renewed.0);
        later && holder_of(found) != Some(self.identity.holder.as_str())
    }

    /// Replaces this version of the Lease by one without a holder.
    async fn free(&self, mut lease: Lease, rollback: Option<&StoreRollback>) -> Result<Lease, kube::Error> {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        if let Some(rollback) = rollback {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(ROLLBACK_ANNOTATION.to_owned(), rollback.to_text());
        }
        self.api.replace(&self.identity.name, &PostParams::default(), &lease).await
    }

    /// Renews once, with retries until the renew deadline. A conflict may mean that another process holds the Lease.
    async fn renew(&mut self) -> Result<(), Error> {
        loop {
            let began = BootTime::now();
            let last = self.renewed.borrow().began;
            if began.since(last) >= self.timing.renew_deadline {
                return Err(Error::NotLeading);
            }
            let left = self.timing.renew_deadline.saturating_sub(began.since(last));
            let rollback = stored_rollback(&self.lease).filter(|rollback| rollback.is_recent(now()));
            let update = Update { acquire: false, epoch: self.reports.epoch.load(Ordering::SeqCst), rollback: rollback.as_ref() };
            let writing = write(&self.api, &self.identity, &self.timing, Some(self.lease.clone()), &update);
            match tokio::time::timeout(left, writing).await {
                Ok(Ok(lease)) => {
                    let version = version_of(&lease);
                    if version < version_of(&self.lease) {
                        return Err(Error::NotLeading); // the store was rolled back
                    }
                    self.lease = lease;
                    self.renewed.send_replace(Renewal { began, version });
                    return Ok(());
                }
                Ok(Err(error)) => match error.class() {
                    // A lost answer to our own write looks the same, so the Lease is read again.
                    Class::Conflict => match tokio::time::timeout(left, self.reread()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) if error.class() == Class::Unavailable => tokio::time::sleep(RENEW_RETRY_DELAY.min(left)).await,
                        Ok(Err(error)) => return Err(error),
                        Err(_) => return Err(Error::NotLeading),
                    },
                    Class::Unavailable => {
                        tracing::warn!(%error, "the leader lease was not renewed; retrying");
                        tokio::time::sleep(RENEW_RETRY_DELAY.min(left)).await;
                    }
                    Class::AlreadyExists
                    | Class::NotFound
                    | Class::QuotaExceeded
                    | Class::Terminating
                    | Class::Refused
                    | Class::LostLeadership => return Err(error),
                },
                Err(_) => return Err(Error::NotLeading),
            }
        }
    }

    async fn reread(&mut self) -> Result<(), Error> {
        let lease = self.api.get(&self.identity.name).await.map_err(Error::of("reading the leader lease"))?;
        let rollback = version_of(&lease) < version_of(&self.lease);
        if rollback || holder_of(&lease) != Some(self.identity.holder.as_str()) {
            return Err(Error::NotLeading);
        }
        self.lease = lease;
        Ok(())
    }

    /// Releases the Lease, so that the next leader need not wait. Best effort: it expires anyway.
    async fn release(&self) {
        match tokio::time::timeout(Duration::from_secs(2), self.free(self.lease.clone(), None)).await {
            Ok(Ok(_)) => tracing::info!("released the leader lease"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the leader lease; it expires by itself"),
            Err(_) => tracing::warn!("cannot release the leader lease in time; it expires by itself"),
        }
    }
}
