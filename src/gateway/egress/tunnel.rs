//! The bytes of a connection: the request's body goes to the destination, and what the destination sends is the answer's body.
//!
//! It must not read the bytes. Memory is bounded: a part each way, and those that wait for the program.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::slots::ConnectionSlot;
use crate::cluster::token::PodIdentity;
use crate::telemetry::Metrics;

/// Bytes of a buffer.
const BUFFER_BYTES: usize = 16 * 1024;
/// Parts that wait for the program.
const MAX_PENDING_PARTS: usize = 2;
/// A connection that carries nothing for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The record of one connection: what it carried. It is logged when the connection ends.
pub struct Record {
    metrics: Metrics,
    namespace: String,
    agent: String,
    destination: String,
    began: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// When bytes passed last, in milliseconds since it began.
    active: AtomicU64,
}

impl Record {
    /// A connection begins.
    pub fn new(metrics: Metrics, pod: &PodIdentity, destination: String) -> Self {
        metrics.egress_opened();
        let (sent, received, active) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (namespace, agent) = (pod.namespace.clone(), pod.name.clone());
        Self { metrics, namespace, agent, destination, began: Instant::now(), sent, received, active }
    }

    fn touch(&self) {
        self.active.store(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn idle_at(&self) -> Instant {
        self.began + Duration::from_millis(self.active.load(Ordering::Relaxed)) + IDLE_TIMEOUT
    }

    fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.egress_bytes("sent", bytes as u64);
        self.touch();
    }

    fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.egress_bytes("received", bytes as u64);
        self.touch();
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.metrics.egress_closed();
        let Self { metrics: _, namespace, agent, destination, began, sent, received, active: _ } = self;
        let (sent, received) = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
        tracing::info!(namespace, agent, destination, sent, received, seconds = began.elapsed().as_secs_f64(), "egress ended");
    }
}

/// A part of what the destination sends.
enum Part {
    Data(Bytes),
    /// The destination has closed the connection. A body that ends without it was cut, and must not look whole.
    End,
}

/// Carries the bytes of a connection until either side closes it, it is idle, or `ended`. That does not depend on whether anybody
/// reads the body.
pub fn carry(
    stream: TcpStream,
    body: Body,
    ended: impl Future<Output = ()> + Send + 'static,
    record: Record,
    slot: ConnectionSlot,
) -> Body {
    let (from, to) = stream.into_split();
    let (giving, taking) = mpsc::channel(MAX_PENDING_PARTS);
    tokio::spawn(async move {
        let _slot = slot;
        let record = &record;
        let carried = async {
            let mut uploading = pin!(upload(body, to, record));
            let mut downloading = pin!(download(from, giving, record));
            let upload_ended = tokio::select! {
                ended = &mut uploading => Some(ended),
                () = &mut downloading => None,
            };
            // A program that has sent all may wait for its answer. What is sent after the destination has closed is lost.
            if upload_ended == Some(UploadEnd::Whole) {
                downloading.await;
            }
        };
        tokio::select! {
            () = carried => {}
            () = ended => {}
            () = idle(record) => {}
        }
    });
    Body::from_stream(futures::stream::unfold(Some(taking), async |taking| {
        let mut taking = taking?;
        match taking.recv().await {
            Some(Part::Data(part)) => Some((Ok(part), Some(taking))),
            Some(Part::End) => None,
            None => Some((Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was cut")), None)),
        }
    }))
}

/// Ends when the connection has carried nothing for a while.
async fn idle(record: &Record) {
    loop {
        let idle_at = record.idle_at();
        if idle_at <= Instant::now() {
            return;
        }
        sleep_until(idle_at).await;
    }
}

/// Carries what the destination sends, as fast as the program takes it.
async fn download(mut from: OwnedReadHalf, to: mpsc::Sender<Part>, record: &Record) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count) = from.read(&mut buffer).await {
        let part = if count == 0 { Part::End } else { Part::Data(Bytes::copy_from_slice(&buffer[..count])) };
        if to.send(part).await.is_err() || count == 0 {
            return;
        }
        record.received(count);
    }
}

/// How the way to the destination ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadEnd {
    /// The program has sent all, and the destination knows it.
    Whole,
    /// It was cut.
    Cut,
}

/// Carries the request's body to the destination.
async fn upload(body: Body, mut to: OwnedWriteHalf, record: &Record) -> UploadEnd {
    // Dropped or cut, it resets the connection: the destination must not take a part for the whole.
    let _ = to.as_ref().set_zero_linger(); // a socket that refuses it is closed in the usual way
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let Ok(part) = part else { return UploadEnd::Cut };
        if to.write_all(&part).await.is_err() {
            return UploadEnd::Cut;
        }
        record.sent(part.len());
    }
    if to.shutdown().await.is_err() { UploadEnd::Cut } else { UploadEnd::Whole }
}
