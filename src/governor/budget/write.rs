//! The only writer of records. Each write is a compare-and-swap, fenced by our leadership. Writes are limited to a rate
//! over all records, and records that a call waits for come first.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;

use super::meter::Meter;
use super::object::{self, Object};
use super::record_writes::{ConflictOutcome, Job, WriteEffects};
use crate::cluster::clock::BootTime;
use crate::cluster::lease::Leadership;
use crate::cluster::{Class, Error};
use crate::governor::work::WorkIndex;
use crate::policy::budget::concurrency::Rate;

/// Writes in a second, evenly spaced, with a burst of the same number.
const WRITES_PER_SECOND: u32 = 20;
/// Interval of checks for due records, when nothing reports one.
const DUE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Attempts at one write that conflicts with others.
const MAX_WRITE_ATTEMPTS: usize = 5;

/// Returns an object as a watch shows it, if one does.
pub type WatchedObject = Arc<dyn Fn(&Object) -> Option<Object> + Send + Sync>;

/// The dependencies of the writer. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    /// The client.
    pub client: Client,
    /// Proof that we lead.
    pub leadership: Leadership,
    /// The ledger in memory.
    pub meter: Meter,
    /// The index of work, which gets the written WorkItems.
    pub work_index: WorkIndex,
    /// The effects of writes.
    pub done: mpsc::UnboundedSender<WriteEffects>,
    /// The objects as watches show them.
    pub watched: WatchedObject,
}

impl Writer {
    /// Writes what is due, until our leadership ends.
    pub async fn run(self) {
        let origin = BootTime::now();
        let mut rate = Rate::default();
        loop {
            let now = i64::try_from(origin.elapsed().as_micros()).unwrap_or(i64::MAX);
            if let Err(wait) = rate.call(now, WRITES_PER_SECOND) {
                tokio::time::sleep(Duration::from_micros(u64::try_from(wait).unwrap_or(0))).await;
                continue;
            }
            let job = loop {
                if let Some(job) = self.meter.next() {
                    break job;
                }
                tokio::select! {
                    () = self.meter.until_work() => {}
                    () = tokio::time::sleep(DUE_CHECK_INTERVAL) => {}
                }
            };
            tokio::spawn(self.clone().write(job));
        }
    }

    /// Makes one write, whatever its result is.
    pub async fn write(self, job: Job) {
        // Other writers change the status of a working agent often. The version from the watch avoids a conflict.
        if let Some(now) = self.meter.object(&job.key).and_then(|known| (self.watched)(&known)) {
            self.meter.saw(&job.key, &now);
        }
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some((object, patch)) = self.meter.prepare(&job) else { return self.meter.skipped(&job) };
            if let Err(error) = self.leadership.check() {
                return self.over(&job, &error);
            }
            let error = match object::write(&self.client, &object, &patch).await {
                Ok((stored, item)) => {
                    if let Some(item) = item {
                        self.work_index.observe(&item);
                    }
                    // A closed channel means that we are ending.
                    let _ = self.done.send(self.meter.stored(&job, stored));
                    return;
                }
                Err(error) => error,
            };
            if error.class() != Class::Conflict {
                return self.over(&job, &error);
            }
            match object::read(&self.client, &object).await {
                Ok(Some(live)) => match self.meter.conflicted(&job, &live) {
                    ConflictOutcome::Again => {}
                    ConflictOutcome::Gone => return self.over(&job, &error),
                    ConflictOutcome::NotOurs => return self.over(&job, &Error::Fenced { call: "writing a record of tokens" }),
                },
                Ok(None) => return self.over(&job, &error),
                Err(error) => return self.over(&job, &error),
            }
        }
        self.over(&job, &Error::Contended { call: "writing a record of tokens" });
    }

    fn over(&self, job: &Job, error: &Error) {
        let class = error.class();
        let wait = self.meter.failed(job, object::result_unknown(class));
        match class {
            Class::LostLeadership => {
                tracing::error!(record = %job.key, %error, "another writer changed a record of tokens");
                self.leadership.abdicate();
            }
            // The object was deleted or replaced: the watch reports it.
            Class::Conflict | Class::AlreadyExists | Class::NotFound => {
                tracing::debug!(record = %job.key, %error, "the object of a record of tokens does not exist any more");
            }
            Class::QuotaExceeded | Class::Terminating | Class::Refused | Class::Unavailable => {
                tracing::warn!(record = %job.key, class = class.label(), retry_seconds = wait.as_secs_f64(), %error, "a record of tokens could not be written");
            }
        }
    }
}
