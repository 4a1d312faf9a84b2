//! Leadership by a Lease: taken and renewed by compare-and-swap, judged on our own clock, given back on a clean stop.
//!
//! A leader that was paused wakes with a valid client and old memory, so holding the Lease is checked, not assumed:
//! [`Leadership::check`] before anything is made, [`Leadership::confirm`] before anything is destroyed. Losing it ends the
//! process: nothing that was decided under it may be carried out later.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::clock::BootTime;
use super::{Class, Error};
use crate::policy::lease::{Step, Timing, decide};
use crate::wire::governor::ADDRESS_ANNOTATION;

/// Between two tries to renew when the API server does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// Which Lease, and who we are.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Our name as holder: never the same for two processes, nor for one before and after a restart.
    pub holder: String,
    /// Where this process serves while it leads, as `ip:port`: written into the Lease for those who look for the leader.
    pub address: Option<String>,
}

/// The right to act, as the rest of the process sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    last_renewal: watch::Receiver<BootTime>,
    confirm: mpsc::UnboundedSender<oneshot::Sender<()>>,
    lost: CancellationToken,
    timing: Timing,
}

impl Leadership {
    /// We lead: our last successful renewal began within the renew deadline.
    pub fn check(&self) -> Result<(), Error> {
        let leading = !self.lost.is_cancelled() && self.last_renewal.borrow().elapsed() < self.timing.renew_deadline;
        if leading { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// We lead, proved by a renewal that began after this call. One renewal serves all that wait.
    pub async fn confirm(&self) -> Result<(), Error> {
        let (done, proved) = oneshot::channel();
        self.confirm.send(done).map_err(|_| Error::NotLeading)?;
        proved.await.map_err(|_| Error::NotLeading)?;
        self.check()
    }

    /// The same, for what nobody waits for: by a renewal that somebody else causes within `wait`, else by one of its own.
    pub async fn confirm_within(&self, wait: Duration) -> Result<(), Error> {
        let (asked, mut renewals) = (BootTime::now(), self.last_renewal.clone());
        let renewed = async { renewals.wait_for(|began| *began > asked).await.map(drop) };
        match tokio::time::timeout(wait, renewed).await {
            Ok(renewed) => renewed.map_err(|_| Error::NotLeading).and_then(|()| self.check()),
            Err(_) => self.confirm().await,
        }
    }

    /// Of a test: held for the first ten seconds.
    #[cfg(test)]
    pub fn held() -> Self {
        let (_, last_renewal) = watch::channel(BootTime::now());
        let (confirm, _) = mpsc::unbounded_channel();
        Self { last_renewal, confirm, lost: CancellationToken::new(), timing: Timing::DEFAULT }
    }

    /// Leadership is lost: somebody saw another leader's writes.
    pub fn abdicate(&self) {
        self.lost.cancel();
    }

    /// Ends when leadership is lost.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// What winning gives.
#[derive(Debug)]
pub struct Won {
    /// The right to act.
    pub leadership: Leadership,
    /// Resource version of the write that won: the base of the owner epoch.
    pub resource_version: u64,
    /// The task that keeps the Lease. When it ends, the process must end.
    pub keeper: tokio::task::JoinHandle<()>,
}

/// A Lease as we last saw it, and since when.
struct Seen {
    lease: Option<Lease>,
    version: Option<String>,
    unchanged_since: BootTime,
}

/// Waits until the Lease is ours. Errors on the way are logged and retried: a standby has nothing better to do.
pub async fn win(client: Client, identity: Identity, timing: Timing, stop: CancellationToken) -> Option<Won> {
    let api: Api<Lease> = Api::namespaced(client, &identity.namespace);
    let mut seen = Seen { lease: None, version: None, unchanged_since: BootTime::now() };
    let mut told = None;
    loop {
        // A look that hangs must not keep a standby from ever taking over.
        let looked = tokio::time::timeout(timing.renew_deadline, look(&api, &identity, &mut seen)).await.unwrap_or(Err(Error::NotLeading));
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
                        // Looked at twice as often as renewed: a leader that stops cleanly is followed within a second.
                        wait.min(timing.retry / 2)
                    }
                    // A Lease that carries our own name before we took it can only be a clash of names: taken as free.
                    Step::Acquire | Step::Renew => {
                        let began = BootTime::now();
                        let writing = write(&api, &identity, &timing, seen.lease.take(), true);
                        match tokio::time::timeout(timing.renew_deadline, writing).await.unwrap_or(Err(Error::NotLeading)) {
                            Ok(lease) => return keep(api, identity, timing, lease, began, stop),
                            Err(error) => {
                                tracing::debug!(%error, "the leader lease was not to be had");
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

async fn look(api: &Api<Lease>, identity: &Identity, seen: &mut Seen) -> Result<(), Error> {
    let lease = api.get_opt(&identity.name).await.map_err(Error::of("reading the leader lease"))?;
    let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
    if version != seen.version {
        seen.unchanged_since = BootTime::now();
        seen.version = version;
    }
    seen.lease = lease;
    Ok(())
}

fn holder_of(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// Writes us in: a create where there is none, else a replace at the version we saw. Anybody's write in between is a 409.
async fn write(api: &Api<Lease>, identity: &Identity, timing: &Timing, seen: Option<Lease>, acquire: bool) -> Result<Lease, Error> {
    let now = MicroTime(jiff::Timestamp::now());
    let mut lease = seen.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(identity.name.clone()), namespace: Some(identity.namespace.clone()), ..Default::default() },
        spec: None,
    });
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if acquire {
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        spec.acquire_time = Some(now.clone());
    }
    spec.holder_identity = Some(identity.holder.clone());
    spec.lease_duration_seconds = Some(i32::try_from(timing.duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(now);
    if let Some(address) = &identity.address {
        lease.metadata.annotations.get_or_insert_default().insert(ADDRESS_ANNOTATION.to_owned(), address.clone());
    }
    let exists = lease.metadata.resource_version.is_some();
    if exists {
        api.replace(&identity.name, &PostParams::default(), &lease).await.map_err(Error::of("renewing the leader lease"))
    } else {
        api.create(&PostParams::default(), &lease).await.map_err(Error::of("creating the leader lease"))
    }
}

fn keep(api: Api<Lease>, identity: Identity, timing: Timing, lease: Lease, began: BootTime, stop: CancellationToken) -> Option<Won> {
    let resource_version = lease.metadata.resource_version.as_deref()?.parse().ok()?;
    let (renewed, last_renewal) = watch::channel(began);
    let (confirm, confirmations) = mpsc::unbounded_channel();
    let lost = CancellationToken::new();
    let leadership = Leadership { last_renewal, confirm, lost: lost.clone(), timing };
    let keeper = tokio::spawn(async move {
        Keeper { api, identity, timing, lease, renewed, confirmations, stop }.run(&lost).await;
        lost.cancel();
    });
    Some(Won { leadership, resource_version, keeper })
}

/// The task that renews.
struct Keeper {
    api: Api<Lease>,
    identity: Identity,
    timing: Timing,
    lease: Lease,
    renewed: watch::Sender<BootTime>,
    confirmations: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    stop: CancellationToken,
}

impl Keeper {
    async fn run(mut self, lost: &CancellationToken) {
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.timing.retry) => {}
                Some(asked) = self.confirmations.recv() => waiting.push(asked),
                () = lost.cancelled() => return,
                () = self.stop.cancelled() => return self.release().await,
            }
            while let Ok(asked) = self.confirmations.try_recv() {
                waiting.push(asked);
            }
            if let Err(error) = self.renew().await {
                tracing::error!(%error, "the leader lease is lost");
                return;
            }
            for asked in waiting.drain(..) {
                let _ = asked.send(()); // who asked may have gone
            }
        }
    }

    /// Renews once, retrying until the renew deadline is over. A conflict means that somebody else holds it.
    async fn renew(&mut self) -> Result<(), Error> {
        loop {
            let began = BootTime::now();
            let last = *self.renewed.borrow();
            if began.since(last) >= self.timing.renew_deadline {
                return Err(Error::NotLeading);
            }
            let left = self.timing.renew_deadline.saturating_sub(began.since(last));
            let writing = write(&self.api, &self.identity, &self.timing, Some(self.lease.clone()), false);
            match tokio::time::timeout(left, writing).await {
                Ok(Ok(lease)) => {
                    self.lease = lease;
                    self.renewed.send_replace(began);
                    return Ok(());
                }
                Ok(Err(error)) => match error.class() {
                    // Our own write whose answer was lost looks like this too: the record tells.
                    Class::Conflict => match tokio::time::timeout(left, self.reread()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) if error.class() == Class::Unavailable => tokio::time::sleep(PAUSE.min(left)).await,
                        Ok(Err(error)) => return Err(error),
                        Err(_) => return Err(Error::NotLeading),
                    },
                    Class::Unavailable => {
                        tracing::warn!(%error, "the leader lease was not renewed; retrying");
                        tokio::time::sleep(PAUSE.min(left)).await;
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
        if holder_of(&lease) != Some(self.identity.holder.as_str()) {
            return Err(Error::NotLeading);
        }
        self.lease = lease;
        Ok(())
    }

    /// Gives the Lease back, so that the next leader need not wait. Best effort: it expires anyway.
    async fn release(mut self) {
        if let Some(spec) = self.lease.spec.as_mut() {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let params = PostParams::default();
        let replacing = self.api.replace(&self.identity.name, &params, &self.lease);
        match tokio::time::timeout(Duration::from_secs(2), replacing).await {
            Ok(Ok(_)) => tracing::info!("the leader lease is given back"),
            Ok(Err(error)) => tracing::warn!(%error, "the leader lease could not be given back; it expires"),
            Err(_) => tracing::warn!("the leader lease could not be given back in time; it expires"),
        }
    }
}
