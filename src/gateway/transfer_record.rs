//! The record of one transfer between a program and a server: what it carried, and when it carried bytes last. It is logged when
//! the transfer ends.
//!
//! It must not see the bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cluster::token::PodIdentity;
use crate::telemetry::{Metrics, TransferKind};

/// A transfer that carries nothing for this long is ended.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The record of one transfer.
pub struct TransferRecord {
    metrics: Metrics,
    kind: TransferKind,
    namespace: String,
    agent: String,
    /// The server, and what is transferred.
    peer: String,
    began: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// When bytes passed last, in milliseconds since it began.
    active: AtomicU64,
}

impl TransferRecord {
    /// A transfer begins.
    pub fn new(metrics: Metrics, kind: TransferKind, pod: &PodIdentity, peer: String) -> Self {
        metrics.transfer_began(kind);
        let (sent, received, active) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (namespace, agent) = (pod.namespace.clone(), pod.name.clone());
        Self { metrics, kind, namespace, agent, peer, began: Instant::now(), sent, received, active }
    }

    /// Bytes went to the server.
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.carried("sent", bytes);
    }

    /// Bytes came from the server.
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.carried("received", bytes);
    }

    fn carried(&self, direction: &'static str, bytes: usize) {
        self.metrics.transfer_bytes(self.kind, direction, bytes as u64);
        self.active.store(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Ends when nothing has passed for a while.
    pub async fn idle(&self) {
        loop {
            let idle_at = self.began + Duration::from_millis(self.active.load(Ordering::Relaxed)) + IDLE_TIMEOUT;
            if idle_at <= Instant::now() {
                return;
            }
            sleep_until(idle_at).await;
        }
    }
}

impl Drop for TransferRecord {
    fn drop(&mut self) {
        self.metrics.transfer_ended(self.kind);
        let Self { metrics: _, kind, namespace, agent, peer, began, sent, received, active: _ } = self;
        let (sent, received) = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
        let seconds = began.elapsed().as_secs_f64();
        tracing::info!(namespace, agent, peer, sent, received, seconds, "{} ended", kind.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_transfer_ends_only_after_a_whole_time_without_bytes() {
        let pod = PodIdentity { namespace: "n".into(), name: "a".into(), ..PodIdentity::default() };
        let record = TransferRecord::new(Metrics::default(), TransferKind::Git, &pod, "x".into());
        let began = Instant::now();
        let carrying = async {
            tokio::time::sleep(IDLE_TIMEOUT / 2).await;
            record.sent(1);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = carrying => {}
            () = record.idle() => {}
        }
        assert_eq!(began.elapsed(), IDLE_TIMEOUT * 3 / 2);
    }
}
